// SPDX-License-Identifier: Apache-2.0
// The bytes of an Outback table on its memory node. Only the memory node writes them, each word through a fabric::Hand;
// clients read long blocks one-sidedly. Pure functions over any bytes.
//
//   | superblock | clients | request lines | seeds | buckets | overflow heads | locator | blocks |
//
// The table's locator lies here or in another region, in turns: the next one is written where clients do not look yet.
// Seeds, buckets and the locator have room for as many doublings as the figures say.
//
// A bucket has four slots of a word. Its seed says which of them a key's hash belongs to (seed.h), so a key lies in one
// slot, or in the overflow list of its bucket.
//
//            63    62         57 56        48 47                                                  0
//   slot    +-----+-------------+------------+----------------------------------------------------+
//           |cache| print     6 | length   9 | address                                         48 |
//           +-----+-------------+------------+----------------------------------------------------+
//
// The cache bit says that the overflow list has keys of this bucket; all four slots of a bucket have the same. Length 0:
// the slot is empty. The length is in units of 64 bytes, and 511 says "511 or more, as the block's own lengths say". The
// address is the block's offset in the memory.
//
// Seeds are four bytes for a bucket: the seed, its version of two bytes, and a zero. An overflow head is the address of
// the first block of a list, 0 if there is none; buckets share heads, and a block says whose it is.
//
// OFFSET SIZE  block, at a multiple of 16
//      0    8  lengths    key bytes 32 | value bytes 32
//      8    8  version    of the entry: another one after each change
//     16    8  bucket
//     24    8  checksum   CRC-64 over the address, all before it, the key and the value
//     32    8  next       address of the next block of the overflow list; in no checksum
//     40    k  key
//   40+k    v  value, then zeros to a multiple of 8
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/result.h"
#include "index/outback/locator.h"
#include "index/outback/seed.h"
#include "layout/regions.h"
#include "layout/word.h"

namespace farpool::outback {

inline constexpr std::uint64_t kBucketBytes = kBucketSlots * 8;
inline constexpr std::uint64_t kSeedsPerWord = 2;
inline constexpr std::uint64_t kBlockHeader = 40;
inline constexpr std::uint64_t kBlockAlign = 16;
inline constexpr std::uint64_t kPageBytes = 16 * 1024;  // blocks of one size share a page (slab.h)

// Figures of a table. Zeroed memory of `memory_bytes` becomes one by format().
struct Figures {
  std::uint64_t memory_bytes = 0;
  std::uint64_t generation = 1;  // of the locator that clients find keys with, and its salt and shape
  std::uint64_t salt = 0;
  std::uint64_t partitions = 1;
  std::uint64_t partition_buckets = 0;
  std::uint64_t zones = 1;              // each has its own lock, buckets and pages (docs/adr/0031)
  std::uint64_t overflow = 0;           // keys that overflow lists are made for at last; a multiple of zones
  std::uint64_t clients = 16;           // that have request lines
  std::uint64_t lines = 16;             // of each
  std::uint64_t chunk_bytes = 2 << 20;  // a multiple of the page; no block is longer
  std::uint64_t doublings = 0;          // of the partitions, that there is room for
  friend bool operator==(const Figures&, const Figures&) = default;
};

// What a client's line remembers of its last request, and what the request changes. All of it is written before the
// state says `decided`; then the changes are made; then the state says `done`. A process that dies in between leaves
// the changes for the next one to make again.
struct Effect {
  std::uint64_t at = 0;  // address of the word
  std::uint64_t word = 0;
  friend bool operator==(const Effect&, const Effect&) = default;
};
inline constexpr std::size_t kMostEffects = 14;
inline constexpr std::size_t kTextBytes = 48;

struct LineRecord {
  std::uint64_t state = 0;    // LineState
  std::uint64_t outcome = 0;  // OutcomeWord
  std::uint64_t version = 0;  // of the entry after the change
  std::uint64_t number = 0;   // of the outcome: a sum, a length
  std::uint64_t block = 0;    // address of a block that has the outcome's text; 0: the text is here, or there is none
  std::array<std::uint64_t, kTextBytes / 8> text{};
  std::uint64_t effect_count = 0;
  std::array<Effect, kMostEffects> effects{};

  // Returns the address of the block that is the line's alone; 0: it holds none. A line that was taken from its client
  // has its old words behind the state.
  std::uint64_t held() const;
};
inline constexpr std::uint64_t kLineBytes = sizeof(LineRecord);
static_assert(base::wire_safe<LineRecord> && kLineBytes == 320);

//    63                                       2 1       0
//   +------------------------------------------+---------+
//   | number of the request                 62 | phase 2 |
//   +------------------------------------------+---------+
struct LineState {
  using Phase = layout::Field<0, 2>;
  using Number = layout::Field<2, 62>;
  static_assert(layout::tiles_a_word<Phase, Number>);
  enum : std::uint64_t {
    kDone = 0,     // the outcome is of this request; number 0: there was none
    kBegun = 1,    // nothing of it has happened, and what the line remembered is forgotten
    kDecided = 2,  // its changes are to be made
  };
  static constexpr std::uint64_t of(std::uint64_t number, std::uint64_t phase) {
    return Number::put(number) | Phase::put(phase);
  }
};

inline std::uint64_t LineRecord::held() const {
  return state != 0 && LineState::Phase::get(state) == LineState::kDone ? block : 0;
}

struct OutcomeWord {
  using Status = layout::Field<0, 16>;
  using Flags = layout::Field<16, 16>;
  using TextBytes = layout::Field<32, 32>;
  static_assert(layout::tiles_a_word<Status, Flags, TextBytes>);
};

// How far a table has grown: one word of the memory, with which the next locator becomes the table's.
//
//    63       57 56       55     54      53   48 47                                                 0
//   +-----------+-------+---------+-----+--------+--------------------------------------------------+
//   | check   7 | place | doubled | mov.| level 6| generation of the locator                     48 |
//   +-----------+-------+---------+-----+--------+--------------------------------------------------+
struct Stage {
  std::uint64_t generation = 0;
  std::uint64_t level = 0;  // times that the table was doubled
  bool moving = false;      // keys may still lie in another bucket than the locator says
  bool doubled = false;     // while moving: where the table of half as many buckets had them
  std::uint64_t place = 0;  // of the locator: 0 or 1

  std::uint64_t old_level() const { return level - (doubled ? 1 : 0); }
  std::uint64_t word() const;
  // Nothing: no memory node writes such a word.
  static std::optional<Stage> of(std::uint64_t word);
  friend bool operator==(const Stage&, const Stage&) = default;
};

// Returns the generation of the locator that the process of this life publishes next. No other life has it, so that a
// client may keep a locator whose publication was cut short.
constexpr std::uint64_t kLifeBits = 16;
constexpr std::uint64_t next_generation(std::uint64_t generation, std::uint64_t life) {
  return ((generation >> kLifeBits) + 1) << kLifeBits | life;
}

// Where everything lies.
struct Cut {
  Figures figures;
  std::uint64_t clients = 0;  // offsets
  std::uint64_t lines = 0;    // of clients, and then one for each zone, for changes that no client asked for
  std::uint64_t seeds = 0;
  std::uint64_t buckets = 0;
  std::uint64_t heads = 0;
  std::uint64_t locator = 0;  // place 1
  std::uint64_t locator_bytes = 0;
  std::uint64_t blocks = 0;
  std::uint64_t chunks = 0;
  std::uint64_t bucket_count = 0;  // that there is room for

  // Returns the shape of the table's locators; their arrays may be longer.
  LocatorShape shape(std::uint64_t level) const {
    return {.partitions = static_cast<std::uint32_t>(figures.partitions << level),
            .buckets = static_cast<std::uint32_t>(figures.partition_buckets),
            .level = static_cast<std::uint32_t>(level),
            .doublings = static_cast<std::uint32_t>(figures.doublings)};
  }
  std::uint64_t scan_tags() const { return shape(0).scan_tags(); }
  // Returns the keys that overflow lists are made for while the table has been doubled so often.
  std::uint64_t overflow_at(std::uint64_t level) const {
    return std::max<std::uint64_t>(figures.overflow >> (figures.doublings - level), 1);
  }
  // Returns how often the table has got another locator.
  std::uint64_t growths(const Stage& stage) const {
    return (stage.generation >> kLifeBits) - (figures.generation >> kLifeBits);
  }
  std::uint64_t line_at(std::uint64_t client, std::uint64_t line) const {
    return lines + (client * figures.lines + line) * kLineBytes;
  }
  std::uint64_t zone_line_at(std::uint64_t zone) const { return line_at(figures.clients, 0) + zone * kLineBytes; }
  std::uint64_t line_count() const { return figures.clients * figures.lines + figures.zones; }
  std::uint64_t client_at(std::uint64_t client) const { return clients + client * 8; }
  std::uint64_t slot_at(std::uint64_t bucket, std::uint64_t slot) const {
    return buckets + bucket * kBucketBytes + slot * 8;
  }
  // Partitions share no word of seeds, as they may be of different zones.
  std::uint64_t seed_number(std::uint64_t bucket) const {
    const std::uint64_t of = figures.partition_buckets;
    return bucket / of * base::round_up(of, kSeedsPerWord) + bucket % of;
  }
  std::uint64_t seed_word_at(std::uint64_t bucket) const { return seeds + seed_number(bucket) / kSeedsPerWord * 8; }
  // A key is in the same zone whatever the table's level is: a partition and its halves are all of one zone.
  std::uint64_t zone_of_partition(std::uint64_t partition) const {
    return partition % figures.partitions * figures.zones / figures.partitions;
  }
  std::uint64_t zone_of(std::uint64_t bucket) const { return zone_of_partition(bucket / figures.partition_buckets); }
  // Returns the first of the table's first partitions that is of this zone, or of a later one.
  std::uint64_t first_partition(std::uint64_t zone) const {
    return (zone * figures.partitions + figures.zones - 1) / figures.zones;
  }
  // Buckets of a zone share its heads.
  std::uint64_t head_of(std::uint64_t bucket) const {
    const std::uint64_t each = figures.overflow / figures.zones;
    return zone_of(bucket) * each + base::mix(bucket) % each;
  }
  std::uint64_t head_at(std::uint64_t bucket) const { return heads + head_of(bucket) * 8; }
  std::uint64_t heads_end() const { return heads + figures.overflow * 8; }
  std::uint64_t blocks_end() const { return blocks + chunks * figures.chunk_bytes; }
};
// invalid_argument says which figure cannot work, and what would.
base::Result<Cut> cut(const Figures& figures);

// --- superblock: a page. The life is a word behind the checksum: each process that serves the memory raises it. The
// stage is the next word.

inline constexpr std::uint64_t kOutbackMagic = 0x006b'6361'6274'756f;  // "outback\0"
inline constexpr std::uint64_t kOutbackVersion = 2;
inline constexpr std::uint64_t kLifeAt = 2048;
inline constexpr std::uint64_t kMostLives = (1ull << kLifeBits) - 1;
inline constexpr std::uint64_t kStageAt = kLifeAt + 8;

// Behind it lies what each zone knows of moves of keys to other memory nodes: the number of the last move that has
// closed the zone, and marks of keys that are leaving, 0 where there is none. A mark is the key's hash: two keys with
// one hash would wait for each other.
inline constexpr std::uint64_t kMovesAt = kLifeAt + 128;
inline constexpr std::uint64_t kMovesWords = 240;
inline constexpr std::uint64_t kMostMarks = 15;  // of a zone
constexpr std::uint64_t marks_of(const Figures& figures) {
  return std::min(kMostMarks, kMovesWords / figures.zones - 1);
}
constexpr std::uint64_t closed_at(const Figures& figures, std::uint64_t zone) {
  return kMovesAt + zone * (1 + marks_of(figures)) * 8;
}
constexpr std::uint64_t mark_at(const Figures& figures, std::uint64_t zone, std::uint64_t mark) {
  return closed_at(figures, zone) + (1 + mark) * 8;
}
constexpr std::uint64_t mark_of(std::uint64_t hash) { return hash == 0 ? 1 : hash; }
// Makes zeroed memory an empty table.
base::Result<Cut> format(base::MutableBytes memory, const Figures& figures);
// corrupt: what is wrong with the first page, and what that means.
base::Result<Cut> parse(base::Bytes memory);
// corrupt: the table's stage cannot be.
base::Result<Stage> stage_of(const Cut& cut, base::Bytes memory);

// --- slots

struct SlotWord {
  using Address = layout::Field<0, 48>;
  using Length = layout::Field<48, 9>;
  using Print = layout::Field<57, 6>;
  using Cache = layout::Field<63, 1>;
  static_assert(layout::tiles_a_word<Address, Length, Print, Cache>);
  static constexpr std::uint64_t of(std::uint64_t print, std::uint64_t block_bytes, std::uint64_t address, bool cache) {
    return Address::put(address) | Length::put(std::min<std::uint64_t>((block_bytes + 63) / 64, Length::kMax)) |
           Print::put(print) | Cache::put(cache ? 1 : 0);
  }
  static constexpr bool empty(std::uint64_t word) { return Length::get(word) == 0; }
  static constexpr bool cached(std::uint64_t word) { return Cache::get(word) != 0; }
  static constexpr std::uint64_t cached_as(std::uint64_t word, bool cache) {
    return (word & ~Cache::kMask) | Cache::put(cache ? 1 : 0);
  }
};
constexpr std::uint64_t print_of(std::uint64_t hash) { return hash >> 58; }

// `number` is that of Cut::seed_number.
constexpr Seed seed_in(std::uint64_t word, std::uint64_t number) {
  const std::uint64_t both = word >> number % kSeedsPerWord * 32;
  return {static_cast<std::uint8_t>(both), static_cast<std::uint16_t>(both >> 8)};
}
constexpr std::uint64_t with_seed(std::uint64_t word, std::uint64_t number, Seed seed) {
  const std::uint64_t shift = number % kSeedsPerWord * 32;
  return (word & ~(0xffffffffull << shift)) | (std::uint64_t{seed.value} | std::uint64_t{seed.version} << 8) << shift;
}

// Says whether a key of this hash may lie in the bucket of a table of that level, whatever the locator's arrays say.
constexpr bool is_candidate(const LocatorShape& shape, std::uint64_t hash, std::uint64_t bucket) {
  const Candidates candidates = Candidates::of(hash, shape);
  const std::uint64_t first = std::uint64_t{candidates.partition} * shape.buckets;
  return bucket == first + candidates.buckets[0] || bucket == first + candidates.buckets[1];
}

// --- blocks

constexpr std::uint64_t block_bytes(std::uint64_t key_bytes, std::uint64_t value_bytes) {
  return base::round_up(kBlockHeader + key_bytes + value_bytes, 8);
}
inline constexpr std::uint64_t kMostBlockBytes = block_bytes(layout::kMaxKeyBytes, layout::kMaxValueBytes);

struct BlockHead {
  std::uint64_t lengths = 0;
  std::uint64_t version = 0;
  std::uint64_t bucket = 0;
  std::uint64_t checksum = 0;
  std::uint64_t next = 0;
  std::uint64_t key_bytes() const { return lengths & 0xffffffff; }
  std::uint64_t value_bytes() const { return lengths >> 32; }
  std::uint64_t bytes() const { return block_bytes(key_bytes(), value_bytes()); }
};
static_assert(base::wire_safe<BlockHead> && sizeof(BlockHead) == kBlockHeader);
inline constexpr std::uint64_t kVersionAt = 8, kBucketAt = 16, kChecksumAt = 24, kNextAt = 32;  // in a block

constexpr std::uint64_t lengths_of(std::uint64_t key_bytes, std::uint64_t value_bytes) {
  return key_bytes | value_bytes << 32;
}
std::uint64_t block_checksum(std::uint64_t address, const BlockHead& head, base::Bytes key, base::Bytes value);
// Fills `into`, exactly block_bytes long, for the block at `address`.
void write_block(base::MutableBytes into, std::uint64_t address, std::uint64_t bucket, std::uint64_t version,
                 std::uint64_t next, base::Bytes key, base::Bytes value);

struct BlockView {
  BlockHead head;
  base::Bytes key;
  base::Bytes value;
};
// Returns the block at an address as far as its lengths make sense and it lies between the bounds of `cut`; its checksum
// is not looked at.
std::optional<BlockView> view_block(const Cut& cut, base::Bytes memory, std::uint64_t address);
// Returns the block that a client has read from `address`; nothing if it is not whole.
std::optional<BlockView> read_block(base::Bytes bytes, std::uint64_t address);
bool is_whole(const BlockView& view, std::uint64_t address);

}  // namespace farpool::outback
