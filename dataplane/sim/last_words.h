// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace farpool::sim {

// Says on standard error how to replay the current run if a broken invariant aborts the process while this lives,
// because then no function returns to report a seed. The youngest of several counts. One thread.
class LastWords {
 public:
  // `replay` are arguments of simulate; text beyond 1,000 bytes is cut.
  explicit LastWords(const std::string& replay);
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;
  ~LastWords();

 private:
  const std::string before_;
};

}  // namespace farpool::sim
