// SPDX-License-Identifier: Apache-2.0
// The one engine beneath all operations that change something: read the key's buckets, decide, take a slot over by CAS.
// table.cc says what each wants. Internal to the room.
#pragma once

#include <string_view>

#include "index/race/state.h"

namespace farpool::race {

// What an operation wants to do with the key, if it is there and if it is not.
struct Wish {
  std::string_view name;  // for people
  Edit::Kind if_present = Edit::Kind::keep;
  Edit::Kind if_absent = Edit::Kind::keep;  // keep or put
  std::string_view value = {};              // of a put, known beforehand
  Editor* editor = nullptr;                 // decides instead of all of these
};

// True if the key existed.
Task<Result<bool>> change(Table::State& state, std::string_view key, Wish wish, Nanos deadline, Cost& cost);
// False if it existed, and nothing was changed.
Task<Result<bool>> add(Table::State& state, std::string_view key, std::string_view value, Nanos deadline, Cost& cost);

}  // namespace farpool::race
