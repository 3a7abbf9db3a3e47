// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/rebuild.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace farpool::cuckooduo {

using base::Bytes;
using base::Code;
using base::Result;
using base::Status;

namespace {

bool same_bytes(Bytes a, Bytes b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

class Rebuilder {
 public:
  Rebuilder(const Shape& shape, std::uint64_t salt, const base::HashSecret& secret, Bytes vault,
            const SameKey& same_key)
      : shape_(shape),
        vault_(vault),
        secret_(secret),
        same_key_(same_key),
        rebuilt_{FingerIndex(shape, salt), 1, {}, 0, 0, 0},
        pairs_(shape.end()) {}

  Result<Rebuilt> run() {
    read();
    for (Place place = 0; place < shape_.end(); ++place) {
      if (!pairs_[place].there || !has_newer(place)) continue;
      pairs_[place].older = true;
      ++rebuilt_.older;
      clear(place);
    }
    std::vector<Place> misplaced;
    for (Place place = 0; place < shape_.end(); ++place) {
      if (!counts(place)) continue;
      if (!may_be_at(place)) {
        misplaced.push_back(place);
      } else {
        rebuilt_.index.put(place, pairs_[place].hash);
      }
    }
    for (Place place = 0; place < shape_.stash_begin(); ++place) {
      if (!counts(place) || !may_be_at(place)) continue;
      if (rebuilt_.index.match(rebuilt_.index.spots(pairs_[place].hash)) != place) misplaced.push_back(place);
    }
    for (const Place place : misplaced) {
      if (const Status status = to_stash(place); !status.ok()) return status;
    }
    return std::move(rebuilt_);
  }

 private:
  struct Pair {
    std::uint64_t hash = 0;
    bool there = false;  // whole
    bool older = false;  // of two copies
  };

  Slot slot(Place place) const {
    return read_slot(vault_.subspan(place * shape_.slot_bytes, shape_.slot_bytes), place);
  }
  bool counts(Place place) const { return pairs_[place].there && !pairs_[place].older; }
  void clear(Place place) { rebuilt_.repairs.push_back({Effect::Kind::clear, place, kNowhere, 0}); }

  void read() {
    for (Place place = 0; place < shape_.end(); ++place) {
      const Slot found = slot(place);
      rebuilt_.next_version = std::max(rebuilt_.next_version, found.version + 1);
      if (found.whole()) {
        pairs_[place] = {found.hash_under(secret_), true, false};
        if (!shape_.in_stash(place) && !in_its_rows(place)) strays_.push_back(place);
      } else if (found.verdict == Slot::Verdict::torn) {
        ++rebuilt_.torn;
        clear(place);
      }
    }
  }

  // Says whether another slot that the key may lie in has a newer pair of it.
  bool has_newer(Place place) const {
    const Spots spots = rebuilt_.index.spots(pairs_[place].hash);
    const auto in = [&](Place begin, Place end) {
      for (Place other = begin; other < end; ++other) {
        if (is_newer(other, place)) return true;
      }
      return false;
    };
    const FingerIndex::Range first = rebuilt_.index.all_of(spots.row1), second = rebuilt_.index.all_of(spots.row2);
    return in(first.begin, first.end) || in(second.begin, second.end) || in(shape_.stash_begin(), shape_.end()) ||
           std::any_of(strays_.begin(), strays_.end(), [&](Place stray) { return is_newer(stray, place); });
  }
  bool is_newer(Place other, Place place) const {
    if (other == place || !pairs_[other].there || pairs_[other].hash != pairs_[place].hash) return false;
    const Slot its = slot(other), mine = slot(place);
    if (its.version < mine.version || (its.version == mine.version && other > place)) return false;
    if (its.state == SlotState::in_place && mine.state == SlotState::in_place) return same_bytes(its.key, mine.key);
    return same_key_(its, mine);
  }

  bool in_its_rows(Place place) const {
    const Spots spots = rebuilt_.index.spots(pairs_[place].hash);
    return shape_.row_of(place) == spots.row1 || shape_.row_of(place) == spots.row2;
  }
  // Says whether an owner can have put the pair there.
  bool may_be_at(Place place) const {
    if (!shape_.in_stash(place)) return in_its_rows(place);
    return rebuilt_.index.twins(pairs_[place].hash) < FingerIndex::kMostTwins;
  }

  Status to_stash(Place from) {
    ++rebuilt_.misplaced;
    const std::uint64_t hash = pairs_[from].hash;
    Place to = shape_.stash_begin();
    while (to < shape_.end() && (rebuilt_.index.taken(to) || counts(to))) ++to;
    if (to == shape_.end() || rebuilt_.index.twins(hash) >= FingerIndex::kMostTwins) {
      return {Code::corrupt, "the vault has pairs where no owner has put them, such as at place " +
                                 std::to_string(from) + ", and the stash of " + std::to_string(shape_.stash) +
                                 " slots has no room for them: restore the table, and look for a second writer"};
    }
    rebuilt_.repairs.push_back({Effect::Kind::copy, to, from, rebuilt_.next_version++});
    clear(from);
    if (may_be_at(from)) rebuilt_.index.clear(from);
    rebuilt_.index.put(to, hash);
    return Status::Ok();
  }

  Shape shape_;
  Bytes vault_;
  const base::HashSecret& secret_;
  const SameKey& same_key_;
  Rebuilt rebuilt_;
  std::vector<Pair> pairs_;
  std::vector<Place> strays_;  // pairs that lie in no row of theirs: the vault is damaged
};

}  // namespace

Result<Rebuilt> rebuild(const Shape& shape, std::uint64_t salt, const base::HashSecret& secret, Bytes vault,
                        const SameKey& same_key) {
  if (const Status status = shape.check(); !status.ok()) return status;
  if (vault.size() != shape.vault_bytes()) {
    return Status(Code::invalid_argument, "a vault of " + std::to_string(vault.size()) +
                                              " bytes is none of this shape, which takes " +
                                              std::to_string(shape.vault_bytes()));
  }
  return Rebuilder(shape, salt, secret, vault, same_key).run();
}

}  // namespace farpool::cuckooduo
