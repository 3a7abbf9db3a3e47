// SPDX-License-Identifier: Apache-2.0
// Counts that one thread keeps and any thread reads: relaxed atomics, no locks, no read-modify-write.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace farpool::base {

// Has one writer.
class Counter {
 public:
  void add(std::uint64_t amount = 1) { set(get() + amount); }
  void subtract(std::uint64_t amount = 1) { set(get() - amount); }
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Latencies in buckets by powers of two of microseconds: bucket i counts what took at most 2^i us, the last one all
// else.
class Latencies {
 public:
  static constexpr std::size_t kBuckets = 26;  // up to 33 s

  void record(Nanos took) {
    const std::uint64_t nanos = took > 0 ? static_cast<std::uint64_t>(took) : 0;
    const std::uint64_t micros = (nanos + 999) / 1000;
    const std::size_t bucket = micros <= 1 ? 0 : static_cast<std::size_t>(std::bit_width(micros - 1));
    buckets_[bucket < kBuckets ? bucket : kBuckets].add();
    sum_nanos_.add(nanos);
  }
  std::uint64_t bucket(std::size_t index) const { return buckets_[index].get(); }
  std::uint64_t sum_nanos() const { return sum_nanos_.get(); }

 private:
  std::array<Counter, kBuckets + 1> buckets_;
  Counter sum_nanos_;
};

}  // namespace farpool::base
