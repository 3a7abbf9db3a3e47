// SPDX-License-Identifier: Apache-2.0
// What a client's table needs of its connection to the memory node: a session's lane, and another one after it has
// ended. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "fabric/cost.h"
#include "fabric/fabric.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::outback {

class Connection {
 public:
  virtual ~Connection() = default;
  // Returns false once nothing can be posted any more.
  virtual bool alive() const = 0;
  virtual base::Status why() const = 0;
  // Posts a chain, waits for it, and charges what went over the wire. A fate other than `done` ends the connection.
  virtual task::Task<fabric::Outcome> post(std::span<const fabric::Op> ops, base::Nanos deadline,
                                           fabric::Cost& cost) = 0;
  // Returns the bytes of a region; 0: this client may not read it.
  virtual std::uint64_t region_bytes(std::uint32_t region) const = 0;
  // Keeps blocks that may be read one-sidedly from being used again while it lives.
  virtual std::optional<session::EraPin> pin() = 0;
};

// Where a table finds another connection to the same memory.
class Connections {
 public:
  virtual ~Connections() = default;
  virtual fabric::Port& port() = 0;  // of all of them
  // Returns a connection, which operations hold for as long as they take. unavailable, timed_out: there is none now.
  // corrupt: the memory is gone, with all that was in it.
  virtual task::Task<base::Result<std::shared_ptr<Connection>>> connect(base::Nanos deadline) = 0;
};

// Charges a chain as it went over the wire: a CALL's answer is shorter than the room for it.
void charge(std::span<const fabric::Op> ops, const fabric::Outcome& outcome, fabric::Cost& cost);

// A session's lane.
class SessionConnection final : public Connection {
 public:
  // The session outlives it.
  explicit SessionConnection(session::Session& session) : session_(session) {}
  bool alive() const override { return session_.alive(); }
  base::Status why() const override { return session_.why(); }
  task::Task<fabric::Outcome> post(std::span<const fabric::Op> ops, base::Nanos deadline, fabric::Cost& cost) override;
  std::uint64_t region_bytes(std::uint32_t region) const override { return session_.region_bytes(region); }
  std::optional<session::EraPin> pin() override { return session_.pin(); }

 private:
  session::Session& session_;
};

}  // namespace farpool::outback
