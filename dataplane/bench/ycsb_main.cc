// SPDX-License-Identifier: Apache-2.0
// The index protocols side by side: YCSB's workloads A, B, C, D and F, and inserts alone, by any number of clients of
// the protocols as they are shipped, over the simulated wire with the figures of a NIC. Each client has one operation at
// a time. Prints Markdown; --svg draws throughput against clients, a file for each workload.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "bench/load.h"
#include "bench/plot.h"
#include "bench/slices.h"
#include "index/edit.h"
#include "node/memory_node.h"
#include "protocols/protocols.h"
#include "sim/dialect.h"
#include "sim/world.h"

namespace farpool {
namespace {

using base::Nanos;
using layout::Protocol;

constexpr std::uint64_t kLoaders = 32;  // clients that fill a table at first

// Shares of operations; what is left are inserts of new keys.
struct Workload {
  char name;
  double reads, updates, modifies;
  bool latest;  // the newest keys are the most popular, else one order holds for all the time
  const char* what;
};
constexpr std::array<Workload, 6> kWorkloads{{{'A', 0.5, 0.5, 0, false, "50 % reads, 50 % updates"},
                                              {'B', 0.95, 0.05, 0, false, "95 % reads, 5 % updates"},
                                              {'C', 1, 0, 0, false, "reads"},
                                              {'D', 0.95, 0, 0, true, "95 % reads of late keys, 5 % inserts"},
                                              {'F', 0.5, 0, 0.5, false, "50 % reads, 50 % read-modify-writes"},
                                              {'W', 0, 0, 0, false, "inserts"}}};
double inserts(const Workload& workload) { return 1 - workload.reads - workload.updates - workload.modifies; }

struct Setup {
  std::uint64_t records = 300'000;
  std::uint64_t operations = 60'000;  // that are measured for each figure, at least
  std::uint64_t per_client = 300;     // and so many of each client
  double fill = 0.8;                  // of the table, in the end
  double theta = 0.99;
  std::uint64_t value_bytes = 4;
  std::uint64_t machines = 8;  // that clients share
  std::uint64_t seed = 1;

  std::uint64_t measured(std::uint64_t clients) const { return std::max(operations, per_client * clients); }
  std::uint64_t settling(std::uint64_t clients) const { return measured(clients) / 10 + clients; }
};

struct Point {
  std::uint64_t clients = 0;
  double throughput = 0;                      // millions of operations a second
  double p50 = 0, p99 = 0, most = 0;          // microseconds
  double trips = 0, messages = 0, bytes = 0;  // of an operation
  double conflicts = 0;                       // of an operation: with locks, or with slots
  std::map<base::Code, std::uint64_t> failed;
  std::uint64_t absent = 0;  // reads and updates that did not find their key
};

sim::WorldOptions world_of(const Setup& setup, Protocol protocol, std::uint64_t keys, std::uint64_t most_clients) {
  constexpr std::uint64_t kEntries = 8, kKeyBytes = 8;
  layout::GeometryRequest geometry{.table_percent = 1,
                                   .entry_bytes = kKeyBytes + base::round_up(setup.value_bytes + 4, 8),
                                   .entries_per_row = kEntries,
                                   .max_sessions = std::max(most_clients, kLoaders) + 8,
                                   .slots_per_session = 1,
                                   .protocol = protocol};
  const double slots = static_cast<double>(keys) / setup.fill;
  geometry.memory_bytes =
      base::round_up(static_cast<std::uint64_t>(slots * bench::bytes_per_entry(geometry) * 100), layout::kPage);
  sim::WorldOptions options;
  options.geometry = geometry;
  options.lease = base::kSecond;
  options.failure_timeout = 100 * base::kMillisecond;
  options.wire.seed = setup.seed;
  options.wire.timing = {.nic = &fabric::sim::kConnectX5,
                         .clients_per_machine = (most_clients + setup.machines - 1) / setup.machines,
                         .device_regions = 1ull << layout::kLocks};
  return options;
}

// A table under one workload, by more and more clients.
class Experiment {
 public:
  Experiment(const Setup& setup, const Workload& workload, Protocol protocol, std::uint64_t keys,
             std::uint64_t most_clients)
      : setup_(setup),
        workload_(workload),
        zipf_(setup.records, setup.theta),
        random_(base::mix(setup.seed)),
        value_(setup.value_bytes, 'v'),
        world_(world_of(setup, protocol, keys, most_clients)) {}

  void load() {
    add_clients(kLoaders);
    for (std::uint64_t i = 0; i < kLoaders; ++i) tasks_.start(*clients_[i], load_some(*clients_[i]));
    tasks_.finish();
    FARPOOL_CHECK(now_.failed.empty());
  }

  Point run(std::uint64_t clients) {
    add_clients(clients);
    now_ = Point{.clients = clients};
    latencies_.clear();
    cost_ = {};
    done_ = 0;
    begin_ = setup_.settling(clients);
    end_ = begin_ + setup_.measured(clients);
    for (std::uint64_t i = 0; i < clients; ++i) tasks_.start(*clients_[i], work(*clients_[i]));
    tasks_.finish();
    const auto of = static_cast<double>(latencies_.size());
    FARPOOL_CHECK(of > 0 && ended_at_ > begun_at_);
    now_.throughput = of / static_cast<double>(ended_at_ - begun_at_) * 1e3;
    std::sort(latencies_.begin(), latencies_.end());
    now_.p50 = bench::percentile(latencies_, 50) / 1e3;
    now_.p99 = bench::percentile(latencies_, 99) / 1e3;
    now_.most = bench::percentile(latencies_, 100) / 1e3;
    now_.trips = cost_.trips / of, now_.messages = cost_.messages / of,
    now_.bytes = static_cast<double>(cost_.bytes) / of;
    now_.conflicts = static_cast<double>(conflicts_after_ - conflicts_before_) / of;
    return now_;
  }

 private:
  void add_clients(std::uint64_t count) {
    while (clients_.size() < count) clients_.push_back(&world_.connect("client-" + std::to_string(clients_.size())));
  }

  task::Task<void> load_some(sim::Client& client) {
    while (next_key_ < setup_.records) {
      fabric::Cost cost;
      const std::string key = bench::key_of(next_key_++);
      const auto added = co_await client.table().insert(key, value_, deadline(client), cost);
      if (!added.ok()) ++now_.failed[added.code()];
    }
  }

  task::Task<void> work(sim::Client& client) {
    while (done_ < end_) {
      fabric::Cost cost;
      const Nanos asked = client.port().now();
      co_await operation(client, cost);
      const Nanos now = client.port().now();
      ++done_;
      if (done_ == begin_) {
        begun_at_ = now;
        conflicts_before_ = conflicts();
      } else if (done_ > begin_ && done_ <= end_) {
        latencies_.push_back(static_cast<double>(now - asked));
        cost_.trips += cost.trips, cost_.messages += cost.messages, cost_.bytes += cost.bytes;
        if (done_ == end_) {
          ended_at_ = now;
          conflicts_after_ = conflicts();
        }
      }
    }
  }

  task::Task<void> operation(sim::Client& client, fabric::Cost& cost) {
    const double drawn = bench::uniform(random_);
    const Workload& w = workload_;
    index::Table& table = client.table();
    if (drawn < w.reads) {
      const std::string key = popular();
      const auto found = co_await table.lookup(key, deadline(client), cost);
      note(found, found.ok() && !found->has_value());
    } else if (drawn < w.reads + w.updates) {
      const std::string key = popular();
      const auto updated = co_await table.update(key, value_, deadline(client), cost);
      note(updated, updated.ok() && !*updated);
    } else if (drawn < w.reads + w.updates + w.modifies) {
      const std::string key = popular();
      CountUp editor;
      const auto modified = co_await table.modify(key, editor, deadline(client), cost);
      note(modified, modified.ok() && !*modified);
    } else {
      const std::uint64_t number = next_key_++;
      const std::string key = bench::key_of(number);
      under_way_.insert(number);
      const auto inserted = co_await table.insert(key, value_, deadline(client), cost);
      under_way_.erase(number);
      note(inserted, inserted.ok() && !*inserted);
    }
  }

  // Increments the value, whatever it is.
  class CountUp final : public index::Editor {
   public:
    index::Edit edit(std::optional<std::string_view> value) override {
      std::string next(value.value_or(std::string_view()));
      if (!next.empty()) ++next.front();
      return index::Edit::put(std::move(next));
    }
  };

  template <typename Outcome>
  void note(const Outcome& outcome, bool absent) {
    if (!outcome.ok()) ++now_.failed[outcome.code()];
    if (absent) ++now_.absent;
  }

  std::string popular() {
    const std::uint64_t rank = zipf_.draw(random_);
    if (!workload_.latest) return bench::key_of(rank);
    const std::uint64_t there = under_way_.empty() ? next_key_ : *under_way_.begin();  // all below are
    return bench::key_of(there - 1 - rank);
  }
  Nanos deadline(sim::Client& client) const { return client.port().now() + 10 * base::kSecond; }

  std::uint64_t conflicts() const {
    std::uint64_t sum = 0;
    for (sim::Client* client : clients_) {
      sum += base::sum_of(index::kMarks, client->table().marks(), base::Cause::contention);
    }
    return sum;
  }

  const Setup setup_;
  const Workload& workload_;
  const bench::Zipf zipf_;
  base::Random random_;
  const std::string value_;
  std::vector<sim::Client*> clients_;
  std::uint64_t next_key_ = 0;
  std::set<std::uint64_t> under_way_;  // keys that are being inserted
  std::uint64_t done_ = 0, begin_ = 0, end_ = 0;
  Nanos begun_at_ = 0, ended_at_ = 0;
  std::uint64_t conflicts_before_ = 0, conflicts_after_ = 0;
  fabric::Cost cost_;
  std::vector<double> latencies_;  // nanoseconds
  Point now_;
  sim::World world_;  // tasks of it refer to all of the above
  bench::Tasks tasks_{world_};
};

std::vector<Point> measure(const Setup& setup, const Workload& workload, Protocol protocol,
                           const std::vector<std::uint64_t>& clients) {
  std::vector<Point> points;
  std::optional<Experiment> experiment;
  const std::uint64_t most = *std::max_element(clients.begin(), clients.end());
  for (const std::uint64_t count : clients) {
    const auto done = static_cast<double>(setup.settling(count) + setup.measured(count) + count);
    const auto added = static_cast<std::uint64_t>(inserts(workload) * done);
    // What adds keys begins with a new table for each count of clients, so that all are about as full.
    if (!experiment || added > 0) {
      experiment.emplace(setup, workload, protocol, setup.records + added, most);
      experiment->load();
    }
    points.push_back(experiment->run(count));
    std::fprintf(stderr, "%c, %s, %llu clients: %.2f M operations a second\n", workload.name,
                 sim::dialect_of(protocol).title().c_str(), static_cast<unsigned long long>(count),
                 points.back().throughput);
  }
  return points;
}

void print(Protocol protocol, const std::vector<Point>& points) {
  for (const Point& p : points) {
    std::string failed;
    for (const auto& [code, count] : p.failed) {
      failed += (failed.empty() ? "" : ", ") + std::to_string(count) + " " + std::string(base::name_of(code));
    }
    if (p.absent > 0) failed += (failed.empty() ? "" : ", ") + std::to_string(p.absent) + " absent";
    std::printf("| %llu | %s | %.2f | %.1f | %.1f | %.0f | %.2f | %.2f | %.0f | %.3f | %s |\n",
                static_cast<unsigned long long>(p.clients), sim::dialect_of(protocol).title().c_str(), p.throughput,
                p.p50, p.p99, p.most, p.trips, p.messages, p.bytes, p.conflicts, failed.empty() ? "0" : failed.c_str());
  }
}

}  // namespace
}  // namespace farpool

int main(int count_of_words, char** words) {
  using namespace farpool;
  Setup setup;
  std::vector<std::uint64_t> clients{1, 8, 20, 40, 80, 160, 240, 320};
  std::string names = "ABCDFW", svg;
  CLI::App app("YCSB in the simulator: the index protocols side by side.");
  app.add_option("--workloads", names, "of A, B, C, D, F and W (inserts)");
  app.add_option("--clients", clients, "a figure for each count, in rising order")->check(CLI::Range(1, 4096));
  app.add_option("--records", setup.records, "keys that are there at the beginning")
      ->check(CLI::Range(1000, 10'000'000));
  app.add_option("--operations", setup.operations, "measured for each figure, at least")->check(CLI::PositiveNumber);
  app.add_option("--fill", setup.fill, "how full the table is in the end")->check(CLI::Range(0.01, 0.95));
  app.add_option("--theta", setup.theta, "exponent of the Zipf distribution")->check(CLI::Range(0.0, 2.0));
  app.add_option("--value-bytes", setup.value_bytes)->check(CLI::Range(1, 40));
  app.add_option("--seed", setup.seed);
  app.add_option("--svg", svg, "beginning of the files' names to draw to, as docs/measurements/ycsb-");
  CLI11_PARSE(app, count_of_words, words);
  std::sort(clients.begin(), clients.end());

  for (const Workload& workload : kWorkloads) {
    if (names.find(workload.name) == std::string::npos) continue;
    bench::Plot plot{.title = std::string("YCSB ") + workload.name + ": " + workload.what,
                     .x = "clients",
                     .y = "millions of operations a second"};
    std::printf(
        "\n**%c**: %s.\n\n| clients | protocol | M operations/s | p50 µs | p99 µs | most µs | trips | messages | bytes "
        "| "
        "conflicts | failed |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
        workload.name, workload.what);
    for (const index::Protocol* protocol : protocols::all()) {
      const std::vector<Point> points = measure(setup, workload, protocol->number(), clients);
      print(protocol->number(), points);
      std::fflush(stdout);
      bench::Plot::Line line{.name = sim::dialect_of(protocol->number()).title(), .points = {}};
      for (const Point& p : points) line.points.emplace_back(static_cast<double>(p.clients), p.throughput);
      plot.lines.push_back(std::move(line));
    }
    if (svg.empty()) continue;
    if (!bench::draw(plot, svg + static_cast<char>(workload.name - 'A' + 'a') + ".svg")) return 1;
  }
  return 0;
}
