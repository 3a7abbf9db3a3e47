// SPDX-License-Identifier: Apache-2.0
// A change of one key, or of some rows, that is under way. Only the files change*.cc include this.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "index/rcuckoo/change.h"
#include "index/rcuckoo/repair.h"

namespace farpool::rcuckoo {

// Adjacent rows, and the place of their bytes in the operation's buffer.
struct Stretch {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t at = 0;
};

struct LockWord {
  std::uint64_t offset = 0;
  std::uint64_t mask = 0;
  std::uint64_t old = 0;
};

// The key's rows and those of a path, each once: a path never holds a row twice, but may begin in either of the key's
// rows.
constexpr std::size_t kMaxRows = Path::kMaxSteps + 2;

class Change {
 public:
  Change(Table::State& state, std::string_view key, const Wish& wish, Nanos deadline, Cost& cost)
      : state_(state),
        key_(key),
        wish_(wish),
        deadline_(deadline),
        cost_(cost),
        hash_(state.hash(key)),
        sought_(base::bytes_of(key), hash_),
        places_(locate(hash_, state.geometry.rows)),
        known_move_(state.move.number),
        leaves_(state.leaves(key)),
        planner_(state, places_),
        suspicion_(state.session, state.repairer),
        backoff_(state.session),
        guesses_(wish.expects_absent) {}

  Task<Result<bool>> run();

 private:
  // The result of an attempt: the change is over, or another attempt may succeed.
  enum class Next : std::uint8_t {
    finished,
    after_repair,  // a client that may hold one of the locks has ended
    after_move,    // the key is on its way to another memory node
    with_block,    // of the heap, for what is put
    with_path,     // to an empty entry: the rows that were held have none
  };
  struct Found {
    bool present = false;
    std::uint64_t row = 0;
    std::uint64_t slot = 0;
    Entry entry;
    std::uint64_t bytes = 0;  // of key and value
    std::string_view value;   // empty where the operation does not want it
    fabric::Buffer extent;    // what `value` views, if not a row
  };

  using HeldSlot = std::optional<session::Slot>;
  // What an attempt holds until it ends, and other operations of this client may wait for: its turn at the locks, and
  // an era while it follows pointers.
  class Attempt {
   public:
    explicit Attempt(Change& change) : change_(change) {}
    Attempt(const Attempt&) = delete;
    ~Attempt() {
      pin_.reset();
      change_.leave_turn();
    }
    void pin() { pin_.emplace(change_.state_.session.pin()); }
    // Gives up the operation slot, too, before a wait that can end only if other operations get it.
    void give_up(HeldSlot& slot) {
      change_.leave_turn();
      slot.reset();
      pin_.reset();
    }

   private:
    Change& change_;
    std::optional<session::EraPin> pin_;
  };
  Task<Status> take_slot(HeldSlot& slot);
  Task<Result<bool>> attempts(HeldSlot& slot);
  // Locks the rows, and changes them if that is possible at once. The caller releases locks that are held afterwards.
  Task<Result<Next>> attempt(session::Slot& slot, Attempt& held);
  // Waits for what the next attempt needs. No locks are held.
  Task<Status> prepare(Next next, Attempt& held, HeldSlot& slot);

  // Locks.
  Task<Status> choose_rows();
  void plan_locks();
  // Plans READs of the rows that are wanted, or of all rows that their locks cover.
  void plan_reads(bool all);
  Task<Status> take_turn();
  void leave_turn() { state_.turns.give_back(std::span(turn_).first(std::exchange(turn_count_, 0))); }
  void say_in(session::Slot& slot) const;
  std::uint64_t reaches() const { return wish_.arrives || wish_.close.count > 0 ? known_move_ : 0; }
  // Returns true if all locks are held and the rows are read. Returns false if a client that may hold one of them has
  // ended; then nothing is held.
  Task<Result<bool>> lock(session::Slot& slot);
  Task<void> release();
  void add_reads(Chain& chain);
  void add_releases(Chain& chain, std::size_t words);
  bool released(std::size_t words) const;

  // Rows under locks.
  base::MutableBytes row(std::uint64_t number);
  RowView view(std::uint64_t number) { return {state_.geometry, row(number)}; }
  Status check_key_rows();
  std::uint64_t move_of_key_rows() { return std::max(view(places_.first).move(), view(places_.second).move()); }
  bool points_to(std::uint64_t block);
  Task<Status> find();
  Task<Status> read_extent_of(Found& candidate);

  // What to write.
  Edit::Kind decide();
  Edit::Kind decide_to_leave();
  // Says whether the entry's pair stays the same.
  bool only_marks() const { return wish_.leave == Wish::Leave::begin || wish_.leave == Wish::Leave::give_up; }
  bool compose();
  heap::Purpose purpose_of(std::uint64_t bytes) const;
  Task<Status> fetch_block();
  Task<Result<bool>> place();
  bool place_in_key_rows();
  bool place_in_held_rows();
  Task<Status> read_all_held_rows();
  Task<Result<Next>> commit(session::Slot& slot, Edit::Kind kind);
  Task<Result<Next>> close(session::Slot& slot);
  Task<Status> carry_out(Chain& chain);

  Status timed_out() const;
  Status full() const;
  std::string_view name() const;

  Table::State& state_;
  const std::string_view key_;
  const Wish wish_;
  const Nanos deadline_;
  Cost& cost_;
  const std::uint64_t hash_;
  const Sought sought_;
  const Places places_;
  const std::uint64_t known_move_;  // of the map by which the key is looked for here
  const bool leaves_;               // the key's part, in that move
  Planner planner_;
  session::Suspicion suspicion_;
  Backoff backoff_;
  bool guesses_;         // asks the cache whether the key's rows have room, and sweeps if they have none
  bool sweeps_ = false;  // locks a path and reads all rows of every lock, instead of the key's two rows
  bool full_ = false;    // there is no path: an error, unless another client has put the key there, or made room
  unsigned failed_searches_ = 0;

  // This attempt: rows wanted, their locks, and the bytes read under them.
  Path path_;
  std::array<std::uint64_t, kMaxRows> rows_{};
  std::size_t row_count_ = 0;
  std::array<LockWord, kMaxRows> words_{};
  std::size_t word_count_ = 0;
  std::size_t taken_ = 0;
  std::array<layout::HeldLocks, layout::OperationSlot::kLockWords> turn_{};
  std::size_t turn_count_ = 0;
  std::array<Stretch, kMaxRows> stretches_{};
  std::size_t stretch_count_ = 0;
  fabric::Buffer buffer_;

  Found found_;
  std::string decided_;          // an editor's value
  std::string_view value_;       // of the put
  Entry entry_;                  // what is put
  bool composed_ = false;        // entry_ and the extent are of value_
  heap::Block block_;            // units 0 and bytes 0: none
  std::uint64_t block_for_ = 0;  // bytes that block_ was asked for
  fabric::Buffer extent_;
  std::uint64_t extent_size_ = 0;
  bool extent_used_ = false;  // entry_ points to block_
  bool extent_sent_ = false;
};

}  // namespace farpool::rcuckoo
