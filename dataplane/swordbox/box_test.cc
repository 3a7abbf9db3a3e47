// SPDX-License-Identifier: Apache-2.0
// Single packets: what becomes of their bytes, and what the box does with input that it cannot use.
#include "swordbox/box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "base/random.h"
#include "roce/psn.h"

namespace {
std::uint64_t allocations = 0;
}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace farpool::swordbox {
namespace {

using roce::Opcode;

constexpr roce::Address kServer = roce::ipv4(10, 0, 0, 1);
constexpr roce::Address kClient = roce::ipv4(10, 0, 0, 2);
constexpr std::uint64_t kWord = 0x7000;

class BoxTest : public testing::Test, protected Sink {
 protected:
  static Settings settings() {
    Settings made;
    made.ranges = {{kServer, kWord, 64}};
    made.connections = 4;
    made.words = 4;
    return made;
  }

  void send(base::Bytes frame) override {
    if (!keep_) return;
    frames.emplace_back(frame.begin(), frame.end());
  }

  // Gives the box a packet and returns what leaves it.
  std::vector<roce::Packet> give(const roce::Packet& packet) {
    std::vector<std::byte> frame(512);
    frame.resize(roce::build_sealed(packet, frame));
    return give_frame(frame);
  }
  std::vector<roce::Packet> give_frame(base::Bytes frame) {
    frames.clear();
    box.on_packet(frame, now, *this);
    return taken();
  }
  std::vector<roce::Packet> taken() {
    std::vector<roce::Packet> packets;
    for (const auto& each : frames) {
      packets.emplace_back();
      EXPECT_EQ(roce::parse(each, packets.back()), roce::Refusal::none);
      EXPECT_TRUE(roce::sums_hold(each, packets.back()));
    }
    return packets;
  }

  static roce::Packet request(Opcode opcode, std::uint32_t psn, std::uint32_t number = 1) {
    roce::Packet packet;
    packet.ip.from = kClient;
    packet.ip.to = kServer;
    packet.udp.from_port = static_cast<std::uint16_t>(0xc000 + number);
    packet.bth.opcode = opcode;
    packet.bth.queue_pair = 0x100 + number;
    packet.bth.psn = psn;
    return packet;
  }
  static roce::Packet cas(std::uint32_t psn, std::uint64_t compare, std::uint64_t swap, std::uint32_t number = 1) {
    roce::Packet packet = request(Opcode::compare_swap, psn, number);
    packet.atomic = {.address = kWord, .key = 0x55 + number, .swap_or_add = swap, .compare = compare};
    return packet;
  }
  static roce::Packet response(Opcode opcode, std::uint32_t psn, std::uint32_t number = 1, std::uint64_t prior = 0) {
    roce::Packet packet;
    packet.ip.from = kServer;
    packet.ip.to = kClient;
    packet.bth.opcode = opcode;
    packet.bth.queue_pair = 0x800 + number;
    packet.bth.psn = psn;
    packet.aeth = {.syndrome = roce::kAckWithoutCredits, .msn = psn + 1};
    packet.prior = prior;
    return packet;
  }
  void introduce(std::uint32_t number = 1) {
    box.introduce(kClient, 0x800 + number, kServer, 0x100 + number, 0, 1024, now);
  }
  // Lets the box learn that the word holds this: takes PSN 0 of the connection.
  void learn(std::uint64_t value, std::uint32_t number = 1) {
    introduce(number);
    ASSERT_EQ(give(cas(0, value + 1, 0, number)).size(), 1u);
    ASSERT_EQ(give(response(Opcode::atomic_acknowledge, 0, number, value)).size(), 1u);
  }

  base::Nanos now = base::kSecond;
  Box box{settings(), 0};
  std::vector<std::vector<std::byte>> frames;
  bool keep_ = true;
};

TEST_F(BoxTest, TheBytesOfWhatIsReplaced) {
  learn(0);
  const roce::Packet asked = cas(1, 0, 0x1122334455667788);
  const roce::Packet write = give(asked).at(0);
  // The dissertation: a CAS becomes four bytes shorter, and only opcode and the header behind the base header change.
  std::vector<std::byte> original(512);
  original.resize(roce::build_sealed(asked, original));
  EXPECT_EQ(frames.at(0).size() + 4, original.size());
  EXPECT_EQ(write.bth.opcode, Opcode::write_only);
  EXPECT_EQ(write.bth.queue_pair, asked.bth.queue_pair);
  EXPECT_EQ(write.bth.psn, asked.bth.psn);
  EXPECT_EQ(write.udp.from_port, asked.udp.from_port);
  EXPECT_EQ(write.reth.address, asked.atomic.address);
  EXPECT_EQ(write.reth.key, asked.atomic.key);
  EXPECT_EQ(write.reth.length, 8u);
  EXPECT_TRUE(write.bth.ack_request);
  ASSERT_EQ(write.payload.size(), 8u);
  EXPECT_EQ(base::load<std::uint64_t>(write.payload.data()), 0x1122334455667788u);
  const roce::Packet ack = response(Opcode::acknowledge, 1);
  std::vector<std::byte> plain(512);
  plain.resize(roce::build_sealed(ack, plain));
  const roce::Packet answer = give(ack).at(0);
  EXPECT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames.at(0).size(), plain.size() + 8);
  EXPECT_EQ(answer.bth.opcode, Opcode::atomic_acknowledge);
  EXPECT_EQ(answer.bth.psn, 1u);
  EXPECT_EQ(answer.prior, 0u);
  EXPECT_EQ(answer.aeth.msn, ack.aeth.msn);
  EXPECT_EQ(answer.bth.queue_pair, ack.bth.queue_pair);
}

TEST_F(BoxTest, WhatFailsBecomesAWriteOfNoBytes) {
  learn(7);
  const roce::Packet write = give(cas(1, 0, 1)).at(0);
  EXPECT_EQ(write.bth.opcode, Opcode::write_only);
  EXPECT_EQ(write.reth.length, 0u);
  EXPECT_TRUE(write.payload.empty());
  EXPECT_EQ(give(response(Opcode::acknowledge, 1)).at(0).prior, 7u);
  EXPECT_EQ(box.counts().failures_replaced, 1u);
}

TEST_F(BoxTest, MaskedCasAndFaa) {
  learn(0xff00);
  roce::Packet masked = request(Opcode::masked_compare_swap, 1);
  masked.atomic = {
      .address = kWord, .key = 9, .swap_or_add = 0x0f, .compare = 0, .swap_mask = 0xff, .compare_mask = 0xff};
  EXPECT_EQ(base::load<std::uint64_t>(give(masked).at(0).payload.data()), 0xff0fu);
  EXPECT_EQ(give(response(Opcode::acknowledge, 1)).at(0).prior, 0xff00u);
  roce::Packet faa = request(Opcode::fetch_add, 2);
  faa.atomic = {.address = kWord, .key = 9, .swap_or_add = 1};
  EXPECT_EQ(give(faa).at(0).bth.opcode, Opcode::fetch_add) << "FAAs are replaced only if asked for";
}

TEST_F(BoxTest, AnAckThatCoversSeveralIsOneAnswerForEach) {
  learn(1);
  for (std::uint32_t psn = 1; psn <= 3; ++psn) ASSERT_EQ(give(cas(psn, 0, 1)).size(), 1u);
  roce::Packet data = request(Opcode::write_only, 4);
  data.reth = {.address = 0x100, .key = 1, .length = 0};
  ASSERT_EQ(give(data).size(), 1u);
  const std::vector<roce::Packet> answers = give(response(Opcode::acknowledge, 4));
  ASSERT_EQ(answers.size(), 4u);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(answers[i].bth.opcode, Opcode::atomic_acknowledge);
    EXPECT_EQ(answers[i].bth.psn, i + 1);
  }
  EXPECT_EQ(answers[3].bth.opcode, Opcode::acknowledge);
}

TEST_F(BoxTest, ANakOfASequenceAnswersWhatIsBeforeIt) {
  learn(1);
  ASSERT_EQ(give(cas(1, 0, 1)).size(), 1u);
  ASSERT_EQ(give(cas(2, 0, 1)).size(), 1u);
  roce::Packet nak = response(Opcode::acknowledge, 2);
  nak.aeth.syndrome = roce::kNakSequence;
  const std::vector<roce::Packet> answers = give(nak);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].bth.opcode, Opcode::atomic_acknowledge);
  EXPECT_EQ(answers[0].bth.psn, 1u);
  EXPECT_EQ(roce::ack_kind(answers[0].aeth.syndrome), roce::AckKind::ack);
  EXPECT_EQ(answers[1].aeth.syndrome, roce::kNakSequence);
}

TEST_F(BoxTest, ARefusalPassesAndTheRangeIsLeftAlone) {
  learn(1);
  ASSERT_EQ(give(cas(1, 1, 0)).at(0).bth.opcode, Opcode::write_only);
  roce::Packet nak = response(Opcode::acknowledge, 1);
  nak.aeth.syndrome = roce::kNakAccess;
  EXPECT_EQ(give(nak).at(0).aeth.syndrome, roce::kNakAccess);
  introduce(2);
  EXPECT_EQ(give(cas(0, 1, 0, 2)).at(0).bth.opcode, Opcode::compare_swap);
}

TEST_F(BoxTest, OthersWaitUntilAChangeIsExecuted) {
  learn(0);
  introduce(2);
  ASSERT_EQ(give(cas(1, 0, 5)).size(), 1u);
  EXPECT_TRUE(give(cas(0, 5, 6, 2)).empty());
  roce::Packet behind = request(Opcode::read_request, 1, 2);
  behind.reth = {.address = 0x100, .key = 1, .length = 8};
  EXPECT_TRUE(give(behind).empty()) << "what stands behind it in its chain waits, too";
  const std::vector<roce::Packet> out = give(response(Opcode::acknowledge, 1));
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].bth.opcode, Opcode::atomic_acknowledge);
  EXPECT_EQ(out[1].bth.queue_pair, 0x102u);
  EXPECT_EQ(base::load<std::uint64_t>(out[1].payload.data()), 6u);
  EXPECT_EQ(out[2].bth.opcode, Opcode::read_request);
}

TEST_F(BoxTest, AChangeIsNotPassedByOperationsThatComeLater) {
  learn(7);
  introduce(2);
  introduce(3);
  ASSERT_EQ(give(cas(1, 0, 1)).size(), 1u);
  EXPECT_TRUE(give(cas(0, 7, 8, 2)).empty()) << "a change waits for operations that fail";
  EXPECT_TRUE(give(cas(0, 0, 1, 3)).empty()) << "and others wait behind it";
  ASSERT_EQ(give(response(Opcode::acknowledge, 1)).size(), 2u);
  ASSERT_EQ(give(response(Opcode::acknowledge, 0, 2)).size(), 2u);
  EXPECT_EQ(give(response(Opcode::acknowledge, 0, 3)).at(0).prior, 8u);
}

TEST_F(BoxTest, TheDebtOfASilentQueuePairIsSentAgainAndThenCut) {
  learn(0);
  introduce(2);
  ASSERT_EQ(give(cas(1, 0, 5)).size(), 1u);
  ASSERT_TRUE(give(cas(0, 5, 6, 2)).empty());
  const base::Nanos begun = now, silence = settings().silence;
  std::size_t again = 0;
  while (box.next_time() <= begun + silence) {
    now = box.next_time();
    frames.clear();
    box.on_time(now, *this);
    for (const roce::Packet& packet : taken()) {
      EXPECT_EQ(packet.bth.queue_pair, 0x101u);
      EXPECT_EQ(base::load<std::uint64_t>(packet.payload.data()), 5u);
      ++again;
    }
  }
  EXPECT_EQ(again, 9u);
  EXPECT_EQ(box.counts().cut, 1u);
  EXPECT_EQ(box.next_time(), begun + silence + settings().longest_life);
  EXPECT_TRUE(give(cas(2, 5, 6)).empty()) << "nothing of a cut connection passes";
  EXPECT_EQ(box.counts().dropped_cut, 1u);
  now = box.next_time();
  frames.clear();
  box.on_time(now, *this);
  const std::vector<roce::Packet> out = taken();
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].bth.opcode, Opcode::compare_swap) << "the word is learned anew";
  EXPECT_EQ(out[0].bth.queue_pair, 0x102u);
}

TEST_F(BoxTest, AResponseThatContradictsTheBoxIsCounted) {
  learn(3);
  roce::Packet faa = request(Opcode::fetch_add, 1);
  faa.atomic = {.address = kWord, .key = 9, .swap_or_add = 1};
  ASSERT_EQ(give(faa).size(), 1u);
  ASSERT_EQ(give(response(Opcode::atomic_acknowledge, 1, 1, 99)).size(), 1u);
  EXPECT_EQ(box.counts().surprises, 1u);
}

TEST_F(BoxTest, WhatItCannotUsePassesOrIsDroppedByTheRule) {
  introduce();
  EXPECT_EQ(give(request(Opcode::uc_write_only, 0)).size(), 1u);
  EXPECT_EQ(give(request(static_cast<Opcode>(0xfe), 0)).size(), 1u);
  roce::Packet elsewhere = cas(0, 0, 1);
  elsewhere.ip.to = kClient;
  EXPECT_EQ(give(elsewhere).size(), 1u);
  const std::vector<std::byte> noise(40, std::byte{0x45});
  frames.clear();
  box.on_packet(noise, now, *this);
  EXPECT_THAT(frames, testing::ElementsAre(noise));
  EXPECT_EQ(box.counts().not_roce, 1u);
  std::vector<std::byte> damaged(512);
  damaged.resize(roce::build_sealed(cas(0, 0, 1), damaged));
  damaged.back() ^= std::byte{1};
  EXPECT_TRUE(give_frame(damaged).empty());
  EXPECT_EQ(box.counts().dropped_bad_sum, 1u);
  roce::Packet longer = request(Opcode::write_first, 0);
  longer.reth = {.address = kWord - 64, .key = 1, .length = 100};
  EXPECT_TRUE(give(longer).empty());
  roce::Packet odd = cas(0, 0, 1);
  odd.atomic.address += 4;
  EXPECT_TRUE(give(odd).empty());
  EXPECT_EQ(box.counts().dropped_unsupported, 2u);
  EXPECT_TRUE(give(cas(5, 0, 1)).empty());
  EXPECT_EQ(box.counts().dropped_out_of_order, 1u);
  EXPECT_EQ(give(cas(0, 0, 1)).size(), 1u);
  const std::vector<roce::Packet> future = give(response(Opcode::acknowledge, 9));
  EXPECT_EQ(future.size(), 1u);
  EXPECT_EQ(box.counts().bypassed, 1u);
}

TEST_F(BoxTest, AFloodOfConnectionsNeitherGrowsItNorTouchesWords) {
  learn(0);
  for (std::uint32_t i = 0; i < 1000; ++i) {
    roce::Packet read = request(Opcode::read_request, i, 100 + i);
    read.reth = {.address = 0x100, .key = 1, .length = 8};
    EXPECT_EQ(give(read).size(), 1u);
    if (i < 3) continue;  // the table has room for three more
    EXPECT_TRUE(give(cas(i + 1, 0, 1, 100 + i)).empty());
  }
  EXPECT_GT(box.counts().dropped_no_room, 900u);
  EXPECT_EQ(base::load<std::uint64_t>(give(cas(1, 0, 4)).at(0).payload.data()), 4u) << "the first connection works on";
}

TEST_F(BoxTest, ABoxThatBeginsLetsNothingThroughThatChangesARange) {
  Box fresh(settings(), now);
  std::vector<std::byte> frame(512);
  frame.resize(roce::build_sealed(cas(0, 0, 1), frame));
  fresh.on_packet(frame, now + settings().longest_life - 1, *this);
  EXPECT_TRUE(frames.empty());
  EXPECT_EQ(fresh.counts().dropped_at_start, 1u);
  fresh.on_packet(frame, now + settings().longest_life, *this);
  EXPECT_EQ(frames.size(), 1u);
}

TEST_F(BoxTest, NothingIsReplacedOnAConnectionOfUnknownPastUntilAPlainAckProvesIt) {
  learn(0);
  EXPECT_EQ(give(cas(500, 0, 1, 2)).at(0).bth.opcode, Opcode::compare_swap);
  ASSERT_EQ(give(response(Opcode::atomic_acknowledge, 500, 2, 0)).size(), 1u);
  EXPECT_EQ(give(cas(501, 1, 0, 2)).at(0).bth.opcode, Opcode::compare_swap);
  ASSERT_EQ(give(response(Opcode::atomic_acknowledge, 501, 2, 1)).size(), 1u);
  roce::Packet data = request(Opcode::write_only, 502, 2);
  data.reth = {.address = 0x100, .key = 1, .length = 0};
  ASSERT_EQ(give(data).size(), 1u);
  ASSERT_EQ(give(response(Opcode::acknowledge, 502, 2)).size(), 1u);
  // That one may be from before the box followed the connection.
  EXPECT_EQ(give(cas(503, 0, 3, 2)).at(0).bth.opcode, Opcode::compare_swap);
  ASSERT_EQ(give(response(Opcode::atomic_acknowledge, 503, 2, 0)).size(), 1u);
  now += settings().longest_life;
  data.bth.psn = 504;
  ASSERT_EQ(give(data).size(), 1u);
  ASSERT_EQ(give(response(Opcode::acknowledge, 504, 2)).size(), 1u);
  ASSERT_EQ(give(cas(505, 0, 0, 2)).at(0).bth.opcode, Opcode::compare_swap) << "nothing is known of the word";
  ASSERT_EQ(give(response(Opcode::atomic_acknowledge, 505, 2, 3)).size(), 1u);
  EXPECT_EQ(give(cas(506, 3, 4, 2)).at(0).bth.opcode, Opcode::write_only);
}

TEST_F(BoxTest, TheAnswerToAConnectionOfUnknownPastTellsNothing) {
  introduce();
  ASSERT_EQ(give(cas(500, 7, 8, 2)).size(), 1u);
  ASSERT_EQ(give(response(Opcode::atomic_acknowledge, 500, 2, 7)).size(), 1u);
  EXPECT_EQ(give(cas(0, 7, 9)).at(0).bth.opcode, Opcode::compare_swap) << "the server may have repeated an old answer";
}

// A queue pair with the number of an earlier one, whose connection the box has not forgotten.
TEST_F(BoxTest, AConnectionThatBeginsAnewUnseenIsFollowedAgain) {
  learn(0);
  now += 60 * base::kSecond;
  std::size_t passed = 0;
  for (int i = 0; i < 20; ++i) passed += give(cas(0x400000, 0, 1)).size();
  EXPECT_GT(passed, 0u);
  ASSERT_EQ(give(response(Opcode::atomic_acknowledge, 0x400000)).size(), 1u);
  now += 60 * base::kSecond;
  passed = 0;
  for (int i = 0; i < 20; ++i) passed += give(cas(0x3fff00, 0, 1)).size();
  EXPECT_GT(passed, 0u);
}

TEST_F(BoxTest, WhatIsExecutedIsSentAgainWithoutItsValue) {
  learn(0);
  ASSERT_EQ(give(cas(1, 0, 5)).at(0).reth.length, 8u);
  EXPECT_EQ(give(cas(1, 0, 5)).at(0).reth.length, 8u) << "it may not have arrived";
  ASSERT_EQ(give(response(Opcode::acknowledge, 1)).size(), 1u);
  EXPECT_EQ(give(cas(1, 0, 5)).at(0).reth.length, 0u);
  const roce::Packet answer = give(response(Opcode::acknowledge, 1)).at(0);
  EXPECT_EQ(answer.bth.opcode, Opcode::atomic_acknowledge);
  EXPECT_EQ(answer.prior, 0u);
}

TEST_F(BoxTest, AllocatesNothing) {
  learn(0);
  introduce(3);
  std::vector<std::vector<std::byte>> input;
  const auto add = [&](const roce::Packet& packet) {
    input.emplace_back(512);
    input.back().resize(roce::build_sealed(packet, input.back()));
  };
  for (std::uint32_t psn = 1; psn < 200; ++psn) {
    add(cas(psn, (psn - 1) % 2, psn % 2));
    add(cas(psn - 1, 5, 6, 3));
    add(response(Opcode::acknowledge, psn));
    add(response(Opcode::acknowledge, psn - 1, 3));
  }
  keep_ = false;
  const std::uint64_t before = allocations;
  for (const auto& frame : input) {
    box.on_packet(frame, now += base::kMicrosecond, *this);
    box.on_time(now, *this);
  }
  EXPECT_EQ(allocations, before);
  EXPECT_GT(box.counts().changes_replaced, 50u);
}

}  // namespace
}  // namespace farpool::swordbox
