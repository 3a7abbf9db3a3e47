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
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "apps/bootstrap.h"
#include "apps/daemon.h"
#include "apps/descriptors.h"
#include "apps/password.h"
#include "apps/samples.h"
#include "apps/settings.h"
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
// At the end, when no more connections are accepted: how long connections may take to become idle, how long of that
// without reading more from them, and how long sessions may take to say goodbye.
constexpr Nanos kRest = 10 * base::kSecond;
constexpr Nanos kLastReplies = 2 * base::kSecond;
constexpr Nanos kGoodbye = 3 * base::kSecond;
// Descriptors kept for everything but clients: by the process (the agent, probes and scrapes, logs and files), and by
// each worker (its loop, and sessions with memory nodes and their lanes).
constexpr std::uint64_t kProcessDescriptors = 96 + net::kRefusalsAtOnce;
constexpr std::uint64_t kWorkerDescriptors = 64;

// One life of this process.
std::uint64_t draw_process() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32 | device()) | 1;
}

struct Settings {
  CommonSettings common;
  WireSettings wire;
  std::uint64_t process = draw_process();
  BootstrapSpec bootstrap;
  std::string map_cache;
  std::string listen = "[::]:6379";
  std::string unix_socket;
  std::string unix_socket_mode = "0660";
  net::TlsFiles resp_tls;
  std::string password_file;
  bool allow_empty_password = false;
  std::size_t threads = 1;
  Nanos operation_deadline = 5 * base::kSecond;
  Nanos drain = 5 * base::kSecond;
  resp::Settings resp;
};

void add_flags(CLI::App& app, Settings& settings) {
  add_common(app, settings.common);
  add_wire(app, settings.wire);
  app.add_option_function<std::string>(
         "--bootstrap",
         [&settings](const std::string& text) {
           auto spec = parse_bootstrap(text);
           if (!spec.ok()) throw CLI::ValidationError("--bootstrap", spec.status().message());
           settings.bootstrap = std::move(*spec);
         },
         "host:port[,...] of memory nodes, or dns:name:port for every address of a name")
      ->required()
      ->type_name("ADDRESSES");
  app.add_option("--map-cache", settings.map_cache, "file that keeps the last known good addresses of memory nodes");
  app.add_option("--listen", settings.listen, "host:port of RESP, or none")->capture_default_str();
  app.add_option("--unix-socket", settings.unix_socket, "path of a socket for RESP");
  app.add_option("--unix-socket-mode", settings.unix_socket_mode,
                 "who may connect to it: 0666 is everybody who reaches it")
      ->check(CLI::IsMember({"0600", "0660", "0666"}))
      ->capture_default_str();
  app.add_option("--resp-tls-cert", settings.resp_tls.cert, "PEM file: TLS for RESP on the same port");
  app.add_option("--resp-tls-key", settings.resp_tls.key, "PEM file of its key");
  app.add_option(
      "--password-file", settings.password_file,
      "file with the RESP password, read again when it changes. FILE.also, if there is one, holds a second password "
      "that counts as well; if there is none, the password before a change counts for 10 more minutes. Without the "
      "flag there is no password");
  app.add_flag("--allow-empty-password", settings.allow_empty_password,
               "begin without a password while the password file is empty");
  app.add_option("--threads", settings.threads, "workers, each with its own sessions")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--max-connections", settings.resp.max_connections,
                 "so many clients at once; fewer where the process may not open so many files")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--max-pipeline", settings.resp.max_pipeline, "commands of a connection that may wait")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  add_size(app, "--max-reply-bytes", settings.resp.max_reply_bytes,
           "a command's reply is no longer than this (default 64Mi)");
  add_size(app, "--max-unread-bytes", settings.resp.max_unread_bytes,
           "a client that leaves so many bytes of replies unread is not read, and closed when it goes on to take none "
           "(default 128Mi)");
  add_size(app, "--max-held-bytes", settings.resp.max_held_bytes,
           "requests and replies of all clients: beyond that, clients that do not take their replies are closed "
           "(default 256Mi)");
  add_duration(app, "--operation-deadline", settings.operation_deadline,
               "an operation of the pool ends within this time (default 5s)");
  add_duration(
      app, "--drain", settings.drain,
      "after a signal to end: how long connections are still taken, for clients that do not know yet (default 5s)");
}

Status check(Settings& settings) {
  if (Status status = check_wire(settings.wire); !status.ok()) return status;
  if (settings.listen == "none") settings.listen.clear();
  if (settings.listen.empty() && settings.unix_socket.empty()) {
    return {Code::invalid_argument, "nobody could connect: give --listen host:port, --unix-socket, or both"};
  }
  if (settings.resp_tls.cert.empty() != settings.resp_tls.key.empty()) {
    return {Code::invalid_argument, "--resp-tls-cert and --resp-tls-key are needed together"};
  }
  if (settings.operation_deadline < 10 * base::kMillisecond || settings.operation_deadline > 10 * 60 * base::kSecond) {
    return {Code::invalid_argument, "--operation-deadline must be from 10ms to 10m"};
  }
  if (settings.drain > 10 * 60 * base::kSecond) return {Code::invalid_argument, "--drain must be at most 10m"};
  if (settings.allow_empty_password && settings.password_file.empty()) {
    return {Code::invalid_argument, "--allow-empty-password says nothing without --password-file: leave it out"};
  }
  // With less the largest value could not be read.
  if (settings.resp.max_reply_bytes < 2 * settings.resp.max_value_bytes) {
    return {Code::invalid_argument, "--max-reply-bytes must be at least 2Mi"};
  }
  if (settings.resp.max_unread_bytes < settings.resp.max_reply_bytes ||
      settings.resp.max_held_bytes < settings.resp.max_unread_bytes) {
    return {Code::invalid_argument,
            "--max-unread-bytes must be at least --max-reply-bytes, and --max-held-bytes at least --max-unread-bytes"};
  }
  settings.resp.version = FARPOOL_VERSION;
  return {};
}

// One worker thread: a loop, a port, its own way into the pool, and the connections that it was given. `on_fenced`:
// client::Pool::Options.
class Shard {
 public:
  Shard(const Settings& settings, std::size_t index, std::unique_ptr<net::Loop> loop,
        std::unique_ptr<fabric::Port> port, std::vector<std::string> bootstrap, std::function<void()> on_change,
        std::function<void(const std::string&)> on_fenced)
      : on_change_(std::move(on_change)),
        loop_(std::move(loop)),
        port_(std::move(port)),
        pool_(*port_, {.pool_uid = settings.common.pool_uid,
                       .client_name = settings.common.name + "/" + std::to_string(index),
                       .process = settings.process,
                       .bootstrap = std::move(bootstrap),
                       .map_key = settings.common.map_key,
                       .operation_deadline = settings.operation_deadline,
                       .on_change = [this](const client::PoolState& state) { note(state); },
                       .on_fenced = std::move(on_fenced),
                       .log =
                           [index](bool warning, const std::string& line) {
                             spdlog::log(warning ? spdlog::level::warn : spdlog::level::info, "worker {}: {}", index,
                                         line);
                           }}),
        worker_(*loop_, pool_, settings.resp),
        alarm_(*loop_, [this] { beat(); }) {
    state_.message = "no shard map has been read yet";
    loop_->set_spin(settings.wire.spin);
    beat();
  }

  // Any thread.
  std::future<std::vector<client::Pool::Repair>> repair(Nanos patience) {
    auto answer = std::make_shared<std::promise<std::vector<client::Pool::Repair>>>();
    auto future = answer->get_future();
    loop_->post([this, patience, answer] { repairs_.spawn(repair_into(patience, answer)); });
    return future;
  }

  void start() {
    pool_.start();
    thread_ = std::thread([this] { loop_->run(); });
  }
  void set_passwords(const resp::Passwords& passwords) {
    loop_->post([this, passwords] { worker_.set_passwords(passwords); });
  }
  // Ends the worker: each connection ends when it is idle; shortly before the deadline it reads no more, and then cuts
  // what is left. Sessions say goodbye. Any thread; join() waits.
  void stop(Nanos deadline) {
    loop_->post([this, deadline] {
      hush_.emplace(*loop_, [this] { worker_.hush(); });
      hush_->set(deadline - kLastReplies);
      cut_.emplace(*loop_, [this] { worker_.cut(); });
      cut_->set(deadline);
      worker_.drain([this] {
        hush_.reset();
        cut_.reset();
        scope_.spawn(leave());
      });
    });
  }
  void join() { thread_.join(); }

  resp::Worker& worker() { return worker_; }
  const resp::Counters& counters() const { return worker_.counters(); }
  const client::PoolCounters& pool_counters() const { return pool_.counters(); }
  client::PoolState state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  Nanos last_beat() const { return last_beat_; }
  void set_bootstrap(std::vector<std::string> addresses) {
    loop_->post([this, addresses = std::move(addresses)] { pool_.set_bootstrap(addresses); });
  }

 private:
  task::Task<void> repair_into(Nanos patience,
                               std::shared_ptr<std::promise<std::vector<client::Pool::Repair>>> answer) {
    answer->set_value(co_await pool_.repair(port_->now() + patience));
  }
  void note(const client::PoolState& state) {
    {
      const std::lock_guard lock(mutex_);
      state_ = state;
    }
    on_change_();
  }
  task::Task<void> leave() {
    co_await pool_.close(net::Loop::now() + kGoodbye);
    co_await repairs_.join();
    loop_->stop();
  }
  void beat() {
    last_beat_ = net::Loop::now();
    alarm_.set(last_beat_ + kBeat);
  }

  const std::function<void()> on_change_;
  const std::unique_ptr<net::Loop> loop_;
  const std::unique_ptr<fabric::Port> port_;
  client::Pool pool_;
  resp::Worker worker_;
  task::Scope scope_;
  task::Scope repairs_;
  std::optional<net::Alarm> hush_;
  std::optional<net::Alarm> cut_;
  mutable std::mutex mutex_;
  client::PoolState state_;
  std::atomic<Nanos> last_beat_{0};
  net::Alarm alarm_;
  std::thread thread_;
};

// What the metrics show of all that a pool has counted besides its operations, its tables and its repairs.
struct PoolCount {
  base::Counter client::PoolCounters::*value;
  const char* name;
  const char* help;
};
constexpr PoolCount kPoolCounts[] = {
    {&client::PoolCounters::sessions_opened, "farpool_pool_sessions_opened_total", "Sessions that were opened."},
    {&client::PoolCounters::sessions_lost, "farpool_pool_sessions_lost_total",
     "Sessions that ended otherwise than by a goodbye."},
    {&client::PoolCounters::failed_opens, "farpool_pool_sessions_failed_total", "Attempts at a session that failed."},
    {&client::PoolCounters::map_fetches, "farpool_pool_map_reads_total", "Reads of the shard map."},
    {&client::PoolCounters::failed_map_fetches, "farpool_pool_map_reads_failed_total",
     "Reads of the shard map that failed."},
    {&client::PoolCounters::expired_keys, "farpool_pool_expired_keys_total", "Keys removed because they had expired."},
    {&client::PoolCounters::doubted_clocks, "farpool_pool_doubted_clocks_total",
     "Times that memory nodes told and this process did not believe: more than two hours ahead of another."},
    {&client::PoolCounters::evicted_keys, "farpool_pool_evicted_keys_total",
     "Keys removed to make room for writes, by the pool's eviction policy."},
    {&client::PoolCounters::forged_maps, "farpool_pool_forged_maps_total",
     "Shard maps that memory nodes showed and the operator has not signed."},
};

// Answers the agent, the probes and the metrics, on threads of their own.
class Process final : public control::Subject, public prometheus::Collectable {
 public:
  Process(const Settings& settings, const std::vector<std::unique_ptr<Shard>>& shards, net::Loop& control,
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
    Samples s;
    collect_process(s);
    collect_commands(s);
    collect_pool(s);
    return s.take();
  }

 private:
  template <class Get>
  std::uint64_t sum(Get get) const {
    std::uint64_t total = 0;
    for (const auto& shard : shards_) total += get(*shard);
    return total;
  }
  template <class Get>
  void latencies(Samples& s, const std::string& name, const std::string& help, const Samples::Labels& labels,
                 Get get) const {
    constexpr std::size_t kFirst = 3;  // 8 us: nothing that matters is faster
    std::vector<std::pair<double, std::uint64_t>> buckets;
    std::uint64_t count = 0, nanos = 0;
    for (std::size_t i = 0; i <= base::Latencies::kBuckets; ++i) {
      count += sum([&get, i](const Shard& shard) { return get(shard).bucket(i); });
      if (i >= kFirst && i < base::Latencies::kBuckets)
        buckets.emplace_back(static_cast<double>(1ull << i) / 1e6, count);
    }
    nanos = sum([&get](const Shard& shard) { return get(shard).sum_nanos(); });
    s.histogram(name, help, buckets, count, static_cast<double>(nanos) / 1e9, labels);
  }

  void collect_process(Samples& s) const {
    s.gauge("farpool_shard_ready", "1 if every worker holds a session with every memory node that serves.",
            ready().empty() ? 1 : 0);
    s.gauge("farpool_shard_epoch", "Epoch of the shard map that every worker follows at least.", epoch());
    s.gauge("farpool_shard_workers", "Worker threads.", shards_.size());
    if (device_ != nullptr && device_->options().masked_cas) {
      s.gauge("farpool_verbs_masked_cas_given_up",
              "1 since a trial of the device's own masked CAS went wrong: lanes send a CAS of a guessed word instead.",
              device_->masked_cas() ? 0 : 1);
    }
    s.gauge("farpool_resp_connections", "Client connections open.", connections());
    s.counter("farpool_resp_connections_total", "Client connections accepted.",
              sum([](const Shard& shard) { return shard.counters().connections_total.get(); }));
    net::Listener::Stats listening;
    {
      const std::lock_guard lock(mutex_);
      if (front_ != nullptr) listening = front_->stats();
    }
    s.counter("farpool_resp_connections_refused_total", "Client connections refused because there were too many.",
              listening.refused_full);
    s.counter("farpool_resp_handshakes_failed_total", "TLS handshakes of clients that failed or took too long.",
              listening.failed_handshakes);
    s.gauge("farpool_resp_in_flight", "Commands that run on the pool.",
            sum([](const Shard& shard) { return shard.counters().in_flight.get(); }));
    s.counter("farpool_resp_bytes_total", "Bytes of requests and replies.",
              sum([](const Shard& shard) { return shard.counters().input_bytes.get(); }), {{"direction", "in"}});
    s.counter("farpool_resp_bytes_total", "Bytes of requests and replies.",
              sum([](const Shard& shard) { return shard.counters().output_bytes.get(); }), {{"direction", "out"}});
    s.counter("farpool_resp_stalls_total",
              "Times that a connection was not read because its pipeline or its replies were too much.",
              sum([](const Shard& shard) { return shard.counters().stalls.get(); }));
    const char* cut_help = "Connections closed because their clients did not take their replies.";
    s.counter("farpool_resp_slow_clients_closed_total", cut_help,
              sum([](const Shard& shard) { return shard.counters().cut_for_unread.get(); }), {{"reason", "unread"}});
    s.counter("farpool_resp_slow_clients_closed_total", cut_help,
              sum([](const Shard& shard) { return shard.counters().cut_for_memory.get(); }), {{"reason", "memory"}});
    s.counter("farpool_resp_slow_clients_closed_total", cut_help,
              sum([](const Shard& shard) { return shard.counters().cut_after_end.get(); }), {{"reason", "ended"}});
    s.gauge("farpool_resp_held_bytes", "Bytes of requests and replies that are held for clients.", budget_.held.load());
    s.counter("farpool_resp_protocol_errors_total", "Connections closed for bytes that are no request.",
              sum([](const Shard& shard) { return shard.counters().protocol_errors.get(); }));
    s.counter("farpool_resp_failed_authentications_total", "Passwords refused.",
              sum([](const Shard& shard) { return shard.counters().failed_authentications.get(); }));
    s.counter("farpool_resp_refused_commands_total",
              "Commands refused: unknown, of wrong arity, or before authentication.",
              sum([](const Shard& shard) { return shard.counters().refused.get(); }));
    s.counter("farpool_resp_unknown_outcomes_total", "Commands answered with UNKNOWNOUTCOME.",
              sum([](const Shard& shard) { return shard.counters().unknown_outcomes.get(); }));
  }

  void collect_commands(Samples& s) const {
    std::vector<std::size_t> used;
    for (std::size_t i = 0; i < resp::kMaxCommands; ++i) {
      if (sum([i](const Shard& shard) { return shard.counters().commands[i].calls.get(); }) > 0) used.push_back(i);
    }
    const auto label = [](std::size_t i) {
      return Samples::Labels{{"command", std::string(resp::command_at(i)->name)}};
    };
    for (const std::size_t i : used) {
      s.counter("farpool_resp_command_errors_total", "Commands that were answered with an error.",
                sum([i](const Shard& shard) { return shard.counters().commands[i].errors.get(); }), label(i));
    }
    for (const std::size_t i : used) {
      latencies(s, "farpool_resp_command_seconds", "Time from a command's start to its reply.", label(i),
                [i](const Shard& shard) -> const base::Latencies& { return shard.counters().commands[i].latencies; });
    }
  }

  void collect_pool(Samples& s) const {
    s.gauge("farpool_pool_sessions", "Sessions with memory nodes.",
            sum([](const Shard& shard) { return shard.pool_counters().sessions.get(); }));
    for (const PoolCount& count : kPoolCounts) {
      s.counter(count.name, count.help,
                sum([&count](const Shard& shard) { return (shard.pool_counters().*count.value).get(); }));
    }

    const auto each = [](auto what) {
      for (std::size_t i = 0; i < client::kOperations; ++i) {
        what(i, Samples::Labels{{"operation", std::string(client::name_of(static_cast<client::Operation>(i)))}});
      }
    };
    each([&](std::size_t i, Samples::Labels labels) {
      for (std::size_t code = 0; code < client::kCodes; ++code) {
        const std::uint64_t count =
            sum([i, code](const Shard& shard) { return shard.pool_counters().operations[i].outcomes[code].get(); });
        if (count == 0 && code != 0) continue;
        auto with_outcome = labels;
        with_outcome.emplace_back("outcome", std::string(base::name_of(static_cast<Code>(code))));
        s.counter("farpool_pool_operations_total", "Operations by what they came to.", count, with_outcome);
      }
    });
    each([&](std::size_t i, const Samples::Labels& labels) {
      s.counter("farpool_pool_trips_total", "Round trips that operations waited for.",
                sum([i](const Shard& shard) { return shard.pool_counters().operations[i].trips.get(); }), labels);
    });
    each([&](std::size_t i, const Samples::Labels& labels) {
      s.counter("farpool_pool_messages_total", "Verbs posted.",
                sum([i](const Shard& shard) { return shard.pool_counters().operations[i].messages.get(); }), labels);
    });
    each([&](std::size_t i, const Samples::Labels& labels) {
      s.counter("farpool_pool_wire_bytes_total", "Bytes of requests and replies, as RoCEv2 would carry them.",
                sum([i](const Shard& shard) { return shard.pool_counters().operations[i].bytes.get(); }), labels);
    });
    each([&](std::size_t i, const Samples::Labels& labels) {
      s.counter("farpool_pool_retries_total", "Further attempts after one that left nothing done.",
                sum([i](const Shard& shard) { return shard.pool_counters().operations[i].retries.get(); }), labels);
    });
    each([&](std::size_t i, const Samples::Labels& labels) {
      latencies(
          s, "farpool_pool_operation_seconds", "Time that operations took.", labels,
          [i](const Shard& shard) -> const base::Latencies& { return shard.pool_counters().operations[i].latencies; });
    });

    for (std::size_t i = 0; i < index::kMarks.size(); ++i) {
      s.counter("farpool_index_" + std::string(index::kMarks[i].name) + "_total", std::string(index::kMarks[i].help),
                sum([i](const Shard& shard) { return shard.pool_counters().index.get(i); }));
    }
    for (std::size_t i = 0; i < session::kRepairMarks.size(); ++i) {
      s.counter("farpool_repair_" + std::string(session::kRepairMarks[i].name) + "_total",
                std::string(session::kRepairMarks[i].help),
                sum([i](const Shard& shard) { return shard.pool_counters().repair.get(i); }));
    }
  }

  void beat() {
    last_beat_ = net::Loop::now();
    alarm_.set(last_beat_ + kBeat);
  }

  const Settings& settings_;
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
  explicit Daemon(Settings settings)
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

  Settings settings_;
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
  for (std::size_t i = 0; i < settings_.threads; ++i) {
    auto loop = std::make_unique<net::Loop>();
    auto port = make_port(settings_.wire, *loop, tls_, device_);
    if (!port.ok()) return port.status();
    const auto on_change = [this, i] {
      if (agent_ != nullptr) agent_->changed();
      keeper_.keep(shards_[i]->state());
    };
    const auto on_fenced = [this](const std::string& why) { control_.post([this, why] { end_fenced(why); }); };
    shards_.push_back(
        std::make_unique<Shard>(settings_, i, std::move(loop), std::move(*port), begin, on_change, on_fenced));
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
  farpool::apps::Settings settings;
  CLI::App app("Serves a farpool pool to applications over the Redis protocol.", farpool::apps::kProgram);
  farpool::apps::add_flags(app, settings);
  if (const auto status = farpool::apps::parse(app, argc, argv)) return *status;
  if (const auto status = farpool::apps::check(settings); !status.ok())
    return farpool::apps::fail(farpool::apps::kProgram, status);
  return farpool::apps::Daemon(std::move(settings)).run();
}
