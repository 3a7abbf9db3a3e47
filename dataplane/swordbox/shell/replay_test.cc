// SPDX-License-Identifier: Apache-2.0
#include "swordbox/shell/replay.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "roce/pcap.h"

namespace farpool::swordbox {
namespace {

constexpr roce::Address kClient = roce::ipv4(10, 9, 0, 1), kServer = roce::ipv4(10, 9, 0, 2);
constexpr std::uint64_t kLock = 0x1000;
constexpr base::Nanos kBegin = 1'700'000'000 * base::kSecond;

struct File {
  File() {
    const auto header = roce::pcap_header();
    bytes.assign(header.begin(), header.end());
  }
  void add(base::Nanos time, roce::Opcode opcode, std::uint32_t psn) {
    roce::Packet packet;
    const bool request = roce::is_request(opcode);
    packet.ip.from = request ? kClient : kServer;
    packet.ip.to = request ? kServer : kClient;
    packet.bth.opcode = opcode;
    packet.bth.queue_pair = request ? 0x22 : 0x11;
    packet.bth.psn = psn;
    packet.atomic = {.address = kLock, .key = 7, .swap_or_add = 1, .compare = 0};
    packet.aeth = {.syndrome = roce::kAckWithoutCredits, .msn = psn + 1};
    std::vector<std::byte> frame(256);
    frame.resize(roce::build_sealed(packet, frame));
    const auto header = roce::pcap_frame_header(kBegin + time, frame.size());
    bytes.insert(bytes.end(), header.begin(), header.end());
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  std::vector<std::byte> bytes;
};

using Sent = std::vector<std::pair<base::Nanos, std::pair<std::uint32_t, roce::Opcode>>>;

Sent play(const File& file, Replayed& result) {
  Sent sent;
  Settings settings;
  settings.ranges = {{kServer, kLock, 8}};
  const auto replayed = replay(file.bytes, settings, [&](base::Nanos time, base::Bytes frame) {
    roce::Packet packet;
    EXPECT_EQ(roce::parse(frame, packet), roce::Refusal::none);
    EXPECT_TRUE(roce::sums_hold(frame, packet));
    sent.push_back({time - kBegin, {packet.bth.psn, packet.bth.opcode}});
    return base::Status();
  });
  EXPECT_TRUE(replayed.ok()) << replayed.status().message();
  if (replayed.ok()) result = *replayed;
  return sent;
}

TEST(Replay, ACaptureOfALockGivesTheSamePacketsEveryTime) {
  using roce::Opcode;
  File file;
  file.add(0, Opcode::send_only, 0);
  file.add(2 * base::kMillisecond, Opcode::acknowledge, 0);  // proves that the box has seen everything
  file.add(3 * base::kMillisecond, Opcode::compare_swap, 1);
  file.add(3'100'000, Opcode::atomic_acknowledge, 1);  // the word is 0 after nothing: its prior value is 0, so it is 1
  file.add(4 * base::kMillisecond, Opcode::compare_swap, 2);
  file.add(4'100'000, Opcode::acknowledge, 2);
  const Sent wanted = {{0, {0, Opcode::send_only}},
                       {2 * base::kMillisecond, {0, Opcode::acknowledge}},
                       {3 * base::kMillisecond, {1, Opcode::compare_swap}},
                       {3'100'000, {1, Opcode::atomic_acknowledge}},
                       {4 * base::kMillisecond, {2, Opcode::write_only}},
                       {4'100'000, {2, Opcode::atomic_acknowledge}}};
  for (int i = 0; i < 2; ++i) {
    Replayed result;
    EXPECT_EQ(play(file, result), wanted);
    EXPECT_EQ(result.frames, 6u);
    EXPECT_EQ(result.sent, 6u);
    EXPECT_EQ(result.counts.failures_replaced, 1u);
  }
}

TEST(Replay, TimersFireBetweenFramesAndBehindTheLast) {
  using roce::Opcode;
  File file;
  file.add(0, Opcode::compare_swap, 0);
  file.add(1'200'000, Opcode::send_only, 1);
  Replayed result;
  const Sent sent = play(file, result);
  // Every 500 us until the server has been silent for 5 ms.
  ASSERT_EQ(sent.size(), 11u);
  EXPECT_EQ(sent[1], (Sent::value_type{500'000, {0, Opcode::compare_swap}}));
  EXPECT_EQ(sent[3], (Sent::value_type{1'200'000, {1, Opcode::send_only}}));
  EXPECT_EQ(sent[10].first, 4'500'000);
  EXPECT_EQ(result.counts.cut, 1u);
}

TEST(Replay, DamageAndErrorsOfTheOutputAreTold) {
  File file;
  file.add(0, roce::Opcode::send_only, 0);
  const auto take = [](base::Nanos, base::Bytes) { return base::Status(); };
  const auto refuse = [](base::Nanos, base::Bytes) { return base::Status(base::Code::unavailable, "full"); };
  EXPECT_EQ(replay(file.bytes, {}, refuse).status().message(), "full");
  file.bytes.pop_back();
  EXPECT_EQ(replay(file.bytes, {}, take).code(), base::Code::corrupt);
  EXPECT_EQ(replay({}, {}, take).code(), base::Code::corrupt);
}

}  // namespace
}  // namespace farpool::swordbox
