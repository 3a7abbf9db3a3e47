// SPDX-License-Identifier: Apache-2.0
// How keys leave this memory node for others: docs/adr/0035-outback-moves.md. Internal to the room.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "index/outback/client_state.h"

namespace farpool::outback {

class Relocation final : public index::Movable {
 public:
  // Both outlive it.
  Relocation(Table& table, Table::State& state) : table_(table), state_(state) {}

  void follow(index::Move move) override { state_.move = std::move(move); }
  task::Task<base::Result<bool>> admit(std::string_view key, std::string_view value, base::Nanos deadline,
                                       fabric::Cost& cost) override;
  task::Task<base::Result<Standing>> standing() override;
  task::Task<base::Status> close(index::Arrivals* arrivals, const GoOn& go_on) override;
  task::Task<base::Status> move_away(index::Arrivals& arrivals, const GoOn& go_on) override;

 private:
  // The work on some keys. Keys that found no room for a mark come again, after others have left.
  struct Work {
    index::Arrivals& arrivals;
    const GoOn& go_on;
    std::uint64_t move = 0;
    std::vector<std::string> later;
  };
  task::Task<base::Status> send_all(Work& work, const std::vector<std::string>& keys);
  task::Task<void> send(Work& work, const std::string& key, base::Status& status);
  task::Task<base::Status> give_up(Work& work, const std::string& key, base::Status why);
  // What `leave` replied.
  struct Left {
    Status status = Status::done;
    std::string value;
  };
  task::Task<base::Result<Left>> ask_of(Op op, std::uint64_t move, std::string_view key);
  task::Task<base::Result<Reply>> ask_zone(Op op, std::uint64_t move, std::uint64_t zone);
  base::Nanos soon() const;

  Table& table_;
  Table::State& state_;
  fabric::Cost cost_;  // that no operation waited for
};

}  // namespace farpool::outback
