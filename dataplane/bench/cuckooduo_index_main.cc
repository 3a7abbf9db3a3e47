// SPDX-License-Identifier: Apache-2.0
// What CuckooDuo's index takes and gives, without a fabric: what inserts cost by load, how full a table gets, bits a key,
// and the paper's theorems beside what is counted. Index and planner are those of a table's owner; of the vault there are
// hashes alone. Prints Markdown. Deterministic.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "index/cuckooduo/filled.h"
#include "index/cuckooduo/shape.h"
#include "index/cuckooduo/theorems.h"

namespace farpool {
namespace {

using cuckooduo::Filled;
using cuckooduo::Shape;

Shape shape_of(std::uint64_t slots, std::uint32_t bucket, std::uint32_t path, std::uint32_t bits,
               std::uint32_t second = 2) {
  return {.buckets = static_cast<std::uint32_t>(slots / (2 * bucket)),
          .slots = bucket,
          .second = second,
          .print_bits = bits,
          .path = path};
}

unsigned long long number(std::uint64_t value) { return value; }

void print_inserts(std::uint64_t slots) {
  std::printf("| load %% | trips an insert | READs | WRITEs | accesses | pairs written | inserts of one WRITE %% |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  Filled table(shape_of(slots, 8, 2, 16), 1);
  for (int percent = 10; percent <= 95; percent += percent < 90 ? 10 : 5) {
    const Filled::Cost before = table.cost();
    table.fill_to(percent / 100.0);
    const Filled::Cost cost = table.cost() - before;
    const auto each = [&cost](std::uint64_t count) {
      return static_cast<double>(count) / static_cast<double>(cost.inserts);
    };
    std::printf("| %d to %d | %.3f | %.3f | %.3f | %.3f | %.3f | %.1f |\n", percent - (percent > 90 ? 5 : 10), percent,
                each(cost.trips), each(cost.reads), each(cost.writes), each(cost.reads + cost.writes), each(cost.moved),
                100 * each(cost.of_one_write));
  }
}

void print_failures(std::uint64_t slots, std::uint64_t runs) {
  std::printf(
      "| slots | slots a bucket | path | load %% at the first key that goes to the stash, mean | least | most | at the "
      "first that finds no place | least | most |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  struct Loads {
    double sum = 0, least = 1, most = 0;
    void add(double load) {
      sum += load;
      least = std::min(least, load);
      most = std::max(most, load);
    }
  };
  for (const std::uint32_t bucket : {4u, 8u}) {
    for (std::uint32_t path = 1; path <= 3; ++path) {
      Loads first, last;
      for (std::uint64_t run = 1; run <= runs; ++run) {
        Filled table(shape_of(slots, bucket, path, 16), run, true);
        while (table.index().stashed() == 0) table.insert();
        first.add(table.load());
        last.add(table.fill());
      }
      const auto mean = [runs](const Loads& loads) { return 100 * loads.sum / static_cast<double>(runs); };
      std::printf("| %llu | %u | %u | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f |\n", number(slots), bucket, path,
                  mean(first), 100 * first.least, 100 * first.most, mean(last), 100 * last.least, 100 * last.most);
    }
  }
}

void print_sizes(std::uint64_t slots) {
  std::printf(
      "| bits a print | load %% when a key finds no place | index bytes | bits a key | with one print a key: load %% | "
      "bits "
      "a key |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (std::uint32_t bits = 10; bits <= 16; ++bits) {
    const auto fill = [&](std::uint32_t second) {
      Filled table(shape_of(slots, 8, 2, bits, second), bits, true);
      table.fill();
      struct {
        double load, bits_a_key;
        std::uint64_t bytes;
      } filled = {100 * table.load(),
                  static_cast<double>(table.index().bytes()) * 8 / static_cast<double>(table.index().keys()),
                  table.index().bytes()};
      return filled;
    };
    const auto two = fill(2), one = fill(0);
    std::printf("| %u | %.1f | %llu | %.1f | %.1f | %.1f |\n", bits, two.load, number(two.bytes), two.bits_a_key,
                one.load, one.bits_a_key);
  }
}

// A table that keys are counted in.
struct Trial {
  std::uint32_t buckets, slots, bits, path;
  double load;
};

void print_trials(std::span<const Trial> trials);

void print_theorems() {
  const Shape example{.buckets = 3'750'000, .slots = 4};
  std::printf("| theorem | table | expected | counted |\n|---|---|---|---|\n");
  std::printf("| IV.1 | the paper's example: m = 3,750,000, d = 4, f = 16, load 0.95 | %.1f | |\n",
              cuckooduo::collisions_of_one_print(example, 0.95));
  std::printf("| IV.2 | the same | at most %.3f | |\n", cuckooduo::collisions_of_two_prints(example));
  constexpr Trial kTrials[] = {
      {375'000, 4, 16, 2, 0.8}, {20'000, 8, 12, 2, 0.8}, {20'000, 8, 10, 2, 0.5}, {100'000, 4, 16, 1, 0.85}};
  print_trials(kTrials);
}

// Tables that are as full as the paper's, with short prints.
void print_full_theorems() {
  constexpr Trial kTrials[] = {{100'000, 8, 12, 2, 0.9}, {100'000, 8, 10, 2, 0.9}};
  std::printf("| theorem | table | expected | counted |\n|---|---|---|---|\n");
  print_trials(kTrials);
}

void print_trials(std::span<const Trial> trials) {
  for (const Trial& one : trials) {
    Shape shape{.buckets = one.buckets, .slots = one.slots, .second = 0, .print_bits = one.bits, .path = one.path};
    char name[100];
    std::snprintf(name, sizeof name, "m = %u, d = %u, f = %u, L = %u, load %.2f", one.buckets, one.slots, one.bits,
                  one.path, one.load);
    Filled single(shape, 1);
    const double without = single.fill_to(one.load);
    std::printf("| IV.1 | %s | %.1f | %llu |\n", name, cuckooduo::collisions_of_one_print(shape, one.load),
                number(single.collided()));
    std::printf("| IV.3 | %s | %.1f | %llu |\n", name, without, number(single.without_a_path()));
    shape.second = 2;
    Filled dual(shape, 1);
    dual.fill_to(one.load);
    std::printf("| IV.2 | %s | at most %.3f | %llu of %llu collisions |\n", name,
                cuckooduo::collisions_of_two_prints(shape), number(dual.unresolved()), number(dual.collided()));
  }
}

}  // namespace
}  // namespace farpool

int main(int count, char** words) {
  std::string what;
  std::uint64_t slots = 1'000'000, runs = 3;
  CLI::App app("Fills CuckooDuo's index with random keys, and says what that took.");
  app.add_option("what", what, "inserts, failures, sizes, theorems or full-theorems")
      ->required()
      ->check(CLI::IsMember({"inserts", "failures", "sizes", "theorems", "full-theorems"}));
  app.add_option("--slots", slots, "how many slots each table has")->check(CLI::Range(1000, 100'000'000));
  app.add_option("--runs", runs, "how often each table is filled until an insert fails")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, count, words);
  if (what == "inserts") farpool::print_inserts(slots);
  if (what == "failures") farpool::print_failures(slots, runs);
  if (what == "sizes") farpool::print_sizes(slots);
  if (what == "theorems") farpool::print_theorems();
  if (what == "full-theorems") farpool::print_full_theorems();
  return 0;
}
