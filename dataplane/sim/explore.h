// SPDX-License-Identifier: Apache-2.0
// Explores a small world exhaustively, within a bound: every order in which its clients' verbs may execute, with each
// READ and WRITE torn at any word, and with losses and crashes if the bound has some.
//
// A tape of decisions steers a run. The run is repeated from the beginning with other tapes until every decision has
// been taken every way, with these exceptions:
//  - A client continues until it waits or has ended. To switch away from a client that could continue is a preemption,
//    and a run has at most so many. A torn verb is a preemption: its rest executes when its client continues.
//  - What commutes is not decided. A verb on words that no other client has touched in conflict, in any run so far,
//    executes at once (if one does later, exploring begins anew with that knowledge). Two verbs of one client change
//    places only if another client acts in between.
//  - A state that was reached before, with as much of the bound left, is not explored again. A state is memory, verbs
//    under way, and everything that each client has received: that decides what the client does.
//  - Time passes only when nothing else can happen; or, as a preemption, until a sleeping client continues; or while a
//    client is stalled: then nothing of it executes until the memory node is about to fence it, or all other clients
//    have ended. The moment of the fence, before, between or after the client's verbs, is decided like everything else.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/sim/network.h"

namespace farpool::sim {

using base::Nanos;

// What is explored: some clients with some operations each, on a network. Each run gets a new one, equal to the others.
class Scene {
 public:
  virtual ~Scene() = default;
  // Returns the network. Nothing is in flight on a new one.
  virtual fabric::sim::Network& network() = 0;
  virtual std::size_t clients() const = 0;
  // Say whether the client's next operation may begin now, and begin it.
  virtual bool may_begin(std::size_t client) const = 0;
  virtual void begin(std::size_t client) = 0;
  // Says whether the client is in the middle of an operation.
  virtual bool busy(std::size_t client) const = 0;
  virtual void crash(std::size_t client) = 0;
  // Stop the client's thread, and let it continue.
  virtual void stop(std::size_t) {}
  virtual void resume(std::size_t) {}
  // Returns a digest of what decides the judgement of the run, beyond what the network knows.
  virtual std::uint64_t fingerprint() const = 0;
  // Says whether a verb executes at once, whatever else could: the world's upkeep, in whose order no fault is sought.
  virtual bool at_once(const fabric::sim::Waiting&) const { return false; }
  // Says what is wrong with executing the one while the other waits; empty: nothing. They touch the same words, and at
  // least one of them changes them.
  virtual std::string objection(const fabric::sim::Waiting&, const fabric::sim::Waiting&) const { return {}; }
  // Returns what is wrong when everything has ended.
  virtual std::vector<std::string> judge() = 0;
  // For people.
  virtual std::string next_name(std::size_t client) const = 0;
  virtual std::string place(fabric::Remote at, std::uint64_t bytes) const = 0;
};

struct Bounds {
  unsigned preemptions = 3;
  unsigned losses = 0;   // answers that never come
  unsigned crashes = 0;  // clients of `mortal` that die
  unsigned stalls = 0;   // clients of `mortal` that stop, with everything that they have under way
  std::vector<std::size_t> mortal;
  // A client is preempted or stops only while it has at most so many verbs under way. With very many, all of them on
  // words of others, there are more orders than can be tried.
  std::size_t few = ~std::size_t{0};
};

struct SmallWorld {
  std::string name;
  Bounds bounds;
  std::function<std::unique_ptr<Scene>()> make;
  bool served = false;  // CALLs for data change what READs see
};

// The decisions that did not go the first way: `17:2` is the third way at the 18th decision.
using Tape = std::map<std::uint64_t, std::uint64_t>;
std::string describe(const Tape& tape);
std::optional<Tape> parse_tape(const std::string& text);

struct Replayed {
  std::vector<std::string> wrong;
  std::string story;            // line by line, for people
  std::uint64_t decisions = 0;  // that there were
};
Replayed replay(const SmallWorld& world, const Tape& tape);

struct Explored {
  std::uint64_t runs = 0;
  std::uint64_t judged = 0;   // runs that ended in a way not seen before
  std::uint64_t states = 0;   // distinct
  std::uint64_t deepest = 0;  // decisions of one run
  bool whole = true;          // the bound was exhausted
  struct Failure {
    Tape tape;  // no shorter one was found by leaving decisions out
    std::vector<std::string> wrong;
    std::string story;
  };
  std::optional<Failure> failure;
};
// Explores; stops at the first failure, or after `most` runs.
Explored explore(const SmallWorld& world, std::uint64_t most = ~0ull);

}  // namespace farpool::sim
