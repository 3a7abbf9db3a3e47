// SPDX-License-Identifier: Apache-2.0
// What happened in a world, for people.
#pragma once

#include <string>
#include <vector>

#include "fabric/sim/trace.h"
#include "sim/history.h"
#include "sim/world.h"

namespace farpool::sim {

// Line by line, in order of time.
class Story {
 public:
  // What was asked and answered.
  void add(const History& history);
  // Every chain that was posted, if the trace keeps them; upkeep is left out.
  void add(const fabric::sim::Trace& trace, const layout::Geometry& geometry);
  // What befell somebody.
  void add(Nanos when, const std::string& who, const std::string& what);

  // From a moment on. At most so many lines; the middle goes first.
  std::string tell(Nanos from, std::size_t most_lines = 160) const;

 private:
  struct Line {
    Nanos when = 0;
    std::string who, what;
  };
  void say(Nanos when, std::size_t client, std::string what);

  std::vector<Line> lines_;
};

// The story of a world with one memory node, from a moment on.
std::string story(World& world, Nanos from);

// What stood at the time of a call: which build this is, for people who want to see the same.
std::string commit();

}  // namespace farpool::sim
