// SPDX-License-Identifier: Apache-2.0
// The memory node's end of the verbs wire. Exchanges, tokens and the beginning of lanes go over the session port; the
// device executes verbs, on regions that are registered once, without a processor. The control thread begins and ends
// lanes and executes control CALLs. Threads of their own (call_server.h), as many as the session port has, execute
// CALLs for data.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/counts.h"
#include "base/result.h"
#include "fabric/host.h"
#include "fabric/session_port/server.h"
#include "fabric/verbs/call_server.h"
#include "fabric/verbs/device.h"
#include "net/loop.h"

namespace farpool::fabric::verbs {

// Counts of lanes and control CALLs: see kVerbsGauges and kVerbsCounts.
struct VerbsStats {
  std::uint64_t lanes = 0;
  std::uint64_t managed = 0;
  std::uint64_t calls = 0;
  std::uint64_t waits = 0;
  std::uint64_t broken = 0;
  std::uint64_t windows = 0;
  std::uint64_t lanes_without_windows = 0;
  CallStats data;
};

// What there is now.
inline constexpr auto kVerbsGauges = std::to_array<base::Count<VerbsStats>>({
    {&VerbsStats::lanes, "lanes", "Queue pairs open, or about to be."},
    {&VerbsStats::managed, "managed_lanes", "Queue pairs open that librdmacm connected."},
    {&VerbsStats::windows, "memory_windows", "Keys bound to the queue pair of one lane."},
    {&VerbsStats::lanes_without_windows, "lanes_without_windows",
     "Queue pairs open that use a key of host memory which is good on others, too."},
});
inline constexpr auto kVerbsCounts = std::to_array<base::Count<VerbsStats>>({
    {&VerbsStats::calls, "calls", "CALLs that came by SEND. What else the device executes, it counts itself."},
    {&VerbsStats::waits, "waiting_calls", "CALLs that are large, and waited for one of the rooms for such."},
    {&VerbsStats::broken, "broken_lanes", "Queue pairs that the device reported an error on."},
});
static_assert(sizeof(VerbsStats) ==
              (kVerbsGauges.size() + kVerbsCounts.size()) * sizeof(std::uint64_t) + sizeof(CallStats));

class VerbsResponder final : public Responder {
 public:
  using Log = std::function<void(const std::string&)>;
  // The control loop outlives the responder. It listens from serve() on.
  VerbsResponder(net::Loop& control, session_port::Options options, std::shared_ptr<Device> device, Log log = {});
  // Ends on the control thread, or when the control loop does not run.
  ~VerbsResponder() override;

  // Listens and serves the host, which must live as long as this; so must its regions.
  base::Status serve(Host& host);
  const std::string& address() const { return session_port_.address(); }
  session_port::Stats session_port_stats() const { return session_port_.stats(); }
  VerbsStats stats() const;  // any thread

  Caps caps() const override;
  // Calls `done` when the session's queue pairs are gone and its service has drained.
  void fence(std::uint64_t session_id, std::function<void()> done) override;
  base::Status place_in_device(base::Bytes region) override;
  // Returns the address by which packets name the first byte of a region that clients may write to: what a box between
  // them and this memory node has to know (docs/operations.md). 0: no lane has asked for the region yet. Control thread.
  std::uint64_t address_in_packets(const std::byte* region) const;
  void after(base::Nanos delay, std::function<void()> what) override { session_port_.after(delay, std::move(what)); }
  base::Nanos now() const override { return net::Loop::now(); }
  std::uint64_t random() override { return session_port_.random(); }

  class Lanes;  // internal

 private:
  std::unique_ptr<Lanes> lanes_;
  session_port::Server session_port_;  // goes first: it calls the lanes
};

}  // namespace farpool::fabric::verbs
