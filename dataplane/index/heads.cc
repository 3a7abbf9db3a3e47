// SPDX-License-Identifier: Apache-2.0
#include "index/heads.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "index/operation.h"
#include "layout/extent.h"
#include "layout/regions.h"
#include "layout/segment.h"

namespace farpool::index {

using base::Code;
using base::Nanos;
using base::Status;
using fabric::Fate;
using fabric::Op;
using task::Task;

namespace {

// Most keys end before.
constexpr std::uint64_t kFirstLook = 128;

Task<Status> post(session::Session& session, const Chain& chain, Nanos deadline, fabric::Cost& cost) {
  const fabric::Outcome outcome = co_await session.post(chain.ops(), deadline, cost);
  if (outcome.fate == Fate::done) co_return Status();
  co_return gone(session, Code::unavailable, "the keys of extents could not be read");
}

// Reads the rest of the keys that are longer than what has been read of them.
class Rests {
 public:
  Rests(session::Session& session, Nanos deadline, fabric::Cost& cost)
      : session_(session), deadline_(deadline), cost_(cost) {}

  void add(Head& head, std::uint64_t there, std::uint64_t wanted) {
    head.key.resize(wanted - layout::kExtentHeader);  // with what fills up the last word, until it is here
    buffers_.push_back(session_.port().buffer(wanted - there));
    chain_.add(
        Op::read({layout::kHeap, layout::block_offset(head.block) + there}, buffers_.back().first(wanted - there)));
    parts_.push_back({&head, there - layout::kExtentHeader});
  }
  Task<Status> read() {
    if (chain_.size() == 0) co_return Status();
    if (Status status = co_await post(session_, chain_, deadline_, cost_); !status.ok()) co_return status;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto& [head, at] = parts_[i];
      std::memcpy(head->key.data() + at, buffers_[i].data(), head->key.size() - at);
    }
    co_return Status();
  }

 private:
  session::Session& session_;
  const Nanos deadline_;
  fabric::Cost& cost_;
  Chain chain_;
  std::vector<fabric::Buffer> buffers_;
  std::vector<std::pair<Head*, std::uint64_t>> parts_;
};

// Reads the ends of values that lie behind what has been read of their extents.
class Ends {
 public:
  Ends(session::Session& session, Nanos deadline, fabric::Cost& cost)
      : session_(session), deadline_(deadline), cost_(cost) {}

  // `look` is what has been read of the extent.
  void add(Head& head, std::uint64_t key_bytes, std::uint64_t value_bytes, base::Bytes look) {
    const std::uint64_t tail = std::min<std::uint64_t>(value_bytes, Stored::kMostTailBytes);
    const std::uint64_t end = layout::kExtentHeader + key_bytes + value_bytes, begin = end - tail;
    if (end <= look.size()) return take(head, look.subspan(begin, tail));
    const std::uint64_t from = begin / 8 * 8, to = base::round_up(end, 8);
    buffers_.push_back(session_.port().buffer(to - from));
    chain_.add(Op::read({layout::kHeap, layout::block_offset(head.block) + from}, buffers_.back().first(to - from)));
    parts_.push_back({&head, begin - from, tail});
  }
  Task<Status> read() {
    if (chain_.size() == 0) co_return Status();
    if (Status status = co_await post(session_, chain_, deadline_, cost_); !status.ok()) co_return status;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      take(*parts_[i].head, base::Bytes(buffers_[i].span()).subspan(parts_[i].at, parts_[i].bytes));
    }
    co_return Status();
  }

 private:
  struct Part {
    Head* head;
    std::uint64_t at, bytes;
  };
  static void take(Head& head, base::Bytes end) {
    const auto stored = Stored::parse(base::text_of(end));
    head.expires = stored ? stored->expires : kNoExpiry;
  }

  session::Session& session_;
  const Nanos deadline_;
  fabric::Cost& cost_;
  Chain chain_;
  std::vector<fabric::Buffer> buffers_;
  std::vector<Part> parts_;
};

Task<Status> read_all(session::Session& session, std::vector<Head>& heads, bool expiries, Nanos deadline,
                      fabric::Cost& cost) {
  for (std::size_t first = 0; first < heads.size(); first += fabric::kMaxChain) {
    const std::size_t count = std::min(heads.size() - first, fabric::kMaxChain);
    fabric::Buffer buffer = session.port().buffer(count * kFirstLook);
    const auto look = [&](std::size_t i) {
      return buffer.span().subspan(i * kFirstLook, std::min(kFirstLook, heads[first + i].most));
    };
    Chain chain;
    for (std::size_t i = 0; i < count; ++i) {
      chain.add(Op::read({layout::kHeap, layout::block_offset(heads[first + i].block)}, look(i)));
    }
    if (Status status = co_await post(session, chain, deadline, cost); !status.ok()) co_return status;
    Rests rests(session, deadline, cost);
    Ends ends(session, deadline, cost);
    std::vector<std::uint64_t> lengths(count, 0);  // of keys
    for (std::size_t i = 0; i < count; ++i) {
      Head& head = heads[first + i];
      const auto word = base::load<std::uint64_t>(look(i).data());
      const std::uint64_t key_bytes = layout::ExtentLengths::key(word),
                          value_bytes = layout::ExtentLengths::value(word);
      if (key_bytes > layout::kMaxKeyBytes || value_bytes > layout::kMaxValueBytes) continue;
      const std::uint64_t extent = layout::extent_bytes(key_bytes, value_bytes);
      if (extent > head.most) continue;
      head.extent_bytes = extent;
      lengths[i] = key_bytes;
      const std::uint64_t wanted = base::round_up(layout::kExtentHeader + key_bytes, 8);
      const std::uint64_t there = std::min<std::uint64_t>(wanted, look(i).size());
      if (wanted > there) rests.add(head, there, wanted);
      if (expiries) ends.add(head, key_bytes, value_bytes, look(i));
      const base::Bytes key = base::Bytes(look(i)).subspan(layout::kExtentHeader, there - layout::kExtentHeader);
      head.key.resize(std::max(head.key.size(), key.size()));
      std::memcpy(head.key.data(), key.data(), key.size());
    }
    if (Status status = co_await rests.read(); !status.ok()) co_return status;
    if (Status status = co_await ends.read(); !status.ok()) co_return status;
    for (std::size_t i = 0; i < count; ++i) heads[first + i].key.resize(lengths[i]);
  }
  co_return Status();
}

}  // namespace

Task<Status> read_heads(session::Session& session, std::vector<Head>& heads, Nanos deadline, fabric::Cost& cost) {
  return read_all(session, heads, false, deadline, cost);
}

Task<Status> read_heads_and_expiries(session::Session& session, std::vector<Head>& heads, Nanos deadline,
                                     fabric::Cost& cost) {
  return read_all(session, heads, true, deadline, cost);
}

}  // namespace farpool::index
