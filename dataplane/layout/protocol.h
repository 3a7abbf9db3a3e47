// SPDX-License-Identifier: Apache-2.0
// The numbers of the index protocols, and what the cut of a memory depends on in each. An entry in protocols.cc is all
// that this room knows of a protocol; index/protocol.h is the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace farpool::layout {

// As superblocks have it: a number never gets another meaning.
enum class Protocol : std::uint64_t { rcuckoo = 0, race = 1, outback = 2 };

// Figures of a table that a pool may choose, as far as its protocol leaves them open.
struct TableFigures {
  std::uint64_t entry_bytes = 0;
  std::uint64_t entries_per_row = 0;
  std::uint64_t rows_per_lock = 0;
};

// What a memory is cut into where the memory node itself executes the operations, and only it writes: clients write to no
// region but through CALLs. Such a memory has no marks, no lock bits and no segments. A row is a bucket. The table region
// has what clients find keys by, and the heap everything else: rows, too.
struct Served {
  // Returns the largest possible number of rows of at most that many; 0: there is none.
  std::uint64_t (*rows)(std::uint64_t most) = nullptr;
  // Returns the bytes of the table region, for a number of rows that is possible.
  std::uint64_t (*table_bytes)(std::uint64_t rows) = nullptr;
};

struct Shape {
  std::string_view name;            // of the protocol, for flags and people
  std::uint64_t row_trailer = 0;    // bytes of a row that are in no entry
  bool locks = false;               // rows change under bits of the lock region
  std::uint64_t most_tables = 1;    // 1: a table cannot be split
  std::uint64_t most_rows = ~0ull;  // of all tables together
  // Figures that the protocol does not leave open.
  const TableFigures* fixed = nullptr;
  const Served* served = nullptr;  // nullptr: clients read and write the memory themselves
  // Returns why a table cannot have these figures.
  base::Status (*check)(const TableFigures& figures) = nullptr;
};

// By number. The tables are an object file of their own, so that a test can link others.
extern const Shape kShapes[];
extern const std::size_t kShapeCount;

inline bool is_known(Protocol protocol) { return static_cast<std::uint64_t>(protocol) < kShapeCount; }
// The protocol must be known.
inline const Shape& shape_of(Protocol protocol) { return kShapes[static_cast<std::uint64_t>(protocol)]; }

}  // namespace farpool::layout
