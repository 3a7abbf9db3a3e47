// SPDX-License-Identifier: Apache-2.0
// The other clients' end of the relay (relay.h): asks the table's owner for changes. Each is one CALL, which the memory
// node holds until the owner has answered.
//
// A change takes effect once, whichever owners die meanwhile. If this client's own session ends before the answer, its
// outcome is unknown, as with every protocol whose clients write themselves.
//
// Belongs to the thread of its session's port.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "base/result.h"
#include "fabric/cost.h"
#include "fabric/fabric.h"
#include "index/cuckooduo/message.h"
#include "index/cuckooduo/site.h"
#include "session/session.h"
#include "session/wait.h"
#include "task/task.h"

namespace farpool::cuckooduo {

class Outbox {
 public:
  // The session outlives it; it outlives the session's background tasks. `on_silence` is called while a request has had
  // no answer for a while, again and again: perhaps the owner is dead.
  Outbox(session::Session& session, const Site& site, std::function<void()> on_silence);
  ~Outbox();

  struct Asked {
    layout::KvStatus status = layout::KvStatus::done;  // also version, no_owner, busy
    bool existed = false;                              // the key, before
  };
  // Asks for a change: an insert, update, put or remove. `version`: that the pair must have; 0: any. Errors are those of
  // index::Table.
  task::Task<base::Result<Asked>> ask(layout::KvOp op, std::string_view key, std::string_view value,
                                      std::uint64_t version, base::Nanos deadline, fabric::Cost& cost);

  struct Counts {
    std::uint64_t silences = 0;     // looks at requests that had had no answer for a while
    std::uint64_t withdrawals = 0;  // of requests whose deadline had passed
  };
  const Counts& counts() const { return counts_; }
  // CALLs for data that a lane has to have room for beside requests: withdrawals, and turns of a client that becomes the
  // owner.
  static constexpr std::uint32_t kOtherCalls = 4;

 private:
  class Waits;

  task::Task<void> watch();
  task::Task<void> withdraw(std::uint64_t request_id);
  base::Result<Asked> judge(const fabric::Outcome& outcome, base::Bytes reply) const;
  base::Nanos now() const { return session_.port().now(); }
  base::Nanos patience() const { return session_.grant().failure_timeout / 8; }

  session::Session& session_;
  const Site site_;
  const std::function<void()> on_silence_;
  std::uint64_t last_id_ = 0;
  Waits* first_ = nullptr;  // requests that have no answer yet
  bool watching_ = false;
  session::WaitQueue over_;  // for requests to end
  std::uint32_t in_flight_ = 0;
  session::WaitQueue room_;  // for fewer in flight
  Counts counts_;
};

}  // namespace farpool::cuckooduo
