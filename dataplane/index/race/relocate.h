// SPDX-License-Identifier: Apache-2.0
// How keys leave this memory node for others: docs/adr/0012-moves-between-memory-nodes.md, group by group. Internal to
// the room.
#pragma once

#include "index/race/group.h"
#include "index/race/state.h"

namespace farpool::race {

class Relocation final : public index::Movable {
 public:
  explicit Relocation(Table::State& state) : state_(state) {}

  void follow(index::Move move) override { state_.move = std::move(move); }
  Task<Result<bool>> admit(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) override;
  Task<Result<Standing>> standing() override;
  Task<Status> close(index::Arrivals* arrivals, const GoOn& go_on) override;
  Task<Status> move_away(index::Arrivals& arrivals, const GoOn& go_on) override;

 private:
  // The work on each group. With arrivals, keys leave; without, they come.
  struct Work {
    bool closes = false;  // else keys are moved
    index::Arrivals* arrivals = nullptr;
    const GoOn& go_on;
  };
  enum class Found : std::uint8_t { table, no_table, split };

  Task<Status> each_group(const Work& work);
  Task<Result<Found>> stretch(const Work& work, std::uint64_t table, std::uint64_t& row);
  Task<Result<Found>> look_up(std::uint64_t table);
  Task<Status> some_groups(const Work& work, bool split, std::uint64_t table, std::uint64_t first, std::uint64_t end);
  Task<void> one_group(const Work& work, bool split, std::uint64_t table, std::uint64_t row, Status& status);
  Task<Status> close_group(const Work& work, Group& group);
  Task<Status> freeze(Group& group);
  Task<Status> send(index::Arrivals& arrivals, Group& group, std::uint64_t slot);
  Task<void> spare(index::Arrivals& arrivals, Group& group, std::uint64_t slot);
  Task<Result<bool>> change(Remote at, Slot from, Slot to);
  Task<Status> outlive_clients(const GoOn& go_on);

  Task<Status> post(const Chain& chain);
  bool leaves(const Group::Known& known) const { return known.readable && state_.move.leaves(known.pool_hash); }
  Nanos soon() const { return state_.now() + 8 * state_.failure_timeout(); }

  Table::State& state_;
  Cost cost_;  // that no operation waited for
};

}  // namespace farpool::race
