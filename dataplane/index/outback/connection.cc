// SPDX-License-Identifier: Apache-2.0
#include "index/outback/connection.h"

namespace farpool::outback {

void charge(std::span<const fabric::Op> ops, const fabric::Outcome& outcome, fabric::Cost& cost) {
  if (ops.size() != 1 || ops[0].verb != fabric::Verb::call) return cost.charge(ops);
  fabric::Op op = ops[0];
  op.reply = op.reply.first(outcome.fate == fabric::Fate::done ? outcome.reply_bytes : 0);
  cost.charge(std::span(&op, 1));
}

task::Task<fabric::Outcome> SessionConnection::post(std::span<const fabric::Op> ops, base::Nanos deadline,
                                                    fabric::Cost& cost) {
  fabric::Cost charged_below;
  const fabric::Outcome outcome = co_await session_.post(ops, deadline, charged_below);
  if (charged_below.chains != 0) charge(ops, outcome, cost);
  co_return outcome;
}

}  // namespace farpool::outback
