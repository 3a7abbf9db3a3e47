// SPDX-License-Identifier: Apache-2.0
// Reads the keys of extents without their values, and when these expire. The caller holds an era from before it saw what points to them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "fabric/cost.h"
#include "index/stored.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::index {

struct Head {
  std::uint64_t block = 0;         // in units
  std::uint64_t most = 0;          // bytes that may be read from there
  std::uint64_t extent_bytes = 0;  // by its lengths; 0: they are impossible
  std::string key;
  Millis expires = kNoExpiry;
};

// Fills in the heads. One trip for as many as fit a chain, and one more where keys are long.
task::Task<base::Status> read_heads(session::Session& session, std::vector<Head>& heads, base::Nanos deadline,
                                    fabric::Cost& cost);
// The same, and says when values expire: one more trip where values are long.
task::Task<base::Status> read_heads_and_expiries(session::Session& session, std::vector<Head>& heads,
                                                 base::Nanos deadline, fabric::Cost& cost);

}  // namespace farpool::index
