// SPDX-License-Identifier: Apache-2.0
// How a group's slots move when their table is split: the protocol's part of the directory's splitter. Internal to the
// room.
//
// Both tables have the same shape and seed, so a slot moves to the same place of the same group, which no other client
// writes to while the group is closed there. A key's two groups move independently.
#pragma once

#include "directory/splitter.h"
#include "index/race/state.h"

namespace farpool::race {

class Groups final : public directory::Splitter::Rows {
 public:
  explicit Groups(Table::State& state) : state_(state) {}
  Task<Status> move(const directory::Split& split, std::uint64_t row, Nanos deadline, Cost& cost) override;
  Task<Status> clear(const directory::Split& split, std::uint64_t row, Nanos deadline, Cost& cost) override;

 private:
  Table::State& state_;
};

}  // namespace farpool::race
