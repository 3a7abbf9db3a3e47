// SPDX-License-Identifier: Apache-2.0
// Requests and replies of the CALLs: fixed layouts of 8-byte words, little-endian.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace farpool::layout {

struct TickRequest {
  std::uint64_t era =
      0;  // every operation of this session that still runs began when this era, or a later one, had been seen
  std::uint64_t hurry = 0;   // 1: this session waits for an era
  std::uint64_t forget = 0;  // 1: every session is to forget which marks of rows it has set
  std::uint64_t clock = 0;   // the pool's time as the client has it (session/clock.h); 0: it knows none yet
};
// How short of segments the node is. Each holds for a lease.
enum class Pressure : std::uint64_t {
  none = 0,
  scarce = 1,  // a request was refused: give back what you can spare
  spent = 2,   // one for replacements was: give up every segment that you can do without, and add less
  dry = 3,     // blocks for replacements have been waited for in vain: add none
};
// A stretch of segments that the memory node clears for a run. A client that owns one in it gives it up, or empties it.
struct Stretch {
  std::uint64_t first = 0;
  std::uint64_t count = 0;  // 0: none
  bool overlaps(std::uint64_t begin, std::uint64_t segments) const {
    return count > 0 && begin < first + count && first < begin + segments;
  }
  friend bool operator==(const Stretch&, const Stretch&) = default;
};
// The word `hurry` of a tick's reply. While any bit is set, clients tick often. Bit 0: a client waits for an era. Bits 8
// to 31 and 32 to 63: length and first segment of the stretch that is being cleared, of which clients of an earlier
// version know nothing.
struct Hurry {
  static constexpr std::uint64_t kMostSegments = (1ull << 24) - 1;
  static constexpr std::uint64_t with(std::uint64_t word, const Stretch& cleared) {
    if (cleared.count == 0 || cleared.count > kMostSegments || cleared.first >> 32 != 0) return word;
    return word | cleared.count << 8 | cleared.first << 32;
  }
  static constexpr Stretch cleared(std::uint64_t word) {
    return {.first = word >> 32, .count = word >> 8 & kMostSegments};
  }
};
struct TickReply {
  std::uint64_t era = 0;       // now
  std::uint64_t safe_era = 0;  // no session still runs an operation of an older era
  std::uint64_t epoch = 0;     // of the node's shard map: the client's is stale when it differs
  std::uint64_t pressure = 0;
  std::uint64_t hurry = 0;          // as Hurry says
  std::uint64_t places = 0;         // sessions [0, places) were admitted at some time: no other slots were written
  std::uint64_t dead = 0;           // sessions that have ended and left operations half done
  std::uint64_t dead_segments = 0;  // that wait for a client to take them over
  std::uint64_t deaths = 0;         // sessions that have ended without a goodbye
  std::uint64_t forgets = 0;        // ticks so far that asked to forget: what a session knew before has to be forgotten
  std::uint64_t clock = 0;          // the pool's time here (session/clock.h)
  std::uint64_t reclaims = 0;       // 1: this session is to look for keys that have expired
};

struct AllocateSegmentsRequest {
  std::uint64_t count = 1;  // contiguous
  // The size class of the blocks that the segment will hold. If count is 1, one of this class that nobody owns may be
  // handed out.
  std::uint64_t size_class = 0;
  // 1: blocks that take the place of others, which are freed soon. The last segments are for these.
  std::uint64_t replaces = 0;
  std::uint64_t in_vain = 0;  // 1: such blocks have been waited for, for some ticks
};
struct AllocateSegmentsReply {
  std::uint64_t status = 0;  // 0 granted, 1 the heap is full, 2 full until an era is over: segments wait to be reused
  std::uint64_t first = 0;   // index of the first segment
  // 1: an orphan, whose free bitmap says which blocks may be used. 2: of the dead; the bitmap names blocks that may be
  // used, and not all: the caller finds out which others, as of one from AdoptSegmentReply.
  std::uint64_t adopted = 0;
};

struct ReturnSegmentsRequest {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t orphan =
      0;  // 0: all blocks are free. 1: blocks live on; the free bitmap is complete, another client may adopt it
};
struct ReturnSegmentsReply {
  std::uint64_t status = 0;  // 0 taken, 1 not the caller's
};

// Asks the memory node to end a client that holds something and does not move. The memory node decides: the first
// request notes what the slot or the lease says, and only a request that finds it unchanged after the pool's failure
// timeout, by the node's clock, ends the session. If the client has ended already, the reply says so at once.
struct FenceRequest {
  enum : std::uint64_t { kSlot = 0, kLease = 1 };
  std::uint64_t of = kSlot;
  std::uint64_t index = 0;   // of the operation slot, in the slots region; of the lease word
  std::uint64_t holder = 0;  // the slot's holder; unused for a lease, whose word names a session
  std::uint64_t says = 0;    // the slot's sequence word; the lease word
  std::uint64_t ask = 0;     // 1: only tell whether the holder has ended
};
struct FenceReply {
  enum : std::uint64_t {
    kEnded = 0,   // no verb of the holder can execute here any more
    kEnding = 1,  // the memory node is ending it: ask again
    kNoted = 2,   // it is not known to have ended; ask again after the failure timeout
    kMoved = 3,   // the slot or lease says something else by now
  };
  std::uint64_t status = kEnded;
  std::uint64_t places = 0;  // sessions [0, places) were admitted at some time: no other slots were written
};

static_assert(base::wire_safe<FenceRequest> && base::wire_safe<FenceReply>);

// Takes, renews or releases a lease: its word becomes another one if it is still `says`.
struct SwapLeaseRequest {
  std::uint64_t index = 0;  // of the lease word
  std::uint64_t says = 0;   // LeaseWord
  std::uint64_t word = 0;   // held by the caller, or released
};
struct SwapLeaseReply {
  std::uint64_t before = 0;  // what the word said
};
static_assert(base::wire_safe<SwapLeaseRequest> && base::wire_safe<SwapLeaseReply>);

struct AdoptSegmentRequest {
  enum : std::uint64_t { kSparse = 0 };
  std::uint64_t size_class = 0;  // wanted, if there is one of it; else any
  // Segments of a run. kSparse: an orphan of another size class than `size_class` that lies in the stretch which is
  // being cleared, or else one of which a part is free; a memory node that knows no such request hands over a segment
  // of the dead.
  std::uint64_t run = 1;
};
struct AdoptSegmentReply {
  static constexpr std::uint64_t kOrphan = 1ull << 32;  // beside the run: its bitmap is complete
  std::uint64_t status = 0;                             // 0 the caller's from now on, 1 there is none
  std::uint64_t first = 0;
  std::uint64_t run = 0;
  // The size class of its blocks. Its free bitmap names blocks that are free, and not all of them: the caller finds out
  // which others are, as heap/heap.h says.
  std::uint64_t size_class = 0;
};

static_assert(base::wire_safe<AdoptSegmentRequest> && base::wire_safe<AdoptSegmentReply>);
static_assert(base::wire_safe<TickRequest> && base::wire_safe<TickReply> && base::wire_safe<AllocateSegmentsRequest> &&
              base::wire_safe<AllocateSegmentsReply> && base::wire_safe<ReturnSegmentsRequest> &&
              base::wire_safe<ReturnSegmentsReply>);

}  // namespace farpool::layout
