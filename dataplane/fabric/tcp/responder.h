// SPDX-License-Identifier: Apache-2.0
// The memory node's end of the tcp wire: a software NIC that executes chains on the regions of a host, behind the
// session port. The shm wire differs only in its lanes: rings in shared memory (net/ring.h), which a client on the same
// machine gets on a Unix socket, for the token that it got on the session port.
//
// The session port's executors read frames, execute them in order and answer. The session's service executes a CALL for
// data there as well. While a control CALL is with the host, its lane executes nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/counts.h"
#include "base/result.h"
#include "fabric/host.h"
#include "fabric/session_port/server.h"
#include "net/loop.h"

namespace farpool::fabric::tcp {

// Counts of the software NIC: see kResponderGauges and kResponderCounts.
struct ResponderStats : session_port::Stats {
  std::uint64_t chains = 0;
  std::array<std::uint64_t, 6> verbs{};  // by fabric::Verb
  std::uint64_t bytes_in = 0;            // frames of lanes
  std::uint64_t bytes_out = 0;
  std::uint64_t held = 0;
};

// What there is now.
inline constexpr auto kResponderGauges = std::to_array<base::Count<ResponderStats>>({
    {&ResponderStats::held, "held_calls", "CALLs for data that services hold."},
});
inline constexpr auto kResponderCounts = std::to_array<base::Count<ResponderStats>>({
    {&ResponderStats::chains, "chains", "Chains executed."},
});

class TcpResponder final : public Responder {
 public:
  // The control loop outlives the responder. It listens from serve() on. It does not read a lane that has more than
  // `max_unsent` bytes of replies to take.
  TcpResponder(net::Loop& control, session_port::Options options, std::size_t max_unsent = 4u << 20);
  // Ends on the control thread, or when the control loop does not run. Afterwards no verb executes, and nothing calls
  // the host.
  ~TcpResponder() override;

  // Listens and serves the host. The host, and the regions of its rights, must live as long as this.
  base::Status serve(Host& host);
  // Lets clients on the same machine open lanes over rings, too; called once it serves. `address` is a port's
  // rings_address for the host's incarnation. Removes sockets there that nobody has listened on for a minute: dead
  // processes left them.
  base::Status serve_rings(const std::string& address) { return session_port_.serve_rings(address); }
  const std::string& address() const { return session_port_.address(); }
  ResponderStats stats() const;  // any thread

  Caps caps() const override;
  void fence(std::uint64_t session_id, std::function<void()> done) override {
    session_port_.fence(session_id, std::move(done));
  }
  void after(base::Nanos delay, std::function<void()> what) override { session_port_.after(delay, std::move(what)); }
  base::Nanos now() const override { return net::Loop::now(); }
  std::uint64_t random() override { return session_port_.random(); }

  class Lanes;  // internal

 private:
  std::unique_ptr<Lanes> lanes_;
  session_port::Server session_port_;  // goes first: it runs the lanes
};

}  // namespace farpool::fabric::tcp
