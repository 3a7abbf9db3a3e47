// SPDX-License-Identifier: Apache-2.0
// The client's end of the verbs wire: a port on a loop, and lanes that are queue pairs. Exchanges and the beginnings of
// lanes go over the session port, as on every wire.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fabric/fabric.h"
#include "fabric/session_port/port.h"
#include "fabric/verbs/arena.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/manager.h"
#include "net/loop.h"
#include "net/tls.h"

namespace farpool::fabric::verbs {

struct PortOptions {
  std::function<void(const std::string&)> log;  // lanes that broke, and why; none: nobody is told
  CallForm calls = CallForm::connected;         // how CALLs for data travel
};

// Returns what every lane of this wire can do on the device, with CALLs for data in this form.
Caps wire_caps(const Device& device, CallForm calls);

class VerbsLane;

// Lives on the loop's thread; the loop outlives it. The device may be shared by many ports.
class VerbsPort final : public session_port::LoopPort, private net::TurnHook, private net::Poller {
 public:
  static base::Result<std::unique_ptr<VerbsPort>> open(net::Loop& loop, std::shared_ptr<net::Tls> tls,
                                                       std::shared_ptr<Device> device, PortOptions options);
  ~VerbsPort() override;

  Caps caps() const override;
  task::Task<base::Result<std::unique_ptr<Lane>>> open_lane(LaneGrant grant, Nanos deadline) override;

 private:
  friend class VerbsLane;
  // What buffers are registered with, made before the port's own parts.
  struct Memory {
    std::shared_ptr<Device> device;
    ProtectionDomain domain;
    std::unique_ptr<Arena> arena;
    CompletionEvents events;
    std::unique_ptr<ConnectionManager> manager;  // none: lanes are connected by what the session port tells
  };
  VerbsPort(net::Loop& loop, std::shared_ptr<net::Tls> tls, std::unique_ptr<Memory> memory, PortOptions options);

  void on_turn_end() noexcept override;
  bool poll() noexcept override;
  bool may_sleep() noexcept override;  // the device wakes the loop
  void take_events();
  bool take_completions();  // whether any came
  void ring_soon(VerbsLane& lane);
  void forget(VerbsLane& lane);
  void broke(std::uint64_t lane, const std::string& why);
  void complete(Posting& posting);  // its waiter resumes when the turn ends
  void resume_completed();

  const std::unique_ptr<Memory> memory_;
  const PortOptions options_;
  std::unique_ptr<net::Watch> watch_, manager_watch_, events_watch_;
  std::shared_ptr<VerbsPort*> self_;  // what is posted to the loop may outlive the port
  std::uint64_t last_lane_ = 0;
  std::set<std::string>
      unmanaged_;                  // endpoints to which librdmacm did not connect the last lane: the next does without
  std::vector<VerbsLane*> lanes_;  // that are open
  std::vector<VerbsLane*> to_ring_;  // when the turn ends
  std::vector<VerbsLane*> turning_;  // while it does
  Posting* first_completed_ = nullptr;
  Posting* last_completed_ = nullptr;
};

}  // namespace farpool::fabric::verbs
