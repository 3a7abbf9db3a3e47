// SPDX-License-Identifier: Apache-2.0
#include "layout/kv_call.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace farpool::layout {
namespace {

// What a request may not be, on either side.
KvStatus judge(const KvRequestHead& head) {
  if (head.op == 0 || head.op > kLastKvOp) return KvStatus::bad_op;
  const auto op = static_cast<KvOp>(head.op);
  if (head.key_bytes > kMaxKeyBytes) return KvStatus::long_key;
  if (head.value_bytes > kMaxValueBytes) return KvStatus::long_value;
  const bool versioned = (head.flags & (KvRequest::kIfVersion | KvRequest::kNow)) != 0;
  const bool both = (head.flags & KvRequest::kIfVersion) != 0 && (head.flags & KvRequest::kNow) != 0;
  if ((head.flags & ~KvRequest::kFlags) != 0 || both || (versioned != (head.version != 0)) ||
      (versioned && !changes(op)) || ((head.flags & KvRequest::kLeaves) != 0 && (!changes(op) || head.move == 0)) ||
      ((head.flags & KvRequest::kByMover) != 0 && op != KvOp::insert) || (moves(op) && head.move == 0) ||
      (!has_key(op) && head.key_bytes != 0) || (!has_value(op) && head.value_bytes != 0) ||
      (!has_argument(op) && head.argument != 0)) {
    return KvStatus::malformed;
  }
  if (changes(op) != (head.request_id != 0)) return KvStatus::bad_request_id;
  return KvStatus::done;
}

std::byte* put_padded(std::byte* into, base::Bytes bytes) {
  if (!bytes.empty()) std::memcpy(into, bytes.data(), bytes.size());
  const std::size_t padded = base::round_up(bytes.size(), 8);
  std::memset(into + bytes.size(), 0, padded - bytes.size());
  return into + padded;
}

bool zeros(base::Bytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

// Splits the body into key and value; false if their padding is not zeros.
bool get_body(base::Bytes body, std::size_t key_bytes, std::size_t value_bytes, base::Bytes& key, base::Bytes& value) {
  const std::size_t padded = base::round_up(key_bytes, 8);
  key = body.first(key_bytes);
  value = body.subspan(padded, value_bytes);
  return zeros(body.first(padded).subspan(key_bytes)) && zeros(body.subspan(padded + value_bytes));
}

bool known(std::uint16_t status) {
  return status <= static_cast<std::uint16_t>(KvStatus::leaving) ||
         (status >= static_cast<std::uint16_t>(KvStatus::malformed) &&
          status <= static_cast<std::uint16_t>(kLastKvStatus));
}

// Says whether key and value had no room in the reply, which only has their lengths then.
bool lies_elsewhere(KvStatus status, std::uint16_t flags) {
  return (flags & KvReply::kElsewhere) != 0 || status == KvStatus::no_room;
}

constexpr std::array<const char*, 32> kTexts = {
    "done",
    "there is no such key",
    "the key is there already",
    "the entry has another version",
    "what the client goes by is old: read it again",
    "the memory has no room",
    "the request is being carried out: ask again with its id",
    "a later request of the same line was carried out: the outcome is not known any more",
    "the value is not an integer",
    "the sum would be beyond 64 bits",
    "the value is not a number",
    "the sum would not be finite",
    "the new value would be longer than 1048576 bytes",
    "keys have moved between memory nodes since: read the shard map again",
    "the key is not at this memory node, which its part of the hash space leaves",
    "the key is on its way to another memory node: ask again",
    "the message's lengths, zeros and flags do not agree",
    "there is no such operation",
    "the table has no such place, or the key does not belong there",
    "the key is longer than 65536 bytes",
    "the value is longer than 1048576 bytes",
    "the client's room is too small for the reply",
    "the session does not own the client's lines: attach first",
    "the request id names no line of this client's",
    "all lines belong to clients whose sessions live: use fewer clients, or format the table for more",
    "the table's bytes cannot be what they should be: let farpool-fsck look at the memory",
    "there is no such table here",
    "only the holder of the lease for moves moves keys, and this session does not hold it",
    "the value is of a kind that the operation does not know",
    "the table has no owner now: take it, or ask again",
    "too many requests wait for the table's owner: ask again",
    "the table's owner did not carry it out in time; nothing was done",
};
static_assert(kMaxKeyBytes == 65536 && kMaxValueBytes == 1048576);

}  // namespace

const char* text_of(KvStatus status) {
  const auto number = static_cast<std::size_t>(status);
  return number < kTexts.size() && kTexts[number] != nullptr ? kTexts[number] : "an unknown status";
}

KvStatus put_kv_request(const KvRequest& request, base::MutableBytes into, std::size_t& bytes) {
  bytes = 0;
  if (request.key.size() > kMaxKeyBytes) return KvStatus::long_key;
  if (request.value.size() > kMaxValueBytes) return KvStatus::long_value;
  const KvRequestHead head{.op = static_cast<std::uint8_t>(request.op),
                           .flags = request.flags,
                           .client = request.client,
                           .table = request.table,
                           .place = request.place,
                           .generation = request.generation,
                           .request_id = request.request_id,
                           .version = request.version,
                           .argument = request.argument,
                           .move = request.move,
                           .key_bytes = static_cast<std::uint32_t>(request.key.size()),
                           .value_bytes = static_cast<std::uint32_t>(request.value.size())};
  if (const KvStatus status = judge(head); status != KvStatus::done) return status;
  const std::size_t length = kv_request_bytes(request.key.size(), request.value.size());
  if (length > into.size()) return KvStatus::no_room;
  base::store(into.data(), head);
  put_padded(put_padded(into.data() + kKvRequestHead, request.key), request.value);
  bytes = length;
  return KvStatus::done;
}

KvStatus get_kv_request(base::Bytes bytes, KvRequest& request) {
  request = {};
  if (bytes.size() < kKvRequestHead) return KvStatus::malformed;
  const auto head = base::load<KvRequestHead>(bytes.data());
  if (const KvStatus status = judge(head); status != KvStatus::done) return status;
  if (bytes.size() != kv_request_bytes(head.key_bytes, head.value_bytes)) return KvStatus::malformed;
  base::Bytes key, value;
  if (!get_body(bytes.subspan(kKvRequestHead), head.key_bytes, head.value_bytes, key, value))
    return KvStatus::malformed;
  request = {.op = static_cast<KvOp>(head.op),
             .flags = head.flags,
             .client = head.client,
             .table = head.table,
             .place = head.place,
             .generation = head.generation,
             .request_id = head.request_id,
             .version = head.version,
             .argument = head.argument,
             .move = head.move,
             .key = key,
             .value = value};
  return KvStatus::done;
}

std::size_t put_kv_reply(const KvReply& reply, base::MutableBytes into) {
  FARPOOL_CHECK(into.size() >= kKvReplyHead);
  const bool away = lies_elsewhere(reply.status, reply.flags);
  KvReplyHead head{.status = static_cast<std::uint16_t>(reply.status),
                   .flags = reply.flags,
                   .hint = reply.hint,
                   .version = reply.version,
                   .number = reply.number,
                   .generation = reply.generation,
                   .key_bytes = away ? reply.key_bytes : static_cast<std::uint32_t>(reply.key.size()),
                   .value_bytes = away ? reply.value_bytes : static_cast<std::uint32_t>(reply.value.size())};
  const std::size_t length = away ? kKvReplyHead : kv_reply_bytes(reply.key.size(), reply.value.size());
  if (length > into.size()) {
    head.status = static_cast<std::uint16_t>(KvStatus::no_room);
    base::store(into.data(), head);
    return kKvReplyHead;
  }
  base::store(into.data(), head);
  if (!away) put_padded(put_padded(into.data() + kKvReplyHead, reply.key), reply.value);
  return length;
}

bool get_kv_reply(base::Bytes bytes, KvReply& reply) {
  reply = {};
  if (bytes.size() < kKvReplyHead) return false;
  const auto head = base::load<KvReplyHead>(bytes.data());
  const auto status = static_cast<KvStatus>(head.status);
  if (!known(head.status) || (head.flags & ~KvReply::kFlags) != 0 || head.key_bytes > kMaxKeyBytes ||
      head.value_bytes > kMaxValueBytes) {
    return false;
  }
  // A refusal has neither key nor value.
  if (is_refusal(status) && status != KvStatus::no_room && (head.key_bytes != 0 || head.value_bytes != 0)) return false;
  const bool here = !lies_elsewhere(status, head.flags);
  const std::size_t key_bytes = here ? head.key_bytes : 0, value_bytes = here ? head.value_bytes : 0;
  base::Bytes key, value;
  if (bytes.size() != kv_reply_bytes(key_bytes, value_bytes) ||
      !get_body(bytes.subspan(kKvReplyHead), key_bytes, value_bytes, key, value)) {
    return false;
  }
  reply = {.status = status,
           .flags = head.flags,
           .hint = head.hint,
           .version = head.version,
           .number = head.number,
           .generation = head.generation,
           .key = key,
           .value = value,
           .key_bytes = head.key_bytes,
           .value_bytes = head.value_bytes};
  return true;
}

}  // namespace farpool::layout
