// SPDX-License-Identifier: Apache-2.0
#include "index/race/verify.h"

#include <optional>
#include <string>

#include "index/race/layout.h"
#include "index/race/locate.h"
#include "layout/extent.h"

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
          report_.defect("the header of bucket " + std::to_string(bucket) + " of group " + std::to_string(group) +
                         " cannot be");
        }
      }
      for (std::uint64_t slot = 0; slot < kGroupSlots; ++slot) look_at(group, slot);
    }
    if (how_.progress) how_.progress(g_.rows);
    return std::move(report_);
  }

 private:
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
    if (!slot.well_formed()) return report_.defect(place(group, number) + " cannot be");
    std::uint64_t bytes = 0;
    const auto extent = extent_of(slot, bytes);
    if (bytes == 0) return report_.defect(place(group, number) + " points beyond the heap");
    const std::uint64_t units = (bytes + layout::kBlockUnit - 1) / layout::kBlockUnit;
    if (slot.tentative()) {
      ++report_.unfinished;
      (void)report_.reached.mark(slot.block(), units);
      return;
    }
    ++report_.extents;
    if (!report_.reached.mark(slot.block(), units)) {
      report_.defect("the block of " + place(group, number) + " overlaps another slot's");
    }
    if (!extent) return report_.defect("the extent of " + place(group, number) + " is not whole");
    const std::uint64_t hash = base::keyed_hash(seed_, extent->key);
    if (slot.print() != print_of(hash)) report_.defect("the print of " + place(group, number) + " is not its key's");
    bool in_place = false;
    for (const Place& one : locate(hash, g_.rows)) {
      for (std::uint64_t index = 0; index < kCombinedSlots; ++index) {
        const std::uint64_t other = one.slot_offset(index);
        in_place = in_place || other == offset;
        if (other >= offset || !at(other).committed() || at(other).print() != slot.print()) continue;
        std::uint64_t other_bytes = 0;
        const auto twin = extent_of(at(other), other_bytes);
        if (twin && base::text_of(twin->key) == base::text_of(extent->key)) {
          report_.defect(place(group, number) + " has a key that lies in another slot, too");
        }
      }
    }
    if (!in_place) report_.defect(place(group, number) + " is in no bucket of its key");
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

std::uint64_t drop_tentative(const layout::Geometry& geometry, base::MutableBytes table) {
  std::uint64_t dropped = 0;
  for (std::uint64_t group = 0; group < geometry.rows; ++group) {
    for (std::uint64_t slot = 0; slot < kGroupSlots; ++slot) {
      std::byte* at = table.data() + offset_of(group, slot);
      if (!Slot(base::load<std::uint64_t>(at)).tentative()) continue;
      base::store(at, std::uint64_t{0});
      ++dropped;
    }
  }
  return dropped;
}

}  // namespace farpool::race
