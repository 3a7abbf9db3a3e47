// SPDX-License-Identifier: Apache-2.0
// Scans beside a pair that is moved from one array to the other and back.
#include "index/cuckooduo/scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "index/cuckooduo/locate.h"
#include "protocols/cuckooduo/world_test.h"

namespace farpool::cuckooduo {
namespace {

constexpr Shape kFew{.buckets = 24, .slots = 4, .second = 1, .stash = 8, .spares = 2};
const std::string kStays = "stays";
constexpr std::size_t kMost = 8;  // moves of one chain

struct Play {
  bool over = false;
  std::uint64_t moves = 0, restless = 0, stale = 0;
};

// Moves the pair as an owner does: it is whole in its new place before the old one is cleared.
Task<void> move_back_and_forth(Shard::Body* body, fabric::Port* port, Site site, Play* play, std::uint64_t seed) {
  const Spots spots = Spots::of(base::keyed_hash(site.secret, base::bytes_of(kStays)), site.shape, site.salt);
  const std::array places{site.shape.place(spots.row1, 0), site.shape.place(spots.row2, 0)};
  base::Random random(seed);
  const std::uint32_t slot_bytes = site.shape.slot_bytes;
  fabric::Buffer pairs = port->buffer(kMost * slot_bytes), zeros = port->buffer(kClearedBytes);
  std::fill(zeros.span().begin(), zeros.span().end(), std::byte{0});
  while (!play->over) {
    std::vector<fabric::Op> chain;
    for (std::size_t i = 0, count = 1 + random.below(kMost); i < count; ++i) {
      const std::uint64_t moves = ++play->moves;
      const Place to = places[moves % 2], from = places[1 - moves % 2];
      const base::MutableBytes pair = pairs.span().subspan(i * slot_bytes, slot_bytes);
      const std::uint64_t bytes = put_pair(pair, to, moves, base::bytes_of(kStays), base::bytes_of(kStays));
      chain.push_back(fabric::Op::write(site.at(to), pair.first(bytes)));
      chain.push_back(fabric::Op::write(site.at(from), zeros.span()));
    }
    const fabric::Outcome outcome = co_await body->session->post(chain, port->now() + kPatience, body->cost);
    EXPECT_EQ(outcome.fate, fabric::Fate::done);
    // Some pauses are long enough for two readings.
    co_await port->sleep_for(static_cast<Nanos>(random.below(random.chance(0.2) ? 40 : 4)) * base::kMicrosecond);
  }
}

Task<void> scan_all(Shard::Body* body, fabric::Port* port, Site site, Play* play, int times) {
  const std::function<void()> on_trouble = [] {};
  for (int i = 0; i < times; ++i) {
    std::vector<std::string> keys;
    std::uint64_t position = 0;
    do {
      const auto page = co_await scan({.session = *body->session,
                                       .site = site,
                                       .on_trouble = on_trouble,
                                       .restless = play->restless,
                                       .stale = play->stale},
                                      position, i % 2 == 0 ? 1 : 1000, port->now() + kPatience, body->cost);
      EXPECT_TRUE(page.ok()) << page.status().message();
      if (!page.ok()) break;
      keys.insert(keys.end(), page->keys.begin(), page->keys.end());
      position = page->next;
    } while (position != 0);
    EXPECT_NE(std::find(keys.begin(), keys.end(), kStays), keys.end()) << "scan " << i;
  }
  play->over = true;
}

TEST(CuckooDuoScan, NeverMissesAKeyThatIsMovedBackAndForth) {
  std::uint64_t restless = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    World world(kFew, seed);
    Shard &mover = world.join(), &reader = world.join();
    const Site site = world.site();
    Play play;
    task::Scope tasks;
    tasks.spawn(move_back_and_forth(mover.body.get(), mover.port, site, &play, seed));
    ASSERT_TRUE(world.wait_until([&] { return play.moves > kMost; }));
    tasks.spawn(scan_all(reader.body.get(), reader.port, site, &play, 60));
    ASSERT_TRUE(world.wait_until([&] { return tasks.running() == 0; }));
    restless += play.restless;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(restless, 300u);
}

}  // namespace
}  // namespace farpool::cuckooduo
