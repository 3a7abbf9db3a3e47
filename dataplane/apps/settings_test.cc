// SPDX-License-Identifier: Apache-2.0
#include "apps/settings.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

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
