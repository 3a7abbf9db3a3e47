// SPDX-License-Identifier: Apache-2.0
// An Outback table as its memory node has it: parts, request lines, and what one request comes to. It executes requests
// on the threads that bring them; a request needs the lock of one part, or of none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "fabric/service.h"
#include "index/outback/lines.h"
#include "index/outback/part.h"

namespace farpool::outback {

class NodeTable {
 public:
  // Takes a formatted memory over from an earlier process: makes the changes that are decided, checks every byte and
  // finds out which blocks are in use. The memory outlives the table. corrupt: what is wrong; nothing else was changed.
  // If it is cut short after any word, another call does the rest.
  static base::Result<std::unique_ptr<NodeTable>> open(base::MutableBytes memory, const Settings& settings,
                                                       fabric::Hand hand);
  NodeTable(const NodeTable&) = delete;

  const Cut& cut() const { return ground_.cut; }
  std::uint64_t life() const { return ground_.life; }
  // Returns the part whose lock the request needs; nothing: none, or the request cannot be.
  std::optional<std::uint64_t> part_of(const Request& request) const;
  Part& part(std::uint64_t number) const { return *parts_[number]; }
  std::uint64_t parts() const { return parts_.size(); }
  // Carries a request out, under the lock of its part, and writes the reply. `room` has room for a head. Returns the
  // length of the reply.
  std::size_t run(const Request& request, std::uint64_t session, fabric::Hand hand, base::MutableBytes room);
  void forget_session(std::uint64_t session) { lines_->forget_session(session); }

  struct Totals {
    std::uint64_t keys = 0, bytes = 0, overflow = 0, reseeds = 0, pulled = 0, moved = 0, in_place = 0, make_ups = 0;
  };
  Totals totals() const;
  // Clients with another locator are told that theirs is old; the flag is for those with the right one.
  void announce_growth(bool grows) { grows_.store(grows, std::memory_order_relaxed); }

 private:
  NodeTable(const Ground& ground, std::unique_ptr<Chunks> chunks) : ground_(ground), chunks_(std::move(chunks)) {}
  base::Status adopt();
  Status judge(const Request& request) const;
  Status carry_out(const Request& request, std::uint64_t session, fabric::Hand hand, Answer& answer, std::size_t room);
  Status change(const Request& request, std::uint64_t session, fabric::Hand hand, Answer& answer);
  Status attach(const Request& request, std::uint64_t session, fabric::Hand hand, Reply& reply);
  Status scan(const Request& request, Answer& answer, std::size_t room);
  void drop(std::uint64_t address) const;

  Ground ground_;
  std::unique_ptr<Chunks> chunks_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::unique_ptr<Lines> lines_;
  std::vector<std::vector<std::byte>> scanned_;  // by part: keys of a scan's reply
  std::atomic<bool> grows_{false};
};

}  // namespace farpool::outback
