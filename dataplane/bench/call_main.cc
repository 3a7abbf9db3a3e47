// SPDX-License-Identifier: Apache-2.0
// CALLs for data on the tcp and shm wires, beside what carries them: empty CALLs of 64 bytes there and back, executed
// by a service that does nothing, and below it a raw ping-pong of the same bytes over the same kind of stream. One
// lane, with one and with many in flight; client and memory node are two threads of this process, so that CPU is that
// of both. Times are this machine's and no claim.
#include <array>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/pair.h"
#include "fabric/service.h"
#include "net/listener.h"
#include "net/loop.h"
#include "net/stream.h"
#include "task/scope.h"

namespace farpool::bench {
namespace {

using base::Nanos;
using fabric::Op;

constexpr std::size_t kBytes = 64;
// What the two frames of such a CALL come to (fabric/tcp/frame.h).
constexpr std::size_t kThere = 16 + 24 + 8 + kBytes, kBack = 16 + 8 + kBytes;
constexpr std::array<std::uint64_t, 3> kFlights{1, 16, 128};
constexpr std::uint64_t kTimes = 1'000'000;

struct Shape {
  const char* name;
  bool rings = false;
  Nanos spin = 0;
};
std::uint64_t times(const Shape& shape, std::uint64_t flight) {
  return flight == 1 ? kTimes / (shape.rings && shape.spin > 0 ? 4 : 20) : kTimes;
}

void say(const Shape& shape, const char* what, std::uint64_t flight, std::uint64_t count, Nanos took, Nanos cpu) {
  std::printf("%-18s %-9s %4lu in flight  %9.0f /s  %7.3f us  %7.3f us CPU\n", shape.name, what,
              static_cast<unsigned long>(flight), 1e9 * static_cast<double>(count) / static_cast<double>(took),
              static_cast<double>(took) / 1000 / static_cast<double>(count),
              static_cast<double>(cpu) / 1000 / static_cast<double>(count));
  std::fflush(stdout);
}

class Nothing final : public fabric::Service {
 public:
  fabric::Served serve(fabric::Call& call) noexcept override { return fabric::Served::done(call.reply.size()); }
};

task::Task<void> call_many(fabric::Port& port, fabric::Lane& lane, std::uint64_t count) {
  fabric::Buffer request = port.buffer(kBytes), reply = port.buffer(kBytes);
  const std::array ops{Op::call(fabric::kFirstServiceOpcode, request.first(kBytes), reply.first(kBytes))};
  const Nanos deadline = port.now() + 600 * base::kSecond;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto outcome = co_await lane.post(ops, deadline);
    FARPOOL_CHECK(outcome.fate == fabric::Fate::done && outcome.reply_bytes == kBytes);
  }
}

task::Task<void> measure(fabric::Port& port, const fabric::tcp::TcpResponder& node, const Shape& shape,
                         std::promise<void>& over) {
  const auto lane = co_await open_lane(port, node, {}, shape.rings);
  for (const std::uint64_t flight : kFlights) {
    const std::uint64_t each = times(shape, flight) / flight;
    const Nanos cpu = cpu_time(), begin = port.now();
    {
      task::Scope scope;
      for (std::uint64_t i = 0; i < flight; ++i) scope.spawn(call_many(port, *lane, each));
      co_await scope.join();
    }
    say(shape, "CALL", flight, each * flight, port.now() - begin, cpu_time() - cpu);
  }
  over.set_value();
}

// Answers each kThere bytes with kBack.
class Pong final : public net::StreamHandler {
 public:
  explicit Pong(std::unique_ptr<net::Stream> stream) : stream_(std::move(stream)) {
    stream_->need(kThere);
    stream_->start(*this);
  }
  void on_input() noexcept override {
    while (stream_->input().size() >= kThere) {
      std::memcpy(stream_->reserve(kBack).data(), stream_->input().data(), kBack);
      stream_->consume(kThere);
    }
  }
  void on_closed(const base::Status&) noexcept override {}

 private:
  std::unique_ptr<net::Stream> stream_;
};
class Ping final : public net::StreamHandler {
 public:
  Ping(std::unique_ptr<net::Stream> stream, std::uint64_t flight, std::uint64_t count, std::promise<void>& over)
      : stream_(std::move(stream)), left_to_send_(count), left_(count), over_(over) {
    stream_->need(kBack);
    stream_->start(*this);
    for (std::uint64_t i = 0; i < flight; ++i) send();
  }
  void on_input() noexcept override {
    while (stream_->input().size() >= kBack) {
      std::memcpy(bytes_.data(), stream_->input().data(), kBack);
      stream_->consume(kBack);
      if (--left_ == 0) return over_.set_value();
      send();
    }
  }
  void on_closed(const base::Status&) noexcept override {}

 private:
  void send() {
    if (left_to_send_ == 0) return;
    --left_to_send_;
    std::memcpy(stream_->reserve(kThere).data(), bytes_.data(), kThere);
  }
  std::unique_ptr<net::Stream> stream_;
  std::uint64_t left_to_send_, left_;
  std::promise<void>& over_;
  std::array<std::byte, kThere> bytes_{};
};

void run_raw(const Shape& shape, const std::string& directory, std::uint64_t flight) {
  net::Loop node, client;
  node.set_spin(shape.spin);
  client.set_spin(shape.spin);
  std::vector<std::unique_ptr<Pong>> pongs;
  auto listener = net::Listener::open(
      node, {.address = shape.rings ? "shm:" + directory + "/raw" + std::to_string(flight) : "127.0.0.1:0"},
      [&pongs](std::unique_ptr<net::Stream> stream) { pongs.push_back(std::make_unique<Pong>(std::move(stream))); });
  FARPOOL_CHECK(listener.ok());
  std::thread node_thread([&] { node.run(); }), client_thread([&] { client.run(); });
  std::promise<void> over;
  std::unique_ptr<Ping> ping;
  const std::uint64_t count = times(shape, flight);
  Nanos cpu = 0, begin = 0;
  client.post([&] {
    net::connect(client, (*listener)->address(), nullptr, net::Loop::now() + 10 * base::kSecond,
                 [&](base::Result<std::unique_ptr<net::Stream>> stream) {
                   FARPOOL_CHECK(stream.ok());
                   cpu = cpu_time(), begin = net::Loop::now();
                   ping = std::make_unique<Ping>(std::move(*stream), flight, count, over);
                 });
  });
  over.get_future().get();
  say(shape, "raw", flight, count, net::Loop::now() - begin, cpu_time() - cpu);
  client.post([&] {
    ping.reset();
    client.stop();
  });
  client_thread.join();
  node.post([&] {
    pongs.clear();
    listener->reset();
    node.stop();
  });
  node_thread.join();
}

void run(const Shape& shape) {
  const RingsDirectory directory;
  Nothing service;
  OpenHost host({.session_id = 1, .service = &service});
  run_pair(host, {.rings = shape.rings ? directory.path() : "", .spin = shape.spin},
           [&shape](fabric::Port& port, const fabric::tcp::TcpResponder& node, std::promise<void>& over) {
             return measure(port, node, shape, over);
           });
  for (const std::uint64_t flight : kFlights) run_raw(shape, directory.path(), flight);
}

}  // namespace
}  // namespace farpool::bench

int main() {
  using farpool::bench::run;
  run({.name = "tcp"});
  run({.name = "shm", .rings = true});
  run({.name = "shm, spin 20 us", .rings = true, .spin = 20 * farpool::base::kMicrosecond});
}
