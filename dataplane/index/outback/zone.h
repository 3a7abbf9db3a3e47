// SPDX-License-Identifier: Apache-2.0
// A zone of an Outback table on its memory node: some of its buckets, with their overflow lists, blocks and a lock. All
// functions but the first three need the lock. docs/adr/0031 says why changes survive a process that dies.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/counter.h"
#include "base/counts.h"
#include "fabric/service.h"
#include "index/counts.h"
#include "index/outback/edits.h"
#include "index/outback/layout.h"
#include "index/outback/message.h"
#include "index/outback/slab.h"

namespace farpool::outback {

// Tells when no client can still read a block one-sidedly. Any thread.
class Eras {
 public:
  virtual ~Eras() = default;
  virtual std::uint64_t now() const = 0;
  // Returns the era of which no session runs an older operation.
  virtual std::uint64_t safe() const = 0;
};

// When and how a table grows (growth.h).
struct GrowthSettings {
  // Thousandths of the keys that overflow lists are made for. From the first on a locator is built; the nearer overflow
  // comes to the second, the more of it each change does.
  std::uint32_t begin_permille = 250, latest_permille = 900;
  // Thousandths of the slots: a table with more keys is doubled, if the memory has room.
  std::uint32_t double_permille = 850;
  // Buckets' worth of work that a change does at least and at most.
  std::uint32_t step = 16, most_step = 256;
  // As in the paper: inserts and removes have to wait while a locator is being built, and no reply says that it is.
  bool as_paper = false;
  // invalid_argument says which cannot work.
  base::Status check() const;
};

struct Settings {
  base::HashSecret secret;
  // Blocks that are longer may be read one-sidedly: their room is used again when an era is over.
  std::uint64_t inline_bytes = kMostInlineBlock;
  const Eras* eras = nullptr;  // none: nobody reads one-sidedly
  // Place 0 of the locator, a region of its own. Empty: the table does not grow.
  base::MutableBytes locator;
  GrowthSettings growth;
  // Words of the memory node: its lease for moves, and the number of the last move that is finished. None: keys do not
  // move to other memory nodes.
  std::byte* move_lease = nullptr;
  std::byte* move_finished = nullptr;
};

// What all zones of a table go by.
struct Ground {
  Cut cut;
  base::MutableBytes memory;
  Settings settings;
  std::uint64_t life = 0;                             // of the memory: which process serves it, counted
  const std::atomic<std::uint64_t>* stage = nullptr;  // a Stage

  base::MutableBytes place(std::uint64_t number) const {
    return number == 0 ? settings.locator : memory.subspan(cut.locator, cut.locator_bytes);
  }
};

// What a change or a read came to, for the reply.
struct Answer {
  Reply reply;
  // Where key and value of the reply lie in the memory: a client reads them there if they do not fit the reply.
  std::uint64_t block = 0;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
};

// What a zone has, and what has happened there. One thread at a time changes it, any thread reads it.
struct Counted {
  base::Counter keys, bytes;  // bytes of keys and values
  base::Counter overflow;     // keys in overflow lists
  base::SharedCounts<index::kNodeCounts> counts;
};

class Zone {
 public:
  Zone(const Ground& ground, Chunks& chunks, std::uint64_t number);
  ~Zone();
  Zone(const Zone&) = delete;

  // Takes the lock if it is free within some steps. Any thread.
  bool try_lock();
  // Another thread that has left a CALL for this one and finds the lock taken must see it free, or its CALL be seen.
  void unlock() { locked_.store(false, std::memory_order_seq_cst); }
  // Gives back a block of this zone that a line no longer needs. Any thread.
  void give_back(std::uint64_t address, std::uint64_t bytes);
  const Counted& counted() const { return counted_; }

  // Takes over a block that an earlier process left, and whether a key of the table is in it. False: it cannot be.
  bool adopt(std::uint64_t address, std::uint64_t bytes, const BlockView* key, bool overflow);
  bool adopted_all() { return slabs_.finish(); }

  // Goes by the table's stage as it is now, until the next call.
  void enter();
  const Stage& stage() const { return stage_; }
  Status get(std::uint64_t bucket, std::uint64_t slot, Answer& answer);
  Status find(const Request& request, Answer& answer);
  // Carries out a change. If it changes anything, the line's record at `record` says so, and `changed` is set. Sets
  // `dropped` to the address of a block that the record held before.
  struct Done {
    bool changed = false;
    std::uint64_t dropped = 0;
  };
  Status change(const Request& request, fabric::Hand hand, std::uint64_t record, Answer& answer, Done& done);
  // Steps of a move of keys to another memory node (docs/adr/0035), which the holder of the lease for moves asks for.
  Status close(std::uint64_t move, fabric::Hand hand);
  Status leave(const Request& request, fabric::Hand hand, Answer& answer);
  Status left(const Request& request, fabric::Hand hand);
  Status stay(const Request& request, fabric::Hand hand);
  // Says what a client that finds no key here is to believe, by the move that it knows of.
  std::uint16_t flags_of_move(std::uint64_t move) const {
    if (closed_ > move) return Reply::kOldMap;
    return closed_ == move && move != 0 ? Reply::kClosed : 0;
  }

  // Says what a record remembers.
  Status recall(std::uint64_t record, Answer& answer);
  // Writes keys of at most `count` buckets from `first` on into `keys`, and passes over empty ones. Sets `next` to the
  // first bucket that it did not come to, at most `end`.
  Status scan(std::uint64_t first, std::uint64_t end, std::uint64_t count, std::size_t room,
              std::vector<std::byte>& keys, std::uint64_t& next);
  // Seed and flags of the bucket, for any reply.
  void describe(std::uint64_t bucket, Reply& reply) const;

  // Appends the hashes of a bucket's keys that belong into a partition of a table of that shape.
  void gather(std::uint64_t bucket, std::uint64_t partition, const LocatorShape& shape,
              std::vector<std::uint64_t>& hashes) const;
  // While keys are moving: works on about so many buckets. Returns whether none of this zone's keys has to move.
  bool settle(std::uint64_t& buckets, fabric::Hand hand);
  // The same, for the keys of one partition. Returns whether all of these lie where the locator says.
  bool settle_partition(std::uint64_t partition, std::uint64_t& buckets, fabric::Hand hand);
  // Returns whether a change should take a step of growth, too.
  bool is_turn() { return ++turns_ % kTurns == 0; }

  const Slabs::Usage& usage() const { return slabs_.usage(); }
  std::size_t waiting_for_eras() const { return limbo_.size(); }

 private:
  struct Found {
    bool there = false;
    bool overflow = false;
    std::uint64_t slot = 0;
    std::uint64_t address = 0;
    std::uint64_t link = 0;  // address of the word that has the block's address, in an overflow list
    BlockView view;
  };
  struct Plan {
    std::array<Effect, kMostEffects> effects{};
    std::size_t count = 0;
    void add(std::uint64_t at, std::uint64_t word) {
      FARPOOL_CHECK(count < effects.size());
      effects[count++] = {at, word};
    }
  };
  // What a change does, while it is being worked out.
  struct Work {
    const Request* request = nullptr;
    std::uint64_t hash = 0;
    Found found;
    Decision decision;
    Plan plan;
    std::uint64_t record = 0;
    std::uint64_t version = 0;
    std::uint64_t outcome_block = 0;
    bool before_inline = false;  // the value before is in the record itself
    bool keeps_old = false;      // the line holds the block that was the key's before
    enum class As : std::uint8_t { nothing, placed, overflowed, replaced, in_place, erased } as = As::nothing;
    bool reseeded = false;
  };
  struct Freed {
    Freed* next = nullptr;
    std::uint64_t address = 0, bytes = 0;
  };
  struct Limbo {
    std::uint64_t era = 0, address = 0, bytes = 0;
  };
  using Words = std::array<std::uint64_t, kBucketSlots>;

  template <auto kCount>
  void bump(std::uint64_t by = 1) {
    counted_.counts.add<kCount>(by);
  }
  const Cut& cut() const { return ground_.cut; }
  std::byte* at(std::uint64_t address) const { return ground_.memory.data() + address; }
  std::uint64_t word(std::uint64_t address) const { return base::load<std::uint64_t>(at(address)); }
  Words words_of(std::uint64_t bucket) const;
  Seed seed_of(std::uint64_t bucket) const {
    return seed_in(word(cut().seed_word_at(bucket)), cut().seed_number(bucket));
  }
  std::uint64_t hash(base::Bytes key) const { return hash_of(ground_.settings.secret, cut().figures.salt, key); }
  std::optional<BlockView> view(std::uint64_t address) const { return view_block(cut(), ground_.memory, address); }

  bool look(std::uint64_t bucket, std::uint64_t hash, base::Bytes key, Found& found) const;
  // The keys of a bucket in its overflow list, except one; nothing: the list cannot be.
  std::optional<std::uint64_t> others_in_list(std::uint64_t bucket, std::uint64_t except) const;
  // Gives a slot to a key whose slot word, but for the cache bit, is `key`: with the seed as it is, or with another one.
  enum class Arranged : std::uint8_t { yes, no, damaged };
  Arranged arrange(Words& words, Seed& seed, std::uint64_t hash, std::uint64_t key) const;
  void plan_bucket(std::uint64_t bucket, const Words& before, const Words& after, Seed seed_before, Seed seed_after,
                   Plan& plan) const;

  // Finds the request's key, and moves it first to where the request says, if that is another bucket.
  Status seek(Work& work);
  std::optional<std::uint64_t> mark_of_key(std::uint64_t hash) const;
  void set_mark(std::uint64_t mark, std::uint64_t word);
  Status judge_move(const Work& work) const;
  Status put(Work& work);
  bool fits_in_place(const Work& work) const;
  void put_in_place(Work& work);
  Status place(Work& work, std::uint64_t address, std::uint64_t bytes, std::uint64_t& next);
  Status erase(Work& work);
  Status keep_text(Work& work);
  void commit(const Work& work, const Answer& answer);
  void make(const Plan& plan) const;
  void count(const Work& work);
  bool pull(std::uint64_t bucket);
  void commit_own(const Plan& plan) const;
  // While keys are moving: the number in this zone of the old partition that a bucket's keys come from.
  std::size_t source_of(std::uint64_t bucket) const;
  std::uint64_t old_partition(std::size_t source) const;
  bool is_settled(std::size_t source) const {
    return cursors_[source] >= cut().figures.partition_buckets * (stage_.doubled ? 2 : 1);
  }
  bool is_moving(std::uint64_t bucket) const { return stage_.moving && !is_settled(source_of(bucket)); }
  void settle_source(std::size_t source, std::uint64_t& buckets);
  // Says whether a request may name this bucket for a key of this hash.
  bool belongs(std::uint64_t hash, std::uint64_t bucket) const {
    return stage_.moving ? home_of(hash) == bucket : is_candidate(shape_, hash, bucket);
  }
  // Looks for a key that may not have been moved yet; sets the bucket that has it.
  bool look_before(std::uint64_t place, std::uint64_t hash, base::Bytes key, Found& found, std::uint64_t& bucket) const;
  bool move_out(std::uint64_t bucket);
  bool move_key(std::uint64_t from, const Found& found, std::uint64_t hash, std::uint64_t to);
  void align(std::uint64_t bucket);
  std::uint64_t home_of(std::uint64_t hash) const { return bucket_in(shape_, ground_.place(stage_.place), hash); }
  void compact();
  void move(std::uint64_t address);
  void tidy(const Work& work);

  enum class For : std::uint8_t { new_key, other };
  std::optional<std::uint64_t> take(std::uint64_t bytes, For what);
  void free(std::uint64_t address, std::uint64_t bytes);
  void collect(std::size_t most);  // blocks that waited for an era
  void write(std::uint64_t address, std::uint64_t bucket, std::uint64_t version, std::uint64_t next, base::Bytes key,
             base::Bytes value);
  std::uint64_t next_version() { return ground_.life << 48 | ++versions_; }

  const Ground& ground_;
  const std::uint64_t number_;
  std::atomic<bool> locked_{false};
  std::atomic<Freed*> given_back_{nullptr};
  Slabs slabs_;
  std::deque<Limbo> limbo_;
  static constexpr std::uint64_t kTurns = 8;  // of changes, for one that looks whether the table should grow
  std::uint64_t turns_ = 0;
  std::uint64_t stage_word_ = 0;
  Stage stage_;
  LocatorShape shape_, old_shape_;  // of the locator, and of the table that keys are moving from
  // While keys are moving: how far each old partition is. First its buckets lose the keys that belong elsewhere. Then
  // each bucket that they may be in takes keys of its overflow list into slots, and the seed that the locator has.
  std::vector<std::uint32_t> cursors_;
  std::size_t source_ = 0;
  std::uint64_t closed_ = 0;                       // the last move that has closed this zone
  std::array<std::uint64_t, kMostMarks> marks_{};  // of keys that are leaving, as in the memory
  std::uint64_t leaving_ = 0;                      // how many there are
  std::uint64_t versions_ = 0;
  std::uint64_t cursor_ = 0;  // in the page that is being emptied
  fabric::Hand hand_;
  std::vector<std::byte> scratch_, block_;
  std::array<std::byte, kTextBytes> text_{};
  Counted counted_;
};

}  // namespace farpool::outback
