// SPDX-License-Identifier: Apache-2.0
// An Outback table as its memory node has it: zones, request lines, and what one request comes to. It executes requests
// on the threads that bring them; a request needs the lock of one zone, or of none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "fabric/service.h"
#include "index/outback/growth.h"
#include "index/outback/lines.h"
#include "index/outback/zone.h"

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
  // Returns the zone whose lock the request needs; nothing: none, or the request cannot be.
  std::optional<std::uint64_t> zone_of(const Request& request) const;
  Zone& zone(std::uint64_t number) const { return *zones_[number]; }
  std::uint64_t zones() const { return zones_.size(); }
  // Carries a request out, under the lock of its zone, and writes the reply. `room` has room for a head. Returns the
  // length of the reply.
  std::size_t run(const Request& request, std::uint64_t session, fabric::Hand hand, base::MutableBytes room);
  void forget_session(std::uint64_t session) { lines_->forget_session(session); }

  // Says whether a step of growth should follow a request. Under the lock of its zone.
  bool is_turn(const Request& request, std::uint64_t zone);
  // Takes that step. Needs no lock.
  void grow(const Request& request, fabric::Hand hand, Growth::Doors& doors) {
    growth_.work(hand, doors, layout::changes(request.op));
  }
  // Leaves the step that a change should have taken to later ones. Under the lock of its zone.
  void owe(const Request& request, std::uint64_t zone) {
    if (layout::changes(request.op) && is_turn(request, zone)) growth_.owe();
  }
  const Growth& growth() const { return growth_; }
  Stage stage() const { return Stage::of(stage_.load(std::memory_order_acquire)).value(); }

  struct Totals {
    std::uint64_t keys = 0, bytes = 0;
    index::NodeMarks marks;  // of the zones
  };
  Totals totals() const;

 private:
  NodeTable(const Ground& ground, const Stage& stage, std::unique_ptr<Chunks> chunks)
      : stage_(stage.word()), ground_(ground), chunks_(std::move(chunks)), growth_(ground_, stage_, zones_) {
    ground_.stage = &stage_;
  }
  base::Status adopt();
  bool is_old(const Request& request, const Zone& zone, Status& status) const;
  bool is_refused(const Request& request, Reply& reply, Status& status) const;
  bool may_move(std::uint64_t session) const;
  Status judge(const Request& request, std::uint64_t session) const;
  Status carry_out(const Request& request, std::uint64_t session, fabric::Hand hand, Answer& answer, std::size_t room);
  Status change(const Request& request, std::uint64_t session, fabric::Hand hand, Answer& answer);
  Status attach(const Request& request, std::uint64_t session, fabric::Hand hand, Reply& reply);
  Status scan(const Request& request, fabric::Hand hand, Answer& answer, std::size_t room);
  void drop(std::uint64_t address) const;

  std::atomic<std::uint64_t> stage_;
  Ground ground_;
  std::unique_ptr<Chunks> chunks_;
  std::vector<std::unique_ptr<Zone>> zones_;
  std::unique_ptr<Lines> lines_;
  std::vector<std::vector<std::byte>> scanned_;  // by zone: keys of a scan's reply
  Growth growth_;
};

}  // namespace farpool::outback
