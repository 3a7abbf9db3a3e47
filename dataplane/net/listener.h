// SPDX-License-Identifier: Apache-2.0
// How connections begin: outgoing with connect(), incoming with a Listener. Addresses are `host:port`, `[v6]:port`,
// `unix:/path` or `shm:/path`. `[::]:port` listens on all addresses of both families, or of IPv4 alone if the kernel
// has no other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/loop.h"
#include "net/stream.h"
#include "net/tls.h"

namespace farpool::net {

// Calls `done` once, on the loop's thread, never inline: with an open stream, or with unavailable, timed_out or
// forbidden. The deadline covers name resolution, connection and TLS.
void connect(Loop& loop, std::string address, std::shared_ptr<Tls> tls, Nanos deadline,
             std::function<void(base::Result<std::unique_ptr<Stream>>)> done);

// Says whether the kernel speaks IPv6.
bool kernel_has_ipv6();

// How many peers a listener refuses with a text at a time: each needs a descriptor, beside max_connections.
inline constexpr std::size_t kRefusalsAtOnce = 32;

struct ListenOptions {
  std::string address;
  std::shared_ptr<Tls> tls;            // none: plain
  std::size_t max_connections = 1024;  // open at once; more are closed when they come
  // The number of open connections, shared with other listeners; none: counts its own alone.
  std::shared_ptr<std::atomic<std::uint64_t>> open = {};
  std::string when_full;  // sent to peers that are too many, as far as descriptors suffice
  // When it ends, it accepts the connections that are waiting, because their peers believe that they are connected.
  bool take_waiting = false;
  Nanos handshake_deadline = 5 * base::kSecond;
  int unix_mode = 0660;
  // Chooses the loop of the next connection; none: the listener's own. Called on the listener's thread.
  std::function<Loop&()> place;
};

// Accepts on its loop; calls `accepted` on the loop of the connection once TLS is up. Loops outlive the listener.
class Listener {
 public:
  static base::Result<std::unique_ptr<Listener>> open(Loop& loop, ListenOptions options,
                                                      std::function<void(std::unique_ptr<Stream>)> accepted);
  // Ends on the loop's thread, or when the loop does not run. Accepted connections stay open.
  ~Listener();

  const std::string& address() const;  // with the port that was really bound
  struct Stats {
    std::uint64_t open = 0;
    std::uint64_t accepted = 0;
    std::uint64_t refused_full = 0;
    std::uint64_t failed_handshakes = 0;
  };
  Stats stats() const;  // any thread

 private:
  struct State;
  explicit Listener(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// Removes sockets in a local address's directory, with its extension, that nobody has listened on for a minute: each
// was left by a process that was killed.
void remove_left_over(const std::string& address);

}  // namespace farpool::net
