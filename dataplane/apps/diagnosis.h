// SPDX-License-Identifier: Apache-2.0
// Says what the facts of a node or pod mean for the verbs wire, and what to do about it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/verbs/survey.h"

namespace farpool::apps {

enum class Level : std::uint8_t {
  good,
  note,     // neither good nor bad
  warning,  // it works, and could be better, or may fail later
  problem,  // the wire will not work
};
std::string_view name_of(Level level);

struct Finding {
  std::string check;    // "devices", "link", …: the same words in every version
  std::string subject;  // the device, or "process", "kernel"
  Level level;
  std::string found;
  std::string fix;  // empty if there is nothing to do
};

// What the daemons will be given; empty or 0 asks for nothing.
struct Wanted {
  std::string device;
  std::string address;
  std::string interface;
  std::string attachment;  // as the API names it
  std::uint64_t huge_page = 0;
};

struct Diagnosis {
  std::vector<Finding> findings;
  bool ready() const;
};
// Judges the best of several devices; reports the faults of the others, which are no obstacle.
Diagnosis diagnose(const fabric::verbs::RdmaFacts& facts, const Wanted& wanted);

}  // namespace farpool::apps
