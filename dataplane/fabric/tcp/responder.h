// SPDX-License-Identifier: Apache-2.0
// The memory node's end of the tcp wire: the session port, and a software NIC that executes chains on the regions of a
// host. The shm wire is the same but for its lanes: rings in shared memory (net/ring.h), which a client of this host
// gets on a Unix socket, for the token that it was given on the session port.
//
// Executor threads own the connections: each reads frames, executes them in order and answers. A CALL for data is
// executed there as well, by the session's service. The host is called on the control thread alone, so an exchange, a
// lane's token and a control CALL hop there and back; while a control CALL is away its lane executes nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "fabric/host.h"
#include "fabric/tcp/port.h"
#include "net/loop.h"
#include "net/tls.h"

namespace farpool::fabric::tcp {

struct ResponderOptions {
  std::string listen;             // host:port; port 0: any
  std::shared_ptr<net::Tls> tls;  // none: plain
  std::size_t executors = 1;      // threads
  std::size_t max_connections = 4096;
  std::size_t max_lanes_per_session = 16;
  // How long a new connection may take to shake hands and to say what it wants, and an exchange to be answered and
  // taken.
  base::Nanos handshake_deadline = 5 * base::kSecond;
  // How long an executor that has lanes over rings looks for chains before it sleeps.
  base::Nanos spin = 0;
  // Replies that a lane has not taken, beyond which it is not read.
  std::size_t max_unsent = 4u << 20;
};

struct ResponderStats {
  std::uint64_t connections = 0;  // open now
  std::uint64_t lanes = 0;        // open now
  std::uint64_t ring_lanes = 0;   // of them over rings
  std::uint64_t exchanges = 0;
  std::uint64_t chains = 0;
  std::array<std::uint64_t, 6> verbs{};  // by fabric::Verb
  std::uint64_t bytes_in = 0;            // frames of lanes
  std::uint64_t bytes_out = 0;
  std::uint64_t held = 0;       // CALLs that a service holds now
  std::uint64_t refusals = 0;   // chains and lanes
  std::uint64_t malformed = 0;  // connections closed for bytes that are no frame
  std::uint64_t fences = 0;
  std::uint64_t refused_connections = 0;  // too many
  std::uint64_t failed_handshakes = 0;
};

// Another wire whose lanes begin on the session port: with a token, over an authenticated connection that stays open as
// long as the lane. All of it is called on the control thread.
class LaneMaker {
 public:
  virtual ~LaneMaker() = default;
  // Makes this side of a lane from what the client says. `answer` is called exactly once, now, later, or when this is
  // destroyed: what it is given is said to the client. A failure refuses the lane, and its message reaches the client.
  using Answer = std::function<void(base::Result<std::string>)>;
  virtual void attach(std::uint64_t lane, const LaneRights& rights, base::Bytes request, Answer answer) = 0;
  // The connection of the lane has ended. Unknown lanes are of no consequence.
  virtual void detach(std::uint64_t lane) = 0;
  // Ends every lane of the session: no verb of it executes once this has returned.
  virtual void fence(std::uint64_t session_id) = 0;
};

class TcpResponder final : public Responder {
 public:
  // The control loop outlives the responder. Nothing listens until serve().
  TcpResponder(net::Loop& control, ResponderOptions options);
  // On the control thread, or when the control loop does not run. No verb executes and the host hears nothing
  // afterwards.
  ~TcpResponder() override;

  // Listens and serves the host, which must live as long as this. The regions of its rights must, too. With another
  // wire, which must live as long too, every lane is that wire's: words that its NIC changes by atomics are not changed
  // by this processor's.
  base::Status serve(Host& host, LaneMaker* other = nullptr);
  // Once it serves, and no other wire: clients of this host may open lanes over rings, too. `address` is a port's
  // rings_address for the host's incarnation. Sockets there that nobody has listened on for a minute are left over from
  // others' deaths, and go.
  base::Status serve_rings(const std::string& address);
  const std::string& address() const;  // once it serves: with the port that was really bound
  ResponderStats stats() const;        // any thread

  Caps caps() const override { return wire_caps(); }
  void fence(std::uint64_t session_id, std::function<void()> done) override;
  void after(base::Nanos delay, std::function<void()> what) override;
  base::Nanos now() const override { return net::Loop::now(); }
  std::uint64_t random() override;

  struct State;  // internal

 private:
  std::shared_ptr<State> state_;
};

}  // namespace farpool::fabric::tcp
