// SPDX-License-Identifier: Apache-2.0
// The engine of all operations that change something: it takes the locks of the key's rows, reads them, decides,
// writes, releases. insert.cc, update.cc, remove.cc, put.cc and modify.cc say what each operation wants. Internal to
// the room.
#pragma once

#include <optional>

#include "index/rcuckoo/plan.h"
#include "index/rcuckoo/state.h"

namespace farpool::rcuckoo {

// What an operation wants to do with the key, present or absent.
struct Wish {
  Operation kind = Operation::none;
  Edit::Kind if_present = Edit::Kind::keep;
  Edit::Kind if_absent = Edit::Kind::keep;  // keep or put
  std::string_view value = {};              // of a put, known beforehand
  Editor* editor = nullptr;                 // decides instead of all of these
  bool expects_absent = false;              // asks the cache for a path, before it finds the key's two rows full
  // Only asks, under the locks, whether an entry of the key's rows points to this block; the answer takes the form of
  // whether the key existed.
  std::optional<std::uint64_t> block = {};
  // What a mover does with a key that is here (relocate.cc).
  enum class Leave : std::uint8_t {
    none,
    begin,    // from here on only the mover changes it
    end,      // it is elsewhere by now
    give_up,  // it is not elsewhere
  } leave = Leave::none;
  std::string* leaving_value = nullptr;  // of `begin`
  // The move that the client knows of reaches the row that the key comes to.
  bool arrives = false;
  // Concerns no key: closes adjacent rows to keys that leave in the move that the client knows of, and changes nothing
  // else. At most as many rows as a plan has room for.
  struct Rows {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  } close = {};
};

// Changes the key. Returns whether it existed.
Task<Result<bool>> change(Table::State& state, std::string_view key, Wish wish, Nanos deadline, Cost& cost);
// Adds the key. Returns false, and changes nothing, if it existed.
Task<Result<bool>> add(Table::State& state, std::string_view key, std::string_view value, bool arrives, Nanos deadline,
                       Cost& cost);

}  // namespace farpool::rcuckoo
