// SPDX-License-Identifier: Apache-2.0
// The small worlds of the pool that are explored: two or three clients, one or two keys, one or two operations each, on
// a memory node, all of them the code that runs on real wires. Each protocol's dialect lists its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/explore.h"
#include "sim/world.h"

namespace farpool::sim {

// What happens in a small world: calls one after the other, then each client's steps in every order.
struct Plot {
  struct Before {
    std::size_t client = 0;
    Call call;
  };
  struct Step {
    Nanos wait = 0;  // time passes, instead of a call: sessions tick, and eras move
    Call call;
    bool splits = false;                         // instead of a call, it splits the table that has its key
    std::optional<World::ScanRange> scans = {};  // instead of a call, this part, in which all keys lie
    bool clears = false;                         // instead of a call, it clears marks of rows found empty by scans
  };
  using Steps = std::vector<std::vector<Step>>;  // of each client

  WorldOptions options;
  std::vector<Before> before;
  Steps steps;
  Bounds bounds;
};
Plot::Before there(std::size_t client, std::string key, std::string value);
Plot::Step call(Call::Kind kind, std::string key, std::string value = "");

// Returns a memory and a table as small as they can be.
WorldOptions tiny(layout::Protocol protocol);

// Says where each key lies after the calls, and how many entries they displaced.
struct Outlook {
  std::map<std::string, std::uint64_t> rows;
  std::uint64_t displaced = 0;
  bool failed = false;
};
Outlook look_ahead(const WorldOptions& options, const std::vector<Plot::Before>& before);

// The worlds of one protocol, as its dialect lists them.
class Catalogue {
 public:
  // Uses these options for worlds without options of their own.
  explicit Catalogue(const WorldOptions& usual) : usual_(usual) {}
  void add(std::string name, const Bounds& bounds, std::vector<Plot::Before> before, Plot::Steps steps,
           const std::optional<WorldOptions>& options = {});
  void add(std::string name, unsigned preemptions, std::vector<Plot::Before> before, Plot::Steps steps,
           const std::optional<WorldOptions>& options = {}) {
    add(std::move(name), Bounds{.preemptions = preemptions}, std::move(before), std::move(steps), options);
  }
  std::vector<SmallWorld> take() { return std::move(worlds_); }

 private:
  const WorldOptions usual_;
  std::vector<SmallWorld> worlds_;
};

// Returns the worlds of all protocols, each with its bounds.
const std::vector<SmallWorld>& small_worlds();
const SmallWorld* find_small_world(const std::string& name);

}  // namespace farpool::sim
