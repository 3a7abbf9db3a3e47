// SPDX-License-Identifier: Apache-2.0
// Random worlds, and small ones with every departure from the usual order of events: one at a time, or with
// FARPOOL_WHOLE=1 any two. FARPOOL_SEED=n runs one random world, FARPOOL_SEEDS=n that many.
#include "swordbox/world_test.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace farpool::swordbox {
namespace {

constexpr std::uint64_t kDefaultSeeds = 1000;

Operation random_operation(base::Random& random, std::uint32_t client, std::uint64_t number, std::uint64_t words) {
  static constexpr Kind kKinds[] = {Kind::compare_swap, Kind::compare_swap, Kind::compare_swap, Kind::masked,
                                    Kind::fetch_add,    Kind::set,          Kind::read_word,    Kind::write_data,
                                    Kind::write_long,   Kind::read_long};
  Operation operation;
  operation.kind = kKinds[random.below(std::size(kKinds))];
  operation.atomic = {.address = kWords + 8 * random.below(words),
                      .key = client,
                      .swap_or_add = (std::uint64_t{client} + 1) << 32 | number << 8,
                      .compare = random.chance(0.7) ? Client::kBelieved : 0};
  if (operation.kind == Kind::fetch_add) operation.atomic.swap_or_add = random.chance(0.3) ? 0 : 1;
  if (operation.kind == Kind::masked) {
    operation.atomic.compare = random.below(2);
    operation.atomic.compare_mask = 1;
    operation.atomic.swap_mask = 0xff;
    operation.atomic.swap_or_add = random.below(4);
  }
  if (operation.kind == Kind::compare_swap && random.chance(0.3)) operation.atomic.swap_or_add = 0;
  if (operation.kind >= Kind::write_data) operation.atomic.address = kData + 1024 * client;
  return operation;
}

WorldSetting random_setting(base::Random& random) {
  WorldSetting setting;
  Settings& box = setting.box;
  box.ranges = {{kServer, kWords, 64}};
  box.mtu = random.chance(0.8) ? kMtu : 1024;
  box.entries = random.chance(0.8) ? 32 : 4;
  box.held = random.chance(0.8) ? 8 : 1;
  box.words = random.chance(0.9) ? 16 : 1;
  box.connections = random.chance(0.9) ? 16 : 3;
  box.replace_fetch_add = random.chance(0.5);
  box.hash_seed = random.next();
  if (random.chance(0.7)) setting.losses = static_cast<int>(random.below(12));
  if (random.chance(0.7)) setting.repeats = static_cast<int>(random.below(8));
  if (random.chance(0.5)) setting.delays = static_cast<int>(random.below(8));
  if (random.chance(0.3)) setting.silences = 1;
  if (random.chance(0.3)) setting.deaths = 1;
  if (random.chance(0.3)) setting.fences = 1;
  if (random.chance(0.15)) setting.restarts = static_cast<int>(1 + random.below(2));
  return setting;
}

std::string describe(const World& world) { return base::describe_counts(kBoxCounts, world.sum()); }

std::string run_seed(std::uint64_t seed, Counts& sum, std::uint64_t& late) {
  base::Random random(seed);
  const double usual = random.chance(0.5) ? 0.5 : 0.9;
  const WorldSetting setting = random_setting(random);
  const bool is_calm =
      setting.silences + setting.deaths + setting.fences + setting.restarts == 0 && setting.box.connections > 3;
  World world(setting, [&random, usual](std::uint32_t bound) {
    return random.chance(usual) ? 0 : static_cast<std::uint32_t>(random.below(bound));
  });
  world.server.permits_writes = !random.chance(0.05);
  const std::uint64_t clients = 2 + random.below(3), words = 1 + random.below(2);
  const double introduced = random.chance(0.5) ? 1 : random.chance(0.5) ? 0.5 : 0;
  for (std::uint32_t i = 0; i < clients; ++i) {
    const auto psn =
        static_cast<std::uint32_t>(random.chance(0.3) ? roce::kPsnMask - random.below(8) : random.below(1 << 24));
    Client& client = world.add(psn, random.chance(introduced));
    client.window = 1 + random.below(4);
    const std::uint64_t count = 4 + random.below(16);
    for (std::uint64_t k = 0; k < count; ++k) {
      Operation operation = random_operation(random, i, k + 1, words);
      if (operation.kind == Kind::set && !world.server.permits_writes) operation.kind = Kind::compare_swap;
      client.plan.push_back(operation);
    }
  }
  std::string wrong = world.run();
  if (wrong.empty()) {
    // Whatever has happened, each word can be changed by a newcomer.
    const std::uint64_t cuts = world.sum().cut, refused = world.sum().refused;
    const int restarts = world.setting().restarts;
    Client& newcomer = world.add(77, true);
    for (std::uint64_t word = 0; word < words; ++word) {
      newcomer.plan.push_back({.kind = Kind::compare_swap, .atomic = {.address = kWords + 8 * word, .compare = 0}});
      newcomer.plan.push_back(
          {.kind = Kind::compare_swap,
           .atomic = {.address = kWords + 8 * word, .swap_or_add = 1, .compare = Client::kBelieved}});
    }
    wrong = world.run();
    const bool may_fail = world.clients.size() > world.setting().box.connections || world.sum().cut > cuts ||
                          world.sum().refused > refused || world.setting().restarts < restarts;
    if (wrong.empty() && newcomer.failed && !world.is_disturbed(newcomer) && !may_fail)
      wrong = "a newcomer cannot change the words";
  }
  const Counts all = world.sum();
  if (wrong.empty() && is_calm && introduced == 1 && all.refused == 0 && all.cut > 0)
    wrong = "a connection that lives was cut";
  base::add_counts(kBoxCounts, sum, all);
  late += world.server.late;
  return wrong.empty() ? wrong : "seed " + std::to_string(seed) + ": " + wrong + " (" + describe(world) + ")";
}

TEST(SwordboxWorlds, RandomOnesKeepTheirRules) {
  Counts sum;
  std::uint64_t late = 0;
  if (const char* seed = std::getenv("FARPOOL_SEED")) {
    EXPECT_EQ(run_seed(std::strtoull(seed, nullptr, 10), sum, late), "");
    return;
  }
  const char* asked = std::getenv("FARPOOL_SEEDS");
  const std::uint64_t seeds = asked != nullptr ? std::strtoull(asked, nullptr, 10) : kDefaultSeeds;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) ASSERT_EQ(run_seed(seed, sum, late), "");
  std::printf("%llu worlds: %s; %llu packets came after their client's fence, and none had an effect\n",
              static_cast<unsigned long long>(seeds), base::describe_counts(kBoxCounts, sum).c_str(),
              static_cast<unsigned long long>(late));
  EXPECT_GT(late, 0u);
  const auto never = base::never_counted(kBoxCounts, sum, [](const base::Count<Counts>& count) {
    return count.value != &Counts::not_roce && count.value != &Counts::surprises &&
           count.value != &Counts::dropped_bad_sum && count.value != &Counts::dropped_unsupported;
  });
  for (const std::string& name : never) ADD_FAILURE() << "no world has counted: " << name;
}

// --- small worlds ---

struct SmallWorld {
  const char* name;
  std::function<void(World&)> begin;
  WorldSetting setting;
};

Operation swap(std::uint64_t compare, std::uint64_t value) {
  return {.kind = Kind::compare_swap,
          .atomic = {.address = kWords, .key = 7, .swap_or_add = value, .compare = compare}};
}
Operation data() { return {.kind = Kind::write_data, .atomic = {.address = kData, .key = 7, .swap_or_add = 9}}; }
Operation row() { return {.kind = Kind::read_word, .atomic = {.address = kData, .key = 7}}; }
Operation set(std::uint64_t value) {
  return {.kind = Kind::set, .atomic = {.address = kWords, .key = 7, .swap_or_add = value}};
}

// Two clients take a lock and one gives it back, in chains; the word is known before.
void begin_lock(World& world) {
  Client& first = world.add(0xfffffe, true);
  Client& second = world.add(100, true);
  first.plan = {swap(0, 1), data(), swap(1, 0)};
  second.plan = {swap(0, 2), row()};
}
void begin_race(World& world) {
  for (std::uint32_t i = 0; i < 3; ++i) world.add(i * 1000, true).plan = {swap(0, i + 1), swap(0, i + 1)};
}
void begin_set(World& world) {
  world.add(1, true).plan = {swap(0, 5), swap(5, 6)};
  world.add(500, true).plan = {set(7), swap(7, 0)};
}
void begin_raw(World& world) {
  world.add(1, false).plan = {data(), swap(0, 5), swap(5, 0)};
  world.add(500, false).plan = {swap(0, 7), swap(7, 0)};
}

WorldSetting small_setting(int losses, int repeats, int delays, int deaths, int fences, int restarts) {
  WorldSetting setting;
  setting.box.ranges = {{kServer, kWords, 64}};
  setting.box.mtu = kMtu;
  setting.box.connections = setting.box.words = setting.box.entries = 4;
  setting.box.held = 3;
  setting.losses = losses;
  setting.repeats = repeats;
  setting.delays = delays;
  setting.deaths = deaths;
  setting.fences = fences;
  setting.restarts = restarts;
  return setting;
}

// Runs a world with every tape that departs from the usual at most `more` times behind its first `fixed` choices.
void explore(const SmallWorld& small, std::vector<std::uint32_t> tape, std::size_t fixed, int more,
             std::uint64_t& runs) {
  std::vector<std::uint32_t> bounds;
  World world(small.setting, [&](std::uint32_t bound) {
    bounds.push_back(bound);
    return bounds.size() <= tape.size() ? tape[bounds.size() - 1] : 0;
  });
  small.begin(world);
  ++runs;
  const std::string wrong = world.run();
  std::string printed;
  for (const std::uint32_t choice : tape) printed += std::to_string(choice) + " ";
  ASSERT_EQ(wrong, "") << small.name << ", tape " << printed << "; " << describe(world);
  if (more == 0) return;
  for (std::size_t at = fixed; at < bounds.size(); ++at) {
    std::vector<std::uint32_t> next = tape;
    next.resize(at + 1, 0);
    for (std::uint32_t choice = 1; choice < bounds[at]; ++choice) {
      next[at] = choice;
      explore(small, next, at + 1, more - 1, runs);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(SwordboxWorlds, SmallOnesKeepTheirRulesWhateverDepartsFromTheUsual) {
  const SmallWorld worlds[] = {{"a lock", begin_lock, small_setting(1, 1, 1, 1, 1, 0)},
                               {"a race", begin_race, small_setting(1, 1, 1, 1, 0, 0)},
                               {"a set", begin_set, small_setting(1, 1, 1, 0, 1, 0)},
                               {"raw connections", begin_raw, small_setting(1, 1, 1, 1, 0, 0)},
                               {"a new box", begin_lock, small_setting(1, 0, 1, 0, 0, 1)}};
  for (const SmallWorld& small : worlds) {
    std::uint64_t runs = 0;
    explore(small, {}, 0, std::getenv("FARPOOL_WHOLE") != nullptr ? 2 : 1, runs);
    if (HasFatalFailure()) return;
    std::printf("%s: %llu runs\n", small.name, static_cast<unsigned long long>(runs));
  }
}

}  // namespace
}  // namespace farpool::swordbox
