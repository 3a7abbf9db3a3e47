// SPDX-License-Identifier: Apache-2.0
// A part of an Outback table on its memory node: some of its buckets, with their overflow lists, blocks and a lock. All
// functions but the first three need the lock. docs/adr/0031 says why changes survive a process that dies.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/service.h"
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

struct Settings {
  base::HashSecret secret;
  // Blocks that are longer may be read one-sidedly: their room is used again when an era is over.
  std::uint64_t inline_bytes = kMostInlineBlock;
  const Eras* eras = nullptr;  // none: nobody reads one-sidedly
};

// What all parts of a table go by.
struct Ground {
  Cut cut;
  base::MutableBytes memory;
  Settings settings;
  std::uint64_t life = 0;  // of the memory: which process serves it, counted
};

// What a change or a read came to, for the reply.
struct Answer {
  Reply reply;
  // Where key and value of the reply lie in the memory: a client reads them there if they do not fit the reply.
  std::uint64_t block = 0;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
};

struct Counters {
  std::atomic<std::uint64_t> keys{0}, bytes{0};  // bytes of keys and values
  std::atomic<std::uint64_t> overflow{0};        // keys in overflow lists
  std::atomic<std::uint64_t> reseeds{0}, pulled{0}, moved{0}, in_place{0}, make_ups{0};
};

class Part {
 public:
  Part(const Ground& ground, Chunks& chunks, std::uint64_t number);
  ~Part();
  Part(const Part&) = delete;

  // Takes the lock if it is free within some steps. Any thread.
  bool try_lock();
  // Another thread that has left a CALL for this one and finds the lock taken must see it free, or its CALL be seen.
  void unlock() { locked_.store(false, std::memory_order_seq_cst); }
  // Gives back a block of this part that a line no longer needs. Any thread.
  void give_back(std::uint64_t address, std::uint64_t bytes);
  const Counters& counters() const { return counters_; }

  // Takes over a block that an earlier process left, and whether a key of the table is in it. False: it cannot be.
  bool adopt(std::uint64_t address, std::uint64_t bytes, const BlockView* key, bool overflow);
  bool adopted_all() { return slabs_.finish(); }

  Status get(std::uint64_t bucket, std::uint64_t slot, Answer& answer);
  Status find(const Request& request, Answer& answer);
  // Carries out a change. If it changes anything, the line's record at `record` says so, and `changed` is set. Sets
  // `dropped` to the address of a block that the record held before.
  struct Done {
    bool changed = false;
    std::uint64_t dropped = 0;
  };
  Status change(const Request& request, fabric::Hand hand, std::uint64_t record, Answer& answer, Done& done);
  // Says what a record remembers.
  Status recall(std::uint64_t record, Answer& answer);
  // Passes over empty buckets from `first` on, within bounds. Then writes keys of at most `count` buckets of this part
  // into `keys`. Sets `next` to the first bucket that it did not come to.
  Status scan(std::uint64_t first, std::uint64_t count, std::size_t room, std::vector<std::byte>& keys,
              std::uint64_t& next);
  // Seed and flags of the bucket, for any reply.
  void describe(std::uint64_t bucket, Reply& reply) const;

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

  const Cut& cut() const { return ground_.cut; }
  std::byte* at(std::uint64_t address) const { return ground_.memory.data() + address; }
  std::uint64_t word(std::uint64_t address) const { return base::load<std::uint64_t>(at(address)); }
  Words words_of(std::uint64_t bucket) const;
  Seed seed_of(std::uint64_t bucket) const { return seed_in(word(cut().seed_word_at(bucket)), bucket); }
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

  Status put(Work& work);
  bool fits_in_place(const Work& work) const;
  void put_in_place(Work& work);
  Status place(Work& work, std::uint64_t address, std::uint64_t bytes, std::uint64_t& next);
  Status erase(Work& work);
  Status keep_text(Work& work);
  void commit(const Work& work, const Answer& answer);
  void make(const Plan& plan) const;
  void count(const Work& work);
  void pull(std::uint64_t bucket);
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
  std::uint64_t versions_ = 0;
  std::uint64_t cursor_ = 0;  // in the page that is being emptied
  fabric::Hand hand_;
  std::vector<std::byte> scratch_, block_;
  std::array<std::byte, kTextBytes> text_{};
  Counters counters_;
};

}  // namespace farpool::outback
