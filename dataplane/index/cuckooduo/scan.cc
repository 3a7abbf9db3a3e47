// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/scan.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "index/cuckooduo/locate.h"
#include "index/cuckooduo/slot.h"
#include "index/heads.h"
#include "index/operation.h"
#include "index/stored.h"
#include "layout/regions.h"
#include "layout/segment.h"
#include "session/trips.h"

namespace farpool::cuckooduo {

using base::Bytes;
using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using index::Page;
using task::Task;

namespace {

// A reading has so many buckets of the first array: one of fewer would have nearly as much of the second.
constexpr std::uint64_t kFewestBuckets = 8, kMostBuckets = 64;
constexpr std::uint64_t kMostPages = 16;             // of one step
constexpr std::uint64_t kMostReadBytes = 256 << 10;  // of one READ
// Unequal pairs of readings are bits of a word; then all begin anew.
constexpr unsigned kMostPairs = 64;

class Scan {
 public:
  // Tells of so many buckets at most.
  Scan(const Scanning& scanning, std::uint64_t position, std::uint64_t buckets, Nanos deadline, Cost& cost)
      : session_(scanning.session),
        site_(scanning.site),
        shape_(scanning.site.shape),
        scanning_(scanning),
        first_(position),
        row_bytes_(std::uint64_t{shape_.slots} * shape_.slot_bytes),
        buckets_(std::min(buckets, shape_.buckets - first_)),
        deadline_(deadline),
        cost_(cost),
        backoff_(scanning.session) {}

  Task<Result<Page>> run();

 private:
  // What a reading had of a slot that points to an extent.
  struct Pointer {
    std::size_t row = 0;  // rows_.size(): the stash
    index::Head head;
    std::uint64_t version = 0, hash = 0;
  };
  void plan();
  Task<Status> read();
  Status take();
  void take_slot(const Slot& slot, std::size_t row);
  Task<Result<bool>> read_pointers();
  void compare();
  bool settled() const;
  Status late() const;

  std::uint64_t stash_at() const { return rows_.size() * row_bytes_; }
  std::uint64_t bytes() const { return stash_at() + std::uint64_t{shape_.stash} * shape_.slot_bytes; }
  Nanos now() const { return session_.port().now(); }

  session::Session& session_;
  const Site& site_;
  const Shape& shape_;
  const Scanning& scanning_;
  const std::uint64_t first_;
  const std::uint64_t row_bytes_;
  const std::uint64_t buckets_;
  const Nanos deadline_;
  Cost& cost_;
  index::Backoff backoff_;
  std::vector<std::uint64_t> rows_;     // that are read, in order: those of the first array come first
  std::vector<std::uint64_t> unequal_;  // of each row, a bit for each pair of readings
  unsigned pairs_ = 0;                  // of readings, so far
  std::vector<bool> unread_;            // rows of which the last reading does not tell, and the stash
  bool stuck_ = false;                  // some of these have a slot that was torn before
  fabric::Buffer before_, now_;
  std::vector<Pointer> pointers_;  // of the last reading, as far as they are not told yet
  std::set<std::uint64_t> told_;   // versions of pairs by pointer that are
  std::set<std::string> keys_;     // of the page
  Page page_;
};

// Says which rows have keys of the buckets.
void Scan::plan() {
  for (std::uint64_t i = 0; i < buckets_; ++i) rows_.push_back(shape_.row(0, first_ + i));
  const std::uint64_t stretch = std::min<std::uint64_t>(buckets_ + steps(shape_.buckets) - 1, shape_.buckets);
  for (std::uint32_t number = 0; number < kStrides; ++number) {
    const std::uint64_t from = first_ + stride(number, shape_.buckets, site_.salt);
    for (std::uint64_t i = 0; i < stretch; ++i) rows_.push_back(shape_.row(1, (from + i) % shape_.buckets));
  }
  std::sort(rows_.begin(), rows_.end());
  rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
  unequal_.assign(rows_.size(), 0);
  before_ = session_.port().buffer(bytes());
  now_ = session_.port().buffer(bytes());
}

Task<Result<Page>> Scan::run() {
  const Nanos begun = now();
  plan();
  for (bool first = true;; first = false) {
    if (now() >= deadline_) co_return late();
    // It keeps the blocks that the reading points to.
    const session::EraPin pin = session_.pin();
    if (Status status = co_await read(); !status.ok()) co_return status;
    if (Status status = take(); !status.ok()) co_return status;
    const bool torn = std::find(unread_.begin(), unread_.end(), true) != unread_.end();
    const Result<bool> all = co_await read_pointers();
    if (!all.ok()) co_return all.status();
    if (!*all) {
      ++scanning_.stale;
      if (now() - begun >= session_.grant().failure_timeout) {
        co_return Status(Code::corrupt, "an extent to which a slot of bucket " + std::to_string(first_) +
                                            " or one behind it points is damaged: restore the table");
      }
    }
    if (!first) {
      compare();
      if (settled()) {
        const std::uint64_t next = first_ + buckets_;
        page_.next = next < shape_.buckets ? next : 0;
        co_return std::move(page_);
      }
      ++scanning_.restless;
      if (pairs_ == kMostPairs) {
        unequal_.assign(rows_.size(), 0);
        pairs_ = 0;
      }
      if (torn && stuck_ && now() - begun >= session_.grant().failure_timeout / 4) scanning_.on_trouble();
      if (torn) co_await backoff_.wait(deadline_);
    }
    std::swap(before_, now_);
  }
}

Status Scan::late() const {
  return {Code::timed_out, "the deadline passed while the slots of bucket " + std::to_string(first_) +
                               " changed, or while one of them was torn: the table's owner is at work, or has died "
                               "and there is no other yet"};
}

// Reads rows and stash, in more than one trip if they are longer than one may be.
Task<Status> Scan::read() {
  index::Chain chain;
  std::uint64_t in_chain = 0;
  const std::uint64_t end = bytes();
  for (std::uint64_t at = 0; at < end;) {
    // Neighbouring rows are one READ.
    std::uint64_t until = end;
    Place place = shape_.stash_begin();
    if (at < stash_at()) {
      std::size_t row = at / row_bytes_;
      place = shape_.place(rows_[row], 0) + at % row_bytes_ / shape_.slot_bytes;
      while (row + 1 < rows_.size() && rows_[row + 1] == rows_[row] + 1) ++row;
      until = (row + 1) * row_bytes_;
    } else {
      place += (at - stash_at()) / shape_.slot_bytes;
    }
    const std::uint64_t most = kMostReadBytes / shape_.slot_bytes * shape_.slot_bytes;
    const std::uint64_t bytes = std::min(until - at, most);
    chain.add(Op::read(site_.at(place), now_.span().subspan(at, bytes)));
    in_chain += bytes;
    at += bytes;
    if (at < end && chain.size() < fabric::kMaxChain && in_chain + most <= fabric::kMaxChainBytes) continue;
    const fabric::Outcome outcome = co_await session_.post(chain.ops(), deadline_, cost_);
    if (outcome.fate != Fate::done) {
      co_return session::gone(session_, Code::unavailable, "the slots of some buckets could not be read");
    }
    chain.clear();
    in_chain = 0;
  }
  co_return Status();
}

// Takes the keys of the buckets from the last reading, and says which rows have a torn slot: it may have such a key.
Status Scan::take() {
  const std::uint64_t heap = session_.region_bytes(layout::kHeap);
  unread_.assign(rows_.size() + 1, false);
  stuck_ = false;
  pointers_.clear();
  const Bytes is(now_.span()), was(before_.span());
  for (std::uint64_t at = 0; at < bytes(); at += shape_.slot_bytes) {
    const std::size_t row = std::min<std::size_t>(at / row_bytes_, rows_.size());
    const Place place = row < rows_.size() ? shape_.place(rows_[row], 0) + at % row_bytes_ / shape_.slot_bytes
                                           : shape_.stash_begin() + (at - stash_at()) / shape_.slot_bytes;
    const Bytes bytes = is.subspan(at, shape_.slot_bytes);
    const Slot slot = read_slot(bytes, place);
    if (slot.verdict == Slot::Verdict::torn) {
      unread_[row] = true;
      stuck_ = stuck_ || std::equal(bytes.begin(), bytes.end(), was.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (!slot.whole()) continue;
    const std::uint64_t bucket = Spots::of(slot.hash_under(site_.secret), shape_, site_.salt).row1;
    if (bucket < first_ || bucket >= first_ + buckets_) continue;
    const std::uint64_t offset = layout::block_offset(slot.block), extent = slot.units * layout::kBlockUnit;
    if (slot.state == SlotState::pointer && (offset > heap || extent > heap - offset)) {
      return {Code::corrupt, "a slot of the vault points to unit " + std::to_string(slot.block) +
                                 ", which is not in the heap: restore the table"};
    }
    take_slot(slot, row);
  }
  return {};
}

// Tells of a pair, or notes what it points to. A key is there twice while it is moved or updated.
void Scan::take_slot(const Slot& slot, std::size_t row) {
  if (slot.state == SlotState::pointer) {
    if (told_.contains(slot.version)) return;
    pointers_.push_back({.row = row,
                         .head = {.block = slot.block, .most = slot.units * layout::kBlockUnit},
                         .version = slot.version,
                         .hash = slot.hash});
    return;
  }
  const auto [key, is_new] = keys_.emplace(base::text_of(slot.key));
  if (!is_new) return;
  const auto stored = index::Stored::parse(base::text_of(slot.value));
  page_.add(*key, stored ? stored->expires : index::kNoExpiry);
}

// Tells of the pairs that the last reading points to. Returns false if a slot points to something else than an extent of
// a key with its hash.
Task<Result<bool>> Scan::read_pointers() {
  if (pointers_.empty()) co_return true;
  std::vector<index::Head> heads;
  for (const Pointer& pointer : pointers_) heads.push_back(pointer.head);
  if (Status status = co_await index::read_heads_and_expiries(session_, heads, deadline_, cost_); !status.ok()) {
    co_return status;
  }
  bool all = true;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const Pointer& pointer = pointers_[i];
    if (heads[i].extent_bytes == 0 || base::keyed_hash(site_.secret, base::bytes_of(heads[i].key)) != pointer.hash) {
      unread_[pointer.row] = true;
      all = false;
      continue;
    }
    told_.insert(pointer.version);
    if (keys_.insert(heads[i].key).second) page_.add(std::move(heads[i].key), heads[i].expires);
  }
  co_return all;
}

// Notes which rows the last two readings do not tell of together.
void Scan::compare() {
  const Bytes is(now_.span()), was(before_.span());
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    bool same = !unread_[row];
    for (std::uint64_t at = row * row_bytes_; at < (row + 1) * row_bytes_; at += shape_.slot_bytes) {
      const Bytes header = is.subspan(at, kSlotHeader);
      same = same && std::equal(header.begin(), header.end(), was.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (!same) unequal_[row] |= 1ull << pairs_;
  }
  ++pairs_;
}

// Says whether any two rows of both arrays were equal in one of the pairs of readings.
bool Scan::settled() const {
  if (unread_.back()) return false;
  const std::uint64_t all = ~0ull >> (64 - pairs_);
  std::set<std::uint64_t> first;
  for (std::uint64_t i = 0; i < buckets_; ++i) first.insert(unequal_[i]);
  for (const std::uint64_t of_one : first) {
    for (std::size_t row = buckets_; row < rows_.size(); ++row) {
      if ((of_one | unequal_[row]) == all) return false;
    }
  }
  return true;
}

}  // namespace

Task<Result<Page>> scan(Scanning scanning, std::uint64_t position, std::uint64_t count, Nanos deadline, Cost& cost) {
  Page all;
  const Shape& shape = scanning.site.shape;
  if (position >= shape.buckets) co_return all;
  const std::uint64_t begun = position;
  for (std::uint64_t pages = 0; pages < kMostPages; ++pages) {
    // A bucket has as many keys as those before, and the first one as many as it can have.
    const std::uint64_t told = position - begun, wanted = std::min(count - all.keys.size(), shape.array_slots());
    const std::uint64_t buckets = told == 0 ? wanted / (2 * std::uint64_t{shape.slots})
                                            : wanted * told / std::max<std::uint64_t>(all.keys.size(), 1);
    Scan scan(scanning, position, std::clamp(buckets, kFewestBuckets, kMostBuckets), deadline, cost);
    Result<Page> page = co_await scan.run();
    if (!page.ok()) co_return page.status();
    for (const Page::Expiry& expiry : page->expiries) {
      all.expiries.push_back({all.keys.size() + expiry.key, expiry.at});
    }
    std::move(page->keys.begin(), page->keys.end(), std::back_inserter(all.keys));
    all.next = position = page->next;
    if (all.next == 0 || all.keys.size() >= count) break;
  }
  co_return all;
}

}  // namespace farpool::cuckooduo
