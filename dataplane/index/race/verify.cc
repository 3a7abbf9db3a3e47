// SPDX-License-Identifier: Apache-2.0
#include "index/race/verify.h"

#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "directory/directory.h"
#include "index/claims.h"
#include "index/race/layout.h"
#include "index/race/locate.h"
#include "layout/extent.h"

namespace farpool::race {
namespace {

using index::Report;
using index::Sighting;
using index::Verification;

constexpr std::uint64_t kProgressGroups = 1 << 18;

// Slots of a group are numbered in the order of memory: 0 to 20.
constexpr std::uint64_t offset_of(std::uint64_t group, std::uint64_t slot) {
  return group * kGroupBytes + slot / kBucketSlots * kBucketBytes + 8 + slot % kBucketSlots * 8;
}
std::string place(std::uint64_t group, std::uint64_t slot) {
  return "slot " + std::to_string(slot) + " of group " + std::to_string(group);
}

class Verifier {
  using Kind = index::Defect::Kind;

 public:
  Verifier(const layout::Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
           const Verification& how)
      : g_(geometry),
        rows_(geometry.rows_per_table()),
        table_(table),
        heap_(heap),
        seed_(seed),
        how_(how),
        directory_(how.directory, geometry.tables),
        report_(heap.size()) {
    for (std::uint64_t table = 0; table < g_.tables; ++table) {
      const auto split = directory::under_way(directory_, table);
      if (!split || split->to == table) continue;
      of_old_[table] = of_new_[split->to] = *split;
    }
  }

  Report run() {
    for (std::uint64_t group = 0; group < g_.rows; ++group) {
      if (how_.progress && group % kProgressGroups == 0) how_.progress(group);
      ++report_.rows;
      for (std::uint64_t bucket = 0; bucket < 3; ++bucket) {
        if (!header_can_be(group / rows_, header(group, bucket))) {
          report_.tell(
              {Kind::torn, group, 0, group * kGroupBytes + bucket * kBucketBytes,
               "the header of bucket " + std::to_string(bucket) + " of group " + std::to_string(group) + " cannot be"});
        }
      }
      for (std::uint64_t slot = 0; slot < kGroupSlots; ++slot) look_at(group, slot);
    }
    // Last, because a slot that no client will commit any more may point to another key's block by now.
    for (const auto& [block, units] : tentative_) (void)report_.reached.mark(block, units);
    if (how_.progress) how_.progress(g_.rows);
    return std::move(report_);
  }

 private:
  void tell(Kind kind, std::uint64_t group, std::uint64_t slot, std::string what) {
    report_.tell({kind, group, slot, offset_of(group, slot), std::move(what)});
  }
  Slot at(std::uint64_t group, std::uint64_t slot) const {
    return Slot(base::load<std::uint64_t>(table_.data() + offset_of(group, slot)));
  }
  std::uint64_t header(std::uint64_t group, std::uint64_t bucket) const {
    return base::load<std::uint64_t>(table_.data() + group * kGroupBytes + bucket * kBucketBytes);
  }
  bool moving(std::uint64_t from) const {
    return layout::SplitWord::phase(directory_.split(from)) == layout::SplitWord::moving;
  }
  const directory::Split* split_of(const std::map<std::uint64_t, directory::Split>& splits, std::uint64_t table) const {
    const auto found = splits.find(table);
    return found == splits.end() ? nullptr : &found->second;
  }

  // The number of a move may be any.
  bool header_can_be(std::uint64_t table, std::uint64_t word) const {
    using layout::HomeWord;
    const std::uint64_t header = HeaderWord::open(word) ? HeaderWord::keys(word) : word;
    if (const directory::Split* split = split_of(of_old_, table)) {
      return header == HeaderWord::of(split->depth, split->suffix) ||
             (moving(table) && header == HeaderWord::of(split->depth - 1, split->suffix));
    }
    if (const directory::Split* split = split_of(of_new_, table)) {
      return header == HeaderWord::of(split->depth, split->suffix_of_target()) || (moving(split->from) && header == 0);
    }
    const std::uint64_t home = directory_.home(table);
    const std::uint64_t whole = HeaderWord::of(HomeWord::Depth::get(home), HomeWord::Suffix::get(home));
    // A table that no entry names yet is still closed.
    return header == 0 ? table != 0 && !named(table) : home != 0 && header == whole;
  }
  bool named(std::uint64_t table) const {
    const std::uint64_t home = directory_.home(table);
    if (home == 0) return false;
    const auto route = directory::route(directory_, layout::HomeWord::Suffix::get(home));
    return route && route->table == table;
  }

  // Returns the extent behind a slot, and its length; nothing if it is not whole.
  std::optional<layout::ExtentView> extent_of(Slot slot, std::uint64_t& bytes) const {
    const std::uint64_t units = heap_.size() / layout::kBlockUnit;
    bytes = 0;
    if (slot.block() >= units || slot.bytes() > heap_.size() - layout::block_offset(slot.block())) return {};
    const base::Bytes rest = heap_.subspan(layout::block_offset(slot.block()));
    const auto lengths = base::load<std::uint64_t>(rest.data());
    const std::uint64_t key_bytes = layout::ExtentLengths::key(lengths),
                        value_bytes = layout::ExtentLengths::value(lengths);
    bytes = slot.bytes();
    const std::uint64_t told = layout::extent_bytes(key_bytes, value_bytes);
    if (!slot.fits(told) || told > rest.size()) return {};
    bytes = told;
    return layout::read_extent(rest.first(told), slot.block());
  }

  // Returns the bucket whose header decides for the key in this slot: 0 or 2; nothing if the key has no place here.
  std::optional<std::uint64_t> main_of(std::uint64_t hash, std::uint64_t group, std::uint64_t slot) const {
    for (const Place& place : locate(hash, rows_)) {
      if (place.group != group % rows_) continue;
      for (std::uint64_t index = 0; index < kCombinedSlots; ++index) {
        if (place.slot_offset(index) == offset_of(group % rows_, slot)) return 2 * place.side;
      }
    }
    return std::nullopt;
  }

  // The meaning of a committed or moving slot. While its group is on its way, the slot of the old table holds the key
  // until the new one is open.
  enum class SlotState : std::uint8_t { holds, copied, misplaced, impossible };
  SlotState state_of(std::uint64_t group, std::uint64_t number, const std::optional<layout::ExtentView>& extent) const {
    const std::uint64_t table = group / rows_, within = group % rows_;
    const Slot slot = at(group, number);
    const directory::Split* out = split_of(of_old_, table);
    if (slot.moving()) {
      if (out == nullptr) return SlotState::impossible;
      const std::uint64_t there = out->to * rows_ + within;
      if (!HeaderWord::open(header(there, kOpenedFirst))) return SlotState::holds;
      // All copies have been made. A slot that differs now is in use.
      if (at(there, number) != slot.as(Slot::State::committed) || !extent) return SlotState::copied;
    } else if (!extent) {
      return SlotState::holds;
    }
    const auto main = main_of(base::keyed_hash(seed_, extent->key), group, number);
    if (!main) return slot.moving() ? SlotState::copied : SlotState::misplaced;
    const std::uint64_t hash = directory::hash_of(how_.pool_secret, extent->key);
    const bool opened_there = out != nullptr && HeaderWord::open(header(out->to * rows_ + within, *main));
    const std::uint64_t here = header(group, *main);
    if (slot.moving()) return opened_there ? SlotState::copied : SlotState::holds;
    // An impossible header says nothing of any key.
    if (HeaderWord::well_formed(here) && HeaderWord::covers(here, hash)) return SlotState::holds;
    if (!HeaderWord::open(here)) {
      return split_of(of_new_, table) != nullptr ? SlotState::copied : SlotState::misplaced;
    }
    return out != nullptr && out->moves(hash) && !opened_there ? SlotState::holds : SlotState::misplaced;
  }

  // Says whether another slot holds the key: an earlier one in its table, or any in the old table of its split.
  bool elsewhere(std::uint64_t group, std::uint64_t number, std::uint64_t hash, base::Bytes key) const {
    const auto holds = [&](std::uint64_t other_group, std::uint64_t other) {
      const Slot slot = at(other_group, other);
      if (slot.empty() || slot.tentative() || slot.print() != print_of(hash)) return false;
      std::uint64_t bytes = 0;
      const auto extent = extent_of(slot, bytes);
      return extent && base::text_of(extent->key) == base::text_of(key) &&
             state_of(other_group, other, extent) == SlotState::holds;
    };
    const std::uint64_t table = group / rows_;
    const directory::Split* in = split_of(of_new_, table);
    for (const Place& place : locate(hash, rows_)) {
      for (std::uint64_t slot = 0; slot < kGroupSlots; ++slot) {
        const std::uint64_t here = table * rows_ + place.group;
        if (offset_of(here, slot) < offset_of(group, number) && holds(here, slot)) return true;
        if (in != nullptr && holds(in->from * rows_ + place.group, slot)) return true;
      }
    }
    return false;
  }

  void look_at(std::uint64_t group, std::uint64_t number) {
    const Slot slot = at(group, number);
    if (slot.empty()) return;
    ++report_.entries;
    if (!slot.well_formed()) return tell(Kind::impossible, group, number, place(group, number) + " cannot be");
    std::uint64_t bytes = 0;
    const auto extent = extent_of(slot, bytes);
    if (bytes == 0) return tell(Kind::beyond_heap, group, number, place(group, number) + " points beyond the heap");
    const std::uint64_t units = (bytes + layout::kBlockUnit - 1) / layout::kBlockUnit;
    if (slot.tentative()) {
      tentative_.emplace_back(slot.block(), units);
      return tell(Kind::tentative, group, number, "the insert of " + place(group, number) + " was not over");
    }
    const SlotState state = state_of(group, number, extent);
    if (state == SlotState::copied) return;
    if (state == SlotState::impossible) {
      return tell(Kind::impossible, group, number, place(group, number) + " moves, and its table is not being split");
    }
    ++report_.extents;
    if (!report_.reached.mark(slot.block(), units)) {
      tell(Kind::shared, group, number, "the block of " + place(group, number) + " overlaps another slot's");
    }
    if (!extent) {
      return tell(Kind::extent, group, number, "the extent of " + place(group, number) + " is not whole");
    }
    const std::uint64_t hash = base::keyed_hash(seed_, extent->key);
    if (slot.print() != print_of(hash)) {
      tell(Kind::hash, group, number, "the print of " + place(group, number) + " is not its key's");
    }
    if (elsewhere(group, number, hash, extent->key)) {
      tell(Kind::twice, group, number, place(group, number) + " has a key that lies in another slot, too");
    }
    if (state == SlotState::misplaced) {
      tell(Kind::misplaced, group, number, place(group, number) + " is in no bucket of its key");
    }
    ++report_.keys;
    report_.bytes += extent->key.size() + extent->value.size();
    if (how_.visit) {
      how_.visit(Sighting{.key = base::text_of(extent->key),
                          .value = base::text_of(extent->value),
                          .row = group,
                          .slot = number,
                          .block = slot.block(),
                          .block_bytes = units * layout::kBlockUnit});
    }
  }

  const layout::Geometry& g_;
  const std::uint64_t rows_;  // of one table
  const base::Bytes table_;
  const base::Bytes heap_;
  const base::HashSecret seed_;
  const Verification& how_;
  const directory::View directory_;
  std::map<std::uint64_t, directory::Split> of_old_, of_new_;  // that are under way, by table
  std::vector<std::pair<std::uint64_t, std::uint64_t>> tentative_;
  Report report_;
};

}  // namespace

void format_tables(const layout::Geometry& geometry, base::MutableBytes tables, std::uint64_t in_use,
                   const std::function<void(std::uint64_t groups)>& progress) {
  const auto depth = static_cast<std::uint64_t>(std::countr_zero(in_use));
  const std::uint64_t buckets = 3 * geometry.rows_per_table();
  for (std::uint64_t bucket = 0; bucket < in_use * buckets; ++bucket) {
    if (progress && bucket % (3 * kProgressGroups) == 0) progress(bucket / 3);
    base::store(tables.data() + bucket * kBucketBytes, HeaderWord::of(depth, bucket / buckets));
  }
}

Report verify(const layout::Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
              const Verification& how) {
  return Verifier(geometry, table, heap, seed, how).run();
}

std::uint64_t repair_image(const layout::Geometry& geometry, base::MutableBytes memory,
                           const std::function<void(std::uint64_t groups)>& progress) {
  std::uint64_t dropped = 0;
  const layout::Span& at_table = geometry.at(layout::kTable);
  const base::MutableBytes table = memory.subspan(at_table.offset, at_table.bytes);
  for (std::uint64_t group = 0; group < geometry.rows; ++group) {
    if (progress && group % kProgressGroups == 0) progress(group);
    for (std::uint64_t slot = 0; slot < kGroupSlots; ++slot) {
      std::byte* at = table.data() + offset_of(group, slot);
      if (!Slot(base::load<std::uint64_t>(at)).tentative()) continue;
      base::store(at, std::uint64_t{0});
      ++dropped;
    }
  }
  index::free_claims(geometry, memory);
  return dropped;
}

}  // namespace farpool::race
