// SPDX-License-Identifier: Apache-2.0
// Throughput while clients die, as RCuckoo's figure 8a (RC-06): 320 clients of the protocol as it is shipped, over the
// simulated wire with the figures of a NIC. Half of the operations are inserts of new keys, half are reads. Clients die
// in the middle of an insert, at random; others detect it and repair; a new client takes the place of each.
//
// Prints Markdown; --svg draws the same.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/load.h"
#include "bench/plot.h"
#include "bench/slices.h"
#include "index/rcuckoo/layout.h"
#include "layout/operation_slot.h"
#include "node/memory_node.h"
#include "sim/world.h"

namespace farpool {
namespace {

using base::Nanos;

struct Setup {
  std::uint64_t entries = 100'000'000;
  std::uint64_t clients = 320, machines = 8;
  std::uint64_t rows_per_lock = 16;
  // Everything that an operation waits for is slower by this, and the table smaller. A lock is as often wanted as in
  // the full size, as many clients fill the link, and the run is shorter.
  double scale = 1;
  Nanos failure_timeout = 100 * base::kMillisecond;
  Nanos lease = base::kSecond;
  Nanos settle = 300 * base::kMillisecond, measure = 500 * base::kMillisecond;
  std::uint64_t loaded = 100'000;  // keys that are read, Zipf .99
  std::uint64_t seed = 1;
};

struct Point {
  double wanted = 0;  // failures a second
  double failures = 0;
  double throughput = 0;  // millions of operations a second, of the full size
  double blocked = 0;     // clients that have waited for more than ten milliseconds, in the mean
  double backlog = 0;     // sessions of the dead that are not repaired yet, in the mean
  std::uint64_t fenced_alive = 0;
  std::vector<double> repaired;      // milliseconds from the death, where locks were held
  std::vector<double> repaired_all;  // where anything was left
};

// A NIC on which everything that an operation waits for takes `by` times as long.
fabric::sim::NicModel slower(fabric::sim::NicModel nic, double by) {
  for (double* time : {&nic.post, &nic.propagation, &nic.complete, &nic.pcie_trip, &nic.jitter, &nic.straggle_mean,
                       &nic.straggle_most}) {
    *time *= by;
  }
  for (double* rate : {&nic.link_gbps, &nic.message_mops, &nic.pcie_gbps, &nic.lane_mops_host, &nic.lane_mops_device,
                       &nic.lane_atomic_mops_host, &nic.lane_atomic_mops_device, &nic.atomic_mops_host,
                       &nic.atomic_mops_device, &nic.word_atomic_mops_host, &nic.word_atomic_mops_device}) {
    *rate /= by;
  }
  return nic;
}

sim::WorldOptions world_of(const Setup& setup, const fabric::sim::NicModel& nic) {
  sim::WorldOptions options;
  const auto entries = static_cast<std::uint64_t>(static_cast<double>(setup.entries) / setup.scale);
  constexpr std::uint64_t kPercent = 80, kEntries = 8, kEntryBytes = 16;
  const std::uint64_t table = entries / kEntries * (kEntries * kEntryBytes + rcuckoo::kRowTrailer);
  options.geometry = {.memory_bytes = base::round_up(table * 100 / kPercent, layout::kPage),
                      .table_percent = kPercent,
                      .entry_bytes = kEntryBytes,
                      .entries_per_row = kEntries,
                      .rows_per_lock = setup.rows_per_lock,
                      .max_sessions = 4096,
                      .slots_per_session = 1};
  options.lease = setup.lease;
  options.failure_timeout = setup.failure_timeout;
  options.wire.seed = setup.seed;
  options.wire.timing = {
      .nic = &nic, .clients_per_machine = setup.clients / setup.machines, .device_regions = 1ull << layout::kLocks};
  return options;
}

class Experiment {
 public:
  explicit Experiment(const Setup& setup)
      : setup_(setup),
        nic_(slower(fabric::sim::kConnectX5, setup.scale)),
        random_(base::mix(setup.seed)),
        popularity_(setup.loaded),
        world_(world_of(setup, nic_)) {
    for (std::uint64_t i = 0; i < setup.clients; ++i) begin_client();
    look();
    FARPOOL_CHECK(world_.run_until([this] { return next_key_ >= setup_.loaded; }));
  }
  ~Experiment() {
    rate_ = 0;
    over_ = true;
    FARPOOL_CHECK(world_.run_until([this] { return living_ == 0; }));
  }

  Point run(double failures_per_second) {
    const bool idle = rate_ == 0;
    rate_ = failures_per_second;
    if (idle && rate_ > 0) next_death();
    run_for(setup_.settle);
    now_ = Point{.wanted = failures_per_second};
    done_ = deaths_ = looks_ = 0;
    run_for(setup_.measure);
    Point point = std::move(now_);
    const double seconds = static_cast<double>(setup_.measure) / 1e9;
    point.failures = static_cast<double>(deaths_) / seconds;
    point.throughput = static_cast<double>(done_) / seconds / 1e6 * setup_.scale;
    point.blocked /= static_cast<double>(looks_);
    point.backlog /= static_cast<double>(looks_);
    std::sort(point.repaired.begin(), point.repaired.end());
    std::sort(point.repaired_all.begin(), point.repaired_all.end());
    return point;
  }

 private:
  // One client thread, from its session to its death.
  struct Life {
    sim::Client* client = nullptr;
    Nanos asked = 0;  // its operation; 0: none
    bool doomed = false, ended = false;
  };
  struct Grave {
    sim::Client* client = nullptr;
    Nanos died = 0;
    bool held_locks = false;
  };

  void begin_client() {
    lives_.push_back(std::make_unique<Life>());
    Life& life = *lives_.back();
    life.client = &world_.add("client-" + std::to_string(++clients_));
    ++living_;
    world_.spawn(*life.client, live(life));
  }

  task::Task<void> live(Life& life) {
    sim::Client& client = *life.client;
    co_await world_.open(client);
    if (client.connected()) {
      world_.spawn(client, sweep_sometimes(client));
      fabric::Cost cost;
      while (!over_ && client.session().alive()) {
        life.asked = client.port().now();
        const Nanos deadline = life.asked + 60 * base::kSecond;
        if (random_.chance(0.5) && next_key_ >= setup_.loaded) {
          const std::string key = bench::key_of(popularity_.draw(random_));
          (void)co_await client.table().lookup(key, deadline, cost);
        } else {
          const std::string key = bench::key_of(next_key_++);
          (void)co_await client.table().insert(key, "four", deadline, cost);
        }
        ++done_;
      }
    }
    life.asked = 0;
    life.ended = true;
    --living_;
    if (over_) co_return;
    if (client.connected()) ++now_.fenced_alive;
    begin_client();
  }

  // As client::Pool does: what nobody is blocked on is repaired too, by the first client that comes.
  task::Task<void> sweep_sometimes(sim::Client& client) {
    fabric::Port& port = client.port();
    const Nanos timeout = setup_.failure_timeout;
    const auto jittered = [&port](Nanos time) {
      return time / 2 + static_cast<Nanos>(port.random() % static_cast<std::uint64_t>(time));
    };
    Nanos due = 0;
    fabric::Cost cost;
    while (!over_ && client.session().alive()) {
      co_await port.sleep_for(client.session().grant().tick);
      if (over_ || !client.session().alive()) co_return;
      if (client.session().dead() == 0) {
        due = 0;
      } else if (due == 0) {
        due = port.now() + jittered(2 * timeout);
      } else if (port.now() >= due) {
        (void)co_await client.table().repairer()->sweep(port.now() + timeout, cost);
        due = port.now() + jittered(8 * timeout);
      }
    }
  }

  // Deaths come as a Poisson process, each to a client that lives, in the insert that it does then or next.
  void next_death() {
    if (rate_ == 0) return;
    const auto wait = static_cast<Nanos>(-std::log1p(-bench::uniform(random_)) / rate_ * 1e9);
    world_.network().at(world_.network().now() + wait, [this] {
      if (rate_ == 0) return;
      for (int tries = 0; tries < 1000; ++tries) {
        Life& life = *lives_[random_.below(lives_.size())];
        if (life.ended || life.doomed || !life.client->connected()) continue;
        life.doomed = true;
        life.client->port().crash_after(1 + random_.below(kEffectsOfAnInsert), fabric::sim::InFlight::cut);
        break;
      }
      next_death();
    });
  }

  // Says whether anybody has died, or has been repaired.
  void look() {
    const Nanos now = world_.network().now();
    const base::Bytes slots = world_.region(layout::kSlots), locks = world_.region(layout::kLocks);
    const auto slot_of = [&slots](const sim::Client& client) {
      return base::load<layout::OperationSlot>(slots.data() + client.slots_offset());
    };
    std::size_t begun = 0;
    std::erase_if(lives_, [&](const std::unique_ptr<Life>& life) {
      if (!life->doomed || !life->client->crashed()) return false;
      const layout::OperationSlot slot = slot_of(*life->client);
      Grave grave{.client = life->client, .died = now};
      if (slot.claims()) {
        for (const layout::HeldLocks& held : slot.lock_word) {
          grave.held_locks |=
              held.mask != 0 && (base::load<std::uint64_t>(locks.data() + held.offset) & held.mask) != 0;
        }
      }
      if (slot.holder == life->client->incarnation()) graves_.push_back(grave);
      ++deaths_;
      ++begun;
      --living_;
      return true;  // its frames are never resumed
    });
    for (; begun > 0 && !over_; --begun) begin_client();
    std::erase_if(graves_, [&](const Grave& grave) {
      if (slot_of(*grave.client).holder == grave.client->incarnation()) return false;
      const double took = static_cast<double>(now - grave.died) / 1e6;
      if (grave.held_locks) now_.repaired.push_back(took);
      now_.repaired_all.push_back(took);
      return true;
    });
    for (const auto& life : lives_) {
      now_.blocked += life->asked != 0 && now - life->asked > 10 * base::kMillisecond ? 1 : 0;
    }
    now_.backlog += static_cast<double>(graves_.size());
    ++looks_;
    if (over_ && living_ == 0) return;
    world_.network().at(now + kLook, [this] { look(); });
  }

  void run_for(Nanos time) {
    bench::run_in_slices(
        world_, [] { return false; }, world_.network().now() + time);
  }

  static constexpr Nanos kLook = 250 * base::kMicrosecond;
  // Words that land and atomics: claim 12, lock 1, plan 20, row 18, counters 3, release 1.
  static constexpr std::uint64_t kEffectsOfAnInsert = 55;

  const Setup setup_;
  const fabric::sim::NicModel nic_;
  base::Random random_;
  const bench::Zipf popularity_;
  std::vector<std::unique_ptr<Life>> lives_;
  std::vector<Grave> graves_;
  std::uint64_t clients_ = 0, living_ = 0, next_key_ = 0;
  double rate_ = 0;
  bool over_ = false;
  Point now_;
  std::uint64_t done_ = 0, deaths_ = 0, looks_ = 0;
  sim::World world_;  // events of it refer to all of the above
};

void print(const Setup& setup, const std::vector<Point>& points) {
  std::printf("\n%llu rows a lock:\n\n", static_cast<unsigned long long>(setup.rows_per_lock));
  std::printf(
      "| failures/s | happened | M operations/s | %% of none | clients that wait > 10 ms | dead and not repaired | "
      "repaired after, locks held: p50 ms | p99 ms | of | anything left: p50 ms | p99 ms | of | fenced alive |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Point& p : points) {
    std::printf("| %.0f | %.0f | %.2f | %.1f | %.1f | %.1f | %.0f | %.0f | %zu | %.0f | %.0f | %zu | %llu |\n",
                p.wanted, p.failures, p.throughput, 100 * p.throughput / points[0].throughput, p.blocked, p.backlog,
                bench::percentile(p.repaired, 50), bench::percentile(p.repaired, 99), p.repaired.size(),
                bench::percentile(p.repaired_all, 50), bench::percentile(p.repaired_all, 99), p.repaired_all.size(),
                static_cast<unsigned long long>(p.fenced_alive));
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace farpool

int main(int count_of_words, char** words) {
  using namespace farpool;
  Setup setup;
  std::vector<double> rates{0, 100, 250, 500, 750, 1000};
  std::vector<std::uint64_t> granularities{16};
  std::uint64_t settle_ms = 300, measure_ms = 500;
  std::string svg;
  CLI::App app("Throughput of a simulated pool against failures of clients a second.");
  app.add_option("--entries", setup.entries, "how many entries the table has, in the full size");
  app.add_option("--scale", setup.scale, "the NIC is slower by this, and the table smaller");
  app.add_option("--rates", rates, "failures a second; the first should be 0");
  app.add_option("--rows-per-lock", granularities, "a run for each");
  app.add_option("--settle-ms", settle_ms, "how long each rate runs before it is measured");
  app.add_option("--measure-ms", measure_ms, "how long each rate is measured");
  app.add_option("--seed", setup.seed);
  app.add_option("--svg", svg, "file to draw to");
  CLI11_PARSE(app, count_of_words, words);
  setup.settle = static_cast<base::Nanos>(settle_ms) * base::kMillisecond;
  setup.measure = static_cast<base::Nanos>(measure_ms) * base::kMillisecond;

  bench::Plot plot{.title = "Throughput against failures of clients, 320 clients, half inserts",
                   .x = "failures a second",
                   .y = "% of the throughput without failures"};
  plot.marks.push_back({500, "the paper's knee"});
  for (const std::uint64_t rows : granularities) {
    setup.rows_per_lock = rows;
    std::vector<Point> points;
    {
      Experiment experiment(setup);
      for (const double rate : rates) {
        points.push_back(experiment.run(rate));
        std::fprintf(stderr, "%llu rows a lock, %.0f failures/s: %.2f M/s, %.1f clients wait\n",
                     static_cast<unsigned long long>(rows), rate, points.back().throughput, points.back().blocked);
      }
    }
    print(setup, points);
    bench::Plot::Line line{.name = std::to_string(rows) + " rows a lock", .points = {}};
    for (const Point& p : points) line.points.emplace_back(p.failures, 100 * p.throughput / points[0].throughput);
    plot.lines.push_back(std::move(line));
  }
  return svg.empty() || bench::draw(plot, svg) ? 0 : 1;
}
