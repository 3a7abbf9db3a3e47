// SPDX-License-Identifier: Apache-2.0
#include "session/leases.h"

#include <algorithm>
#include <utility>

#include "layout/calls.h"
#include "layout/lease.h"
#include "layout/regions.h"
#include "session/session.h"
#include "session/trips.h"

namespace farpool::session {

using base::Code;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Remote;
using layout::FenceReply;
using layout::FenceRequest;
using layout::LeaseWord;
using task::Task;

namespace {

Status late(const std::string& what) {
  return {Code::timed_out, "the deadline passed " + what + "; nothing of this operation was done"};
}

}  // namespace

Leases::Leases(Session& session) : session_(session), put_down_(session.port()) {}

// Asks the memory node about the holder that a lease's word names. Returns FenceReply's status.
Task<Result<std::uint64_t>> Leases::ask(std::uint64_t index, std::uint64_t says, bool only_ask, Nanos deadline,
                                        Cost& cost) {
  const Result<FenceReply> reply = co_await ask_fence(
      session_, {.of = FenceRequest::kLease, .index = index, .says = says, .ask = only_ask ? std::uint64_t{1} : 0},
      deadline, cost);
  if (!reply.ok()) co_return reply.status();
  if (!only_ask) ++marks_.complaints;
  co_return reply->status;
}

Task<Status> Leases::take(std::uint64_t index, std::vector<Lease>& held, Nanos deadline, Cost& cost) {
  co_return (co_await contend(index, true, held, deadline, cost)).status();
}

Task<Result<bool>> Leases::attempt(std::uint64_t index, std::vector<Lease>& held, Nanos deadline, Cost& cost) {
  return contend(index, false, held, deadline, cost);
}

// Returns false if `waits` is false and the holder lives or is another task of this client: a word tells clients apart,
// but not tasks.
Task<Result<bool>> Leases::contend(std::uint64_t index, bool waits, std::vector<Lease>& held, Nanos deadline,
                                   Cost& cost) {
  while (in_hand_.contains(index)) {
    if (!waits) {
      wanted_.insert(index);
      co_return false;
    }
    const Nanos now = session_.port().now();
    if (now >= deadline) co_return late("while another operation of this client held the lease");
    (void)co_await put_down_.wait(std::min(deadline, now + session_.grant().failure_timeout / 16));
    if (Status status = co_await renew(held, deadline, cost); !status.ok()) co_return status;
  }
  in_hand_.insert(index);
  Result<bool> taken = co_await contend_with_others(index, waits, held, deadline, cost);
  if (!taken.ok() || !*taken) put_down(index);
  co_return taken;
}

void Leases::put_down(std::uint64_t index) {
  in_hand_.erase(index);
  put_down_.wake_all();
}

// A word with this session's own name belongs to a task that never learned that it had taken the lease.
Task<Result<bool>> Leases::contend_with_others(std::uint64_t index, bool waits, std::vector<Lease>& held,
                                               Nanos deadline, Cost& cost) {
  const Remote at{layout::kLeases, index * 8};
  fabric::Buffer word = session_.port().buffer(8);
  if (Status status = co_await read_bytes(session_, at.region, at.offset, word.first(8), deadline, cost);
      !status.ok()) {
    co_return status;
  }
  std::uint64_t says = base::load<std::uint64_t>(word.data());
  Nanos complained = 0;
  for (;;) {
    const bool own = LeaseWord::Session::get(says) == LeaseWord::Session::get(session_.grant().session_id);
    bool free = !LeaseWord::held(says) || own, stolen = false;
    const Nanos now = session_.port().now();
    if (!free && now - complained >= session_.grant().failure_timeout / 16) {
      complained = now;
      const Result<std::uint64_t> status = co_await ask(index, says, false, deadline, cost);
      if (!status.ok()) co_return status.status();
      free = stolen = *status == FenceReply::kEnded;
      if (*status == FenceReply::kEnding) {
        complained = 0;
      } else if (!free && !waits) {
        co_return false;
      }
    }
    if (free) {
      const std::uint64_t mine = LeaseWord::held_by(says, session_.grant().session_id);
      const Result<std::uint64_t> before = co_await swap_lease(session_, index, says, mine, deadline, cost);
      if (!before.ok()) co_return before.status();
      if (*before == says) {
        if (stolen) ++marks_.stolen;
        held.push_back({index, mine, session_.port().now()});
        co_return true;
      }
      if (!waits) co_return false;
      says = *before;
      continue;
    }
    if (session_.port().now() >= deadline) co_return late("before another client had given the lease back");
    ++marks_.waits;
    if (Status status = co_await renew(held, deadline, cost); !status.ok()) co_return status;
    co_await breathe(session_, deadline);
    if (Status status = co_await read_bytes(session_, at.region, at.offset, word.first(8), deadline, cost);
        !status.ok()) {
      co_return status;
    }
    says = base::load<std::uint64_t>(word.data());
  }
}

// Other clients steal a lease that does not change for the failure timeout.
Task<Status> Leases::renew(std::vector<Lease>& held, Nanos deadline, Cost& cost) {
  for (Lease& lease : held) {
    if (session_.port().now() - lease.at < session_.grant().failure_timeout / 8) continue;
    const std::uint64_t mine = LeaseWord::held_by(lease.word, session_.grant().session_id);
    const Result<std::uint64_t> before = co_await swap_lease(session_, lease.index, lease.word, mine, deadline, cost);
    if (!before.ok()) co_return before.status();
    if (*before != lease.word) {
      session_.end({Code::stale, "lease " + std::to_string(lease.index) + " was taken away"});
      co_return gone(session_, Code::unavailable, "the work under it was given up");
    }
    lease = {lease.index, mine, session_.port().now()};
  }
  co_return Status();
}

Task<void> Leases::give_back(const std::vector<Lease>& held, Nanos deadline, Cost& cost) {
  for (const Lease& lease : held) {
    if (!session_.alive()) {  // the next client that needs it steals it
      put_down(lease.index);
      continue;
    }
    const Result<std::uint64_t> before =
        co_await swap_lease(session_, lease.index, lease.word, LeaseWord::released(lease.word), deadline, cost);
    if (before.ok() && *before != lease.word) {
      session_.end({Code::stale, "lease " + std::to_string(lease.index) + " was taken away"});
    }
    put_down(lease.index);
  }
}

Task<Status> Leases::sweep(Nanos deadline, Cost& cost) {
  fabric::Buffer words = session_.port().buffer(layout::kLeaseWords * 8);
  Status status =
      co_await read_bytes(session_, layout::kLeases, 0, words.first(layout::kLeaseWords * 8), deadline, cost);
  for (std::uint64_t i = 0; i < layout::kLeaseWords && status.ok(); ++i) {
    const auto says = base::load<std::uint64_t>(words.data() + i * 8);
    if (!LeaseWord::held(says)) continue;
    const Result<std::uint64_t> holder = co_await ask(i, says, true, deadline, cost);
    if (!holder.ok()) co_return holder.status();
    if (*holder != FenceReply::kEnded) continue;
    const Result<std::uint64_t> before =
        co_await swap_lease(session_, i, says, LeaseWord::released(says), deadline, cost);
    if (!before.ok()) co_return before.status();
    if (*before == says) ++marks_.stolen;
  }
  co_return status;
}

}  // namespace farpool::session
