// SPDX-License-Identifier: Apache-2.0
// Invariants that stay on in production: a broken one stops this process, not the pool.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace farpool::base {
[[noreturn]] inline void check_failed(const char* what, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: invariant broken: %s\n", file, line, what);
  std::abort();
}
}  // namespace farpool::base

#define FARPOOL_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::farpool::base::check_failed(#condition, __FILE__, __LINE__))
