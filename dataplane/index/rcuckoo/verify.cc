// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/verify.h"

#include <optional>

#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "layout/extent.h"

namespace farpool::rcuckoo {
namespace {

constexpr std::uint64_t kProgressRows = 1 << 20;

std::string place(std::uint64_t row, std::uint64_t slot) {
  return "entry " + std::to_string(slot) + " of row " + std::to_string(row);
}

bool is_zero(base::Bytes words) {
  std::uint64_t any = 0;
  for (std::size_t i = 0; i < words.size(); i += 8) any |= base::load<std::uint64_t>(words.data() + i);
  return any == 0;
}

class Verifier {
  using Kind = Defect::Kind;

 public:
  Verifier(const Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
           const Verification& how)
      : g_(geometry), table_(table), heap_(heap), seed_(seed), how_(how), report_(heap.size()) {}

  Report run() {
    for (std::uint64_t row = 0; row < g_.rows; ++row) {
      if (how_.progress && row % kProgressRows == 0) how_.progress(row);
      look_at(row);
    }
    if (how_.progress) how_.progress(g_.rows);
    return std::move(report_);
  }

 private:
  base::Bytes bytes_of_row(std::uint64_t row) const {
    if (how_.instead != nullptr && !how_.instead->empty()) {
      if (const auto found = how_.instead->find(row); found != how_.instead->end()) return found->second;
    }
    return table_.subspan(row * g_.row_bytes(), g_.row_bytes());
  }
  RowView view(std::uint64_t row) const { return {g_, bytes_of_row(row)}; }

  void defect(Defect::Kind kind, std::uint64_t row, std::uint64_t slot, std::string what) {
    report_.tell({kind, row, slot, row * g_.row_bytes() + slot * g_.entry_bytes, std::move(what)});
  }

  bool in_heap(const Entry& entry) const {
    return entry.block() <= heap_.size() / layout::kBlockUnit &&
           entry.bytes() <= heap_.size() - layout::block_offset(entry.block());
  }
  std::optional<layout::ExtentView> extent_of(const Entry& entry) const {
    return layout::read_extent(heap_.subspan(layout::block_offset(entry.block()), entry.bytes()), entry.block());
  }

  void look_at(std::uint64_t row) {
    ++report_.rows;
    const base::Bytes bytes = bytes_of_row(row);
    const RowView is(g_, bytes);
    if (!is.whole(row)) {
      ++report_.torn_rows;
      return defect(Kind::torn, row, 0, "row " + std::to_string(row) + " does not match its checksum");
    }
    for (std::uint64_t slot = 0; slot < g_.entries_per_row; ++slot) {
      if (!is_zero(bytes.subspan(slot * g_.entry_bytes, g_.entry_bytes))) look_at(row, slot, is.entry(slot));
    }
  }

  void look_at(std::uint64_t row, std::uint64_t slot, const Entry& entry) {
    ++report_.entries;
    if (!entry.well_formed(g_.entry_bytes)) {
      return defect(Kind::impossible, row, slot, place(row, slot) + " cannot be");
    }
    Sighting sighting{.row = row, .slot = slot};
    std::uint64_t hash = 0;
    if (entry.type() == EntryType::extent) {
      if (!in_heap(entry)) {
        return defect(Kind::beyond_heap, row, slot, place(row, slot) + " points beyond the heap");
      }
      ++report_.extents;
      sighting.block = entry.block();
      sighting.block_bytes = entry.bytes();
      const auto extent = extent_of(entry);
      if (!extent) {
        (void)report_.reached.mark(entry.block(), entry.bytes() / layout::kBlockUnit);
        return defect(Kind::extent, row, slot, "the extent of " + place(row, slot) + " is not whole");
      }
      sighting.key = base::text_of(extent->key);
      sighting.value = base::text_of(extent->value);
      hash = base::keyed_hash(seed_, extent->key);
      if (hash != entry.hash()) {
        defect(Kind::hash, row, slot, "the hash of " + place(row, slot) + " is not its key's");
      }
    } else {
      // Views into the image, not into the copy.
      const base::Bytes raw = bytes_of_row(row).subspan(slot * g_.entry_bytes + kInlineHeader);
      sighting.key = base::text_of(raw.first(entry.key().size()));
      sighting.value = base::text_of(raw.subspan(entry.key().size(), entry.value().size()));
      hash = base::keyed_hash(seed_, entry.key());
    }
    const Places places = locate(hash, g_.rows);
    if (places.first != row && places.second != row) {
      defect(Kind::misplaced, row, slot, place(row, slot) + " is in neither row of its key");
    } else {
      look_for_first(places, sighting, hash);
    }
    if (sighting.block_bytes != 0 && !report_.reached.mark(sighting.block, sighting.block_bytes / layout::kBlockUnit)) {
      defect(Kind::shared, row, slot, "the block of " + place(row, slot) + " overlaps another entry's");
    }
    ++report_.keys;
    report_.bytes += sighting.key.size() + sighting.value.size();
    if (how_.visit) how_.visit(sighting);
  }

  // Finds an entry that was looked at before and has the same key. Only the key's two rows can have one.
  void look_for_first(const Places& places, const Sighting& of, std::uint64_t hash) {
    for (const std::uint64_t row : {places.first, places.second}) {
      if (row > of.row || !view(row).whole(row)) continue;
      const std::uint64_t end = row == of.row ? of.slot : g_.entries_per_row;
      for (std::uint64_t slot = 0; slot < end; ++slot) {
        if (!has_key(view(row).entry(slot), of.key, hash)) continue;
        return defect(Kind::twice, of.row, of.slot, place(of.row, of.slot) + " has the key of " + place(row, slot));
      }
    }
  }
  bool has_key(const Entry& entry, std::string_view key, std::uint64_t hash) const {
    if (entry.empty() || !entry.well_formed(g_.entry_bytes)) return false;
    if (entry.type() == EntryType::in_place) return base::text_of(entry.key()) == key;
    if (entry.hash() != hash || !in_heap(entry)) return false;
    const auto extent = extent_of(entry);
    return extent && base::text_of(extent->key) == key;
  }

  const Geometry& g_;
  const base::Bytes table_;
  const base::Bytes heap_;
  const base::HashSecret seed_;
  const Verification& how_;
  Report report_;
};

}  // namespace

Report verify(const Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
              const Verification& how) {
  return Verifier(geometry, table, heap, seed, how).run();
}

}  // namespace farpool::rcuckoo
