// SPDX-License-Identifier: Apache-2.0
#include "fabric/tcp/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/annotated_test.h"
#include "base/random.h"
#include "fabric/tcp/nic.h"

namespace farpool::fabric::tcp {
namespace {

using base::annotated;

std::vector<std::byte> encode(std::uint64_t id, std::span<const Op> ops, Keys keys) {
  std::vector<std::byte> frame(chain_length(ops));
  put_chain(frame, id, ops, keys);
  return frame;
}

const std::vector<LaneGrant::Region> kKeys{{.id = 2, .bytes = 4096, .key = 0x1122334455667788},
                                           {.id = 3, .bytes = 1 << 20, .key = 0xa0b0c0d0e0f00010}};

struct Golden {
  std::array<std::byte, 16> row{};
  std::array<std::byte, 24> read{};
  std::array<std::byte, 8> request{};
  std::array<std::byte, 64> reply{};
  std::uint64_t a = 0, b = 0, c = 0;
  std::vector<Op> chain;
  std::vector<Op> call;

  Golden() {
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::byte>(i + 1);
    request[0] = std::byte{0x2a};
    chain = {Op::masked_cas({2, 8}, a, 0, 0xff, 0xff, 0xff), Op::read({3, 0x100}, read),
             Op::write({3, 0x200}, row).fenced(), Op::cas({2, 16}, b, 5, 6), Op::fetch_add({2, 24}, c, ~0ull)};
    call = {Op::call(7, request, reply)};
  }
};

TEST(Frame, ChainsHaveTheGoldenBytes) {
  Golden golden;
  EXPECT_EQ(encode(0x0102030405060708, golden.chain, kKeys), annotated("chain.txt"));
  EXPECT_EQ(encode(9, golden.call, kKeys), annotated("call.txt"));
}

TEST(Frame, RepliesHaveTheGoldenBytesAndAreTakenApart) {
  Golden golden;
  const auto reply = annotated("reply.txt");
  ASSERT_EQ(frame_length(reply), reply.size());
  const auto header = get_reply_header(reply);
  ASSERT_TRUE(header);
  EXPECT_FALSE(header->refused);
  EXPECT_EQ(header->id, 0x0102030405060708u);
  std::uint32_t unused = 0;
  ASSERT_TRUE(take_reply(reply, golden.chain, unused));
  EXPECT_EQ(golden.a, 0x10u);
  EXPECT_EQ(golden.b, 5u);
  EXPECT_EQ(golden.c, 1u);
  EXPECT_EQ(golden.read[0], std::byte{0xaa});
  EXPECT_EQ(golden.read[23], std::byte{0xcc});
}

TEST(Frame, RepliesToCallsHaveTheGoldenBytes) {
  std::vector<std::byte> reply(call_reply_length(5), std::byte{0xff});
  std::memcpy(reply.data() + kCallReplyHeaderBytes, "hello", 5);
  put_call_reply(reply, 9, 5);
  EXPECT_EQ(reply, annotated("call_reply.txt"));
  Golden golden;
  std::uint32_t bytes = 0;
  ASSERT_TRUE(take_reply(reply, golden.call, bytes));
  EXPECT_EQ(bytes, 5u);
  std::vector<std::byte> refusal(kHeaderBytes);
  put_reply_header(refusal, {.length = kHeaderBytes, .refused = true, .why = Refusal::unknown_opcode, .id = 9});
  EXPECT_EQ(refusal, annotated("refusal.txt"));
  const auto header = get_reply_header(refusal);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->why, Refusal::unknown_opcode);
  refusal[6] = static_cast<std::byte>(static_cast<int>(kLastRefusal) + 1);
  EXPECT_FALSE(get_reply_header(refusal)) << "a reason that there is not";
  reply[6] = std::byte{1};
  EXPECT_FALSE(get_reply_header(reply)) << "a reason without a refusal";
}

bool same(const Op& op, const VerbView& verb) {
  if (verb.verb != op.verb || verb.fence != op.fence) return false;
  if (op.verb == Verb::call) {
    return verb.region == op.opcode && verb.offset == op.reply.size() && verb.length == op.local.size() &&
           std::equal(verb.data.begin(), verb.data.end(), op.local.begin(), op.local.end());
  }
  if (verb.region != op.at.region || verb.offset != op.at.offset) return false;
  switch (op.verb) {
    case Verb::read:
      return verb.length == op.local.size();
    case Verb::write:
      return std::equal(verb.data.begin(), verb.data.end(), op.local.begin(), op.local.end());
    case Verb::fetch_add:
      return verb.swap == op.swap;
    default:
      return verb.compare == op.compare && verb.compare_mask == op.compare_mask && verb.swap == op.swap &&
             verb.swap_mask == op.swap_mask;
  }
}

struct RandomChain {
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  std::array<std::uint64_t, kMaxChain> old{};
  std::vector<Op> ops;
  explicit RandomChain(base::Random& random) {
    for (auto& byte : memory) byte = static_cast<std::byte>(random.next());
    const std::size_t count = 1 + random.below(random.chance(0.1) ? kMaxChain : 6);
    for (std::size_t i = 0; i < count; ++i) {
      const Remote at{static_cast<std::uint32_t>(2 + random.below(3)), random.next()};
      const base::MutableBytes local(memory.data(), random.below(300));
      switch (random.below(6)) {
        case 0:
          ops.push_back(Op::read(at, local));
          break;
        case 1:
          ops.push_back(Op::write(at, local));
          break;
        case 2:
          ops.push_back(Op::cas(at, old[i], random.next(), random.next()));
          break;
        case 3:
          ops.push_back(Op::masked_cas(at, old[i], random.next(), random.next(), random.next(), random.next()));
          break;
        case 4:
          ops.push_back(Op::fetch_add(at, old[i], random.next()));
          break;
        default:
          ops.push_back(Op::call(static_cast<std::uint32_t>(random.next()), local, {}));
          break;
      }
      ops.back().fence = random.chance(0.2);
    }
  }
};

TEST(Frame, AnyChainSurvivesTheWireAndNoCutOrStretchedFrameDoes) {
  base::Random random(11);
  ChainView view;
  for (std::uint64_t id = 1; id <= 2000; ++id) {
    RandomChain chain(random);
    const auto frame = encode(id, chain.ops, kKeys);
    ASSERT_EQ(frame_length(frame), frame.size());
    ASSERT_TRUE(get_chain(frame, view));
    ASSERT_EQ(view.id, id);
    ASSERT_EQ(view.count, chain.ops.size());
    for (std::size_t i = 0; i < view.count; ++i) ASSERT_TRUE(same(chain.ops[i], view.verbs[i])) << "verb " << i;
    const std::size_t cut = random.below(frame.size());
    EXPECT_FALSE(get_chain(base::Bytes(frame).first(cut), view));
    auto lying = frame;  // a header that is right about the length and verbs that are not
    lying.resize(frame.size() + 8);
    base::store(lying.data(), static_cast<std::uint32_t>(lying.size()));
    EXPECT_FALSE(get_chain(lying, view));
    if (cut >= kHeaderBytes) {
      lying.resize(cut / 8 * 8);
      base::store(lying.data(), static_cast<std::uint32_t>(lying.size()));
      EXPECT_FALSE(get_chain(lying, view));
    }
  }
}

TEST(Frame, LengthsBeyondTheBoundsAreNoFrames) {
  std::array<std::byte, kHeaderBytes> header{};
  for (const std::uint32_t length :
       {0u, 8u, 15u, 17u, 20u, static_cast<std::uint32_t>(kMaxFrameBytes + 8), ~0u, 0x80000000u}) {
    base::store(header.data(), length);
    EXPECT_EQ(frame_length(header), 0u) << length;
  }
  base::store(header.data(), static_cast<std::uint32_t>(kMaxFrameBytes));
  EXPECT_EQ(frame_length(header), kMaxFrameBytes);
}

TEST(Frame, ChainsThatNoFrameCanCarryHaveNoLength) {
  std::vector<std::byte> memory(kMaxVerbBytes + 8);
  std::uint64_t old = 0;
  EXPECT_EQ(chain_length({}), 0u);
  EXPECT_EQ(chain_length(std::vector<Op>(kMaxChain + 1, Op::fetch_add({2, 0}, old, 1))), 0u);
  EXPECT_NE(chain_length(std::vector<Op>(kMaxChain, Op::fetch_add({2, 0}, old, 1))), 0u);
  const base::MutableBytes most(memory.data(), kMaxVerbBytes), more(memory);
  EXPECT_NE(chain_length(std::vector{Op::write({2, 0}, most)}), 0u);
  EXPECT_EQ(chain_length(std::vector{Op::write({2, 0}, more)}), 0u);
  EXPECT_EQ(chain_length(std::vector(4, Op::write({2, 0}, most))), 0u) << "too much there";
  EXPECT_EQ(chain_length(std::vector(4, Op::read({2, 0}, most))), 0u) << "too much back";
}

TEST(Frame, AReplyThatDoesNotFitItsChainIsNotTaken) {
  Golden golden;
  auto reply = annotated("reply.txt");
  std::uint32_t unused = 0;
  reply.resize(reply.size() - 8);
  EXPECT_FALSE(take_reply(reply, golden.chain, unused));
  reply.resize(reply.size() + 16);
  EXPECT_FALSE(take_reply(reply, golden.chain, unused));
  EXPECT_EQ(golden.a, 0u) << "something was stored";

  std::vector<std::byte> answer(call_reply_length(64));
  base::store(answer.data() + kHeaderBytes, std::uint64_t{64});
  EXPECT_TRUE(take_reply(answer, golden.call, unused));
  EXPECT_EQ(unused, 64u);
  for (const std::uint64_t lie : {std::uint64_t{65}, std::uint64_t{56}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    base::store(answer.data() + kHeaderBytes, lie);
    EXPECT_FALSE(take_reply(answer, golden.call, unused)) << lie;
  }
}

TEST(Nic, JudgesAChainWholeAndExecutesInOrder) {
  alignas(8) std::array<std::uint64_t, 64> memory{};
  auto* base = reinterpret_cast<std::byte*>(memory.data());
  const std::vector<RegionRight> rights{{.id = 2, .key = kKeys[0].key, .base = base, .bytes = sizeof memory}};
  std::array<std::uint64_t, 2> from{7, 8}, into{};
  std::uint64_t old = 0;
  const auto span = [](auto& words) { return std::as_writable_bytes(std::span(words)); };
  const std::vector<Op> ops{Op::write({2, 0}, span(from)), Op::fetch_add({2, 8}, old, 2), Op::read({2, 0}, span(into))};
  auto frame = encode(1, ops, kKeys);
  ChainView view;
  ASSERT_TRUE(get_chain(frame, view));
  ASSERT_TRUE(permitted(view, rights));
  std::vector<std::byte> reply(reply_length(view));
  execute(view, rights, reply);
  std::uint32_t unused = 0;
  ASSERT_TRUE(take_reply(reply, ops, unused));
  EXPECT_EQ(old, 8u);
  EXPECT_EQ(into, (std::array<std::uint64_t, 2>{7, 10}));

  // The last word of the region, and one beyond it; a length that would wrap.
  for (const auto& [op, good] :
       std::vector<std::pair<Op, bool>>{{Op::fetch_add({2, sizeof memory - 8}, old, 0), true},
                                        {Op::fetch_add({2, sizeof memory}, old, 0), false},
                                        {Op::fetch_add({2, ~0ull - 7}, old, 0), false},
                                        {Op::read({2, sizeof memory - 16}, span(into)), true},
                                        {Op::read({2, sizeof memory - 8}, span(into)), false},
                                        {Op::read({2, sizeof memory}, {}), true},  // nothing, at the end
                                        {Op::read({2, 4}, span(into)), false},
                                        {Op::read({3, 0}, span(into)), false}}) {
    const std::vector<Op> one{op};
    frame = encode(1, one, kKeys);
    ASSERT_TRUE(get_chain(frame, view));
    EXPECT_EQ(permitted(view, rights), good) << "offset " << op.at.offset;
  }
}

}  // namespace
}  // namespace farpool::fabric::tcp
