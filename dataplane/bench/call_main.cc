// SPDX-License-Identifier: Apache-2.0
// CALLs for data on the tcp and shm wires, beside what carries them: empty CALLs of 64 bytes there and back, executed
// by a service that does nothing, and below it a raw ping-pong of the same bytes over the same kind of stream. One
// lane, with one and with many in flight; client and memory node are two threads of this process, so that CPU is that
// of both. Times are this machine's and no claim.
//
// With the argument `verbs`: the same CALLs on the verbs wire, over connections and over datagrams, on the first RDMA
// device of this machine, with threads that sleep in between and with threads that do not; beside them ib_send_lat's
// SENDs of the same device, of queue pairs of the same kind. It polls. Prints rows of docs/measurements/calls.md.
#include <array>
#include <cmath>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/pair.h"
#include "bench/perftest.h"
#include "fabric/service.h"
#include "fabric/verbs/data_call.h"
#include "fabric/verbs/port.h"
#include "fabric/verbs/responder.h"
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
constexpr std::uint64_t kTimes = 1'000'000, kVerbsTimes = 4'000, kRawTimes = 1'000;

struct Shape {
  const char* name;
  bool rings = false;
  Nanos spin = 0;
};
std::uint64_t times(const Shape& shape, std::uint64_t flight) {
  return flight == 1 ? kTimes / (shape.rings && shape.spin > 0 ? 4 : 20) : kTimes;
}

struct Counted {
  std::uint64_t flight = 0, count = 0;
  Nanos took = 0, cpu = 0;
  std::uint64_t repeated = 0;  // requests that came again
};
void say(const Shape& shape, const char* what, const Counted& counted) {
  const auto count = static_cast<double>(counted.count), took = static_cast<double>(counted.took);
  std::printf("%-18s %-9s %4lu in flight  %9.0f /s  %7.3f us  %7.3f us CPU\n", shape.name, what,
              static_cast<unsigned long>(counted.flight), 1e9 * count / took, took / 1000 / count,
              static_cast<double>(counted.cpu) / 1000 / count);
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

task::Task<Counted> measure_flight(fabric::Port& port, fabric::Lane& lane, std::uint64_t flight, std::uint64_t count) {
  const std::uint64_t each = count / flight;
  const Nanos cpu = cpu_time(), begin = port.now();
  {
    task::Scope scope;
    for (std::uint64_t i = 0; i < flight; ++i) scope.spawn(call_many(port, lane, each));
    co_await scope.join();
  }
  co_return Counted{.flight = flight, .count = each * flight, .took = port.now() - begin, .cpu = cpu_time() - cpu};
}

task::Task<void> measure(fabric::Port& port, const fabric::tcp::TcpResponder& node, const Shape& shape,
                         std::promise<void>& over) {
  const auto lane = co_await open_lane(port, node, {}, shape.rings);
  for (const std::uint64_t flight : kFlights) {
    const Counted counted = co_await measure_flight(port, *lane, flight, times(shape, flight));
    say(shape, "CALL", counted);
  }
  over.set_value();
}

// ---- verbs

struct VerbsShape {
  const char* name;
  fabric::verbs::CallForm form;
  const char* kind;  // of queue pairs, in perftest's words
  Nanos spin = 0;
};
// Longer than a trip takes on a software device, so that nobody sleeps in it.
constexpr Nanos kLongSpin = 5 * base::kMillisecond;

task::Task<void> measure_verbs(fabric::Port& port, const fabric::verbs::VerbsResponder& node,
                               std::vector<Counted>& into, std::promise<void>& over) {
  auto lane = co_await port.open_lane({.endpoint = node.address(), .calls = true}, port.now() + 60 * base::kSecond);
  FARPOOL_CHECK(lane.ok());
  for (const std::uint64_t flight : {std::uint64_t{1}, std::uint64_t{fabric::verbs::kMostDataCalls}}) {
    const std::uint64_t before = node.stats().data.repeated;
    into.push_back(co_await measure_flight(port, **lane, flight, kVerbsTimes));
    into.back().repeated = node.stats().data.repeated - before;
  }
  over.set_value();
}

// What ib_send_lat told: how many SENDs go there and back in a second, by its typical time and by its mean.
struct RawSends {
  double typical = 0, mean = 0;  // 0: it told nothing
};
RawSends raw_sends(const fabric::verbs::Device& device, const VerbsShape& shape, int port) {
  const auto gid = device.find_gid();
  if (!gid.ok()) return {};
  const Directory directory;
  // bytes, rounds, and microseconds one way: shortest, longest, typical, mean
  const auto told = perftest("ib_send_lat", device.name(), static_cast<int>(gid->gid_index), kRawTimes,
                             {"-s", std::to_string(kBytes), "-c", shape.kind}, port, directory);
  if (told.size() <= 5 || told[4] <= 0 || told[5] <= 0) return {};
  return {.typical = 1e6 / (2 * told[4]), .mean = 1e6 / (2 * told[5])};
}

void say_verbs(const VerbsShape& shape, const Counted& counted, const RawSends& raw) {
  const double seconds = static_cast<double>(counted.took) / 1e9, count = static_cast<double>(counted.count);
  const std::string beside = counted.flight > 1 || raw.mean == 0 ? " | "
                                                                 : std::to_string(std::lround(raw.typical)) + " | " +
                                                                       std::to_string(std::lround(raw.mean));
  std::printf("| %s | %lu | %.0f | %.1f | %s | %lu |\n", shape.name, static_cast<unsigned long>(counted.flight),
              count / seconds, static_cast<double>(counted.cpu) / 1000 / count, beside.c_str(),
              static_cast<unsigned long>(counted.repeated));
  std::fflush(stdout);
}

// As run_pair, over verbs.
void run_verbs(const std::shared_ptr<fabric::verbs::Device>& device, const VerbsShape& shape) {
  namespace verbs = fabric::verbs;
  Nothing service;
  OpenHost host({.session_id = 1, .regions = {}, .service = &service});
  net::Loop control, client;
  client.set_spin(shape.spin);
  verbs::VerbsResponder responder(control, {.listen = "127.0.0.1:0", .spin = shape.spin}, device);
  FARPOOL_CHECK(responder.serve(host).ok());
  const int raw_port = free_port(control);
  std::vector<Counted> counted;
  run_loops(
      control, client,
      [&](net::Loop& loop) {
        auto opened = verbs::VerbsPort::open(loop, nullptr, device, {.log = {}, .calls = shape.form});
        FARPOOL_CHECK(opened.ok());
        return std::move(*opened);
      },
      [&](fabric::Port& port, std::promise<void>& over) { return measure_verbs(port, responder, counted, over); });
  const RawSends raw = raw_sends(*device, shape, raw_port);
  if (raw.mean == 0) std::fprintf(stderr, "%s: ib_send_lat told nothing: install perftest\n", shape.name);
  for (const Counted& each : counted) say_verbs(shape, each, raw);
}

int run_all_verbs() {
  using fabric::verbs::CallForm;
  const auto device = fabric::verbs::Device::open({.failure_timeout = 20 * base::kSecond});
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().message().c_str());
    return 1;
  }
  std::printf(
      "| queue pairs | in flight | CALLs/s | us CPU per CALL | ib_send_lat/s, typical | ib_send_lat/s, mean | CALLs "
      "sent again |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const VerbsShape& shape :
       {VerbsShape{"RC", CallForm::connected, "RC"}, VerbsShape{"UD", CallForm::datagrams, "UD"},
        VerbsShape{"RC, spinning", CallForm::connected, "RC", kLongSpin},
        VerbsShape{"UD, spinning", CallForm::datagrams, "UD", kLongSpin}}) {
    run_verbs(*device, shape);
  }
  return 0;
}

// ---- raw streams

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
  say(shape, "raw", {.flight = flight, .count = count, .took = net::Loop::now() - begin, .cpu = cpu_time() - cpu});
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

int main(int count, char** arguments) {
  using farpool::bench::run;
  if (count == 2 && std::string(arguments[1]) == "verbs") return farpool::bench::run_all_verbs();
  if (count > 1) {
    std::fprintf(stderr, "usage: call_bench [verbs]\n");
    return 2;
  }
  run({.name = "tcp"});
  run({.name = "shm", .rings = true});
  run({.name = "shm, spin 20 us", .rings = true, .spin = 20 * farpool::base::kMicrosecond});
}
