// SPDX-License-Identifier: Apache-2.0
#include "fabric/tcp/frame.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace farpool::fabric::tcp {
namespace {

constexpr std::size_t kVerbHeader = 24;

std::size_t padded(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

struct Writer {
  std::byte* at;
  template <class T>
  void put(T value) {
    base::store(at, value);
    at += sizeof value;
  }
  void put_bytes(base::Bytes bytes) {
    if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
    std::memset(at + bytes.size(), 0, padded(bytes.size()) - bytes.size());
    at += padded(bytes.size());
  }
};

// Reads never go beyond the end: a reader that has failed yields zeros and stays failed.
struct Reader {
  base::Bytes rest;
  bool failed = false;

  template <class T>
  T get() {
    if (rest.size() < sizeof(T)) {
      failed = true;
      return T{};
    }
    const T value = base::load<T>(rest.data());
    rest = rest.subspan(sizeof(T));
    return value;
  }
  void zero(bool is_zero) { failed |= !is_zero; }
  base::Bytes bytes(std::uint64_t length) {
    if (failed || length > rest.size() || padded(length) > rest.size()) {
      failed = true;
      return {};
    }
    const base::Bytes found = rest.first(length);
    for (std::size_t i = length; i < padded(length); ++i) zero(rest[i] == std::byte{0});
    rest = rest.subspan(padded(length));
    return found;
  }
};

std::size_t body_length(const Op& op) {
  switch (op.verb) {
    case Verb::read:
      return 8;
    case Verb::write:
    case Verb::call:
      return 8 + padded(op.local.size());
    case Verb::cas:
      return 16;
    case Verb::masked_cas:
      return 32;
    case Verb::fetch_add:
      return 8;
  }
  return 0;
}

std::uint64_t key_of(std::uint32_t region, Keys keys) {
  for (const LaneGrant::Region& each : keys) {
    if (each.id == region) return each.key;
  }
  return 0;
}

}  // namespace

std::size_t frame_length(base::Bytes header) {
  FARPOOL_CHECK(header.size() >= kHeaderBytes);
  const std::size_t length = base::load<std::uint32_t>(header.data());
  return length >= kHeaderBytes && length <= kMaxFrameBytes && length % 8 == 0 ? length : 0;
}

std::size_t chain_length(std::span<const Op> ops) {
  if (ops.empty() || ops.size() > kMaxChain) return 0;
  std::size_t there = kHeaderBytes, back = kHeaderBytes;
  for (const Op& op : ops) {
    if (op.local.size() > kMaxVerbBytes || op.reply.size() > kMaxVerbBytes) return 0;
    there += kVerbHeader + body_length(op);
    back += op.verb == Verb::read ? op.local.size() : op.verb == Verb::call ? 8 + padded(op.reply.size()) : 8;
  }
  return there <= kMaxFrameBytes && back <= kMaxFrameBytes ? there : 0;
}

void put_chain(base::MutableBytes into, std::uint64_t id, std::span<const Op> ops, Keys keys) {
  Writer writer{into.data()};
  writer.put(static_cast<std::uint32_t>(into.size()));
  writer.put(static_cast<std::uint16_t>(ops.size()));
  writer.put(std::uint16_t{0});
  writer.put(id);
  for (const Op& op : ops) {
    const bool call = op.verb == Verb::call;
    writer.put(static_cast<std::uint8_t>(op.verb));
    writer.put(static_cast<std::uint8_t>(op.fence ? 1 : 0));
    writer.put(std::uint16_t{0});
    writer.put(call ? op.opcode : op.at.region);
    writer.put(call ? std::uint64_t{op.reply.size()} : op.at.offset);
    writer.put(call ? 0 : key_of(op.at.region, keys));
    switch (op.verb) {
      case Verb::read:
        writer.put(std::uint64_t{op.local.size()});
        break;
      case Verb::write:
      case Verb::call:
        writer.put(std::uint64_t{op.local.size()});
        writer.put_bytes(op.local);
        break;
      case Verb::cas:
        writer.put(op.compare);
        writer.put(op.swap);
        break;
      case Verb::masked_cas:
        writer.put(op.compare);
        writer.put(op.compare_mask);
        writer.put(op.swap);
        writer.put(op.swap_mask);
        break;
      case Verb::fetch_add:
        writer.put(op.swap);
        break;
    }
  }
  FARPOOL_CHECK(writer.at == into.data() + into.size());
}

bool get_chain(base::Bytes frame, ChainView& into) {
  Reader reader{frame};
  const auto length = reader.get<std::uint32_t>();
  const auto verbs = reader.get<std::uint16_t>();
  reader.zero(reader.get<std::uint16_t>() == 0);
  into.id = reader.get<std::uint64_t>();
  if (reader.failed || length != frame.size() || verbs == 0) return false;
  into.too_long = verbs > kMaxChain;
  into.count = std::min<std::size_t>(verbs, kMaxChain);
  VerbView beyond;
  for (std::size_t i = 0; i < verbs; ++i) {
    VerbView& verb = i < kMaxChain ? into.verbs[i] : beyond;
    verb = {};
    const auto kind = reader.get<std::uint8_t>();
    const auto fence = reader.get<std::uint8_t>();
    reader.zero(reader.get<std::uint16_t>() == 0);
    verb.region = reader.get<std::uint32_t>();
    verb.offset = reader.get<std::uint64_t>();
    verb.key = reader.get<std::uint64_t>();
    if (reader.failed || kind > static_cast<std::uint8_t>(Verb::call) || fence > 1) return false;
    verb.verb = static_cast<Verb>(kind);
    verb.fence = fence == 1;
    switch (verb.verb) {
      case Verb::read:
        verb.length = reader.get<std::uint64_t>();
        break;
      case Verb::call:
        reader.zero(verb.key == 0);
        [[fallthrough]];
      case Verb::write:
        verb.length = reader.get<std::uint64_t>();
        verb.data = reader.bytes(verb.length);
        break;
      case Verb::cas:
        verb.compare = reader.get<std::uint64_t>();
        verb.swap = reader.get<std::uint64_t>();
        verb.compare_mask = verb.swap_mask = ~0ull;
        break;
      case Verb::masked_cas:
        verb.compare = reader.get<std::uint64_t>();
        verb.compare_mask = reader.get<std::uint64_t>();
        verb.swap = reader.get<std::uint64_t>();
        verb.swap_mask = reader.get<std::uint64_t>();
        break;
      case Verb::fetch_add:
        verb.swap = reader.get<std::uint64_t>();
        break;
    }
    if (reader.failed) return false;
  }
  return reader.rest.empty();
}

void put_reply_header(base::MutableBytes into, ReplyHeader header) {
  Writer writer{into.data()};
  writer.put(header.length);
  writer.put(static_cast<std::uint16_t>(header.refused ? 1 : 0));
  writer.put(static_cast<std::uint16_t>(header.why));
  writer.put(header.id);
}

std::optional<ReplyHeader> get_reply_header(base::Bytes frame) {
  Reader reader{frame};
  ReplyHeader header;
  header.length = reader.get<std::uint32_t>();
  const auto outcome = reader.get<std::uint16_t>();
  const auto why = reader.get<std::uint16_t>();
  header.id = reader.get<std::uint64_t>();
  if (reader.failed || outcome > 1 || (outcome == 1 && header.length != kHeaderBytes)) return std::nullopt;
  if (outcome == 0 ? why != 0 : why > static_cast<std::uint16_t>(kLastRefusal)) return std::nullopt;
  header.refused = outcome == 1;
  header.why = static_cast<Refusal>(why);
  return header;
}

std::size_t reply_length(const ChainView& chain) {
  std::size_t length = kHeaderBytes;
  for (std::size_t i = 0; i < chain.count; ++i) {
    const VerbView& verb = chain.verbs[i];
    length += verb.verb == Verb::read ? verb.length : verb.verb == Verb::write ? 0 : 8;
  }
  return length;
}

std::size_t call_reply_length(std::size_t bytes) { return kCallReplyHeaderBytes + padded(bytes); }

void put_call_reply(base::MutableBytes into, std::uint64_t id, std::size_t bytes) {
  FARPOOL_CHECK(into.size() == call_reply_length(bytes));
  put_reply_header(into, {.length = static_cast<std::uint32_t>(into.size()), .refused = false, .id = id});
  base::store(into.data() + kHeaderBytes, std::uint64_t{bytes});
  std::memset(into.data() + kCallReplyHeaderBytes + bytes, 0, padded(bytes) - bytes);
}

bool take_reply(base::Bytes frame, std::span<const Op> ops, std::uint32_t& call_reply_bytes) {
  const base::Bytes body = frame.subspan(kHeaderBytes);
  if (ops.size() == 1 && ops[0].verb == Verb::call) {
    Reader reader{body};
    const auto length = reader.get<std::uint64_t>();
    const base::Bytes bytes = reader.bytes(length);
    if (reader.failed || !reader.rest.empty() || length > ops[0].reply.size()) return false;
    if (!bytes.empty()) std::memcpy(ops[0].reply.data(), bytes.data(), bytes.size());
    call_reply_bytes = static_cast<std::uint32_t>(length);
    return true;
  }
  std::size_t expected = 0;
  for (const Op& op : ops) expected += op.verb == Verb::read ? op.local.size() : op.verb == Verb::write ? 0 : 8;
  if (expected != body.size()) return false;
  const std::byte* at = body.data();
  for (const Op& op : ops) {
    if (op.verb == Verb::read) {
      std::memcpy(op.local.data(), at, op.local.size());
      at += op.local.size();
    } else if (op.verb != Verb::write) {
      if (op.old != nullptr) *op.old = base::load<std::uint64_t>(at);
      at += 8;
    }
  }
  return true;
}

}  // namespace farpool::fabric::tcp
