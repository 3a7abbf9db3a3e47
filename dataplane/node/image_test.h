// SPDX-License-Identifier: Apache-2.0
// A small memory with something of every kind in it, made by hand: for tests that damage it, and for the fuzzer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "directory/directory.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "index/rcuckoo/repair.h"
#include "layout/extent.h"
#include "layout/geometry.h"
#include "layout/operation_slot.h"
#include "layout/private_page.h"
#include "layout/segment.h"
#include "layout/superblock.h"

namespace farpool::node {

class TestImage {
 public:
  struct Place {
    std::uint64_t row = 0, slot = 0, units = 0;
  };
  static constexpr char kPool[] = "pool";
  static constexpr std::uint64_t kOwner = 5;        // session
  static constexpr std::uint64_t kHolder = 0xdead;  // client incarnation

  static constexpr layout::GeometryRequest kGeometry{.memory_bytes = 2 << 20,  // and what else it takes
                                                     .table_percent = 1,
                                                     .entry_bytes = 16,
                                                     .entries_per_row = 4,
                                                     .rows_per_lock = 2,
                                                     .max_sessions = 4,
                                                     .slots_per_session = 2};

  explicit TestImage(layout::GeometryRequest request = kGeometry) {
    while (!layout::plan_geometry(request).ok()) request.memory_bytes += layout::kPage;
    record_ = {.incarnation = 77,
               .pool = layout::pool_tag(kPool),
               .epoch = 3,
               .lives = 2,
               .table_seed = {11, 22},
               .pool_secret = {33, 44},
               .geometry = layout::plan_geometry(request).value()};
    bytes_.resize(geometry().memory_bytes);
    rcuckoo::format_table(geometry(), region(layout::kTable));
    directory::format(region(layout::kDirectory), geometry().tables);
    write_pages();
    for (int i = 0; i < 20; ++i) put("small" + std::to_string(i), "v");
    for (int i = 0; i < 6; ++i) put("large" + std::to_string(i), std::string(150, 'x'));
    put("huge", std::string(300'000, 'y'));
    // Segment 0 has an owner, and blocks that this owner alone knows of; segment 1 has been given up, and its bitmap
    // says what is free. Then come the run, and a free segment.
    header(0).owner = kOwner;
    header(1).owner = 0;
    for (std::uint64_t block = 0; block < shape(1).blocks; ++block) {
      if (!used_.contains({1, block})) bitmap(1, block / 64) |= 1ull << block % 64;
    }
  }

  const layout::Geometry& geometry() const { return record_.geometry; }
  layout::PrivateRecord& record() { return record_; }
  base::MutableBytes bytes() { return bytes_; }
  base::MutableBytes region(layout::RegionId id) {
    return bytes().subspan(geometry().at(id).offset, geometry().at(id).bytes);
  }
  const Place& place(const std::string& key) const { return places_.at(key); }

  // Writes both records of the private page, and the superblock.
  void write_pages() {
    const auto superblock = layout::write_superblock(
        {.incarnation = record_.incarnation, .pool = record_.pool, .geometry = record_.geometry});
    std::copy(superblock.begin(), superblock.end(), bytes_.begin());
    for (int i = 0; i < 2; ++i) layout::write_private_page(bytes().last(layout::kPage), record_);
  }

  base::MutableBytes row(std::uint64_t number) {
    return region(layout::kTable).subspan(number * geometry().row_bytes(), geometry().row_bytes());
  }
  rcuckoo::RowView view(std::uint64_t number) { return {geometry(), row(number)}; }
  void seal(std::uint64_t number) {
    const base::MutableBytes bytes = row(number);
    base::store(bytes.data() + bytes.size() - 8, base::crc64(bytes.first(bytes.size() - 8), number));
  }
  std::uint64_t hash(const std::string& key) const { return base::keyed_hash(record_.table_seed, base::bytes_of(key)); }

  rcuckoo::Entry entry_of(const std::string& key, const std::string& value, std::uint64_t units = 0) {
    const base::Bytes k = base::bytes_of(key), v = base::bytes_of(value);
    if (rcuckoo::Entry::fits(geometry().entry_bytes, k.size(), v.size())) return rcuckoo::Entry::in_place(k, v);
    const std::uint64_t size = layout::extent_bytes(k.size(), v.size());
    layout::write_extent(region(layout::kHeap).subspan(layout::block_offset(units), size), units, k, v);
    return rcuckoo::Entry::extent(units, size, hash(key));
  }
  // Returns the first free place in the key's rows.
  Place room(const std::string& key) {
    const auto rows = rcuckoo::locate(hash(key), geometry().rows);
    for (const std::uint64_t number : {rows.first, rows.second}) {
      if (const int slot = view(number).empty_slot(); slot >= 0) return {number, static_cast<std::uint64_t>(slot), 0};
    }
    FARPOOL_CHECK(false);
  }
  void put(const std::string& key, const std::string& value) {
    Place at = room(key);
    if (!rcuckoo::Entry::fits(geometry().entry_bytes, key.size(), value.size())) {
      at.units = block(layout::extent_bytes(key.size(), value.size()));
    }
    rcuckoo::edit_row(geometry(), row(at.row), at.row, at.slot, entry_of(key, value, at.units));
    places_[key] = at;
    slot(0).keys += 1;
    slot(0).bytes += key.size() + value.size();
  }

  layout::OperationSlot& slot(std::uint64_t index) {
    return reinterpret_cast<layout::OperationSlot*>(region(layout::kSlots).data())[index];
  }
  std::uint64_t& lock_word(std::uint64_t index) {
    return reinterpret_cast<std::uint64_t*>(region(layout::kLocks).data())[index];
  }
  std::uint64_t& lease(std::uint64_t index) {
    return reinterpret_cast<std::uint64_t*>(region(layout::kLeases).data())[index];
  }
  layout::SegmentHeader& header(std::uint64_t segment) {
    return *reinterpret_cast<layout::SegmentHeader*>(heap_at(segment));
  }
  std::uint64_t& bitmap(std::uint64_t segment, std::uint64_t word) {
    return reinterpret_cast<std::uint64_t*>(heap_at(segment) + sizeof(layout::SegmentHeader))[word];
  }
  layout::SegmentShape shape(std::uint64_t segment) {
    const layout::SegmentHeader& of = header(segment);
    return layout::segment_shape(of.size_class, of.run * geometry().segment_bytes);
  }

  // Claims these rows' locks, and takes them.
  layout::OperationSlot& claim(std::uint64_t index, const std::vector<std::uint64_t>& rows) {
    layout::OperationSlot& said = slot(index);
    said.holder = kHolder;
    said.sequence = layout::Sequence::of(layout::Sequence::number(said.sequence) + 1, 0);
    said.state = rcuckoo::SlotState::Kind::put(static_cast<std::uint64_t>(rcuckoo::Operation::put));
    said.lock_word = {};
    for (const std::uint64_t number : rows) {
      const rcuckoo::LockBit bit = rcuckoo::lock_bit(geometry(), rcuckoo::lock_of(geometry(), number));
      for (layout::HeldLocks& held : said.lock_word) {
        if (held.mask != 0 && held.offset != bit.offset) continue;
        held = {bit.offset, held.mask | bit.mask};
        break;
      }
      lock_word(bit.offset / 8) |= bit.mask;
    }
    said.seal_claim();
    return said;
  }
  // Plans to put a new key where there is room, and takes its locks; writes no row yet.
  Place plan(std::uint64_t index, const std::string& key, const std::string& value) {
    const Place at = room(key);
    const auto rows = rcuckoo::locate(hash(key), geometry().rows);
    layout::OperationSlot& said = claim(index, {rows.first, rows.second});
    said.row = {rcuckoo::SlotRow::of(at.row, at.slot)};
    said.replaced = 0;
    said.rest = rcuckoo::rest_of(geometry(), row(at.row), at.slot);
    said.redo = entry_of(key, value).words();
    said.keys_after = said.keys + 1;
    said.bytes_after = said.bytes + key.size() + value.size();
    said.seal_plan();
    return at;
  }

 private:
  std::byte* heap_at(std::uint64_t segment) {
    return region(layout::kHeap).data() + segment * geometry().segment_bytes;
  }
  // Returns the next block: blocks alternate between segments 0 and 1; a run lies in segment 2 and behind it.
  std::uint64_t block(std::uint64_t bytes) {
    const std::uint64_t size_class = layout::size_class_for(bytes, geometry().segment_bytes);
    const bool run = size_class == layout::kRun;
    const std::uint64_t segment = run ? 2 : used_.size() % 2;
    header(segment).size_class = size_class;
    header(segment).run = run ? layout::run_segments(bytes, geometry().segment_bytes) : 1;
    header(segment).owner = kOwner;
    const std::uint64_t block = run ? 0 : used_.size() / 2;
    used_[{segment, block}] = true;
    const layout::SegmentShape is = shape(segment);
    return (segment * geometry().segment_bytes + is.first_block + block * is.block_bytes) / layout::kBlockUnit;
  }

  layout::PrivateRecord record_;
  std::vector<std::byte> bytes_;
  std::map<std::string, Place> places_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, bool> used_;  // segment, block
};

}  // namespace farpool::node
