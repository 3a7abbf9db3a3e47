// SPDX-License-Identifier: Apache-2.0
// The owner of a table: it holds the table's lease, and is the only client that changes the vault. It carries out the
// planner's plans over its session's lane, and has the index in its memory.
//
// When it takes the lease, the memory node has fenced the owner before it, so that no WRITE of that one lands any more.
// Then it reads the whole vault, builds the index, WRITEs the repairs that rebuild.h asks for, and serves. An owner that
// loses its session is no owner any more: the next one takes over what the vault has.
//
// An owner may be fenced at any moment without knowing. So it answers nothing by its index alone: each answer follows a
// verb that its lane has executed since the operation began.
//
// Belongs to the thread of its session's port.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "fabric/cost.h"
#include "heap/heap.h"
#include "index/cuckooduo/finger_index.h"
#include "index/cuckooduo/planner.h"
#include "index/cuckooduo/site.h"
#include "index/cuckooduo/slot.h"
#include "index/edit.h"
#include "index/tally.h"
#include "layout/kv_call.h"
#include "session/session.h"
#include "session/tenure.h"
#include "session/wait.h"
#include "task/task.h"

namespace farpool::cuckooduo {

// What an operation wants to do with a key.
struct Wish {
  std::string_view name;  // for people: "a put"
  index::Edit::Kind if_present = index::Edit::Kind::keep;
  index::Edit::Kind if_absent = index::Edit::Kind::keep;  // keep or put
  std::string_view value = {};                            // of a put, known beforehand
  index::Editor* editor = nullptr;                        // decides instead of all of these
  // If not 0, the pair of a key that is there must have this version; otherwise nothing is done.
  std::uint64_t if_version = 0;
  // Names the request of another client that this is (record.h); ticket 0: there is none.
  std::uint64_t ticket = 0;
  std::uint32_t record = 0;
  // Gets the block of the heap that the key's slot points to, if there is a key and its slot has a pointer.
  std::optional<std::uint64_t>* block = nullptr;
};

// Returns what an insert, an update, a put or a remove wants. The value outlives it.
Wish wish_of(layout::KvOp op, std::string_view value);

class Owner final : private heap::References {
 public:
  // Session and heap outlive it; it outlives the session's background tasks. Others do not use the heap.
  Owner(session::Session& session, heap::Heap& heap, const Site& site);
  // It is not the owner now.
  ~Owner() override;

  // Becomes the owner, as soon as there is no other: waits for the lease, until `lease_by` at most, and rebuilds the
  // index. It may be called again after an error, and after give_back(). Errors:
  //   invalid_argument  the site is impossible here
  //   timed_out         another owner lives, or the vault was not read in time
  //   corrupt           the vault has what no owner leaves; it stays unchanged, or partly repaired
  //   and the session's.
  task::Task<base::Status> take(base::Nanos deadline, base::Nanos lease_by = base::kNever);
  // Stops being the owner: waits for operations under way, and gives the lease back. Operations that come now fail. If
  // operations have not ended at the deadline, it ends the session, and the memory node fences it.
  task::Task<void> give_back(base::Nanos deadline);
  // Says whether it serves operations, as far as it knows.
  bool owns() const { return standing_ == Standing::owner && session_.alive(); }

  // These have the errors of index::Table, and unavailable where this is not the owner: nothing was done.
  // Returns the value of the key. It may use the memory of `room`.
  task::Task<base::Result<std::optional<std::string>>> lookup(std::string_view key, base::Nanos deadline,
                                                              fabric::Cost& cost, std::string room = {});
  // Changes the key. Returns whether it existed. stale: its pair has not the version that was wished for.
  task::Task<base::Result<bool>> change(std::string_view key, const Wish& wish, base::Nanos deadline,
                                        fabric::Cost& cost);
  // Says what the owner before has made of the request of a record: whether the key existed, if it was carried out.
  // Nothing: it was not.
  std::optional<bool> outcome(std::uint32_t record, std::uint64_t ticket) const;

  const Site& site() const { return site_; }
  // Makes it count the keys that its changes add and remove. The tally outlives it.
  void count_with(index::Tally& tally) { tally_ = &tally; }
  // Says whether no operation is under way, the heap's included: then the vault has what the index says.
  bool idle() const { return under_way_ == 0; }
  // Returns the index; only of an owner.
  const FingerIndex& index() const { return *index_; }

  struct Counts {
    std::uint64_t rebuilt = 0;    // slots of the vault that take() read
    std::uint64_t repaired = 0;   // of these, cleared or moved
    std::uint64_t moved = 0;      // pairs, to make room
    std::uint64_t waits = 0;      // of operations, for others under way
    std::uint64_t looked = 0;     // lookups that took locks, because changes were under way
    std::uint64_t settled = 0;    // requests that the owner before had begun, judged by their records
    std::uint64_t confirmed = 0;  // answers for which a word was read, only to know that the lane is open
  };
  const Counts& counts() const { return counts_; }

 private:
  enum class Standing : std::uint8_t { none, taking, owner, closing };
  struct Bench;
  class Work;
  class UnderWay;
  class Look;

  // take()
  task::Task<base::Status> open(base::Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> read_vault(base::MutableBytes into, base::Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> settle_records(base::Bytes vault, base::Nanos deadline, fabric::Cost& cost);
  struct Keys;
  task::Task<base::Status> read_keys(base::Bytes vault, Keys& keys, base::Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> repair(base::Bytes vault, std::vector<Effect> effects, base::Nanos deadline,
                                  fabric::Cost& cost);
  task::Task<base::Status> name_owner(std::uint64_t incarnation, base::Nanos deadline, fabric::Cost& cost);

  // lookup()
  enum class Seen : std::uint8_t { hit, absent, unsure };
  task::Task<base::Result<Seen>> look(std::string_view key, std::uint64_t hash, std::string& value,
                                      base::Nanos deadline, fabric::Cost& cost);
  task::Task<base::Result<Seen>> judge(std::string_view key, const Slot& slot, std::string& value, base::Nanos deadline,
                                       fabric::Cost& cost);
  task::Task<base::Status> confirm(base::Nanos deadline, fabric::Cost& cost);

  task::Task<base::Result<bool>> refers(std::uint64_t units, base::Bytes extent, base::Nanos deadline,
                                        fabric::Cost& cost) override;
  task::Task<base::Status> rewrite(std::vector<std::uint64_t> units, std::uint64_t block_bytes, base::Nanos deadline,
                                   fabric::Cost& cost) override;

  // Says whether operations that have begun may go on.
  bool serves() const { return (standing_ == Standing::owner || standing_ == Standing::closing) && session_.alive(); }
  task::Task<base::Result<bool>> work(std::string_view key, const Wish& wish, base::Nanos deadline, fabric::Cost& cost);
  base::Status not_owner() const;
  void forget();
  base::Nanos now() const { return session_.port().now(); }
  std::unique_ptr<Bench> take_bench();

  session::Session& session_;
  heap::Heap& heap_;
  const Site site_;
  Standing standing_ = Standing::none;
  std::optional<session::Tenure> tenure_;
  std::optional<FingerIndex> index_;
  std::optional<Planner> planner_;
  std::vector<std::optional<Record>> records_;   // as the owner before has left them
  std::vector<std::unique_ptr<Bench>> benches_;  // at rest
  index::Tally* tally_ = nullptr;
  std::uint64_t under_way_ = 0;  // operations
  std::uint64_t written_ = 0;    // chains of WRITEs, as counted before they were posted
  session::WaitQueue ended_;     // for operations to end
  Counts counts_;
};

}  // namespace farpool::cuckooduo
