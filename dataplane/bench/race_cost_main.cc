// SPDX-License-Identifier: Apache-2.0
// What each operation of RACE costs on the simulated wire with nobody in its way: the client as it is, its own counts.
// Prints Markdown.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "fabric/cost.h"
#include "index/edit.h"
#include "index/table.h"
#include "sim/world.h"

namespace farpool {
namespace {

constexpr base::Nanos kPatience = 60 * base::kSecond;
constexpr std::uint64_t kOf = 200;  // operations of each kind

enum class What { insert, lookup, lookup_absent, update, put, modify, remove, update_absent };

struct Line {
  What what;
  const char* name;
  const char* paper;  // trips, with the directory cached
};
constexpr std::array<Line, 8> kLines{{{What::insert, "insert", "3"},
                                      {What::lookup, "lookup", "2"},
                                      {What::lookup_absent, "lookup, key absent", "-"},
                                      {What::update, "update", "3"},
                                      {What::put, "put, key present", "-"},
                                      {What::modify, "modify", "-"},
                                      {What::update_absent, "update or remove, key absent", "-"},
                                      {What::remove, "remove", "3"}}};

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
    for (std::uint64_t i = 0; i < keys; ++i) run(What::insert, "f" + std::to_string(i), value, cost);
    fill_ = 100.0 * static_cast<double>(keys) / slots;
  }

  void table(std::size_t value_bytes, std::uint64_t of) {
    const std::string value(value_bytes, 'v');
    // Memory is had before.
    fabric::Cost warm;
    for (int i = 0; i < 3; ++i) {
      run(What::insert, "warm", value, warm);
      run(What::remove, "warm", value, warm);
    }
    for (const Line& line : kLines) {
      std::uint64_t trips = 0, messages = 0, bytes = 0, most = 0;
      for (std::uint64_t i = 0; i < of; ++i) {
        const bool absent = line.what == What::lookup_absent || line.what == What::update_absent;
        fabric::Cost cost;
        run(line.what, (absent ? "absent" : "key") + std::to_string(i), value, cost);
        trips += cost.trips, messages += cost.messages, bytes += cost.bytes;
        most = std::max<std::uint64_t>(most, cost.trips);
      }
      const auto mean = [of](std::uint64_t sum) { return static_cast<double>(sum) / static_cast<double>(of); };
      std::printf("| %.0f | %zu | %s | %s | %.2f | %llu | %.2f | %.0f |\n", fill_, value_bytes, line.name, line.paper,
                  mean(trips), static_cast<unsigned long long>(most), mean(messages), mean(bytes));
    }
  }

 private:
  static sim::WorldOptions options() {
    sim::WorldOptions options;
    options.wire.straggle = 0;
    options.geometry = {.memory_bytes = 48 << 20,
                        .table_percent = 1,
                        .max_sessions = 4,
                        .slots_per_session = 4,
                        .protocol = layout::Protocol::race};
    return options;
  }
  void run(What what, const std::string& key, const std::string& value, fabric::Cost& cost) {
    FARPOOL_CHECK(world_.run(client_, act(client_.table(), what, key, value, client_.port().now() + kPatience, cost)));
  }

  sim::World world_;
  sim::Client& client_;
  double fill_ = 0;
};

}  // namespace
}  // namespace farpool

int main() {
  std::printf(
      "| fill %% | value bytes | operation | trips in the paper | trips, mean | most | messages, mean | bytes, mean |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const double fill : {0.0, 0.85}) {
    farpool::Bench bench(fill);
    bench.table(32, farpool::kOf);
    if (fill == 0.0) bench.table(1 << 20, 2);
  }
  return 0;
}
