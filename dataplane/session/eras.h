// SPDX-License-Identifier: Apache-2.0
// A memory node's eras, as its other threads see them.
#pragma once

#include <atomic>
#include <cstdint>

namespace farpool::session {

// The registry writes these words before a client can learn of what they say: a thread that executes a CALL sees no
// earlier era than the client that has made it.
struct EraWords {
  std::atomic<std::uint64_t> now{1};
  std::atomic<std::uint64_t> safe{2};  // Registry::safe_era
};

}  // namespace farpool::session
