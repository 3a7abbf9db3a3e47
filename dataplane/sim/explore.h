// SPDX-License-Identifier: Apache-2.0
// Explores a small world exhaustively, within a bound: every order in which the verbs of its clients may execute, each
// READ and WRITE torn at any word, with losses and crashes where the bound has some.
//
// A run is steered by a tape of decisions. It is repeated from the beginning with another tape until every decision has
// been taken every way, except that
//  - a client goes on until it waits or has ended: to switch away from one that could go on is a preemption, and a run
//    has at most so many. A torn verb is one: its rest executes when its client goes on;
//  - what commutes is not decided: a verb on words that no other client has touched in conflict, in any run so far,
//    executes at once (if one does later, exploring begins anew with that knowledge), and two verbs of one client
//    change places only if another client acts in between;
//  - a state that was reached before, with as much of the bound left, is not explored again. A state is memory, verbs
//    under way, and all that each client was told: a client is a function of that;
//  - time passes only when nothing else can happen, or, as a preemption, until a client that sleeps goes on, or while a
//    client is stalled: then nothing of it executes until the memory node is about to fence it, or all others have
//    ended. When the fence happens, before, between or after what it had under way, is decided like everything else.
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

// What is explored: some clients with some operations each, on a network. One is made for every run, each like the
// other.
class Scene {
 public:
  virtual ~Scene() = default;
  // Nothing is in flight when it is made.
  virtual fabric::sim::Network& network() = 0;
  virtual std::size_t clients() const = 0;
  // Says whether the client's next operation may begin now, and its beginning.
  virtual bool may_begin(std::size_t client) const = 0;
  virtual void begin(std::size_t client) = 0;
  // It is in the middle of one.
  virtual bool busy(std::size_t client) const = 0;
  virtual void crash(std::size_t client) = 0;
  // Its thread is stopped, and goes on.
  virtual void stop(std::size_t) {}
  virtual void resume(std::size_t) {}
  // A digest of what decides how the run will be judged, beyond what the network knows.
  virtual std::uint64_t fingerprint() const = 0;
  // Verbs that execute at once, whatever else could: of the world's upkeep, in whose order nothing is sought.
  virtual bool at_once(const fabric::sim::Waiting&) const { return false; }
  // What is wrong with executing the one while the other waits; empty: nothing. They touch the same words, and not both
  // only read them.
  virtual std::string objection(const fabric::sim::Waiting&, const fabric::sim::Waiting&) const { return {}; }
  // All has ended: what is wrong with it.
  virtual std::vector<std::string> judge() = 0;
  // For people.
  virtual std::string next_name(std::size_t client) const = 0;
  virtual std::string place(fabric::Remote at, std::uint64_t bytes) const = 0;
};

struct Bounds {
  unsigned preemptions = 3;
  unsigned losses = 0;   // answers that never come
  unsigned crashes = 0;  // clients that die, only those of `mortal`
  unsigned stalls = 0;   // clients that stop, with all that they have under way, likewise
  std::vector<std::size_t> mortal;
  // A client is preempted or stops only while it has at most so many verbs under way. One with very many, all of them
  // on words of others, has more orders than can be tried.
  std::size_t few = ~std::size_t{0};
};

struct SmallWorld {
  std::string name;
  Bounds bounds;
  std::function<std::unique_ptr<Scene>()> make;
};

// Which way each decision went where it did not go the first way: `17:2` is the third way at the 18th.
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
// Stops at the first failure, or after `most` runs.
Explored explore(const SmallWorld& world, std::uint64_t most = ~0ull);

}  // namespace farpool::sim
