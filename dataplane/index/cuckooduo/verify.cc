// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/verify.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "index/cuckooduo/rebuild.h"
#include "index/cuckooduo/slot.h"
#include "layout/extent.h"
#include "layout/segment.h"

namespace farpool::cuckooduo {

using base::Bytes;
using base::MutableBytes;
using base::Result;
using index::Defect;
using index::Report;

namespace {

// Returns the bytes that a slot with a pointer points to; nothing: it points beyond the heap.
std::optional<Bytes> block_of(const Slot& slot, Bytes heap) {
  const std::uint64_t units = heap.size() / layout::kBlockUnit;
  if (slot.units == 0 || slot.block >= units) return std::nullopt;
  const std::uint64_t offset = layout::block_offset(slot.block), bytes = slot.units * layout::kBlockUnit;
  if (offset > heap.size() || bytes > heap.size() - offset) return std::nullopt;
  return heap.subspan(offset, bytes);
}

std::optional<layout::ExtentView> extent_of(const Slot& slot, Bytes heap) {
  const std::optional<Bytes> block = block_of(slot, heap);
  return block ? layout::read_extent(*block, slot.block) : std::nullopt;
}

// Pairs whose extents are damaged are each their own: neither is dropped.
SameKey same_key(Bytes heap) {
  return [heap](const Slot& a, const Slot& b) {
    const auto key = [heap](const Slot& slot) -> std::optional<Bytes> {
      if (slot.state == SlotState::in_place) return slot.key;
      const auto extent = extent_of(slot, heap);
      return extent ? std::optional(extent->key) : std::nullopt;
    };
    if (a.state == SlotState::pointer && b.state == SlotState::pointer && a.block == b.block) return true;
    const auto one = key(a), other = key(b);
    return one && other && std::equal(one->begin(), one->end(), other->begin(), other->end());
  };
}

class Verifier {
 public:
  Verifier(const Site& site, Bytes table, Bytes heap, const index::Verification& how)
      : site_(site),
        shape_(site.shape),
        vault_(table.first(site.shape.vault_bytes())),
        heap_(heap),
        how_(how),
        dropped_(shape_.end(), false),
        misplaced_(shape_.end(), false),
        report_(heap.size()) {}

  Report run() {
    report_.rows = (site_.bytes() + row_bytes() - 1) / row_bytes();
    const Result<Rebuilt> rebuilt = rebuild(shape_, site_.salt, site_.secret, vault_, same_key(heap_));
    if (rebuilt.ok()) {
      for (const Effect& effect : rebuilt->repairs) {
        if (effect.kind == Effect::Kind::clear) dropped_[effect.place] = true;
        if (effect.kind == Effect::Kind::copy) misplaced_[effect.from] = true;
      }
    } else {
      report_.tell({Defect::Kind::impossible, 0, 0, 0, rebuilt.status().message()});
    }
    for (Place place = 0; place < shape_.end(); ++place) {
      if (how_.progress && place % kProgressSlots == 0) how_.progress(shape_.row_of(place));
      look_at(place);
    }
    return std::move(report_);
  }

 private:
  static constexpr Place kProgressSlots = 1 << 20;

  std::uint64_t row_bytes() const { return std::uint64_t{shape_.slots} * shape_.slot_bytes; }
  void tell(Defect::Kind kind, Place place, const std::string& what) {
    report_.tell({kind, shape_.row_of(place), shape_.slot_of(place), place * shape_.slot_bytes,
                  "place " + std::to_string(place) + " of the vault " + what});
  }

  void look_at(Place place) {
    const Slot slot = read_slot(vault_.subspan(place * shape_.slot_bytes, shape_.slot_bytes), place);
    if (slot.verdict == Slot::Verdict::empty) return;
    ++report_.entries;
    if (!slot.whole()) return tell(Defect::Kind::tentative, place, "has a pair whose WRITE has not ended");
    if (dropped_[place] && !misplaced_[place]) {
      return tell(Defect::Kind::tentative, place, "has an older copy of a pair");
    }
    if (misplaced_[place]) tell(Defect::Kind::misplaced, place, "has a pair where no lookup finds it");
    if (slot.state == SlotState::in_place) return count(place, slot, slot.key, slot.value);
    ++report_.extents;
    if (!block_of(slot, heap_)) return tell(Defect::Kind::beyond_heap, place, "points beyond the heap");
    if (!report_.reached.mark(slot.block, slot.units)) {
      tell(Defect::Kind::shared, place, "points to a block of another slot");
    }
    const auto extent = extent_of(slot, heap_);
    if (!extent) return tell(Defect::Kind::extent, place, "points to an extent that is not whole");
    if (base::keyed_hash(site_.secret, extent->key) != slot.hash) {
      tell(Defect::Kind::hash, place, "does not have the hash of its key");
    }
    count(place, slot, extent->key, extent->value);
  }

  void count(Place place, const Slot& slot, Bytes key, Bytes value) {
    ++report_.keys;
    report_.bytes += key.size() + value.size();
    if (!how_.visit) return;
    how_.visit({.key = base::text_of(key),
                .value = base::text_of(value),
                .row = shape_.row_of(place),
                .slot = shape_.slot_of(place),
                .block = slot.block,
                .block_bytes = slot.units * layout::kBlockUnit});
  }

  const Site& site_;
  const Shape& shape_;
  const Bytes vault_, heap_;
  const index::Verification& how_;
  std::vector<bool> dropped_, misplaced_;  // by what the next owner would do
  Report report_;
};

}  // namespace

Report verify(const Site& site, Bytes table, Bytes heap, const index::Verification& how) {
  return Verifier(site, table, heap, how).run();
}

Result<std::uint64_t> mend(const Site& site, MutableBytes table, Bytes heap) {
  const std::uint64_t slot_bytes = site.shape.slot_bytes;
  const auto slot_at = [&](Place place) { return table.subspan(place * slot_bytes, slot_bytes); };
  const Result<Rebuilt> rebuilt =
      rebuild(site.shape, site.salt, site.secret, table.first(site.shape.vault_bytes()), same_key(heap));
  if (!rebuilt.ok()) return rebuilt.status();
  for (const Effect& effect : rebuilt->repairs) {
    const Slot from = effect.kind == Effect::Kind::copy ? read_slot(slot_at(effect.from), effect.from) : Slot();
    put_effect(slot_at(effect.place), effect, from);
  }
  std::memset(table.data() + site.record(0).offset, 0, site.records * Record::kBytes);
  return rebuilt->repairs.size();
}

}  // namespace farpool::cuckooduo
