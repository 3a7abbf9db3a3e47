// SPDX-License-Identifier: Apache-2.0
// How much memory a pool takes for what lives in it while its values are written over and over: clients as they are
// shipped, over the simulated wire with the figures of a NIC. Every update writes a new block, of a size drawn anew,
// and frees an old one that another client may own; blocks come back when an era is over. Every few milliseconds the
// segments that the memory node has handed out are held against what lives. With --alone the index is an array of the
// bench's own: heap, sessions and memory node are the real ones, no value is written, and a billion updates take
// minutes rather than hours.
//
// Prints Markdown; --svg draws the same; with --most it fails where the heap was ever larger.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "bench/load.h"
#include "bench/plot.h"
#include "bench/slices.h"
#include "layout/extent.h"
#include "layout/segment.h"
#include "protocols/protocols.h"
#include "sim/world.h"

namespace farpool {
namespace {

using base::Nanos;

struct Setup {
  layout::Protocol protocol{};
  std::uint64_t keys = 200'000;
  std::uint64_t least_bytes = 32, most_bytes = 1024;  // of a value, even in its logarithm
  std::uint64_t clients = 8, tasks = 8;               // of each client
  std::uint64_t memory_mib = 512;
  Nanos lease = base::kSecond;
  double skew = 0;          // of the keys, Zipf; 0: all alike
  std::uint64_t alone = 0;  // updates a second, of all clients, by the heap alone; 0: by way of the index
  bool whole = false;       // chains execute in one step, and no NIC's time is reckoned
  std::uint64_t updates = 2'000'000, reports = 20;
  std::uint64_t seed = 1;
};

// Since the report before.
struct Sample {
  std::uint64_t updates = 0;        // in all
  double live = 0;                  // MiB of keys and values, now
  double blocks = 0;                // MiB of the blocks that hold them, now
  double mean = 0, most = 0;        // MiB of the segments that are handed out
  double mean_of = 0, most_of = 0;  // the same, in blocks that live
  // Thousands of blocks that do not live, now: free, or in limbo, as their owners know; and marked free, which the
  // owner has not seen yet.
  double free = 0, limbo = 0, marked = 0;
  double rate = 0;  // million updates a second of virtual time
  std::uint64_t looks = 0;
};

class Experiment {
 public:
  explicit Experiment(const Setup& setup)
      : setup_(setup),
        random_(base::mix(setup.seed)),
        popularity_(setup.keys, setup.skew),
        world_(options(setup)),
        tasks_(world_) {
    segment_bytes_ = world_.geometry().segment_bytes;
    size_of_.assign(setup.keys, 0);
    if (setup.alone > 0) {
      held_.assign(setup.keys, {});
      lives_.assign(world_.geometry().at(layout::kHeap).bytes / layout::kBlockUnit, false);
    }
    for (std::uint64_t i = 0; i < setup.clients; ++i) {
      sim::Client& client = world_.connect("client-" + std::to_string(i));
      for (std::uint64_t each = 0; each < setup.tasks; ++each) {
        tasks_.start(client, setup.alone > 0 ? replace(client) : write(client));
      }
      tasks_.start(client, keep_house(client));
    }
    bench::run_in_slices(
        world_, [this] { return loaded_ >= setup_.keys; }, now() + kPatience);
    FARPOOL_CHECK(loaded_ >= setup_.keys);
  }
  ~Experiment() {
    over_ = true;
    tasks_.finish();
  }

  // Until so many updates have been made.
  Sample run_to(std::uint64_t updates) {
    now_ = {};
    const std::uint64_t before = updates_;
    const Nanos begun = now();
    while (updates_ < updates) {
      bench::run_in_slices(
          world_, [] { return false; }, now() + kLookEvery);
      look();
    }
    Sample sample = now_;
    sample.mean /= static_cast<double>(sample.looks);
    sample.mean_of /= static_cast<double>(sample.looks);
    sample.updates = updates_;
    sample.live = mib(live_bytes_);
    sample.blocks = mib(live_blocks_);
    for (const auto& client : world_.clients()) {
      const heap::Heap::Usage usage = client->heap()->usage();
      sample.free += static_cast<double>(usage.blocks_free) / 1e3;
      sample.limbo += static_cast<double>(usage.blocks_limbo) / 1e3;
    }
    sample.marked = static_cast<double>(marked()) / 1e3;
    sample.rate = static_cast<double>(updates_ - before) * 1e3 / static_cast<double>(now() - begun);
    return sample;
  }

  Nanos now() { return world_.network().now(); }
  Nanos tick() const { return world_.clients().front()->session().grant().tick; }
  std::uint64_t anomalies() const {
    std::uint64_t sum = 0;
    for (const auto& client : world_.clients()) sum += client->heap()->usage().anomalies;
    return sum;
  }
  std::uint64_t twice() const { return twice_; }

 private:
  static constexpr std::uint64_t kKeyBytes = 8;
  static constexpr Nanos kPatience = 600 * base::kSecond;
  static constexpr Nanos kLookEvery = 5 * base::kMillisecond;
  static constexpr Nanos kDelay = 1 * base::kMicrosecond;  // of a message, one way, on the wire that reckons no time
  static constexpr int kTurn = 16;                         // updates that a task makes at once, without an index

  static double mib(std::uint64_t bytes) { return static_cast<double>(bytes) / 1048576; }

  static sim::WorldOptions options(const Setup& setup) {
    sim::WorldOptions options;
    const std::uint64_t memory = setup.memory_mib << 20;
    options.geometry = {.memory_bytes = memory,
                        .entry_bytes = 16,
                        .entries_per_row = 8,
                        .rows_per_lock = 16,
                        .max_sessions = 64,
                        .slots_per_session = 16,
                        .protocol = setup.protocol};
    const auto slot = static_cast<std::uint64_t>(std::ceil(bench::bytes_per_entry(options.geometry)));
    options.geometry.table_percent = std::clamp<std::uint64_t>(setup.keys * slot * 2 * 100 / memory + 1, 1, 60);
    options.lease = setup.lease;
    options.failure_timeout = 100 * base::kMillisecond;
    options.wire.seed = setup.seed;
    if (setup.whole) {
      options.wire.whole = true;
      options.wire.min_delay = options.wire.max_delay = kDelay;
      options.wire.straggle = 0;
    } else {
      options.wire.timing = {.nic = &fabric::sim::kConnectX5, .clients_per_machine = 1};
    }
    return options;
  }

  std::uint64_t draw_key() { return setup_.skew > 0 ? popularity_.draw(random_) : random_.below(setup_.keys); }
  std::uint64_t draw_size() {
    const auto least = static_cast<double>(setup_.least_bytes), most = static_cast<double>(setup_.most_bytes);
    return static_cast<std::uint64_t>(least * std::pow(most / least, bench::uniform(random_)));
  }
  std::uint64_t block_of(std::uint64_t value_bytes) const {
    return layout::block_bytes(layout::size_class_for(layout::extent_bytes(kKeyBytes, value_bytes), segment_bytes_));
  }

  task::Task<void> write(sim::Client& client) {
    fabric::Cost cost;
    while (!over_) {
      const bool loads = next_key_ < setup_.keys;
      const std::uint64_t number = loads ? next_key_++ : draw_key();
      const std::uint64_t size = draw_size();
      const std::string key = bench::key_of(number), value(size, 'v');
      const Nanos deadline = client.port().now() + 60 * base::kSecond;
      const auto done = loads ? co_await client.table().insert(key, value, deadline, cost)
                              : co_await client.table().update(key, value, deadline, cost);
      if (!done.ok()) give_up(done.status());
      // Two updates of one key at once may have ended in the other order: the sum is off by one block then.
      if (loads || *done) {
        if (size_of_[number] != 0) {
          live_blocks_ -= block_of(size_of_[number]);
          live_bytes_ -= kKeyBytes + size_of_[number];
        }
        live_blocks_ += block_of(size);
        live_bytes_ += kKeyBytes + size;
        size_of_[number] = static_cast<std::uint32_t>(size);
      }
      ++(loads ? loaded_ : updates_);
    }
  }

  // What an index asks of the heap, by itself.
  task::Task<void> replace(sim::Client& client) {
    fabric::Cost cost;
    const Nanos pause =
        kTurn * base::kSecond * static_cast<Nanos>(setup_.clients * setup_.tasks) / static_cast<Nanos>(setup_.alone);
    while (!over_) {
      for (int i = 0; i < kTurn; ++i) {
        const bool loads = next_key_ < setup_.keys;
        const std::uint64_t number = loads ? next_key_++ : draw_key();
        const std::uint64_t size = draw_size();
        const auto block =
            co_await client.heap()->allocate(layout::extent_bytes(kKeyBytes, size), heap::Purpose::addition,
                                             client.port().now() + 60 * base::kSecond, cost);
        if (!block.ok()) give_up(block.status());
        if (lives_[block->units]) ++twice_;
        lives_[block->units] = true;
        client.heap()->published(*block);
        const heap::Block old = std::exchange(held_[number], *block);
        if (old.bytes != 0) {
          lives_[old.units] = false;
          client.heap()->free(old.units, old.bytes, cost);
          live_blocks_ -= old.bytes;
          live_bytes_ -= kKeyBytes + size_of_[number];
        }
        live_blocks_ += block->bytes;
        live_bytes_ += kKeyBytes + size;
        size_of_[number] = static_cast<std::uint32_t>(size);
        ++(loads ? loaded_ : updates_);
      }
      co_await client.port().sleep_for(pause);
    }
  }

  [[noreturn]] void give_up(const base::Status& why) const {
    std::fprintf(stderr, "after %llu updates: %s\n", static_cast<unsigned long long>(updates_), why.message().c_str());
    std::exit(1);
  }

  // As client::Pool does.
  task::Task<void> keep_house(sim::Client& client) {
    while (!over_) {
      co_await client.heap()->maintain(client.port().now() + base::kSecond);
      co_await client.port().sleep_for(client.session().grant().tick);
    }
  }

  // Calls for each segment, or run, that is not free: somebody has it, somebody has left it, or it rests for an era.
  template <typename See>
  void walk(const See& see) {
    const base::Bytes heap = world_.region(layout::kHeap);
    for (std::uint64_t first = 0; first < world_.geometry().segments;) {
      const std::byte* at = heap.data() + first * segment_bytes_;
      const auto header = base::load<layout::SegmentHeader>(at);
      if (header.run > 0) see(header, at + sizeof header);
      first += std::max<std::uint64_t>(1, header.run);
    }
  }

  // Blocks, in segments that somebody has.
  std::uint64_t marked() {
    std::uint64_t sum = 0;
    walk([&](const layout::SegmentHeader& header, const std::byte* bitmap) {
      if (header.owner == 0) return;
      const std::uint64_t words = layout::segment_shape(header.size_class, header.run * segment_bytes_).bitmap_words;
      for (std::uint64_t word = 0; word < words; ++word) {
        sum += static_cast<std::uint64_t>(std::popcount(base::load<std::uint64_t>(bitmap + word * 8)));
      }
    });
    return sum;
  }

  void look() {
    std::uint64_t segments = 0;
    walk([&](const layout::SegmentHeader& header, const std::byte*) { segments += header.run; });
    const double taken = mib(segments * segment_bytes_);
    const double of = taken / mib(live_blocks_);
    now_.mean += taken;
    now_.mean_of += of;
    now_.most = std::max(now_.most, taken);
    now_.most_of = std::max(now_.most_of, of);
    ++now_.looks;
  }

  const Setup setup_;
  base::Random random_;
  const bench::Zipf popularity_;
  std::vector<std::uint32_t> size_of_;
  std::vector<heap::Block> held_;  // without an index, by each key
  std::vector<bool> lives_;        // a block that begins there, likewise
  std::uint64_t twice_ = 0;        // blocks that were handed out while they lived
  std::uint64_t live_blocks_ = 0, live_bytes_ = 0, segment_bytes_ = 0;
  std::uint64_t next_key_ = 0, loaded_ = 0, updates_ = 0;
  bool over_ = false;
  Sample now_;
  sim::World world_;  // events of it refer to all of the above
  bench::Tasks tasks_;
};

std::map<std::string, layout::Protocol> protocols_with_heaps() {
  std::map<std::string, layout::Protocol> names;
  for (const index::Protocol* one : protocols::all()) {
    if (layout::shape_of(one->number()).served == nullptr) names.emplace(one->name(), one->number());
  }
  return names;
}

}  // namespace
}  // namespace farpool

int main(int count, char** words) {
  using namespace farpool;
  Setup setup;
  std::uint64_t lease_ms = 1000;
  double most = 0;
  std::string svg;
  CLI::App app("The memory that a simulated pool takes for what lives in it, while values are written over.");
  app.add_option("--protocol", setup.protocol, "the pool's index protocol")
      ->required()
      ->transform(CLI::CheckedTransformer(protocols_with_heaps()));
  app.add_option("--keys", setup.keys);
  app.add_option("--least-bytes", setup.least_bytes, "the shortest value");
  app.add_option("--most-bytes", setup.most_bytes, "the longest value");
  app.add_option("--clients", setup.clients)->check(CLI::Range(1, 60));
  app.add_option("--tasks", setup.tasks, "how many tasks of each client write at the same time")
      ->check(CLI::Range(1, 15));
  app.add_option("--memory-mib", setup.memory_mib);
  app.add_option("--lease-ms", lease_ms, "a tenth of it is a tick");
  app.add_option("--skew", setup.skew, "Zipf's exponent, which says how uneven keys are used; 0: all alike");
  app.add_option("--alone", setup.alone, "updates a second of virtual time that are made without an index");
  app.add_flag("--whole", setup.whole, "chains execute in one step and a trip takes 2 us: twice as fast to run");
  app.add_option("--updates", setup.updates);
  app.add_option("--reports", setup.reports)->check(CLI::Range(1, 1000));
  app.add_option("--seed", setup.seed);
  app.add_option("--most", most, "times the blocks that live: more is an error");
  app.add_option("--svg", svg, "file to draw to");
  CLI11_PARSE(app, count, words);
  setup.lease = static_cast<base::Nanos>(lease_ms) * base::kMillisecond;

  const auto begun = std::chrono::steady_clock::now();
  Experiment experiment(setup);
  const base::Nanos from = experiment.now();
  std::printf(
      "| updates | M/s | MiB of keys and values | of their blocks | k blocks free | in limbo | marked | MiB handed "
      "out, mean | "
      "most | times the blocks, mean | most |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n");
  bench::Plot plot{.title = "Memory handed out, while values are written over",
                   .x = "million updates",
                   .y = "times the blocks that live"};
  bench::Plot::Line line{.name = "most of each span", .points = {}};
  double worst = 0;
  for (std::uint64_t report = 1; report <= setup.reports; ++report) {
    const Sample s = experiment.run_to(setup.updates / setup.reports * report);
    std::printf("| %llu | %.2f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.3f | %.3f |\n",
                static_cast<unsigned long long>(s.updates), s.rate, s.live, s.blocks, s.free, s.limbo, s.marked, s.mean,
                s.most, s.mean_of, s.most_of);
    std::fflush(stdout);
    line.points.emplace_back(static_cast<double>(s.updates) / 1e6, s.most_of);
    worst = std::max(worst, s.most_of);
  }
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  std::printf(
      "\n%.2f s of virtual time, a tick every %.0f ms; %llu frees that cannot be, %llu blocks handed out while they "
      "lived; %.0f updates a second of real time.\n",
      static_cast<double>(experiment.now() - from) / 1e9, static_cast<double>(experiment.tick()) / 1e6,
      static_cast<unsigned long long>(experiment.anomalies()), static_cast<unsigned long long>(experiment.twice()),
      static_cast<double>(setup.updates) / took);
  plot.lines.push_back(std::move(line));
  if (!svg.empty() && !bench::draw(plot, svg)) return 1;
  if (experiment.anomalies() > 0 || experiment.twice() > 0) return 1;
  if (most > 0 && worst > most) {
    std::fprintf(stderr, "the heap was %.3f times what lived, and may be %.3f times\n", worst, most);
    return 1;
  }
  return 0;
}
