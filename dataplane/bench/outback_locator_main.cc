// SPDX-License-Identifier: Apache-2.0
// What Outback's locator takes and gives, without a fabric: its size beside the paper's formula, the time of a build on
// one core, buckets without a seed, and how full a table gets before keys overflow. Each key is looked up after each
// build: it must have a slot of its own. Prints Markdown. All but times and the last table's last columns is
// deterministic.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"
#include "index/outback/build.h"
#include "index/outback/locator.h"

namespace farpool {
namespace {

using outback::Builder;
using outback::Locator;
using outback::LocatorShape;
using outback::Spot;

constexpr base::HashSecret kSecret{0x6a09e667f3bcc908ull, 0xbb67ae8584caa73bull};
constexpr std::uint64_t kBatch = 4096;

// Processor time of this thread: the machine may have other things to do.
double seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Keys of eight bytes: the numbers from 0 on.
std::vector<std::uint64_t> hashes_of(std::uint64_t first, std::uint64_t count, std::uint64_t salt) {
  std::vector<std::uint64_t> hashes(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t key = first + i;
    hashes[i] = outback::hash_of(kSecret, salt, base::bytes_of(key));
  }
  return hashes;
}

template <class Use>
void for_each_batch(std::uint64_t first, std::uint64_t count, std::uint64_t salt, Use&& use) {
  for (std::uint64_t i = 0; i < count; i += kBatch) use(hashes_of(first + i, std::min(kBatch, count - i), salt));
}

struct Run {
  LocatorShape shape;
  double hashing = 0, sorting = 0, building = 0, longest_step = 0, finding = 0;  // seconds; of finding, for each key
  std::uint64_t wrong = 0;                                                       // keys that have no slot of their own
  outback::BuildFigures figures;
  std::uint64_t left_out = 0;
  std::uint64_t locator_bytes = 0, client_bytes = 0;
};

// Looks all keys up.
void check(const Locator& locator, const std::vector<std::uint64_t>& left_out, std::uint64_t keys, Run& run) {
  const std::unordered_set<std::uint64_t> out(left_out.begin(), left_out.end());
  std::vector<bool> taken(locator.header().shape.table_slots());
  std::vector<Spot> spots(kBatch);
  for_each_batch(0, keys, locator.header().salt, [&](const std::vector<std::uint64_t>& hashes) {
    const double before = seconds();
    for (std::size_t i = 0; i < hashes.size(); ++i) spots[i] = locator.find(hashes[i]);
    run.finding += (seconds() - before) / static_cast<double>(keys);
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      if (out.contains(hashes[i])) continue;
      const std::uint64_t slot = std::uint64_t{spots[i].bucket} * outback::kBucketSlots + spots[i].slot;
      if (taken[slot]) ++run.wrong;
      taken[slot] = true;
    }
  });
}

struct Made {
  Run run;
  Locator locator;
};

Made make(std::uint64_t keys, double load, std::uint64_t seed, bool checked) {
  const auto shape = LocatorShape::of(LocatorShape::buckets_for(keys, load), keys);
  FARPOOL_CHECK(shape.ok());
  const std::uint64_t salt = base::mix(seed);
  Run run{*shape};
  Builder builder(*shape, 1, salt, keys);
  for (std::uint64_t i = 0; i < keys; i += kBatch) {
    const double begin = seconds();
    const auto hashes = hashes_of(i, std::min(kBatch, keys - i), salt);
    const double hashed = seconds();
    FARPOOL_CHECK(builder.add(hashes));
    run.hashing += hashed - begin;
    run.sorting += seconds() - hashed;
  }
  for (bool more = true; more;) {
    const double begin = seconds();
    more = builder.step(1024);
    const double taken = seconds() - begin;
    run.building += taken;
    run.longest_step = std::max(run.longest_step, taken);
  }
  Locator locator = builder.finish();
  run.figures = builder.figures();
  run.left_out = builder.left_out().size();
  run.locator_bytes = locator.words().size() * 8;
  run.client_bytes = locator.bytes();
  if (checked) check(locator, builder.left_out(), keys, run);
  return {run, std::move(locator)};
}

double per_key(std::uint64_t bytes, std::uint64_t keys) {
  return static_cast<double>(bytes) * 8 / static_cast<double>(keys);
}
unsigned long long number(std::uint64_t value) { return value; }

void print_sizes(const std::vector<std::uint64_t>& sizes, const std::vector<double>& loads) {
  std::printf(
      "| keys | load | locator MB | client MB | client bits a key | OB-17 | slots and seeds, bits a key | OB-17 |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  for (const std::uint64_t keys : sizes) {
    for (const double load : loads) {
      const auto shape = LocatorShape::of(LocatorShape::buckets_for(keys, load), keys);
      FARPOOL_CHECK(shape.ok());
      const std::uint64_t client = Locator::bytes_of(*shape);
      std::printf("| %llu | %.2f | %.2f | %.2f | %.3f | %.3f | %.2f | %.2f |\n", number(keys), load,
                  static_cast<double>(shape->words()) * 8e-6, static_cast<double>(client) * 1e-6, per_key(client, keys),
                  2.33 + 2 / load, per_key(shape->table_slots() * 8 + shape->table_buckets(), keys), 66 / load);
    }
  }
}

void print_builds(const std::vector<std::uint64_t>& sizes, const std::vector<double>& loads, std::uint64_t runs) {
  std::printf(
      "| keys | load | hash s | sort s | build s | longest step ms | find ns | moves a key | turned | retries | "
      "left out | without a seed | wrong |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const std::uint64_t keys : sizes) {
    for (const double load : loads) {
      for (std::uint64_t seed = 1; seed <= runs; ++seed) {
        const Run run = make(keys, load, seed, true).run;
        std::printf("| %llu | %.2f | %.2f | %.2f | %.2f | %.2f | %.1f | %.3f | %llu | %llu | %llu | %llu | %llu |\n",
                    number(keys), load, run.hashing, run.sorting, run.building, run.longest_step * 1e3,
                    run.finding * 1e9, static_cast<double>(run.figures.moved) / static_cast<double>(keys),
                    number(run.figures.turned), number(run.figures.retries), number(run.left_out),
                    number(run.figures.unseeded), number(run.wrong));
        std::fflush(stdout);
        FARPOOL_CHECK(run.wrong == 0);
      }
    }
  }
}

// Inserts keys after a build, as the memory node does: into the bucket that the locator says, or else the overflow.
void print_growth(std::uint64_t slots, const std::vector<double>& loads) {
  constexpr double kOverflowing[] = {0.001, 0.005, 0.01, 0.02, 0.05, 0.10};
  std::printf("| load when built |");
  for (const double share : kOverflowing) std::printf(" load with %.1f %% of keys in overflow |", share * 100);
  std::printf("\n|---|---|---|---|---|---|---|\n");
  for (const double load : loads) {
    const auto keys = static_cast<std::uint64_t>(static_cast<double>(slots) * load);
    Made made = make(keys, load, 7, false);
    const Locator& locator = made.locator;
    std::vector<std::uint8_t> sizes(locator.header().shape.table_buckets());
    for_each_batch(0, keys, locator.header().salt, [&](const std::vector<std::uint64_t>& hashes) {
      for (const std::uint64_t hash : hashes) ++sizes[locator.find(hash).bucket];
    });
    std::uint64_t overflow = 0, added = keys;
    std::size_t share = 0;
    std::printf("| %.2f |", load);
    while (share < std::size(kOverflowing)) {
      for (const std::uint64_t hash : hashes_of(added, kBatch, locator.header().salt)) {
        std::uint8_t& size = sizes[locator.find(hash).bucket];
        if (size < outback::kBucketSlots) {
          ++size;
        } else {
          ++overflow;
        }
      }
      added += kBatch;
      for (; share < std::size(kOverflowing) &&
             static_cast<double>(overflow) >= kOverflowing[share] * static_cast<double>(added);
           ++share) {
        std::printf(" %.3f |", static_cast<double>(added) / static_cast<double>(locator.header().shape.table_slots()));
      }
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace farpool

int main(int count, char** words) {
  std::vector<std::uint64_t> sizes = {20'000'000}, growth = {1'000'000};
  std::vector<double> loads = {0.85};
  std::uint64_t runs = 1;
  bool only_sizes = false, only_growth = false;
  CLI::App app("Builds Outback's locators, and says what they take and give.");
  app.add_option("--keys", sizes, "how many keys each locator has");
  app.add_option("--load", loads, "keys for each slot of the table")->check(CLI::Range(0.05, 0.99));
  app.add_option("--runs", runs, "how often each is built, with other salts")->check(CLI::Range(1, 1000));
  app.add_flag("--sizes", only_sizes, "print sizes, and build nothing");
  app.add_flag("--growth", only_growth, "insert keys into tables of that many slots after they were built");
  CLI11_PARSE(app, count, words);
  if (only_sizes) {
    farpool::print_sizes(sizes, loads);
  } else if (only_growth) {
    for (const std::uint64_t slots : sizes) farpool::print_growth(slots, loads);
  } else {
    farpool::print_builds(sizes, loads, runs);
  }
  return 0;
}
