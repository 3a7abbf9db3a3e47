// SPDX-License-Identifier: Apache-2.0
// simulate [--seed N] [--count N] [--crashes]: replays seeds of the simulator, and runs more of them than the tests do.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sim/crash.h"
#include "sim/swarm.h"

namespace {

using farpool::fabric::sim::InFlight;

int usage() {
  std::fprintf(
      stderr,
      "usage: simulate [--seed FIRST] [--count SEEDS] [--crashes]\n"
      "  Runs random worlds of the seeds FIRST .. FIRST+SEEDS-1 and judges them (default: seed 1, 100 seeds).\n"
      "  --crashes: instead, lets a client die after every effect of every operation, in worlds of these seeds "
      "(default: 1 seed).\n");
  return 2;
}

bool swarm(std::uint64_t seed, bool loud) {
  const farpool::sim::Verdict verdict = farpool::sim::run_swarm(seed);
  if (loud || !verdict.wrong.empty()) {
    std::printf("seed %llu: %s\n  %llu calls, %llu effects, trace %016llx\n  %s\n",
                static_cast<unsigned long long>(seed), verdict.setting.c_str(),
                static_cast<unsigned long long>(verdict.calls), static_cast<unsigned long long>(verdict.effects),
                static_cast<unsigned long long>(verdict.trace_hash), farpool::sim::describe(verdict.marks).c_str());
  }
  for (const std::string& what : verdict.wrong) std::printf("  wrong: %s\n", what.c_str());
  return verdict.wrong.empty();
}

bool crashes(std::uint64_t seed) {
  bool right = true;
  for (const auto& scenario : farpool::sim::scenarios(seed)) {
    for (const InFlight posted : {InFlight::cut, InFlight::lands}) {
      std::uint64_t points = 0;
      for (bool survived = false; !survived; ++points) {
        const auto verdict = farpool::sim::run_crash(scenario, points, posted);
        survived = verdict.survived;
        for (const std::string& what : verdict.wrong) {
          std::printf("seed %llu: %s, dead after effect %llu, %s: %s\n", static_cast<unsigned long long>(seed),
                      scenario.name.c_str(), static_cast<unsigned long long>(points),
                      posted == InFlight::cut ? "cut" : "posted verbs land", what.c_str());
          right = false;
        }
      }
      std::printf("seed %llu: %s: %llu crash points\n", static_cast<unsigned long long>(seed), scenario.name.c_str(),
                  static_cast<unsigned long long>(points));
    }
  }
  return right;
}

}  // namespace

int main(int count_of_words, char** words) {
  std::uint64_t seed = 1, count = 0;
  bool crash = false, seed_given = false;
  for (int i = 1; i < count_of_words; ++i) {
    const std::string word = words[i];
    char* end = nullptr;
    if (word == "--crashes") {
      crash = true;
    } else if ((word == "--seed" || word == "--count") && i + 1 < count_of_words) {
      const std::uint64_t number = std::strtoull(words[++i], &end, 10);
      if (*end != '\0') return usage();
      (word == "--seed" ? seed : count) = number;
      seed_given = seed_given || word == "--seed";
    } else {
      return usage();
    }
  }
  if (count == 0) count = crash || seed_given ? 1 : 100;
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!(crash ? crashes(seed + i) : swarm(seed + i, count == 1))) {
      ++wrong;
      std::printf("replay: simulate --seed %llu%s\n", static_cast<unsigned long long>(seed + i),
                  crash ? " --crashes" : "");
    }
  }
  std::printf("%llu of %llu seeds were right\n", static_cast<unsigned long long>(count - wrong),
              static_cast<unsigned long long>(count));
  return wrong == 0 ? 0 : 1;
}
