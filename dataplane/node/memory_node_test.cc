// SPDX-License-Identifier: Apache-2.0
#include "node/memory_node.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "index/rcuckoo/layout.h"
#include "layout/calls.h"
#include "layout/directory.h"
#include "layout/private_page.h"
#include "layout/regions.h"
#include "layout/segment.h"
#include "layout/superblock.h"
#include "map/fetch.h"
#include "map/shard_map.h"
#include "node/world_test.h"
#include "session/handshake.h"

namespace farpool::node {
namespace {

using base::Code;

TEST(MemoryNode, FormatsItsMemoryAsANewIncarnation) {
  TestWorld world;
  const auto superblock = layout::parse_superblock(world.memory.span().first(layout::kPage));
  ASSERT_TRUE(superblock.ok()) << superblock.status().message();
  EXPECT_EQ(superblock->incarnation, world.node->incarnation());
  EXPECT_NE(superblock->incarnation, 0u);
  EXPECT_EQ(superblock->pool, layout::pool_tag("pool"));
  EXPECT_EQ(superblock->geometry, world.geometry());
  for (std::uint64_t i = 0; i < 16; ++i) EXPECT_EQ(world.slot(i).holder, 0u);
  const auto& table = world.geometry().at(layout::kTable);
  for (std::uint64_t row = 0; row < world.geometry().rows; ++row) {
    const rcuckoo::RowView view(
        world.geometry(),
        world.memory.span().subspan(table.offset + row * world.geometry().row_bytes(), world.geometry().row_bytes()));
    EXPECT_TRUE(view.whole(row));
    EXPECT_EQ(view.empty_slot(), 0);
  }
}

TEST(MemoryNode, IncarnationsAndSeedsDiffer) {
  TestWorld one(1), other(2);
  EXPECT_NE(one.node->incarnation(), other.node->incarnation());
  one.node->stand_alone();
  other.node->stand_alone();
  auto a = one.open(one.client()), b = other.open(other.client());
  EXPECT_FALSE(a->grant().table_seed == b->grant().table_seed);
  EXPECT_FALSE(a->grant().pool_secret == b->grant().pool_secret);
  one.close(std::move(a));
  other.close(std::move(b));
}

TEST(MemoryNode, SaysWhichFigureOfTheGeometryCannotWork) {
  TestWorld world;
  Memory memory = std::move(*Memory::anonymous(64 << 10));
  const auto small = MemoryNode::create({.name = "m", .pool_uid = "p", .endpoint = "h:1"}, memory.span(), world.wire);
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.code(), Code::invalid_argument);
  EXPECT_NE(small.status().message().find("lend more memory"), std::string::npos) << small.status().message();
}

// A wire that can do less than the memory node's protocol needs.
class PoorWire final : public fabric::Responder {
 public:
  explicit PoorWire(fabric::Responder& wire) : wire_(wire) {}
  fabric::Caps caps() const override {
    fabric::Caps caps = wire_.caps();
    caps.max_chain = 1;
    return caps;
  }
  void fence(std::uint64_t session_id, std::function<void()> done) override {
    wire_.fence(session_id, std::move(done));
  }
  void after(base::Nanos delay, std::function<void()> what) override { wire_.after(delay, std::move(what)); }
  base::Nanos now() const override { return wire_.now(); }
  std::uint64_t random() override { return wire_.random(); }

 private:
  fabric::Responder& wire_;
};

TEST(MemoryNode, LendsNothingOnAWireThatCannotServeItsProtocol) {
  TestWorld world;
  PoorWire poor(world.wire);
  Memory memory = std::move(*Memory::anonymous(4 << 20));
  const auto refused = MemoryNode::create(world.options, memory.span(), poor);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_NE(refused.status().message().find("cannot serve the protocol"), std::string::npos)
      << refused.status().message();
}

TEST(MemoryNode, BeginsWithAPowerOfTwoOfItsTables) {
  TestWorld world;
  for (const std::uint32_t initial : {0u, 3u, 8u, 1u, 2u, 4u}) {
    MemoryNode::Options options = world.options;
    options.geometry.protocol = layout::Protocol::race;
    options.geometry.tables = 4;
    options.initial_tables = initial;
    Memory memory = std::move(*Memory::anonymous(4 << 20));
    const auto created = MemoryNode::create(std::move(options), memory.span(), world.wire);
    const bool possible = initial == 1 || initial == 2 || initial == 4;
    EXPECT_EQ(created.code(), possible ? Code::ok : Code::invalid_argument) << initial;
    if (possible) continue;
    EXPECT_NE(created.status().message().find("use a power of two up to 4"), std::string::npos)
        << created.status().message();
  }
}

TEST(MemoryNode, EpochsOnlyGoForward) {
  TestWorld world;
  const base::HashSecret secret{1, 2};
  EXPECT_EQ(world.node->publish(map_with(*world.node, 5), secret).verdict, Verdict::adopted);
  EXPECT_EQ(world.node->publish(map_with(*world.node, 5), secret).verdict, Verdict::adopted);  // idempotent
  const auto older = world.node->publish(map_with(*world.node, 4), secret);
  EXPECT_EQ(older.verdict, Verdict::older_epoch);
  EXPECT_EQ(older.epoch, 5u);
  auto other = map_with(*world.node, 5);
  other.set_directory_version(1);
  EXPECT_EQ(world.node->publish(other, secret).verdict, Verdict::conflicting);
  EXPECT_EQ(world.node->publish(map_with(*world.node, 6), {1, 3}).verdict, Verdict::conflicting);
  auto elsewhere = map_with(*world.node, 6);
  elsewhere.set_pool_uid("loop");
  EXPECT_EQ(world.node->publish(elsewhere, secret).verdict, Verdict::invalid);
  auto broken = map_with(*world.node, 6);
  broken.set_directory(0, 9);
  EXPECT_EQ(world.node->publish(broken, secret).verdict, Verdict::invalid);
  auto reshaped = map_with(*world.node, 6);
  reshaped.mutable_nodes(0)->mutable_rcuckoo()->set_rows(7);
  EXPECT_EQ(world.node->publish(reshaped, secret).verdict, Verdict::invalid);
  EXPECT_EQ(world.node->facts().epoch(), 5u);
  EXPECT_TRUE(world.node->facts().ready());
}

// Alerts on full memory nodes leave out each one that says so.
TEST(MemoryNode, SaysWhetherItsMapEvicts) {
  TestWorld world;
  EXPECT_FALSE(world.node->stats().evicts);
  auto map = map_with(*world.node, 5);
  map.set_eviction(v1alpha1::EVICTION_VOLATILE_TTL);
  ASSERT_EQ(world.node->publish(map, {1, 2}).verdict, Verdict::adopted);
  EXPECT_TRUE(world.node->stats().evicts);
  map.set_epoch(6);
  map.clear_eviction();
  ASSERT_EQ(world.node->publish(map, {1, 2}).verdict, Verdict::adopted);
  EXPECT_FALSE(world.node->stats().evicts);
}

// The first of the two phases binds this node, and changes nothing for its clients.
TEST(MemoryNode, HoldsAnEpochBeforeItFollowsIt) {
  TestWorld world;
  const base::HashSecret secret{1, 2};
  std::vector<std::string> kept;
  world.options.keep_map = [&kept](const std::string& map) { kept.push_back(map); };
  world.kill();
  world.begin_life();
  ASSERT_EQ(world.node->publish(map_with(*world.node, 5), secret).verdict, Verdict::adopted);
  auto session = world.open(world.client());
  auto without = map_with(*world.node, 6);
  without.mutable_nodes(0)->set_incarnation(world.node->incarnation() + 1);
  for (int again = 0; again < 2; ++again) {
    const auto prepared = world.node->prepare(without, secret);
    EXPECT_EQ(prepared.verdict, Verdict::adopted);
    EXPECT_EQ(prepared.epoch, 6u);
    ASSERT_EQ(kept.size(), 2u) << "once for each epoch";
    EXPECT_EQ(kept.back(), map::deterministic_bytes(without));
    EXPECT_EQ(world.node->facts().epoch(), 5u);
    EXPECT_EQ(world.record().epoch, 5u);
    EXPECT_TRUE(world.node->facts().ready());
    EXPECT_EQ(world.node->stats().sessions, 1u);
    EXPECT_EQ(world.node->facts().memory_node().map().SerializeAsString(), without.SerializeAsString());
  }
  // Neither phase revokes a promise, and the first refuses what the second would refuse.
  const auto older = world.node->publish(map_with(*world.node, 5), secret);
  EXPECT_EQ(older.verdict, Verdict::older_epoch);
  EXPECT_EQ(older.epoch, 6u);
  EXPECT_EQ(world.node->prepare(map_with(*world.node, 5), secret).verdict, Verdict::older_epoch);
  EXPECT_EQ(world.node->prepare(map_with(*world.node, 6), secret).verdict, Verdict::conflicting);
  EXPECT_EQ(world.node->publish(map_with(*world.node, 6), secret).verdict, Verdict::conflicting);
  EXPECT_EQ(world.node->prepare(map_with(*world.node, 7), {1, 3}).verdict, Verdict::conflicting);
  auto reshaped = map_with(*world.node, 7);
  reshaped.mutable_nodes(0)->mutable_rcuckoo()->set_rows(7);
  EXPECT_EQ(world.node->prepare(reshaped, secret).verdict, Verdict::invalid);
  EXPECT_EQ(kept.size(), 2u) << "what is refused is not kept";
  EXPECT_EQ(world.node->facts().memory_node().map().epoch(), 6u);

  // It passes over an abandoned epoch.
  EXPECT_EQ(world.node->prepare(map_with(*world.node, 7), secret).verdict, Verdict::adopted);
  EXPECT_EQ(world.node->publish(without, secret).verdict, Verdict::older_epoch);
  EXPECT_EQ(world.node->publish(map_with(*world.node, 7), secret).verdict, Verdict::adopted);
  EXPECT_EQ(world.node->facts().epoch(), 7u);
  EXPECT_EQ(world.node->stats().sessions, 1u);
  EXPECT_EQ(world.node->prepare(map_with(*world.node, 7), secret).verdict, Verdict::adopted) << "it follows it";
  EXPECT_EQ(kept.size(), 3u);
  // An epoch that was not prepared is held when the node follows it.
  EXPECT_EQ(world.node->publish(map_with(*world.node, 8), secret).verdict, Verdict::adopted);
  EXPECT_EQ(kept.size(), 4u);
  world.close(std::move(session));
}

TEST(MemoryNode, AnEpochWithAnotherLifeOfThisNodeCutsItsSessions) {
  TestWorld world;
  ASSERT_EQ(world.node->publish(map_with(*world.node, 1), {1, 2}).verdict, Verdict::adopted);
  auto session = world.open(world.client());
  auto next = map_with(*world.node, 2);
  next.mutable_nodes(0)->set_incarnation(12345);
  ASSERT_EQ(world.node->publish(next, {1, 2}).verdict, Verdict::adopted);
  EXPECT_TRUE(world.wait_until([&] { return !session->alive() && world.node->stats().sessions == 0; }));
  EXPECT_FALSE(world.node->facts().ready());
  EXPECT_NE(world.node->facts().message().find("does not contain this life"), std::string::npos);
  world.close(std::move(session));
}

TEST(MemoryNode, FactsSpeakForTheNode) {
  TestWorld world;
  v1alpha1::Facts facts = world.node->facts();
  EXPECT_EQ(facts.role(), v1alpha1::ROLE_MEMORY_NODE);
  EXPECT_FALSE(facts.ready());
  EXPECT_NE(facts.message().find("no epoch"), std::string::npos);
  EXPECT_TRUE(facts.memory_node().memory_fresh());
  EXPECT_FALSE(facts.memory_node().has_map());
  const int before = world.changes;
  world.node->stand_alone();
  EXPECT_GT(world.changes, before);
  facts = world.node->facts();
  EXPECT_TRUE(facts.ready());
  EXPECT_EQ(facts.epoch(), 1u);
  EXPECT_EQ(facts.memory_node().map().nodes(0).incarnation(), world.node->incarnation());
  EXPECT_EQ(facts.memory_node().heap_bytes(), world.geometry().at(layout::kHeap).bytes);
  auto session = world.open(world.client());
  EXPECT_EQ(world.node->facts().memory_node().sessions(), 1u);
  const int settled = world.changes;
  world.pass(30 * kSecond);
  EXPECT_EQ(world.changes, settled);  // nothing of meaning has changed
  world.close(std::move(session));
}

// A key that one client adds and another removes is counted by both, at different moments.
TEST(MemoryNode, CountsThatAreBelowZeroAreNone) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  auto& slot = *reinterpret_cast<layout::OperationSlot*>(world.memory.span().data() +
                                                         world.geometry().at(layout::kSlots).offset);
  for (const std::uint64_t below : {~std::uint64_t{0}, std::uint64_t{0}}) {
    slot.keys = below;
    slot.bytes = ~below;
    world.pass(3 * kSecond);
    EXPECT_EQ(world.node->stats().keys, 0u);
    EXPECT_EQ(world.node->stats().bytes, 0u);
  }
  world.close(std::move(session));
}

TEST(MemoryNode, AnEpochThatItFollowsAlreadyIsNoNews) {
  TestWorld world;
  const auto map = map_with(*world.node, 3);
  ASSERT_EQ(world.node->publish(map, {1, 2}).verdict, Verdict::adopted);
  const std::size_t lines = world.log.size();
  EXPECT_EQ(world.node->publish(map, {1, 2}).verdict, Verdict::adopted);
  EXPECT_EQ(world.log.size(), lines);
}

task::Task<void> call(Session& session, std::uint32_t opcode, std::string request, std::string& reply,
                      fabric::Fate& fate) {
  fabric::Buffer out = session.port().buffer(std::max<std::size_t>(request.size(), 8));
  fabric::Buffer in = session.port().buffer(reply.size());
  std::memcpy(out.data(), request.data(), request.size());
  const std::array chain{fabric::Op::call(opcode, out.first(request.size()), in.first(reply.size()))};
  fabric::Cost cost;
  const fabric::Outcome outcome = co_await session.post(chain, session.port().now() + kSecond, cost);
  fate = outcome.fate;
  reply.assign(base::text_of(in.first(outcome.reply_bytes)));
}

task::Task<void> write_word(Session& session, fabric::Remote at, std::uint64_t word, fabric::Fate& fate) {
  fabric::Buffer bytes = session.port().buffer(8);
  base::store(bytes.data(), word);
  const std::array chain{fabric::Op::write(at, bytes.first(8))};
  fabric::Cost cost;
  const fabric::Outcome outcome = co_await session.post(chain, session.port().now() + kSecond, cost);
  fate = outcome.fate;
}

// Clients move keys away without the node's processor: the node looks, and so does its next life.
class OfProtocol : public ::testing::TestWithParam<layout::Protocol> {};
INSTANTIATE_TEST_SUITE_P(Both, OfProtocol, ::testing::Values(layout::Protocol::rcuckoo, layout::Protocol::race));

TEST_P(OfProtocol, FactsTellOfAMoveThatIsFinished) {
  TestWorld world;
  world.kill();
  world.memory = std::move(*Memory::anonymous(4 << 20));
  world.options.geometry.protocol = GetParam();
  if (GetParam() == layout::Protocol::race) world.options.geometry.tables = 4;
  world.begin_life();
  world.node->stand_alone();
  const bool locks = world.geometry().shape().locks, splits = world.geometry().shape().most_tables > 1;
  EXPECT_EQ(world.node->entry().has_lock_region(), locks);
  EXPECT_EQ(world.node->facts().memory_node().has_lock_region(), locks);
  EXPECT_EQ(world.node->facts().memory_node().even_tables() > 0, splits);
  EXPECT_EQ(world.node->facts().memory_node().move_finished(), 0u);
  auto session = world.open(world.client());
  const int before = world.changes;
  fabric::Fate fate = fabric::Fate::maybe;
  world.run(write_word(*session, {layout::kDirectory, layout::move_offset(world.geometry().tables)}, 7, fate));
  ASSERT_EQ(fate, fabric::Fate::done);
  world.close(std::move(session));
  world.pass(3 * kSecond);
  EXPECT_EQ(world.node->facts().memory_node().move_finished(), 7u);
  EXPECT_GT(world.changes, before);
  world.kill();
  world.begin_life();
  EXPECT_FALSE(world.node->facts().memory_node().memory_fresh());
  EXPECT_EQ(world.node->facts().memory_node().move_finished(), 7u);
}

template <class Reply, class Request>
Reply must_call(TestWorld& world, Session& session, std::uint32_t opcode, const Request& request) {
  std::string reply(sizeof(Reply), '\0');
  fabric::Fate fate = fabric::Fate::maybe;
  world.run(call(session, opcode, std::string(base::text_of(base::bytes_of(request))), reply, fate));
  EXPECT_EQ(fate, fabric::Fate::done);
  EXPECT_EQ(reply.size(), sizeof(Reply));
  return base::load<Reply>(reinterpret_cast<const std::byte*>(reply.data()));
}

layout::SegmentHeader header_of(const TestWorld& world, std::uint64_t segment) {
  return base::load<layout::SegmentHeader>(world.memory.span().data() + world.geometry().at(layout::kHeap).offset +
                                           segment * world.geometry().segment_bytes);
}

TEST(MemoryNode, ASegmentNamesItsOwnerAndComesBackZeroed) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  using layout::AllocateSegmentsReply;
  using layout::AllocateSegmentsRequest;
  using layout::ReturnSegmentsReply;
  using layout::ReturnSegmentsRequest;
  const auto first = must_call<AllocateSegmentsReply>(world, *session, layout::kAllocateSegments,
                                                      AllocateSegmentsRequest{.count = 1, .size_class = 3});
  ASSERT_EQ(first.status, 0u);
  const layout::SegmentHeader header = header_of(world, first.first);
  EXPECT_EQ(header.owner, session->grant().session_id);
  EXPECT_EQ(header.incarnation, session->grant().client_incarnation);
  EXPECT_EQ(header.size_class, 3u);
  EXPECT_EQ(header.run, 1u);

  // Takes the rest as well, in runs of two; then nothing is left, and the node says so in every tick.
  std::vector<std::uint64_t> runs;
  for (;;) {
    const auto run = must_call<AllocateSegmentsReply>(world, *session, layout::kAllocateSegments,
                                                      AllocateSegmentsRequest{.count = 2, .size_class = layout::kRun});
    if (run.status != 0) break;
    EXPECT_EQ(header_of(world, run.first).run, 2u);
    runs.push_back(run.first);
  }
  EXPECT_EQ(runs.size(), (world.geometry().segments - 1) / 2);
  world.run(session->tick_now(world.network.now() + kSecond));
  EXPECT_EQ(session->pressure(), layout::Pressure::scarce);

  std::byte* dirt = world.memory.span().data() + world.geometry().at(layout::kHeap).offset +
                    runs[0] * world.geometry().segment_bytes + 4096;
  base::store(dirt, ~0ull);
  EXPECT_EQ(must_call<ReturnSegmentsReply>(world, *session, layout::kReturnSegments,
                                           ReturnSegmentsRequest{.first = runs[0], .count = 1})
                .status,
            1u);
  EXPECT_EQ(must_call<ReturnSegmentsReply>(world, *session, layout::kReturnSegments,
                                           ReturnSegmentsRequest{.first = runs[0], .count = 2})
                .status,
            0u);
  EXPECT_EQ(header_of(world, runs[0]).owner, 0u);
  std::uint64_t granted = ~0ull;
  for (int i = 0; i < 20 && granted == ~0ull; ++i) {  // it rests until the era is over
    const auto again = must_call<AllocateSegmentsReply>(
        world, *session, layout::kAllocateSegments, AllocateSegmentsRequest{.count = 2, .size_class = layout::kRun});
    if (again.status == 0) granted = again.first;
    if (i == 0) EXPECT_EQ(again.status, 2u);
    world.run(session->tick_now(world.network.now() + kSecond));
  }
  EXPECT_EQ(granted, runs[0]);
  EXPECT_EQ(base::load<std::uint64_t>(dirt), 0u);
  world.close(std::move(session));
}

TEST(MemoryNode, CallsThatCannotBeEndTheLane) {
  struct Case {
    const char* what;
    std::uint32_t opcode;
    std::string request;
    std::size_t reply_bytes;
  };
  const auto text = [](const auto& request) { return std::string(base::text_of(base::bytes_of(request))); };
  const Case cases[] = {
      // The replies have room for a memory node's answer.
      {"no such call", 77, text(layout::TickRequest{}), 128},
      {"short request", layout::kAllocateSegments, std::string(8, '\0'), 128},
      {"long request", layout::kTick, std::string(64, '\0'), 128},
      {"short reply", layout::kAllocateSegments, text(layout::AllocateSegmentsRequest{}), 8},
      {"an era that never was", layout::kTick, text(layout::TickRequest{.era = 1 << 20}), 128},
      {"no such class", layout::kAllocateSegments, text(layout::AllocateSegmentsRequest{.count = 1, .size_class = 200}),
       128},
      {"blocks in a run", layout::kAllocateSegments, text(layout::AllocateSegmentsRequest{.count = 2, .size_class = 1}),
       128},
  };
  for (const Case& c : cases) {
    TestWorld world;
    world.node->stand_alone();
    auto session = world.open(world.client());
    std::string reply(c.reply_bytes, '\0');
    fabric::Fate fate = fabric::Fate::done;
    world.run(call(*session, c.opcode, c.request, reply, fate));
    EXPECT_EQ(fate, fabric::Fate::refused) << c.what;
    EXPECT_FALSE(session->alive());
    EXPECT_EQ(world.node->stats().segments.owned, 0u);
    world.close(std::move(session));
  }
}

// Clients rely on it: a client that learns nothing adds keys to a node that has no room for overwrites.
TEST(MemoryNode, TicksSayHowShortOfSegmentsItIs) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  const auto pressure = [&] {
    world.run(session->tick_now(world.network.now() + kSecond));
    return session->pressure();
  };
  const auto ask = [&](std::uint64_t replaces, std::uint64_t in_vain) {
    return must_call<layout::AllocateSegmentsReply>(
               world, *session, layout::kAllocateSegments,
               layout::AllocateSegmentsRequest{.size_class = layout::kRun, .replaces = replaces, .in_vain = in_vain})
        .status;
  };
  EXPECT_EQ(pressure(), layout::Pressure::none);
  while (ask(1, 0) == 0) continue;
  EXPECT_EQ(pressure(), layout::Pressure::spent);
  EXPECT_EQ(ask(1, 1), 1u);
  EXPECT_EQ(pressure(), layout::Pressure::dry);
  world.pass(2 * world.options.lease);
  EXPECT_EQ(pressure(), layout::Pressure::none) << "each holds for a lease";
  EXPECT_EQ(ask(0, 1), 1u);
  EXPECT_EQ(pressure(), layout::Pressure::scarce);
  world.close(std::move(session));
}

TEST(MemoryNode, WhatTheThreadsOfAProcessLeftIsToldOfOnce) {
  TestWorld world;
  world.node->stand_alone();
  std::vector<std::unique_ptr<Session>> threads;
  for (const char* name : {"shard-0/0", "shard-0/1", "shard-1/0"}) {
    SimPort& port = world.client();
    Session::Options options = world.session_options(port);
    options.client_name = name;
    options.client_process = name[6] == '0' ? 7 : 8;
    auto session = world.try_open(port, options);
    ASSERT_TRUE(session.ok()) << session.status().message();
    ASSERT_EQ(must_call<layout::AllocateSegmentsReply>(world, **session, layout::kAllocateSegments,
                                                       layout::AllocateSegmentsRequest{.size_class = 3})
                  .status,
              0u);
    threads.push_back(std::move(*session));
  }
  std::optional<v1alpha1::FenceResponse> response;
  world.node->fence({7, 8}, [&response](const v1alpha1::FenceResponse& told) { response = told; });
  ASSERT_TRUE(world.wait_until([&] { return response.has_value(); }));
  EXPECT_EQ(response->sessions(), 3u);
  ASSERT_EQ(response->left_size(), 2);
  EXPECT_EQ(world.node->facts().memory_node().dead_clients(), 2u);
  for (const v1alpha1::DeadClient& left : response->left()) {
    EXPECT_EQ(left.name(), left.process() == 7 ? "shard-0" : "shard-1");
    EXPECT_EQ(left.segments(), left.process() == 7 ? 2u : 1u);
  }
  // A fence of one process tells nothing of the other.
  response.reset();
  world.node->fence({8}, [&response](const v1alpha1::FenceResponse& told) { response = told; });
  ASSERT_TRUE(world.wait_until([&] { return response.has_value(); }));
  EXPECT_EQ(response->sessions(), 0u);
  ASSERT_EQ(response->left_size(), 1);
  EXPECT_EQ(response->left(0).name(), "shard-1");
  for (auto& session : threads) world.close(std::move(session));
}

// A CALL of each kind, and its shortest reply.
struct Asked {
  const char* what;
  std::uint32_t opcode;
  std::string request;
  std::size_t replies;
};
std::vector<Asked> calls_of(const Session& session, std::uint64_t segment) {
  const auto text = [](const auto& request) { return std::string(base::text_of(base::bytes_of(request))); };
  return {
      {"tick", layout::kTick, text(layout::TickRequest{}), sizeof(layout::TickReply)},
      {"allocate", layout::kAllocateSegments, text(layout::AllocateSegmentsRequest{.size_class = 3}),
       sizeof(layout::AllocateSegmentsReply)},
      {"return", layout::kReturnSegments, text(layout::ReturnSegmentsRequest{.first = segment, .count = 1}),
       sizeof(layout::ReturnSegmentsReply)},
      {"adopt", layout::kAdoptSegment, text(layout::AdoptSegmentRequest{.size_class = 3}),
       sizeof(layout::AdoptSegmentReply)},
      {"fence", layout::kFence, text(layout::FenceRequest{.holder = session.grant().client_incarnation, .ask = 1}),
       sizeof(layout::FenceReply)},
      {"read the map", layout::kReadMap, std::string(8, '\0'), 8},
  };
}

// What a client does not learn of must not have happened: otherwise it would use a segment that is another client's by
// now, or never use one of its own. A reply never exceeds the bytes that the client has for it.
TEST(MemoryNode, ACallThatIsRefusedChangesNothing) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  auto session = world.open(port);
  const std::uint64_t id = session->grant().session_id;
  const auto own = must_call<layout::AllocateSegmentsReply>(world, *session, layout::kAllocateSegments,
                                                            layout::AllocateSegmentsRequest{.size_class = 3});
  ASSERT_EQ(own.status, 0u);
  // A dead client's segment, too.
  Session::Options options = world.session_options(port);
  options.client_process = 7;
  auto dying = world.try_open(port, options);
  ASSERT_TRUE(dying.ok()) << dying.status().message();
  ASSERT_EQ(must_call<layout::AllocateSegmentsReply>(world, **dying, layout::kAllocateSegments,
                                                     layout::AllocateSegmentsRequest{.size_class = 3})
                .status,
            0u);
  world.node->fence({7}, [](const v1alpha1::FenceResponse&) {});
  ASSERT_TRUE(world.wait_until([&] { return world.node->stats().segments.dead == 1; }));
  world.close(std::move(*dying));

  const std::uint64_t free = world.node->stats().segments.free;
  alignas(8) std::array<std::byte, 512> bytes;
  const auto refuses = [&](const Asked& call, const std::string& request, std::size_t room) {
    bytes.fill(std::byte{0xee});
    const auto replied = world.node->on_call(id, call.opcode, base::bytes_of(std::string_view(request)),
                                             base::MutableBytes(bytes).first(room));
    EXPECT_FALSE(replied) << call.what << ", a request of " << request.size() << " bytes, room for " << room;
    EXPECT_TRUE(std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(room), bytes.end(),
                            [](std::byte b) { return b == std::byte{0xee}; }))
        << call.what << ": written beyond the room of " << room << " bytes";
  };
  for (const Asked& call : calls_of(*session, own.first)) {
    for (std::size_t room = 0; room < call.replies; ++room) refuses(call, call.request, room);
    if (call.opcode == layout::kReadMap) continue;  // it has nothing to say
    refuses(call, call.request + std::string(8, '\0'), bytes.size());
    for (std::size_t length = 0; length < call.request.size(); length += 8) {
      refuses(call, call.request.substr(0, length), bytes.size());
    }
  }
  const std::uint64_t slots = world.geometry().max_sessions * world.geometry().slots_per_session;
  Asked nowhere = calls_of(*session, 0)[4];
  nowhere.request = base::text_of(base::bytes_of(layout::FenceRequest{.index = slots, .ask = 1}));
  refuses(nowhere, nowhere.request, bytes.size());

  world.pass(2 * kSecond);
  EXPECT_EQ(world.node->stats().segments.free, free);
  EXPECT_EQ(world.node->stats().segments.dead, 1u);
  EXPECT_EQ(must_call<layout::ReturnSegmentsReply>(world, *session, layout::kReturnSegments,
                                                   layout::ReturnSegmentsRequest{.first = own.first, .count = 1})
                .status,
            0u)
      << "it is still its own";
  world.close(std::move(session));
}

TEST(MemoryNode, ASessionThatIsBeingFencedMakesNoCalls) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  Session::Options options = world.session_options(port);
  options.client_process = 7;
  auto session = world.try_open(port, options);
  ASSERT_TRUE(session.ok()) << session.status().message();
  const std::uint64_t id = (*session)->grant().session_id;
  const auto own = must_call<layout::AllocateSegmentsReply>(world, **session, layout::kAllocateSegments,
                                                            layout::AllocateSegmentsRequest{.size_class = 3});
  alignas(8) std::array<std::byte, 512> bytes;
  const auto nobody = [&](std::uint64_t session_id, const char* when) {
    for (const Asked& call : calls_of(**session, own.first)) {
      EXPECT_FALSE(world.node->on_call(session_id, call.opcode, base::bytes_of(std::string_view(call.request)), bytes))
          << call.what << when;
    }
  };
  nobody(id + 1, " of a session that never was");
  bool fenced = false;
  world.node->fence({7}, [&fenced](const v1alpha1::FenceResponse&) { fenced = true; });
  ASSERT_FALSE(fenced);
  nobody(id, " while it is being fenced");
  ASSERT_TRUE(world.wait_until([&] { return fenced; }));
  nobody(id, " when it has been");
  world.close(std::move(*session));
}

TEST(MemoryNode, AHugeRunIsRefusedNotGranted) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  for (const std::uint64_t count : {std::uint64_t{0}, world.geometry().segments + 1, ~std::uint64_t{0}}) {
    EXPECT_EQ(must_call<layout::AllocateSegmentsReply>(
                  world, *session, layout::kAllocateSegments,
                  layout::AllocateSegmentsRequest{.count = count, .size_class = layout::kRun})
                  .status,
              1u);
  }
  world.close(std::move(session));
}

TEST(MemoryNode, TheMapCanBeReadByACall) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  std::string reply(4096, '\0');
  fabric::Fate fate = fabric::Fate::maybe;
  world.run(call(*session, layout::kReadMap, std::string(8, '\0'), reply, fate));
  ASSERT_EQ(fate, fabric::Fate::done);
  const auto length = base::load<std::uint64_t>(reinterpret_cast<const std::byte*>(reply.data()));
  const auto map = map::Map::parse(std::string_view(reply).substr(8, length));
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_EQ(map->epoch(), 1u);
  std::string cut(16, '\0');
  world.run(call(*session, layout::kReadMap, std::string(8, '\0'), cut, fate));
  EXPECT_EQ(cut.size(), 8u);
  EXPECT_EQ(base::load<std::uint64_t>(reinterpret_cast<const std::byte*>(cut.data())), length);
  world.close(std::move(session));
}

task::Task<void> fetch(fabric::Port& port, std::vector<std::string> endpoints, std::uint64_t at_least,
                       base::Result<map::Map>& into, map::Trust* trust = nullptr) {
  map::Trust all;
  into = co_await map::fetch(port, std::move(endpoints), "pool", at_least, port.now() + 10 * kSecond,
                             trust != nullptr ? *trust : all);
}

// Stands for a key: a signature is a digest of the text under a secret.
struct Seal final : base::SignatureCheck {
  static v1alpha1::ShardMap sealed(v1alpha1::ShardMap map) {
    map.set_signature(of(map::signed_text(map)));
    return map;
  }
  static std::string of(std::string_view text) {
    return session::secret_bytes({base::keyed_hash({3, 4}, base::bytes_of(text)), 0}) + std::string(48, 's');
  }
  bool holds(std::string_view text, std::string_view signature) const override { return signature == of(text); }
};

// Attacks with maps that others made: on a memory node, by its agent and by the file beside its memory; and on clients.
TEST(MemoryNode, OnlyMapsThatTheOperatorHasSignedCount) {
  TestWorld world;
  const auto seal = std::make_shared<Seal>();
  world.options.map_key = seal;
  world.options.keep_map = [&world](const std::string& map) { world.options.kept_map = map; };
  world.kill();
  world.begin_life();
  const v1alpha1::ShardMap unsigned_map = map_with(*world.node, 5);
  v1alpha1::ShardMap later = Seal::sealed(unsigned_map);
  later.set_epoch(6);
  v1alpha1::ShardMap redirected = Seal::sealed(unsigned_map);
  redirected.mutable_nodes(0)->set_endpoint("attacker:7400");
  for (const v1alpha1::ShardMap& forged : {unsigned_map, later, redirected}) {
    EXPECT_EQ(world.node->prepare(forged, {1, 2}).verdict, Verdict::invalid);
    const auto refused = world.node->publish(forged, {1, 2});
    EXPECT_EQ(refused.verdict, Verdict::invalid);
    EXPECT_NE(refused.message.find("this pool's operator has not made it"), std::string::npos) << refused.message;
    EXPECT_TRUE(world.options.kept_map.empty()) << "nothing of it is kept";
  }
  ASSERT_EQ(world.node->publish(Seal::sealed(unsigned_map), {1, 2}).verdict, Verdict::adopted);
  EXPECT_EQ(world.node->facts().memory_node().map().signature().size(), 64u) << "the operator believes no other";

  // The file beside the memory.
  const std::string kept = world.options.kept_map;
  for (const std::string& file : {later.SerializeAsString(), redirected.SerializeAsString(), kept}) {
    world.kill();
    world.options.kept_map = file;
    world.begin_life();
    EXPECT_EQ(world.node->facts().memory_node().has_map(), file == kept);
  }
  ASSERT_EQ(world.node->publish(Seal::sealed(map_with(*world.node, 7)), {1, 2}).verdict, Verdict::adopted);

  // A memory node that shows a map of its own making, with a later epoch.
  fabric::sim::SimResponder& lying = world.network.add_node("node-1:7400");
  Memory memory = std::move(*Memory::anonymous(4 << 20));
  MemoryNode::Options options;
  options.name = "memory-1";
  options.pool_uid = "pool";
  options.endpoint = "node-1:7400";
  options.geometry.max_sessions = 4;
  auto liar = std::move(*MemoryNode::create(std::move(options), memory.span(), lying));
  lying.serve(*liar);
  ASSERT_EQ(liar->publish(map_with(*liar, 999), {1, 2}).verdict, Verdict::adopted);
  SimPort& port = world.client();
  base::Result<map::Map> got(base::Status(Code::internal, ""));
  map::Trust trust{.key = seal.get()};
  world.run(fetch(port, {"node-1:7400", "node-0:7400"}, 0, got, &trust));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->epoch(), 7u);
  EXPECT_EQ(trust.forged, 1u);
  world.run(fetch(port, {"node-1:7400"}, 0, got, &trust));
  EXPECT_EQ(got.code(), Code::forbidden);
  EXPECT_NE(got.status().message().find("node-1:7400: the shard map of epoch 999 is not signed"), std::string::npos)
      << got.status().message();
  EXPECT_EQ(trust.forged, 2u);
}

TEST(MemoryNode, TheNewestMapOfAllEndpointsWins) {
  TestWorld world;
  fabric::sim::SimResponder& second = world.network.add_node("node-1:7400");
  Memory memory = std::move(*Memory::anonymous(4 << 20));
  MemoryNode::Options options;
  options.name = "memory-1";
  options.pool_uid = "pool";
  options.endpoint = "node-1:7400";
  options.geometry.max_sessions = 4;
  auto other = std::move(*MemoryNode::create(std::move(options), memory.span(), second));
  second.serve(*other);
  SimPort& port = world.client();
  base::Result<map::Map> got(base::Status(Code::internal, ""));
  const std::vector<std::string> all{"node-0:7400", "node-9:7400", "node-1:7400"};

  world.run(fetch(port, all, 0, got));
  EXPECT_EQ(got.code(), Code::unavailable);
  EXPECT_NE(got.status().message().find("node-9:7400"), std::string::npos) << got.status().message();
  auto map = map_with(*world.node, 3);
  ASSERT_EQ(world.node->publish(map, {1, 2}).verdict, Verdict::adopted);
  map.set_epoch(4);
  ASSERT_EQ(other->publish(map, {1, 2}).verdict, Verdict::adopted);
  world.run(fetch(port, all, 0, got));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->epoch(), 4u);
  world.run(fetch(port, {"node-0:7400"}, 4, got));
  EXPECT_EQ(got.code(), Code::stale);
  world.run(fetch(port, {}, 0, got));
  EXPECT_EQ(got.code(), Code::invalid_argument);
}

// So it is on a machine that is busy with more than TLS handshakes.
TEST(MemoryNode, AMapThatTakesLongIsWaitedFor) {
  TestWorld world(1, 4 << 20, 4, 900 * kMillisecond);
  ASSERT_EQ(world.node->publish(map_with(*world.node, 3), {1, 2}).verdict, Verdict::adopted);
  SimPort& port = world.client();
  base::Result<map::Map> got(base::Status(Code::internal, ""));
  std::vector<std::string> endpoints{"node-0:7400"};
  world.run(fetch(port, endpoints, 0, got));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->epoch(), 3u);
  // Even behind other nodes that never answer.
  for (int i = 1; i < 9; ++i) endpoints.insert(endpoints.begin(), "node-" + std::to_string(i) + ":7400");
  for (int i = 1; i < 9; ++i) world.network.add_node("node-" + std::to_string(i) + ":7400");
  const Nanos before = port.now();
  world.run(fetch(port, endpoints, 0, got));
  EXPECT_TRUE(got.ok()) << got.status().message();
  EXPECT_LE(port.now() - before, 10 * kSecond);
}

class Volume {
 public:
  Volume() {
    std::string pattern = ::testing::TempDir() + "/farpool-memory-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  ~Volume() { std::filesystem::remove_all(directory_); }
  std::string path() const { return directory_.string(); }
  std::filesystem::path file(const std::string& name) const { return directory_ / name; }

 private:
  std::filesystem::path directory_;
};

layout::PrivateRecord some_record(std::uint64_t bytes) {
  return {.incarnation = 1, .lives = 1, .geometry = layout::plan_geometry({.memory_bytes = bytes}).value()};
}

TEST(Memory, OnAVolumeIsKeptOnceItHasBeenFormatted) {
  const Volume volume;
  constexpr std::uint64_t kBytes = 16 << 20;
  for (int life = 0; life < 4; ++life) {
    auto memory = Memory::on_volume(volume.path(), "memory-0", kBytes);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    // Life 0 is killed before it has formatted its memory, so life 1 gets zeros too.
    EXPECT_EQ(memory->span()[4096], life < 2 ? std::byte{0} : std::byte{1}) << life;
    memory->span()[4096] = std::byte{1};
    if (life == 1) layout::write_private_page(memory->span().last(layout::kPage), some_record(kBytes));
  }
  const auto smaller = Memory::on_volume(volume.path(), "memory-0", kBytes / 2);
  EXPECT_EQ(smaller.code(), Code::invalid_argument);
  EXPECT_NE(smaller.status().message().find("--memory was"), std::string::npos) << smaller.status().message();
  EXPECT_NE(smaller.status().message().find(std::to_string(kBytes)), std::string::npos) << smaller.status().message();
  auto replaced = Memory::on_volume(volume.path(), "memory-0", kBytes / 2, Memory::Earlier::replaced);
  ASSERT_TRUE(replaced.ok()) << replaced.status().message();
  EXPECT_EQ(replaced->span()[4096], std::byte{0});
  EXPECT_EQ(std::filesystem::file_size(volume.file("memory-0.memory")), kBytes / 2);
}

TEST(Memory, IsLentByOneProcessAtATime) {
  const Volume volume;
  std::optional<Memory> first(std::move(*Memory::on_volume(volume.path(), "m", 1 << 20)));
  for (const auto earlier : {Memory::Earlier::kept, Memory::Earlier::replaced}) {
    const auto second = Memory::on_volume(volume.path(), "m", 1 << 20, earlier);
    EXPECT_EQ(second.code(), Code::unavailable);
    EXPECT_NE(second.status().message().find("another process"), std::string::npos) << second.status().message();
  }
  EXPECT_TRUE(Memory::on_volume(volume.path(), "n", 1 << 20).ok());
  first.reset();
  EXPECT_TRUE(Memory::on_volume(volume.path(), "m", 1 << 20).ok());
}

TEST(Memory, OnAVolumeIsZeroedAnewAndReserved) {
  const std::filesystem::path directory =
      std::filesystem::path(::testing::TempDir()) / ("farpool-memory-" + std::to_string(::getpid()));
  std::filesystem::create_directories(directory);
  for (int life = 0; life < 2; ++life) {
    auto memory = Memory::on_volume(directory.string(), "memory-0", 1 << 20);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    EXPECT_EQ(memory->span().size(), 1u << 20);
    for (std::size_t i = 0; i < memory->span().size(); i += 512) ASSERT_EQ(memory->span()[i], std::byte{0});
    memory->span()[4096] = std::byte{1};
  }
  EXPECT_EQ(std::filesystem::file_size(directory / "memory-0.memory"), 1u << 20);
  EXPECT_EQ(Memory::on_volume((directory / "absent").string(), "m", 4096).code(), Code::unavailable);
  EXPECT_EQ(Memory::on_volume(directory.string(), "m", 4097).code(), Code::invalid_argument);
  EXPECT_EQ(Memory::on_volume(directory.string(), "m", std::uint64_t{1} << 60).code(), Code::out_of_memory);
  EXPECT_FALSE(std::filesystem::exists(directory / "m.memory"));
  EXPECT_EQ(Memory::anonymous(0).code(), Code::invalid_argument);
  const auto huge = Memory::on_volume(directory.string(), "m", 4 << 20, Memory::Earlier::kept, 2 << 20);
  EXPECT_EQ(huge.code(), Code::invalid_argument);
  EXPECT_NE(huge.status().message().find("a volume of ordinary pages"), std::string::npos) << huge.status().message();
  std::filesystem::remove_all(directory);
}

TEST(Memory, SaysWhatTheKernelRefuses) {
  const Volume volume;
  const auto why = [](const base::Result<Memory>& memory, Code code) {
    EXPECT_EQ(memory.code(), code);
    return memory.status().message();
  };
  EXPECT_NE(why(Memory::on_volume(volume.path() + "/absent", "m", 4096), Code::unavailable).find("looked at"),
            std::string::npos);
  EXPECT_NE(why(Memory::on_volume(volume.path(), "absent/m", 4096), Code::unavailable).find("cannot be created"),
            std::string::npos);
  std::filesystem::create_directory(volume.file("m.memory"));
  EXPECT_NE(why(Memory::on_volume(volume.path(), "m", 4096), Code::out_of_memory).find("cannot hold 4096 bytes"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(volume.file("m.memory.new")));
  EXPECT_NE(why(Memory::anonymous(std::uint64_t{1} << 60), Code::out_of_memory).find("lend less"), std::string::npos);
  EXPECT_FALSE(Memory::anonymous(6 << 20, 3 << 20).ok()) << "no machine has pages of that size";
}

TEST(Memory, SaysHowMuchOfItTheKernelHasGiven) {
  const Volume volume;
  std::vector<std::uint64_t> steps;
  constexpr std::uint64_t kBytes = 4096;
  const auto memory = Memory::on_volume(volume.path(), "m", kBytes, Memory::Earlier::kept, 0,
                                        [&](std::string_view, std::uint64_t done, std::uint64_t of) {
                                          EXPECT_EQ(of, kBytes);
                                          steps.push_back(done);
                                        });
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  EXPECT_EQ(steps, std::vector<std::uint64_t>{0});
}

TEST(MemoryImage, IsReadWhileNobodyLendsIt) {
  const Volume volume;
  const std::string path = volume.file("m.memory").string();
  const auto why = [&](const std::string& of) {
    const auto image = MemoryImage::open(of);
    EXPECT_EQ(image.code(), Code::unavailable) << of;
    return image.status().message();
  };
  EXPECT_NE(why(path).find("cannot be opened"), std::string::npos);
  EXPECT_NE(why(volume.path()).find("is not a file"), std::string::npos);
  std::ofstream(volume.file("empty")).close();
  EXPECT_NE(why(volume.file("empty").string()).find("is empty"), std::string::npos);
  std::optional<Memory> lent(std::move(*Memory::on_volume(volume.path(), "m", 4096)));
  lent->span()[7] = std::byte{7};
  EXPECT_NE(why(path).find("is lent by a memory node"), std::string::npos);
  lent.reset();
  {
    const auto image = MemoryImage::open(path);
    ASSERT_TRUE(image.ok()) << image.status().message();
    EXPECT_EQ(image->span().size(), 4096u);
    EXPECT_EQ(image->span()[7], std::byte{7});
    EXPECT_TRUE(MemoryImage::open(path).ok()) << "readers share it";
    EXPECT_EQ(Memory::on_volume(volume.path(), "m", 4096).code(), Code::unavailable) << "somebody reads it";
  }
  EXPECT_TRUE(Memory::on_volume(volume.path(), "m", 4096).ok());
}

}  // namespace
}  // namespace farpool::node
