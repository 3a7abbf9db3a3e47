// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/daemon_test.h"
#include "apps/swordbox_flags.h"
#include "swordbox/shell/shell.h"
#include "swordbox/shell/veth_test.h"

namespace farpool::apps {
namespace {

using testing::HasSubstr;

TEST(SwordboxRange, IsServerFirstAndBytes) {
  const auto range = parse_range("10.0.0.1@0x7f0000001000+4Ki");
  ASSERT_TRUE(range.ok()) << range.status().message();
  EXPECT_EQ(range->server, roce::ipv4(10, 0, 0, 1));
  EXPECT_EQ(range->first, 0x7f0000001000u);
  EXPECT_EQ(range->bytes, 4096u);
  const auto v6 = parse_range("fd00::1@4096+8");
  ASSERT_TRUE(v6.ok()) << v6.status().message();
  EXPECT_EQ(v6->server.bytes[0], 0xfd);
  EXPECT_EQ(v6->server.bytes[15], 1);
  EXPECT_EQ(v6->first, 4096u);
  EXPECT_TRUE(parse_range("10.0.0.1@0xfffffffffffffff0+8").ok());
  for (const auto& [text, why] :
       {std::pair("10.0.0.1", "@ or + is missing"), std::pair("10.0.0.1+8@0", "@ or + is missing"),
        std::pair("server@0+8", "\"server\" is no IP address"), std::pair("10.0.0.1@0x+8", "is no number"),
        std::pair("10.0.0.1@8z+8", "is no number"), std::pair("10.0.0.1@0+0", "words of 8 bytes"),
        std::pair("10.0.0.1@4+8", "words of 8 bytes"), std::pair("10.0.0.1@0+12", "words of 8 bytes"),
        std::pair("10.0.0.1@0+8Ti", "is not a size"), std::pair("10.0.0.1@0xfffffffffffffff8+16", "behind the last")}) {
    EXPECT_THAT(parse_range(text).status().message(), HasSubstr(why)) << text;
  }
}

// Returns what the program says of its flags; it ends at once.
std::string refused(std::vector<std::string> flags, int status = 2) {
  Daemon daemon(FARPOOL_SWORDBOX, std::move(flags));
  EXPECT_EQ(daemon.wait(), status);
  return daemon.output();
}

TEST(Swordbox, FlagsThatCannotWorkAreRefusedWithAReason) {
  const std::string clients = "--clients-interface=c1", servers = "--servers-interface=s1";
  EXPECT_THAT(refused({clients}), HasSubstr("--clients-interface and --servers-interface are both needed"));
  EXPECT_THAT(refused({clients, servers, "--range=10.0.0.1@0+16", "--range=10.0.0.1@8+8"}), HasSubstr("overlap"));
  EXPECT_THAT(refused({clients, servers, "--again=5ms"}), HasSubstr("--again must be shorter than --silence"));
  EXPECT_THAT(refused({clients, servers, "--longest-life=0s"}), HasSubstr("--longest-life must be longer than 0"));
  EXPECT_THAT(refused({clients, servers, "--capture=x"}), HasSubstr("are all needed for a capture"));
  EXPECT_THAT(refused({clients, servers, "--capture-client=10.0.0.1"}), HasSubstr("are all needed for a capture"));
  EXPECT_THAT(refused({clients, "--servers-interface=nowhere0"}), HasSubstr("there is no interface"));
  EXPECT_THAT(refused({"replay", "/dev/null"}, 1), HasSubstr("cannot be read, or is empty"));
  EXPECT_THAT(refused({"replay", FARPOOL_SWORDBOX}, 1), HasSubstr("does not begin as a pcap file does"));
}

TEST(Swordbox, StandsBetweenTwoInterfacesUntilASignal) {
  const swordbox::Cables cables;
  swordbox::End client("c0"), server("s0");
  const int http = free_port();
  Daemon daemon(FARPOOL_SWORDBOX, {"--clients-interface=c1", "--servers-interface=s1", "--range=10.0.0.1@4096+4Ki",
                                   "--log-format=text", "--metrics-listen=127.0.0.1:" + std::to_string(http)});
  ASSERT_TRUE(comes_up(daemon, http));
  client.send(swordbox::Bytes(100, std::byte{2}));
  EXPECT_TRUE(eventually([&] { return !server.take().empty(); }));
  EXPECT_TRUE(eventually([&] { return sample_of("farpool_swordbox_other_frames_total", http) == 1; }));
  EXPECT_EQ(sample_of("farpool_swordbox_frames_received_total{side=\"clients\"}", http), 1);
  expect_counters("farpool_swordbox_", swordbox::kBoxCounts, http);
  expect_counters("farpool_swordbox_", swordbox::kShellCounts, http);
  ASSERT_TRUE(swordbox::does("ip link set s1 down"));
  EXPECT_TRUE(eventually([&] { return get(http, "/readyz")->find("interface s1 is down") != std::string::npos; }));
  EXPECT_THAT(*get(http, "/healthz"), HasSubstr(" 200 "));
  EXPECT_EQ(sample_of("farpool_swordbox_ready", http), 0);
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0) << daemon.output();
  EXPECT_THAT(daemon.output(), HasSubstr("the box ends on signal 15"));
}

}  // namespace
}  // namespace farpool::apps
