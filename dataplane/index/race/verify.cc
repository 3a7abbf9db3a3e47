// SPDX-License-Identifier: Apache-2.0
#include "index/race/verify.h"

#include <cstring>
#include <optional>
#include <string>

#include "index/race/layout.h"
#include "index/race/locate.h"
#include "layout/extent.h"
#include "layout/operation_slot.h"

namespace farpool::race {
namespace {

using index::Report;
using index::Sighting;
using index::Verification;

constexpr std::uint64_t kProgressGroups = 1 << 18;

// Slots of a group are numbered as they lie: 0 to 20.
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
      : g_(geometry), table_(table), heap_(heap), seed_(seed), how_(how), report_(heap.size()) {}

  Report run() {
    for (std::uint64_t group = 0; group < g_.rows; ++group) {
      if (how_.progress && group % kProgressGroups == 0) how_.progress(group);
      ++report_.rows;
      for (std::uint64_t bucket = 0; bucket < 3; ++bucket) {
        const auto header = base::load<std::uint64_t>(table_.data() + group * kGroupBytes + bucket * kBucketBytes);
        if (!HeaderWord::well_formed(header)) {
          report_.tell(
              {Kind::torn, group, 0, group * kGroupBytes + bucket * kBucketBytes,
               "the header of bucket " + std::to_string(bucket) + " of group " + std::to_string(group) + " cannot be"});
        }
      }
      for (std::uint64_t slot = 0; slot < kGroupSlots; ++slot) look_at(group, slot);
    }
    if (how_.progress) how_.progress(g_.rows);
    return std::move(report_);
  }

 private:
  void tell(Kind kind, std::uint64_t group, std::uint64_t slot, std::string what) {
    report_.tell({kind, group, slot, offset_of(group, slot), std::move(what)});
  }
  Slot at(std::uint64_t offset) const { return Slot(base::load<std::uint64_t>(table_.data() + offset)); }

  // The extent behind a slot, and how long it is; nothing if it is not whole.
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

  void look_at(std::uint64_t group, std::uint64_t number) {
    const std::uint64_t offset = offset_of(group, number);
    const Slot slot = at(offset);
    if (slot.empty()) return;
    ++report_.entries;
    if (!slot.well_formed()) return tell(Kind::impossible, group, number, place(group, number) + " cannot be");
    std::uint64_t bytes = 0;
    const auto extent = extent_of(slot, bytes);
    if (bytes == 0) return tell(Kind::beyond_heap, group, number, place(group, number) + " points beyond the heap");
    const std::uint64_t units = (bytes + layout::kBlockUnit - 1) / layout::kBlockUnit;
    if (slot.tentative()) {
      (void)report_.reached.mark(slot.block(), units);
      return tell(Kind::tentative, group, number, "the insert of " + place(group, number) + " was not over");
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
    bool in_place = false;
    for (const Place& one : locate(hash, g_.rows)) {
      for (std::uint64_t index = 0; index < kCombinedSlots; ++index) {
        const std::uint64_t other = one.slot_offset(index);
        in_place = in_place || other == offset;
        if (other >= offset || !at(other).committed() || at(other).print() != slot.print()) continue;
        std::uint64_t other_bytes = 0;
        const auto twin = extent_of(at(other), other_bytes);
        if (twin && base::text_of(twin->key) == base::text_of(extent->key)) {
          tell(Kind::twice, group, number, place(group, number) + " has a key that lies in another slot, too");
        }
      }
    }
    if (!in_place) tell(Kind::misplaced, group, number, place(group, number) + " is in no bucket of its key");
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
  const base::Bytes table_;
  const base::Bytes heap_;
  const base::HashSecret seed_;
  const Verification& how_;
  Report report_;
};

}  // namespace

Report verify(const layout::Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
              const Verification& how) {
  return Verifier(geometry, table, heap, seed, how).run();
}

std::uint64_t repair_image(const layout::Geometry& geometry, base::MutableBytes memory) {
  const auto region = [&](layout::RegionId id) {
    return memory.subspan(geometry.at(id).offset, geometry.at(id).bytes);
  };
  std::uint64_t dropped = 0;
  const base::MutableBytes table = region(layout::kTable), slots = region(layout::kSlots);
  for (std::uint64_t group = 0; group < geometry.rows; ++group) {
    for (std::uint64_t slot = 0; slot < kGroupSlots; ++slot) {
      std::byte* at = table.data() + offset_of(group, slot);
      if (!Slot(base::load<std::uint64_t>(at)).tentative()) continue;
      base::store(at, std::uint64_t{0});
      ++dropped;
    }
  }
  for (const layout::RegionId id : {layout::kLocks, layout::kLeases}) {
    std::memset(region(id).data(), 0, region(id).size());
  }
  for (std::uint64_t at = 0; at + sizeof(layout::OperationSlot) <= slots.size(); at += sizeof(layout::OperationSlot)) {
    base::store(slots.data() + at + layout::kSlotHolder.offset, std::uint64_t{0});
  }
  return dropped;
}

}  // namespace farpool::race
