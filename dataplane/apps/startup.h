// SPDX-License-Identifier: Apache-2.0
// What a memory node reports while it starts, because it takes minutes to get, zero and look through a large memory.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "base/time.h"

namespace farpool::apps {

// Any thread.
class Startup {
 public:
  // Reads the clock at every call.
  explicit Startup(std::function<base::Nanos()> now, std::function<void(const std::string&)> log = {});

  // Notes how far a step has come. A step may be silent for kLongestSilence, or longer if its remaining bytes need it.
  void progress(std::string_view step, std::uint64_t done, std::uint64_t of);
  // Notes that the node has started.
  void finish();

  bool finished() const;
  // Returns the step, and how much of it is done, in steps of 5 percent; empty when the node has started.
  std::string message() const;
  // Says why the start seems to be stuck; empty: it is not.
  std::string stuck() const;
  // Returns how far the present step is, from 0 to 1; 1 when the node has started.
  double ratio() const;

  static constexpr base::Nanos kLongestSilence = 30 * base::kSecond;
  // The slowest that memory is believed to be formatted or registered.
  static constexpr std::uint64_t kSlowestBytesPerSecond = 64 << 20;

 private:
  std::string words() const;

  const std::function<base::Nanos()> now_;
  const std::function<void(const std::string&)> log_;
  mutable std::mutex mutex_;
  std::string step_ = "begins";
  std::uint64_t done_ = 0, of_ = 0;
  base::Nanos heard_ = 0;   // when it progressed last
  base::Nanos logged_ = 0;  // when a line was logged last
  bool finished_ = false;
};

}  // namespace farpool::apps
