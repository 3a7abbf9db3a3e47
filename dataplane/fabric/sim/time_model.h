// SPDX-License-Identifier: Apache-2.0
// How long verbs take: a NIC, its PCIe bus and its link, as figures, and the queues in front of each. With it the
// simulated wire is for performance: deterministic from the seed, in order within a lane, nothing torn or lost. Without
// it (network.h) the wire is for correctness: weaker than every real one.
//
// The papers measured these figures on ConnectX-5 and ConnectX-3, or they follow from such figures; calibration.h says
// how far the model is from each. docs/measurements/time-model.md is its table.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/time.h"
#include "fabric/fabric.h"

namespace farpool::fabric::sim {

using base::Nanos;

// Rates in millions a second, times in nanoseconds. An address that only one verb at a time can work on, a queue pair,
// a NIC's atomic unit, a bus and a link are each a queue.
struct NicModel {
  const char* name;

  // A message alone: doorbell and NIC of the client; cable and switch, one way; answer's DMA and poll of the client.
  double post, propagation, complete;

  double link_gbps;       // each way, of every machine
  double frame_overhead;  // bytes a packet takes on the link beyond what fabric/cost.h counts: FCS, preamble, gap
  double message_mops;    // packets that a NIC begins to work on
  double pcie_gbps;       // each way
  double pcie_trip;       // a read of host memory

  // What one queue pair does at most.
  double lane_mops_host, lane_mops_device;                // READs and WRITEs
  double lane_atomic_mops_host, lane_atomic_mops_device;  // to addresses of their own
  // All queue pairs together.
  double atomic_mops_host, atomic_mops_device;
  // One address.
  double word_atomic_mops_host, word_atomic_mops_device;

  // Answers leave up to `jitter` later, and one in many, by `straggle`, an exponentially distributed time of mean
  // `straggle_mean` later, at most `straggle_most`: contention in the NIC and on the bus.
  double jitter;
  double straggle, straggle_mean, straggle_most;

  // The memory node's processor.
  double call;           // a CALL's handler
  double control;        // a message of the session port, one way
  double connects_mops;  // queue pairs connected
  double fence;          // queue pairs moved to error; and as long again until they are destroyed
};

extern const NicModel kConnectX5;  // 100 Gb/s
extern const NicModel kConnectX3;  // 40 Gb/s

// A verb that waits for something further ahead leaves the queue and comes back: others may come in between. Shorter
// waits are reckoned at once.
inline constexpr Nanos kAhead = 100;

// Times are in picoseconds: a link passes a small packet in less than ten nanoseconds.
using Picos = std::int64_t;

struct Timing {
  const NicModel* nic = nullptr;        // none: delays by chance (network.h)
  std::size_t clients_per_machine = 1;  // that share a NIC and its link
  std::uint64_t device_regions = 0;     // bit r: region r lies in the NIC's memory
};

// A lane's queue pair as the memory node's NIC sees it.
struct LaneClock {
  Picos free = 0;      // when it begins the next verb
  Picos executed = 0;  // when the last verb begun has executed: in order
  Picos answered = 0;  // likewise, the last READ or atomic
  Picos told = 0;      // when the last answer left: in order, too
};

class TimeModel {
 public:
  TimeModel(Timing timing, std::uint64_t seed);

  // A chain leaves a client now. When its first byte is at the memory node.
  Picos depart(std::size_t client, Picos now, std::uint64_t bytes, std::uint64_t packets);
  // The verbs of a chain come in over the memory node's link, first byte now. When the next is there.
  Picos arrive(std::size_t node, Picos now, const Op& op);

  // When the lane could begin a verb that arrived then.
  Picos earliest(const LaneClock& lane, Picos arrived, const Op& op) const;
  // Begins it there and then. When it has executed.
  Picos begin(std::size_t node, LaneClock& lane, Picos start, const Op& op);

  // A chain has executed now. When its answer leaves.
  Picos told(LaneClock& lane, Picos now);
  // It leaves now. When the client's thread has it.
  Picos answer(std::size_t node, std::size_t client, Picos now, std::uint64_t bytes, std::uint64_t packets);

  Picos control() const;                       // a message of the session port, one way
  Picos connect(std::size_t node, Picos now);  // when the queue pair is connected
  Picos fence() const;

  bool in_device(const Op& op) const { return (timing_.device_regions >> (op.at.region & 63) & 1) != 0; }

 private:
  // A server of one customer at a time.
  struct Server {
    Picos free = 0;
    Picos serve(Picos from, Picos time) { return free = std::max(free, from) + time; }
  };
  // Words that an atomic works on, and until when, by place: few, and looked at by every verb.
  struct Busy {
    std::vector<std::pair<std::uint32_t, std::uint64_t>> words;
    std::vector<Picos> until;
    std::size_t at_or_behind(std::pair<std::uint32_t, std::uint64_t> word) const;
    void erase_until(Picos time);
  };
  struct Node {
    Server in, out, messages, pcie_in, pcie_out, processor, connects;
    std::array<Server, 2> atomics;  // host, device
    Busy busy;
    std::size_t most_busy = 0;  // when those whose time is over are thrown away
  };
  struct Machine {
    Server in, out;
  };
  Node& node(std::size_t index);
  Machine& machine(std::size_t client);
  Picos on_link(std::uint64_t bytes, std::uint64_t packets) const;
  Picos on_pcie(std::uint64_t bytes) const;
  Picos chance_delay();

  // What the NIC's figures come to, reckoned once. In a pair, the first is for host memory, the second for the device.
  struct Reckoned {
    explicit Reckoned(const NicModel& nic);
    Picos depart, propagation, complete, pcie_trip, call, control, fence;
    Picos fence_trip;  // of a fenced verb
    Picos message, connect;
    std::array<Picos, 2> lane, lane_atomic, atomic, word_atomic;
  };

  Timing timing_;
  const NicModel& nic_;
  const Reckoned reckoned_;
  base::Random random_;
  std::vector<Node> nodes_;
  std::vector<Machine> machines_;
};

}  // namespace farpool::fabric::sim
