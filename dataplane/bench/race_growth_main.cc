// SPDX-License-Identifier: Apache-2.0
// A RACE pool that grows 16-fold while it serves: reads, updates and inserts over the simulated wire with the figures
// of a NIC; its tables are split whenever they are full. Beside it the same with clients that stop while a table is
// split, as in RACE's figure 15 (RA-11): a client that would begin an operation then waits until the split is finished.
// The paper has a client that only inserts and one that only reads: --apart.
//
// Prints Markdown; --svg draws throughput over time.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/load.h"
#include "bench/plot.h"
#include "bench/slices.h"
#include "directory/directory.h"
#include "index/race/layout.h"
#include "layout/regions.h"
#include "node/memory_node.h"
#include "sim/world.h"

namespace farpool {
namespace {

using base::Nanos;

struct Setup {
  std::uint64_t entries = 20'000;  // of a table, about
  std::uint64_t tables = 32;
  std::uint64_t keys = 10'000;  // at first
  std::uint64_t growth = 16;    // times so many in the end
  std::uint64_t clients = 64;
  double reads = 0.5, inserts = 0.25;  // the rest are updates
  bool apart = false;                  // every other client only inserts, and the others only read
  std::uint64_t calm = 200'000;        // operations when all splits are finished, without inserts
  Nanos window = 500 * base::kMicrosecond;
  std::uint64_t seed = 1;
};

// What goes on while an operation, or a window of time, does.
enum Phase : std::uint8_t { kBefore, kBetween, kDuring, kAfter };
constexpr std::array<const char*, 4> kPhases{"before the first split", "between splits", "during splits", "afterwards"};

struct Phased {
  Nanos time = 0;  // of windows, and what was done in them
  std::uint64_t done = 0;
  std::vector<double> reads, writes;  // latencies, nanoseconds, in rising order in the end
};

struct Run {
  std::array<Phased, 4> phases;
  std::map<base::Code, std::uint64_t> failed;
  std::vector<std::pair<double, double>> throughput;       // milliseconds, millions of operations a second
  double least = std::numeric_limits<double>::infinity();  // throughput of a window with a split
  Nanos stalled = 0, longest_stall = 0;                    // windows in which no operation ended: all, and in one piece
  std::uint64_t splits = 0, moved = 0, keys = 0, lost = 0;
  std::uint64_t had_to_move = 0;  // to tables that were made after the key had come
  Nanos time = 0;
};

sim::WorldOptions world_of(const Setup& setup) {
  sim::WorldOptions options;
  const std::uint64_t table_bytes = setup.entries / race::kGroupSlots * race::kGroupBytes;
  options.geometry = {.memory_bytes = base::round_up(table_bytes * setup.tables * 20, layout::kPage),
                      .table_percent = 5,
                      .max_sessions = setup.clients + 8,
                      .slots_per_session = 1,
                      .protocol = layout::Protocol::race,
                      .tables = setup.tables};
  options.lease = base::kSecond;
  options.failure_timeout = 100 * base::kMillisecond;
  options.wire.seed = setup.seed;
  options.wire.timing = {.nic = &fabric::sim::kConnectX5, .clients_per_machine = (setup.clients + 7) / 8};
  return options;
}

class Experiment {
 public:
  Experiment(const Setup& setup, bool stops)
      : setup_(setup), stops_(stops), random_(base::mix(setup.seed)), value_("eight by"), world_(world_of(setup)) {}

  Run run() {
    for (std::uint64_t i = 0; i < setup_.clients; ++i) {
      clients_.push_back(&world_.connect("client-" + std::to_string(i)));
      tasks_.start(*clients_.back(), load(*clients_.back()));
    }
    tasks_.finish();
    begun_ = look_before_ = world_.network().now();
    look();
    for (std::size_t i = 0; i < clients_.size(); ++i) tasks_.start(*clients_[i], work(*clients_[i], share_of(i)));
    tasks_.finish();
    over_ = true;
    run_.time = world_.network().now() - begun_;
    run_.splits = begun_splits();
    for (sim::Client* client : clients_) run_.moved += client->table().marks().moved;
    run_.keys = next_key_;
    for (std::uint64_t i = 0; i < next_key_; ++i) run_.had_to_move += had_to_move(i);
    tasks_.start(*clients_[0], read_all(*clients_[0]));
    tasks_.finish();
    for (Phased& phase : run_.phases) {
      std::sort(phase.reads.begin(), phase.reads.end());
      std::sort(phase.writes.begin(), phase.writes.end());
    }
    return std::move(run_);
  }

 private:
  Nanos deadline(sim::Client& client) const { return client.port().now() + 30 * base::kSecond; }

  task::Task<void> load(sim::Client& client) {
    while (next_key_ < setup_.keys) {
      co_await insert(client);
    }
  }

  task::Task<void> insert(sim::Client& client) {
    const std::uint64_t number = next_key_++;
    const std::string key = bench::key_of(number);
    fabric::Cost cost;
    note(co_await client.table().insert(key, value_, deadline(client), cost));
    depths_.resize(std::max<std::size_t>(depths_.size(), number + 1));
    depths_[number] = place_of(key).depth;
  }

  // What of a key's hash has chosen its table so far.
  struct Place {
    std::uint64_t hash = 0;
    std::uint64_t depth = 0;
  };
  Place place_of(const std::string& key) {
    const directory::View view(world_.region(layout::kDirectory), world_.geometry().tables);
    const std::uint64_t hash = directory::hash_of(world_.pool_secret(), std::as_bytes(std::span(key)));
    return {hash, layout::EntryWord::Depth::get(view.entry(directory::low_bits(hash, view.depth())))};
  }
  // Each split since a key came has moved it, if the bit by which the split went is set.
  std::uint64_t had_to_move(std::uint64_t number) {
    const Place now = place_of(bench::key_of(number));
    return static_cast<std::uint64_t>(std::popcount(directory::low_bits(now.hash, now.depth) >> depths_[number]));
  }

  // What a client does, in parts of 1; the rest are updates.
  struct Share {
    double reads, inserts;
  };
  Share share_of(std::size_t client) const {
    if (!setup_.apart) return {setup_.reads, setup_.inserts};
    return client % 2 == 0 ? Share{.reads = 1, .inserts = 0} : Share{.reads = 0, .inserts = 1};
  }

  task::Task<void> work(sim::Client& client, Share share) {
    const std::uint64_t end = setup_.keys * setup_.growth;
    while (calm_done_ < setup_.calm && (share.inserts < 1 || next_key_ < end)) {
      fabric::Cost cost;
      const Phase phase = this->phase();
      const Nanos asked = client.port().now();
      while (stops_ && under_way() > 0) co_await client.port().sleep_for(base::kMicrosecond);
      const double drawn = bench::uniform(random_);
      const bool reads = drawn < share.reads;
      const bool grows = next_key_ < end;
      if (reads || drawn >= share.reads + share.inserts || !grows) {
        const std::string key = bench::key_of(random_.below(setup_.keys));
        if (reads) {
          const auto found = co_await client.table().lookup(key, deadline(client), cost);
          note(found);
          if (found.ok() && !found->has_value()) ++run_.lost;
        } else {
          const auto updated = co_await client.table().update(key, value_, deadline(client), cost);
          note(updated);
          if (updated.ok() && !*updated) ++run_.lost;
        }
      } else {
        co_await insert(client);
      }
      const auto took = static_cast<double>(client.port().now() - asked);
      Phased& where = run_.phases[this->phase() == kDuring ? kDuring : phase];
      (reads ? where.reads : where.writes).push_back(took);
      ++done_;
      if (this->phase() == kAfter) ++calm_done_;
    }
  }

  // Every key that was ever put is there.
  task::Task<void> read_all(sim::Client& client) {
    for (std::uint64_t i = 0; i < next_key_; ++i) {
      fabric::Cost cost;
      const std::string key = bench::key_of(i);
      const auto found = co_await client.table().lookup(key, deadline(client), cost);
      note(found);
      if (found.ok() && !found->has_value()) ++run_.lost;
    }
  }

  template <typename Outcome>
  void note(const Outcome& outcome) {
    if (!outcome.ok()) ++run_.failed[outcome.code()];
  }

  std::uint64_t begun_splits() const {
    std::uint64_t sum = 0;
    for (sim::Client* client : clients_) sum += client->table().marks().splits;
    return sum;
  }
  std::uint64_t under_way() const {
    std::uint64_t finished = 0;
    for (sim::Client* client : clients_) finished += client->table().marks().splits_finished;
    return begun_splits() - finished;
  }
  Phase phase() const {
    if (under_way() > 0) return kDuring;
    if (begun_splits() == 0) return kBefore;
    return next_key_ < setup_.keys * setup_.growth ? kBetween : kAfter;
  }

  // Every window: what was done in it.
  void look() {
    const Nanos now = world_.network().now();
    const Nanos time = now - look_before_;
    const std::uint64_t splits = begun_splits();
    if (time > 0) {
      const double throughput = static_cast<double>(done_ - done_before_) / static_cast<double>(time) * 1e3;
      run_.throughput.emplace_back(static_cast<double>(now - begun_) / 1e6, throughput);
      const bool split = under_way() > 0 || splits != splits_before_;
      Phased& where = run_.phases[split ? kDuring : phase()];
      where.time += time, where.done += done_ - done_before_;
      if (split) run_.least = std::min(run_.least, throughput);
      stall_ = done_ == done_before_ ? stall_ + time : 0;
      if (stall_ > 0) run_.stalled += time;
      run_.longest_stall = std::max(run_.longest_stall, stall_);
    }
    look_before_ = now, done_before_ = done_, splits_before_ = splits;
    if (over_ || calm_done_ >= setup_.calm) return;
    world_.network().at(now + setup_.window, [this] { look(); });
  }

  const Setup setup_;
  const bool stops_;
  base::Random random_;
  const std::string value_;
  std::vector<sim::Client*> clients_;
  std::vector<std::uint64_t> depths_;  // by key, when it came
  std::uint64_t next_key_ = 0, done_ = 0, calm_done_ = 0;
  Nanos begun_ = 0, look_before_ = 0, stall_ = 0;
  std::uint64_t done_before_ = 0, splits_before_ = 0;
  bool over_ = false;
  Run run_;
  sim::World world_;  // tasks and events of it refer to all of the above
  bench::Tasks tasks_{world_};
};

void print(const char* name, const Run& run) {
  std::uint64_t failed = 0;
  for (const auto& [code, count] : run.failed) failed += count;
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "\n**%s**: %llu keys in the end, %llu splits, %llu slots moved, %.3f times as many as had to, %.0f ms; %llu "
      "operations failed, %llu keys lost; the slowest half millisecond with a split had %.2f M operations/s; no "
      "operation "
      "ended in %.1f ms, %.1f of them in one piece.\n\n",
      name, number(run.keys), number(run.splits), number(run.moved),
      static_cast<double>(run.moved) / static_cast<double>(run.had_to_move), static_cast<double>(run.time) / 1e6,
      number(failed), number(run.lost), run.least, static_cast<double>(run.stalled) / 1e6,
      static_cast<double>(run.longest_stall) / 1e6);
  std::printf(
      "| | ms | M operations/s | reads: mean µs | p50 µs | p99 µs | most µs | writes: p50 µs | p99 µs | most µs |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  for (std::size_t i = 0; i < run.phases.size(); ++i) {
    const Phased& phase = run.phases[i];
    const auto us = [](const std::vector<double>& sorted, double percent) {
      return bench::percentile(sorted, percent) / 1e3;
    };
    const auto time = static_cast<double>(std::max<Nanos>(phase.time, 1));
    const double mean = std::accumulate(phase.reads.begin(), phase.reads.end(), 0.0) /
                        static_cast<double>(std::max<std::size_t>(phase.reads.size(), 1)) / 1e3;
    std::printf("| %s | %.1f | %.2f | %.1f | %.1f | %.1f | %.0f | %.1f | %.1f | %.0f |\n", kPhases[i], time / 1e6,
                static_cast<double>(phase.done) / time * 1e3, mean, us(phase.reads, 50), us(phase.reads, 99),
                us(phase.reads, 100), us(phase.writes, 50), us(phase.writes, 99), us(phase.writes, 100));
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace farpool

int main(int count_of_words, char** words) {
  using namespace farpool;
  Setup setup;
  std::string svg;
  CLI::App app("A RACE pool that grows while it serves, in the simulator.");
  app.add_option("--keys", setup.keys, "at first")->check(CLI::PositiveNumber);
  app.add_option("--growth", setup.growth, "times so many in the end")->check(CLI::PositiveNumber);
  app.add_option("--entries", setup.entries, "how many entries a table has")->check(CLI::Range(1000, 10'000'000));
  app.add_option("--tables", setup.tables, "a power of two; one is in use at first");
  app.add_option("--clients", setup.clients)->check(CLI::PositiveNumber);
  app.add_option("--inserts", setup.inserts, "share of new keys, while it grows; half are reads, the rest updates")
      ->check(CLI::Range(0.001, 0.5));
  app.add_flag("--apart", setup.apart, "every other client only inserts, and the others only read");
  app.add_option("--seed", setup.seed);
  app.add_option("--svg", svg, "file to draw to");
  CLI11_PARSE(app, count_of_words, words);

  bench::Plot plot{.title = "A RACE pool grows " + std::to_string(setup.growth) + "-fold, " +
                            std::to_string(setup.clients) + " clients",
                   .x = "milliseconds",
                   .y = "millions of operations a second"};
  for (const bool stops : {false, true}) {
    const char* name = stops ? "clients stop while a table is split" : "clients go on";
    const Run run = Experiment(setup, stops).run();
    print(name, run);
    plot.lines.push_back({.name = name, .points = run.throughput});
  }
  return svg.empty() || bench::draw(plot, svg) ? 0 : 1;
}
