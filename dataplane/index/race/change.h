// SPDX-License-Identifier: Apache-2.0
// The engine of all operations that change something: it reads the key's buckets, decides, and takes a slot over by
// CAS. table.cc says what each operation wants. Internal to the room.
#pragma once

#include <string_view>

#include "index/race/state.h"

namespace farpool::race {

// What an operation wants to do with the key, present or absent.
struct Wish {
  std::string_view name;  // for people
  Edit::Kind if_present = Edit::Kind::keep;
  Edit::Kind if_absent = Edit::Kind::keep;  // keep or put
  std::string_view value = {};              // of a put, known beforehand
  Editor* editor = nullptr;                 // decides instead of all of these
};

// Changes the key. Returns whether it existed.
Task<Result<bool>> change(Table::State& state, std::string_view key, Wish wish, Nanos deadline, Cost& cost);
// Adds the key. Returns false, and changes nothing, if it existed.
Task<Result<bool>> add(Table::State& state, std::string_view key, std::string_view value, Nanos deadline, Cost& cost);

}  // namespace farpool::race
