// SPDX-License-Identifier: Apache-2.0
// simulate: replays seeds and tapes of the simulator, and runs more of them than the tests do.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "sim/crash.h"
#include "sim/explore_worlds.h"
#include "sim/swarm.h"

namespace {

using farpool::layout::Protocol;
using farpool::sim::SmallWorld;

bool swarm(std::uint64_t seed, Protocol protocol, bool loud) {
  const farpool::sim::Verdict verdict = farpool::sim::run_swarm(seed, protocol);
  if (loud || !verdict.wrong.empty()) {
    std::printf("seed %llu: %s\n  %llu calls, %llu effects, trace %016llx\n  %s\n  %s\n",
                static_cast<unsigned long long>(seed), verdict.setting.c_str(),
                static_cast<unsigned long long>(verdict.calls), static_cast<unsigned long long>(verdict.effects),
                static_cast<unsigned long long>(verdict.trace_hash), farpool::sim::describe(verdict.marks).c_str(),
                farpool::sim::describe(verdict.repairs).c_str());
  }
  for (const std::string& what : verdict.wrong) std::printf("  wrong: %s\n", what.c_str());
  return verdict.wrong.empty();
}

bool crashes(std::uint64_t seed, Protocol protocol) {
  using farpool::sim::Death;
  using How = Death::How;
  using Repair = Death::Repair;
  std::uint64_t worlds = 0, late = 0, zombies = 0;
  bool right = true;
  for (const auto& scenario : farpool::sim::scenarios(seed, protocol)) {
    std::printf("seed %llu: %-36s", static_cast<unsigned long long>(seed), scenario.name.c_str());
    for (const auto& [how, repair] : {std::pair{How::cut, Repair::blocked}, std::pair{How::lands, Repair::blocked},
                                      std::pair{How::zombie, Repair::blocked}, std::pair{How::cut, Repair::sweep},
                                      std::pair{How::lands, Repair::repairer}}) {
      const auto tally = farpool::sim::die_everywhere(scenario, how, repair);
      worlds += tally.worlds;
      late += tally.late_effects;
      if (how == How::zombie) zombies += tally.worlds;
      std::printf(" %6llu", static_cast<unsigned long long>(tally.worlds));
      std::fflush(stdout);
      for (const std::string& what : tally.wrong) std::printf("\n  wrong: %s", what.c_str());
      right = right && tally.wrong.empty();
    }
    std::printf("\n");
  }
  std::printf("seed %llu: %llu worlds; %llu effects of %llu zombies landed after their fence\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(worlds),
              static_cast<unsigned long long>(late), static_cast<unsigned long long>(zombies));
  return right;
}

double now_in_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string describe(const farpool::sim::Bounds& bounds) {
  std::string text = std::to_string(bounds.preemptions) + " preemptions";
  if (bounds.losses > 0) text += ", " + std::to_string(bounds.losses) + " lost answers";
  if (bounds.crashes > 0) text += ", " + std::to_string(bounds.crashes) + " crashes";
  return text;
}

bool explore_one(const SmallWorld& world) {
  const double begun = now_in_seconds();
  const auto found = farpool::sim::explore(world);
  std::printf("%-24s %8llu runs %8llu states, %llu judged, at most %llu decisions, bound %s, %.1f s\n",
              world.name.c_str(), static_cast<unsigned long long>(found.runs),
              static_cast<unsigned long long>(found.states), static_cast<unsigned long long>(found.judged),
              static_cast<unsigned long long>(found.deepest), describe(world.bounds).c_str(), now_in_seconds() - begun);
  std::fflush(stdout);
  if (!found.failure) return true;
  for (const std::string& what : found.failure->wrong) std::printf("  wrong: %s\n", what.c_str());
  std::printf("%sreplay: simulate --world %s --tape %s\n", found.failure->story.c_str(), world.name.c_str(),
              farpool::sim::describe(found.failure->tape).c_str());
  return false;
}

bool replay_one(const SmallWorld& world, const farpool::sim::Tape& tape) {
  const auto replayed = farpool::sim::replay(world, tape);
  std::printf("%s%llu decisions\n", replayed.story.c_str(), static_cast<unsigned long long>(replayed.decisions));
  for (const std::string& what : replayed.wrong) std::printf("  wrong: %s\n", what.c_str());
  return replayed.wrong.empty();
}

}  // namespace

int main(int count_of_words, char** words) {
  std::uint64_t seed = 1, count = 0;
  bool crash = false, worlds = false;
  std::string name, tape_text;
  CLI::App app("Random worlds of the seeds SEED .. SEED+COUNT-1, judged; or, instead, small worlds explored.");
  Protocol protocol = Protocol::rcuckoo;
  app.add_option("--protocol", protocol, "of the seeds' worlds: rcuckoo or race")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Protocol>{{"rcuckoo", Protocol::rcuckoo}, {"race", Protocol::race}}));
  CLI::Option* const seed_option = app.add_option("--seed", seed, "the first seed");
  app.add_option("--count", count, "how many seeds (without --seed: 100; with --crashes: 1)");
  app.add_flag(
      "--crashes", crash,
      "instead, a client dies after every effect of every operation and others repair what it left, in worlds of "
      "these seeds; columns: nothing lands after its death; what it had posted lands; it is only stopped, and "
      "wakes after its repair; a sweep repairs; a repairer dies too, after every effect of its repair");
  app.add_flag("--worlds", worlds, "explore every small world");
  app.add_option("--world", name, "explore this small world");
  app.add_option("--tape", tape_text, "replay one run of that world, as printed by a failure")->needs("--world");
  CLI11_PARSE(app, count_of_words, words);

  if (!name.empty()) {
    const SmallWorld* world = farpool::sim::find_small_world(name);
    if (world == nullptr) {
      std::fprintf(stderr, "there is no small world '%s'; there are:\n", name.c_str());
      for (const SmallWorld& one : farpool::sim::small_worlds()) std::fprintf(stderr, "  %s\n", one.name.c_str());
      return 2;
    }
    if (tape_text.empty()) return explore_one(*world) ? 0 : 1;
    const auto tape = farpool::sim::parse_tape(tape_text);
    if (!tape) {
      std::fprintf(stderr, "'%s' is not a tape: write DECISION:WAY,... in rising order, or -\n", tape_text.c_str());
      return 2;
    }
    return replay_one(*world, *tape) ? 0 : 1;
  }
  if (worlds) {
    const double begun = now_in_seconds();
    std::size_t wrong = 0;
    for (const SmallWorld& world : farpool::sim::small_worlds()) wrong += explore_one(world) ? 0 : 1;
    std::printf("%zu small worlds explored in %.1f s, %zu of them wrong\n", farpool::sim::small_worlds().size(),
                now_in_seconds() - begun, wrong);
    return wrong == 0 ? 0 : 1;
  }
  if (count == 0) count = crash || seed_option->count() > 0 ? 1 : 100;
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!(crash ? crashes(seed + i, protocol) : swarm(seed + i, protocol, count == 1))) {
      ++wrong;
      std::printf("replay: simulate%s --seed %llu%s\n", protocol == Protocol::race ? " --protocol race" : "",
                  static_cast<unsigned long long>(seed + i), crash ? " --crashes" : "");
    }
  }
  std::printf("%llu of %llu seeds were right\n", static_cast<unsigned long long>(count - wrong),
              static_cast<unsigned long long>(count));
  return wrong == 0 ? 0 : 1;
}
