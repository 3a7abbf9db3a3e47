// SPDX-License-Identifier: Apache-2.0
// Remote allocation of blocks on one memory node, by one client thread. The memory node hands out segments (a CALL);
// the client cuts blocks from them on its own. The client that unlinks a block frees it with one FAA on its segment's
// bitmap, in the background; the owner finds it there and reuses it once no session of an older era can hold its
// address.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "fabric/cost.h"
#include "heap/block.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::heap {

// What the index knows of the heap. A protocol implements it, so that blocks of dead clients can be told from live
// ones.
class References {
 public:
  virtual ~References() = default;
  // Whether an entry points to the whole extent that lies at `units`, or may come to do so again. `extent` are its
  // bytes, with its key. True may be answered from rows as they were read without a lock. False is answered only from
  // the key's rows read under their locks: so no operation that is half done, of the living or of the dead, is still to
  // publish the block, and none that has unlinked it is still to begin. An error leaves the block as it is.
  virtual task::Task<base::Result<bool>> refers(std::uint64_t units, base::Bytes extent, base::Nanos deadline,
                                                fabric::Cost& cost) = 0;
  // Writes the pairs anew whose extents lie in these blocks of `block_bytes`, as any client replaces a value by the
  // same value: afterwards their entries point to other blocks, and these have been freed. Blocks that hold no pair of
  // the index are left alone, and so are keys that others are about. An error says that others may be left, too.
  virtual task::Task<base::Status> rewrite(std::vector<std::uint64_t> units, std::uint64_t block_bytes,
                                           base::Nanos deadline, fabric::Cost& cost) = 0;
};

class Heap {
 public:
  // The session outlives the heap.
  Heap(session::Session& session, std::uint64_t heap_bytes, std::uint64_t segment_bytes);
  ~Heap();

  // A block of at least `bytes`. Local in the common case, and refilled in the background before a class runs dry;
  // otherwise scans free bitmaps, asks the node for a segment, or waits for an era. Once the heap has been found full
  // that is said at once, until there is room. The caller holds no EraPin: it would wait for itself. Errors:
  // out_of_memory (the heap is full), timed_out, and the session's.
  task::Task<base::Result<Block>> allocate(std::uint64_t bytes, Purpose purpose, base::Nanos deadline,
                                           fabric::Cost& cost);
  // Such a block if there is one at hand: nothing is waited for, so the caller may hold an EraPin.
  std::optional<Block> take(std::uint64_t bytes, Purpose purpose);
  // What a block of `bytes` is for that takes the place of one that was asked for with `before`; 0: of none.
  Purpose purpose_of(std::uint64_t bytes, std::uint64_t before) const;
  // One of these becomes known of what was allocated or taken: an entry points to the block now, or none ever will and
  // it is reusable at once. Until then the block is not looked at when the heap looks for blocks that got lost.
  void published(Block block);
  void discard(Block block);
  // Frees a published block that the caller has just unlinked, no matter who owns it. `bytes` as in its index entry's
  // size. Needs no message if this client owns it; else one FAA in the background of the session, shared with other
  // frees of the same turn whose bits lie in the same word. A place that cannot be a block is left alone: it came from
  // an index entry.
  void free(std::uint64_t units, std::uint64_t bytes, fabric::Cost& cost);

  // From here on the heap takes over segments of dead clients, in the background of the session, when maintain() finds
  // that there are some or the heap is full; and after each death it looks through its own segments for blocks that the
  // dead had unlinked and not marked. The references outlive the session's background tasks.
  void set_references(References& references);

  // Housekeeping, to be called about once a tick, also by clients that allocate nothing: settles limbo and returns
  // spare segments. When the memory node is short of segments, it also gives up partly free ones, as orphans that
  // others adopt; without that a client that has gone quiet would keep what others freed of it. When the node clears a
  // stretch of segments for a run, it gives up all that it has there.
  task::Task<void> maintain(base::Nanos deadline);

  // Empties segments of which little is in use into others of their class, own ones and orphans, and returns them: what
  // allocate() has done in the background when it finds the heap full. Bounded work; needs References. `room`: takes a
  // segment more of each class first, so that even a small heap has segments to empty. `run`: and makes room for a
  // block of so many bytes, if there is any, which goes back at once; 0: not.
  task::Task<void> compact(base::Nanos deadline, bool room = false, std::uint64_t run = 0);

  // Returns every segment: wholly free ones to the node, the rest as orphans that others may adopt. Part of a clean
  // goodbye; no operation may run, and none may begin after it.
  task::Task<void> release(base::Nanos deadline);

  struct Usage {
    std::uint64_t segments = 0;
    std::uint64_t blocks_free = 0;   // reusable now
    std::uint64_t blocks_limbo = 0;  // free, but an older era may still read them
    std::uint64_t taken_over = 0;    // segments of the dead
    std::uint64_t emptied = 0;       // segments that were emptied into others, and returned
    std::uint64_t reclaimed = 0;     // blocks in them, and in its own, that were free and not marked so
    std::uint64_t anomalies =
        0;                    // frees that cannot be: a block freed twice, a place that is no block; never acted upon
    fabric::Cost background;  // of refills that no operation waited for
  };
  Usage usage() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // background tasks of the session hold it too
};

}  // namespace farpool::heap
