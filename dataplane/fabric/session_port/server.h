// SPDX-License-Identifier: Apache-2.0
// The memory node's half of the session port: it accepts connections, checks certificates, passes exchanges to the
// host, and gives a client a lane for a token. The wire does the rest with a lane. There are two kinds of wires: a
// StreamWire takes the connection over (frames, over sockets and rings); an AttachedWire has connections of its own
// (queue pairs), and the one that the lane began on is silent until it ends.
//
// Executor threads own the connections. The host is called on the control thread alone, so an exchange, a lane's token
// and a control CALL hop there and back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/counts.h"
#include "base/result.h"
#include "fabric/host.h"
#include "net/loop.h"
#include "net/stream.h"
#include "net/tls.h"

namespace farpool::fabric::session_port {

struct Options {
  std::string listen;             // host:port; port 0: any
  std::shared_ptr<net::Tls> tls;  // none: plain
  std::size_t executors = 1;      // threads
  std::size_t max_connections = 4096;
  std::size_t max_lanes_per_session = 16;
  // How long a new connection may take for its handshake and its greeting, and how long an exchange may take to be
  // answered and read.
  base::Nanos handshake_deadline = 5 * base::kSecond;
  // How long an executor with lanes over rings looks for chains before it sleeps.
  base::Nanos spin = 0;
};

// Counts of a session port: see kGauges and kCounts. An owner is a wire's name.
struct Stats {
  std::uint64_t connections = 0;
  std::uint64_t lanes = 0;
  std::uint64_t ring_lanes = 0;
  std::uint64_t exchanges = 0;
  std::uint64_t refusals = 0;
  std::uint64_t malformed = 0;
  std::uint64_t fences = 0;
  std::uint64_t refused_connections = 0;
  std::uint64_t failed_handshakes = 0;
};

// What there is now.
inline constexpr auto kGauges = std::to_array<base::Count<Stats>>({
    {&Stats::connections, "connections", "Connections open on the session port."},
    {&Stats::lanes, "lanes", "Lanes open."},
    {&Stats::ring_lanes, "ring_lanes", "Lanes open over rings in shared memory.", "shm"},
});
inline constexpr auto kCounts = std::to_array<base::Count<Stats>>({
    {&Stats::exchanges, "exchanges", "Requests that the session port has passed to the memory node."},
    {&Stats::refusals, "refusals", "Chains and lanes refused: wrong key, range, alignment or token."},
    {&Stats::malformed, "malformed", "Connections closed for bytes that are no frame."},
    {&Stats::fences, "fences", "Fences of sessions."},
    {&Stats::refused_connections, "connections_refused", "Connections refused because there were too many."},
    {&Stats::failed_handshakes, "handshakes_failed", "TLS handshakes that failed or took too long."},
});
static_assert(sizeof(Stats) == (kGauges.size() + kCounts.size()) * sizeof(std::uint64_t));

// A connection that carries a lane, as the lane's wire sees it. All of it belongs to its executor's thread.
class LaneConnection {
 public:
  LaneConnection(const LaneConnection&) = delete;

  net::Stream& stream() const { return *stream_; }
  std::size_t executor() const { return executor_; }
  // Says whether verbs of the lane may execute. False once it has ended, or its session is fenced.
  bool executes() const { return executes_; }

  // Asks the host to handle a control CALL. StreamLane::on_reply gets the reply, unless the session is fenced
  // meanwhile.
  void call_host(std::uint64_t call, std::uint32_t opcode, std::string request, std::size_t room);
  // Ends the lane and counts a refusal. The peer still gets what has been written.
  void refuse();
  // Closes at once, and counts a peer whose bytes are no frame.
  void malformed();
  // Closes at once.
  void close();

 protected:
  LaneConnection(std::size_t executor, std::unique_ptr<net::Stream> stream)
      : executor_(executor), stream_(std::move(stream)) {}
  ~LaneConnection() = default;

  const std::size_t executor_;
  std::unique_ptr<net::Stream> stream_;
  bool executes_ = false;
};

// One lane on a connection, as its wire makes it. It is the handler of the connection's stream, and tells the
// connection when that has closed. The connection destroys it at a later turn.
class StreamLane : public net::StreamHandler {
 public:
  virtual ~StreamLane() = default;
  // Takes the host's reply to a CALL; nothing: the host refused.
  virtual void on_reply(std::uint64_t call, const std::optional<std::string>& reply) = 0;
};

// A wire whose lanes are the connections that they began on. All of it is called on the executors' threads.
class StreamWire {
 public:
  virtual ~StreamWire() = default;
  virtual std::string_view name() const = 0;  // as --wire has it
  // Makes a lane, which starts the stream and reads on. Bytes that the client has sent behind its greeting may already
  // be there.
  virtual std::unique_ptr<StreamLane> begin(LaneConnection& connection, LaneRights rights) = 0;
  // Calls `then` on the executor, now or later, once the executor holds nothing for a session whose lanes have all
  // ended.
  virtual void drain(std::size_t executor, std::uint64_t session_id, std::function<void()> then) = 0;
};

// A wire whose lanes have connections of their own. They begin on the session port with a token, over an authenticated
// connection that stays open as long as the lane. All of it is called on the control thread.
class AttachedWire {
 public:
  virtual ~AttachedWire() = default;
  virtual std::string_view name() const = 0;  // as --wire has it
  // Makes this side of a lane from what the client says. Calls `answer` exactly once, now, later, or when this is
  // destroyed; the client receives its text. A failure refuses the lane, and its message reaches the client.
  using Answer = std::function<void(base::Result<std::string>)>;
  virtual void attach(std::uint64_t lane, const LaneRights& rights, base::Bytes request, Answer answer) = 0;
  // Called when the connection of the lane has ended. Ignores unknown lanes.
  virtual void detach(std::uint64_t lane) = 0;
  // Ends every lane of the session: no verb of it executes once this has returned.
  virtual void fence(std::uint64_t session_id) = 0;
};

class Server {
 public:
  // The control loop outlives the server. It listens from serve() on.
  Server(net::Loop& control, Options options);
  // Ends on the control thread, or when the control loop does not run. Afterwards the executors' threads have ended,
  // every lane of a StreamWire is destroyed, and nothing calls the host.
  ~Server();

  // Listens and serves the host with the lanes of one wire. Both must live as long as this.
  base::Status serve(Host& host, StreamWire& wire);
  base::Status serve(Host& host, AttachedWire& wire);
  // Lets clients on the same machine open lanes over rings at this address, too; called once it serves a StreamWire.
  // The address is the host's incarnation's own. Removes sockets there that nobody has listened on for a minute: dead
  // processes left them.
  base::Status serve_rings(const std::string& address);
  const std::string& address() const;  // once it serves: with the port that was really bound
  Stats stats() const;                 // any thread

  // Ends every lane of the session. Calls `done` on the control thread once none executes and the wire has drained.
  void fence(std::uint64_t session_id, std::function<void()> done);
  // Runs `what` on the control thread at or after the delay.
  void after(base::Nanos delay, std::function<void()> what);
  std::uint64_t random();
  // Runs `what` on an executor's thread, or never if this is destroyed before. Once it serves; any thread.
  void post(std::size_t executor, std::function<void()> what);

  struct State;  // internal

 private:
  std::shared_ptr<State> state_;
};

}  // namespace farpool::fabric::session_port
