// SPDX-License-Identifier: Apache-2.0
// Moves keys from one memory node to others, as the shard map says (docs/adr/0012). If a client dies during a move, the
// next one continues it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fabric/cost.h"
#include "index/table.h"
#include "session/session.h"
#include "session/tenure.h"
#include "task/task.h"

namespace farpool::client {

class Mover final : public index::Arrivals {
 public:
  struct End {
    session::Session* session = nullptr;
    index::Table* table = nullptr;  // that has a movable()
  };
  // Makes room at a target for a key with so many bytes that has found none. Returns false if it cannot.
  using MakeRoom = std::function<task::Task<bool>(std::size_t target, std::uint64_t bytes, base::Nanos deadline)>;
  // All of these outlive the mover. `target_of` returns the index in `targets` of a key's target; `go_on` says whether
  // the move is still wanted and its ends are all there.
  Mover(End source, std::vector<End> targets, std::function<std::size_t(std::string_view key)> target_of,
        index::Movable::GoOn go_on, MakeRoom make_room)
      : source_(source),
        targets_(std::move(targets)),
        target_of_(std::move(target_of)),
        go_on_(std::move(go_on)),
        make_room_(std::move(make_room)) {}

  // Returns ok when move `number` is finished, by this client or another.
  task::Task<base::Status> run(std::uint64_t number);
  // Says whether it acquired all leases.
  bool begun() const { return begun_; }

  task::Task<base::Status> take_in(std::string_view key, std::string_view value) override;
  task::Task<base::Result<bool>> has(std::string_view key) override;

 private:
  task::Task<base::Status> under_leases(std::uint64_t number);
  base::Status go_on() const;
  static base::Nanos soon(const End& end) {
    return end.session->port().now() + 8 * end.session->grant().failure_timeout;
  }

  const End source_;
  const std::vector<End> targets_;
  const std::function<std::size_t(std::string_view key)> target_of_;
  const index::Movable::GoOn go_on_;
  const MakeRoom make_room_;
  std::vector<std::unique_ptr<session::Tenure>> tenures_;  // of the source, then of each target
  bool begun_ = false;
  fabric::Cost cost_;  // that no operation waited for
};

}  // namespace farpool::client
