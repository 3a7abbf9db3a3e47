// SPDX-License-Identifier: Apache-2.0
// What happened in a world, for people.
#pragma once

#include <string>
#include <vector>

#include "fabric/sim/trace.h"
#include "sim/history.h"
#include "sim/world.h"

namespace farpool::sim {

// Tells what happened line by line, in order of time.
class Story {
 public:
  // Adds questions and answers.
  void add(const History& history);
  // Adds every posted chain, if the trace keeps them; leaves upkeep out.
  void add(const fabric::sim::Trace& trace, const layout::Geometry& geometry);
  // Adds what happened to a client or a memory node.
  void add(Nanos when, const std::string& who, const std::string& what);

  // Returns the story from a moment on, in at most so many lines; the middle is cut first.
  std::string tell(Nanos from, std::size_t most_lines = 160) const;

 private:
  struct Line {
    Nanos when = 0;
    std::string who, what;
  };
  void say(Nanos when, std::size_t client, std::string what);

  std::vector<Line> lines_;
};

// Returns the story of a world with one memory node, from a moment on.
std::string story(World& world, Nanos from);

// Returns the commit of this build, for people who want to see the same.
std::string commit();

}  // namespace farpool::sim
