// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/change.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "index/rcuckoo/repair.h"
#include "layout/extent.h"

namespace farpool::rcuckoo {
namespace {

// Failed attempts at one lock word after which the words before it are given back.
constexpr unsigned kHoldPatience = 8;
// Failed attempts after which the rows are no longer read with the lock: a client that waits for long, for example
// behind a dead one, would fill the link with them. It reads them once it has the lock, in one more trip.
constexpr unsigned kReadPatience = 4;
// Failed searches among held rows after which the client stops guessing and fetches what its search looks at.
constexpr unsigned kGuesses = 3;

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

std::string_view Change::name() const {
  switch (wish_.kind) {
    case Operation::insert:
      return "an insert";
    case Operation::update:
      return "an update";
    case Operation::remove:
      return "a remove";
    case Operation::put:
      return "a put";
    case Operation::close:
      return "a move";
    default:
      return "a modify";
  }
}

Status Change::timed_out() const {
  return {Code::timed_out,
          "the deadline passed before the locks for " + std::string(name()) + " were free; nothing was changed"};
}

Status Change::full() const {
  return {Code::out_of_memory, "table " + std::to_string(state_.table_id) + " is full: no key within " +
                                   std::to_string(kDepth) + " moves of " + state_.name_row(places_.first) +
                                   " can make room; remove keys or lend more memory"};
}

Task<Result<bool>> Change::run() {
  if (Status status = check_sizes(key_, wish_.value.size()); !status.ok()) co_return status;
  const bool known =
      wish_.editor == nullptr && (wish_.if_present == Edit::Kind::put || wish_.if_absent == Edit::Kind::put);
  if (known) value_ = wish_.value;
  // If the key may have left, room is requested only when it is found: a full memory node must not keep it from its
  // next one.
  if (known && !leaves_) {
    Status status;
    if (!compose()) status = co_await fetch_block();
    if (status.ok()) (void)compose();
    // A full heap may still have room to replace what the key has.
    if (!status.ok() && status.code() != Code::out_of_memory) co_return status;
  }
  HeldSlot slot;
  Result<bool> existed = false;
  if (Status status = co_await take_slot(slot); !status.ok()) {
    existed = status;
  } else {
    existed = co_await attempts(slot);
  }
  // A block that no entry points to was never published, unless the outcome is unknown.
  if (block_.bytes != 0 && existed.code() != Code::unknown_outcome) state_.heap.discard(block_);
  if (slot) slot->clear(cost_);
  co_return existed;
}

Task<Status> Change::take_slot(HeldSlot& slot) {
  Result<session::Slot> taken = co_await state_.session.take_slot(deadline_);
  if (taken.ok()) slot.emplace(std::move(*taken));
  co_return taken.status();
}

Task<Result<bool>> Change::attempts(HeldSlot& slot) {
  for (;;) {
    if (state_.now() >= deadline_) co_return timed_out();
    Attempt held(*this);
    const Result<Next> next = co_await attempt(*slot, held);
    if (taken_ > 0) co_await release();  // after any result: others wait for the locks
    if (!next.ok()) co_return next.status();
    if (*next == Next::finished) co_return found_.present;
    if (Status status = co_await prepare(*next, held, slot); !status.ok()) co_return status;
  }
}

Task<Result<Change::Next>> Change::attempt(session::Slot& slot, Attempt& held) {
  // Locate.
  if (Status status = co_await choose_rows(); !status.ok()) co_return status;
  plan_locks();
  plan_reads(sweeps_);
  if (Status status = co_await take_turn(); !status.ok()) co_return status;
  // Ask.
  const Result<bool> locked = co_await lock(slot);
  if (!locked.ok()) co_return locked.status();
  if (!*locked) co_return Next::after_repair;
  held.pin();
  // Judge.
  if (Status status = check_key_rows(); !status.ok()) co_return status;
  if (wish_.close.count > 0) co_return co_await close(slot);
  if (wish_.block) {
    found_.present = points_to(*wish_.block);
    co_return Next::finished;
  }
  const std::uint64_t reached = move_of_key_rows();
  if (reached > known_move_) co_return index::map_is_old(known_move_);
  if (Status status = co_await find(); !status.ok()) co_return status;
  // A leaving key cannot come to a row that the move has reached: if it is not here now, it will not be.
  if (!found_.present && leaves_ && reached == known_move_) co_return index::moved_away();
  const Edit::Kind kind = decide();
  // Nothing is written, and the answer is true while the locks are held, whatever the release does.
  if (kind == Edit::Kind::keep) co_return Next::finished;
  if (found_.entry.leaving() && wish_.leave == Wish::Leave::none) {
    ++state_.marks.move_waits;
    co_return Next::after_move;
  }
  if (kind == Edit::Kind::put) {
    if (Status status = check_sizes(key_, value_.size()); !status.ok()) co_return status;
    if (!composed_ && !compose()) co_return Next::with_block;
    if (!found_.present) {
      const Result<bool> placed = co_await place();
      if (!placed.ok()) co_return placed.status();
      if (!*placed && full_) co_return full();
      if (!*placed) co_return Next::with_path;
    }
  }
  // Settle.
  co_return co_await commit(slot, kind);
}

Task<Status> Change::prepare(Next next, Attempt& held, HeldSlot& slot) {
  slot->clear(cost_);  // a claim that stands still would be suspected
  switch (next) {
    case Next::finished:
      break;
    case Next::after_repair:
      leave_turn();
      co_return co_await suspicion_.repair(deadline_, cost_);
    case Next::after_move:
      held.give_up(slot);  // the mover may be of this client, and want the same locks, and a slot
      co_await backoff_.wait(deadline_);
      co_return co_await take_slot(slot);
    case Next::with_block:
      held.give_up(slot);  // the heap needs one to find out what the dead have left, and waits for eras
      if (Status status = co_await fetch_block(); !status.ok()) co_return status;
      co_return co_await take_slot(slot);  // an editor decides anew; the block is kept for it
    case Next::with_path:
      if (!std::exchange(sweeps_, true)) {
        ++state_.marks.escalations;
      } else {
        ++failed_searches_;
        ++state_.marks.failed_searches;
        co_await backoff_.wait(deadline_);
      }
  }
  co_return Status();
}

// --- Locks

Task<Status> Change::choose_rows() {
  row_count_ = 0;
  rows_[row_count_++] = places_.first;
  if (places_.second != places_.first) rows_[row_count_++] = places_.second;
  full_ = false;
  if (wish_.close.count > 0) {
    for (row_count_ = 0; row_count_ < wish_.close.count; ++row_count_)
      rows_[row_count_] = wish_.close.first + row_count_;
    co_return Status();
  }
  const bool asks = std::exchange(guesses_, false);
  if (!sweeps_ && !asks) co_return Status();
  const bool guessed = failed_searches_ < kGuesses && planner_.speculate(path_);
  // A row of which nothing is known is presumed to have room: more often than not it has.
  if (asks) sweeps_ = !guessed || path_.length > 1;
  if (!sweeps_) co_return Status();
  if (!guessed) {
    Result<bool> found = co_await planner_.explore(path_, deadline_, cost_);
    if (!found.ok()) co_return found.status();
    full_ = !*found;
    if (full_) co_return Status();
  }
  for (const Displacement& step : path_.steps()) {
    if (step.row != places_.first && step.row != places_.second) rows_[row_count_++] = step.row;
  }
  co_return Status();
}

void Change::plan_locks() {
  const Geometry& g = state_.geometry;
  // Takes lock words in increasing order; locks that share a physical bit take it once.
  word_count_ = 0;
  for (std::size_t i = 0; i < row_count_; ++i) {
    const LockBit bit = lock_bit(g, lock_of(g, rows_[i]));
    const auto end = words_.begin() + static_cast<std::ptrdiff_t>(word_count_);
    const auto at =
        std::find_if(words_.begin(), end, [&bit](const LockWord& word) { return word.offset == bit.offset; });
    if (at == end) {
      words_[word_count_++] = {bit.offset, bit.mask, 0};
    } else {
      at->mask |= bit.mask;
    }
  }
  std::sort(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(word_count_),
            [](const LockWord& a, const LockWord& b) { return a.offset < b.offset; });
  FARPOOL_CHECK(word_count_ <= layout::OperationSlot::kLockWords);
  if (word_count_ > 1) ++state_.marks.multi_word_locks;
}

// Neighbours share a READ.
void Change::plan_reads(bool all) {
  const Geometry& g = state_.geometry;
  std::array<std::uint64_t, kMaxRows> sorted = rows_;
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(row_count_));
  stretch_count_ = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < row_count_; ++i) {
    const std::uint64_t first = all ? lock_of(g, sorted[i]) * g.rows_per_lock : sorted[i];
    const std::uint64_t end = all ? std::min(first + g.rows_per_lock, g.rows) : first + 1;
    if (stretch_count_ > 0) {
      Stretch& last = stretches_[stretch_count_ - 1];
      if (first < last.first + last.count) continue;  // the same lock
      if (first == last.first + last.count) {
        last.count += end - first;
        bytes += (end - first) * g.row_bytes();
        continue;
      }
    }
    stretches_[stretch_count_++] = {first, end - first, bytes};
    bytes += (end - first) * g.row_bytes();
  }
  if (buffer_.size() < bytes) buffer_ = state_.port().buffer(bytes);
}

Task<Status> Change::take_turn() {
  for (std::size_t i = 0; i < word_count_; ++i) turn_[i] = {words_[i].offset, words_[i].mask};
  const Turns::Bits bits = std::span(turn_).first(word_count_);
  while (!state_.turns.take(bits)) {
    if (co_await state_.turns.queue().wait(deadline_)) continue;
    co_return timed_out();
  }
  turn_count_ = word_count_;
  co_return Status();
}

void Change::say_in(session::Slot& slot) const {
  layout::OperationSlot& said = slot.words();
  said.state = SlotState::Kind::put(static_cast<std::uint64_t>(wish_.kind)) | SlotState::Table::put(state_.table_id) |
               SlotState::Move::put(reaches());
  said.lock_word = {};
  for (std::size_t i = 0; i < word_count_; ++i) said.lock_word[i] = {words_[i].offset, words_[i].mask};
}

// Takes one lock word a trip by masked CAS, in increasing order; the READs go with the last. An atomic executes before
// a READ that follows it, so the rows are read under the locks. The claim is written before the first lock, and again
// after each failed attempt: a slot that changes is not a dead client's. A lock of a barred word is never taken.
Task<Result<bool>> Change::lock(session::Slot& slot) {
  say_in(slot);
  taken_ = 0;
  unsigned failed_here = 0;
  Chain chain;
  for (;;) {
    LockWord& word = words_[taken_];
    chain.clear();
    if (extent_used_ && !extent_sent_) chain.add(Op::write(state_.block_at(block_.units), extent_.first(extent_size_)));
    if (taken_ == 0 || failed_here > 0) chain.add(slot.claim(taken_, cost_));
    chain.add(
        Op::masked_cas({layout::kLocks, word.offset}, word.old, 0, word.mask | layout::kBarrier, word.mask, word.mask));
    const bool last = taken_ + 1 == word_count_;
    const bool reads = last && failed_here < kReadPatience;
    if (reads) add_reads(chain);
    const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
    if (outcome.fate != Fate::done) {
      co_return state_.gone(Code::unavailable, "the session ended before " + std::string(name()) + " changed anything");
    }
    extent_sent_ = extent_used_;

    const std::uint64_t conflict = word.old & (word.mask | layout::kBarrier);
    if (conflict == 0) {
      suspicion_.came_free(word.offset);
      failed_here = 0;
      ++taken_;
      if (!last) continue;
      if (reads) co_return true;
      chain.clear();
      add_reads(chain);
      const Outcome read = co_await state_.session.post(chain.ops(), deadline_, cost_);
      if (read.fate == Fate::done) co_return true;
      co_return state_.gone(Code::unavailable, "the session ended before " + std::string(name()) + " changed anything");
    }
    ++failed_here;
    ++state_.marks.lock_conflicts;
    suspicion_.blocked(word.offset, conflict);
    const Result<bool> dead = co_await suspicion_.judge(deadline_, cost_);
    Status status = dead.status();
    if (status.ok() && !*dead && state_.now() >= deadline_) status = timed_out();
    if (!status.ok() || *dead) {
      co_await release();
      if (!status.ok()) co_return status;
      co_return false;
    }
    if (taken_ > 0 && failed_here >= kHoldPatience) {
      ++state_.marks.lock_restarts;
      co_await release();
      if (!state_.session.alive()) {
        co_return state_.gone(Code::unavailable,
                              "the session ended before " + std::string(name()) + " changed anything");
      }
      failed_here = 1;
    }
    co_await backoff_.wait(deadline_);
  }
}

void Change::add_reads(Chain& chain) {
  for (std::size_t i = 0; i < stretch_count_; ++i) {
    const Stretch& stretch = stretches_[i];
    chain.add(Op::read(state_.row_at(stretch.first),
                       buffer_.span().subspan(stretch.at, stretch.count * state_.geometry.row_bytes())));
  }
}

void Change::add_releases(Chain& chain, std::size_t words) {
  for (std::size_t i = 0; i < words; ++i) {
    LockWord& word = words_[i];
    chain.add(Op::masked_cas({layout::kLocks, word.offset}, word.old, word.mask, word.mask, 0, word.mask));
  }
}

bool Change::released(std::size_t words) const {
  return std::all_of(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(words),
                     [](const LockWord& word) { return (word.old & word.mask) == word.mask; });
}

Task<void> Change::release() {
  const std::size_t words = std::exchange(taken_, 0);
  if (words == 0 || !state_.session.alive()) co_return;
  Chain chain;
  add_releases(chain, words);
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate == Fate::done && !released(words)) {
    state_.session.end(
        {Code::corrupt, "locks of table " + std::to_string(state_.table_id) + " that were held had been taken away"});
  }
}

// --- Rows under locks

base::MutableBytes Change::row(std::uint64_t number) {
  for (std::size_t i = 0; i < stretch_count_; ++i) {
    const Stretch& stretch = stretches_[i];
    if (number < stretch.first || number >= stretch.first + stretch.count) continue;
    const std::uint64_t bytes = state_.geometry.row_bytes();
    return buffer_.span().subspan(stretch.at + (number - stretch.first) * bytes, bytes);
  }
  return {};
}

// Checks the key's rows. A row under its lock is whole: a WRITE and the release that follows it land in that order.
Status Change::check_key_rows() {
  for (std::size_t i = 0; i < stretch_count_; ++i) {
    for (std::uint64_t n = 0; n < stretches_[i].count; ++n) {
      const std::uint64_t number = stretches_[i].first + n;
      const bool ours = number == places_.first || number == places_.second || wish_.close.count > 0;
      if (view(number).whole(number)) {
        state_.cache.learn(number, row(number));
        if (!ours) continue;
        if (const auto slot = state_.impossible(view(number))) {
          return {Code::corrupt, "entry " + std::to_string(*slot) + " of " + state_.name_row(number) + " cannot be"};
        }
      } else if (ours) {
        return {Code::corrupt,
                state_.name_row(number) +
                    " is not whole although its lock was free: its last writer died, or the memory is damaged"};
      }
    }
  }
  return {};
}

bool Change::points_to(std::uint64_t block) {
  for (const std::uint64_t number : {places_.first, places_.second}) {
    for (std::uint64_t slot = 0; slot < state_.geometry.entries_per_row; ++slot) {
      const Entry entry = view(number).entry(slot);
      if (entry.type() == EntryType::extent && entry.block() == block) return true;
    }
  }
  return false;
}

Task<Status> Change::find() {
  found_ = Found{};
  for (const std::uint64_t number : {places_.first, places_.second}) {
    const RowView held = view(number);
    for (std::uint64_t slot = 0; slot < state_.geometry.entries_per_row; ++slot) {
      if (!held.may_be(slot, sought_)) continue;
      const Entry entry = held.entry(slot);
      Found candidate{.row = number, .slot = slot, .entry = entry};
      if (entry.type() == EntryType::in_place) {
        if (base::text_of(entry.key()) != key_) continue;
        candidate.present = true;
        candidate.bytes = entry.key().size() + entry.value().size();
      } else {
        if (Status status = co_await read_extent_of(candidate); !status.ok()) co_return status;
        if (!candidate.present) continue;  // another key of the same hash
      }
      found_ = std::move(candidate);
      // Views found_ itself, or the buffer that it owns.
      if (found_.entry.type() == EntryType::in_place) found_.value = base::text_of(found_.entry.value());
      co_return Status();
    }
  }
  co_return Status();
}

// Reads the candidate's extent. Under its lock it is live, so an extent that does not fit is damage. The value is read
// only if it is wanted; then the checksum is checked, too.
Task<Status> Change::read_extent_of(Found& candidate) {
  const Entry& entry = candidate.entry;
  const bool all = wish_.leave == Wish::Leave::begin || (wish_.editor != nullptr && wish_.editor->wants_value());
  const std::uint64_t bytes =
      all ? entry.bytes() : std::min(entry.bytes(), base::round_up(layout::kExtentHeader + key_.size(), 8));
  candidate.extent = state_.port().buffer(bytes);
  Chain chain;
  chain.add(Op::read(state_.block_at(entry.block()), candidate.extent.first(bytes)));
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate != Fate::done) {
    co_return state_.gone(Code::unavailable, "the session ended before " + std::string(name()) + " changed anything");
  }
  const base::Bytes read = candidate.extent.first(bytes);
  const auto lengths = base::load<std::uint64_t>(read.data());
  const std::uint64_t key_bytes = layout::ExtentLengths::key(lengths),
                      value_bytes = layout::ExtentLengths::value(lengths);
  const auto whole = all ? layout::read_extent(read, entry.block()) : std::nullopt;
  if (base::round_up(layout::extent_bytes(key_bytes, value_bytes), layout::kBlockUnit) != entry.bytes() ||
      (all && !whole)) {
    co_return Status(Code::corrupt, "the extent of entry " + std::to_string(candidate.slot) + " of " +
                                        state_.name_row(candidate.row) + " is damaged");
  }
  if (key_bytes != key_.size() || base::text_of(read.subspan(layout::kExtentHeader, key_bytes)) != key_)
    co_return Status();
  candidate.present = true;
  candidate.bytes = key_bytes + value_bytes;
  if (all) candidate.value = base::text_of(whole->value);
  co_return Status();
}

// --- What to write

Edit::Kind Change::decide() {
  if (wish_.leave != Wish::Leave::none) return found_.present ? decide_to_leave() : Edit::Kind::keep;
  if (wish_.editor == nullptr) return found_.present ? wish_.if_present : wish_.if_absent;
  const std::optional<std::string_view> value =
      !found_.present ? std::nullopt : std::optional(wish_.editor->wants_value() ? found_.value : std::string_view());
  Edit edit = wish_.editor->edit(value);
  if (edit.kind == Edit::Kind::erase && !found_.present) return Edit::Kind::keep;
  if (edit.kind == Edit::Kind::put) {
    decided_ = std::move(edit.value);
    value_ = decided_;
    composed_ = false;
  }
  return edit.kind;
}

Edit::Kind Change::decide_to_leave() {
  if (wish_.leave == Wish::Leave::end) return Edit::Kind::erase;
  const bool begins = wish_.leave == Wish::Leave::begin;
  if (begins) *wish_.leaving_value = found_.value;
  if (found_.entry.leaving() == begins) return Edit::Kind::keep;
  entry_ = found_.entry.as_leaving(begins);
  composed_ = true;
  return Edit::Kind::put;
}

// Makes the entry for value_, and the extent in a block if it does not fit the entry. Returns false if no block is at
// hand.
bool Change::compose() {
  const base::Bytes key = base::bytes_of(key_), value = base::bytes_of(value_);
  extent_used_ = false;
  if (Entry::fits(state_.geometry.entry_bytes, key.size(), value.size())) {
    entry_ = Entry::in_place(key, value);
    return composed_ = true;
  }
  const std::uint64_t bytes = layout::extent_bytes(key.size(), value.size());
  // The client that frees the block knows its class only from the entry's size, so a block that was allocated for
  // another class will not do.
  const auto same_block = [this](std::uint64_t a, std::uint64_t b) {
    const std::uint64_t segment = state_.geometry.segment_bytes;
    const std::uint64_t size_class = layout::size_class_for(a, segment);
    return size_class == layout::size_class_for(b, segment) &&
           (size_class != layout::kRun || layout::run_segments(a, segment) == layout::run_segments(b, segment));
  };
  if (block_.bytes != 0 && !same_block(block_for_, bytes)) state_.heap.discard(std::exchange(block_, {}));
  if (block_.bytes == 0) {
    const std::optional<heap::Block> block = state_.heap.take(bytes, purpose_of(bytes));
    if (!block) return false;
    block_ = *block;
    block_for_ = bytes;
  }
  if (extent_.size() < bytes) extent_ = state_.port().buffer(bytes);
  extent_size_ = bytes;
  layout::write_extent(extent_.first(bytes), block_.units, key, value);
  entry_ = Entry::extent(block_.units, bytes, hash_);
  extent_used_ = true;
  extent_sent_ = false;
  return composed_ = true;
}

heap::Purpose Change::purpose_of(std::uint64_t bytes) const {
  const bool replaces = found_.present && found_.entry.type() == EntryType::extent;
  return state_.heap.purpose_of(bytes, replaces ? found_.entry.bytes() : 0);
}

// Allocates a block for value_ if none was at hand. The caller holds neither locks nor an era.
Task<Status> Change::fetch_block() {
  const std::uint64_t bytes = layout::extent_bytes(key_.size(), value_.size());
  Result<heap::Block> block = co_await state_.heap.allocate(bytes, purpose_of(bytes), deadline_, cost_);
  if (!block.ok()) co_return block.status();
  block_ = *block;
  block_for_ = bytes;
  co_return Status();
}

// Finds the place of the new entry: the head of path_. Returns false if the held rows have no room.
Task<Result<bool>> Change::place() {
  if (!sweeps_) {
    if (place_in_key_rows()) co_return true;
    if (state_.geometry.rows_per_lock == 1) co_return false;  // all held rows have been read
    if (Status status = co_await read_all_held_rows(); !status.ok()) co_return status;
  }
  co_return place_in_held_rows();
}

bool Change::place_in_key_rows() {
  for (const std::uint64_t number : {places_.first, places_.second}) {
    const int slot = view(number).empty_slot();
    if (slot < 0) continue;
    path_.length = 1;
    path_.step[0] = {number, static_cast<std::uint32_t>(slot)};
    return true;
  }
  return false;
}

bool Change::place_in_held_rows() {
  struct Held {
    Change& change;
    base::Bytes operator()(std::uint64_t number) const {
      const base::Bytes bytes = change.row(number);
      return !bytes.empty() && RowView(change.state_.geometry, bytes).whole(number) ? bytes : base::Bytes();
    }
  };
  const Held held{*this};
  return planner_.search_held(held, path_);
}

// The key's rows are full: reads what else their locks cover, which is near and may take an entry of theirs. That is one
// trip under the locks, where another attempt is two.
Task<Status> Change::read_all_held_rows() {
  plan_reads(true);
  Chain chain;
  add_reads(chain);
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate != Fate::done) {
    co_return state_.gone(Code::unavailable, "the session ended before " + std::string(name()) + " changed anything");
  }
  co_return check_key_rows();
}

// Posts one chain: the extent if it has not been sent, the slot, the rows from the end of the path on, and the release.
// The WRITEs land in that order and before the atomics, so a moved entry is always in one of its rows, and no reader
// under a lock sees a row half done.
Task<Result<Change::Next>> Change::commit(session::Slot& slot, Edit::Kind kind) {
  const Geometry& g = state_.geometry;
  const Entry entry = kind == Edit::Kind::put ? entry_ : Entry();
  if (found_.present) {
    path_.length = 1;
    path_.step[0] = {found_.row, static_cast<std::uint32_t>(found_.slot)};
  }
  Chain chain;
  const bool publishes = kind == Edit::Kind::put && extent_used_;
  if (publishes && !extent_sent_) chain.add(Op::write(state_.block_at(block_.units), extent_.first(extent_size_)));
  // Any part of these WRITEs may be the last that lands; the slot says beforehand what they do.
  layout::OperationSlot& said = slot.words();
  said.row = {};
  for (std::size_t i = 0; i < path_.length; ++i) {
    const Displacement& step = path_.step[path_.length - 1 - i];
    said.row[i] = SlotRow::of(step.row, step.slot);
  }
  const Displacement& head = path_.step[0];
  said.replaced = found_.present ? found_.entry.words()[0] : view(head.row).entry(head.slot).words()[0];
  said.rest = rest_of(g, row(head.row), head.slot);
  said.redo = entry.words();
  said.keys_after = said.keys;
  said.bytes_after = said.bytes;
  if (kind == Edit::Kind::put && !only_marks()) {
    said.bytes_after += key_.size() + value_.size();
    if (!found_.present) ++said.keys_after;
  }
  if (found_.present && !only_marks()) {
    said.bytes_after -= found_.bytes;
    if (kind == Edit::Kind::erase) --said.keys_after;
  }
  // Where the key was there are marks already. The fence on the plan holds back the rows, too.
  const bool comes = !found_.present;
  const std::uint64_t forgets = state_.row_marks.forgets();
  bool marks = false;
  for (std::size_t i = 0; comes && i < path_.length; ++i) {
    marks = state_.row_marks.add_to(chain, path_.step[i].row) || marks;
  }
  chain.add(marks ? slot.plan().fenced() : slot.plan());
  for (std::size_t i = path_.length; i-- > 0;) {
    const Displacement& step = path_.step[i];
    const Entry moved = i == 0 ? entry : view(path_.step[i - 1].row).entry(path_.step[i - 1].slot);
    edit_row(g, row(step.row), step.row, step.slot, moved, i == 0 ? reaches() : 0);
    chain.add(Op::write(state_.row_at(step.row), row(step.row)));
  }
  chain.add(slot.settle());
  if (Status status = co_await carry_out(chain); !status.ok()) co_return status;
  for (std::size_t i = 0; comes && i < path_.length; ++i) state_.row_marks.landed(path_.step[i].row, forgets);
  for (std::size_t i = 0; i < path_.length; ++i) state_.cache.learn(path_.step[i].row, row(path_.step[i].row));
  state_.marks.displaced += path_.length - 1;

  if (found_.present && found_.entry.type() == EntryType::extent && !only_marks()) {
    state_.heap.free(found_.entry.block(), found_.entry.bytes(), cost_);
  }
  if (publishes) state_.heap.published(std::exchange(block_, {}));
  co_return Next::finished;
}

// Does the same as commit(), but changes in each row only the last move that has reached it.
Task<Result<Change::Next>> Change::close(session::Slot& slot) {
  layout::OperationSlot& said = slot.words();
  said.row = {};
  said.redo = {};
  said.replaced = said.rest = 0;
  said.keys_after = said.keys;
  said.bytes_after = said.bytes;
  for (std::size_t i = 0; i < row_count_; ++i) {
    said.row[i] = SlotRow::of(rows_[i], 0);
    said.redo[i] = entries_of(row(rows_[i]));
  }
  Chain chain;
  chain.add(slot.plan());
  for (std::size_t i = 0; i < row_count_; ++i) {
    seal_row(row(rows_[i]), rows_[i], reaches());
    chain.add(Op::write(state_.row_at(rows_[i]), row(rows_[i])));
  }
  chain.add(slot.settle());
  if (Status status = co_await carry_out(chain); !status.ok()) co_return status;
  for (std::size_t i = 0; i < row_count_; ++i) state_.cache.learn(rows_[i], row(rows_[i]));
  co_return Next::finished;
}

// Posts the chain that writes the rows, with the release behind it.
Task<Status> Change::carry_out(Chain& chain) {
  add_releases(chain, word_count_);
  if (!state_.session.alive()) {
    taken_ = 0;
    co_return state_.gone(Code::unavailable, "the session ended before " + std::string(name()) + " changed anything");
  }
  const std::size_t words = std::exchange(taken_, 0);
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate != Fate::done) {
    co_return state_.gone(Code::unknown_outcome, "the session ended in the middle of " + std::string(name()) +
                                                     ": it may or may not have taken effect");
  }
  if (released(words)) co_return Status();
  state_.session.end(
      {Code::corrupt, "locks of table " + std::to_string(state_.table_id) + " that were held had been taken away"});
  co_return state_.gone(Code::unknown_outcome, std::string(name()) + " may or may not have lasted");
}

}  // namespace

Task<Result<bool>> change(Table::State& state, std::string_view key, Wish wish, Nanos deadline, Cost& cost) {
  Change change(state, key, wish, deadline, cost);
  co_return co_await change.run();
}

}  // namespace farpool::rcuckoo
