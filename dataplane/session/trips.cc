// SPDX-License-Identifier: Apache-2.0
#include "session/trips.h"

#include <algorithm>
#include <array>
#include <utility>

#include "layout/regions.h"

namespace farpool::session {

using base::Code;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using layout::FenceReply;
using layout::FenceRequest;
using layout::SwapLeaseReply;
using layout::SwapLeaseRequest;
using task::Task;

Status gone(const Session& session, Code otherwise, const std::string& what) {
  const Status why = session.why();
  return {why.ok() || otherwise == Code::unknown_outcome ? otherwise : why.code(),
          what + (why.ok() ? std::string() : ": " + why.message())};
}

Task<Status> post_chain(Session& session, std::vector<Op> chain, Nanos deadline, Cost& cost) {
  const fabric::Outcome outcome = co_await session.post(chain, deadline, cost);
  if (outcome.fate != Fate::done)
    co_return gone(session, Code::unavailable,
                   "the session ended in the middle of work that others may have to finish");
  co_return Status();
}

Task<Status> read_bytes(Session& session, std::uint32_t region, std::uint64_t offset, base::MutableBytes into,
                        Nanos deadline, Cost& cost) {
  const fabric::Outcome outcome = co_await read_long(session, region, offset, into, deadline, cost);
  if (outcome.fate != Fate::done)
    co_return gone(session, Code::unavailable,
                   "the session ended in the middle of work that others may have to finish");
  co_return Status();
}

Task<Result<std::uint64_t>> cas_word(Session& session, fabric::Remote at, std::uint64_t compare, std::uint64_t swap,
                                     std::uint64_t mask, Nanos deadline, Cost& cost) {
  std::uint64_t before = 0;
  std::vector<Op> chain(1, Op::masked_cas(at, before, compare, mask, swap, mask));
  if (Status status = co_await post_chain(session, std::move(chain), deadline, cost); !status.ok()) co_return status;
  co_return before;
}

Task<Result<FenceReply>> ask_fence(Session& session, FenceRequest request, Nanos deadline, Cost& cost) {
  fabric::Buffer asked = session.port().buffer(sizeof(FenceRequest));
  fabric::Buffer reply = session.port().buffer(sizeof(FenceReply));
  base::store(asked.data(), request);
  const std::array chain{Op::call(layout::kFence, asked.first(sizeof(FenceRequest)), reply.first(sizeof(FenceReply)))};
  const fabric::Outcome outcome = co_await session.post(chain, deadline, cost);
  if (outcome.fate != Fate::done || outcome.reply_bytes != sizeof(FenceReply)) {
    co_return gone(session, Code::unavailable, "the memory node did not say whether a client has ended");
  }
  co_return base::load<FenceReply>(reply.data());
}

Task<Result<std::uint64_t>> swap_lease(Session& session, std::uint64_t index, std::uint64_t says, std::uint64_t word,
                                       Nanos deadline, Cost& cost) {
  if (!session.only_reads(layout::kLeases)) {
    co_return co_await cas_word(session, {layout::kLeases, index * 8}, says, word, ~0ull, deadline, cost);
  }
  fabric::Buffer asked = session.port().buffer(sizeof(SwapLeaseRequest));
  fabric::Buffer reply = session.port().buffer(sizeof(SwapLeaseReply));
  base::store(asked.data(), SwapLeaseRequest{.index = index, .says = says, .word = word});
  const std::array chain{
      Op::call(layout::kSwapLease, asked.first(sizeof(SwapLeaseRequest)), reply.first(sizeof(SwapLeaseReply)))};
  const fabric::Outcome outcome = co_await session.post(chain, deadline, cost);
  if (outcome.fate != Fate::done || outcome.reply_bytes != sizeof(SwapLeaseReply)) {
    co_return gone(session, Code::unavailable, "the memory node did not say whether a lease was changed");
  }
  co_return base::load<SwapLeaseReply>(reply.data()).before;
}

Task<void> breathe(Session& session, Nanos deadline) {
  fabric::Port& port = session.port();
  const Nanos most = std::max<Nanos>(session.grant().failure_timeout / 500, base::kMicrosecond);
  const Nanos until = port.now() + most / 2 + static_cast<Nanos>(port.random() % static_cast<std::uint64_t>(most));
  co_await port.sleep_until(std::max(port.now(), std::min(until, deadline)));
}

}  // namespace farpool::session
