// SPDX-License-Identifier: Apache-2.0
// What the simulated wire carries: chains on their way, and the lanes that they are on. Not for anybody else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "fabric/fabric.h"
#include "fabric/host.h"
#include "fabric/sim/time_model.h"

namespace farpool::fabric::sim {

class FlightPool;
class SimLane;
class SimPort;
class SimResponder;
struct Link;

// Shares what it points to, which counts for itself. A run is one thread's, and every event holds a chain: the atomic
// counts of a std::shared_ptr are dear here.
template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* of) : of_(of) {
    if (of_ != nullptr) ++of_->refs;
  }
  Ref(const Ref& other) : Ref(other.of_) {}
  Ref(Ref&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(of_, other.of_);
    return *this;
  }
  ~Ref() {
    if (of_ != nullptr && --of_->refs == 0) retire(of_);
  }

  T* get() const { return of_; }
  T* operator->() const { return of_; }
  T& operator*() const { return *of_; }
  bool operator==(const Ref& other) const { return of_ == other.of_; }
  bool operator==(std::nullptr_t) const { return of_ == nullptr; }

 private:
  T* of_ = nullptr;
};

// One verb of a chain on its way.
struct VerbRun {
  Op op;
  std::byte* target = nullptr;  // in the memory node
  std::uint64_t left = 0;       // words
  bool started = false;
  bool executed = false;
  bool dropped = false;
  Picos there = 0;                 // when it has come in, where time is modelled
  std::uint64_t seen = 0;          // hash of what it read
  std::vector<std::byte> payload;  // of a WRITE, once its posting has ended
};

// A chain on its way. It outlives its posting: a severed lane's verbs may still land.
struct Flight {
  FlightPool* pool = nullptr;  // where it goes when nobody holds it
  std::size_t refs = 0;
  Ref<Link> link;
  Posting* posting = nullptr;  // null once completed: the client's memory is not touched any more
  std::vector<VerbRun> verbs;
  std::size_t left = 0;   // verbs that have yet to execute before the answer
  std::size_t begun = 0;  // verbs, where time is modelled
  std::size_t whole = 0;  // so many verbs at its front have executed
  std::uint64_t request_bytes = 0, answer_bytes = 0;
  bool arrived = false;
  bool refused = false;
  Refusal why = Refusal::none;  // of a CALL that is refused
  bool answered = false;
  std::uint32_t reply_bytes = 0;
  std::vector<std::byte> reply;  // of a CALL
  std::size_t record = 0;        // in the trace
  std::uint64_t number = 0;      // among those of its link

  std::uint64_t seen() const {
    std::uint64_t hash = number;
    for (const VerbRun& run : verbs) hash = base::mix(hash ^ run.seen) + (run.executed ? 1 : 0) + 2 * run.left;
    return base::mix(hash);
  }
};

// Flights that nobody holds, for the next ones: their vectors have room.
class FlightPool {
 public:
  Ref<Flight> take() {
    Flight* flight;
    if (free_.empty()) {
      flight = new Flight{.pool = this};
    } else {
      flight = free_.back().release();
      free_.pop_back();
    }
    return Ref<Flight>(flight);
  }
  void give(Flight* flight) {
    Flight fresh{.pool = this};
    fresh.verbs.swap(flight->verbs);
    fresh.reply.swap(flight->reply);
    fresh.verbs.clear();
    fresh.reply.clear();
    *flight = std::move(fresh);
    free_.push_back(std::unique_ptr<Flight>(flight));
  }

 private:
  std::vector<std::unique_ptr<Flight>> free_;
};

inline void retire(Flight* flight) { flight->pool->give(flight); }

// A lane as the memory node sees it.
struct Link {
  std::size_t refs = 0;
  SimResponder* node = nullptr;
  SimPort* client = nullptr;
  SimLane* lane = nullptr;  // null once the client destroyed it
  LaneRights rights;
  std::vector<LaneGrant::Region> claims;
  std::uint64_t number = 0;
  bool open = true;
  bool refused = false;
  Nanos last_arrival = 0;
  LaneClock clock;
  bool waits = false;               // for its turn to begin a verb
  std::uint64_t sent = 0;           // flights
  std::deque<Ref<Flight>> flights;  // sent and not yet done with, in posting order

  // Where `bytes` at `at` lie in the memory node, if the session may do this to them.
  std::byte* resolve(Verb verb, Remote at, std::uint64_t bytes) const {
    const auto claim =
        std::find_if(claims.begin(), claims.end(), [&](const auto& region) { return region.id == at.region; });
    if (claim == claims.end() || at.offset % 8 != 0 || bytes % 8 != 0) return nullptr;
    for (const RegionRight& right : rights.regions) {
      if (right.id != at.region || right.key != claim->key) continue;
      if (verb != Verb::read && right.read_only) return nullptr;
      if (bytes > right.bytes || at.offset > right.bytes - bytes) return nullptr;
      return right.base + at.offset;
    }
    return nullptr;
  }
};

inline void retire(Link* link) { delete link; }

}  // namespace farpool::fabric::sim
