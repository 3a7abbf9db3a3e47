// SPDX-License-Identifier: Apache-2.0
// The regions of a memory node, in the order in which they lie in its memory.
#pragma once

#include <cstdint>

namespace farpool::layout {

enum RegionId : std::uint32_t {
  kSuperblock = 0,  // read-only to clients
  kSlots = 1,       // operation slots, session by session
  kLeases = 2,      // repair leases
  kLocks = 3,       // lock words; device memory where there is some
  kTable = 4,       // index rows
  kDirectory = 5,   // which table has which keys
  kHeap = 6,        // segments
};
inline constexpr std::uint32_t kRegions = 7;

// CALLs: opcodes of a memory node, each with a fixed request and reply layout (layout/calls.h).
enum CallId : std::uint32_t {
  kTick = 1,              // renews the lease, publishes the era, returns era and safe era
  kAllocateSegments = 2,  // a run of segments, or an orphan of a size class
  kReturnSegments = 3,
  kReadMap = 4,
  kFence = 5,         // ends a session that stands still, or says whether one has ended
  kAdoptSegment = 6,  // takes over a segment, or run, of the dead
  kSwapLease = 7,     // changes a lease's word, where clients may only read them
};

// Limits of the pool.
inline constexpr std::uint64_t kMaxKeyBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxValueBytes = 1024 * 1024;

}  // namespace farpool::layout
