// SPDX-License-Identifier: Apache-2.0
// A worker of farpool-compute-shard.
#pragma once

#include <spdlog/spdlog.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/compute_shard/settings.h"
#include "client/pool.h"
#include "fabric/fabric.h"
#include "front/resp/server.h"
#include "net/loop.h"
#include "task/task.h"

namespace farpool::apps {

// One worker thread: a loop, a port, its own way into the pool, and the connections that it was given. `accesses` and
// `on_fenced`: client::Pool::Options.
class Shard {
 public:
  Shard(const ShardSettings& settings, std::size_t index, std::unique_ptr<net::Loop> loop,
        std::unique_ptr<fabric::Port> port, std::vector<std::string> bootstrap,
        std::shared_ptr<client::Accesses> accesses, std::function<void()> on_change,
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
                       .accesses = std::move(accesses),
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
  std::future<std::vector<client::Pool::Repair>> repair(base::Nanos patience) {
    auto answer = std::make_shared<std::promise<std::vector<client::Pool::Repair>>>();
    auto future = answer->get_future();
    loop_->post([this, patience, answer] { repairs_.spawn(repair_into(patience, answer)); });
    return future;
  }

  void start() {
    pool_.start();
    thread_ = std::thread([this] { loop_->run(); });
  }
  void set_passwords(const front::resp::Passwords& passwords) {
    loop_->post([this, passwords] { worker_.set_passwords(passwords); });
  }
  // Ends the worker: each connection ends when it is idle; shortly before the deadline it reads no more, and then cuts
  // what is left. Sessions say goodbye. Any thread; join() waits.
  void stop(base::Nanos deadline) {
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

  front::resp::Worker& worker() { return worker_; }
  const front::resp::Counters& counters() const { return worker_.counters(); }
  const client::PoolCounters& pool_counters() const { return pool_.counters(); }
  client::PoolState state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  base::Nanos last_beat() const { return last_beat_; }
  void set_bootstrap(std::vector<std::string> addresses) {
    loop_->post([this, addresses = std::move(addresses)] { pool_.set_bootstrap(addresses); });
  }

 private:
  static constexpr base::Nanos kBeat = base::kSecond;
  // At the end: how long a worker reads no more from its connections before it cuts them, and how long sessions may
  // take to say goodbye.
  static constexpr base::Nanos kLastReplies = 2 * base::kSecond;
  static constexpr base::Nanos kGoodbye = 3 * base::kSecond;

  task::Task<void> repair_into(base::Nanos patience,
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
  front::resp::Worker worker_;
  task::Scope scope_;
  task::Scope repairs_;
  std::optional<net::Alarm> hush_;
  std::optional<net::Alarm> cut_;
  mutable std::mutex mutex_;
  client::PoolState state_;
  std::atomic<base::Nanos> last_beat_{0};
  net::Alarm alarm_;
  std::thread thread_;
};

}  // namespace farpool::apps
