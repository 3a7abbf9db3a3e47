// SPDX-License-Identifier: Apache-2.0
// Two rings of bytes in memory that two processes share, one for each direction. Neither end trusts the other: whatever
// the peer writes into the memory, an end reads and writes only inside its rings, and never waits in here.
//
// Each ring has one producer and one consumer, each of one thread. A position counts bytes since the beginning; the
// place of a byte is its position modulo the capacity. Each end uses its own copy of its own position.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"

namespace farpool::net::detail {

// The words of one ring, as they lie in the memory.
struct RingWords {
  alignas(64) std::atomic<std::uint64_t> tail;  // the producer's position
  std::atomic<std::uint32_t> consumer_sleeps;   // until the producer rings
  alignas(64) std::atomic<std::uint64_t> head;  // the consumer's position
  std::atomic<std::uint32_t> producer_sleeps;   // for want of room, until the consumer rings
};
static_assert(sizeof(RingWords) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);

// What one end does with a ring. After `broken()`, which means that the peer has written impossible words, nothing
// moves any more.
class RingEnd {
 public:
  bool broken() const { return broken_; }

 protected:
  RingEnd(RingWords& words, std::byte* bytes, std::size_t capacity)
      : words_(&words), bytes_(bytes), capacity_(capacity) {}
  RingWords* words_;
  std::byte* bytes_;
  std::size_t capacity_;  // a power of two
  std::uint64_t at_ = 0;
  bool broken_ = false;
};

class RingProducer : public RingEnd {
 public:
  RingProducer(RingWords& words, std::byte* bytes, std::size_t capacity) : RingEnd(words, bytes, capacity) {}
  std::size_t room();
  // Copies as much as there is room for, and returns how much that was.
  std::size_t write(base::Bytes from);
  // Says, once, whether the consumer sleeps and has to be rung. Called after a write.
  bool must_ring();
  // Says that this end is about to sleep for room. Returns false if there is some: then it must not sleep.
  bool may_sleep();
};

class RingConsumer : public RingEnd {
 public:
  RingConsumer(RingWords& words, std::byte* bytes, std::size_t capacity) : RingEnd(words, bytes, capacity) {}
  std::size_t available();
  std::size_t read(base::MutableBytes into);
  bool must_ring();
  bool may_sleep();
};

// A mapping of the two rings, and the descriptor that it came from. Its size is fixed, so neither end can take the
// memory away from the other.
class RingMemory {
 public:
  static constexpr std::size_t kCapacity = 256 * 1024;  // of each ring

  static base::Result<RingMemory> create();
  // Takes the descriptor. corrupt: create() did not make this memory.
  static base::Result<RingMemory> adopt(int descriptor);
  RingMemory(RingMemory&& other) noexcept;
  RingMemory& operator=(RingMemory&&) = delete;
  ~RingMemory();

  int descriptor() const { return descriptor_; }
  void close_descriptor();  // the mapping stays
  // Returns the producer: the end that accepted the connection writes the first ring, the other end the second.
  RingProducer producer(bool accepted) { return {words(accepted ? 0 : 1), bytes(accepted ? 0 : 1), kCapacity}; }
  RingConsumer consumer(bool accepted) { return {words(accepted ? 1 : 0), bytes(accepted ? 1 : 0), kCapacity}; }

 private:
  static constexpr std::size_t kHeader = 4096;
  static constexpr std::size_t kBytes = kHeader + 2 * kCapacity;
  RingMemory(int descriptor, std::byte* base) : descriptor_(descriptor), base_(base) {}
  RingWords& words(int ring) { return reinterpret_cast<RingWords*>(base_)[ring]; }
  std::byte* bytes(int ring) { return base_ + kHeader + static_cast<std::size_t>(ring) * kCapacity; }
  int descriptor_;
  std::byte* base_;
};

}  // namespace farpool::net::detail
