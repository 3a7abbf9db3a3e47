// SPDX-License-Identifier: Apache-2.0
// What each operation costs without contention: trips, messages and bytes by arithmetic; tests compare the code with
// them. In the paper's plain form the figures are those of the literature; operation slots do not change the trips.
#pragma once

#include <algorithm>
#include <cstdint>

#include "layout/operation_slot.h"

namespace farpool::rcuckoo::facts {

// Bytes on a RoCEv2 wire, request and reply, as in fabric/cost.h.
inline constexpr std::uint64_t kMtu = 4096;
constexpr std::uint64_t packets(std::uint64_t bytes) { return bytes <= kMtu ? 1 : (bytes + kMtu - 1) / kMtu; }
constexpr std::uint64_t read(std::uint64_t bytes) {
  return 74 + 58 * packets(bytes) + 4 * std::min<std::uint64_t>(packets(bytes), 2) + bytes;
}
constexpr std::uint64_t write(std::uint64_t bytes) { return 58 * packets(bytes) + 16 + bytes + 62; }
constexpr std::uint64_t kMaskedCas = 102 + 70;
constexpr std::uint64_t kFetchAdd = 86 + 70;
constexpr std::uint64_t kClaim = write(layout::kSlotClaim.bytes);
constexpr std::uint64_t kPlan = write(layout::kSlotPlan.bytes);
constexpr std::uint64_t kSettle = write(layout::kSlotCounters.bytes);
constexpr std::uint64_t kClear = write(layout::kSlotHolder.bytes);

struct Figures {
  std::uint32_t trips = 0;
  std::uint32_t messages = 0;
  std::uint64_t bytes = 0;
  constexpr Figures operator+(const Figures& more) const {
    return {trips + more.trips, messages + more.messages, bytes + more.bytes};
  }
  friend constexpr bool operator==(const Figures&, const Figures&) = default;
};

struct Shape {
  std::uint64_t row_bytes = 0;
  std::uint64_t rows_per_lock = 16;
  bool slots = true;
};
// Entries of 8 bytes, an 8-bit version and a 64-bit checksum, and locks without a holder's name.
inline constexpr Shape kPaper = {.row_bytes = 73, .rows_per_lock = 16, .slots = false};

// How far apart the rows of a key lie.
enum class Rows : std::uint8_t { adjacent, apart };

constexpr Figures read_rows(const Shape& shape, Rows rows) {
  return rows == Rows::adjacent ? Figures{0, 1, read(2 * shape.row_bytes)} : Figures{0, 2, 2 * read(shape.row_bytes)};
}
constexpr Figures trip() { return {.trips = 1}; }

// A key whose value is in its entry, or in a block of `extent` bytes.
constexpr Figures lookup_hit(const Shape& shape, Rows rows, std::uint64_t extent = 0) {
  const Figures hit = trip() + read_rows(shape, rows);
  return extent == 0 ? hit : hit + Figures{1, 1, read(extent)};
}
// Reads twice, so that it does not miss a key that moves; the paper reads once.
constexpr Figures lookup_miss(const Shape& shape, Rows rows) {
  const Figures once = trip() + read_rows(shape, rows);
  return shape.slots ? once + once : once;
}

// What naming the locks' holder adds: the claim before they are taken, and the clearing, which no operation waits for.
constexpr Figures claimed(const Shape& shape) { return shape.slots ? Figures{0, 2, kClaim + kClear} : Figures{}; }
// What written rows add besides: the plan before them, and the counters behind.
constexpr Figures planned(const Shape& shape) {
  return shape.slots ? claimed(shape) + Figures{0, 2, kPlan + kSettle} : Figures{};
}

// Update, remove, put or modify of a key whose value is in its entry; also a put that finds room in either row.
constexpr Figures change(const Shape& shape, Rows rows, unsigned lock_words = 1) {
  return Figures{lock_words + 1, 2 * lock_words, 2 * lock_words * kMaskedCas} + read_rows(shape, rows) +
         Figures{0, 1, write(shape.row_bytes)} + planned(shape);
}
// Takes the same locks and writes nothing: update or remove of an absent key.
constexpr Figures change_nothing(const Shape& shape, Rows rows, unsigned lock_words = 1) {
  return Figures{lock_words + 1, 2 * lock_words, 2 * lock_words * kMaskedCas} + read_rows(shape, rows) + claimed(shape);
}
// The extent is written in the trip that takes the locks; the old one's key is compared before it is unlinked, in one
// more trip.
constexpr Figures change_extent(const Shape& shape, Rows rows, std::uint64_t key_bytes, std::uint64_t old_extent,
                                std::uint64_t new_extent, bool own_block) {
  const std::uint64_t compared = std::min(old_extent, (16 + key_bytes + 7) / 8 * 8);
  return change(shape, rows) + Figures{1, 1, read(compared)} +
         (new_extent == 0 ? Figures{} : Figures{0, 1, write(new_extent)}) +
         (own_block ? Figures{} : Figures{0, 1, kFetchAdd});
}

// The paper's insert, which guessed its path right, and reads every row of its locks. `locks`: how many it needs, in runs of adjacent rows that are read together.
// Ours costs what a change does, as long as one of the key's rows has room.
constexpr Figures insert(const Shape& shape, unsigned path_rows, unsigned locks, unsigned runs) {
  const std::uint64_t rows = locks * shape.rows_per_lock * shape.row_bytes;
  return Figures{2, 2 + runs + path_rows,
                 2 * kMaskedCas + read(rows) + (runs - 1) * read(0) + path_rows * write(shape.row_bytes)} +
         planned(shape);
}

// RC-01, RC-02 and the table of wire bytes derived from the paper.
static_assert(lookup_hit(kPaper, Rows::adjacent) == Figures{1, 1, 282});
static_assert(lookup_hit(kPaper, Rows::apart) == Figures{1, 2, 418});
static_assert(lookup_hit(kPaper, Rows::apart, 64).trips == 2);
static_assert(change(kPaper, Rows::adjacent) == Figures{2, 4, 835});
static_assert(change(kPaper, Rows::apart) == Figures{2, 5, 971});
static_assert(insert(kPaper, 1, 1, 1) == Figures{2, 4, 1857});
static_assert(insert(kPaper, 2, 1, 1).bytes - insert(kPaper, 1, 1, 1).bytes == 209);
static_assert(insert(kPaper, 1, 2, 1).bytes - insert(kPaper, 1, 1, 1).bytes == 1168);
static_assert(insert(kPaper, 1, 2, 2).bytes - insert(kPaper, 1, 1, 1).bytes == 1304);

}  // namespace farpool::rcuckoo::facts
