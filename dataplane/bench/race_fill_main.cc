// SPDX-License-Identifier: Apache-2.0
// How full a RACE subtable gets before an insert finds no slot, measured on hashes alone: the client's own hashing and
// choice of a slot, groups as bytes in memory, no fabric. Prints Markdown. Deterministic.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "index/race/layout.h"
#include "index/race/locate.h"

namespace farpool {
namespace {

using race::CombinedView;
using race::Place;

struct Run {
  double fill = 0;    // percent, when the first insert failed
  double shared = 0;  // percent of lookups of a key that is there that also meet another key's print
};

// Inserts random keys until one fails.
Run fill_up(std::uint64_t groups, std::uint64_t seed) {
  std::vector<std::byte> table(groups * race::kGroupBytes, std::byte{0});
  base::Random random(seed);
  const auto view = [&table](const Place& place) {
    return CombinedView(base::Bytes(table).subspan(place.offset(), race::kCombinedBytes), place.side);
  };
  std::vector<std::uint64_t> keys;
  for (;;) {
    const std::uint64_t hash = random.next();
    const race::Places places = race::locate(hash, groups);
    const auto choice = race::choose({view(places[0]), view(places[1])});
    if (!choice) break;
    const race::Slot slot = race::Slot::of(race::print_of(hash), keys.size(), 64, race::Slot::State::committed);
    base::store(table.data() + places[choice->place].slot_offset(choice->index), slot.word());
    keys.push_back(hash);
  }
  std::uint64_t shared = 0;
  for (const std::uint64_t hash : keys) {
    std::uint64_t alike = 0;
    for (const Place& place : race::locate(hash, groups)) {
      for (std::uint64_t i = 0; i < race::kCombinedSlots; ++i) {
        const race::Slot slot = view(place).slot(i);
        alike += !slot.empty() && slot.print() == race::print_of(hash) ? 1 : 0;
      }
    }
    shared += alike > 1 ? 1 : 0;
  }
  const auto percent = [](std::uint64_t part, std::uint64_t whole) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  return {percent(keys.size(), groups * race::kGroupSlots), percent(shared, keys.size())};
}

}  // namespace
}  // namespace farpool

int main(int count, char** words) {
  std::vector<std::uint64_t> sizes = {5'000, 50'000, 500'000};
  std::uint64_t runs = 5;
  CLI::App app("Fills RACE subtables of random keys until an insert fails.");
  app.add_option("--groups", sizes, "how many groups each table has");
  app.add_option("--runs", runs, "how often each size is tried")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, count, words);
  std::printf("| groups | slots | fill %%, mean | least | most | lookups that meet another key's print %% |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const std::uint64_t groups : sizes) {
    double sum = 0, least = 100, most = 0, shared = 0;
    for (std::uint64_t run = 1; run <= runs; ++run) {
      const farpool::Run one = farpool::fill_up(groups, run);
      sum += one.fill;
      shared += one.shared;
      least = std::min(least, one.fill);
      most = std::max(most, one.fill);
    }
    const auto each = static_cast<double>(runs);
    std::printf("| %llu | %llu | %.1f | %.1f | %.1f | %.1f |\n", static_cast<unsigned long long>(groups),
                static_cast<unsigned long long>(groups * farpool::race::kGroupSlots), sum / each, least, most,
                shared / each);
  }
  return 0;
}
