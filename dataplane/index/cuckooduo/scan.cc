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

constexpr std::uint64_t kMostBuckets = 16;             // of the first array, of one reading
constexpr std::uint64_t kMostReadings = 16;            // of one step
constexpr std::uint64_t kUnequalReadings = 3;          // before a page is of fewer buckets
static_assert(2 * kStrides + 2 <= fabric::kMaxChain);  // a stride's buckets may go round

class Scan {
 public:
  Scan(const Scanning& scanning, std::uint64_t position, std::uint64_t count, Nanos deadline, Cost& cost)
      : session_(scanning.session),
        site_(scanning.site),
        shape_(scanning.site.shape),
        scanning_(scanning),
        first_(position),
        deadline_(deadline),
        cost_(cost),
        backoff_(scanning.session) {
    // Both arrays have keys of a bucket. What one trip can read is a bound, too.
    const std::uint64_t row_bytes = std::uint64_t{shape_.slots} * shape_.slot_bytes;
    const std::uint64_t most = fabric::kMaxChainBytes / 2 / (row_bytes * (kStrides + 1));
    buckets_ = std::clamp<std::uint64_t>(count / (2 * std::uint64_t{shape_.slots}), 1, std::min(kMostBuckets, most));
    buckets_ = std::min(buckets_, shape_.buckets - first_);
  }

  Task<Result<Page>> run();

 private:
  // Neighbouring places.
  struct Stretch {
    Place begin = 0;
    std::uint64_t slots = 0;
  };
  void plan();
  Task<Status> read();
  bool equal() const;
  bool take();
  Task<Result<bool>> read_keys(Page& page);

  template <class With>
  void each(const With& with) const {
    std::uint64_t at = 0;
    for (const Stretch& stretch : stretches_) {
      for (Place place = stretch.begin; place < stretch.begin + stretch.slots; ++place, at += shape_.slot_bytes) {
        with(place, at);
      }
    }
  }
  Bytes slot_in(const fabric::Buffer& reading, std::uint64_t at) const {
    return Bytes(reading.first(bytes_)).subspan(at, shape_.slot_bytes);
  }
  Nanos now() const { return session_.port().now(); }

  session::Session& session_;
  const Site& site_;
  const Shape& shape_;
  const Scanning& scanning_;
  const std::uint64_t first_;
  std::uint64_t buckets_ = 1;
  const Nanos deadline_;
  Cost& cost_;
  index::Backoff backoff_;
  std::vector<Stretch> stretches_;  // the stash is the last
  std::uint64_t bytes_ = 0;         // of all of them
  fabric::Buffer before_, now_;
  std::vector<Slot> found_;  // of keys of these buckets: views into the last reading
};

// Says which places have keys of the buckets.
void Scan::plan() {
  std::vector<std::uint64_t> rows;
  for (std::uint64_t i = 0; i < buckets_; ++i) rows.push_back(shape_.row(0, first_ + i));
  for (std::uint32_t number = 0; number < kStrides; ++number) {
    const std::uint64_t by = stride(number, shape_.buckets, site_.salt);
    for (std::uint64_t i = 0; i < buckets_; ++i) rows.push_back(shape_.row(1, (first_ + i + by) % shape_.buckets));
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  stretches_.clear();
  for (const std::uint64_t row : rows) {
    const Place begin = shape_.place(row, 0);
    if (!stretches_.empty() && stretches_.back().begin + stretches_.back().slots == begin) {
      stretches_.back().slots += shape_.slots;
    } else {
      stretches_.push_back({begin, shape_.slots});
    }
  }
  stretches_.push_back({shape_.stash_begin(), shape_.stash});
  bytes_ = 0;
  for (const Stretch& stretch : stretches_) bytes_ += stretch.slots * shape_.slot_bytes;
}

Task<Result<Page>> Scan::run() {
  const Nanos begun = now();
  plan();
  bool read_before = false;
  for (std::uint64_t unequal = 0;;) {
    if (now() >= deadline_) {
      co_return Status(Code::timed_out, "the deadline passed while the slots of bucket " + std::to_string(first_) +
                                            " changed, or while one of them was torn: the table's owner is at work, "
                                            "or has died and there is no other yet");
    }
    // It keeps the blocks that the reading points to.
    const session::EraPin pin = session_.pin();
    if (Status status = co_await read(); !status.ok()) co_return status;
    const bool settled = read_before && equal();
    const bool torn = !take();
    if (settled && !torn) {
      Page page;
      const Result<bool> whole = co_await read_keys(page);
      if (!whole.ok()) co_return whole.status();
      if (*whole) {
        const std::uint64_t next = first_ + buckets_;
        page.next = next < shape_.buckets ? next : 0;
        co_return page;
      }
      ++scanning_.stale;
      if (now() - begun >= session_.grant().failure_timeout) {
        co_return Status(Code::corrupt, "an extent to which a slot of bucket " + std::to_string(first_) +
                                            " or one behind it points is damaged: restore the table");
      }
    }
    if (read_before && !settled) {
      ++scanning_.restless;
      if (++unequal % kUnequalReadings == 0 && buckets_ > 1) {
        buckets_ = (buckets_ + 1) / 2;
        plan();
        read_before = false;
        continue;
      }
    }
    std::swap(before_, now_);
    read_before = true;
    if (torn && settled && now() - begun >= session_.grant().failure_timeout / 4) scanning_.on_trouble();
    if (torn && settled) co_await backoff_.wait(deadline_);
  }
}

Task<Status> Scan::read() {
  if (now_.size() < bytes_) now_ = session_.port().buffer(bytes_);
  index::Chain chain;
  std::uint64_t at = 0;
  for (const Stretch& stretch : stretches_) {
    const std::uint64_t bytes = stretch.slots * shape_.slot_bytes;
    chain.add(Op::read(site_.at(stretch.begin), now_.span().subspan(at, bytes)));
    at += bytes;
  }
  const fabric::Outcome outcome = co_await session_.post(chain.ops(), deadline_, cost_);
  if (outcome.fate == Fate::done) co_return Status();
  co_return session::gone(session_, Code::unavailable, "the slots of some buckets could not be read");
}

// Says whether the arrays' slots have what they had in the reading before.
bool Scan::equal() const {
  bool same = true;
  each([&](Place place, std::uint64_t at) {
    if (shape_.in_stash(place)) return;
    const Bytes is = slot_in(now_, at).first(kSlotHeader), was = slot_in(before_, at).first(kSlotHeader);
    same = same && std::equal(is.begin(), is.end(), was.begin());
  });
  return same;
}

// Takes the slots that have keys of the buckets. Returns false if one of all is torn: it may have such a key.
bool Scan::take() {
  bool whole = true;
  found_.clear();
  each([&](Place place, std::uint64_t at) {
    const Slot slot = read_slot(slot_in(now_, at), place);
    whole = whole && slot.verdict != Slot::Verdict::torn;
    if (!slot.whole()) return;
    const std::uint64_t row = Spots::of(slot.hash_under(site_.secret), shape_, site_.salt).row1;
    if (row >= first_ && row < first_ + buckets_) found_.push_back(slot);
  });
  return whole;
}

// A key is there twice while it is moved or updated. Returns false if a slot points to something else than an extent of
// a key with its hash.
Task<Result<bool>> Scan::read_keys(Page& page) {
  const std::uint64_t heap = session_.region_bytes(layout::kHeap);
  std::vector<index::Head> heads;
  std::vector<std::uint64_t> hashes;  // of these
  std::set<std::string> seen;
  for (const Slot& slot : found_) {
    if (slot.state == SlotState::in_place) {
      std::string key(base::text_of(slot.key));
      if (!seen.insert(key).second) continue;
      const auto stored = index::Stored::parse(base::text_of(slot.value));
      page.add(std::move(key), stored ? stored->expires : index::kNoExpiry);
      continue;
    }
    const std::uint64_t offset = layout::block_offset(slot.block), bytes = slot.units * layout::kBlockUnit;
    if (offset > heap || bytes > heap - offset) {
      co_return Status(Code::corrupt, "a slot of the vault points to unit " + std::to_string(slot.block) +
                                          ", which is not in the heap: restore the table");
    }
    heads.push_back({.block = slot.block, .most = bytes});
    hashes.push_back(slot.hash);
  }
  if (heads.empty()) co_return true;
  if (Status status = co_await index::read_heads_and_expiries(session_, heads, deadline_, cost_); !status.ok()) {
    co_return status;
  }
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const bool good =
        heads[i].extent_bytes != 0 && base::keyed_hash(site_.secret, base::bytes_of(heads[i].key)) == hashes[i];
    if (!good) co_return false;
    if (seen.insert(heads[i].key).second) page.add(std::move(heads[i].key), heads[i].expires);
  }
  co_return true;
}

}  // namespace

Task<Result<Page>> scan(Scanning scanning, std::uint64_t position, std::uint64_t count, Nanos deadline, Cost& cost) {
  Page all;
  if (position >= scanning.site.shape.buckets) co_return all;
  for (std::uint64_t readings = 0; readings < kMostReadings; ++readings) {
    Scan scan(scanning, position, std::max<std::uint64_t>(count, all.keys.size()) - all.keys.size(), deadline, cost);
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
