// SPDX-License-Identifier: Apache-2.0
// farpool-compute-shard: serves a pool to applications over RESP.
#include <prometheus/collectable.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apps/bootstrap.h"
#include "apps/compute_shard/metrics.h"
#include "apps/compute_shard/settings.h"
#include "apps/compute_shard/shard.h"
#include "apps/daemon.h"
#include "apps/descriptors.h"
#include "apps/password.h"
#include "apps/samples.h"
#include "apps/wire.h"
#include "client/pool.h"
#include "fabric/fabric.h"
#include "front/resp/server.h"
#include "net/loop.h"
#include "session/handshake.h"

namespace farpool::apps {
namespace {

using base::Code;
using base::Nanos;
using base::Status;
namespace resp = front::resp;

constexpr char kProgram[] = "farpool-compute-shard";
constexpr Nanos kBeat = base::kSecond;
constexpr Nanos kLongestSilence = 30 * base::kSecond;
constexpr auto kRepairGrace = std::chrono::seconds(2);  // after its deadline a repair reports what is left
// How long connections may take to become idle at the end, when no more are accepted.
constexpr Nanos kRest = 10 * base::kSecond;
// Descriptors kept for everything but clients: by the process (the agent, probes and scrapes, logs and files), and by
// each worker (its loop, and sessions with memory nodes and their lanes).
constexpr std::uint64_t kProcessDescriptors = 96 + net::kRefusalsAtOnce;
constexpr std::uint64_t kWorkerDescriptors = 64;

// Answers the agent, the probes and the metrics, on threads of their own.
class Process final : public control::Subject, public prometheus::Collectable {
 public:
  Process(const ShardSettings& settings, const std::vector<std::unique_ptr<Shard>>& shards, net::Loop& control,
          std::shared_ptr<const fabric::verbs::Device> device, const resp::Budget& budget)
      : settings_(settings), shards_(shards), device_(std::move(device)), budget_(budget), alarm_(control, [this] {
          beat();
        }) {
    beat();
  }

  void set_front(const resp::Front* front) {
    const std::lock_guard lock(mutex_);
    front_ = front;
  }
  // Notes which passwords count, for the operator. Any thread.
  void set_passwords(const resp::Passwords& passwords) {
    auto numbers = fingerprints(settings_.common.pool_uid, passwords);
    const std::lock_guard lock(mutex_);
    fingerprints_ = std::move(numbers);
  }
  void set_leaving() { leaving_ = true; }
  bool leaving() const { return leaving_; }

  std::string alive() const {
    Nanos oldest = last_beat_;
    for (const auto& shard : shards_) oldest = std::min(oldest, shard->last_beat());
    const Nanos silence = net::Loop::now() - oldest;
    if (silence < kLongestSilence) return {};
    return "a thread has not turned its loop for " + std::to_string(silence / base::kSecond) + " s";
  }
  std::string ready() const {
    if (leaving_) return "shutting down";
    for (const auto& shard : shards_) {
      const client::PoolState state = shard->state();
      if (!state.ready) return state.message;
    }
    return {};
  }
  std::uint64_t epoch() const {
    std::uint64_t oldest = ~0ull;
    for (const auto& shard : shards_) oldest = std::min(oldest, shard->state().epoch);
    return oldest;
  }
  std::size_t connections() const {
    std::uint64_t open = 0;
    for (const auto& shard : shards_) open += shard->counters().connections.get();
    return open;
  }

  resp::Figures figures() const {
    resp::Figures figures;
    for (const auto& shard : shards_) {
      figures.workers.push_back(&shard->counters());
      figures.expired_keys += shard->pool_counters().expired_keys.get();
      figures.evicted_keys += shard->pool_counters().evicted_keys.get();
    }
    const std::lock_guard lock(mutex_);
    if (front_ != nullptr) figures.refused_connections = front_->stats().refused_full;
    return figures;
  }

  // Says whether a write was refused lately because there was no memory. The agent calls it again and again.
  bool out_of_memory() const {
    constexpr std::chrono::seconds kWhile(30);
    std::uint64_t refused = 0;
    for (const auto& shard : shards_) {
      for (const auto& operation : shard->pool_counters().operations) {
        refused += operation.outcomes[static_cast<std::size_t>(Code::out_of_memory)].get();
      }
    }
    const auto now = std::chrono::steady_clock::now();
    const std::scoped_lock lock(refusals_mutex_);
    if (refused != std::exchange(refused_, refused)) refused_at_ = now;
    return refused_at_ && now - *refused_at_ < kWhile;
  }

  v1alpha1::Facts facts() const override {
    v1alpha1::Facts facts;
    facts.set_pool_uid(settings_.common.pool_uid);
    facts.set_role(v1alpha1::ROLE_COMPUTE_SHARD);
    facts.set_name(settings_.common.name);
    facts.set_incarnation(settings_.process);
    facts.set_version(FARPOOL_VERSION);
    session::tell_versions(*facts.mutable_versions());
    facts.set_epoch(epoch());
    facts.set_message(ready());
    facts.set_ready(facts.message().empty());
    facts.mutable_compute_shard()->set_resp_endpoint(settings_.listen.empty() ? "unix:" + settings_.unix_socket
                                                                              : settings_.listen);
    // Coarse: one connection more or less is no change.
    std::uint64_t open = connections();
    if (open >= 16) open -= open % (open / 8);
    facts.mutable_compute_shard()->set_connections(open);
    facts.mutable_compute_shard()->set_out_of_memory(out_of_memory());
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t fingerprint : fingerprints_) facts.mutable_compute_shard()->add_passwords(fingerprint);
    return facts;
  }
  Published publish(const v1alpha1::PublishMapRequest&) override {
    return {Verdict::unsupported, epoch(), "a compute shard reads the map from memory nodes: publish it to them"};
  }
  base::Result<v1alpha1::FenceResponse> fence(const v1alpha1::FenceRequest&) override {
    return Status(Code::invalid_argument, "a compute shard fences nobody: ask the memory nodes");
  }
  base::Result<v1alpha1::RepairResponse> repair(const v1alpha1::RepairRequest&,
                                                std::chrono::steady_clock::time_point deadline) override {
    const auto left = deadline - std::chrono::steady_clock::now();
    auto repaired = shards_.front()->repair(std::chrono::duration_cast<std::chrono::nanoseconds>(left).count());
    if (repaired.wait_until(deadline + kRepairGrace) != std::future_status::ready) {
      return Status(Code::unavailable, "the repair did not come to an end in time; ask again, or another shard");
    }
    v1alpha1::RepairResponse response;
    response.set_done(true);
    for (const client::Pool::Repair& one : repaired.get()) {
      auto& node = *response.add_nodes();
      node.set_name(one.node);
      node.set_slots_repaired(static_cast<std::uint32_t>(one.slots_repaired));
      node.set_slots_left(static_cast<std::uint32_t>(one.slots_left));
      node.set_message(one.trouble);
      if (!one.trouble.empty()) response.set_done(false);
    }
    return response;
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    ShardView view{.ready = ready().empty(),
                   .epoch = epoch(),
                   .connections = connections(),
                   .device = device_.get(),
                   .held_bytes = budget_.held.load()};
    {
      const std::lock_guard lock(mutex_);
      if (front_ != nullptr) view.listening = front_->stats();
    }
    Samples samples;
    collect(samples, shards_, view);
    return samples.take();
  }

 private:
  void beat() {
    last_beat_ = net::Loop::now();
    alarm_.set(last_beat_ + kBeat);
  }

  const ShardSettings& settings_;
  const std::vector<std::unique_ptr<Shard>>& shards_;
  const std::shared_ptr<const fabric::verbs::Device> device_;  // none on tcp
  const resp::Budget& budget_;
  std::atomic<bool> leaving_{false};
  mutable std::mutex mutex_;
  const resp::Front* front_ = nullptr;
  std::vector<std::uint64_t> fingerprints_;  // of the passwords that count
  std::atomic<Nanos> last_beat_{0};
  net::Alarm alarm_;
  mutable std::mutex refusals_mutex_;
  mutable std::uint64_t refused_ = 0;
  mutable std::optional<std::chrono::steady_clock::time_point> refused_at_;
};

// Keeps the addresses of the newest map in the file, off the workers' threads.
class AddressKeeper {
 public:
  AddressKeeper(std::string path, net::Loop& control) : path_(std::move(path)), control_(control) {}

  void keep(const client::PoolState& state) {
    if (path_.empty() || state.nodes.empty()) return;
    std::vector<std::string> addresses;
    for (const client::NodeState& node : state.nodes) addresses.push_back(node.endpoint);
    std::sort(addresses.begin(), addresses.end());
    control_.post([this, epoch = state.epoch, addresses = std::move(addresses)] {
      if (epoch < epoch_ || addresses == kept_) return;
      epoch_ = epoch;
      const Status status = write_addresses(path_, addresses);
      if (status.ok()) {
        kept_ = addresses;
      } else {
        spdlog::warn("{}; the next start depends on --bootstrap alone", status.message());
      }
    });
  }

 private:
  const std::string path_;
  net::Loop& control_;
  std::uint64_t epoch_ = 0;
  std::vector<std::string> kept_;
};

std::string pool_section(const client::PoolState& state) {
  std::string text =
      "# Pool\r\npool_epoch:" + std::to_string(state.epoch) + "\r\npool_ready:" + (state.ready ? "1" : "0") + "\r\n";
  if (!state.message.empty()) text += "pool_message:" + state.message + "\r\n";
  for (std::size_t n = 0; n < state.nodes.size(); ++n) {
    const client::NodeState& node = state.nodes[n];
    text += "node" + std::to_string(n) + ":name=" + node.name + ",endpoint=" + node.endpoint + ",state=" +
            (node.stopped ? "stopped"
             : node.open  ? "open"
                          : "unreachable") +
            "\r\n";
  }
  return text;
}

// The process, from its start to its end.
class Daemon {
 public:
  explicit Daemon(ShardSettings settings)
      : settings_(std::move(settings)),
        remembered_(settings_.map_cache.empty() ? std::vector<std::string>() : read_addresses(settings_.map_cache)),
        keeper_(settings_.map_cache, control_) {}
  int run();

 private:
  Status prepare();
  Status make_shards();
  void equip(resp::Service& service, const Shard& shard);
  void begin_to_leave(int signal);
  void end_fenced(const std::string& why);
  void leave();
  Status open_front();
  Status answer_operator();
  void resolve();
  void announce() const;

  ShardSettings settings_;
  std::string few_connections_;  // why there are fewer than the flag says; empty: there are not
  std::shared_ptr<net::Tls> tls_;
  PasswordFiles password_files_;
  resp::FrontOptions front_options_;
  std::shared_ptr<fabric::verbs::Device> device_;
  net::Loop control_;
  resp::Budget budget_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::unique_ptr<control::Agent> agent_;      // set before a worker can call on_change
  const std::vector<std::string> remembered_;  // the last known good addresses, besides the flag's
  AddressKeeper keeper_;
  std::shared_ptr<Process> process_;
  std::unique_ptr<resp::Front> front_;
  std::optional<net::Alarm> leave_;
  bool fenced_ = false;
  std::unique_ptr<control::Web> web_;
  std::unique_ptr<Resolver> resolver_;
};

// Reads what the flags name, and opens the device.
Status Daemon::prepare() {
  const std::uint64_t descriptors = raise_descriptor_limit();
  const std::uint64_t kept = kProcessDescriptors + kWorkerDescriptors * settings_.threads;
  const std::size_t wanted = settings_.resp.max_connections;
  const auto connections = fitting_connections(wanted, descriptors, kept);
  if (!connections.ok()) return connections.status();
  settings_.resp.max_connections = *connections;
  if (*connections < wanted) {
    few_connections_ = "max-connections is lowered from " + std::to_string(wanted) + " to " +
                       std::to_string(*connections) + ": this process may open " + std::to_string(descriptors) +
                       " files, of which " + std::to_string(kept) +
                       " are kept for memory nodes, probes and the agent; raise the hard limit (ulimit -H -n) for more";
  }
  auto tls = load_tls(settings_.common);
  if (!tls.ok()) return tls.status();
  tls_ = std::move(*tls);
  auto files = first_passwords(settings_.password_file, settings_.allow_empty_password);
  if (!files.ok()) return files.status();
  password_files_ = std::move(*files);
  if (!settings_.listen.empty()) front_options_.listen.push_back(settings_.listen);
  if (!settings_.unix_socket.empty()) front_options_.listen.push_back("unix:" + settings_.unix_socket);
  front_options_.unix_mode = std::stoi(settings_.unix_socket_mode, nullptr, 8);
  if (!settings_.resp_tls.cert.empty()) {
    auto resp_tls = net::Tls::load(settings_.resp_tls, net::Tls::Kind::server);
    if (!resp_tls.ok()) return resp_tls.status();
    front_options_.tls = std::move(*resp_tls);
  }
  auto device = open_device(settings_.wire, 0);
  if (!device.ok()) return device.status();
  device_ = std::move(*device);
  return {};
}

Status Daemon::make_shards() {
  process_ = std::make_shared<Process>(settings_, shards_, control_, device_, budget_);
  process_->set_passwords(password_files_.passwords());
  std::vector<std::string> begin = settings_.bootstrap.fixed;
  begin.insert(begin.end(), remembered_.begin(), remembered_.end());
  const auto accesses = std::make_shared<client::Accesses>();
  for (std::size_t i = 0; i < settings_.threads; ++i) {
    auto loop = std::make_unique<net::Loop>();
    auto port = make_port(settings_.wire, *loop, tls_, device_);
    if (!port.ok()) return port.status();
    const auto on_change = [this, i] {
      if (agent_ != nullptr) agent_->changed();
      keeper_.keep(shards_[i]->state());
    };
    const auto on_fenced = [this](const std::string& why) { control_.post([this, why] { end_fenced(why); }); };
    shards_.push_back(std::make_unique<Shard>(settings_, i, std::move(loop), std::move(*port), begin, accesses,
                                              on_change, on_fenced));
    shards_.back()->worker().set_passwords(password_files_.passwords());
    equip(shards_.back()->worker().service(), *shards_.back());
  }
  return {};
}

void Daemon::equip(resp::Service& service, const Shard& shard) {
  service.budget = &budget_;
  service.figures = [this] { return process_->figures(); };
  service.warn = [](const std::string& line) { spdlog::warn("{}", line); };
  service.info = [&shard] { return pool_section(shard.state()); };
}

void Daemon::begin_to_leave(int signal) {
  spdlog::info("compute shard {} ends on signal {}: it takes connections for another {} ms", settings_.common.name,
               signal, settings_.drain / base::kMillisecond);
  process_->set_leaving();
  if (agent_ != nullptr) agent_->changed();
  // Endpoints name the shard until they have learned of its end.
  leave_.emplace(control_, [this] { leave(); });
  leave_->set(net::Loop::now() + settings_.drain);
}

// Ends the process, because no memory node serves it any more: the one that the kubelet starts then is served.
void Daemon::end_fenced(const std::string& why) {
  if (process_->leaving()) return;
  fenced_ = true;
  spdlog::error("compute shard {} ends, and the next process begins anew: {}", settings_.common.name, why);
  process_->set_leaving();
  if (agent_ != nullptr) agent_->changed();
  leave();
}

void Daemon::leave() {
  spdlog::info("compute shard {} takes no more connections, and {} are drained", settings_.common.name,
               process_->connections());
  process_->set_front(nullptr);
  front_.reset();
  for (const auto& shard : shards_) shard->stop(net::Loop::now() + kRest);
  control_.stop();
}

Status Daemon::open_front() {
  std::vector<resp::Worker*> workers;
  for (const auto& shard : shards_) workers.push_back(&shard->worker());
  auto opened = resp::Front::open(control_, std::move(front_options_), settings_.resp, std::move(workers));
  if (!opened.ok()) return opened.status();
  front_ = std::move(*opened);
  process_->set_front(front_.get());
  return {};
}

Status Daemon::answer_operator() {
  auto agent = start_agent(settings_.common, *process_);
  if (!agent.ok()) return agent.status();
  agent_ = std::move(*agent);
  auto web = start_web(settings_.common, process_);
  if (!web.ok()) return web.status();
  web_ = std::move(*web);
  return {};
}

// Looks names of memory nodes up, again and again.
void Daemon::resolve() {
  if (settings_.bootstrap.names.empty()) return;
  resolver_ = std::make_unique<Resolver>(
      settings_.bootstrap,
      [this, told = std::string()](std::vector<std::string> addresses, const std::string& trouble) mutable {
        if (trouble != told && !trouble.empty()) spdlog::warn("{}", trouble);
        told = trouble;
        addresses.insert(addresses.end(), remembered_.begin(), remembered_.end());
        for (const auto& shard : shards_) shard->set_bootstrap(addresses);
      },
      [process = process_] { return process->ready().empty(); });
}

void Daemon::announce() const {
  std::string listening;
  for (const std::string& address : front_->addresses()) listening += (listening.empty() ? "" : " and ") + address;
  spdlog::info("compute shard {} of pool {} serves RESP at {} with {} workers{}", settings_.common.name,
               settings_.common.pool_uid, listening, settings_.threads,
               password_files_.password.empty() ? ", without a password" : "");
}

int Daemon::run() {
  if (Status status = prepare(); !status.ok()) return fail(kProgram, status);
  if (Status status = make_shards(); !status.ok()) return fail(kProgram, status);
  start_logging(settings_.common);
  if (!few_connections_.empty()) spdlog::warn("{}", few_connections_);
  // Before anyone can see that the process is up, and have a reason to end it.
  on_signal(control_, [this](int number) { begin_to_leave(number); });
  if (Status status = open_front(); !status.ok()) return fail(kProgram, status);
  if (Status status = answer_operator(); !status.ok()) return fail(kProgram, status);
  for (const auto& shard : shards_) shard->start();
  resolve();
  announce();
  const PasswordWatch watch(
      control_, settings_.password_file, password_files_,
      [this](const resp::Passwords& changed) {
        for (const auto& shard : shards_) shard->set_passwords(changed);
        process_->set_passwords(changed);
        spdlog::info("the password has changed{}; connections that are open stay so",
                     changed.also.empty() ? "" : ", and another one counts as well");
      },
      [](const std::string& trouble) { spdlog::warn("{}", trouble); });
  control_.run();
  resolver_.reset();
  for (const auto& shard : shards_) shard->join();
  web_.reset();
  agent_.reset();
  spdlog::info("compute shard {} has ended", settings_.common.name);
  stop_logging();
  return fenced_ ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace
}  // namespace farpool::apps

int main(int argc, char** argv) {
  farpool::apps::ShardSettings settings;
  CLI::App app("Serves a farpool pool to applications over the Redis protocol.", farpool::apps::kProgram);
  farpool::apps::add_flags(app, settings);
  if (const auto status = farpool::apps::parse(app, argc, argv)) return *status;
  if (const auto status = farpool::apps::check(settings); !status.ok())
    return farpool::apps::fail(farpool::apps::kProgram, status);
  return farpool::apps::Daemon(std::move(settings)).run();
}
