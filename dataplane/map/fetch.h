// SPDX-License-Identifier: Apache-2.0
// Reads the shard map from memory nodes. Any of them has it; the newest epoch wins.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "fabric/fabric.h"
#include "map/shard_map.h"

namespace farpool::map {

// Says which maps are taken, and counts the others.
struct Trust {
  const base::SignatureCheck* key = nullptr;  // without one, every map is
  std::uint64_t forged = 0;
};

// Asks the endpoints side by side and returns the newest map that is at least of epoch `at_least`, as soon as every
// endpoint has answered, failed, or had its share of the time (an unreachable node among many delays by at most a
// second; only where none of them has it in that time, slow ones are waited for until the deadline). Errors: stale (all
// that answered are older), or what the endpoints said, for people.
task::Task<base::Result<Map>> fetch(fabric::Port& port, std::vector<std::string> endpoints, std::string pool_uid,
                                    std::uint64_t at_least, base::Nanos deadline, Trust& trust);

}  // namespace farpool::map
