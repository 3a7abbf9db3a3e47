// SPDX-License-Identifier: Apache-2.0
// The memory node's part in changes of clients that do not own the table: it keeps their requests in a line, hands them
// to the owner, and passes the answers back. It neither reads nor changes the table.
//
// The owner is the session that holds the table's lease, and has said so by a turn (message.h). One turn of its waits
// here until there is a request. A request that an owner was handed and has not answered goes to the next owner, which
// can tell by the record of the request whether it was carried out (record.h). So an answer is final, and a change is
// carried out once. A request that no owner has been handed may be withdrawn; then nothing was done.
//
// Any thread may call. It is bounded by its places: more requests at once are refused as busy.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "fabric/service.h"
#include "index/cuckooduo/message.h"

namespace farpool::cuckooduo {

class Relay final : public fabric::Service {
 public:
  struct Settings {
    std::uint64_t table = 0;
    std::byte* lease = nullptr;  // the word of the table's lease
    base::Bytes records;         // of the table; a request has one, so there are as many places
  };
  // Tickets go on above those in the records: earlier lives have given them. The memory outlives it.
  explicit Relay(const Settings& settings);
  ~Relay() override;

  fabric::Served serve(fabric::Call& call) noexcept override;
  void release(std::uint64_t session_id) noexcept override;

  struct Counts {
    std::uint64_t relayed = 0;  // requests that were answered by an owner
    std::uint64_t again = 0;    // requests that went to another owner, because the one before had not answered
    std::uint64_t strays = 0;   // answers to requests that the session had not been handed
    std::uint64_t refused = 0;  // turns of sessions that do not hold the lease
    std::uint64_t waiting = 0;  // requests, now
    std::uint64_t owner = 0;    // the session of the owner, now; 0: there is none
  };
  Counts counts() const;

 private:
  enum class State : std::uint8_t { free, waiting, handed };
  struct Place {
    State state = State::free;
    bool again = false;
    std::uint64_t session = 0;     // of the client
    std::uint64_t request_id = 0;  // its own
    std::uint64_t ticket = 0;
    std::uint64_t owner = 0;         // the session that was handed it
    std::vector<std::byte> request;  // keeps its room
    fabric::Ticket reply;            // none: the client is gone
  };
  // Answers that are sent when the lock is free again.
  class Outgoing;
  class Locked;

  fabric::Served take(fabric::Call& call);
  fabric::Served turn(fabric::Call& call);
  fabric::Served withdraw(fabric::Call& call);
  bool holds_lease(std::uint64_t session) const;
  void begin(std::uint64_t session);
  void accept(const Turn& turn, std::uint64_t session, Outgoing& out);
  void refuse_waiting(Outgoing& out);
  void deliver(Outgoing& out);
  std::size_t fill(base::MutableBytes into, Outgoing& out);
  void free(Place& place);

  const std::uint64_t table_;
  std::byte* const lease_;
  mutable std::atomic<bool> taken_{false};  // the lock: for a few hundred instructions
  std::vector<Place> places_;
  std::vector<std::uint32_t> free_;  // places
  // Tickets of requests that wait, in their order, and their places.
  std::vector<std::uint32_t> line_;
  std::uint64_t last_ticket_ = 0;
  std::uint64_t owner_ = 0;  // its session; 0: there is none
  // The term that a session has closed last: its other turns may come later.
  std::uint64_t closed_session_ = 0, closed_term_ = 0;
  fabric::Ticket turn_;          // of the owner, that waits
  std::vector<std::byte> room_;  // for the reply to it; as much as the owners had at most
  Counts counts_;
};

}  // namespace farpool::cuckooduo
