// SPDX-License-Identifier: Apache-2.0
// What must hold of a table's bytes when nobody changes it, checked over an image of the memory. For memory nodes that
// take their memory up again, tests, simulation and offline checkers; includes no I/O. Any bytes may be given.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "layout/geometry.h"

namespace farpool::rcuckoo {

// One key, where it lies. The views are into the image, or into the rows that are looked at instead.
struct Sighting {
  std::string_view key;
  std::string_view value;
  std::uint64_t row = 0;
  std::uint64_t slot = 0;
  std::uint64_t block = 0;        // in units, if it has an extent
  std::uint64_t block_bytes = 0;  // 0: in place
};

// Which units of the heap index entries point to: the blocks that are in use.
class Reached {
 public:
  explicit Reached(std::uint64_t heap_bytes);
  bool at(std::uint64_t unit) const { return (words_[unit / 64] >> (unit % 64) & 1) != 0; }
  bool any(std::uint64_t first, std::uint64_t count) const;
  std::uint64_t units() const { return units_; }
  // False, if another entry points to one of the units. All are marked.
  bool mark(std::uint64_t first, std::uint64_t count);
  void clear(std::uint64_t first, std::uint64_t count);

 private:
  std::uint64_t units_;
  std::vector<std::uint64_t> words_;
};

// One thing that must not be. Its words say which place is wrong and how; never key or value bytes.
struct Defect {
  enum class Kind : std::uint8_t {
    torn,         // a row does not match its checksum: nobody can read its entries
    impossible,   // an entry that nobody writes
    beyond_heap,  // an extent that cannot be there
    extent,       // an extent that is not whole
    hash,         // not the key's
    misplaced,    // in neither row of its key
    twice,        // a key that lies somewhere else, too
    shared,       // a block that is another entry's, too
  };
  static constexpr std::size_t kKinds = 8;
  Kind kind = Kind::torn;
  std::uint64_t row = 0;
  std::uint64_t slot = 0;
  std::string what;
};

struct Report {
  static constexpr std::size_t kMostDefects = 100;

  explicit Report(std::uint64_t heap_bytes) : reached(heap_bytes) {}
  std::uint64_t defect_count() const { return std::accumulate(of_kind.begin(), of_kind.end(), std::uint64_t{0}); }

  std::uint64_t rows = 0;
  std::uint64_t torn_rows = 0;
  std::uint64_t entries = 0;  // that are not empty
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // of keys and values
  std::uint64_t extents = 0;
  Reached reached;              // also by entries that have a defect, as far as they can be read
  std::vector<Defect> defects;  // the first of them
  std::array<std::uint64_t, Defect::kKinds> of_kind{};
};

struct Verification {
  std::function<void(const Sighting&)> visit;
  // Told of now and then: how many rows have been looked at.
  std::function<void(std::uint64_t rows)> progress;
  // Rows that are looked at instead of those of the image: what they become when what is under way is finished
  // (repair.h). May be null.
  const std::map<std::uint64_t, std::vector<std::byte>>* instead = nullptr;
};

// Every row is whole; every entry is well formed, lies in a row of its key, and its extent is whole and of its hash; no
// key occurs twice, and no block. `table` and `heap` are the regions' bytes. Beside the image it needs a bit for each
// unit of the heap.
Report verify(const layout::Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
              const Verification& how = {});

}  // namespace farpool::rcuckoo
