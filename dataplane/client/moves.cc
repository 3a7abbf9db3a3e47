// SPDX-License-Identifier: Apache-2.0
// What a client does for the pool besides its operations: it splits tables ahead of need, and moves keys.
#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <utility>

#include "client/links.h"
#include "client/mover.h"
#include "layout/lease.h"

namespace farpool::client {

using base::Code;
using base::Result;
using base::Status;
using task::Task;

// Splits one table after the other, in any order, until all have been split. A split belongs to the holder of a lease,
// so clients that choose the same table do no harm.
Task<void> Pool::split_ahead(const Link& link, Bond& bond) {
  const std::uint64_t tables = map_->message().least_tables();
  if (tables <= bond.split_into || port_.now() < bond.split_due) co_return;
  const Nanos timeout = bond.session->grant().failure_timeout;
  const std::uint64_t depth = static_cast<std::uint64_t>(std::bit_width(tables)) - 1;
  const Result<bool> more =
      co_await bond.table->split_ahead(depth, port_.random(), port_.now() + timeout, bond.repair_cost);
  if (more.ok() ? !*more : more.code() == Code::out_of_memory) bond.split_into = tables;
  if (!more.ok() && bond.session->alive()) {
    log(true, "the tables of memory node " + link.name + " are not all split ahead into " + std::to_string(tables) +
                  ": " + more.status().message());
  }
  bond.split_due = port_.now() + jittered(more.ok() ? bond.session->grant().tick : timeout);
}

// Returns what the map says of the pool's latest move, for the table of one of its nodes.
index::Move Pool::move_of(const Link& link) const {
  const v1alpha1::ShardMap& message = map_->message();
  index::Move move{.number = message.move(), .depth = message.directory_depth(), .leaving = {}};
  for (const v1alpha1::Departure& departure : message.departures()) {
    if (departure.from() != link.table) continue;
    move.leaving.resize(std::size_t{1} << move.depth);
    move.leaving[departure.part()] = true;
  }
  return move;
}

// Every client tries this, and one at a time succeeds: if it dies, the next one continues.
Task<void> Pool::move_away(Link& link, Bond& bond) {
  const std::uint64_t number = link.move.number;
  Status status;
  {
    const Borrowed kept(*this, bond);
    const std::uint64_t before = bond.table->marks().moved_away;
    status = co_await try_to_move(link, bond, number);
    const std::uint64_t keys = bond.table->marks().moved_away - before;
    if (keys > 0) {
      log(false, "moved " + std::to_string(keys) + " keys away from memory node " + link.name + " in move " +
                     std::to_string(number));
    }
    if (status.ok()) {
      bond.moved = number;
    } else if (bond.move_trouble != status.message() && status.code() != Code::stale && !closing_) {
      bond.move_trouble = status.message();
      log(true, "move " + std::to_string(number) + " of keys away from memory node " + link.name +
                    " is not finished: " + bond.move_trouble);
    }
    // A full target will hardly have room at once.
    const Nanos timeout = bond.session->grant().failure_timeout;
    bond.move_due = port_.now() + jittered(status.code() == Code::out_of_memory ? 16 * timeout : timeout);
  }
  moving_ = link.moving = false;
  publish_marks();
  if (status.ok()) changed();
}

Task<Status> Pool::try_to_move(Link& link, Bond& bond, std::uint64_t number) {
  const Nanos deadline = port_.now() + options_.connect_deadline;
  const Result<index::Movable::Standing> standing = co_await bond.table->movable()->standing();
  if (!standing.ok() || standing->finished >= number) co_return standing.status();
  const bool others = layout::LeaseWord::held(standing->lease);
  if (others && standing->lease != std::exchange(bond.move_lease, standing->lease)) {
    co_return Status(Code::stale, "another client is at it");
  }
  std::vector<Borrowed> borrowed;
  std::vector<Mover::End> targets;
  const map::Map map = *map_;
  // Takes leases in the order of nodes, because movers of several sources take the leases of the same targets.
  std::set<std::uint32_t> nodes;
  for (const v1alpha1::Departure& departure : map.message().departures()) {
    if (departure.from() != link.table) continue;
    nodes.insert(map.table(map.message().directory(static_cast<int>(departure.part())))->node());
  }
  std::map<std::uint32_t, std::size_t> of_node;
  for (const std::uint32_t node : nodes) {
    Result<Borrowed> target = co_await borrow(node, deadline);
    if (!target.ok()) co_return target.status();
    if (epoch() != map.epoch()) co_return Status(Code::stale, "another map has come");
    borrowed.push_back(std::move(*target));
    of_node[node] = targets.size();
    targets.push_back({&borrowed.back().session(), &borrowed.back().table()});
  }
  const auto target_of = [&](std::string_view key) {
    return of_node.at(map.table_of(map::directory_hash(*pool_secret_, base::bytes_of(key))).node());
  };
  const auto go_on = [&]() -> Status {
    const bool same = !closing_ && link.move.number == number && link.leaving();
    if (!same) return {Code::unavailable, "this client is closing, or follows another map by now"};
    if (!bond.session->alive()) return bond.session->why();
    for (const Borrowed& target : borrowed) {
      if (!target.alive()) return target.session().why();
    }
    return {};
  };
  if (Status status = go_on(); !status.ok()) co_return status;
  const auto make_room_at = [&](std::size_t target, std::uint64_t bytes, Nanos until) {
    return make_room(borrowed[target].bond(), bytes, until);
  };
  Mover mover({bond.session.get(), bond.table.get()}, targets, target_of, go_on, make_room_at);
  Status status = co_await mover.run(number);
  if (!mover.begun() && status.code() == Code::timed_out) co_return Status(Code::stale, status.message());
  co_return status;
}

}  // namespace farpool::client
