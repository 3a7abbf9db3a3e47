// SPDX-License-Identifier: Apache-2.0
// What an RDMA device of this machine does for farpool, tried and timed, as one JSON document: `make verify-hardware`.
// Lanes go from the device to itself. Times of our lanes stand beside perftest's of the same verb in the same run.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bench/perftest.h"
#include "client/pool.h"
#include "fabric/session_port/test_loop.h"
#include "fabric/verbs/port.h"
#include "fabric/verbs/responder.h"
#include "fabric/verbs/survey.h"
#include "fabric/words.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "task/scope.h"

namespace farpool::bench {
namespace {

using base::Nanos;
using base::Status;
using fabric::Op;
using fabric::verbs::Device;
using fabric::verbs::VerbsPort;
using fabric::verbs::VerbsResponder;
using Json = nlohmann::ordered_json;

// Machines that verify are not in a hurry: nothing here is about how soon a failure is noticed.
constexpr Nanos kFailureTimeout = 20 * base::kSecond;

struct Settings {
  std::string device, address;
  std::string contract;  // program of the suite; empty: not run
  bool perftest = true;
  std::uint64_t rounds = 500;
};

// Two regions of words, and a lane for every client that asks.
class Host final : public fabric::Host {
 public:
  static constexpr std::uint32_t kWords = 1, kLocks = 2;
  static constexpr std::uint64_t kBytes = 1 << 16, kLockBytes = 4096;
  void on_exchange(const fabric::Peer&, std::string, std::function<void(std::string)> reply) override { reply({}); }
  std::optional<fabric::LaneRights> on_open_lane(const std::array<std::byte, 16>&) override {
    return fabric::LaneRights{1,
                              {{.id = kWords, .key = 1, .base = at(words_), .bytes = kBytes},
                               {.id = kLocks, .key = 1, .base = at(locks_), .bytes = kLockBytes}}};
  }
  std::optional<std::size_t> on_call(std::uint64_t, std::uint32_t, base::Bytes, base::MutableBytes) override {
    return 8;
  }
  fabric::LaneGrant grant(std::string endpoint) const {
    return {.endpoint = std::move(endpoint),
            .session_id = 1,
            .regions = {{.id = kWords, .bytes = kBytes, .key = 1}, {.id = kLocks, .bytes = kLockBytes, .key = 1}}};
  }
  base::Bytes locks() { return {at(locks_), kLockBytes}; }
  std::uint64_t lock_word() { return fabric::word_at(at(locks_)).load(std::memory_order_acquire); }

 private:
  static std::byte* at(std::vector<std::uint64_t>& words) { return reinterpret_cast<std::byte*>(words.data()); }
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(kBytes / 8);
  std::vector<std::uint64_t> locks_ = std::vector<std::uint64_t>(kLockBytes / 8);
};

struct Client : fabric::session_port::PortThread<VerbsPort> {
  Client(std::shared_ptr<Device> device, Nanos spin) {
    on([&] {
      loop.set_spin(spin);
      auto opened =
          VerbsPort::open(loop, nullptr, std::move(device),
                          {.log = [this](const std::string& line) { said += (said.empty() ? "" : "; ") + line; }});
      if (opened.ok()) port = std::move(*opened);
      if (!opened.ok()) said = opened.status().message();
    });
  }
  std::string said;
};

int port_of(fabric::session_port::LoopThread& control) {
  int port = 0;
  control.on([&] { port = free_port(control.loop); });
  return port;
}

// ---- checks

Json passed(const std::string& name) { return {{"check", name}, {"result", "passed"}}; }
Json skipped(const std::string& name, const std::string& why) {
  return {{"check", name}, {"result", "skipped"}, {"why", why}};
}
Json failed(const std::string& name, const std::string& why) {
  return {{"check", name}, {"result", "failed"}, {"why", why}};
}

task::Task<void> open_a_lane(VerbsPort& port, fabric::LaneGrant grant, Status& status) {
  const auto lane = co_await port.open_lane(std::move(grant), port.now() + 30 * base::kSecond);
  status = lane.status();
}

// Lanes try it as they begin, and say what they found.
Json check_masked_cas(const Settings& settings, Host& host, const std::string& endpoint, bool of_mlx5) {
  const std::string name = "maskedCas";
  auto device = Device::open(
      {.device = settings.device, .address = settings.address, .masked_cas = true, .failure_timeout = kFailureTimeout});
  if (!device.ok()) return failed(name, device.status().message());
  Client client(*device, 0);
  if (client.port == nullptr) return failed(name, client.said);
  Status status;
  client.run(open_a_lane(*client.port, host.grant(endpoint), status));
  if ((*device)->masked_cas() && status.ok()) return passed(name);
  const std::string why = client.said.empty() ? status.message() : client.said;
  return of_mlx5 ? failed(name, why) : skipped(name, "it is no mlx5 device, and lanes found so: " + why);
}

struct Locks {
  std::array<std::uint64_t, 3> came{};
  std::uint64_t read = 0;
  Status status;
};
task::Task<void> use_locks(VerbsPort& port, fabric::LaneGrant grant, Locks& locks) {
  const auto lane = co_await port.open_lane(std::move(grant), port.now() + 30 * base::kSecond);
  locks.status = lane.status();
  if (!lane.ok()) co_return;
  fabric::Buffer seen = port.buffer(8);
  const fabric::Remote word{Host::kLocks, 0};
  const std::array chain{Op::cas(word, locks.came[0], 0, 6), Op::fetch_add(word, locks.came[1], 1).fenced(),
                         Op::masked_cas(word, locks.came[2], 4, 4, 0, 4).fenced(),
                         Op::read(word, seen.span()).fenced()};
  const auto outcome = co_await (*lane)->post(chain, port.now() + 30 * base::kSecond);
  if (outcome.fate != fabric::Fate::done) locks.status = {base::Code::unavailable, "the lane ended"};
  locks.read = base::load<std::uint64_t>(seen.data());
}
Json check_device_memory(Host& host, const Status& placed, const std::string& endpoint, Client& client,
                         std::uint64_t bytes) {
  const std::string name = "deviceMemoryLocks";
  if (!placed.ok()) return bytes == 0 ? skipped(name, placed.message()) : failed(name, placed.message());
  Locks locks;
  client.run(use_locks(*client.port, host.grant(endpoint), locks));
  if (!locks.status.ok()) return failed(name, locks.status.message());
  if (locks.came != std::array<std::uint64_t, 3>{0, 6, 7} || locks.read != 3) {
    return failed(name, "atomics on it brought back " + std::to_string(locks.came[0]) + ", " +
                            std::to_string(locks.came[1]) + ", " + std::to_string(locks.came[2]) + " and left " +
                            std::to_string(locks.read) + ", not 0, 6, 7 and 3");
  }
  if (host.lock_word() != 0) return failed(name, "they changed host memory in its place");
  return passed(name);
}

// ---- other programs

// The contract suite of the wire, lanes' own tests and the zombies: what fails is named.
Json check_contract(const std::string& program, const Directory& directory) {
  const std::string name = "contract", told = directory.file("contract.json");
  if (program.empty()) return skipped(name, "no program of the suite was given");
  Child child({program, "--gtest_brief=1", "--gtest_filter=Verbs/Contract.*:Laboratory.*:Zombies.*",
               "--gtest_output=json:" + told},
              directory.file("contract.txt"));
  const int status = child.wait(std::chrono::minutes(10));
  const Json results = Json::parse(Directory::text(told), nullptr, false);
  if (status < 0 || results.is_discarded()) {
    return failed(name, "the suite did not come to its end: " + Directory::text(directory.file("contract.txt")));
  }
  Json json = status == 0 ? passed(name) : failed(name, "");
  json["tests"] = results.value("tests", 0);
  std::vector<std::string> failures;
  for (const Json& suite : results.value("testsuites", Json::array())) {
    for (const Json& test : suite.value("testsuite", Json::array())) {
      if (test.contains("failures")) failures.push_back(suite.value("name", "") + "." + test.value("name", ""));
    }
  }
  if (status != 0) json["why"] = failures;
  return json;
}

// In microseconds.
struct Raw {
  double least = 0, typical = 0;
};

// ---- times

double microseconds(Nanos time) { return static_cast<double>(time) / 1000; }

struct Times {
  std::vector<Nanos> all;
  Json json() {
    if (all.empty()) return nullptr;
    std::sort(all.begin(), all.end());
    return {{"least", microseconds(all[0])},
            {"median", microseconds(all[all.size() / 2])},
            {"p99", microseconds(all[all.size() * 99 / 100])}};
  }
};

// A packet counter of the device, if it has one.
std::optional<std::uint64_t> packets_sent(const std::string& device) {
  for (const char* name : {"hw_counters/sent_pkts", "counters/port_xmit_packets"}) {
    std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/" + name);
    if (std::uint64_t value = 0; file >> value) return value;
  }
  return std::nullopt;
}

struct Measured {
  std::string what;
  std::uint64_t bytes = 0;
  Times times;
  double messages = 0, packets = -1, wire_bytes = 0, trips = 1;
};

struct Shape {
  std::string what;
  std::uint64_t bytes = 0;
  std::function<std::vector<Op>(base::MutableBytes, std::uint64_t&)> chain;
};

task::Task<void> time_verbs(VerbsPort& port, fabric::LaneGrant grant, const std::string& device, std::uint64_t rounds,
                            std::vector<Measured>& into, Status& status) {
  auto lane = co_await port.open_lane(std::move(grant), port.now() + 30 * base::kSecond);
  status = lane.status();
  if (!lane.ok()) co_return;
  fabric::Buffer buffer = port.buffer(512), request = port.buffer(8);
  std::uint64_t old = 0;
  const fabric::Remote row{Host::kWords, 0}, word{Host::kWords, 4096}, lock{Host::kLocks, 8};
  const auto one = [](const Op& op) { return std::vector<Op>{op}; };
  const std::vector<Shape> shapes{
      {"READ", 64, [&](auto b, auto&) { return one(Op::read(row, b.first(64))); }},
      {"READ", 144, [&](auto b, auto&) { return one(Op::read(row, b.first(144))); }},
      {"WRITE", 64, [&](auto b, auto&) { return one(Op::write(row, b.first(64))); }},
      {"CAS", 8, [&](auto, auto& o) { return one(Op::cas(word, o, 0, 0)); }},
      {"CAS of a lock word", 8, [&](auto, auto& o) { return one(Op::cas(lock, o, 0, 0)); }},
      {"masked CAS", 8, [&](auto, auto& o) { return one(Op::masked_cas(word, o, 0, 1, 0, 1)); }},
      {"CALL", 8, [&](auto b, auto&) { return one(Op::call(1, request.span(), b.first(8))); }},
      {"masked CAS, 2 READs", 144,
       [&](auto b, auto& o) {
         return std::vector<Op>{Op::masked_cas(word, o, 0, 1, 0, 1), Op::read(row, b.first(144)),
                                Op::read(row, b.subspan(144, 144))};
       }},
  };
  for (const Shape& shape : shapes) {
    Measured one_of{.what = shape.what, .bytes = shape.bytes};
    for (int i = 0; i < 50; ++i)
      (void)co_await (*lane)->post(shape.chain(buffer.span(), old), port.now() + 30 * base::kSecond);
    const auto before = (*lane)->stats();
    const auto packets = packets_sent(device);
    for (std::uint64_t i = 0; i < rounds; ++i) {
      const std::vector<Op> chain = shape.chain(buffer.span(), old);
      const Nanos begun = port.now();
      const auto outcome = co_await (*lane)->post(chain, begun + 30 * base::kSecond);
      one_of.times.all.push_back(port.now() - begun);
      if (outcome.fate != fabric::Fate::done) {
        status = {base::Code::unavailable, shape.what + ": the lane ended"};
        co_return;
      }
    }
    const auto count = static_cast<double>(rounds);
    one_of.messages = static_cast<double>((*lane)->stats().messages - before.messages) / count;
    one_of.wire_bytes = static_cast<double>((*lane)->stats().bytes - before.bytes) / count;
    if (const auto now = packets_sent(device); now && packets) {
      one_of.packets = static_cast<double>(*now - *packets) / count;
    }
    into.push_back(std::move(one_of));
  }
}

// How many verbs a lane moves in a second while several tasks keep it busy.
struct Rate {
  const char* what;
  std::uint64_t bytes;
  const char* beside;  // of perftest
  std::vector<std::string> flags;
  double per_second = 0, raw = 0;
};
constexpr std::uint64_t kTasks = 16;

std::vector<Rate> rates() {
  return {{.what = "READ", .bytes = 64, .beside = "ib_read_bw", .flags = {"-s", "64"}},
          {.what = "WRITE", .bytes = 64, .beside = "ib_write_bw", .flags = {"-s", "64"}},
          {.what = "CAS", .bytes = 8, .beside = "ib_atomic_bw", .flags = {"-A", "CMP_AND_SWAP"}}};
}

task::Task<void> keep_busy(VerbsPort& port, fabric::Lane& lane, std::string what, std::uint64_t rounds,
                           Status& status) {
  const fabric::Remote row{Host::kWords, 0};
  fabric::Buffer buffer = port.buffer(64);
  std::uint64_t old = 0;
  const std::array chain{what == "READ"    ? Op::read(row, buffer.span())
                         : what == "WRITE" ? Op::write(row, buffer.span())
                                           : Op::cas(row, old, 0, 0)};
  for (std::uint64_t i = 0; i < rounds && status.ok(); ++i) {
    const auto outcome = co_await lane.post(chain, port.now() + 30 * base::kSecond);
    if (outcome.fate != fabric::Fate::done) status = {base::Code::unavailable, what + ": the lane ended"};
  }
}

task::Task<void> count_verbs(VerbsPort& port, fabric::LaneGrant grant, std::uint64_t rounds, std::vector<Rate>& into,
                             Status& status) {
  auto lane = co_await port.open_lane(std::move(grant), port.now() + 30 * base::kSecond);
  status = lane.status();
  if (!lane.ok()) co_return;
  for (Rate& rate : into) {
    const Nanos begun = port.now();
    task::Scope scope;
    for (std::uint64_t i = 0; i < kTasks; ++i) scope.spawn(keep_busy(port, **lane, rate.what, rounds, status));
    co_await scope.join();
    const auto seconds = static_cast<double>(port.now() - begun) / static_cast<double>(base::kSecond);
    rate.per_second = static_cast<double>(kTasks * rounds) / seconds;
  }
}

// Times operations of a pool whose one memory node is behind the same device and has a table of this protocol.
task::Task<void> time_operations(fabric::Port& port, const std::string& uid, const std::string& endpoint,
                                 const std::string& protocol, const std::string& device, std::uint64_t rounds,
                                 std::vector<Measured>& into, Status& status) {
  client::Pool pool(port, {.pool_uid = uid,
                           .client_name = "verify",
                           .bootstrap = {endpoint},
                           .operation_deadline = 30 * base::kSecond,
                           .connect_deadline = 30 * base::kSecond});
  pool.start();
  const auto key = [](std::uint64_t i) { return "k" + std::to_string(i); };
  enum class Kind { insert, lookup, update, erase };
  for (const auto& [kind, what] : {std::pair{Kind::insert, "insert"}, std::pair{Kind::lookup, "lookup"},
                                   std::pair{Kind::update, "update"}, std::pair{Kind::erase, "delete"}}) {
    Measured one{.what = protocol + " " + what, .bytes = 16};
    if (kind == Kind::insert) status = co_await pool.put("warm", "v");
    const auto of = kind == Kind::lookup  ? client::Operation::get
                    : kind == Kind::erase ? client::Operation::erase
                                          : client::Operation::put;
    const auto& counters = pool.counters().operations[static_cast<std::size_t>(of)];
    const std::uint64_t messages = counters.messages.get(), bytes = counters.bytes.get(), trips = counters.trips.get();
    const auto packets = packets_sent(device);
    for (std::uint64_t i = 0; i < rounds && status.ok(); ++i) {
      const std::string name = key(i);
      const Nanos begun = port.now();
      if (kind == Kind::lookup) {
        status = (co_await pool.get(name)).status();
      } else if (kind == Kind::erase) {
        status = (co_await pool.erase(name)).status();
      } else {
        status = co_await pool.put(name, kind == Kind::insert ? "1" : "2");
      }
      one.times.all.push_back(port.now() - begun);
    }
    if (!status.ok()) break;
    const auto count = static_cast<double>(rounds);
    one.messages = static_cast<double>(counters.messages.get() - messages) / count;
    one.wire_bytes = static_cast<double>(counters.bytes.get() - bytes) / count;
    one.trips = static_cast<double>(counters.trips.get() - trips) / count;
    if (const auto now = packets_sent(device); now && packets)
      one.packets = static_cast<double>(*now - *packets) / count;
    into.push_back(std::move(one));
  }
  co_await pool.close(port.now() + 30 * base::kSecond);
}

Status time_a_pool(std::shared_ptr<Device> device, Client& client, std::uint64_t rounds, std::vector<Measured>& into) {
  constexpr const char* kUid = "verify";
  auto memory = node::Memory::anonymous(64 << 20);
  if (!memory.ok()) return memory.status();
  fabric::session_port::LoopThread control;
  std::unique_ptr<VerbsResponder> responder;
  std::unique_ptr<node::MemoryNode> node;
  Status status;
  std::string protocol;
  control.on([&] {
    const std::string address = free_address(control.loop);  // told to clients before it listens
    responder = std::make_unique<VerbsResponder>(
        control.loop, fabric::session_port::Options{.listen = address, .handshake_deadline = kFailureTimeout}, device);
    auto made = node::MemoryNode::create({.name = "verify-0",
                                          .pool_uid = kUid,
                                          .endpoint = address,
                                          .version = "verify",
                                          .lease = 2 * kFailureTimeout,
                                          .failure_timeout = kFailureTimeout,
                                          .require_authentication = false},
                                         memory->span(), *responder);
    if (!made.ok()) {
      status = made.status();
      return;
    }
    node = std::move(*made);
    protocol = node->geometry().shape().name;
    status = responder->serve(*node);
    if (status.ok()) (void)node->stand_alone();
  });
  if (status.ok()) {
    client.run(
        time_operations(*client.port, kUid, responder->address(), protocol, device->name(), rounds, into, status));
  }
  control.on([&] {
    responder.reset();
    node.reset();
  });
  return status;
}

Json row_of(const Measured& one, const std::map<std::string, Raw>& raw) {
  Json row{{"operation", one.what}, {"bytes", one.bytes}};
  Times times = one.times;
  row["microseconds"] = times.json();
  row["trips"] = one.trips;
  row["messages"] = one.messages;
  row["bytesOnTheWire"] = one.wire_bytes;
  if (one.packets >= 0) row["packetsOfTheDevice"] = one.packets;
  // What perftest's programs tell of READs and atomics is a round trip; of WRITE and SEND, half of one.
  struct Beside {
    const char* program;
    double trips;
  };
  const std::map<std::string, Beside> beside{{"READ", {"ib_read_lat", 1}},
                                             {"WRITE", {"ib_write_lat", 2}},
                                             {"CAS", {"ib_atomic_lat", 1}},
                                             {"CAS of a lock word", {"ib_atomic_lat", 1}},
                                             {"masked CAS", {"ib_atomic_lat", 1}},
                                             {"CALL", {"ib_send_lat", 2}},
                                             {"masked CAS, 2 READs", {"ib_read_lat", 1}}};
  const auto found = beside.find(one.what);
  const Beside with = found != beside.end() ? found->second : Beside{"ib_read_lat", one.trips};
  if (const auto at = raw.find(with.program); at != raw.end() && !times.all.empty()) {
    row["beside"] = with.program;
    const double least = at->second.least * with.trips, typical = at->second.typical * with.trips;
    row["rawMicroseconds"] = {{"least", least}, {"typical", typical}};
    row["multiple"] = {{"ofLeast", microseconds(times.all.front()) / least},
                       {"ofMedian", microseconds(times.all[times.all.size() / 2]) / typical}};
  }
  return row;
}

int run(const Settings& settings) {
  Json report{{"program", "farpool verify-hardware"}};
  auto device =
      Device::open({.device = settings.device, .address = settings.address, .failure_timeout = kFailureTimeout});
  if (!device.ok()) {
    report["error"] = device.status().message();
    std::cout << report.dump(2) << std::endl;
    return 2;
  }
  const auto facts = fabric::verbs::survey({});
  const auto own = std::find_if(facts.devices.begin(), facts.devices.end(),
                                [&](const auto& each) { return each.name == (*device)->name(); });
  if (own == facts.devices.end()) {
    report["error"] = (*device)->name() + " was taken away meanwhile: try again, or name another one by --device";
    std::cout << report.dump(2) << std::endl;
    return 2;
  }
  report["device"] = {{"name", own->name},
                      {"firmware", (*device)->limits().fw_ver},
                      {"vendor", (*device)->limits().vendor_id},
                      {"part", (*device)->limits().vendor_part_id},
                      {"address", (*device)->options().address},
                      {"linkLayer", own->link_layer},
                      {"mtu", own->mtu},
                      {"mlx5", own->masked_cas},
                      {"deviceMemoryBytes", own->device_memory},
                      {"memoryWindows", own->memory_windows},
                      {"atomicsOutstanding", (*device)->limits().max_qp_rd_atom}};

  Directory directory;
  Json checks = Json::array(), times = Json::array();
  Host host;
  fabric::session_port::LoopThread control;
  std::unique_ptr<VerbsResponder> responder;
  Status placed, served;
  control.on([&] {
    responder = std::make_unique<VerbsResponder>(
        control.loop,
        fabric::session_port::Options{
            .listen = "127.0.0.1:0", .max_lanes_per_session = 64, .handshake_deadline = kFailureTimeout},
        *device);
    placed = responder->place_in_device(host.locks());
    served = responder->serve(host);
  });
  std::vector<Measured> measured;
  std::vector<Rate> counted = rates();
  {
    Client client(*device, base::kMillisecond);
    Status timed = client.port == nullptr ? Status(base::Code::unavailable, client.said) : served;
    if (timed.ok()) {
      checks.push_back(check_masked_cas(settings, host, responder->address(), own->masked_cas));
      checks.push_back(check_device_memory(host, placed, responder->address(), client, own->device_memory));
      client.run(
          time_verbs(*client.port, host.grant(responder->address()), own->name, settings.rounds, measured, timed));
    }
    if (timed.ok()) {
      client.run(count_verbs(*client.port, host.grant(responder->address()), settings.rounds, counted, timed));
    }
    if (timed.ok()) timed = time_a_pool(*device, client, settings.rounds, measured);
    checks.push_back(timed.ok() ? passed("operations") : failed("operations", timed.message()));
  }
  control.on([&] { responder.reset(); });
  checks.push_back(check_contract(settings.contract, directory));

  std::map<std::string, Raw> raw;
  std::string lacking;
  const auto gid = (*device)->find_gid();
  for (const char* program : {"ib_read_lat", "ib_write_lat", "ib_atomic_lat", "ib_send_lat"}) {
    if (!settings.perftest || !gid.ok()) break;
    // bytes, rounds, shortest, longest, typical
    const auto told = perftest(
        program, own->name, static_cast<int>(gid->gid_index), settings.rounds,
        program == std::string("ib_atomic_lat") ? std::vector<std::string>{} : std::vector<std::string>{"-s", "64"},
        port_of(control), directory);
    if (!told.empty()) raw[program] = {told[2], told[4]};
    if (told.empty()) lacking += (lacking.empty() ? "" : ", ") + std::string(program);
  }
  for (Rate& rate : counted) {
    if (!settings.perftest || !gid.ok()) break;
    // bytes, rounds, highest and mean MB/s, millions of messages a second
    std::vector<std::string> flags{"-t", std::to_string(kTasks), "-Q", "1"};
    flags.insert(flags.end(), rate.flags.begin(), rate.flags.end());
    const auto told = perftest(rate.beside, own->name, static_cast<int>(gid->gid_index), kTasks * settings.rounds,
                               flags, port_of(control), directory);
    if (!told.empty()) rate.raw = told[4] * 1e6;
    if (told.empty()) lacking += (lacking.empty() ? "" : ", ") + std::string(rate.beside);
  }
  for (const auto& [program, of] : raw) report["perftest"][program] = {{"least", of.least}, {"typical", of.typical}};
  if (!lacking.empty()) report["perftest"]["missing"] = lacking + ": install perftest";
  for (const Measured& one : measured) times.push_back(row_of(one, raw));
  const bool sound =
      std::none_of(checks.begin(), checks.end(), [](const Json& each) { return each["result"] == "failed"; });
  report["checks"] = checks;
  report["latencies"] = times;
  for (const Rate& rate : counted) {
    Json row{{"operation", rate.what}, {"bytes", rate.bytes}, {"outstanding", kTasks}, {"perSecond", rate.per_second}};
    if (rate.raw > 0) {
      row["beside"] = rate.beside;
      row["rawPerSecond"] = rate.raw;
      row["share"] = rate.per_second / rate.raw;
    }
    report["rates"].push_back(std::move(row));
  }
  std::cout << report.dump(2) << std::endl;
  return sound ? 0 : 1;
}

}  // namespace
}  // namespace farpool::bench

int main(int argc, char** argv) {
  farpool::bench::Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&](const char* name) -> std::optional<std::string> {
      const std::string prefix = std::string(name) + "=";
      return flag.starts_with(prefix) ? std::optional(flag.substr(prefix.size())) : std::nullopt;
    };
    if (const auto device = value("--device")) {
      settings.device = *device;
    } else if (const auto address = value("--address")) {
      settings.address = *address;
    } else if (const auto contract = value("--contract")) {
      settings.contract = *contract;
    } else if (const auto rounds = value("--rounds"); rounds && std::atoll(rounds->c_str()) > 0) {
      settings.rounds = static_cast<std::uint64_t>(std::atoll(rounds->c_str()));
    } else if (flag == "--no-perftest") {
      settings.perftest = false;
    } else {
      std::fprintf(stderr,
                   "usage: verify_hardware [--device=NAME] [--address=IP] [--contract=PROGRAM] [--rounds=N] "
                   "[--no-perftest]\n");
      return 2;
    }
  }
  return farpool::bench::run(settings);
}
