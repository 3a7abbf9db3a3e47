// SPDX-License-Identifier: Apache-2.0
// farpool-memory-node: lends memory to a pool over the tcp wire, or over verbs.
#include <prometheus/collectable.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "apps/daemon.h"
#include "apps/descriptors.h"
#include "apps/files.h"
#include "apps/memory_node/metrics.h"
#include "apps/samples.h"
#include "apps/settings.h"
#include "apps/startup.h"
#include "apps/wire.h"
#include "fabric/session_port/server.h"
#include "fabric/tcp/port.h"
#include "fabric/tcp/responder.h"
#include "fabric/verbs/responder.h"
#include "net/loop.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "node/numa.h"
#include "protocols/protocols.h"
#include "session/handshake.h"

namespace farpool::apps {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr char kProgram[] = "farpool-memory-node";
// Descriptors kept for everything but sessions and lanes: the agent, probes and scrapes, logs and files.
constexpr std::uint64_t kProcessDescriptors = 96;
constexpr auto kPublishPatience = std::chrono::seconds(5);
// The process is alive if its control loop has turned this recently.
constexpr base::Nanos kBeat = base::kSecond;
constexpr base::Nanos kLongestSilence = 30 * base::kSecond;

struct Settings {
  CommonSettings common;
  WireSettings wire;
  std::uint64_t memory = 0;
  std::string memory_path;
  bool refuse_damaged_memory = false;
  std::uint64_t huge_pages = 0;
  bool numa_align = false;
  std::string listen = "[::]:7400";
  std::string advertise;
  layout::GeometryRequest geometry;
  std::uint64_t initial_tables = 1;
  node::LockPlacement locks = node::LockPlacement::host;
  base::Nanos failure_timeout = -1;  // not said: by the wire
  base::Nanos lease = 5 * base::kSecond;
  std::size_t threads = 1;
  std::uint32_t max_lanes = 1024;
  bool standalone = false;
};

std::map<std::string, layout::Protocol> protocols_by_name() {
  std::map<std::string, layout::Protocol> names;
  for (const index::Protocol* protocol : protocols::all()) names.emplace(protocol->name(), protocol->number());
  return names;
}

std::string names_of_protocols() {
  std::string names;
  for (const index::Protocol* protocol : protocols::all()) {
    names += (names.empty() ? "" : ", ") + std::string(protocol->name());
  }
  return names;
}

void add_flags(CLI::App& app, Settings& settings) {
  add_common(app, settings.common);
  add_wire(app, settings.wire);
  add_size(app, "--memory", settings.memory, "lent in all: table, locks, slots and heap; a multiple of 4Ki");
  app.get_option("--memory")->required();
  app.add_option(
      "--memory-path", settings.memory_path,
      "directory on a memory-backed volume: the next process with this --name takes up what is in it; empty: "
      "anonymous memory, which ends with the process");
  app.add_flag("--refuse-damaged-memory", settings.refuse_damaged_memory,
               "end with an error, rather than begin empty, if what --memory-path holds cannot be taken up");
  add_size(app, "--huge-pages", settings.huge_pages,
           "size of the pages that hold the memory, 2Mi or 1Gi, from the volume of --memory-path or the kernel; "
           "default: only huge pages that the kernel makes by itself");
  app.add_flag("--numa-align", settings.numa_align,
               "end with an error if the memory is not on one NUMA node, that of the RDMA device if it has one");
  app.add_option("--listen", settings.listen, "host:port of the session port")->capture_default_str();
  app.add_option("--advertise", settings.advertise, "host:port or [v6]:port that clients are told; default: --listen");
  app.add_option("--protocol", settings.geometry.protocol,
                 "the index protocol: " + names_of_protocols() +
                     "; some have entries and rows of one size, and ignore the flags for these (default " +
                     std::string(protocols::of(settings.geometry.protocol).name()) + ")")
      ->transform(CLI::CheckedTransformer(protocols_by_name()));
  app.add_option("--entry-bytes", settings.geometry.entry_bytes, "size of an index entry: 16, 24, 32, 48 or 64")
      ->capture_default_str();
  app.add_option("--entries-per-row", settings.geometry.entries_per_row)->capture_default_str();
  app.add_option("--rows-per-lock", settings.geometry.rows_per_lock, "a power of two")->capture_default_str();
  app.add_option("--lock-placement", settings.locks,
                 "where the locks lie, if the protocol has such: host, device-preferred (in the memory of the RDMA "
                 "device itself, or "
                 "else in the host's) or device-required (or else this process ends); device memory has not yet run on "
                 "hardware (default host)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, node::LockPlacement>{{"host", node::LockPlacement::host},
                                                     {"device-preferred", node::LockPlacement::device_preferred},
                                                     {"device-required", node::LockPlacement::device_required}}));
  app.add_option("--table-percent", settings.geometry.table_percent, "percent of the memory that the index takes")
      ->capture_default_str();
  app.add_option(
         "--tables", settings.geometry.tables,
         "how many tables the first one may be split into while clients work, as keys come: a power of two; 1 where "
         "the protocol splits none")
      ->capture_default_str();
  app.add_option("--initial-tables", settings.initial_tables,
                 "how many of --tables have keys when memory is formatted: a power of two")
      ->capture_default_str();
  add_duration(app, "--failure-timeout", settings.failure_timeout,
               "a lock that stands for this long has a dead holder (default 2s, and 100ms on verbs)");
  add_duration(app, "--lease", settings.lease, "a client that is silent for this long is fenced (default 5s)");
  app.add_option("--threads", settings.threads, "threads that execute verbs")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--max-sessions", settings.geometry.max_sessions)->check(CLI::Range(1, 65536))->capture_default_str();
  app.add_option("--max-lanes", settings.max_lanes)->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_flag("--standalone", settings.standalone,
               "publish an epoch of its own with itself as the one node: no operator");
}

Status check(Settings& settings) {
  if (Status status = check_wire(settings.wire); !status.ok()) return status;
  if (settings.standalone && settings.common.map_key != nullptr) {
    return {Code::invalid_argument,
            "--standalone and --map-key exclude each other: without an operator nobody signs maps"};
  }
  if (settings.advertise.empty()) settings.advertise = settings.listen;
  auto endpoint = advertised("--advertise", settings.advertise);
  if (!endpoint.ok()) return endpoint.status();
  settings.advertise = std::move(*endpoint);
  const bool verbs = settings.wire.wire == "verbs";
  if (settings.failure_timeout < 0) settings.failure_timeout = verbs ? 100 * base::kMillisecond : 2 * base::kSecond;
  const index::Protocol& protocol = protocols::of(settings.geometry.protocol);
  const bool locks = layout::shape_of(protocol.number()).locks;
  if (settings.locks != node::LockPlacement::host && (!verbs || !locks)) {
    return {Code::invalid_argument,
            verbs ? "--lock-placement: " + std::string(protocol.name()) + " has no locks; leave it out"
                  : "--lock-placement in a device's memory needs --wire verbs: leave it out, or give host"};
  }
  if (settings.lease < settings.failure_timeout) {
    return {Code::invalid_argument, "--lease must be at least --failure-timeout"};
  }
  const base::Nanos shortest = verbs ? fabric::verbs::kShortestFailureTimeout : fabric::tcp::kRetryTime;
  if (settings.failure_timeout < shortest) {
    const auto milliseconds = [](base::Nanos time) { return std::to_string(time / base::kMillisecond) + "ms"; };
    return {Code::invalid_argument, "--failure-timeout of " + milliseconds(settings.failure_timeout) +
                                        " is shorter than " + settings.wire.wire +
                                        " takes to send again what it lost: a slow client would pass for a dead one; "
                                        "give at least " +
                                        milliseconds(shortest)};
  }
  return {};
}

// The wire that the flags name.
class Wire {
 public:
  Wire(net::Loop& control, fabric::session_port::Options session_port, std::shared_ptr<fabric::verbs::Device> device) {
    if (device != nullptr) {
      verbs_ =
          std::make_unique<fabric::verbs::VerbsResponder>(control, std::move(session_port), std::move(device),
                                                          [](const std::string& line) { spdlog::warn("{}", line); });
    } else {
      tcp_ = std::make_unique<fabric::tcp::TcpResponder>(control, std::move(session_port));
    }
  }
  fabric::Responder& responder() {
    if (verbs_ != nullptr) return *verbs_;
    return *tcp_;
  }
  Status serve(fabric::Host& host) { return verbs_ != nullptr ? verbs_->serve(host) : tcp_->serve(host); }
  // Only for tcp: see check_wire.
  Status serve_rings(const std::string& address) { return tcp_->serve_rings(address); }
  const std::string& address() const { return verbs_ != nullptr ? verbs_->address() : tcp_->address(); }
  // Counts chains and verbs of frames only on tcp.
  fabric::tcp::ResponderStats stats() const {
    return verbs_ != nullptr ? fabric::tcp::ResponderStats{verbs_->session_port_stats()} : tcp_->stats();
  }
  // Returns none on the tcp wire.
  std::optional<fabric::verbs::VerbsStats> verbs_stats() const {
    if (verbs_ == nullptr) return std::nullopt;
    return verbs_->stats();
  }

 private:
  std::unique_ptr<fabric::tcp::TcpResponder> tcp_;
  std::unique_ptr<fabric::verbs::VerbsResponder> verbs_;
};

// Answers the agent, the probes and the metrics, on threads of their own, from before the memory is ready.
class Process final : public control::Subject, public prometheus::Collectable {
 public:
  Process(net::Loop& control, const Wire& wire, const CommonSettings& settings, const Startup& startup)
      : control_(control), wire_(wire), startup_(startup), alarm_(control, [this] { beat(); }) {
    starting_.set_pool_uid(settings.pool_uid);
    starting_.set_role(v1alpha1::ROLE_MEMORY_NODE);
    starting_.set_name(settings.name);
    starting_.set_version(FARPOOL_VERSION);
    session::tell_versions(*starting_.mutable_versions());
  }
  // Called when the node has started; the node outlives every later question. Control thread.
  void started(node::MemoryNode& node) {
    node_ = &node;
    beat();
  }

  v1alpha1::Facts facts() const override {
    if (const node::MemoryNode* node = node_) return node->facts();
    v1alpha1::Facts facts = starting_;
    facts.set_message(startup_.message());
    return facts;
  }

  Published publish(const v1alpha1::PublishMapRequest& request) override {
    node::MemoryNode* const node = node_;
    if (node == nullptr) return {Verdict::unavailable, 0, startup_.message()};
    if (request.pool_secret().size() != 16) {
      return {Verdict::invalid, 0,
              "the pool secret has " + std::to_string(request.pool_secret().size()) + " bytes, not 16"};
    }
    // Shared, because after a time-out the loop may still run it later.
    auto answer = std::make_shared<std::promise<node::MemoryNode::Published>>();
    auto published = answer->get_future();
    control_.post([node, request, answer] {
      const auto* bytes = reinterpret_cast<const std::byte*>(request.pool_secret().data());
      const base::HashSecret secret{base::load<std::uint64_t>(bytes), base::load<std::uint64_t>(bytes + 8)};
      answer->set_value(request.prepare() ? node->prepare(request.map(), secret)
                                          : node->publish(request.map(), secret));
    });
    if (published.wait_for(kPublishPatience) != std::future_status::ready) {
      return {Verdict::unavailable, 0, "the memory node did not take the map in time; publish it again"};
    }
    const auto result = published.get();
    static constexpr Verdict kVerdicts[] = {Verdict::adopted, Verdict::older_epoch, Verdict::conflicting,
                                            Verdict::invalid};
    return {kVerdicts[static_cast<int>(result.verdict)], result.epoch, result.message};
  }

  base::Result<v1alpha1::FenceResponse> fence(const v1alpha1::FenceRequest& request) override {
    node::MemoryNode* const node = node_;
    if (node == nullptr) return base::Status(base::Code::unavailable, startup_.message());
    auto answer = std::make_shared<std::promise<v1alpha1::FenceResponse>>();
    auto fenced = answer->get_future();
    control_.post([node, request, answer] {
      node->fence({request.processes().begin(), request.processes().end()},
                  [answer](v1alpha1::FenceResponse response) { answer->set_value(std::move(response)); });
    });
    if (fenced.wait_for(kPublishPatience) != std::future_status::ready) {
      return base::Status(base::Code::unavailable, "the memory node did not fence the processes in time; ask again");
    }
    return fenced.get();
  }
  base::Result<v1alpha1::RepairResponse> repair(const v1alpha1::RepairRequest&,
                                                std::chrono::steady_clock::time_point) override {
    return base::Status(base::Code::invalid_argument, "a memory node repairs nothing: ask a compute shard");
  }

  std::string alive() const {
    if (node_ == nullptr) return startup_.stuck();
    const base::Nanos silence = net::Loop::now() - last_beat_.load();
    if (silence < kLongestSilence) return {};
    return "the control loop has not turned for " + std::to_string(silence / base::kSecond) + " s";
  }
  // A node without an epoch is ready, because the operator must reach it to publish one. Its facts say that it does not
  // serve yet.
  std::string ready() const { return node_ == nullptr ? startup_.message() : alive(); }

  std::vector<prometheus::MetricFamily> Collect() const override {
    Samples samples;
    const node::MemoryNode* const node = node_;
    samples.gauge("farpool_node_start_ratio",
                  "How much of the present step of its start is done; 1 once it has started.",
                  node != nullptr ? 1 : startup_.ratio());
    if (node == nullptr) return samples.take();
    collect(samples, node->stats(), node->facts().memory_node().memory_fresh());
    collect(samples, wire_.stats());
    if (const auto verbs = wire_.verbs_stats()) collect(samples, *verbs);
    return samples.take();
  }

 private:
  void beat() {
    last_beat_ = net::Loop::now();
    alarm_.set(last_beat_ + kBeat);
  }

  net::Loop& control_;
  const Wire& wire_;
  const Startup& startup_;
  v1alpha1::Facts starting_;  // without what a node adds
  std::atomic<node::MemoryNode*> node_ = nullptr;
  std::atomic<base::Nanos> last_beat_ = 0;
  net::Alarm alarm_;
};

// Memory, and a node over it. The node takes up what lies on the volume; what it cannot take up is replaced, unless a
// flag forbids that.
struct Lender {
  std::unique_ptr<node::Memory> memory;
  std::unique_ptr<node::MemoryNode> node;
};
Result<Lender> lend(const Settings& settings, std::optional<int> numa_node, const node::MemoryNode::Options& options,
                    fabric::Responder& responder) {
  using Earlier = node::Memory::Earlier;
  const auto attempt = [&](Earlier earlier) -> Result<Lender> {
    const node::NumaPreference prefer(settings.numa_align ? numa_node : std::nullopt);
    auto memory = settings.memory_path.empty()
                      ? node::Memory::anonymous(settings.memory, settings.huge_pages)
                      : node::Memory::on_volume(settings.memory_path, settings.common.name, settings.memory, earlier,
                                                settings.huge_pages, options.progress);
    if (!memory.ok()) return memory.status();
    if (settings.numa_align) {
      if (Status status = node::check_numa(memory->span(), numa_node); !status.ok()) {
        return Status(status.code(), "--numa-align: " + status.message());
      }
    }
    Lender lender{std::make_unique<node::Memory>(std::move(*memory)), nullptr};
    auto node = node::MemoryNode::create(options, lender.memory->span(), responder);
    if (!node.ok()) return node.status();
    lender.node = std::move(*node);
    return lender;
  };
  Result<Lender> lender = attempt(Earlier::kept);
  if (lender.ok() || lender.code() != Code::corrupt) return lender;
  const std::string file = settings.memory_path + "/" + settings.common.name + ".memory";
  if (settings.refuse_damaged_memory) {
    return Status(Code::corrupt, "the memory in " + file + " cannot be taken up: " + lender.status().message() +
                                     "; remove it to begin empty");
  }
  spdlog::warn("begins empty: the memory in {} cannot be taken up: {}", file, lender.status().message());
  return attempt(Earlier::replaced);
}

// Each session has a lane; a session beyond the lanes would be refused.
std::uint32_t lanes_of(const Settings& settings) {
  return std::max(settings.max_lanes, static_cast<std::uint32_t>(settings.geometry.max_sessions));
}

// Leaves so many descriptors that sessions and lanes never keep out probes, the agent and files.
Result<std::size_t> connections_for(const Settings& settings) {
  const std::uint64_t descriptors = raise_descriptor_limit();
  const std::size_t wanted = lanes_of(settings) + settings.geometry.max_sessions;
  auto connections = fitting_connections(wanted, descriptors, kProcessDescriptors + 8 * settings.threads);
  if (connections.ok() && *connections < wanted) {
    spdlog::warn(
        "takes {} connections instead of {}: this process may open {} files; raise the hard limit (ulimit -H -n) for "
        "more",
        *connections, wanted, descriptors);
  }
  return connections;
}

// Returns the file's path, beside the memory. Empty: no map is kept, because ordinary files cannot be written on a
// volume of huge pages.
std::string map_file_of(const Settings& settings) {
  if (settings.memory_path.empty() || settings.huge_pages != 0) return "";
  return settings.memory_path + "/" + settings.common.name + ".map";
}

node::MemoryNode::Options node_options(const Settings& settings) {
  const std::string map_file = map_file_of(settings);
  return {
      .name = settings.common.name,
      .pool_uid = settings.common.pool_uid,
      .endpoint = settings.advertise,
      .version = FARPOOL_VERSION,
      .geometry = settings.geometry,
      .initial_tables = settings.initial_tables,
      .lease = settings.lease,
      .failure_timeout = settings.failure_timeout,
      .max_lanes = lanes_of(settings),
      .opens_per_second = 200,
      .map_key = settings.common.map_key,
      .locks = settings.locks,
      .kept_map = map_file.empty() ? "" : read_file(map_file),
      .keep_map =
          [map_file](const std::string& map) {
            if (map_file.empty()) return;
            if (Status status = replace_file(map_file, map); !status.ok()) {
              spdlog::warn("the shard map is not kept for the next process: {}", status.message());
            }
          },
      .wall =
          [] {
            const auto now = std::chrono::system_clock::now().time_since_epoch();
            return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
          },
      .log = [](bool warning,
                const std::string& line) { spdlog::log(warning ? spdlog::level::warn : spdlog::level::info, line); }};
}

// Publishes an epoch of its own, from the clock: a life with empty memory does not know the epochs of earlier lives,
// and has to be above them.
Status stand_alone(node::MemoryNode& node) {
  const auto now =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  const auto published = node.stand_alone(static_cast<std::uint64_t>(std::max<std::int64_t>(1, now.count())));
  if (published.verdict == node::MemoryNode::Verdict::adopted) return {};
  return {Code::internal, published.message};
}

Status serve(const Settings& settings, Wire& wire, node::MemoryNode& node) {
  if (Status status = wire.serve(node); !status.ok()) return status;
  if (!settings.wire.shm_directory.empty()) {
    const auto rings = fabric::tcp::rings_address(settings.wire.shm_directory, node.incarnation());
    if (Status status = wire.serve_rings(rings); !status.ok()) return status;
  }
  // Before anyone sees that it is ready: from then on it serves clients that need no operator.
  return settings.standalone ? stand_alone(node) : Status();
}

void announce(const Settings& settings, const Wire& wire, const node::MemoryNode& node) {
  spdlog::info(
      "memory node {} of pool {} lends {} bytes at {} (session port {}, incarnation {}, {} rows, {} heap segments of "
      "{} bytes)",
      settings.common.name, settings.common.pool_uid, settings.memory, settings.advertise, wire.address(),
      node.incarnation(), node.geometry().rows, node.geometry().segments, node.geometry().segment_bytes);
}

// Tries to register the memory. Regions are registered when a client asks for them: if that cannot work, this process
// should end instead of refusing each of its clients.
Status try_registration(fabric::verbs::Device& device, const node::Memory& memory) {
  const Status status = device.try_registration(memory.span());
  return status.ok() ? status : Status(status.code(), "--wire verbs: " + status.message());
}

int run(const Settings& settings) {
  const auto connections = connections_for(settings);
  if (!connections.ok()) return fail(kProgram, connections.status());
  auto tls = load_tls(settings.common);
  if (!tls.ok()) return fail(kProgram, tls.status());
  auto device = open_device(settings.wire, settings.failure_timeout);
  if (!device.ok()) return fail(kProgram, device.status());

  std::unique_ptr<node::Memory> memory;  // outlives whatever executes verbs on it
  std::shared_ptr<const void> executor;  // likewise
  net::Loop control;
  // Besides lanes there are handshakes, which come and go as slowly as clients may be.
  const auto patience = std::max(fabric::session_port::Options().handshake_deadline, settings.failure_timeout);
  Wire wire(control,
            {.listen = settings.listen,
             .tls = *tls,
             .executors = settings.threads,
             .max_connections = *connections,
             .handshake_deadline = patience,
             .spin = settings.wire.spin},
            *device);
  Startup startup([] { return net::Loop::now(); }, [](const std::string& line) { spdlog::info("{}", line); });
  const auto process = std::make_shared<Process>(control, wire, settings.common, startup);
  auto web = start_web(settings.common, process);
  if (!web.ok()) return fail(kProgram, web.status());
  auto started = start_agent(settings.common, *process);
  if (!started.ok()) return fail(kProgram, started.status());
  // Set before anything can call on_change on another thread.
  std::unique_ptr<control::Agent> agent = std::move(*started);
  const auto changed = [&agent] {
    if (agent != nullptr) agent->changed();
  };
  node::MemoryNode::Options options = node_options(settings);
  options.require_authentication = *tls != nullptr;
  options.on_change = changed;
  options.progress = [&startup, &changed, told = std::string()](std::string_view step, std::uint64_t done,
                                                                std::uint64_t of) mutable {
    startup.progress(step, done, of);
    if (startup.message() == told) return;
    told = startup.message();
    changed();
  };
  auto lender = lend(settings, *device != nullptr ? (*device)->numa_node() : std::nullopt, options, wire.responder());
  if (!lender.ok()) return fail(kProgram, lender.status());
  memory = std::move(lender->memory);
  const std::unique_ptr<node::MemoryNode> node = std::move(lender->node);
  executor = node->executor();
  if (*device != nullptr) {
    startup.progress("registers its memory with the RDMA device", 0, settings.memory);
    if (Status status = try_registration(**device, *memory); !status.ok()) return fail(kProgram, status);
  }

  // Before anyone can see that the process is up, and have a reason to end it.
  on_signal(control, [&](int number) {
    spdlog::info("memory node {} ends on signal {}; what it lends {}", settings.common.name, number,
                 settings.memory_path.empty() ? "is lost" : "stays in " + settings.memory_path);
    control.stop();
  });
  if (Status status = serve(settings, wire, *node); !status.ok()) return fail(kProgram, status);
  process->started(*node);
  startup.finish();
  changed();
  announce(settings, wire, *node);

  control.run();
  web->reset();
  agent.reset();
  return 0;
}

}  // namespace
}  // namespace farpool::apps

int main(int argc, char** argv) {
  farpool::apps::Settings settings;
  CLI::App app("Lends memory to a farpool pool over one-sided verbs.", farpool::apps::kProgram);
  farpool::apps::add_flags(app, settings);
  if (const auto status = farpool::apps::parse(app, argc, argv)) return *status;
  if (const auto status = farpool::apps::check(settings); !status.ok())
    return farpool::apps::fail(farpool::apps::kProgram, status);
  farpool::apps::start_logging(settings.common);
  const int status = farpool::apps::run(settings);
  farpool::apps::stop_logging();
  return status;
}
