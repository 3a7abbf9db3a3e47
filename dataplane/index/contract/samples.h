// SPDX-License-Identifier: Apache-2.0
// What the suite of index protocols has to know of each: one entry for each protocol.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "index/table.h"
#include "layout/geometry.h"
#include "layout/kv_call.h"

namespace farpool::index::contract {

// The most trips that an operation may take where nobody is in its way and the client has a block at hand.
struct Budget {
  std::uint32_t lookup_hit = 0, lookup_miss = 0;
  std::uint32_t insert = 0;   // of an absent key
  std::uint32_t refusal = 0;  // of an insert of a present key, an update or a remove of an absent one
  std::uint32_t update = 0;   // of a present key; also put
  std::uint32_t modify = 0;   // of a present key; 0: as an update
  std::uint32_t named = 0;    // a modify by a name, of a short value; 0: as any modify
  std::uint32_t remove = 0;   // of a present key
  std::uint32_t scan_empty = 0, scan = 0;
  std::uint32_t scan_messages = 0;  // of a scan that finds nothing
};

struct Sample {
  layout::Protocol protocol{};
  std::string name;  // in names of tests
  // The first is what most tests take. All are compared with a map.
  std::vector<layout::GeometryRequest> tables;
  // A table of few places, which is full with this share of them, at the least.
  layout::GeometryRequest few;
  double full = 0;  // no test fills the table if `full_says` is empty: then memory ends first
  // When a tenth of its keys have gone from it then, this share of half as many new ones finds room, at the least.
  double room = 0.8;
  std::string full_says;                       // in the message then
  std::vector<std::uint64_t Marks::*> filled;  // what must have happened until then
  // A table whose scan has many pages, and the keys that are put there.
  layout::GeometryRequest scanned;
  int scanned_keys = 0;
  // More than so many keys come from the first page of about 40, of `few` with 600 keys.
  std::size_t page = 0;
  // What must have happened where several clients change few keys.
  std::vector<std::uint64_t Marks::*> crowd;
  // What must have happened in a table that is almost full, while keys come and go: nullptr, if nothing moves there.
  std::uint64_t Marks::*moved = nullptr;
  // What counts splits that are over: nullptr, if a table cannot be split.
  std::uint64_t Marks::*splits = nullptr;
  // What counts lookups that go where a split has taken the keys away: a client needs no more of them than `astray`.
  std::uint64_t Marks::*stale = nullptr;
  std::uint64_t astray = 0;
  // A table that can be split, and the share of places that have keys when it cannot any more, at the least.
  layout::GeometryRequest grows;
  double grown = 0;
  Budget budget;
  // What counts operations that take a trip more: nullptr, if none does.
  std::uint64_t Marks::*one_more = nullptr;
  // A client owns the table, and holds its lease for as long as it lives.
  bool owned = false;
  // Key and value travel in one CALL, beside so many other bytes: what has no room there is too large. 0: they do not.
  std::uint64_t call_head = 0;
};

inline layout::GeometryRequest request(layout::Protocol protocol, std::uint64_t memory_bytes,
                                       layout::GeometryRequest other = {}) {
  other.protocol = protocol;
  other.memory_bytes = memory_bytes;
  other.max_sessions = 8;
  return other;
}

inline Sample sample_of_rcuckoo() {
  constexpr auto kProtocol = layout::Protocol::rcuckoo;
  const layout::GeometryRequest usual{
      .table_percent = 1, .entry_bytes = 16, .entries_per_row = 8, .rows_per_lock = 16, .slots_per_session = 4};
  layout::GeometryRequest large_entries = usual, shared_locks = usual, wide_locks = usual, short_rows = usual;
  large_entries.entry_bytes = 64;
  large_entries.table_percent = 4;
  shared_locks.rows_per_lock = 1;
  shared_locks.max_lock_bytes = 8;
  wide_locks.rows_per_lock = 64;
  short_rows.entries_per_row = 4;
  short_rows.rows_per_lock = 4;
  layout::GeometryRequest scanned = short_rows;
  scanned.table_percent = 3;  // some keys have rows that are far from each other
  short_rows.rows_per_lock = 2;
  return {.protocol = kProtocol,
          .name = "Rcuckoo",
          .tables = {request(kProtocol, 16 << 20, usual), request(kProtocol, 16 << 20, large_entries),
                     request(kProtocol, 16 << 20, shared_locks), request(kProtocol, 16 << 20, wide_locks)},
          .few = request(kProtocol, 2560 << 10, short_rows),
          .full = 0.8,
          .room = 0.9,
          .full_says = "is full",
          .filled = {&Marks::displaced, &Marks::escalations, &Marks::explorations},
          .scanned = request(kProtocol, 4 << 20, scanned),
          .scanned_keys = 600,
          .page = 10,
          .crowd = {&Marks::lock_conflicts, &Marks::torn_rows},
          .moved = &Marks::displaced,
          .budget = {.lookup_hit = 2,
                     .lookup_miss = 2,
                     .insert = 3,
                     .refusal = 3,
                     .update = 3,
                     .remove = 3,
                     .scan_empty = 1,
                     .scan = 6,
                     .scan_messages = 2},
          .one_more = &Marks::multi_word_locks};
}

inline Sample sample_of_race() {
  constexpr auto kProtocol = layout::Protocol::race;
  const layout::GeometryRequest usual{.table_percent = 1, .slots_per_session = 2};
  layout::GeometryRequest many = usual;
  many.tables = 8;
  return {.protocol = kProtocol,
          .name = "Race",
          .tables = {request(kProtocol, 16 << 20, usual), request(kProtocol, 4 << 20, many)},
          .few = request(kProtocol, 2560 << 10, usual),
          .full = 0.88,
          .full_says = "has no free slot",
          .scanned = request(kProtocol, 4 << 20, many),
          .scanned_keys = 300,
          .page = 20,
          .crowd = {&Marks::slot_conflicts},
          .splits = &Marks::splits_finished,
          .stale = &Marks::stale_routes,
          .astray = 4,
          .grows = request(kProtocol, 4 << 20, many),
          .grown = 0.6,
          .budget = {.lookup_hit = 2,
                     .lookup_miss = 1,
                     .insert = 3,
                     .refusal = 3,
                     .update = 3,
                     .remove = 3,
                     .scan_empty = 1,
                     .scan = 6,
                     .scan_messages = 3}};
}

inline Sample sample_of_outback() {
  constexpr auto kProtocol = layout::Protocol::outback;
  const layout::GeometryRequest usual{.table_percent = 1};
  layout::GeometryRequest many = usual;
  many.table_percent = 5;
  return {.protocol = kProtocol,
          .name = "Outback",
          .tables = {request(kProtocol, 16 << 20, usual), request(kProtocol, 64 << 20, many)},
          .few = request(kProtocol, 2560 << 10, usual),
          .full = 0.88,
          .scanned = request(kProtocol, 4 << 20, usual),
          .scanned_keys = 300,
          .page = 3,  // a step ends with a partition, and those of so small a memory have two buckets
          .budget = {.lookup_hit = 1,
                     .lookup_miss = 1,
                     .insert = 1,
                     .refusal = 1,
                     .update = 1,
                     .modify = 2,
                     .named = 1,
                     .remove = 1,
                     .scan_empty = 4,  // three of them read the locator
                     .scan = 1,
                     .scan_messages = 5},
          .call_head = layout::kKvRequestHead + 16};  // key and value are padded
}

inline std::vector<Sample> samples() { return {sample_of_rcuckoo(), sample_of_race(), sample_of_outback()}; }

}  // namespace farpool::index::contract
