// SPDX-License-Identifier: Apache-2.0
#include "sim/world.h"

#include <gtest/gtest.h>

namespace farpool::sim {
namespace {

using Kind = Call::Kind;

TEST(World, OneClientReadsWhatItWrote) {
  World world;
  Client& client = world.connect("a");
  const auto ask = [&](Kind kind, std::string key, std::string value = "") {
    ASSERT_TRUE(world.run(
        client, world.call(client, {.kind = kind, .key = std::move(key), .value = std::move(value)}, base::kSecond)));
  };
  ask(Kind::get, "x");
  ask(Kind::insert, "x", "1");
  ask(Kind::insert, "x", "2");
  ask(Kind::get, "x");
  ask(Kind::update, "x", std::string(500, 'v'));
  ask(Kind::get, "x");
  ask(Kind::put, "y", "5");
  ask(Kind::add, "y");
  ask(Kind::remove, "x");
  ask(Kind::get, "x");
  EXPECT_EQ(world.history().judge(), std::nullopt);
  EXPECT_TRUE(world.failures().empty()) << world.failures()[0].second.message();
  EXPECT_EQ(world.history().size(), 10u);
  EXPECT_EQ(world.history().of("y").back().found, "6");
}

}  // namespace
}  // namespace farpool::sim
