// SPDX-License-Identifier: Apache-2.0
// The bytes of an RCuckoo table on its memory node: entries, rows, lock bits, and what an operation slot says about
// them. Pure functions; the node formats with them, clients and offline checkers read with them.
//
// OFFSET SIZE  row, entries n x e bytes
//      0  n*e  entries
//    n*e    8  version   struct VersionWord: raised by every WRITE of the row
//  n*e+8    8  checksum  CRC-64 of all before it, seeded with the row's number: a row's bytes are valid nowhere else
//
// An entry is 2 to 8 words. Unused bytes are zero, and so is an empty entry.
//
//   inline   63                          16 15        8 7       2 1   0
//   word 0  +------------------------------+-----------+---------+-----+
//           | key and value bytes, on ...  | value   8 | key   6 | 1,3 |   ... through the rest of the entry: key, then
//           +------------------------------+-----------+---------+-----+   value; 3 if it is leaving
//   extent   63  62                      17 16                  2 1   0
//   word 0  +---+--------------------------+---------------------+-----+
//           | L | block                 46 | units            15 |  2  |   both in units of 64 bytes; L: it is leaving
//           +---+--------------------------+---------------------+-----+
//   word 1  | hash of the key           64 |
//           +------------------------------+
//
// A leaving entry's key is on its way to another memory node (docs/adr/0015): any client may read it, and only the
// mover changes it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc64.h"
#include "base/hash.h"
#include "layout/directory.h"
#include "layout/extent.h"
#include "layout/geometry.h"
#include "layout/lease.h"
#include "layout/operation_slot.h"
#include "layout/segment.h"
#include "layout/word.h"

namespace farpool::rcuckoo {

using layout::Field;
using layout::Geometry;

inline constexpr std::uint64_t kRowTrailer = 16;  // version and checksum

// --- Entries

enum class EntryType : std::uint64_t { empty = 0, in_place = 1, extent = 2 };

struct EntryWord {
  using Type = Field<0, 2>;
  using KeyBytes = Field<2, 6>;
  using ValueBytes = Field<8, 8>;
  using Units = Field<2, 15>;
  using Block = Field<17, 46>;
  using Leaving = Field<63, 1>;  // of an extent
  static_assert(layout::tiles_a_word<Type, KeyBytes, ValueBytes, Field<16, 48>>);
  static_assert(layout::tiles_a_word<Type, Units, Block, Leaving>);
  static constexpr std::uint64_t kLeavingInPlace = 3;
};
inline constexpr std::uint64_t kInlineHeader = 2;
constexpr EntryType type_of(std::uint64_t first_word) {
  const std::uint64_t type = EntryWord::Type::get(first_word);
  return type == EntryWord::kLeavingInPlace ? EntryType::in_place : static_cast<EntryType>(type);
}

// Says whether so many bytes can be an entry: a checksum says only that some client wrote them.
inline bool can_be_entry(base::Bytes bytes) {
  const auto word = [&bytes](std::uint64_t i) { return base::load<std::uint64_t>(bytes.data() + i * 8); };
  std::uint64_t used = 0;
  if (type_of(word(0)) == EntryType::in_place) {
    used = kInlineHeader + EntryWord::KeyBytes::get(word(0)) + EntryWord::ValueBytes::get(word(0));
  } else if (type_of(word(0)) == EntryType::extent) {
    if (EntryWord::Units::get(word(0)) == 0) return false;
    used = 16;
  }
  if (used > bytes.size()) return false;
  const std::uint64_t words = bytes.size() / 8;
  std::uint64_t rest = used / 8 < words ? word(used / 8) >> (used % 8 * 8) : 0;
  for (std::uint64_t i = used / 8 + 1; i < words; ++i) rest |= word(i);
  return rest == 0;
}

// Says whether an entry that begins with this word points nowhere but into a heap of so many bytes.
inline bool within_heap(std::uint64_t first_word, std::uint64_t heap_bytes) {
  if (type_of(first_word) != EntryType::extent) return true;
  const std::uint64_t block = EntryWord::Block::get(first_word);
  return block <= heap_bytes / layout::kBlockUnit &&
         EntryWord::Units::get(first_word) * layout::kBlockUnit <= heap_bytes - layout::block_offset(block);
}

// What an entry of a key looks like in its first words.
class Sought {
 public:
  Sought(base::Bytes key, std::uint64_t hash) : hash_(hash) {
    if (key.size() > EntryWord::KeyBytes::kMax) return;
    const std::uint64_t here = std::min<std::uint64_t>(key.size(), 8 - kInlineHeader);
    std::uint64_t bytes = 0;
    if (here > 0) std::memcpy(&bytes, key.data(), here);
    word_ = EntryWord::KeyBytes::put(key.size()) | bytes << (8 * kInlineHeader);
    mask_ = EntryWord::KeyBytes::put(EntryWord::KeyBytes::kMax) | ((1ull << (8 * here)) - 1) << (8 * kInlineHeader);
  }
  // False: the entry is another key's. These two words decide for nearly all others.
  bool may_be(std::uint64_t first, std::uint64_t second) const {
    const EntryType type = type_of(first);
    return type == EntryType::extent ? second == hash_ : type == EntryType::in_place && (first & mask_) == word_;
  }

 private:
  std::uint64_t hash_;
  std::uint64_t word_ = 1, mask_ = 0;  // of an entry in place; no word is this one unless the key may lie there
};
// The largest pair fits the size field.
static_assert(layout::extent_bytes(layout::kMaxKeyBytes, layout::kMaxValueBytes) <=
              EntryWord::Units::kMax * layout::kBlockUnit);

// An entry by value: a row can be edited while the caller keeps a copy of its old entry.
class Entry {
 public:
  Entry() = default;
  explicit Entry(base::Bytes bytes) {
    FARPOOL_CHECK(bytes.size() <= layout::kMaxEntryBytes);
    std::memcpy(words_.data(), bytes.data(), bytes.size());
  }

  static bool fits(std::uint64_t entry_bytes, std::uint64_t key_bytes, std::uint64_t value_bytes) {
    return key_bytes <= EntryWord::KeyBytes::kMax && value_bytes <= EntryWord::ValueBytes::kMax &&
           kInlineHeader + key_bytes + value_bytes <= entry_bytes;
  }
  static Entry in_place(base::Bytes key, base::Bytes value) {
    Entry entry;
    entry.words_[0] = EntryWord::Type::put(static_cast<std::uint64_t>(EntryType::in_place)) |
                      EntryWord::KeyBytes::put(key.size()) | EntryWord::ValueBytes::put(value.size());
    auto* body = reinterpret_cast<std::byte*>(entry.words_.data()) + kInlineHeader;
    if (!key.empty()) std::memcpy(body, key.data(), key.size());
    if (!value.empty()) std::memcpy(body + key.size(), value.data(), value.size());
    return entry;
  }
  // Makes an entry for `bytes` of an extent at `block`, in units.
  static Entry extent(std::uint64_t block, std::uint64_t bytes, std::uint64_t hash) {
    const std::uint64_t units = (bytes + layout::kBlockUnit - 1) / layout::kBlockUnit;
    FARPOOL_CHECK(block <= EntryWord::Block::kMax && units <= EntryWord::Units::kMax);
    Entry entry;
    entry.words_[0] = EntryWord::Type::put(static_cast<std::uint64_t>(EntryType::extent)) |
                      EntryWord::Units::put(units) | EntryWord::Block::put(block);
    entry.words_[1] = hash;
    return entry;
  }

  EntryType type() const { return type_of(words_[0]); }
  bool empty() const { return words_[0] == 0; }
  bool leaving() const {
    return EntryWord::Type::get(words_[0]) == EntryWord::kLeavingInPlace ||
           (type() == EntryType::extent && EntryWord::Leaving::get(words_[0]) != 0);
  }
  // Returns the same pair, on its way or not.
  Entry as_leaving(bool leaving) const {
    constexpr std::uint64_t kInPlace = EntryWord::Type::put(EntryWord::kLeavingInPlace ^ 1);
    const std::uint64_t bit = type() == EntryType::extent ? EntryWord::Leaving::put(1) : kInPlace;
    Entry entry = *this;
    entry.words_[0] = leaving ? words_[0] | bit : words_[0] & ~bit;
    return entry;
  }

  // Returns the key of an entry in place.
  base::Bytes key() const { return body().first(EntryWord::KeyBytes::get(words_[0])); }
  base::Bytes value() const {
    return body().subspan(EntryWord::KeyBytes::get(words_[0]), EntryWord::ValueBytes::get(words_[0]));
  }
  // Belongs to an extent.
  std::uint64_t block() const { return EntryWord::Block::get(words_[0]); }
  std::uint64_t bytes() const { return EntryWord::Units::get(words_[0]) * layout::kBlockUnit; }
  std::uint64_t hash() const { return words_[1]; }

  bool well_formed(std::uint64_t entry_bytes) const { return can_be_entry(raw().first(entry_bytes)); }

  base::Bytes raw() const { return std::as_bytes(std::span(words_)); }
  const std::array<std::uint64_t, layout::kMaxEntryBytes / 8>& words() const { return words_; }
  friend bool operator==(const Entry&, const Entry&) = default;

 private:
  base::Bytes body() const { return raw().subspan(kInlineHeader); }
  std::array<std::uint64_t, layout::kMaxEntryBytes / 8> words_{};
};

// Returns the hash from which an entry's two rows derive.
inline std::uint64_t hash_of(const Entry& entry, const base::HashSecret& seed) {
  return entry.type() == EntryType::extent ? entry.hash() : base::keyed_hash(seed, entry.key());
}

// --- Rows

//    63                       41 40                                     0
//   +---------------------------+----------------------------------------+
//   | move                   23 | count                               41 |
//   +---------------------------+----------------------------------------+
// Every WRITE of the row adds one to `count`. `move` is the number of the last move of keys to other memory nodes that
// has reached the row (docs/adr/0015): a client that does not know of it changes no key of the row, and believes no
// miss.
struct VersionWord {
  using Count = Field<0, 41>;
  using Move = Field<41, 23>;
  static_assert(layout::tiles_a_word<Count, Move> && Move::kMax == layout::kMostMoves);
  // Returns the word for the next WRITE.
  static constexpr std::uint64_t raised(std::uint64_t word, std::uint64_t move = 0) {
    return Count::put((Count::get(word) + 1) & Count::kMax) | Move::put(std::max(Move::get(word), move));
  }
  // Returns the word before that WRITE, if that brought no move.
  static constexpr std::uint64_t lowered(std::uint64_t word) {
    return Count::put((Count::get(word) - 1) & Count::kMax) | Move::put(Move::get(word));
  }
};

// A row's bytes in their place: in a buffer, a cache, or an image.
class RowView {
 public:
  RowView(const Geometry& geometry, base::Bytes bytes) : geometry_(&geometry), bytes_(bytes) {}

  Entry entry(std::uint64_t slot) const {
    return Entry(bytes_.subspan(slot * geometry_->entry_bytes, geometry_->entry_bytes));
  }
  bool empty(std::uint64_t slot) const { return word(slot, 0) == 0; }
  bool may_be(std::uint64_t slot, const Sought& sought) const { return sought.may_be(word(slot, 0), word(slot, 1)); }
  // Says whether each entry can be one, and an extent lies within a heap of so many bytes. Otherwise returns the slot of
  // one that cannot be.
  std::optional<std::uint64_t> impossible(std::uint64_t heap_bytes) const {
    for (std::uint64_t slot = 0; slot < geometry_->entries_per_row; ++slot) {
      if (!can_be_entry(bytes_.subspan(slot * geometry_->entry_bytes, geometry_->entry_bytes)) ||
          !within_heap(word(slot, 0), heap_bytes)) {
        return slot;
      }
    }
    return std::nullopt;
  }
  int empty_slot() const {
    for (std::uint64_t slot = 0; slot < geometry_->entries_per_row; ++slot) {
      if (empty(slot)) return static_cast<int>(slot);
    }
    return -1;
  }
  std::uint64_t version() const { return VersionWord::Count::get(version_word()); }
  std::uint64_t move() const { return VersionWord::Move::get(version_word()); }
  std::uint64_t checksum() const { return base::load<std::uint64_t>(bytes_.data() + bytes_.size() - 8); }
  bool whole(std::uint64_t row) const { return checksum() == base::crc64(bytes_.first(bytes_.size() - 8), row); }

 private:
  std::uint64_t word(std::uint64_t slot, std::uint64_t i) const {
    return base::load<std::uint64_t>(bytes_.data() + slot * geometry_->entry_bytes + i * 8);
  }
  std::uint64_t version_word() const { return base::load<std::uint64_t>(bytes_.data() + bytes_.size() - 16); }

  const Geometry* geometry_;
  base::Bytes bytes_;
};

// Raises the version and seals the row, which a move may have reached.
inline void seal_row(base::MutableBytes bytes, std::uint64_t row, std::uint64_t move) {
  std::byte* trailer = bytes.data() + bytes.size() - kRowTrailer;
  base::store(trailer, VersionWord::raised(base::load<std::uint64_t>(trailer), move));
  base::store(trailer + 8, base::crc64(bytes.first(bytes.size() - 8), row));
}

// Puts an entry in a row, and seals the row.
inline void edit_row(const Geometry& geometry, base::MutableBytes bytes, std::uint64_t row, std::uint64_t slot,
                     const Entry& entry, std::uint64_t move = 0) {
  std::memcpy(bytes.data() + slot * geometry.entry_bytes, entry.raw().data(), geometry.entry_bytes);
  seal_row(bytes, row, move);
}

// Makes every row of a zeroed table region empty and whole.
inline void format_table(const Geometry& geometry, base::MutableBytes table) {
  const std::uint64_t bytes = geometry.row_bytes();
  FARPOOL_CHECK(table.size() >= geometry.rows * bytes);
  for (std::uint64_t row = 0; row < geometry.rows; ++row) {
    const base::MutableBytes at = table.subspan(row * bytes, bytes);
    std::memset(at.data(), 0, bytes);
    base::store(at.data() + bytes - 8, base::crc64(at.first(bytes - 8), row));
  }
}

// --- Locks

// Logical lock l of rows [l * rows_per_lock, ...) is bit l mod lock_bits of the lock region.
struct LockBit {
  std::uint64_t offset = 0;  // of its word in the lock region
  std::uint64_t mask = 0;
};
constexpr std::uint64_t lock_of(const Geometry& geometry, std::uint64_t row) { return row / geometry.rows_per_lock; }
constexpr LockBit lock_bit(const Geometry& geometry, std::uint64_t lock) {
  const std::uint64_t bit = lock % geometry.lock_bits;
  return {bit / layout::kLocksPerWord * 8, 1ull << (bit % layout::kLocksPerWord)};
}

// --- What an operation slot says

enum class Operation : std::uint64_t { none = 0, insert = 1, update = 2, remove = 3, put = 4, modify = 5, close = 6 };

// OperationSlot::state.
//    63        59 58               36 35                        4 3           0
//   +------------+-------------------+----------------------------+-------------+
//   | zero     5 | move           23 | table                   32 | operation 4 |
//   +------------+-------------------+----------------------------+-------------+
// `move` reaches the row that gets the new entry. With `close` it reaches all rows of the plan, and nothing else there
// changes: their entries' checksums stand in `redo`.
struct SlotState {
  using Kind = Field<0, 4>;
  using Table = Field<4, 32>;
  using Move = Field<36, 23>;
  static_assert(layout::tiles_a_word<Kind, Table, Move, Field<59, 5>>);
  static constexpr bool closes(std::uint64_t state) {
    return Kind::get(state) == static_cast<std::uint64_t>(Operation::close);
  }
};

// A plan names the rows in the order in which they are WRITTEN, each with the entry that changes. The last row gets the
// entry in `redo`; every other row gets the entry that the next row in order has in its changing place. So whatever
// part of these WRITEs has landed, repair.h can tell the rest.
// OperationSlot::row: a row, and which of its entries changes; 0 behind the last.
struct SlotRow {
  using Row = Field<0, 56>;
  using Slot = Field<56, 8>;
  static constexpr std::uint64_t of(std::uint64_t row, std::uint64_t slot) {
    return Row::put(row) | Slot::put(slot + 1);
  }
  static constexpr std::uint64_t row(std::uint64_t word) { return Row::get(word); }
  static constexpr std::uint64_t slot(std::uint64_t word) { return Slot::get(word) - 1; }
};

}  // namespace farpool::rcuckoo
