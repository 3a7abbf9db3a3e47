// SPDX-License-Identifier: Apache-2.0
#include "roce/packet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "roce/cm.h"
#include "roce/psn.h"

namespace farpool::roce {
namespace {

struct Captured {
  std::string run, sender;
  std::vector<std::byte> frame;
};

std::vector<Captured> captured() {
  std::ifstream file("testdata/softroce.txt");
  EXPECT_TRUE(file) << "run the test from its room's directory";
  std::vector<Captured> all;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    Captured one;
    std::string hex;
    std::istringstream(line) >> one.run >> one.sender >> hex;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
      one.frame.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    all.push_back(one);
  }
  return all;
}

TEST(Psn, WrapsAndCompares) {
  EXPECT_EQ(psn_add(0xffffff, 1), 0u);
  EXPECT_EQ(psn_distance(0xffffff, 1), 2);
  EXPECT_EQ(psn_distance(1, 0xffffff), -2);
  EXPECT_EQ(psn_distance(5, 5), 0);
  EXPECT_EQ(psn_distance(0, 0x7fffff), 0x7fffff);
  EXPECT_EQ(psn_distance(0, 0x800000), -0x800000);
  EXPECT_TRUE(psn_before(0xfffffe, 3));
  EXPECT_FALSE(psn_before(3, 3));
  EXPECT_EQ(psns_of(0, 1024), 1u);
  EXPECT_EQ(psns_of(1024, 1024), 1u);
  EXPECT_EQ(psns_of(1025, 1024), 2u);
  EXPECT_EQ(psns_of(0xffffffff, 256), 0x1000000u);
}

TEST(Golden, WhatSoftRoceSendsIsReadWhollyAndWrittenAgain) {
  std::set<Opcode> opcodes;
  for (const Captured& one : captured()) {
    SCOPED_TRACE(one.run + " " + one.sender);
    Packet packet;
    ASSERT_STREQ(text_of(parse(one.frame, packet)), "a packet");
    EXPECT_TRUE(sums_hold(one.frame, packet));
    std::vector<std::byte> again(one.frame.size());
    EXPECT_EQ(build(packet, again), one.frame.size());
    EXPECT_EQ(again, one.frame);
    packet.icrc = 0;
    packet.ip.checksum = 0;
    EXPECT_EQ(build_sealed(packet, again), one.frame.size());
    EXPECT_EQ(again, one.frame);
    opcodes.insert(packet.bth.opcode);
  }
  using enum Opcode;
  EXPECT_THAT(opcodes,
              testing::IsSupersetOf({send_only, write_first, write_middle, write_last, write_only, read_request,
                                     read_response_first, read_response_middle, read_response_last, read_response_only,
                                     acknowledge, compare_swap, fetch_add, atomic_acknowledge, ud_send_only}));
}

TEST(Golden, TheWordsOfAnAtomicAndItsAnswer) {
  std::map<Opcode, Packet> faa;
  const std::vector<Captured> all = captured();
  for (const Captured& one : all) {
    Packet packet;
    ASSERT_EQ(parse(one.frame, packet), Refusal::none);
    if (one.run == "faa") faa[packet.bth.opcode] = packet;
  }
  const Packet& request = faa.at(Opcode::fetch_add);
  EXPECT_EQ(request.ip.from, ipv4(10, 8, 0, 1));
  EXPECT_EQ(request.ip.to, ipv4(10, 8, 0, 2));
  EXPECT_EQ(request.bth.queue_pair, 0x11u);
  EXPECT_TRUE(request.bth.ack_request);
  EXPECT_NE(request.atomic.address, 0u);
  EXPECT_EQ(request.atomic.address % 8, 0u);
  EXPECT_TRUE(request.payload.empty());
  const Packet& answer = faa.at(Opcode::atomic_acknowledge);
  EXPECT_EQ(ack_kind(answer.aeth.syndrome), AckKind::ack);
  EXPECT_EQ(answer.aeth.msn, 1u);
  EXPECT_EQ(answer.ip.from, request.ip.to);
  EXPECT_TRUE(answer.payload.empty());
}

Packet sample(Opcode opcode, bool v6 = false) {
  Packet packet;
  packet.ethernet.to = {2, 0, 0, 0, 0, 1};
  packet.ethernet.from = {2, 0, 0, 0, 0, 2};
  packet.ip.v6 = v6;
  packet.ip.from = ipv4(10, 0, 0, 1);
  packet.ip.to = ipv4(10, 0, 0, 2);
  packet.bth.opcode = opcode;
  packet.bth.queue_pair = 0x123456;
  packet.bth.psn = 0xfedcba;
  packet.atomic = {
      .address = 0x1020304050607080, .key = 7, .swap_or_add = 8, .compare = 9, .swap_mask = 10, .compare_mask = 11};
  packet.reth = {.address = 0x1020304050607080, .key = 7, .length = 8};
  packet.deth = {.key = kManagerKey, .queue_pair = 1};
  packet.prior = 0x1122334455667788;
  packet.aeth = {.syndrome = kAckWithoutCredits, .msn = 0xabcdef};
  packet.immediate = 0xdeadbeef;
  return packet;
}

// A packet of each opcode that has headers of its own, over both families and with a VLAN tag and a UDP checksum.
TEST(Packet, EachFormatIsReadAsItWasWritten) {
  const std::array<std::byte, 8> word = {std::byte{1}, std::byte{2}};
  for (int number = 0; number < 256; ++number) {
    for (const bool v6 : {false, true}) {
      for (const bool tagged : {false, true}) {
        SCOPED_TRACE(number);
        Packet packet = sample(static_cast<Opcode>(number), v6);
        packet.ethernet.tagged = tagged;
        packet.ethernet.tag = 0x2064;
        packet.udp.checksum = v6 ? 1 : 0;
        packet.payload = word;
        packet.bth.pad = 3;
        std::array<std::byte, 256> bytes = {};
        const std::size_t size = build_sealed(packet, bytes);
        EXPECT_EQ(size, kEthernetBytes + (tagged ? kTagBytes : 0) + (v6 ? kIpv6Bytes : kIpv4Bytes) + kUdpBytes +
                            kBthBytes + bytes_of(headers_of(packet.bth.opcode)) + 8 + kIcrcBytes);
        const base::Bytes frame = base::Bytes(bytes).first(size);
        Packet read;
        ASSERT_EQ(parse(frame, read), Refusal::none);
        EXPECT_TRUE(sums_hold(frame, read));
        EXPECT_EQ(read.bth.opcode, packet.bth.opcode);
        EXPECT_EQ(read.bth.psn, packet.bth.psn);
        EXPECT_EQ(read.ip.to, packet.ip.to);
        EXPECT_EQ(read.data().size(), 5u);
        const unsigned headers = headers_of(packet.bth.opcode);
        if (headers & has_reth) EXPECT_EQ(read.reth.address, packet.reth.address);
        if (headers & has_atomic) EXPECT_EQ(read.atomic.compare, packet.atomic.compare);
        if (headers & has_masks) EXPECT_EQ(read.atomic.compare_mask, packet.atomic.compare_mask);
        if (headers & has_prior) EXPECT_EQ(read.prior, packet.prior);
        if (headers & has_aeth) EXPECT_EQ(read.aeth.msn, packet.aeth.msn);
        if (headers & has_immediate) EXPECT_EQ(read.immediate, packet.immediate);
        if (headers & has_deth) EXPECT_EQ(read.deth.key, packet.deth.key);
      }
    }
  }
}

TEST(Packet, EveryFlippedBitThatEndpointsWouldNoticeBreaksASum) {
  std::array<std::byte, 128> bytes = {};
  const std::size_t size = build_sealed(sample(Opcode::compare_swap), bytes);
  for (std::size_t bit = kEthernetBytes * 8; bit < size * 8; ++bit) {
    std::vector<std::byte> flipped(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    flipped[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    Packet packet;
    if (parse(flipped, packet) != Refusal::none) continue;
    // Routers may mark congestion, and no sum covers that in the base header, nor the checksum that stands for none.
    const std::size_t at = bit / 8;
    const bool in_congestion = at == kEthernetBytes + kIpv4Bytes + kUdpBytes + 4;
    const bool in_udp_sum = at == kEthernetBytes + kIpv4Bytes + 6 || at == kEthernetBytes + kIpv4Bytes + 7;
    if (in_udp_sum) continue;
    EXPECT_EQ(sums_hold(flipped, packet), in_congestion) << "bit " << bit;
  }
}

TEST(Packet, WhatIsCutShortIsRefused) {
  std::array<std::byte, 128> bytes = {};
  for (const bool v6 : {false, true}) {
    const std::size_t size = build_sealed(sample(Opcode::write_only, v6), bytes);
    Packet packet;
    for (std::size_t left = 0; left < size; ++left) {
      EXPECT_NE(parse(base::Bytes(bytes).first(left), packet), Refusal::none) << left;
    }
    std::vector<std::byte> longer(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    longer.resize(size + 6);  // Ethernet fills up
    ASSERT_EQ(parse(longer, packet), Refusal::none);
    EXPECT_EQ(packet.tail.size(), 6u);
    EXPECT_TRUE(sums_hold(longer, packet));
  }
}

TEST(Packet, EachRefusalHasItsReason) {
  std::array<std::byte, 128> bytes = {};
  const auto refusal = [&](const auto& change) {
    const std::size_t size = build_sealed(sample(Opcode::write_only), bytes);
    change();
    Packet packet;
    return parse(base::Bytes(bytes).first(size), packet);
  };
  EXPECT_EQ(refusal([&] { bytes[12] = std::byte{0x09}; }), Refusal::not_ip);
  EXPECT_EQ(refusal([&] { bytes[14] = std::byte{0x65}; }), Refusal::not_ip);
  EXPECT_EQ(refusal([&] { bytes[14] = std::byte{0x46}; }), Refusal::ip_options);
  EXPECT_EQ(refusal([&] { bytes[20] = std::byte{0x20}; }), Refusal::ip_fragment);
  EXPECT_EQ(refusal([&] { bytes[23] = std::byte{6}; }), Refusal::not_roce);
  EXPECT_EQ(refusal([&] { bytes[36] = std::byte{0}; }), Refusal::not_roce);
  EXPECT_EQ(refusal([&] { bytes[17] = std::byte{200}; }), Refusal::bad_length);
  EXPECT_EQ(refusal([&] { bytes[39] = std::byte{44}; }), Refusal::bad_length);
  EXPECT_EQ(refusal([&] { bytes[43] |= std::byte{0x10}; }), Refusal::bad_pad);
  EXPECT_EQ(refusal([&] {}), Refusal::none);
}

TEST(Cm, ReadsTheQueuePairsAndPsnsOfASetUp) {
  std::vector<CmMessage> messages;
  std::map<std::uint32_t, std::uint32_t> first;  // PSN, by the queue pair that gets it
  for (const Captured& one : captured()) {
    Packet packet;
    ASSERT_EQ(parse(one.frame, packet), Refusal::none);
    if (one.run != "cm") continue;
    const std::optional<CmMessage> message = parse_cm(packet);
    if (message) messages.push_back(*message);
    if (packet.bth.queue_pair > 1) first.try_emplace(packet.bth.queue_pair, packet.bth.psn);
  }
  ASSERT_GE(messages.size(), 3u);
  EXPECT_EQ(messages[0].kind, CmKind::request);
  EXPECT_EQ(messages[0].mtu, 1024u);
  EXPECT_NE(messages[0].queue_pair, 0u);
  EXPECT_EQ(messages[1].kind, CmKind::reply);
  EXPECT_EQ(messages[1].remote_id, messages[0].local_id);
  EXPECT_NE(messages[1].queue_pair, 0u);
  ASSERT_TRUE(first.contains(messages[1].queue_pair));
  EXPECT_EQ(first[messages[1].queue_pair], messages[1].receivers_psn);
  EXPECT_EQ(messages[2].kind, CmKind::ready);
  EXPECT_EQ(messages[2].remote_id, messages[1].local_id);
  EXPECT_EQ(messages[2].local_id, messages[0].local_id);
}

}  // namespace
}  // namespace farpool::roce
