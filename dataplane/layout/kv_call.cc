// SPDX-License-Identifier: Apache-2.0
#include "layout/kv_call.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace farpool::layout {
namespace {

bool changes(KvOp op) { return op != KvOp::get; }
bool carries_value(KvOp op) { return op == KvOp::put || op == KvOp::insert || op == KvOp::update; }

// What a request may not be, on either side.
KvStatus judge(const KvRequestHead& head) {
  if (head.op < static_cast<std::uint8_t>(KvOp::get) || head.op > static_cast<std::uint8_t>(KvOp::remove)) {
    return KvStatus::bad_op;
  }
  const auto op = static_cast<KvOp>(head.op);
  if (head.key_bytes > kMaxKeyBytes) return KvStatus::long_key;
  if (head.value_bytes > kMaxValueBytes) return KvStatus::long_value;
  const bool versioned = (head.flags & KvRequest::kIfVersion) != 0;
  if (head.zero != 0 || (head.flags & ~KvRequest::kFlags) != 0 || (!versioned && head.version != 0) ||
      (versioned && !changes(op)) || (!carries_value(op) && head.value_bytes != 0)) {
    return KvStatus::malformed;
  }
  return KvStatus::done;
}

std::byte* put_padded(std::byte* into, base::Bytes bytes) {
  if (!bytes.empty()) std::memcpy(into, bytes.data(), bytes.size());
  const std::size_t padded = base::round_up(bytes.size(), 8);
  std::memset(into + bytes.size(), 0, padded - bytes.size());
  return into + padded;
}

// The first `count` bytes of padded ones; false if what follows them are not zeros.
bool get_padded(base::Bytes padded, std::size_t count, base::Bytes& bytes) {
  bytes = padded.first(count);
  return std::all_of(padded.begin() + static_cast<std::ptrdiff_t>(count), padded.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

bool known(std::uint16_t status) {
  return status <= static_cast<std::uint16_t>(KvStatus::forgotten) ||
         (status >= static_cast<std::uint16_t>(KvStatus::malformed) &&
          status <= static_cast<std::uint16_t>(KvStatus::bad_request_id));
}

}  // namespace

const char* text_of(KvStatus status) {
  switch (status) {
    case KvStatus::done:
      return "done";
    case KvStatus::absent:
      return "there is no such key";
    case KvStatus::present:
      return "the key is there already";
    case KvStatus::version:
      return "the entry has another version";
    case KvStatus::stale:
      return "the client's map or its hints are old: read them again";
    case KvStatus::full:
      return "the table has no room";
    case KvStatus::running:
      return "the request is being carried out: ask again with its id";
    case KvStatus::forgotten:
      return "a later request of the same line was carried out: the outcome is not known any more";
    case KvStatus::malformed:
      return "the message's lengths, zeros and flags do not agree";
    case KvStatus::bad_op:
      return "there is no such operation";
    case KvStatus::bad_table:
      return "there is no such table here";
    case KvStatus::long_key:
      return "the key is longer than 65536 bytes";
    case KvStatus::long_value:
      return "the value is longer than 1048576 bytes";
    case KvStatus::no_room:
      return "key and value do not fit a message";
    case KvStatus::forbidden:
      return "this client may not do that";
    case KvStatus::bad_request_id:
      return "the request id names no line of this client's";
  }
  return "an unknown status";
}
static_assert(kMaxKeyBytes == 65536 && kMaxValueBytes == 1048576);

KvStatus put_kv_request(const KvRequest& request, base::MutableBytes into, std::size_t& bytes) {
  bytes = 0;
  if (request.key.size() > kMaxKeyBytes) return KvStatus::long_key;
  if (request.value.size() > kMaxValueBytes) return KvStatus::long_value;
  const KvRequestHead head{.op = static_cast<std::uint8_t>(request.op),
                           .flags = request.flags,
                           .table = request.table,
                           .epoch = request.epoch,
                           .hints = request.hints,
                           .request_id = request.request_id,
                           .version = request.version,
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
  const base::Bytes body = bytes.subspan(kKvRequestHead);
  const std::size_t key = base::round_up(head.key_bytes, 8);
  base::Bytes name, value;
  if (!get_padded(body.first(key), head.key_bytes, name) || !get_padded(body.subspan(key), head.value_bytes, value)) {
    return KvStatus::malformed;
  }
  request = {.op = static_cast<KvOp>(head.op),
             .flags = head.flags,
             .table = head.table,
             .epoch = head.epoch,
             .hints = head.hints,
             .request_id = head.request_id,
             .version = head.version,
             .key = name,
             .value = value};
  return KvStatus::done;
}

std::size_t put_kv_reply(const KvReply& reply, base::MutableBytes into) {
  FARPOOL_CHECK(into.size() >= kKvReplyHead && reply.value.size() <= kMaxValueBytes);
  KvReplyHead head{.status = static_cast<std::uint16_t>(reply.status),
                   .flags = reply.flags,
                   .value_bytes = static_cast<std::uint32_t>(reply.value.size()),
                   .version = reply.version,
                   .hint = reply.hint};
  const std::size_t length = kv_reply_bytes(reply.value.size());
  if (length > into.size()) {
    head.status = static_cast<std::uint16_t>(KvStatus::no_room);
    base::store(into.data(), head);
    return kKvReplyHead;
  }
  if (reply.status == KvStatus::no_room) head.value_bytes = reply.value_bytes;
  base::store(into.data(), head);
  put_padded(into.data() + kKvReplyHead, reply.value);
  return length;
}

bool get_kv_reply(base::Bytes bytes, KvReply& reply) {
  reply = {};
  if (bytes.size() < kKvReplyHead) return false;
  const auto head = base::load<KvReplyHead>(bytes.data());
  if (!known(head.status) || head.value_bytes > kMaxValueBytes) return false;
  const auto status = static_cast<KvStatus>(head.status);
  // The value that had no room is not here, and a refusal has none.
  const std::size_t here = is_refusal(status) ? 0 : head.value_bytes;
  if (is_refusal(status) && status != KvStatus::no_room && head.value_bytes != 0) return false;
  base::Bytes value;
  if (bytes.size() != kv_reply_bytes(here) || !get_padded(bytes.subspan(kKvReplyHead), here, value)) return false;
  reply = {.status = status,
           .flags = head.flags,
           .version = head.version,
           .hint = head.hint,
           .value = value,
           .value_bytes = head.value_bytes};
  return true;
}

}  // namespace farpool::layout
