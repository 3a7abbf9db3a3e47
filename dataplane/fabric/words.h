// SPDX-License-Identifier: Apache-2.0
// How an executor accesses region memory: by relaxed 8-byte atomics, so that words never tear but anything longer may.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"

namespace farpool::fabric {

inline std::atomic_ref<std::uint64_t> word_at(std::byte* at) {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at));
}

// Reads words; both are multiples of 8, and `from` lies in a region.
inline void read_words(std::byte* from, base::MutableBytes into) {
  for (std::size_t i = 0; i < into.size(); i += 8) {
    const std::uint64_t word = word_at(from + i).load(std::memory_order_relaxed);
    std::memcpy(into.data() + i, &word, 8);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
}

// Writes words; `to` lies in a region. The words of one WRITE land in ascending order, after everything before it.
inline void write_words(std::byte* to, base::Bytes from) {
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = 0; i < from.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, from.data() + i, 8);
    word_at(to + i).store(word, std::memory_order_relaxed);
  }
}

inline std::uint64_t masked_cas_word(std::byte* at, std::uint64_t compare, std::uint64_t compare_mask,
                                     std::uint64_t swap, std::uint64_t swap_mask) {
  auto word = word_at(at);
  std::uint64_t old = word.load(std::memory_order_acquire);
  while ((old & compare_mask) == (compare & compare_mask)) {
    if (word.compare_exchange_weak(old, (old & ~swap_mask) | (swap & swap_mask), std::memory_order_acq_rel)) break;
  }
  return old;
}

inline std::uint64_t fetch_add_word(std::byte* at, std::uint64_t addend) {
  return word_at(at).fetch_add(addend, std::memory_order_acq_rel);
}

}  // namespace farpool::fabric
