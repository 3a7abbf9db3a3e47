// SPDX-License-Identifier: Apache-2.0
#include "index/race/buckets.h"

namespace farpool::race {

// One READ of both buckets and one of the block. A key has one committed copy at a time and none moves, so a key that
// is in no slot, each as it was when it was read, was absent at some moment in between: a miss needs no second look.
Task<Result<std::optional<std::string>>> Table::lookup(std::string_view key, Nanos deadline, Cost& cost) {
  State& state = *state_;
  if (Status status = index::check_sizes(key, 0); !status.ok()) co_return status;
  Buckets buckets(state, key);
  Backoff backoff(state.session);
  Standing doubtful;
  for (;;) {
    if (state.now() >= deadline) {
      co_return Status(Code::timed_out, "the deadline passed before the buckets of a key could be read");
    }
    const session::EraPin pin = state.session.pin();
    buckets.forget();
    Chain chain;
    buckets.add_reads(chain);
    const Outcome outcome = co_await state.session.post(chain.ops(), deadline, cost);
    if (outcome.fate != Fate::done) co_return state.gone(Code::unavailable, "the buckets could not be read");
    if (Status status = buckets.check(); !status.ok()) co_return status;
    Result<bool> sure = co_await buckets.identify({.values = true}, deadline, cost);
    if (!sure.ok()) co_return sure.status();
    if (*sure) {
      const auto found = buckets.committed();
      if (!found) co_return std::optional<std::string>();
      co_return std::optional(std::string(found->known->value));
    }
    const Slot slot = buckets.doubtful();
    if (doubtful.since(0, slot.word(), state.now()) >= state.failure_timeout()) {
      co_return Status(Code::corrupt, "the extent at unit " + std::to_string(slot.block()) +
                                          ", to which a slot of table " + std::to_string(state.table_id) +
                                          " points, is damaged");
    }
    co_await backoff.wait(deadline);
  }
}

}  // namespace farpool::race
