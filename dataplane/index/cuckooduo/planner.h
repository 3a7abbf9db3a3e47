// SPDX-License-Identifier: Apache-2.0
// What the owner of a table does for a change: which slots of the vault it READs, which it WRITEs, in which order, and
// what its index has afterwards. Pure: its caller brings what the slots have.
//
// The order for an operation:
//   begin(change, hash)     busy: try again when another operation has ended
//   READ change.wanted, and learn() for each, for as long as put() or remove() return Advice::read
//   carry out change.effects in their order when they return Advice::write; then commit(). abort() instead if nothing
//   has been WRITTEN
// What a change has looked at stays locked until then.
//
// Effects are in an order in which the owner may die after any word of any of them: whatever the change moves or
// replaces is whole somewhere all the time, and of two copies of a key the greater version counts (rebuild.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "index/cuckooduo/finger_index.h"
#include "index/cuckooduo/locks.h"
#include "index/path.h"

namespace farpool::cuckooduo {

// A WRITE into the vault.
struct Effect {
  enum class Kind : std::uint8_t {
    pair,   // the operation's new pair
    copy,   // the pair that the operation has READ at `from`
    clear,  // zeros for head and checksum: the slot is empty
  };
  Kind kind = Kind::clear;
  Place place = 0;
  Place from = kNowhere;
  std::uint64_t version = 0;  // of a pair or copy
  friend bool operator==(const Effect&, const Effect&) = default;
};

enum class Advice : std::uint8_t {
  read,    // READ what is wanted
  write,   // carry the effects out
  absent,  // the key is not in the table: a remove has nothing to do
  busy,    // other operations under way are in the way: abort, and begin again when one has ended
  full,    // there is no place for the key: abort, and expand the table
};

// One operation of one key. Its lists keep their room from one operation to the next.
class Planned {
 public:
  std::uint64_t hash() const { return hash_; }
  // Returns the places to READ and learn.
  std::span<const Place> wanted() const { return wanted_; }
  std::span<const Effect> effects() const { return effects_; }
  // Returns where the key is, or kNowhere. Its slot has been read.
  Place found() const { return found_; }
  bool removes() const { return removes_; }
  // Counts pairs that the effects move, the operation's own not counted.
  std::size_t moves() const { return moves_.empty() ? 0 : moves_.size() - 1; }

 private:
  friend class Planner;
  struct Seen {
    Place place = 0;
    std::uint64_t hash = 0;
  };
  struct Move {
    Place from = kNowhere;  // kNowhere: the operation's pair
    Place to = 0;
  };
  std::uint32_t holder_ = 0;  // 0: not under way
  std::uint64_t hash_ = 0;
  Place found_ = kNowhere;
  bool removes_ = false;
  bool blocked_ = false;  // another operation was in the way of something
  std::vector<Place> wanted_;
  std::vector<Seen> seen_;
  std::vector<Place> locked_;
  std::vector<Move> moves_;  // in the order of the WRITEs
  std::vector<Effect> effects_;
};

// Single-threaded, for all operations of a table's owner.
class Planner {
 public:
  // `next_version` is greater than every version in the vault.
  Planner(FingerIndex& index, std::uint64_t next_version) : index_(index), next_version_(next_version) {}

  // Locks the places where the key may be. False: another operation has one of them or the key itself; nothing is locked.
  bool begin(Planned& change, std::uint64_t hash);
  // Takes what a wanted slot has: the hash of its key, and whether it is the operation's own key. `corrupt`: it is not
  // what the index says, so that others than the owner have written into the vault.
  base::Status learn(Planned& change, Place place, std::uint64_t hash, bool same_key);
  // Inserts or replaces the pair.
  Advice put(Planned& change);
  Advice remove(Planned& change);
  // Ends an operation whose effects have all completed.
  void commit(Planned& change);
  // Ends an operation of which no effect has begun.
  void abort(Planned& change);

  std::uint64_t next_version() const { return next_version_; }
  const FingerIndex& index() const { return index_; }
  bool idle() const { return under_way_.empty() && locks_.size() == 0; }
  // Says whether a lookup of the place has to wait for a change.
  bool locked(Place place) const { return locks_.locked(place); }

 private:
  enum class Verdict : std::uint8_t { good, unknown, bad };
  struct Rows;  // what the path search sees

  bool want(Planned& change, Place place);
  bool saw(const Planned& change, Place place) const;
  std::uint64_t hash_of(const Planned& change, Place place) const;
  bool lock(Planned& change, Place place);
  void end(Planned& change);

  Advice insert(Planned& change);
  bool search(Planned& change, const Spots& spots);
  bool resolve(Planned& change, const Spots& spots);
  static constexpr std::size_t kMostMovers = 2;  // others that are moved because prints collide
  struct Rooms {
    std::array<Place, 3 + Shape::kMostPath + kMostMovers> places{};
    std::size_t count = 0;
  };
  Rooms rooms_for(const Planned& change, const Spots& spots) const;
  bool relieve(Planned& change, const Spots& spots);
  bool arrange(Planned& change, const Spots& spots, std::size_t movers);
  bool try_stash(Planned& change);
  Advice replace(Planned& change);
  Advice write(Planned& change);
  Place free_of_stash(const Planned& change) const;
  // Returns the first empty place of a range that no other operation has locked and no move of `beside` takes.
  Place first_free(FingerIndex::Range range, const Planned& change, std::span<const Planned::Move> beside) const;

  // What would lie at a place after the change's moves.
  struct Content {
    Print print = 0;  // 0: nothing
    Place from = kNowhere;
    bool own = false;
  };
  Content content(const Planned& change, Place place) const;
  Verdict judge(Planned& change);
  bool want_for(Planned& change, const Planned::Move& move, const Spots& spots);
  bool may_lie(Planned& change, const Planned::Move& move);
  std::uint64_t hash_of_content(const Planned& change, const Content& content) const;

  FingerIndex& index_;
  std::uint64_t next_version_;
  std::uint32_t last_holder_ = 0;
  PlaceLocks locks_;
  std::vector<std::uint64_t> under_way_;  // hashes of the keys of changes
  index::PathSearch search_;
  std::vector<Place> movable_;           // scratch of resolve()
  std::vector<std::uint64_t> relieved_;  // scratch of relieve(): rows
};

}  // namespace farpool::cuckooduo
