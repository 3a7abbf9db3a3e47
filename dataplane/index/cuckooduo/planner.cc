// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/planner.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"

namespace farpool::cuckooduo {

using base::Code;
using base::Status;

// --- An operation's begin and end

bool Planner::begin(Planned& change, std::uint64_t hash) {
  FARPOOL_CHECK(change.holder_ == 0);
  if (std::find(under_way_.begin(), under_way_.end(), hash) != under_way_.end()) return false;
  const FingerIndex::Candidates candidates = index_.find(hash);
  for (const Place place : candidates.all()) {
    if (locks_.locked(place)) return false;
  }
  if (++last_holder_ == 0) ++last_holder_;
  change.holder_ = last_holder_;
  change.hash_ = hash;
  change.found_ = kNowhere;
  change.blocked_ = change.removes_ = false;
  change.wanted_.clear();
  change.seen_.clear();
  change.moves_.clear();
  change.effects_.clear();
  under_way_.push_back(hash);
  for (const Place place : candidates.all()) want(change, place);
  return true;
}

void Planner::end(Planned& change) {
  FARPOOL_CHECK(change.holder_ != 0);
  for (const Place place : change.locked_) locks_.unlock(place);
  change.locked_.clear();
  const auto own = std::find(under_way_.begin(), under_way_.end(), change.hash_);
  *own = under_way_.back();
  under_way_.pop_back();
  change.holder_ = 0;
}

void Planner::abort(Planned& change) { end(change); }

void Planner::commit(Planned& change) {
  if (change.removes_) index_.clear(change.found_);
  // All places first: what one move leaves another may take.
  for (const Planned::Move& move : change.moves_) {
    if (move.from != kNowhere) index_.clear(move.from);
  }
  for (const Planned::Move& move : change.moves_) {
    index_.put(move.to, move.from == kNowhere ? change.hash_ : hash_of(change, move.from));
  }
  end(change);
}

// --- What has been read

bool Planner::lock(Planned& change, Place place) {
  const bool held = std::find(change.locked_.begin(), change.locked_.end(), place) != change.locked_.end();
  if (held) return true;
  if (!locks_.lock(place, change.holder_)) {
    change.blocked_ = true;
    return false;
  }
  change.locked_.push_back(place);
  return true;
}

bool Planner::saw(const Planned& change, Place place) const {
  return std::any_of(change.seen_.begin(), change.seen_.end(),
                     [place](const auto& seen) { return seen.place == place; });
}

std::uint64_t Planner::hash_of(const Planned& change, Place place) const {
  const auto seen = std::find_if(change.seen_.begin(), change.seen_.end(),
                                 [place](const Planned::Seen& one) { return one.place == place; });
  FARPOOL_CHECK(seen != change.seen_.end());
  return seen->hash;
}

// Wants a slot read, unless it has been. False: another operation has locked it.
bool Planner::want(Planned& change, Place place) {
  if (saw(change, place)) return true;
  if (std::find(change.wanted_.begin(), change.wanted_.end(), place) != change.wanted_.end()) return true;
  if (!lock(change, place)) return false;
  change.wanted_.push_back(place);
  return true;
}

Status Planner::learn(Planned& change, Place place, std::uint64_t hash, bool same_key) {
  const auto wanted = std::find(change.wanted_.begin(), change.wanted_.end(), place);
  FARPOOL_CHECK(wanted != change.wanted_.end());
  if (!index_.may_be(place, hash) || (same_key && (hash != change.hash_ || change.found_ != kNowhere))) {
    return {Code::corrupt, "the vault has another key at place " + std::to_string(place) +
                               " than its owner's index says: rebuild the index, and look for a second writer"};
  }
  change.wanted_.erase(wanted);
  change.seen_.push_back({place, hash});
  if (same_key) change.found_ = place;
  return Status::Ok();
}

// --- Changes of a key that is there

Advice Planner::remove(Planned& change) {
  if (!change.wanted_.empty()) return Advice::read;
  if (change.found_ == kNowhere) return Advice::absent;
  change.effects_.push_back({Effect::Kind::clear, change.found_, kNowhere, 0});
  change.removes_ = true;
  return Advice::write;
}

Place Planner::free_of_stash(const Planned& change) const {
  const Shape& shape = index_.shape();
  for (Place place = shape.stash_begin(); place < shape.end(); ++place) {
    if (!index_.taken(place) && !locks_.locked_for(place, change.holder_)) return place;
  }
  return kNowhere;
}

// The new pair is whole in the stash before the old one is touched.
Advice Planner::replace(Planned& change) {
  const Place spare = free_of_stash(change);
  if (spare == kNowhere || !lock(change, spare)) return Advice::busy;
  locks_.gain(spare);
  change.effects_.push_back({Effect::Kind::pair, spare, kNowhere, next_version_++});
  change.effects_.push_back({Effect::Kind::pair, change.found_, kNowhere, next_version_++});
  change.effects_.push_back({Effect::Kind::clear, spare, kNowhere, 0});
  return Advice::write;
}

Advice Planner::put(Planned& change) {
  FARPOOL_CHECK(change.holder_ != 0);
  if (!change.wanted_.empty()) return Advice::read;
  return change.found_ != kNowhere ? replace(change) : insert(change);
}

// --- Inserts

Advice Planner::insert(Planned& change) {
  change.blocked_ = false;
  change.moves_.clear();
  const Spots spots = index_.spots(change.hash_);
  // A key in the bucket of the second array, or in the first one among first prints, with the same first print.
  const FingerIndex::Range firsts = index_.firsts_of(spots.row1), seconds = index_.seconds_of(spots.row1);
  const FingerIndex::Range others = index_.all_of(spots.row2);
  const bool collides = index_.find_print(others.begin, others.end, spots.first) != kNowhere ||
                        index_.find_print(firsts.begin, firsts.end, spots.first) != kNowhere ||
                        index_.find_print(seconds.begin, seconds.end, spots.second) != kNowhere;
  const bool placed = collides ? resolve(change, spots) : search(change, spots);
  if (placed) return change.wanted_.empty() ? write(change) : Advice::read;
  if (change.blocked_) return Advice::busy;
  return try_stash(change) ? write(change) : change.blocked_ ? Advice::busy : Advice::full;
}

Advice Planner::write(Planned& change) {
  for (const Planned::Move& move : change.moves_) {
    if (!lock(change, move.to)) return Advice::busy;
  }
  for (const Planned::Move& move : change.moves_) {
    locks_.gain(move.to);
    const bool own = move.from == kNowhere;
    change.effects_.push_back({own ? Effect::Kind::pair : Effect::Kind::copy, move.to, move.from, next_version_++});
  }
  // What a move has left and nothing has taken.
  for (const Planned::Move& move : change.moves_) {
    const bool left =
        move.from != kNowhere && std::none_of(change.moves_.begin(), change.moves_.end(),
                                              [&move](const Planned::Move& other) { return other.to == move.from; });
    if (left) change.effects_.push_back({Effect::Kind::clear, move.from, kNowhere, 0});
  }
  return Advice::write;
}

bool Planner::try_stash(Planned& change) {
  change.moves_.clear();
  const Shape& shape = index_.shape();
  if (index_.stashed() + shape.spares >= shape.stash || index_.twins(change.hash_) >= FingerIndex::kMostTwins)
    return false;
  const Place place = free_of_stash(change);
  if (place == kNowhere) {
    change.blocked_ = true;
    return false;
  }
  change.moves_.push_back({kNowhere, place});
  return true;
}

Place Planner::first_free(FingerIndex::Range range, const Planned& change,
                          std::span<const Planned::Move> beside) const {
  for (Place place = range.begin; place < range.end; ++place) {
    if (index_.print(place) != 0 || locks_.locked_for(place, change.holder_)) continue;
    if (std::none_of(beside.begin(), beside.end(), [place](const Planned::Move& move) { return move.to == place; }))
      return place;
  }
  return kNowhere;
}

// --- Paths, for a key whose prints nobody shares

struct Planner::Rows {
  Planner& planner;
  Planned& change;

  index::Sight sight(std::uint64_t) const { return index::Sight::known; }
  int empty_slot(std::uint64_t row) const {
    const Shape& shape = planner.index_.shape();
    const Place place = planner.first_free(planner.index_.all_of(row), change, {});
    return place == kNowhere ? -1 : static_cast<int>(shape.slot_of(place));
  }
  // A pair with a second print is not moved: its other bucket is known only when it has been read.
  std::uint64_t alternate(std::uint64_t row, std::uint32_t slot) const {
    const Shape& shape = planner.index_.shape();
    const Place place = shape.place(row, slot);
    const Print print = planner.index_.print(place);
    if (shape.is_second(place) || print == 0 || planner.locks_.locked_for(place, change.holder_)) return row;
    return other_row(row, print, shape, planner.index_.salt());
  }
  Place place(const index::Path& path, std::size_t i) const {
    return planner.index_.shape().place(path.step[i].row, path.step[i].slot);
  }
  // Makes the moves of the path the change's, so that its first slot is empty.
  void take(const index::Path& path) const {
    change.moves_.clear();
    for (std::size_t i = path.length - 1; i > 0; --i) change.moves_.push_back({place(path, i - 1), place(path, i)});
  }
  bool accepts(const index::Path& path) const {
    take(path);
    change.moves_.push_back({kNowhere, place(path, 0)});
    return planner.judge(change) != Verdict::bad;
  }
};

// Takes the emptier bucket first, so that buckets fill evenly; but a slot with a first print before one in the second
// array if the pairs with second prints would have to be read for that one.
bool Planner::search(Planned& change, const Spots& spots) {
  const auto free = [this](FingerIndex::Range range) {
    int count = 0;
    for (Place place = range.begin; place < range.end; ++place) count += index_.print(place) == 0 ? 1 : 0;
    return count;
  };
  const FingerIndex::Range seconds = index_.seconds_of(spots.row1);
  const int first = free(index_.firsts_of(spots.row1)), second = free(index_.all_of(spots.row2));
  const bool read_for_second = free(seconds) < static_cast<int>(seconds.end - seconds.begin);
  const bool first_first = first > 0 ? read_for_second || first >= second : second == 0;
  std::array<std::uint64_t, 2> roots = {spots.row1, spots.row2};
  if (!first_first) std::swap(roots[0], roots[1]);
  Rows rows{*this, change};
  index::Path path;
  return search_.find(rows, index_.shape().slots, roots, index_.shape().path, path);
}

// --- Collisions of prints (section 2.2)

// Reads the whole bucket of the first array and what collides in the second, and then tries to place the new key as the
// others lie, with one of them moved, and with two of them moved.
bool Planner::resolve(Planned& change, const Spots& spots) {
  const FingerIndex::Range all = index_.all_of(spots.row1), others = index_.all_of(spots.row2);
  movable_.clear();
  for (Place place = all.begin; place < all.end; ++place) {
    if (index_.print(place) != 0) movable_.push_back(place);
  }
  const Place match = index_.find_print(others.begin, others.end, spots.first);
  if (match != kNowhere) movable_.push_back(match);
  for (const Place place : movable_) {
    if (!want(change, place)) return false;
  }
  if (!change.wanted_.empty()) return true;
  for (std::size_t movers = 0; movers <= kMostMovers; ++movers) {
    change.moves_.clear();
    if (arrange(change, spots, movers)) return true;
  }
  return relieve(change, spots);
}

// Looks for a path by which a pair of the bucket can leave it, so that the others have more room.
bool Planner::relieve(Planned& change, const Spots& spots) {
  const std::uint32_t path = index_.shape().path;
  if (path == 0) return false;
  relieved_.clear();
  std::erase_if(movable_, [&](Place place) { return index_.shape().row_of(place) != spots.row1; });
  for (const Place place : movable_) relieved_.push_back(index_.spots(hash_of(change, place)).row2);
  struct Relieving : Rows {
    const Spots& spots;
    // The bucket itself is no goal: each move of the path is good by itself.
    index::Sight sight(std::uint64_t row) const {
      return row == spots.row1 ? index::Sight::excluded : index::Sight::known;
    }
    bool accepts(const index::Path& path) const {
      for (const Place leaving : planner.movable_) {
        if (planner.index_.spots(planner.hash_of(change, leaving)).row2 != path.step[0].row) continue;
        take(path);
        change.moves_.push_back({leaving, place(path, 0)});
        const Verdict verdict = planner.judge(change);
        if (verdict == Verdict::unknown) return true;
        if (verdict == Verdict::bad) continue;
        for (std::size_t movers = 0; movers <= kMostMovers; ++movers) {
          if (planner.arrange(change, spots, movers)) return true;
        }
      }
      return false;
    }
  };
  Relieving rows{{*this, change}, spots};
  index::Path found;
  return search_.find(rows, index_.shape().slots, relieved_, path - 1, found);
}

// Returns where a key may go beside the moves so far: into an empty slot of each kind, or where one of them came from.
Planner::Rooms Planner::rooms_for(const Planned& change, const Spots& spots) const {
  Rooms rooms;
  for (const FingerIndex::Range range :
       {index_.firsts_of(spots.row1), index_.all_of(spots.row2), index_.seconds_of(spots.row1)}) {
    if (const Place place = first_free(range, change, change.moves_); place != kNowhere)
      rooms.places[rooms.count++] = place;
  }
  for (const Planned::Move& left : change.moves_) {
    const std::uint64_t row = index_.shape().row_of(left.from);
    const bool taken = std::any_of(change.moves_.begin(), change.moves_.end(),
                                   [&left](const auto& move) { return move.to == left.from; });
    if (!taken && (row == spots.row1 || row == spots.row2)) rooms.places[rooms.count++] = left.from;
  }
  return rooms;
}

// Tries all ways to move that many others and place the new key. The moves are left in the change if one is good.
bool Planner::arrange(Planned& change, const Spots& spots, std::size_t movers) {
  if (movers == 0) {
    const Rooms rooms = rooms_for(change, spots);
    for (std::size_t i = 0; i < rooms.count; ++i) {
      change.moves_.push_back({kNowhere, rooms.places[i]});
      if (judge(change) != Verdict::bad) return true;
      change.moves_.pop_back();
    }
    return false;
  }
  for (const Place mover : movable_) {
    if (std::any_of(change.moves_.begin(), change.moves_.end(),
                    [mover](const auto& move) { return move.from == mover; }))
      continue;
    const Rooms rooms = rooms_for(change, index_.spots(hash_of(change, mover)));
    for (std::size_t i = 0; i < rooms.count; ++i) {
      change.moves_.push_back({mover, rooms.places[i]});
      // The owner may die after this move, so it has to be good by itself.
      if (judge(change) != Verdict::bad && arrange(change, spots, movers - 1)) return true;
      change.moves_.pop_back();
    }
  }
  return false;
}

// --- Whether every key is still found

Planner::Content Planner::content(const Planned& change, Place place) const {
  for (const Planned::Move& move : change.moves_) {
    if (move.to != place) continue;
    const std::uint64_t hash = move.from == kNowhere ? change.hash_ : hash_of(change, move.from);
    return {index_.spots(hash).at(place, index_.shape()), move.from, move.from == kNowhere};
  }
  for (const Planned::Move& move : change.moves_) {
    if (move.from == place) return {};
  }
  return {index_.print(place), place, false};
}

std::uint64_t Planner::hash_of_content(const Planned& change, const Content& content) const {
  return content.own ? change.hash_ : hash_of(change, content.from);
}

// Judges the change's moves: are all pairs found where they are afterwards? Wants what has to be read to tell.
Planner::Verdict Planner::judge(Planned& change) {
  const std::size_t wanted_before = change.wanted_.size();
  const Spots own = index_.spots(change.hash_);
  for (const Planned::Move& move : change.moves_) {
    if (!want_for(change, move, own)) {
      // What was wanted for this alone is not read, but stays locked: the operation will soon end.
      change.wanted_.resize(wanted_before);
      return Verdict::bad;
    }
  }
  if (change.wanted_.size() > wanted_before) return Verdict::unknown;
  for (const Planned::Move& move : change.moves_) {
    if (!may_lie(change, move)) return Verdict::bad;
  }
  return Verdict::good;
}

bool Planner::want_for(Planned& change, const Planned::Move& move, const Spots& own) {
  const Shape& shape = index_.shape();
  const auto read = [&](FingerIndex::Range range) {
    for (Place place = range.begin; place < range.end; ++place) {
      if (locks_.gains_for(place, change.holder_)) {
        change.blocked_ = true;
        return false;
      }
      if (index_.print(place) != 0 && !want(change, place)) return false;
    }
    return true;
  };
  if (move.from != kNowhere && !want(change, move.from)) return false;
  if (shape.is_second(move.to)) return read(index_.firsts_of(shape.row_of(move.to)));
  if (shape.in_first_array(move.to)) return true;
  if (move.from == kNowhere) return read(index_.seconds_of(own.row1));
  return !shape.in_first_array(move.from) || read(index_.seconds_of(shape.row_of(move.from)));
}

// Says whether a pair is found at its new place, and every other pair of its buckets is still found at its own.
bool Planner::may_lie(Planned& change, const Planned::Move& move) {
  const Shape& shape = index_.shape();
  const Spots its = index_.spots(move.from == kNowhere ? change.hash_ : hash_of(change, move.from));
  const std::uint64_t row = shape.row_of(move.to);
  if (row != its.row1 && row != its.row2) return false;
  bool clear = true;
  // Calls `meets` for what lies in a range beside the pair.
  const auto beside = [&](FingerIndex::Range range, auto&& meets) {
    for (Place place = range.begin; place < range.end; ++place) {
      if (locks_.gains_for(place, change.holder_)) {
        change.blocked_ = true;
        clear = false;
      }
      if (place == move.to) continue;
      const Content there = content(change, place);
      if (there.print != 0 && meets(there)) clear = false;
    }
  };
  const auto first_print = [&](const Content& there) { return there.print == its.first; };
  const auto second_print = [&](const Content& there) { return there.print == its.second; };
  const FingerIndex::Range firsts = index_.firsts_of(its.row1), seconds = index_.seconds_of(its.row1);
  beside(index_.all_of(its.row2), first_print);
  if (shape.is_second(move.to)) {
    // A pair among first prints that shares the second print would be looked for here.
    beside(seconds, second_print);
    beside(firsts,
           [&](const Content& there) { return index_.spots(hash_of_content(change, there)).second == its.second; });
  } else if (shape.in_first_array(move.to)) {
    beside(seconds, second_print);
    beside(firsts, first_print);
  } else {
    // A pair with a second print that shares the first print would be looked for here: whatever has that first print in
    // the first array is fixed there.
    beside(firsts, first_print);
    beside(seconds,
           [&](const Content& there) { return index_.spots(hash_of_content(change, there)).first == its.first; });
  }
  return clear;
}

}  // namespace farpool::cuckooduo
