// SPDX-License-Identifier: Apache-2.0
#include "sim/explore_worlds.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "protocols/protocols.h"
#include "sim/dialect.h"
#include "sim/housekeeping.h"
#include "sim/survey.h"

namespace farpool::sim {
namespace {

using Kind = Call::Kind;
constexpr Nanos kPatience = 100 * base::kSecond;
constexpr Nanos kHaste = 2 * base::kSecond;  // how long clients wait for lost answers
constexpr int kSweeps = 6;

bool has_faults(const Plot& plot) { return plot.bounds.crashes + plot.bounds.stalls + plot.bounds.losses > 0; }

std::vector<std::string> keys_of(const Plot& plot) {
  std::set<std::string> all;
  for (const Plot::Before& one : plot.before) all.insert(one.call.key);
  for (const auto& of_client : plot.steps) {
    for (const Plot::Step& step : of_client) all.insert(step.call.key);
  }
  all.erase("");
  return {all.begin(), all.end()};
}

class PoolScene final : public Scene {
 public:
  explicit PoolScene(const Plot& plot) : plot_(plot), progress_(plot.steps.size()), world_(plot.options) {
    for (std::size_t i = 0; i < progress_.size(); ++i) {
      progress_[i].client = &world_.connect("client-" + std::to_string(i));
      FARPOOL_CHECK(progress_[i].client->index() == i);
    }
    for (const Plot::Before& before : plot_.before) {
      Client& client = *progress_[before.client].client;
      FARPOOL_CHECK(world_.run(client, world_.call(client, before.call, kPatience)));
    }
    FARPOOL_CHECK(world_.failures().empty() && world_.quiesce());
  }
  // Cuts off what is under way; the clients say no goodbye.
  ~PoolScene() override {
    for (const Progress& progress : progress_) {
      progress.client->port().resume();
      progress.client->port().revive();
      progress.client->session().end({base::Code::unavailable, "the world ends"});
    }
  }

  fabric::sim::Network& network() override { return world_.network(); }
  std::size_t clients() const override { return progress_.size(); }
  bool may_begin(std::size_t client) const override {
    const Progress& progress = progress_[client];
    const auto& steps = plot_.steps[client];
    return progress.begun < steps.size() && progress.running == 0;
  }
  void begin(std::size_t client) override {
    Progress& progress = progress_[client];
    const Plot::Step& step = plot_.steps[client][progress.begun++];
    ++progress.running;
    order_ = base::mix(order_ ^ base::mix(client + 1) ^ ended_);
    world_.spawn(*progress.client, play(*this, progress, step, client));
  }
  bool busy(std::size_t client) const override { return progress_[client].running > 0; }
  void crash(std::size_t client) override { progress_[client].client->port().crash(fabric::sim::InFlight::cut); }
  void stop(std::size_t client) override { progress_[client].client->port().pause(); }
  void resume(std::size_t client) override { progress_[client].client->port().resume(); }

  std::uint64_t fingerprint() const override {
    std::uint64_t hash = order_;
    for (const Progress& progress : progress_) hash = base::mix(hash ^ progress.begun) + progress.running;
    return hash;
  }

  bool at_once(const fabric::sim::Waiting& one) const override {
    return one.op.verb == fabric::Verb::call && one.op.opcode == layout::kTick;
  }
  // A write to a block that a client may still read is wrong: only free blocks are written.
  std::string objection(const fabric::sim::Waiting& one, const fabric::sim::Waiting& other) const override {
    if (one.op.verb != fabric::Verb::write || other.op.verb != fabric::Verb::read) return {};
    if (one.op.at.region != layout::kHeap || other.torn) return {};
    return "a block of the heap is written while client " + std::to_string(other.client) + " is about to read it";
  }

  std::vector<std::string> judge() override {
    std::vector<std::string> wrong;
    for (const auto& [client, status] : world_.failures()) {
      const bool unlucky = plot_.bounds.losses + plot_.bounds.stalls > 0 && mortal(client);
      const bool learned = status.code() == base::Code::unavailable || status.code() == base::Code::stale ||
                           status.code() == base::Code::unknown_outcome || status.code() == base::Code::timed_out;
      if (!unlucky || !learned) {
        wrong.push_back("a call of client " + std::to_string(client) + " failed: " + status.message());
      }
    }
    for (std::size_t i = 0; i < progress_.size(); ++i) {
      if (!mortal(i) && !progress_[i].client->session().alive()) {
        wrong.push_back("client " + std::to_string(i) +
                        " was fenced, although nothing befell it: " + progress_[i].client->session().why().message());
      }
    }
    if (has_faults(plot_) && wrong.empty()) clean_up(wrong);
    if (const auto judged = world_.history().judge()) wrong.push_back(*judged);
    for (const std::string& what : world_.strays()) wrong.push_back(what);
    for (const std::string& what : survey(world_).wrong) wrong.push_back(what);
    return wrong;
  }

  std::string next_name(std::size_t client) const override {
    const Plot::Step& step = plot_.steps[client][progress_[client].begun];
    if (step.wait > 0) return "to wait";
    if (step.splits) return "split of the table of " + step.call.key;
    if (step.scans) return "scan";
    if (step.clears) return "clearing of marks";
    const std::string value = step.call.value.substr(0, 12) + (step.call.value.size() > 12 ? "..." : "");
    return std::string(name_of(step.call.kind)) + " " + step.call.key + (value.empty() ? "" : " " + value);
  }
  std::string place(fabric::Remote at, std::uint64_t bytes) const override {
    return name_place(world_.geometry(), at, bytes);
  }

 private:
  struct Progress {
    Client* client = nullptr;
    std::size_t begun = 0, running = 0;  // steps
  };
  bool mortal(std::size_t client) const {
    const auto& all = plot_.bounds.mortal;
    return std::find(all.begin(), all.end(), client) != all.end();
  }
  static task::Task<void> sweep(Client& client) {
    fabric::Cost cost;
    (void)co_await client.table().sweep(client.port().now() + kHaste, cost);
  }
  static task::Task<void> read(PoolScene& scene, Client& client) {
    for (const std::string& key : scene.world_.history().keys()) {
      co_await scene.world_.call(client, {.kind = Kind::get, .key = key}, kHaste);
    }
  }
  // Faults have ended: nothing of dead clients may stay, and everything is read once more.
  void clean_up(std::vector<std::string>& wrong) {
    world_.network().let_go();
    Client& cleaner = world_.connect("cleaner");
    for (int times = 0; times < kSweeps; ++times) {
      if (!world_.run(cleaner, sweep(cleaner)) || !world_.quiesce()) break;
      const Survey now = survey(world_);
      if (now.wrong.empty() && now.unrepaired().empty()) break;
      // A client that ended unnoticed is noticed when its lease has run out.
      const Nanos then = world_.network().now() + plot_.options.lease / 2;
      world_.run_until([&] { return world_.network().now() >= then; }, plot_.options.lease);
    }
    for (const std::string& what : survey(world_).unrepaired()) wrong.push_back("for ever: " + what);
    if (survey(world_).blocks_lost > 0) {  // likewise
      const Nanos then = world_.network().now() + plot_.options.lease;
      world_.run_until([&] { return world_.network().now() >= then; }, 2 * plot_.options.lease);
    }
    for (const std::string& what : reclaim(world_)) wrong.push_back(what);
    const std::size_t failed = world_.failures().size();
    if (!world_.run(cleaner, read(*this, cleaner)) || world_.failures().size() > failed) {
      wrong.push_back("not all could be read in the end");
    }
  }
  static task::Task<void> play(PoolScene& scene, Progress& progress, Plot::Step step, std::size_t client) {
    if (step.wait > 0) {
      co_await progress.client->port().sleep_for(step.wait);
    } else if (step.splits) {
      co_await split(*progress.client, std::move(step.call.key));
    } else if (step.scans) {
      co_await scene.world_.scan(*progress.client, keys_of(scene.plot_), *step.scans, kPatience);
    } else if (step.clears) {
      co_await clear_marks(*progress.client);
    } else {
      const Nanos patience = scene.plot_.bounds.losses > 0 ? kHaste : kPatience;
      co_await scene.world_.call(*progress.client, std::move(step.call), patience);
    }
    co_await split_no_more(*progress.client);  // its own, or one that it has met and that stood still
    --progress.running;
    // Only which steps had ended when another began matters; the order of their ends does not.
    scene.ended_ += base::mix(client + 1) * (progress.begun - progress.running);
  }

  const Plot& plot_;
  std::vector<Progress> progress_;
  std::uint64_t ended_ = 0;
  std::uint64_t order_ = 0;
  World world_;  // its end lets steps come to theirs
};

}  // namespace

Plot::Before there(std::size_t client, std::string key, std::string value) {
  return {client, {.kind = Kind::insert, .key = std::move(key), .value = std::move(value)}};
}

Plot::Step call(Kind kind, std::string key, std::string value) {
  return {.call = {.kind = kind, .key = std::move(key), .value = std::move(value)}};
}

WorldOptions tiny(layout::Protocol protocol) {
  return {.wire = {.seed = 1, .straggle = 0, .tear = false},
          .geometry = {.memory_bytes = (2048 + 96) << 10,
                       .table_percent = 1,
                       .entry_bytes = 16,
                       .entries_per_row = 2,
                       .rows_per_lock = 2,
                       .max_sessions = 4,
                       .slots_per_session = 2,
                       .protocol = protocol},
          .lease = 1000 * base::kSecond,
          .failure_timeout = base::kMillisecond};
}

Outlook look_ahead(const WorldOptions& options, const std::vector<Plot::Before>& before) {
  World world(options);
  Client& client = world.connect("client-0");
  Outlook outlook;
  for (const Plot::Before& one : before) {
    if (!world.run(client, world.call(client, one.call, kPatience))) outlook.failed = true;
  }
  outlook.failed = outlook.failed || !world.failures().empty() || !world.quiesce();
  outlook.displaced = client.table().marks().displaced;
  for (const auto& [key, places] : survey(world).keys) outlook.rows[key] = places[0].row;
  return outlook;
}

void Catalogue::add(std::string name, const Bounds& bounds, std::vector<Plot::Before> before, Plot::Steps steps,
                    const std::optional<WorldOptions>& options) {
  Plot plot{
      .options = options.value_or(usual_), .before = std::move(before), .steps = std::move(steps), .bounds = bounds};
  if (has_faults(plot)) plot.options.lease = 20 * base::kSecond;
  const auto shared = std::make_shared<const Plot>(std::move(plot));
  const bool served = layout::shape_of(shared->options.geometry.protocol).served != nullptr;
  worlds_.push_back({std::move(name), bounds, [shared] { return std::make_unique<PoolScene>(*shared); }, served});
}

const std::vector<SmallWorld>& small_worlds() {
  static const std::vector<SmallWorld> all = [] {
    std::vector<SmallWorld> worlds;
    for (const index::Protocol* protocol : protocols::all()) {
      for (SmallWorld& world : dialect_of(protocol->number()).small_worlds()) worlds.push_back(std::move(world));
    }
    return worlds;
  }();
  return all;
}

const SmallWorld* find_small_world(const std::string& name) {
  const auto& all = small_worlds();
  const auto found = std::find_if(all.begin(), all.end(), [&](const SmallWorld& world) { return world.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace farpool::sim
