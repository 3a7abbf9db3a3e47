// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/verify.h"

#include <algorithm>

#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "layout/extent.h"

namespace farpool::rcuckoo {
namespace {

struct Seen {
  std::uint64_t what = 0;  // hash, or block
  std::uint64_t end = 0;   // of the block
  std::uint64_t row = 0;
  std::uint64_t slot = 0;
  std::string_view key;
};

std::string place(std::uint64_t row, std::uint64_t slot) {
  return "entry " + std::to_string(slot) + " of row " + std::to_string(row);
}

}  // namespace

Report verify(const Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
              const std::function<void(const Sighting&)>& visit) {
  Report report;
  std::vector<Seen> keys, blocks;
  const auto defect = [&report](std::string what) { report.defects.push_back(std::move(what)); };
  for (std::uint64_t number = 0; number < geometry.rows; ++number) {
    ++report.rows;
    const base::Bytes bytes = table.subspan(number * geometry.row_bytes(), geometry.row_bytes());
    const RowView row(geometry, bytes);
    if (!row.whole(number)) {
      defect("row " + std::to_string(number) + " does not match its checksum");
      continue;
    }
    for (std::uint64_t slot = 0; slot < geometry.entries_per_row; ++slot) {
      const Entry entry = row.entry(slot);
      if (!entry.well_formed(geometry.entry_bytes)) {
        defect(place(number, slot) + " cannot be");
        continue;
      }
      if (entry.empty()) continue;
      Sighting sighting{.row = number, .slot = slot};
      if (entry.type() == EntryType::extent) {
        const std::uint64_t at = layout::block_offset(entry.block());
        if (entry.block() > heap.size() / layout::kBlockUnit || entry.bytes() > heap.size() - at) {
          defect(place(number, slot) + " points beyond the heap");
          continue;
        }
        const auto extent = layout::read_extent(heap.subspan(at, entry.bytes()), entry.block());
        if (!extent) {
          defect("the extent of " + place(number, slot) + " is not whole");
          continue;
        }
        sighting.key = base::text_of(extent->key);
        sighting.value = base::text_of(extent->value);
        sighting.block = entry.block();
        sighting.block_bytes = entry.bytes();
        if (base::keyed_hash(seed, extent->key) != entry.hash())
          defect("the hash of " + place(number, slot) + " is not its key's");
        blocks.push_back({entry.block(), entry.block() + entry.bytes() / layout::kBlockUnit, number, slot, {}});
      } else {
        // Views into the image, not into the copy.
        const base::Bytes raw = bytes.subspan(slot * geometry.entry_bytes + kInlineHeader);
        sighting.key = base::text_of(raw.first(entry.key().size()));
        sighting.value = base::text_of(raw.subspan(entry.key().size(), entry.value().size()));
      }
      const std::uint64_t hash = hash_of(entry, seed);
      const Places places = locate(hash, geometry.rows);
      if (places.first != number && places.second != number)
        defect(place(number, slot) + " is in neither row of its key");
      keys.push_back({hash, 0, number, slot, sighting.key});
      ++report.keys;
      report.bytes += sighting.key.size() + sighting.value.size();
      if (visit) visit(sighting);
    }
  }
  const auto by_what = [](const Seen& a, const Seen& b) { return a.what < b.what; };
  std::sort(keys.begin(), keys.end(), by_what);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = i; j > 0 && keys[j - 1].what == keys[i].what; --j) {
      if (keys[j - 1].key == keys[i].key) {
        defect(place(keys[i].row, keys[i].slot) + " has the key of " + place(keys[j - 1].row, keys[j - 1].slot));
      }
    }
  }
  std::sort(blocks.begin(), blocks.end(), by_what);
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    if (blocks[i].what < blocks[i - 1].end) {
      defect("the blocks of " + place(blocks[i].row, blocks[i].slot) + " and " +
             place(blocks[i - 1].row, blocks[i - 1].slot) + " overlap");
    }
  }
  return report;
}

}  // namespace farpool::rcuckoo
