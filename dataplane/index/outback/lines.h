// SPDX-License-Identifier: Apache-2.0
// The request lines of clients: which request each has carried out last, and whose they are. What a change came to lies
// in the memory, with the change (LineRecord), so that it takes effect once over restarts of the memory node. What came
// to nothing is remembered here alone: if the process dies, the request has had no effect, and is carried out anew.
//
// A client is known by a token that it has drawn. It attaches with each session, and an earlier session of it loses the
// lines. Lines of a client without a session are kept until another client needs them. The client that has been without
// one for the longest time loses its lines first.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/once.h"
#include "fabric/service.h"
#include "index/outback/layout.h"
#include "index/outback/message.h"

namespace farpool::outback {

class Lines {
 public:
  // Takes over what the memory says. The memory outlives it.
  Lines(const Cut& cut, base::MutableBytes memory);

  enum class Turn : std::uint8_t {
    first,     // carry it out, and finish() it
    recorded,  // its outcome is in the record; the caller reads it, and release()s the line
    again,     // it has changed nothing: `reply` says what it came to
    running,
    old,
    not_attached,
    bad,
  };
  Turn begin(std::uint64_t session, std::uint16_t client, fabric::RequestId id, Reply& reply);
  // Ends a turn. `changed`: the record has the outcome.
  void finish(std::uint16_t client, fabric::RequestId id, const Reply& reply, bool changed);
  void release(std::uint16_t client, fabric::RequestId id);
  std::uint64_t record_of(std::uint16_t client, fabric::RequestId id) const { return cut_.line_at(client, id.line); }

  // What attach and detach came to. `dropped`: addresses of blocks that lines held.
  struct Attached {
    Status status = Status::done;
    std::uint16_t client = 0;
    bool fresh = false;
    std::vector<std::uint64_t> dropped;
  };
  Attached attach(std::uint64_t session, std::uint64_t token, fabric::Hand hand);
  Attached detach(std::uint64_t session, std::uint16_t client, fabric::Hand hand);
  // The session has ended.
  void forget_session(std::uint64_t session);

 private:
  struct Line {
    std::atomic<bool> busy{false};
    std::uint64_t last = 0;  // number of the last request
    bool recorded = false;   // its outcome is in the record
    Reply outcome;           // else: without key and value
  };
  struct Client {
    std::atomic<std::uint64_t> session{0};
    std::uint64_t left = 0;  // when it lost its session, counted
  };
  Line& line_of(std::uint16_t client, std::uint32_t line) const { return lines_[client * cut_.figures.lines + line]; }
  std::uint64_t token(std::uint64_t client) const {
    return base::load<std::uint64_t>(memory_.data() + cut_.client_at(client));
  }
  bool clear(std::uint64_t client, fabric::Hand hand, std::vector<std::uint64_t>& dropped);
  std::optional<std::uint64_t> place_for(std::uint64_t token) const;

  const Cut cut_;
  const base::MutableBytes memory_;
  std::unique_ptr<Line[]> lines_;
  std::unique_ptr<Client[]> clients_;
  std::atomic<bool> attaching_{false};  // one at a time; who finds it taken asks again
  std::uint64_t leaves_ = 0;
};

}  // namespace farpool::outback
