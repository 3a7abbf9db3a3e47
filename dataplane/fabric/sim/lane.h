// SPDX-License-Identifier: Apache-2.0
// The client's side of a simulated lane, and what the files of the simulated wire share. Not for anybody else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/marks.h"
#include "fabric/fabric.h"
#include "fabric/sim/flight.h"
#include "fabric/sim/network.h"

namespace farpool::fabric::sim {

// Convert between the units of clocks and of the model of time.
inline constexpr Picos kPicosPerNano = 1000;
inline Picos picos(Nanos nanos) { return nanos * kPicosPerNano; }
// Rounds up.
inline Nanos nanos(Picos picos) { return (picos + kPicosPerNano - 1) / kPicosPerNano; }

// Runs `what` as a turn of the client, and rings for what it posted.
template <class What>
void SimPort::turn(const What& what) {
  if (state_ == State::crashed) return;
  if (state_ == State::paused) {
    FARPOOL_MARK(sim_turn_of_a_stopped_thread);
    deferred_.push_back(what);
    return;
  }
  what();
  ring();
}

// A lane of a simulated client, which lives as long as its owner likes: what is on its way outlives it (flight.h).
class SimLane final : public Lane {
 public:
  SimLane(SimPort& port, Ref<Link> link) : port_(port), link_(std::move(link)), late_(*this) { link_->lane = this; }
  ~SimLane() override;

  void enqueue(Posting& posting) noexcept override;
  void sever() noexcept override { end(nullptr); }
  bool open() const noexcept override { return open_; }
  std::size_t pending() const noexcept override { return pending_; }

  // Rings one doorbell for all that was queued in this turn.
  void ring();
  // Takes the answer of a chain that executed whole. It may destroy this lane.
  void done(const Ref<Flight>& flight);
  // Ends the lane: `refused` ends so, all else ends `maybe`. Completions come in a later turn, so that sever() resumes
  // nobody.
  void end(Flight* refused);

  const std::vector<Ref<Flight>>& flights() const { return flights_; }

 private:
  struct Late final : Timer {
    explicit Late(SimLane& lane) : lane(lane) {}
    void fire() noexcept override { lane.look_for_late(); }
    SimLane& lane;
  };

  void watch(Nanos deadline);
  void look_for_late();

  bool must_wait(const Posting& posting) const {
    return !posting.ops.empty() && is_service_call(posting.ops[0]) &&
           calls_ == port_.network_->options().calls_in_flight;
  }
  void ring_soon();

  void complete_soon(std::vector<Posting*> postings, Fate fate, Refusal why = Refusal::none);
  void complete(const std::vector<Posting*>& postings, Fate fate, Refusal why);
  // Gives the client's memory back to it: what WRITEs still need is copied, what READs were to fill is garbage.
  void release(Posting* posting, Fate fate);

  friend class Network;
  SimPort& port_;
  Ref<Link> link_;
  bool open_ = true;
  bool refused_ = false;
  std::size_t pending_ = 0;
  std::uint32_t calls_ = 0;        // for data, sent and not done
  std::vector<Posting*> queued_;   // until the doorbell rings
  std::vector<Posting*> spare_;    // room for the next ones
  std::vector<Posting*> orphans_;  // behind a chain that could not be sent
  std::vector<Ref<Flight>> flights_;
  Late late_;
  Nanos watched_ = base::kNever;
};

}  // namespace farpool::fabric::sim
