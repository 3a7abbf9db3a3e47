// SPDX-License-Identifier: Apache-2.0
// The one engine beneath all operations that change something: take the locks of the key's rows, read them, decide,
// write, release. insert.cc, update.cc, remove.cc, put.cc and modify.cc say what each wants. Internal to the room.
#pragma once

#include <optional>

#include "index/rcuckoo/plan.h"
#include "index/rcuckoo/state.h"

namespace farpool::rcuckoo {

// What an operation wants done, in either case.
struct Wish {
  Operation kind = Operation::none;
  Edit::Kind if_present = Edit::Kind::keep;
  Edit::Kind if_absent = Edit::Kind::keep;  // keep or put
  std::string_view value = {};              // of a put, known beforehand
  Editor* editor = nullptr;                 // decides instead of all of these
  bool expects_absent = false;              // locks a whole path at once, not just the key's two rows
  // Only asks, under the locks, whether an entry of the key's rows points to this block; the answer is as if the key
  // existed or not.
  std::optional<std::uint64_t> block = {};
};

// True if the key existed.
Task<Result<bool>> change(Table::State& state, std::string_view key, Wish wish, Nanos deadline, Cost& cost);

}  // namespace farpool::rcuckoo
