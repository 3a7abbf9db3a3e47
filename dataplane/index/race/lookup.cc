// SPDX-License-Identifier: Apache-2.0
#include "index/race/buckets.h"

namespace farpool::race {

// One READ of both buckets and one of the block. A key has one committed copy at a time, and a copy moves only with its
// group. So a key that was in no slot, each at the moment of its reading, was absent at some moment in between: a miss
// needs no second look.
Task<Result<std::optional<std::string>>> Table::lookup(std::string_view key, Nanos deadline, Cost& cost,
                                                       std::string room) {
  State& state = *state_;
  if (Status status = index::check_sizes(key, 0); !status.ok()) co_return status;
  Buckets buckets(state, key);
  Backoff backoff(state.session);
  Stillness doubtful;
  for (;; co_await backoff.wait(deadline)) {
    const session::EraPin pin = state.session.pin();
    buckets.forget();
    bool begin_anew = false;
    while (!begin_anew) {
      if (state.now() >= deadline) {
        co_return Status(Code::timed_out, "the deadline passed before the buckets of a key could be read");
      }
      if (Status status = co_await buckets.read(deadline, cost); !status.ok()) co_return status;
      const Result<Buckets::Sight> sight = buckets.look();
      if (!sight.ok()) co_return sight.status();
      if (*sight == Buckets::Sight::stale) {
        if (Status status = co_await buckets.misled(deadline, cost); !status.ok()) co_return status;
        begin_anew = true;
        continue;
      }
      if (*sight == Buckets::Sight::again) continue;
      if (buckets.half_open()) {
        ++state.marks.looked_again;
        begin_anew = true;
        continue;
      }
      Result<bool> sure = co_await buckets.identify({.values = true}, deadline, cost);
      if (!sure.ok()) co_return sure.status();
      if (*sure) {
        const auto found = buckets.committed();
        if (found) {
          room = found->known->value;
          co_return std::optional(std::move(room));
        }
        if (!buckets.unsure()) {
          if (buckets.outdated()) co_return index::map_is_old(buckets.known_move());
          if (buckets.closed()) co_return index::moved_away();
          co_return std::optional<std::string>();
        }
        ++state.marks.looked_again;
        continue;
      }
      const Slot slot = buckets.doubtful();
      if (doubtful.since(0, slot.word(), state.now()) >= state.failure_timeout()) {
        co_return Status(Code::corrupt, "the extent at unit " + std::to_string(slot.block()) +
                                            ", to which a slot of table " + std::to_string(state.table_id) +
                                            " points, is damaged");
      }
      begin_anew = true;
    }
  }
}

}  // namespace farpool::race
