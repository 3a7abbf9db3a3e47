// SPDX-License-Identifier: Apache-2.0
// What each operation of RACE costs on the simulated wire with nobody in its way: the client as it is, its own counts,
// and the time that the model of a NIC takes for them. Beside it clients that keep no copy of the directory: they READ
// a key's entry before each operation (RA-10). Prints Markdown.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "directory/directory.h"
#include "fabric/cost.h"
#include "fabric/sim/time_model.h"
#include "index/edit.h"
#include "index/table.h"
#include "layout/directory.h"
#include "layout/regions.h"
#include "sim/world.h"

namespace farpool {
namespace {

constexpr base::Nanos kPatience = 60 * base::kSecond;
constexpr std::uint64_t kOf = 200;  // operations of each kind

enum class What { insert, lookup, lookup_absent, update, put, modify, remove, update_absent };

// The paper's figures: trips, with the directory cached; messages and bytes as its text implies and as they are charged
// here, with keys of 16 bytes and values of 32; percent of the latency that the cache saves.
struct Line {
  What what;
  const char* name;
  const char* trips;
  const char* messages;
  const char* bytes;
  const char* cached;
};
constexpr std::array<Line, 8> kLines{{{What::insert, "insert", "3", "6", "1412", "23"},
                                      {What::lookup, "lookup", "2", "3", "728", "32"},
                                      {What::lookup_absent, "lookup, key absent", "-", "-", "-", "-"},
                                      {What::update, "update", "3", "5", "1084", "23"},
                                      {What::put, "put, key present", "-", "-", "-", "-"},
                                      {What::modify, "modify", "-", "-", "-", "-"},
                                      {What::update_absent, "update or remove, key absent", "-", "-", "-", "-"},
                                      {What::remove, "remove", "3", "4", "884", "24"}}};

// Of 16 bytes.
std::string key_of(const char* kind, std::uint64_t number) {
  const std::string digits = std::to_string(number);
  return kind + std::string(15 - digits.size(), '0') + digits;
}

class Keep final : public index::Editor {
 public:
  explicit Keep(const std::string& value) : value_(value) {}
  index::Edit edit(std::optional<std::string_view>) override { return index::Edit::put(value_); }

 private:
  const std::string& value_;
};

task::Task<void> act(index::Table& table, What what, std::string key, const std::string& value, base::Nanos deadline,
                     fabric::Cost& cost) {
  Keep keep(value);
  switch (what) {
    case What::insert: {
      const auto done = co_await table.insert(key, value, deadline, cost);
      FARPOOL_CHECK(done.ok() && *done);
      break;
    }
    case What::lookup:
    case What::lookup_absent: {
      const auto found = co_await table.lookup(key, deadline, cost);
      FARPOOL_CHECK(found.ok() && found->has_value() == (what == What::lookup));
      break;
    }
    case What::update:
    case What::update_absent: {
      const auto done = co_await table.update(key, value, deadline, cost);
      FARPOOL_CHECK(done.ok() && *done == (what == What::update));
      break;
    }
    case What::put:
      FARPOOL_CHECK((co_await table.put(key, value, deadline, cost)).ok());
      break;
    case What::modify:
      FARPOOL_CHECK((co_await table.modify(key, keep, deadline, cost)).ok());
      break;
    case What::remove: {
      const auto done = co_await table.remove(key, deadline, cost);
      FARPOOL_CHECK(done.ok() && *done);
      break;
    }
  }
}

// Operations of each kind on a table that is so full.
class Bench {
 public:
  explicit Bench(double fill) : world_(options()), client_(world_.connect("bench")) {
    const auto slots = static_cast<double>(world_.geometry().entries());
    const auto keys = static_cast<std::uint64_t>(fill * slots);
    const std::string value = "filling";
    fabric::Cost cost;
    for (std::uint64_t i = 0; i < keys; ++i) run(What::insert, key_of("f", i), value, cost);
    fill_ = 100.0 * static_cast<double>(keys) / slots;
  }

  void table(std::size_t value_bytes, std::uint64_t of) {
    const std::string value(value_bytes, 'v');
    warm(value);
    for (const Line& line : kLines) {
      const Sum sum = measure(line, value, of);
      const bool as_paper = value_bytes == 32;
      std::printf("| %.0f | %zu | %s | %s | %.2f | %llu | %s | %.2f | %s | %.0f | %.2f |\n", fill_, value_bytes,
                  line.name, line.trips, mean(sum.cost.trips, of), static_cast<unsigned long long>(sum.most),
                  as_paper ? line.messages : "-", mean(sum.cost.messages, of), as_paper ? line.bytes : "-",
                  mean(sum.cost.bytes, of), mean(sum.time, of) / 1e3);
    }
  }

  // RA-10.
  void ablation(std::size_t value_bytes, std::uint64_t of) {
    const std::string value(value_bytes, 'v');
    warm(value);
    for (const Line& line : kLines) measure(line, value, of);  // marks are set before, for both
    std::array<Sum, kLines.size()> with, without;
    for (std::size_t i = 0; i < kLines.size(); ++i) with[i] = measure(kLines[i], value, of);
    entry_first_ = true;
    for (std::size_t i = 0; i < kLines.size(); ++i) without[i] = measure(kLines[i], value, of);
    entry_first_ = false;
    for (std::size_t i = 0; i < kLines.size(); ++i) {
      const double cached = mean(with[i].time, of), read = mean(without[i].time, of);
      std::printf("| %s | %.2f | %.2f | %.2f | %.2f | %.0f | %s |\n", kLines[i].name, mean(with[i].cost.trips, of),
                  mean(without[i].cost.trips, of), cached / 1e3, read / 1e3, 100 * (1 - cached / read),
                  kLines[i].cached);
    }
  }

 private:
  struct Sum {
    fabric::Cost cost;
    std::uint64_t most = 0;  // trips
    std::uint64_t time = 0;  // nanoseconds
  };

  static sim::WorldOptions options() {
    sim::WorldOptions options;
    options.wire.straggle = 0;
    options.wire.timing = {.nic = &fabric::sim::kConnectX5};
    options.geometry = {.memory_bytes = 48 << 20,
                        .table_percent = 1,
                        .max_sessions = 4,
                        .slots_per_session = 4,
                        .protocol = layout::Protocol::race};
    return options;
  }
  static double mean(std::uint64_t sum, std::uint64_t of) { return static_cast<double>(sum) / static_cast<double>(of); }

  // Memory is had before.
  void warm(const std::string& value) {
    fabric::Cost cost;
    for (int i = 0; i < 3; ++i) {
      run(What::insert, "warm", value, cost);
      run(What::remove, "warm", value, cost);
    }
  }

  Sum measure(const Line& line, const std::string& value, std::uint64_t of) {
    Sum sum;
    for (std::uint64_t i = 0; i < of; ++i) {
      const bool absent = line.what == What::lookup_absent || line.what == What::update_absent;
      fabric::Cost cost;
      const std::string key = key_of(absent ? "a" : "k", i);
      sum.time += static_cast<std::uint64_t>(run(line.what, key, value, cost));
      sum.cost += cost;
      sum.most = std::max<std::uint64_t>(sum.most, cost.trips);
    }
    return sum;
  }

  // How long it took: until its caller was told, whatever is still under way behind its back.
  base::Nanos run(What what, const std::string& key, const std::string& value, fabric::Cost& cost) {
    base::Nanos took = 0;
    FARPOOL_CHECK(world_.run(client_, timed(what, key, value, took, cost)));
    return took;
  }
  task::Task<void> timed(What what, const std::string& key, const std::string& value, base::Nanos& took,
                         fabric::Cost& cost) {
    const base::Nanos begun = client_.port().now(), deadline = begun + kPatience;
    if (entry_first_) {
      const auto hash = directory::hash_of(world_.pool_secret(), std::as_bytes(std::span(key)));
      const directory::View view(world_.region(layout::kDirectory), world_.geometry().tables);
      fabric::Buffer buffer = client_.port().buffer(sizeof(std::uint64_t));
      const std::uint64_t entry = layout::entry_offset(directory::low_bits(hash, view.depth()));
      const std::array chain{fabric::Op::read({layout::kDirectory, entry}, buffer.span())};
      FARPOOL_CHECK((co_await client_.session().post(chain, deadline, cost)).fate == fabric::Fate::done);
    }
    co_await act(client_.table(), what, key, value, deadline, cost);
    took = client_.port().now() - begun;
  }

  sim::World world_;
  sim::Client& client_;
  double fill_ = 0;
  bool entry_first_ = false;
};

}  // namespace
}  // namespace farpool

int main() {
  std::printf(
      "| fill %% | value bytes | operation | trips in the paper | trips, mean | most | messages in the paper | "
      "messages, mean | bytes in the paper | bytes, mean | µs, mean |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const double fill : {0.0, 0.9}) {
    farpool::Bench bench(fill);
    bench.table(32, farpool::kOf);
    if (fill == 0.0) bench.table(1 << 20, 2);
  }
  std::printf(
      "\nRA-10, values of 32 bytes, an empty table:\n\n"
      "| operation | trips | without the cache | µs | without the cache | saved %% | in the paper %% |\n"
      "|---|---|---|---|---|---|---|\n");
  farpool::Bench(0).ablation(32, farpool::kOf);
  return 0;
}
