// SPDX-License-Identifier: Apache-2.0
#include "index/outback/message.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace farpool::outback {
namespace {

// What a request may not be, on either side.
Status judge(const RequestHead& head) {
  if (head.op == 0 || head.op > kLastOp) return Status::bad_op;
  const auto op = static_cast<Op>(head.op);
  if (head.key_bytes > layout::kMaxKeyBytes) return Status::long_key;
  if (head.value_bytes > layout::kMaxValueBytes) return Status::long_value;
  const bool versioned = (head.flags & Request::kIfVersion) != 0;
  if ((head.flags & ~Request::kFlags) != 0 || (versioned != (head.version != 0)) || (versioned && !changes(op)) ||
      (!has_key(op) && head.key_bytes != 0) || (!has_value(op) && head.value_bytes != 0) ||
      (!has_argument(op) && head.argument != 0)) {
    return Status::malformed;
  }
  if (changes(op) != (fabric::RequestId::of(head.request_id).number != 0) || (!changes(op) && head.request_id != 0)) {
    return Status::bad_request_id;
  }
  return Status::done;
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
  return status <= static_cast<std::uint16_t>(Status::beyond_value) ||
         (status >= static_cast<std::uint16_t>(Status::malformed) &&
          status <= static_cast<std::uint16_t>(Status::damaged));
}

constexpr std::array<const char*, 26> kTexts = {
    "done",
    "there is no such key",
    "the key is there already",
    "the entry has another version",
    "the client's locator is old: read the new one",
    "the memory has no room",
    "the request is being carried out: ask again with its id",
    "a later request of the same line was carried out: the outcome is not known any more",
    "the value is not an integer",
    "the sum would be beyond 64 bits",
    "the value is not a number",
    "the sum would not be finite",
    "the new value would be longer than 1048576 bytes",
    nullptr,
    nullptr,
    nullptr,
    "the message's lengths, zeros and flags do not agree",
    "there is no such operation",
    "there is no such bucket or slot, or the key does not belong there",
    "the key is longer than 65536 bytes",
    "the value is longer than 1048576 bytes",
    "the client's room is too small for the reply",
    "the session does not own the client's lines: attach first",
    "the request id names no line of this client's",
    "all lines belong to clients whose sessions live: use fewer clients, or format the table for more",
    "the table's bytes cannot be what they should be: let farpool-fsck look at the memory",
};
static_assert(layout::kMaxKeyBytes == 65536 && layout::kMaxValueBytes == 1048576);

}  // namespace

const char* text_of(Status status) {
  const auto number = static_cast<std::size_t>(status);
  return number < kTexts.size() && kTexts[number] != nullptr ? kTexts[number] : "an unknown status";
}

Status put_request(const Request& request, base::MutableBytes into, std::size_t& bytes) {
  bytes = 0;
  if (request.key.size() > layout::kMaxKeyBytes) return Status::long_key;
  if (request.value.size() > layout::kMaxValueBytes) return Status::long_value;
  const RequestHead head{.op = static_cast<std::uint8_t>(request.op),
                         .flags = request.flags,
                         .client = request.client,
                         .bucket = request.bucket,
                         .generation = request.generation,
                         .request_id = request.request_id,
                         .version = request.version,
                         .argument = request.argument,
                         .key_bytes = static_cast<std::uint32_t>(request.key.size()),
                         .value_bytes = static_cast<std::uint32_t>(request.value.size())};
  if (const Status status = judge(head); status != Status::done) return status;
  const std::size_t length = request_bytes(request.key.size(), request.value.size());
  if (length > into.size()) return Status::no_room;
  base::store(into.data(), head);
  put_padded(put_padded(into.data() + kRequestHead, request.key), request.value);
  bytes = length;
  return Status::done;
}

Status get_request(base::Bytes bytes, Request& request) {
  request = {};
  if (bytes.size() < kRequestHead) return Status::malformed;
  const auto head = base::load<RequestHead>(bytes.data());
  if (const Status status = judge(head); status != Status::done) return status;
  if (bytes.size() != request_bytes(head.key_bytes, head.value_bytes)) return Status::malformed;
  base::Bytes key, value;
  if (!get_body(bytes.subspan(kRequestHead), head.key_bytes, head.value_bytes, key, value)) return Status::malformed;
  request = {.op = static_cast<Op>(head.op),
             .flags = head.flags,
             .client = head.client,
             .bucket = head.bucket,
             .generation = head.generation,
             .request_id = head.request_id,
             .version = head.version,
             .argument = head.argument,
             .key = key,
             .value = value};
  return Status::done;
}

std::size_t put_reply(const Reply& reply, base::MutableBytes into) {
  FARPOOL_CHECK(into.size() >= kReplyHead);
  const bool elsewhere = (reply.flags & Reply::kElsewhere) != 0;
  ReplyHead head{.status = static_cast<std::uint16_t>(reply.status),
                 .flags = reply.flags,
                 .seed = reply.seed.value | std::uint32_t{reply.seed.version} << 8,
                 .version = reply.version,
                 .number = reply.number,
                 .generation = reply.generation,
                 .key_bytes = elsewhere ? reply.key_bytes : static_cast<std::uint32_t>(reply.key.size()),
                 .value_bytes = elsewhere ? reply.value_bytes : static_cast<std::uint32_t>(reply.value.size())};
  const std::size_t length = elsewhere ? kReplyHead : reply_bytes(reply.key.size(), reply.value.size());
  if (length > into.size()) {
    head.status = static_cast<std::uint16_t>(Status::no_room);
    base::store(into.data(), head);
    return kReplyHead;
  }
  base::store(into.data(), head);
  if (!elsewhere) put_padded(put_padded(into.data() + kReplyHead, reply.key), reply.value);
  return length;
}

bool get_reply(base::Bytes bytes, Reply& reply) {
  reply = {};
  if (bytes.size() < kReplyHead) return false;
  const auto head = base::load<ReplyHead>(bytes.data());
  const auto status = static_cast<Status>(head.status);
  const bool elsewhere = (head.flags & Reply::kElsewhere) != 0;
  if (!known(head.status) || (head.flags & ~Reply::kFlags) != 0 || head.seed >> 24 != 0 ||
      head.key_bytes > layout::kMaxKeyBytes || head.value_bytes > layout::kMaxValueBytes) {
    return false;
  }
  // What had no room is not here.
  const bool here = !elsewhere && status != Status::no_room;
  const std::size_t key_bytes = here ? head.key_bytes : 0, value_bytes = here ? head.value_bytes : 0;
  base::Bytes key, value;
  if (bytes.size() != reply_bytes(key_bytes, value_bytes) ||
      !get_body(bytes.subspan(kReplyHead), key_bytes, value_bytes, key, value)) {
    return false;
  }
  reply = {.status = status,
           .flags = head.flags,
           .seed = {static_cast<std::uint8_t>(head.seed), static_cast<std::uint16_t>(head.seed >> 8)},
           .version = head.version,
           .number = head.number,
           .generation = head.generation,
           .key = key,
           .value = value,
           .key_bytes = head.key_bytes,
           .value_bytes = head.value_bytes};
  return true;
}

bool next_scan_key(base::Bytes& rest, ScanKey& key, bool& bad) {
  key = {};
  if (rest.empty()) return false;
  bad = true;
  if (rest.size() < 4) return false;
  const auto word = base::load<std::uint32_t>(rest.data());
  key.key_bytes = word & ~ScanKey::kNamed;
  const std::size_t here = (word & ScanKey::kNamed) != 0 ? 8 : key.key_bytes;
  if (key.key_bytes > layout::kMaxKeyBytes || rest.size() - 4 < here) return false;
  if ((word & ScanKey::kNamed) != 0) {
    key.address = base::load<std::uint64_t>(rest.data() + 4);
    if (key.address == 0) return false;
  } else {
    key.key = rest.subspan(4, here);
  }
  rest = rest.subspan(4 + here);
  bad = false;
  return true;
}

}  // namespace farpool::outback
