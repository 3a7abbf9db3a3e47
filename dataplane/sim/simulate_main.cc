// SPDX-License-Identifier: Apache-2.0
// simulate: replays seeds and tapes of the simulator, and runs more of them than the tests do.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "fabric/sim/calibration.h"
#include "protocols/protocols.h"
#include "sim/crash.h"
#include "sim/dialect.h"
#include "sim/explore_worlds.h"
#include "sim/pools.h"
#include "sim/story.h"
#include "sim/swarm.h"

namespace {

using farpool::layout::Protocol;
using farpool::sim::SmallWorld;

std::string of_protocol(Protocol protocol) {
  const std::string title = farpool::sim::title_of(protocol);
  return title.empty() ? "" : " of " + title;
}

unsigned long long number(std::uint64_t of) { return of; }

// Sums over everything that was run, so that a branch that was never reached is seen.
struct Reached {
  farpool::index::Marks marks;
  farpool::session::RepairMarks repairs;
  std::uint64_t calls = 0, zombies = 0, late_writes = 0, scans = 0, pages = 0, emptied = 0, restarts = 0, losses = 0;

  void add(const farpool::sim::Verdict& verdict) {
    marks += verdict.marks;
    repairs += verdict.repairs;
    calls += verdict.calls;
    zombies += verdict.zombies;
    late_writes += verdict.late_writes;
    scans += verdict.scans;
    emptied += verdict.emptied;
    pages += verdict.pages;
    restarts += verdict.restarts;
    losses += verdict.losses;
  }
};

bool swarm(std::uint64_t seed, farpool::sim::Take take, bool loud, Reached& reached) {
  take.tells = loud;
  const farpool::sim::Verdict verdict = farpool::sim::run_swarm(seed, take);
  reached.add(verdict);
  if (loud) {
    std::printf("seed %llu: %s\n%s  %llu calls, %llu effects, trace %016llx\n  %s\n  %s\n", number(seed),
                verdict.setting.c_str(), verdict.story.c_str(), number(verdict.calls), number(verdict.effects),
                number(verdict.trace_hash),
                farpool::base::describe_counts(farpool::index::kMarks, verdict.marks).c_str(),
                farpool::base::describe_counts(farpool::session::kRepairMarks, verdict.repairs).c_str());
    for (const std::string& what : verdict.wrong) std::printf("  wrong: %s\n", what.c_str());
  }
  return verdict.wrong.empty();
}

struct Deaths {
  std::uint64_t worlds = 0, late = 0, zombies = 0;
  std::size_t branches = 0;
  farpool::session::RepairMarks repairs;
};

int no_branch(const std::string& branch) {
  std::fprintf(stderr, "no branch of any operation is called anything with '%s'\n", branch.c_str());
  return 2;
}

bool crashes(std::uint64_t seed, Protocol protocol, const std::string& branch, const farpool::sim::Reach& reach,
             Deaths& sum) {
  using farpool::sim::Death;
  using How = Death::How;
  using Repair = Death::Repair;
  for (const auto& scenario : farpool::sim::scenarios(seed, protocol)) {
    if (scenario.name.find(branch) == std::string::npos) continue;
    ++sum.branches;
    std::printf("seed %llu: %-42s", number(seed), scenario.name.c_str());
    for (const auto& [how, repair] : {std::pair{How::cut, Repair::blocked}, std::pair{How::lands, Repair::blocked},
                                      std::pair{How::zombie, Repair::blocked}, std::pair{How::asleep, Repair::blocked},
                                      std::pair{How::cut, Repair::crowd}, std::pair{How::cut, Repair::sweep},
                                      std::pair{How::lands, Repair::repairer}, std::pair{How::cut, Repair::stopped}}) {
      const auto tally = farpool::sim::die_everywhere(scenario, how, repair, reach);
      sum.worlds += tally.worlds;
      sum.late += tally.late_effects;
      sum.repairs += tally.repairs;
      if (how == How::zombie || how == How::asleep) sum.zombies += tally.worlds;
      std::printf(" %6llu", number(tally.worlds));
      std::fflush(stdout);
      if (!tally.wrong) continue;
      std::printf("\n%s", farpool::sim::explain(scenario, *tally.wrong).c_str());
      return false;
    }
    std::printf("\n");
  }
  return true;
}

// Replays one death, in the first branch whose name contains `branch`.
int replay_death(std::uint64_t seed, Protocol protocol, const std::string& branch, const farpool::sim::Death& death) {
  for (const auto& scenario : farpool::sim::scenarios(seed, protocol)) {
    if (scenario.name.find(branch) == std::string::npos) continue;
    std::printf("%s", farpool::sim::explain(scenario, death).c_str());
    return farpool::sim::run_crash(scenario, death).wrong.empty() ? 0 : 1;
  }
  return no_branch(branch);
}

double now_in_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string describe(const farpool::sim::Bounds& bounds) {
  std::string text = std::to_string(bounds.preemptions) + " preemptions";
  if (bounds.losses > 0) text += ", " + std::to_string(bounds.losses) + " lost answers";
  if (bounds.crashes > 0) text += ", " + std::to_string(bounds.crashes) + " deaths";
  if (bounds.stalls > 0) text += ", " + std::to_string(bounds.stalls) + " stops";
  if (bounds.few < ~std::size_t{0}) text += ", with at most " + std::to_string(bounds.few) + " verbs under way";
  return text;
}

struct Explorations {
  std::uint64_t runs = 0, states = 0;
};

bool explore_one(const SmallWorld& world, Explorations& sum) {
  const double begun = now_in_seconds();
  const auto found = farpool::sim::explore(world);
  sum.runs += found.runs;
  sum.states += found.states;
  std::printf("%-24s %8llu runs %8llu states, %llu judged, at most %llu decisions, bound %s, %.1f s\n",
              world.name.c_str(), static_cast<unsigned long long>(found.runs),
              static_cast<unsigned long long>(found.states), static_cast<unsigned long long>(found.judged),
              static_cast<unsigned long long>(found.deepest), describe(world.bounds).c_str(), now_in_seconds() - begun);
  std::fflush(stdout);
  if (!found.failure) return true;
  for (const std::string& what : found.failure->wrong) std::printf("  wrong: %s\n", what.c_str());
  std::printf("commit %s, the shortest run that was found:\n%sreplay: simulate --world %s --tape %s\n",
              farpool::sim::commit().c_str(), found.failure->story.c_str(), world.name.c_str(),
              farpool::sim::describe(found.failure->tape).c_str());
  return false;
}

bool replay_one(const SmallWorld& world, const farpool::sim::Tape& tape) {
  const auto replayed = farpool::sim::replay(world, tape);
  std::printf("%s%llu decisions\n", replayed.story.c_str(), static_cast<unsigned long long>(replayed.decisions));
  for (const std::string& what : replayed.wrong) std::printf("  wrong: %s\n", what.c_str());
  return replayed.wrong.empty();
}

// Says whether every rare branch has been reached: otherwise the run has shown nothing of it.
bool all_reached(const std::vector<std::string>& never) {
  for (const std::string& what : never) std::printf("  wrong: in all of these worlds there were no %s\n", what.c_str());
  return never.empty();
}

int run_worlds() {
  const double begun = now_in_seconds();
  std::size_t wrong = 0;
  Explorations sum;
  for (const SmallWorld& world : farpool::sim::small_worlds()) wrong += explore_one(world, sum) ? 0 : 1;
  std::printf("total: %zu small worlds, every order of %llu states in %llu runs, in %.0f s; %zu wrong\n",
              farpool::sim::small_worlds().size(), number(sum.states), number(sum.runs), now_in_seconds() - begun,
              wrong);
  return wrong == 0 ? 0 : 1;
}

int run_crashes(std::uint64_t seed, std::uint64_t count, Protocol protocol, const std::string& branch,
                const farpool::sim::Reach& reach) {
  const double begun = now_in_seconds();
  Deaths sum;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!crashes(seed + i, protocol, branch, reach, sum)) return 1;
  }
  if (sum.branches == 0) return no_branch(branch);
  sum.repairs.waited_for += 1;  // of random worlds: here nobody else is at work while somebody is repaired
  const bool reached = !branch.empty() || !farpool::layout::shape_of(protocol).locks ||  // nothing is repaired
                       all_reached(farpool::sim::never_reached(sum.repairs));
  std::printf("  %s\n", farpool::base::describe_counts(farpool::session::kRepairMarks, sum.repairs).c_str());
  std::printf(
      "total: %llu worlds in which a client died or stopped after one of the effects of %zu branches, in %.0f s; "
      "%llu effects of %llu that stopped landed after their fence or lease\n",
      number(sum.worlds), sum.branches, now_in_seconds() - begun, number(sum.late), number(sum.zombies));
  return reached ? 0 : 1;
}

int run_seeds(std::uint64_t seed, std::uint64_t count, const farpool::sim::Take& take, unsigned shrink_seconds) {
  constexpr std::uint64_t kEnough = 1000;  // seeds, to meet everything that is rare
  const double begun = now_in_seconds();
  std::uint64_t wrong = 0, done = 0;
  Reached reached;
  for (; done < count && wrong == 0; ++done) {
    const std::uint64_t one = seed + done;
    if (swarm(one, take, count == 1, reached)) continue;
    ++wrong;
    if (count == 1 && !take.part.kept.empty()) continue;
    std::printf("%s", farpool::sim::explain(one, {.time = std::chrono::seconds(shrink_seconds)}, take).c_str());
    std::fflush(stdout);
  }
  const double took = now_in_seconds() - begun;
  std::printf("  %s\n  %s\n", farpool::base::describe_counts(farpool::index::kMarks, reached.marks).c_str(),
              farpool::base::describe_counts(farpool::session::kRepairMarks, reached.repairs).c_str());
  std::printf("  %llu restarts of the memory node, %llu without its memory\n",
              number(reached.restarts + reached.losses), number(reached.losses));
  if (take.scans) std::printf("  %llu scans in %llu steps\n", number(reached.scans), number(reached.pages));
  if (take.compactions) std::printf("  %llu segments emptied\n", number(reached.emptied));
  const std::uint64_t cleared = reached.marks.cleared_marks, kept = reached.marks.kept_marks;
  if (take.clearings)
    std::printf("  %llu marks cleared, %llu not, as an entry had come\n", number(cleared), number(kept));
  bool right = wrong == 0;
  if (right && done >= kEnough) {
    // Tables that are cleared never become full.
    std::vector<std::string> never;
    if (!take.clearings) never = farpool::sim::never_reached(reached.marks, take.protocol, take.scans);
    if (take.compactions && reached.emptied < done / 10) never.emplace_back("segments that were emptied");
    if (take.clearings && cleared < done / 4) never.emplace_back("marks that were cleared");
    if (take.clearings && kept == 0) never.emplace_back("marks that got entries before they were cleared");
    if (reached.losses == 0) never.emplace_back("losses of memory");
    if (take.scans && reached.pages < 2 * reached.scans) never.emplace_back("scans of several steps");
    if (farpool::layout::shape_of(take.protocol).locks) {
      for (std::string& what : farpool::sim::never_reached(reached.repairs)) never.push_back(std::move(what));
    }
    right = all_reached(never);
  }
  std::printf(
      "total: %llu of %llu random worlds%s%s right, %llu calls, %.0f worlds a minute; %llu words of %llu zombies "
      "landed "
      "after "
      "their fence\n",
      number(done - wrong), number(done), of_protocol(take.protocol).c_str(),
      take.compactions ? " with compactions"
      : take.clearings ? " with clearings"
      : take.scans     ? " with scans"
                       : "",
      number(reached.calls), took > 0 ? static_cast<double>(done) / took * 60 : 0.0, number(reached.late_writes),
      number(reached.zombies));
  return right ? 0 : 1;
}

int run_pools(std::uint64_t seed, std::uint64_t count, Protocol protocol, const farpool::sim::Selection& part,
              unsigned shrink_seconds) {
  constexpr std::uint64_t kEnough = 200;  // seeds, to meet everything that is rare
  const double begun = now_in_seconds();
  farpool::sim::PoolVerdict sum;
  for (std::uint64_t i = 0; i < count; ++i) {
    const bool loud = count == 1;
    const farpool::sim::PoolVerdict verdict = farpool::sim::run_pool(seed + i, part, loud, protocol);
    farpool::sim::add(sum, verdict);
    if (loud) {
      std::printf("seed %llu: %s\n%s  trace %016llx\n", number(seed), verdict.setting.c_str(), verdict.story.c_str(),
                  number(verdict.trace_hash));
      for (const std::string& what : verdict.wrong) std::printf("  wrong: %s\n", what.c_str());
    }
    if (verdict.wrong.empty()) continue;
    if (!loud || part.kept.empty()) {
      const farpool::sim::ShrinkBudget budget{.time = std::chrono::seconds(shrink_seconds)};
      std::printf("%s", farpool::sim::explain_pool(seed + i, budget, protocol).c_str());
    }
    return 1;
  }
  std::printf("  %s\n", farpool::sim::describe(sum).c_str());
  if (count >= kEnough && !all_reached(farpool::sim::never_reached(sum, protocol))) return 1;
  const double took = now_in_seconds() - begun;
  std::printf("total: %llu random pools%s of 2 to 4 memory nodes right, %.0f pools a minute\n", number(count),
              of_protocol(protocol).c_str(), took > 0 ? static_cast<double>(count) / took * 60 : 0.0);
  return 0;
}

struct Arguments {
  std::uint64_t seed = 1, count = 0, plan = 0;
  unsigned shrink_seconds = 20;
  bool crash = false, scans = false, compactions = false, clearings = false, worlds = false, pools = false,
       calibrate = false;
  std::string name, branch, death_text, tape_text, part_text = "all";
  farpool::sim::Reach reach;
  Protocol protocol{};
  CLI::Option* seed_option = nullptr;
};

void add_options(CLI::App& app, Arguments& to) {
  std::map<std::string, Protocol> protocols;
  for (const auto* one : farpool::protocols::all()) protocols.emplace(one->name(), one->number());
  app.add_option("--protocol", to.protocol, "the index protocol of the worlds")
      ->transform(CLI::CheckedTransformer(protocols));
  to.seed_option = app.add_option("--seed", to.seed, "the first seed");
  app.add_option("--count", to.count, "how many seeds (without --seed: 100; with --crashes: 1)");
  app.add_option("--only", to.part_text,
                 "plays only these calls and faults of a seed's world or pool, as printed by a failure")
      ->needs(to.seed_option);
  app.add_option("--shrink-seconds", to.shrink_seconds, "how long a failing seed's world is made smaller");
  CLI::Option* const crash_option = app.add_flag(
      "--crashes", to.crash,
      "instead of random worlds: a client dies after every effect of every operation and others repair what it left, "
      "in worlds of these seeds; columns: nothing lands after its death; what it had posted lands; it is only stopped, "
      "and wakes after its repair, or when its lease may have run out; it blocks two others at once; a sweep repairs; "
      "a repairer dies too, after every effect of its repair, or is only stopped");
  app.add_flag("--calibrate", to.calibrate,
               "instead of random worlds: compare the model of a NIC's time with what the papers measured "
               "(docs/measurements/time-model.md)");
  app.add_option("--branch", to.branch, "tries only branches of operations whose name has this in it")
      ->needs(crash_option);
  app.add_option("--death", to.death_text, "tries only this death of the first such branch, as printed by a failure")
      ->needs("--branch");
  app.add_flag(
         "--every-effect", to.reach.every_effect,
         "tries deaths after every effect of long operations, such as splits, too: otherwise it tries one in so many "
         "of these. It still tries one in so many effects of repairers")
      ->needs(crash_option);
  app.add_option("--offset", to.reach.offset, "where one effect in so many is tried: each number chooses others");
  app.add_flag("--pools", to.pools,
               "instead of one memory node: whole pools of several, with clients that route keys, and an operator");
  app.add_flag("--scans", to.scans, "in random worlds clients also scan the keys, beside everything else");
  app.add_flag("--compactions", to.compactions,
               "in random worlds clients also empty segments of the heap, beside everything else");
  app.add_flag("--clearings", to.clearings,
               "in random worlds clients also clear marks of rows that have become empty, beside everything else");
  app.add_option(
      "--plan", to.plan,
      "instead of running anything: print the runs that try everything of all protocols, with so many seeds");
  app.add_flag("--worlds", to.worlds, "explore every small world");
  app.add_option("--world", to.name, "explore this small world");
  app.add_option("--tape", to.tape_text, "replay one run of that world, as printed by a failure")->needs("--world");
}

int run_small_world(const Arguments& of) {
  const SmallWorld* world = farpool::sim::find_small_world(of.name);
  if (world == nullptr) {
    std::fprintf(stderr, "there is no small world '%s'; there are:\n", of.name.c_str());
    for (const SmallWorld& one : farpool::sim::small_worlds()) std::fprintf(stderr, "  %s\n", one.name.c_str());
    return 2;
  }
  Explorations nobodys;
  if (of.tape_text.empty()) return explore_one(*world, nobodys) ? 0 : 1;
  const auto tape = farpool::sim::parse_tape(of.tape_text);
  if (!tape) {
    std::fprintf(stderr, "'%s' is not a tape: write DECISION:WAY,... in rising order, or -\n", of.tape_text.c_str());
    return 2;
  }
  return replay_one(*world, *tape) ? 0 : 1;
}

// Prints the runs that together try everything, with so many seeds: a name and arguments in each line. What takes longest
// comes first.
void print_plan(std::uint64_t seeds, std::uint64_t offset) {
  const auto line = [](const std::string& name, const std::string& arguments) {
    std::printf("%s\t%s\n", name.c_str(), arguments.c_str());
  };
  const auto each = [&](const std::string& name, const std::string& arguments, auto has) {
    for (const auto* one : farpool::protocols::all()) {
      const auto& dialect = farpool::sim::dialect_of(one->number());
      if (has(dialect)) line(dialect.title() + ", " + name, arguments + " --protocol " + std::string(one->name()));
    }
  };
  const auto counted = [](std::uint64_t count, const std::string& of) {
    return std::to_string(count) + " random " + of;
  };
  const auto all = [](const farpool::sim::Dialect&) { return true; };
  const std::string some = " --count " + std::to_string(seeds / 4);
  each(counted(seeds / 5, "pools"), "--pools --count " + std::to_string(seeds / 5), all);
  line("small worlds, every order", "--worlds");
  each("deaths after effects", "--crashes --offset " + std::to_string(offset), all);
  each(counted(seeds, "worlds"), "--count " + std::to_string(seeds), all);
  each(counted(seeds / 4, "worlds with scans"), "--scans" + some, all);
  each(counted(seeds / 4, "worlds with compactions"), "--compactions" + some,
       [](const farpool::sim::Dialect& dialect) { return dialect.compacts(); });
  each(counted(seeds / 4, "worlds with clearings"), "--clearings" + some,
       [](const farpool::sim::Dialect& dialect) { return dialect.clears(); });
}

int run(const Arguments& of) {
  if (of.plan > 0) {
    print_plan(of.plan, of.reach.offset);
    return 0;
  }
  if (of.calibrate) {
    std::fputs(farpool::fabric::sim::report(farpool::fabric::sim::calibrate(of.seed)).c_str(), stdout);
    return 0;
  }
  if (!of.name.empty()) return run_small_world(of);
  if (of.worlds) return run_worlds();
  const auto part = farpool::sim::parse_selection(of.part_text);
  if (!part) {
    std::fprintf(stderr, "'%s' names no part of a world: write all, none, or N,N-M,... and perhaps /SALT\n",
                 of.part_text.c_str());
    return 2;
  }
  const bool one = of.crash || of.seed_option->count() > 0;
  const std::uint64_t count = of.count > 0 ? of.count : one ? 1 : 100;
  if (!of.death_text.empty()) {
    const auto death = farpool::sim::parse_death(of.death_text);
    if (death) return replay_death(of.seed, of.protocol, of.branch, *death);
    std::fprintf(stderr, "'%s' is not a death: write HOW,REPAIR,EFFECTS, as in cut,blocked,12\n",
                 of.death_text.c_str());
    return 2;
  }
  if (of.pools) return run_pools(of.seed, count, of.protocol, *part, of.shrink_seconds);
  if (of.crash) return run_crashes(of.seed, count, of.protocol, of.branch, of.reach);
  return run_seeds(of.seed, count,
                   {.part = *part,
                    .protocol = of.protocol,
                    .scans = of.scans,
                    .compactions = of.compactions,
                    .clearings = of.clearings},
                   of.shrink_seconds);
}

}  // namespace

int main(int count_of_words, char** words) {
  // Worlds are made by the thousand, each as large as the one before: their memory is kept, and not given back to the
  // kernel each time.
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  CLI::App app("Random worlds of the seeds SEED .. SEED+COUNT-1, judged; or, instead, small worlds explored.");
  Arguments arguments;
  add_options(app, arguments);
  CLI11_PARSE(app, count_of_words, words);
  return run(arguments);
}
