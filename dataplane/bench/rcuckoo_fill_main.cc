// SPDX-License-Identifier: Apache-2.0
// How full an RCuckoo table gets, and how local its inserts are, measured on hashes alone: the client's own hashing and
// search, rows as arrays in memory, no fabric. Prints Markdown. Deterministic: the same arguments give the same
// figures.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "index/rcuckoo/path.h"

namespace farpool {
namespace {

using rcuckoo::Offset;
using rcuckoo::Path;
using rcuckoo::Places;
using rcuckoo::Sight;

constexpr std::uint64_t kEntries = 8;
constexpr std::uint64_t kRowsPerLock = 16;

struct Setup {
  std::uint64_t entries;
  Offset offset;
  bool both_roots;
  bool near;  // only entries whose rows are near each other are displaced, as the client does it
  unsigned depth;
};

// Rows of hashes, all known, as a search sees them. Zero is an empty slot.
class Table {
 public:
  Table(std::uint64_t rows, Offset offset, bool near)
      : rows_(rows), offset_(offset), near_(near), slots_(rows * kEntries) {}
  std::uint64_t rows() const { return rows_; }
  Offset offset() const { return offset_; }
  std::uint64_t& at(std::uint64_t row, std::uint64_t slot) { return slots_[row * kEntries + slot]; }

  Sight sight(std::uint64_t) const { return Sight::known; }
  int empty_slot(std::uint64_t row) const {
    for (std::uint64_t slot = 0; slot < kEntries; ++slot) {
      if (slots_[row * kEntries + slot] == 0) return static_cast<int>(slot);
    }
    return -1;
  }
  std::uint64_t alternate(std::uint64_t row, std::uint64_t slot) const {
    const std::uint64_t hash = slots_[row * kEntries + slot];
    return near_ ? rcuckoo::displaced_to(hash, row, rows_, offset_) : rcuckoo::alternate(hash, row, rows_, offset_);
  }
  bool accepts(const Path&) const { return true; }

 private:
  std::uint64_t rows_;
  Offset offset_;
  bool near_;
  std::vector<std::uint64_t> slots_;
};

// Shares of the inserts of one window of fill.
struct Window {
  std::uint64_t inserts = 0, direct = 0, span32 = 0, span256 = 0, moved = 0;
  std::uint64_t one_path = 0;   // the path's locks lie in one aligned 64-bit word
  std::uint64_t one_bytes = 0;  // ... in some 64 bits that begin at a byte
  std::uint64_t one_ours = 0;   // one aligned word also with both rows of the new key
  std::uint64_t over_four = 0;  // more lock words than an operation slot names
  void operator+=(const Window& w) {
    inserts += w.inserts, direct += w.direct, span32 += w.span32, span256 += w.span256, moved += w.moved;
    one_path += w.one_path, one_bytes += w.one_bytes, one_ours += w.one_ours, over_four += w.over_four;
  }
};

struct Run {
  double fill = 0;
  Window all, late;  // late: from 85 percent on
};

Run fill(const Setup& setup, std::uint64_t seed) {
  Table table(setup.entries / kEntries, setup.offset, setup.near);
  base::Random random(seed);
  rcuckoo::PathSearch search;
  Run run;
  Path path;
  for (std::uint64_t inserted = 0; inserted < setup.entries; ++inserted) {
    const std::uint64_t hash = random.next() | 1;  // never empty
    const Places places = rcuckoo::locate(hash, table.rows(), setup.offset);
    const std::array<std::uint64_t, 2> roots = {places.first, places.second};
    if (!search.find(table, kEntries, std::span(roots).first(setup.both_roots ? 2 : 1), setup.depth, path)) break;
    for (std::size_t i = path.length - 1; i > 0; --i) {
      table.at(path.step[i].row, path.step[i].slot) = table.at(path.step[i - 1].row, path.step[i - 1].slot);
    }
    table.at(path.step[0].row, path.step[0].slot) = hash;

    std::uint64_t low = ~0ull, high = 0;
    std::set<std::uint64_t> words;
    for (const auto& step : path.steps()) {
      low = std::min(low, step.row);
      high = std::max(high, step.row);
      words.insert(step.row / kRowsPerLock / layout::kLocksPerWord);
    }
    Window one;
    one.inserts = 1;
    one.direct = path.length == 1;
    one.span32 = high - low <= 32;
    one.span256 = high - low <= 256;
    one.moved = path.length - 1;
    one.one_path = words.size() == 1;
    one.one_bytes = high / kRowsPerLock - low / kRowsPerLock / 8 * 8 < 64;
    words.insert(places.first / kRowsPerLock / layout::kLocksPerWord);
    words.insert(places.second / kRowsPerLock / layout::kLocksPerWord);
    one.one_ours = words.size() == 1;
    one.over_four = words.size() > layout::OperationSlot::kLockWords;
    run.all += one;
    if (inserted >= setup.entries / 100 * 85) run.late += one;
  }
  run.fill = static_cast<double>(run.all.inserts) / static_cast<double>(setup.entries);
  return run;
}

double percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string shares(const Window& w) {
  if (w.inserts == 0) return "- | - | - | - | - | - | - | -";
  char text[256];
  std::snprintf(text, sizeof text, "%.1f | %.1f | %.1f | %.2f | %.2f | %.2f | %.2f | %llu",
                percent(w.direct, w.inserts), percent(w.span32, w.inserts), percent(w.span256, w.inserts),
                w.inserts == 0 ? 0.0 : static_cast<double>(w.moved) / static_cast<double>(w.inserts),
                percent(w.one_path, w.inserts), percent(w.one_bytes, w.inserts), percent(w.one_ours, w.inserts),
                static_cast<unsigned long long>(w.over_four));
  return text;
}

void print_distances() {
  std::printf(
      "| offset | same row | <= 1 | <= 5 | <= 16 | <= 64 | <= 256 | <= 1024 |\n|---|---|---|---|---|---|---|---|\n");
  constexpr std::uint64_t kKeys = 1'000'000, kRows = 1'250'000;
  constexpr std::uint64_t kBounds[] = {0, 1, 5, 16, 64, 256, 1024};
  for (const Offset offset : {Offset::printed, Offset::plus_one}) {
    base::Random random(1);
    std::uint64_t within[std::size(kBounds)] = {};
    for (std::uint64_t i = 0; i < kKeys; ++i) {
      const Places places = rcuckoo::locate(random.next(), kRows, offset);
      const std::uint64_t distance = (places.second + kRows - places.first) % kRows;
      for (std::size_t b = 0; b < std::size(kBounds); ++b) within[b] += distance <= kBounds[b] ? 1u : 0u;
    }
    std::printf("| %s |", offset == Offset::printed ? "as printed" : "plus one");
    for (const std::uint64_t count : within) std::printf(" %.1f |", percent(count, kKeys));
    std::printf("\n");
  }
}

}  // namespace
}  // namespace farpool

int main(int argc, char** argv) {
  using namespace farpool;
  CLI::App app("Fills RCuckoo tables in memory and prints how full and how local");
  std::vector<std::uint64_t> sizes = {100'000, 800'000};
  std::uint64_t runs = 3;
  std::vector<unsigned> depths = {5};
  app.add_option("--entries", sizes, "Table sizes in entries");
  app.add_option("--runs", runs, "Runs of each, with different keys; figures are means")->check(CLI::PositiveNumber);
  app.add_option("--depth", depths, "Entries an insert may displace")->check(CLI::Range(1, 12));
  bool distances = false;
  app.add_flag("--distances", distances, "Prints how far apart the two rows of a key are, and fills nothing");
  CLI11_PARSE(app, argc, argv);

  if (distances) {
    print_distances();
    return 0;
  }
  std::printf(
      "| entries | offset | roots | depth | fill %% | window | no cuckoo %% | span <= 32 %% | <= 256 %% | moved per "
      "insert | "
      "path in one lock word %% | ... in 64 bits from a byte %% | path and both rows in one word %% | more than 4 "
      "words |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const std::uint64_t entries : sizes) {
    for (const unsigned depth : depths) {
      for (const auto offset : {rcuckoo::Offset::printed, rcuckoo::Offset::plus_one}) {
        for (const auto& [both, near] : {std::pair{false, false}, std::pair{true, false}, std::pair{true, true}}) {
          if (near && offset == rcuckoo::Offset::printed) continue;
          double full = 0, least = 1;
          Window all, late;
          for (std::uint64_t i = 0; i < runs; ++i) {
            const Run run = fill({entries / kEntries * kEntries, offset, both, near, depth}, 1 + i);
            full += run.fill;
            least = std::min(least, run.fill);
            all += run.all;
            late += run.late;
          }
          const std::string name = std::to_string(entries) +
                                   (offset == rcuckoo::Offset::printed ? " | as printed | " : " | plus one | ") +
                                   (both ? "L1, L2" : "L1") + (near ? ", near" : "") + " | " + std::to_string(depth);
          char fill_text[64];
          std::snprintf(fill_text, sizeof fill_text, "%.1f (least %.1f)", 100 * full / static_cast<double>(runs),
                        100 * least);
          std::printf("| %s | %s | all | %s |\n", name.c_str(), fill_text, shares(all).c_str());
          std::printf("| %s | | late | %s |\n", name.c_str(), shares(late).c_str());
          std::fflush(stdout);
        }
      }
    }
  }
  return 0;
}
