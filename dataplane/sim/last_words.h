// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace farpool::sim {

// Says on standard error how to replay what runs while this lives, should a broken invariant abort the process: nobody
// returns then to tell a seed. The youngest of several counts. One thread.
class LastWords {
 public:
  // `replay` are arguments of simulate; what goes beyond 1,000 bytes is cut.
  explicit LastWords(const std::string& replay);
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;
  ~LastWords();

 private:
  const std::string before_;
};

}  // namespace farpool::sim
