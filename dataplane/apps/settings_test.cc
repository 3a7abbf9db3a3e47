// SPDX-License-Identifier: Apache-2.0
#include "apps/settings.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "map/shard_map.h"

namespace farpool::apps {
namespace {

TEST(Settings, SizesTakeBinaryUnits) {
  EXPECT_EQ(*parse_size("4096"), 4096u);
  EXPECT_EQ(*parse_size("64Ki"), 65536u);
  EXPECT_EQ(*parse_size("256Mi"), 256u << 20);
  EXPECT_EQ(*parse_size("3Gi"), 3ull << 30);
  for (const char* bad :
       {"", "Mi", "-1", "1.5Gi", "10M", "10 Mi", "0x10", "99999999999999999999", "9999999999Gi", "4Ki "}) {
    auto parsed = parse_size(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_NE(parsed.status().message().find(bad), std::string::npos);
  }
}

TEST(Settings, DurationsNeedAUnit) {
  EXPECT_EQ(*parse_duration("20us"), 20 * base::kMicrosecond);
  EXPECT_EQ(*parse_duration("250ms"), 250 * base::kMillisecond);
  EXPECT_EQ(*parse_duration("2s"), 2 * base::kSecond);
  EXPECT_EQ(*parse_duration("5m"), 300 * base::kSecond);
  for (const char* bad : {"", "2", "s", "2h", "2 s", "-2s", "1e3ms"}) EXPECT_FALSE(parse_duration(bad).ok()) << bad;
}

TEST(Settings, AnAdvertisedAddressIsOneThatOthersCanDial) {
  for (const auto& [text, means] :
       std::vector<std::pair<std::string, std::string>>{{"10.0.0.1:7400", "10.0.0.1:7400"},
                                                        {"m0.pool.svc:1", "m0.pool.svc:1"},
                                                        {"[fd00::5]:7400", "[fd00::5]:7400"},
                                                        {"fd00::5:7400", "[fd00::5]:7400"},
                                                        {"fe80::1:80", "[fe80::1]:80"}}) {
    const auto address = advertised("--advertise", text);
    ASSERT_TRUE(address.ok()) << text << ": " << address.status().message();
    EXPECT_EQ(*address, means);
  }
  for (const char* text : {"", "host", "host:", "host:0", "0.0.0.0:7400", "[::]:7400", ":::7400", "fd00::5", "a:b:1",
                           "unix:/run/x", "host:65536"}) {
    const auto address = advertised("--advertise", text);
    EXPECT_EQ(address.code(), base::Code::invalid_argument) << text;
    EXPECT_NE(address.status().message().find("--advertise"), std::string::npos) << address.status().message();
  }
}

// The operator's tests sign the same map with the same key (operator/internal/shardmap).
TEST(Settings, TheMapKeyChecksWhatTheOperatorSigns) {
  const auto read = [](const std::string& name) {
    std::ifstream file("../../api/testdata/" + name, std::ios::binary);
    EXPECT_TRUE(file) << "run the test from dataplane/apps";
    return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  };
  const std::string text = read("map_key.txt"), golden = read("signed_shard_map.bin");
  CommonSettings settings;
  CLI::App app;
  add_common(app, settings);
  app.parse("--name n --pool-uid p --map-key " + text.substr(0, text.find('\n')));
  ASSERT_NE(settings.map_key, nullptr);
  const auto map = map::Map::parse(golden);
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_EQ(map->bytes(), golden);
  EXPECT_TRUE(map::check_signature(map->message(), settings.map_key.get()).ok());
  v1alpha1::ShardMap bare = map->message();
  bare.clear_signature();
  EXPECT_EQ(map::deterministic_bytes(bare), read("shard_map.bin"));
  EXPECT_EQ(map::check_signature(bare, settings.map_key.get()).code(), base::Code::forbidden);
  EXPECT_TRUE(map::check_signature(bare, nullptr).ok()) << "a pool without a map key";
  // With any bit flipped it is no map, its signature does not hold, or the bytes mean the same map: a varint of 64 bits
  // has bits that do not count.
  for (std::size_t bit = 0; bit < 8 * golden.size(); ++bit) {
    std::string flipped = golden;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const auto other = map::Map::parse(flipped);
    if (!other.ok() || other->bytes() == golden) continue;
    EXPECT_FALSE(map::check_signature(other->message(), settings.map_key.get()).ok()) << bit;
  }
  // Another pool has the same map but for its uid.
  v1alpha1::ShardMap theirs = map->message();
  theirs.set_pool_uid("0f6f3a9b-5c55-4d3b-9b57-2f1d6a0e1c11");
  EXPECT_FALSE(map::check_signature(theirs, settings.map_key.get()).ok());

  CLI::App strict;
  add_common(strict, settings);
  EXPECT_THROW(strict.parse("--name n --pool-uid p --map-key none"), CLI::ValidationError);
}

TEST(Settings, TlsIsAllOrExplicitlyNothing) {
  CommonSettings settings;
  EXPECT_EQ(load_tls(settings).code(), base::Code::invalid_argument);
  settings.insecure_plaintext = true;
  auto plain = load_tls(settings);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(*plain, nullptr);
  settings.tls.cert = "cert.pem";
  EXPECT_EQ(load_tls(settings).code(), base::Code::invalid_argument);
}

TEST(Settings, UnknownKeysAndBadUnitsAreRefusedByName) {
  CommonSettings common;
  std::uint64_t memory = 0;
  CLI::App app("test");
  add_common(app, common);
  add_size(app, "--memory", memory, "");
  try {
    app.parse("--name n --pool-uid p --memory 12Q", false);
    FAIL() << "12Q passed for a size";
  } catch (const CLI::ParseError& error) {
    EXPECT_NE(std::string(error.what()).find("--memory"), std::string::npos);
  }
  EXPECT_THROW(app.parse("--name n --pool-uid p --unknown 1", false), CLI::ParseError);
}

}  // namespace
}  // namespace farpool::apps
