// SPDX-License-Identifier: Apache-2.0
// What each RCuckoo operation costs in trips, messages and bytes: run over the simulated wire and counted, beside the
// arithmetic of index/rcuckoo/facts.h for the paper's plain form. Prints Markdown; exits with 1 if a count differs from
// the arithmetic.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "index/rcuckoo/facts.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "layout/extent.h"
#include "sim/world.h"

namespace farpool {
namespace {

namespace facts = rcuckoo::facts;
using facts::Figures;
using facts::Rows;

constexpr base::Nanos kPatience = 5 * base::kSecond;

class Keep final : public index::Editor {
 public:
  index::Edit edit(std::optional<std::string_view>) override { return {.kind = index::Edit::Kind::put, .value = "v"}; }
};

enum class What { lookup, insert, update, remove, put, modify };

task::Task<void> act(index::Table& table, What what, std::string key, std::string value, base::Nanos deadline,
                     fabric::Cost& cost) {
  Keep keep;
  switch (what) {
    case What::lookup:
      (void)co_await table.lookup(key, deadline, cost);
      break;
    case What::insert:
      (void)co_await table.insert(key, value, deadline, cost);
      break;
    case What::update:
      (void)co_await table.update(key, value, deadline, cost);
      break;
    case What::remove:
      (void)co_await table.remove(key, deadline, cost);
      break;
    case What::put:
      (void)co_await table.put(key, value, deadline, cost);
      break;
    case What::modify:
      (void)co_await table.modify(key, keep, deadline, cost);
      break;
  }
}

// The next operation begins in another turn: in the same one it saves the clear of the slot before it.
task::Task<void> turn_over(fabric::Port& port) { co_await port.sleep_for(1); }

class Bench {
 public:
  Bench() : world_(options()), client_(world_.connect("bench")) {
    for (const std::size_t bytes : {30u, 200u}) count(What::put, "warm", std::string(bytes, 'w'));
    count(What::remove, "warm", "");
  }

  Figures count(What what, const std::string& key, const std::string& value = "v") {
    fabric::Cost cost;
    world_.run(client_, act(client_.table(), what, key, value, client_.port().now() + kPatience, cost));
    world_.run(client_, turn_over(client_.port()));
    return {cost.trips, cost.messages, cost.bytes};
  }

  // A new key, with both rows under one lock, and neighbours or not.
  std::string key(Rows rows) {
    const layout::Geometry& g = world_.geometry();
    for (;;) {
      const std::string name = "k" + std::to_string(next_++);
      const auto p =
          rcuckoo::locate(base::keyed_hash(world_.table_seed(), base::bytes_of(std::string_view(name))), g.rows);
      const bool neighbours = std::max(p.first, p.second) - std::min(p.first, p.second) == 1;
      const bool one_lock = rcuckoo::lock_of(g, p.first) == rcuckoo::lock_of(g, p.second);
      if (one_lock && neighbours == (rows == Rows::adjacent)) return name;
    }
  }

  void line(const char* operation, const char* where, std::optional<Figures> paper, Figures plain, Figures arithmetic,
            Figures counted) {
    const auto text = [](std::optional<Figures> f) {
      return f ? std::to_string(f->trips) + " / " + std::to_string(f->messages) + " / " + std::to_string(f->bytes)
               : "-";
    };
    const bool same = arithmetic == counted;
    agrees_ &= same;
    std::printf("| %s | %s | %s | %s | %s%s |\n", operation, where, text(paper).c_str(), text(plain).c_str(),
                text(counted).c_str(), same ? "" : (" but by arithmetic " + text(arithmetic)).c_str());
  }
  bool agrees() const { return agrees_; }
  facts::Shape shape(bool slots) const {
    return {world_.geometry().row_bytes(), world_.geometry().rows_per_lock, slots};
  }

 private:
  static sim::WorldOptions options() {
    sim::WorldOptions options;
    options.wire.straggle = 0;
    options.geometry = {.memory_bytes = 32 << 20, .table_percent = 20, .max_sessions = 4, .slots_per_session = 4};
    return options;
  }
  sim::World world_;
  sim::Client& client_;
  std::uint64_t next_ = 0;
  bool agrees_ = true;
};

}  // namespace
}  // namespace farpool

int main() {
  using namespace farpool;
  Bench bench;
  const auto plain = bench.shape(false), ours = bench.shape(true);
  std::printf(
      "| operation | rows | the paper's form, 73-byte rows | the same with our 144-byte rows | counted, with operation "
      "slots |\n"
      "|---|---|---|---|---|\n");
  for (const Rows rows : {Rows::adjacent, Rows::apart}) {
    const char* where = rows == Rows::adjacent ? "adjacent" : "apart";
    const std::string key = bench.key(rows), large = bench.key(rows), absent = bench.key(rows);
    const auto extent = [&large](std::uint64_t value) { return layout::extent_bytes(large.size(), value); };
    const auto units = [](std::uint64_t bytes) { return base::round_up(bytes, 64); };
    using facts::kPaper;
    // The client's first key in a stretch of rows sets the mark of the stretch.
    const Figures mark{0, 1, facts::kFetchAdd};
    bench.line("insert, no cuckoo", where, facts::insert(kPaper, 1, 1, 1), facts::insert(plain, 1, 1, 1),
               facts::change(ours, rows) + mark, bench.count(What::insert, key));
    bench.line("lookup", where, facts::lookup_hit(kPaper, rows), facts::lookup_hit(plain, rows),
               facts::lookup_hit(ours, rows), bench.count(What::lookup, key));
    bench.line("lookup, key absent", where, facts::lookup_miss(kPaper, rows), facts::lookup_miss(plain, rows),
               facts::lookup_miss(ours, rows), bench.count(What::lookup, absent));
    bench.line("update", where, facts::change(kPaper, rows), facts::change(plain, rows), facts::change(ours, rows),
               bench.count(What::update, key));
    bench.line("put, key present", where, std::nullopt, facts::change(plain, rows), facts::change(ours, rows),
               bench.count(What::put, key));
    bench.line("modify", where, std::nullopt, facts::change(plain, rows), facts::change(ours, rows),
               bench.count(What::modify, key));
    bench.line("remove", where, facts::change(kPaper, rows), facts::change(plain, rows), facts::change(ours, rows),
               bench.count(What::remove, key));
    bench.line("put, key absent", where, std::nullopt, facts::change(plain, rows), facts::change(ours, rows),
               bench.count(What::put, key));
    bench.line("update or remove, key absent", where, facts::change_nothing(kPaper, rows),
               facts::change_nothing(plain, rows), facts::change_nothing(ours, rows),
               bench.count(What::update, absent));
    const Figures with_extent{0, 1, facts::write(extent(30))};
    bench.line("insert, value of 30 bytes", where, std::nullopt, facts::insert(plain, 1, 1, 1) + with_extent,
               facts::change(ours, rows) + with_extent + mark, bench.count(What::insert, large, std::string(30, 'v')));
    bench.line("lookup of it", where, std::nullopt, facts::lookup_hit(plain, rows, units(extent(30))),
               facts::lookup_hit(ours, rows, units(extent(30))), bench.count(What::lookup, large));
    bench.line("update of it, to 200 bytes", where, std::nullopt,
               facts::change_extent(plain, rows, large.size(), units(extent(30)), extent(200), true),
               facts::change_extent(ours, rows, large.size(), units(extent(30)), extent(200), true),
               bench.count(What::update, large, std::string(200, 'v')));
    bench.line("remove of it", where, std::nullopt,
               facts::change_extent(plain, rows, large.size(), units(extent(200)), 0, true),
               facts::change_extent(ours, rows, large.size(), units(extent(200)), 0, true),
               bench.count(What::remove, large));
  }
  return bench.agrees() ? 0 : 1;
}
