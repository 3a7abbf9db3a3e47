// SPDX-License-Identifier: Apache-2.0
// The raw verb on the tcp and shm wires, to set beside what is built on it: trips of one 64-byte READ, and of a chain
// as an update has it, with one and with many in flight on one lane. Real sockets on the loopback device; times are
// this machine's and no claim.
#include <array>
#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <vector>

#include "bench/pair.h"
#include "net/throwaway_ca.h"
#include "task/scope.h"

namespace farpool::bench {
namespace {

using base::Nanos;
using fabric::Op;

constexpr std::uint64_t kBytes = 1 << 20;  // of the region

enum class Kind { read, update };

task::Task<void> post_many(fabric::Port& port, fabric::Lane& lane, Kind kind, std::uint64_t place,
                           std::uint64_t times) {
  fabric::Buffer row = port.buffer(144);
  std::uint64_t old = 0;
  for (std::uint64_t i = 0; i < times; ++i) {
    const fabric::Remote at{1, place * 1024};
    const std::array update{Op::masked_cas({1, place * 1024 + 512}, old, 0, 1, 0, 1), Op::read(at, row.first(144)),
                            Op::read(at, row.first(144))};
    const std::array read{Op::read(at, row.first(64))};
    const std::span<const Op> chain = kind == Kind::read ? std::span<const Op>(read) : std::span<const Op>(update);
    const auto outcome = co_await lane.post(chain, port.now() + 10 * base::kSecond);
    FARPOOL_CHECK(outcome.fate == fabric::Fate::done);
  }
}

struct Shape {
  const char* name;
  bool secure = false;
  bool rings = false;
  Nanos spin = 0;
};

task::Task<void> measure(fabric::Port& port, const fabric::tcp::TcpResponder& node, const Shape& shape,
                         std::promise<void>& over) {
  const auto lane = co_await open_lane(port, node, {.regions = {{.id = 1, .bytes = kBytes, .key = 1}}}, shape.rings);
  for (const Kind kind : {Kind::read, Kind::update}) {
    for (const std::uint64_t flight : {1u, 16u, 128u}) {
      const std::uint64_t each = 60'000 / flight;
      const auto before = lane->stats();
      const Nanos cpu = cpu_time(), begin = port.now();
      {
        task::Scope scope;
        for (std::uint64_t i = 0; i < flight; ++i) scope.spawn(post_many(port, *lane, kind, i, each));
        co_await scope.join();
      }
      const auto chains = static_cast<double>(each * flight);
      std::printf("%-18s %-22s %4lu in flight  %8.2f us/chain  %8.2f us CPU/chain  %6.2f chains/doorbell\n", shape.name,
                  kind == Kind::read ? "READ 64" : "masked CAS, 2 READ 144", static_cast<unsigned long>(flight),
                  static_cast<double>(port.now() - begin) / 1000 / chains,
                  static_cast<double>(cpu_time() - cpu) / 1000 / chains,
                  chains / static_cast<double>(lane->stats().doorbells - before.doorbells));
      std::fflush(stdout);
    }
  }
  over.set_value();
}

void run(const Shape& shape) {
  std::vector<std::uint64_t> memory(kBytes / 8);
  OpenHost host(
      {.session_id = 1,
       .regions = {{.id = 1, .key = 1, .base = reinterpret_cast<std::byte*>(memory.data()), .bytes = kBytes}}});
  net::ThrowawayCa ca;
  std::shared_ptr<net::Tls> node_tls, client_tls;
  if (shape.secure) {
    node_tls = *net::Tls::load(ca.issue("farpool://bench/node/n"), net::Tls::Kind::mutual);
    client_tls = *net::Tls::load(ca.issue("farpool://bench/client/c"), net::Tls::Kind::mutual);
  }
  const RingsDirectory directory;
  run_pair(host,
           {.rings = shape.rings ? directory.path() : "",
            .node_tls = node_tls,
            .client_tls = client_tls,
            .spin = shape.spin},
           [&shape](fabric::Port& port, const fabric::tcp::TcpResponder& node, std::promise<void>& over) {
             return measure(port, node, shape, over);
           });
}

}  // namespace
}  // namespace farpool::bench

int main() {
  using farpool::bench::run;
  run({.name = "plain"});
  run({.name = "TLS", .secure = true});
  run({.name = "rings", .rings = true});
  run({.name = "rings, spin 20 us", .rings = true, .spin = 20 * farpool::base::kMicrosecond});
}
