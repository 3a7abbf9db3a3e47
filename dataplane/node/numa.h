// SPDX-License-Identifier: Apache-2.0
// Which NUMA nodes memory lies on, and whether those are the right ones.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <optional>

#include "base/bytes.h"
#include "base/result.h"

namespace farpool::node {

using BytesOfNumaNode = std::map<int, std::uint64_t>;

// Returns what numa_maps, the file of /proc, says of mappings that begin in [begin, end).
BytesOfNumaNode parse_numa_maps(std::istream& file, std::uintptr_t begin, std::uintptr_t end);

// Returns an error for memory that lies on more than one node, or on another node than the wanted one: it says where
// the memory lies and what to do.
base::Status judge_numa(const BytesOfNumaNode& bytes, std::optional<int> wanted);

// Touches all of a mapping, and judges where the kernel has put it. A kernel without NUMA passes.
base::Status check_numa(base::MutableBytes memory, std::optional<int> wanted);

// While it lives, new memory of this thread comes from a node with room. Where a container forbids that (seccomp asks
// for SYS_NICE), the kernel uses the node that the thread runs on.
class NumaPreference {
 public:
  explicit NumaPreference(std::optional<int> node);
  NumaPreference(const NumaPreference&) = delete;
  ~NumaPreference();

 private:
  bool set_ = false;
};

}  // namespace farpool::node
