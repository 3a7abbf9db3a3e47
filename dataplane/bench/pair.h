// SPDX-License-Identifier: Apache-2.0
// A client and a memory node over the tcp or shm wire, each a thread of this process, for programs that time a lane.
#pragma once

#include <sys/resource.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/time.h"
#include "fabric/tcp/port.h"
#include "fabric/tcp/responder.h"
#include "net/loop.h"
#include "task/scope.h"

namespace farpool::bench {

// Returns the CPU time of this process so far, of all its threads.
inline base::Nanos cpu_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * base::kSecond +
         (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
}

// A directory for sockets of rings, which goes with this object.
class RingsDirectory {
 public:
  RingsDirectory() { FARPOOL_CHECK(::mkdtemp(path_.data()) != nullptr); }
  RingsDirectory(const RingsDirectory&) = delete;
  RingsDirectory& operator=(const RingsDirectory&) = delete;
  ~RingsDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "farpool-bench-XXXXXX").string();
};

// A memory node that gives every lane the same rights, for a token of zeros. A client proves over rings that it knows
// that token, so it has to count as unspent.
class OpenHost final : public fabric::Host {
 public:
  explicit OpenHost(fabric::LaneRights rights) : rights_(std::move(rights)) {}
  void on_exchange(const fabric::Peer&, std::string, std::function<void(std::string)> reply) override { reply({}); }
  std::optional<fabric::LaneRights> on_open_lane(const std::array<std::byte, 16>&) override { return rights_; }
  std::vector<std::array<std::byte, 16>> unspent_tokens() const override { return {{}}; }
  std::optional<std::size_t> on_call(std::uint64_t, std::uint32_t, base::Bytes, base::MutableBytes) override {
    return 0;
  }

 private:
  const fabric::LaneRights rights_;
};

struct Pair {
  std::string rings;                               // directory of rings, which then carry the lanes; empty: sockets do
  std::shared_ptr<net::Tls> node_tls, client_tls;  // null: plain
  base::Nanos spin = 0;                            // of both
};

// Opens a lane, and makes sure that it goes over rings if it is to: the port would quietly take a socket instead.
inline task::Task<std::unique_ptr<fabric::Lane>> open_lane(fabric::Port& port, const fabric::tcp::TcpResponder& node,
                                                           fabric::LaneGrant grant, bool rings) {
  grant.endpoint = node.address();
  auto lane = co_await port.open_lane(std::move(grant), port.now() + 10 * base::kSecond);
  FARPOOL_CHECK(lane.ok() && node.stats().ring_lanes == (rings ? 1 : 0));
  co_return std::move(*lane);
}

// Runs both loops on threads of their own, and what `measure` makes of a port on the client's, until it has set the
// promise. The port goes before the loops end.
inline void run_loops(net::Loop& control, net::Loop& client,
                      const std::function<std::unique_ptr<fabric::Port>(net::Loop&)>& make_port,
                      const std::function<task::Task<void>(fabric::Port&, std::promise<void>&)>& measure) {
  std::thread control_thread([&] { control.run(); }), client_thread([&] { client.run(); });
  std::promise<void> over;
  task::Scope scope;
  std::unique_ptr<fabric::Port> port;
  client.post([&] {
    port = make_port(client);
    scope.spawn(measure(*port, over));
  });
  over.get_future().get();
  client.post([&] {
    port.reset();
    client.stop();
  });
  client_thread.join();
  control.stop();
  control_thread.join();
}

// Runs what `measure` makes of a port and a memory node over sockets or rings, until it has set the promise.
inline void run_pair(fabric::Host& host, const Pair& pair,
                     const std::function<task::Task<void>(fabric::Port&, const fabric::tcp::TcpResponder&,
                                                          std::promise<void>&)>& measure) {
  net::Loop control, client;
  client.set_spin(pair.spin);
  fabric::tcp::TcpResponder responder(control, {.listen = "127.0.0.1:0", .tls = pair.node_tls, .spin = pair.spin});
  base::Status status = responder.serve(host);
  if (status.ok() && !pair.rings.empty()) status = responder.serve_rings(fabric::tcp::rings_address(pair.rings, 0));
  FARPOOL_CHECK(status.ok());
  run_loops(
      control, client,
      [&](net::Loop& loop) { return std::make_unique<fabric::tcp::TcpPort>(loop, pair.client_tls, pair.rings); },
      [&](fabric::Port& port, std::promise<void>& over) { return measure(port, responder, over); });
}

}  // namespace farpool::bench
