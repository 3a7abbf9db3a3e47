// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/replica.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/hash.h"
#include "index/cuckooduo/pair.h"
#include "index/operation.h"
#include "layout/regions.h"
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
using task::Task;

Replica::Replica(session::Session& session, const Site& site, std::function<void()> on_trouble)
    : session_(session), site_(site), on_trouble_(std::move(on_trouble)), prints_(site.shape, site.salt) {}

class Replica::Lookup {
 public:
  Lookup(Replica& replica, std::string_view key, Nanos deadline, Cost& cost, std::string room)
      : replica_(replica),
        shape_(replica.site_.shape),
        key_(key),
        deadline_(deadline),
        cost_(cost),
        hash_(base::keyed_hash(replica.site_.secret, base::bytes_of(key))),
        spots_(replica.prints_.spots(hash_)),
        value_(std::move(room)),
        backoff_(replica.session_) {}

  Task<Result<std::optional<std::string>>> run();
  std::uint64_t version() const { return version_; }

 private:
  enum class Seen : std::uint8_t { hit, absent, unsure };
  // Where a reading has the slots of the first bucket, of the second and of the stash.
  struct Stretch {
    Place begin = 0;
    std::uint64_t slots = 0;
  };

  Task<Result<Seen>> at_once();
  Task<Status> read(fabric::Buffer& into);
  Task<Result<Seen>> judge(Bytes reading, bool settled);
  Task<Result<Seen>> judge_slot(const Slot& slot);
  void learn(Bytes reading);
  std::uint64_t bytes_of(const Stretch& part) const { return part.slots * shape_.slot_bytes; }
  std::array<Stretch, 3> parts() const {
    return {Stretch{shape_.place(spots_.row1, 0), shape_.slots}, Stretch{shape_.place(spots_.row2, 0), shape_.slots},
            Stretch{shape_.stash_begin(), shape_.stash}};
  }
  // Calls `with` for each slot of a reading and its place, until it returns false.
  template <class With>
  void each(Bytes reading, With&& with) const {
    std::uint64_t at = 0;
    for (const Stretch& part : parts()) {
      for (Place place = part.begin; place < part.begin + part.slots; ++place, at += shape_.slot_bytes) {
        if (!with(place, read_slot(reading.subspan(at, shape_.slot_bytes), place))) return;
      }
    }
  }

  Replica& replica_;
  const Shape& shape_;
  const std::string_view key_;
  const Nanos deadline_;
  Cost& cost_;
  const std::uint64_t hash_;
  const Spots spots_;
  std::string value_;
  std::uint64_t version_ = 0;  // of the pair that was found
  index::Backoff backoff_;
  fabric::Buffer before_, now_;
};

Task<Result<std::optional<std::string>>> Replica::lookup(std::string_view key, Nanos deadline, Cost& cost,
                                                         std::string room, std::uint64_t* version) {
  if (Status status = index::check_sizes(key, 0); !status.ok()) co_return status;
  Lookup lookup(*this, key, deadline, cost, std::move(room));
  Result<std::optional<std::string>> found = co_await lookup.run();
  if (version != nullptr) *version = lookup.version();
  co_return found;
}

Task<Result<std::optional<std::string>>> Replica::Lookup::run() {
  const Nanos begun = replica_.session_.port().now();
  Result<Seen> seen = co_await at_once();
  bool read_before = false, waits = false;
  while (seen.ok() && *seen != Seen::hit) {
    if (replica_.session_.port().now() >= deadline_) {
      co_return Status(Code::timed_out,
                       "the deadline passed while the key's slots changed, or while one of them was torn: the table's "
                       "owner is at work, or has died and there is no other yet");
    }
    if (waits) {
      const Nanos patience = replica_.session_.grant().failure_timeout / 4;
      if (replica_.session_.port().now() - begun >= patience && replica_.on_trouble_) replica_.on_trouble_();
      co_await backoff_.wait(deadline_);
    }
    // A wait is no reason to keep an era: each reading has its own.
    const session::EraPin pin = replica_.session_.pin();
    if (Status status = co_await read(now_); !status.ok()) co_return status;
    const Bytes reading = now_.first(shape_.lookup_bytes());
    // If two readings one after the other are equal, all of it was so at one moment: each WRITE of a pair has another
    // version.
    const bool settled = read_before && std::ranges::equal(reading, before_.first(shape_.lookup_bytes()));
    if (read_before && !settled) ++replica_.counts_.changed;
    learn(reading);
    seen = co_await judge(reading, settled);
    if (!seen.ok() || *seen == Seen::hit) break;
    if (*seen == Seen::absent && settled) co_return std::optional<std::string>();
    std::swap(before_, now_);
    read_before = true;
    waits = *seen == Seen::unsure && settled;
  }
  if (!seen.ok()) co_return seen.status();
  co_return std::optional(std::move(value_));
}

// Reads the one slot of the arrays that the replica has for the key. A whole pair of the key there is the newest: what
// moves or replaces it is WRITTEN before it goes. In the stash it need not be: updates under way are there, too.
Task<Result<Replica::Lookup::Seen>> Replica::Lookup::at_once() {
  const Place place = replica_.prints_.match(spots_);
  if (place == kNowhere) co_return Seen::unsure;
  const session::EraPin pin = replica_.session_.pin();
  const fabric::Buffer bytes = replica_.session_.port().buffer(shape_.slot_bytes);
  const std::array chain{Op::read(replica_.site_.at(place), bytes.first(shape_.slot_bytes))};
  const fabric::Outcome outcome = co_await replica_.session_.post(chain, deadline_, cost_);
  if (outcome.fate != Fate::done) {
    co_return session::gone(replica_.session_, Code::unavailable, "a slot of the vault could not be read");
  }
  const Result<Seen> seen = co_await judge_slot(read_slot(bytes.first(shape_.slot_bytes), place));
  if (seen.ok()) ++(*seen == Seen::hit ? replica_.counts_.at_once : replica_.counts_.misled);
  co_return seen;
}

// Reads both buckets and the stash in one trip.
Task<Status> Replica::Lookup::read(fabric::Buffer& into) {
  if (into.size() == 0) into = replica_.session_.port().buffer(shape_.lookup_bytes());
  std::array<Op, 3> chain;
  std::size_t count = 0;
  std::uint64_t at = 0;
  for (const Stretch& part : parts()) {
    chain[count++] = Op::read(replica_.site_.at(part.begin), into.span().subspan(at, bytes_of(part)));
    at += bytes_of(part);
  }
  const fabric::Outcome outcome = co_await replica_.session_.post({chain.data(), count}, deadline_, cost_);
  if (outcome.fate == Fate::done) co_return Status();
  co_return session::gone(replica_.session_, Code::unavailable, "the slots of a key could not be read");
}

// Looks for the key in a reading. A pair in a bucket counts before one in the stash, and the latter counts only in a
// settled reading, of two the newer: readers agree then, and so does the next owner if this one dies.
Task<Result<Replica::Lookup::Seen>> Replica::Lookup::judge(Bytes reading, bool settled) {
  std::array<Slot, 2 * Shape::kMostSlots + FingerIndex::kMostTwins + 1> maybe;
  std::size_t count = 0, in_buckets = 0;
  bool torn = false;
  each(reading, [&](Place place, const Slot& slot) {
    torn |= slot.verdict == Slot::Verdict::torn;
    if (!slot.whole() || slot.hash_under(replica_.site_.secret) != hash_) return true;
    if (count == maybe.size()) {
      torn = true;  // an owner leaves no more keys of one hash
      return false;
    }
    maybe[count++] = slot;
    if (!shape_.in_stash(place)) in_buckets = count;
    return true;
  });
  if (torn) ++replica_.counts_.torn;
  std::sort(maybe.begin() + static_cast<std::ptrdiff_t>(in_buckets), maybe.begin() + static_cast<std::ptrdiff_t>(count),
            [](const Slot& a, const Slot& b) { return a.version > b.version; });
  bool unsure = torn;
  for (std::size_t i = 0; i < count; ++i) {
    if (i >= in_buckets && (torn || !settled)) co_return Seen::unsure;
    const Result<Seen> seen = co_await judge_slot(maybe[i]);
    if (!seen.ok() || *seen == Seen::hit) co_return seen;
    unsure |= *seen == Seen::unsure;
  }
  co_return unsure ? Seen::unsure : Seen::absent;
}

// Says whether a slot has the key, and takes its value.
Task<Result<Replica::Lookup::Seen>> Replica::Lookup::judge_slot(const Slot& slot) {
  if (!slot.whole()) co_return Seen::unsure;
  if (slot.state == SlotState::in_place) {
    if (base::text_of(slot.key) != key_) co_return Seen::absent;
    value_ = base::text_of(slot.value);
    version_ = slot.version;
    co_return Seen::hit;
  }
  if (slot.hash != hash_) co_return Seen::absent;
  const Result<Extent> extent = co_await read_extent_of(replica_.session_, slot, deadline_, cost_);
  if (!extent.ok()) co_return extent.status();
  if (!extent->whole) co_return Seen::unsure;
  if (base::text_of(extent->key) != key_) co_return Seen::absent;
  value_ = base::text_of(extent->value);
  version_ = slot.version;
  co_return Seen::hit;
}

// The replica takes over what the buckets have. It needs nothing of the stash.
void Replica::Lookup::learn(Bytes reading) {
  each(reading, [&](Place place, const Slot& slot) {
    if (shape_.in_stash(place)) return false;
    if (slot.whole()) {
      replica_.prints_.put(place, slot.hash_under(replica_.site_.secret));
    } else {
      replica_.prints_.clear(place);
    }
    return true;
  });
}

}  // namespace farpool::cuckooduo
