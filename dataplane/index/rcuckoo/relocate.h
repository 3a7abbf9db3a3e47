// SPDX-License-Identifier: Apache-2.0
// How keys leave this memory node for others: docs/adr/0015-rcuckoo-moves.md. Internal to the room.
#pragma once

#include <string>

#include "index/rcuckoo/state.h"

namespace farpool::rcuckoo {

class Relocation final : public index::Movable {
 public:
  explicit Relocation(Table::State& state) : state_(state) {}

  void follow(index::Move move) override { state_.move = std::move(move); }
  Task<Result<bool>> admit(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) override;
  Task<Result<Standing>> standing() override;
  Task<Status> close(index::Arrivals* arrivals, const GoOn& go_on) override;
  Task<Status> move_away(index::Arrivals& arrivals, const GoOn& go_on) override;

 private:
  Task<Status> close_some(std::uint64_t first, std::uint64_t count);
  Task<void> close_neighbours(std::uint64_t first, std::uint64_t count, Status& status);
  Task<Status> send_all(index::Arrivals& arrivals, const std::vector<std::string>& keys, const GoOn& go_on);
  Task<void> send(index::Arrivals& arrivals, const std::string& key, Status& status);
  Task<void> spare(index::Arrivals& arrivals, const std::string& key);

  Nanos soon() const { return state_.now() + 8 * state_.failure_timeout(); }

  Table::State& state_;
  Cost cost_;  // that no operation waited for
};

}  // namespace farpool::rcuckoo
