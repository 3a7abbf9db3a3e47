// SPDX-License-Identifier: Apache-2.0
// Remote allocation of blocks on one memory node, by one client thread. The memory node hands out segments (a CALL);
// the client cuts blocks from them on its own. The client that unlinks a block frees it with one FAA on its segment's
// bitmap, in the background; the owner finds it there and reuses it once no session of an older era can hold its
// address.
#pragma once

#include <cstdint>
#include <functional>
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

// What the index knows of the heap. A protocol implements it, so that the heap can tell live blocks of dead clients
// from garbage.
class References {
 public:
  virtual ~References() = default;
  // Says whether an entry points to the whole extent that lies at `units`, or may come to do so again. `extent` holds
  // its bytes, with its key. A true answer may come from rows that were read without a lock. A false one comes only
  // from the key's rows, read under their locks: then no unfinished operation of any client, living or dead, will still
  // publish the block, and no operation that unlinked it has yet to begin. An error leaves the block unchanged.
  virtual task::Task<base::Result<bool>> refers(std::uint64_t units, base::Bytes extent, base::Nanos deadline,
                                                fabric::Cost& cost) = 0;
  // Rewrites the pairs whose extents lie in these blocks of `block_bytes`, as a client does that replaces a value by
  // the same value: afterwards their entries point to other blocks, and these blocks have been freed. Skips blocks that
  // hold no pair of the index, and keys that other clients are changing. After an error more pairs may be left.
  virtual task::Task<base::Status> rewrite(std::vector<std::uint64_t> units, std::uint64_t block_bytes,
                                           base::Nanos deadline, fabric::Cost& cost) = 0;
};

class Heap {
 public:
  // The session outlives the heap.
  Heap(session::Session& session, std::uint64_t heap_bytes, std::uint64_t segment_bytes);
  ~Heap();

  // Returns a block of at least `bytes`. Usually this is local: classes are refilled in the background before they run
  // dry. Otherwise it scans free bitmaps, asks the node for a segment, or waits for an era. Once the heap has been
  // found full, it fails at once until there is room. The caller must hold no EraPin, or it would wait for itself.
  // Errors: out_of_memory (the heap is full), timed_out, and the session's.
  task::Task<base::Result<Block>> allocate(std::uint64_t bytes, Purpose purpose, base::Nanos deadline,
                                           fabric::Cost& cost);
  // Returns such a block if one is at hand. It never waits, so the caller may hold an EraPin.
  std::optional<Block> take(std::uint64_t bytes, Purpose purpose);
  // Returns what a block of `bytes` is for that replaces a block that was requested with `before` bytes; 0: it replaces
  // none.
  Purpose purpose_of(std::uint64_t bytes, std::uint64_t before) const;
  // The caller reports one of the two for every block that it got: `published` when an entry points to it, `discard`
  // when none ever will; a discarded block is reusable at once. Until then a look for lost blocks skips the block.
  void published(Block block);
  void discard(Block block);
  // Frees a published block that the caller has just unlinked, whichever client owns it. `bytes` is the size in its
  // index entry. Sends no message if this client owns the block; otherwise it posts one FAA in the session's
  // background, shared with other frees of the same turn whose bits lie in the same word. Ignores a place that cannot
  // be a block, since it came from an index entry.
  void free(std::uint64_t units, std::uint64_t bytes, fabric::Cost& cost);

  // Lets maintain() take over segments of dead clients, in the session's background, when there are some or the heap is
  // full. After each death the heap also looks through its own segments for blocks that the dead client unlinked and
  // did not mark. The references must outlive the session's background tasks.
  void set_references(References& references);

  // What the heap calls where a request for so many bytes finds no room, before it waits for some; with 0 bytes it only
  // asks. Starts to make room, as by eviction. Returns whether others make up for what is added: then additions count as
  // replacements. Null: nobody does. It must not call the heap.
  using MakeRoom = std::function<bool(std::uint64_t bytes)>;
  void set_make_room(MakeRoom make_room);

  // Does the housekeeping: settles limbo and returns spare segments. Every client calls it about once a tick, even one
  // that allocates nothing. When the memory node is short of segments, it also gives up partly free ones as orphans for
  // others to adopt; otherwise an idle client would keep what others freed in them. When the node clears a stretch of
  // segments for a run, it gives up everything that it has there.
  task::Task<void> maintain(base::Nanos deadline);

  // Empties sparsely used segments, its own and orphans, into others of their class, and returns them; allocate() does
  // the same in the background when it finds the heap full. Its work is bounded, and it needs References. `room`: first
  // takes one more segment of each class, so that even a small heap has segments to empty. `run`: also makes room for a
  // block of so many bytes if it can, and returns that block at once; 0: makes none.
  task::Task<void> compact(base::Nanos deadline, bool room = false, std::uint64_t run = 0);

  // Returns every segment: wholly free ones to the node, the rest as orphans for others to adopt. Part of a clean
  // goodbye: no operation may run then, and none may begin afterwards.
  task::Task<void> release(base::Nanos deadline);

  struct Usage {
    std::uint64_t segments = 0;
    std::uint64_t blocks_free = 0;   // reusable now
    std::uint64_t blocks_limbo = 0;  // free, but an older era may still read them
    std::uint64_t taken_over = 0;    // segments of the dead
    std::uint64_t emptied = 0;       // segments that were emptied into others, and returned
    std::uint64_t reclaimed = 0;     // blocks there, and in its own segments, that were free but not marked so
    std::uint64_t anomalies = 0;     // impossible frees: a block freed twice, a place that is no block; ignored
    fabric::Cost background;         // of refills that no operation waited for
  };
  Usage usage() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // background tasks of the session hold it too
};

}  // namespace farpool::heap
