// SPDX-License-Identifier: Apache-2.0
#include "session/registry.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "layout/lease.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"
#include "session/handshake.h"
#include "session/manual_responder.h"

namespace farpool::session {
namespace {

using base::kMillisecond;
using base::kSecond;
using v1alpha1::SessionReply;
using v1alpha1::SessionRequest;

constexpr std::uint64_t kNode = 99;
const fabric::Peer kClient{.pool_uid = "pool", .role = "client", .name = "shard", .authenticated = true};

struct RegistryTest : ::testing::Test, SessionObserver {
  RegistryTest() { rebuild({}); }

  void rebuild(Registry::Config config) {
    config.pool_uid = "pool";
    config.node_incarnation = kNode;
    config.slots_per_session = 2;
    config.eras = &eras;
    if (config.max_sessions == 256) config.max_sessions = 3;
    memory.assign(4096 / 8, 0);
    auto* base = reinterpret_cast<std::byte*>(memory.data());
    slots = base;
    for (std::uint32_t i = 0; i < 6; ++i) set_slot(i, 0);
    registry = std::make_unique<Registry>(
        config, std::vector<RegionSpan>{{layout::kSlots, base, 2048}, {layout::kTable, base + 2048, 2048}}, responder,
        *this);
  }
  void set_slot(std::uint32_t index, std::uint64_t holder, std::uint64_t sequence = 0) {
    layout::OperationSlot slot;
    slot.holder = holder;
    slot.sequence = sequence;
    base::store(slots + index * sizeof slot, slot);
  }
  void publish(std::uint64_t epoch) {
    v1alpha1::ShardMap map;
    map.set_pool_uid("pool");
    map.set_epoch(epoch);
    registry->serve(map, {1, 2});
  }
  SessionReply exchange(const SessionRequest& request, const fabric::Peer& peer = kClient) {
    SessionReply reply;
    bool answered = false;
    registry->on_exchange(peer, request.SerializeAsString(), [&](const std::string& bytes) {
      EXPECT_FALSE(answered);
      answered = true;
      EXPECT_TRUE(reply.ParseFromString(bytes));
    });
    EXPECT_TRUE(answered);
    return reply;
  }
  static SessionRequest request() { return begin_request("pool"); }
  SessionReply open(std::uint64_t incarnation, std::uint64_t epoch = 1, std::uint32_t lanes = 1,
                    const fabric::Peer& peer = kClient) {
    SessionRequest asked = request();
    *asked.mutable_open() = open_request(incarnation, epoch, lanes);
    return exchange(asked, peer);
  }
  static v1alpha1::OpenSession open_request(std::uint64_t incarnation, std::uint64_t epoch = 1,
                                            std::uint32_t lanes = 1) {
    v1alpha1::OpenSession asked;
    asked.set_client_incarnation(incarnation);
    asked.set_epoch(epoch);
    asked.set_node_incarnation(kNode);
    asked.set_lanes(lanes);
    return asked;
  }
  std::uint64_t must_open(std::uint64_t incarnation) {
    const SessionReply reply = open(incarnation);
    EXPECT_EQ(reply.code(), SessionReply::CODE_OK) << reply.message();
    if (reply.grant().lane_tokens_size() > 0) tokens[incarnation] = reply.grant().lane_tokens(0);
    return reply.grant().session_id();
  }
  static std::array<std::byte, 16> token(const SessionReply& reply, int i = 0) {
    std::array<std::byte, 16> token;
    std::memcpy(token.data(), reply.grant().lane_tokens(i).data(), 16);
    return token;
  }
  void on_opened(std::uint64_t, std::uint64_t, const std::string&) override { ++opened; }
  void on_ended(const Ended& one) override { ended.push_back(one); }

  ManualResponder responder;
  std::vector<std::uint64_t> memory;
  std::byte* slots = nullptr;
  EraWords eras;
  std::unique_ptr<Registry> registry;
  int opened = 0;
  std::vector<Ended> ended;
  std::map<std::uint64_t, std::string> tokens;  // the first of each incarnation
};

TEST_F(RegistryTest, ServesNobodyBeforeAnEpochIsPublished) {
  const SessionReply refused = open(1);
  EXPECT_EQ(refused.code(), SessionReply::CODE_NOT_SERVING);
  EXPECT_FALSE(refused.has_map());
  SessionRequest read = request();
  read.mutable_read_map();
  EXPECT_EQ(exchange(read).code(), SessionReply::CODE_NOT_SERVING);
  EXPECT_EQ(registry->counters().refused, 2u);
  publish(1);
  EXPECT_EQ(open(1).code(), SessionReply::CODE_OK);
  EXPECT_EQ(exchange(read).map().epoch(), 1u);
  EXPECT_EQ(registry->counters().refused, 2u);
}

TEST_F(RegistryTest, AgreesOnAVersionAndCountsOlderClients) {
  publish(1);
  EXPECT_EQ(open(1).protocol_version(), kProtocolVersion);
  EXPECT_EQ(registry->older_sessions(), 0u);
  SessionRequest before = request();
  before.clear_newest_version();
  *before.mutable_open() = open_request(2);
  const SessionReply reply = exchange(before);
  EXPECT_EQ(reply.code(), SessionReply::CODE_OK);
  EXPECT_EQ(reply.protocol_version(), kOldestProtocolVersion);
  EXPECT_EQ(registry->older_sessions(), 1u);
  registry->refuse(nullptr, "ended");
  responder.finish_fences();
  EXPECT_EQ(registry->older_sessions(), 0u);
  before.set_protocol_version(kProtocolVersion + 1);
  before.mutable_open()->set_client_incarnation(3);
  const SessionReply refused = exchange(before);
  EXPECT_EQ(refused.code(), SessionReply::CODE_BAD_REQUEST);
  EXPECT_NE(refused.message().find("protocol version 5, and this memory node 3 to 4"), std::string::npos)
      << refused.message();
}

// Executes nothing.
struct NoService final : fabric::Service {
  fabric::Served serve(fabric::Call&) noexcept override {
    return fabric::Served::refused(fabric::Refusal::unknown_opcode);
  }
};

TEST_F(RegistryTest, GrantsCallsForDataWhereTheNodeHasAService) {
  publish(1);
  SessionReply reply = open(1);
  EXPECT_FALSE(reply.grant().calls());
  auto rights = registry->on_open_lane(token(reply));
  ASSERT_TRUE(rights);
  EXPECT_EQ(rights->service, nullptr);

  NoService service;
  Registry::Config config;
  config.service = &service;
  rebuild(config);
  publish(1);
  reply = open(1);
  EXPECT_TRUE(reply.grant().calls());
  rights = registry->on_open_lane(token(reply));
  ASSERT_TRUE(rights);
  EXPECT_EQ(rights->service, &service);
}

TEST_F(RegistryTest, GrantsDistinctKeysTokensAndSlots) {
  publish(1);
  std::set<std::uint64_t> secrets, offsets;
  for (std::uint64_t client = 1; client <= 3; ++client) {
    const SessionReply reply = open(client, 1, 2);
    ASSERT_EQ(reply.code(), SessionReply::CODE_OK);
    EXPECT_EQ(reply.map().epoch(), 1u);
    for (const auto& region : reply.grant().regions()) secrets.insert(region.key());
    for (const auto& token : reply.grant().lane_tokens()) {
      for (const std::size_t half : {0u, 8u}) {
        std::uint64_t word;
        std::memcpy(&word, token.data() + half, 8);
        secrets.insert(word);
      }
    }
    offsets.insert(reply.grant().slots_offset());
  }
  EXPECT_EQ(secrets.size(), 3u * (2 + 2 * 2)) << "every word of them is random";
  EXPECT_FALSE(secrets.contains(0));
  EXPECT_EQ(offsets,
            (std::set<std::uint64_t>{0, 2 * sizeof(layout::OperationSlot), 4 * sizeof(layout::OperationSlot)}));
  EXPECT_EQ(open(4).code(), SessionReply::CODE_TOO_MANY_SESSIONS);
  EXPECT_EQ(registry->lanes(), 6u);
  EXPECT_EQ(registry->counters().opened, 3u);
  EXPECT_EQ(opened, 3);
}

TEST_F(RegistryTest, AGrantSaysWhatTheClientGoesBy) {
  Registry::Config config;
  config.lease = 4 * kSecond;
  config.table_seed = {5, 6};
  rebuild(config);
  publish(1);
  const v1alpha1::SessionGrant grant = open(1).grant();
  EXPECT_EQ(grant.node_incarnation(), kNode);
  EXPECT_EQ(grant.lease_ms(), 4000u);
  EXPECT_EQ(grant.tick_ms(), 200u);
  EXPECT_EQ(grant.failure_timeout_ms(), 2000u);
  EXPECT_EQ(grant.slots(), 2u);
  EXPECT_EQ(grant.max_operations_in_flight(), 2u);
  EXPECT_EQ(grant.era(), registry->era());
  EXPECT_EQ(grant.pool_secret(), secret_bytes({1, 2}));
  EXPECT_EQ(grant.table_seed(), secret_bytes({5, 6}));
  ASSERT_EQ(grant.regions_size(), 2);
  EXPECT_EQ(grant.regions(0).region(), layout::kSlots);
  EXPECT_EQ(grant.regions(1).region(), layout::kTable);
  EXPECT_EQ(grant.regions(1).bytes(), 2048u);
}

TEST_F(RegistryTest, RefusesRolesThatMayNotAndWhatIsStale) {
  publish(5);
  struct Case {
    const char* what;
    fabric::Peer peer;
    SessionReply::Code code;
  };
  const Case cases[] = {
      {"client", kClient, SessionReply::CODE_OK},
      {"operator",
       {.pool_uid = "pool", .role = "operator", .name = "o", .authenticated = true},
       SessionReply::CODE_FORBIDDEN},
      {"node", {.pool_uid = "pool", .role = "node", .name = "n", .authenticated = true}, SessionReply::CODE_FORBIDDEN},
      {"no role", {.pool_uid = "pool", .role = "", .name = "n", .authenticated = true}, SessionReply::CODE_FORBIDDEN},
      {"other pool",
       {.pool_uid = "loop", .role = "client", .name = "n", .authenticated = true},
       SessionReply::CODE_WRONG_POOL},
      {"nobody", {}, SessionReply::CODE_FORBIDDEN},
  };
  std::uint64_t client = 1;
  for (const Case& c : cases) EXPECT_EQ(open(client++, 5, 1, c.peer).code(), c.code) << c.what;
  // Members of the pool that get no session may still read its map.
  SessionRequest read = request();
  read.mutable_read_map();
  for (const Case& c : cases) {
    const bool member = c.peer.role == "operator" || c.peer.role == "node";
    EXPECT_EQ(exchange(read, c.peer).code(), member ? SessionReply::CODE_OK : c.code) << c.what;
  }

  const SessionReply stale = open(20, 4);
  EXPECT_EQ(stale.code(), SessionReply::CODE_STALE_EPOCH);
  EXPECT_EQ(stale.map().epoch(), 5u);
  SessionRequest other = request();
  other.mutable_open()->set_client_incarnation(21);
  other.mutable_open()->set_epoch(5);
  other.mutable_open()->set_node_incarnation(kNode + 1);
  other.mutable_open()->set_lanes(1);
  const SessionReply another_life = exchange(other);
  EXPECT_EQ(another_life.code(), SessionReply::CODE_WRONG_INCARNATION);
  EXPECT_EQ(another_life.map().epoch(), 5u);
  other.set_pool_uid("loop");
  EXPECT_EQ(exchange(other).code(), SessionReply::CODE_WRONG_POOL);
  const std::uint64_t refused = registry->counters().refused;
  registry->on_exchange(kClient, "\xff", [](const std::string& bytes) {
    SessionReply reply;
    ASSERT_TRUE(reply.ParseFromString(bytes));
    EXPECT_EQ(reply.code(), SessionReply::CODE_BAD_REQUEST);
    EXPECT_FALSE(reply.message().empty());
  });
  EXPECT_EQ(registry->counters().refused, refused + 1);
}

TEST_F(RegistryTest, APortWithoutTlsAdmitsOnlyWhenToldTo) {
  Registry::Config config;
  config.require_authentication = false;
  rebuild(config);
  publish(1);
  EXPECT_EQ(open(1, 1, 1, {}).code(), SessionReply::CODE_OK);
}

TEST_F(RegistryTest, TokensAreGoodForOneLaneAndExpire) {
  publish(1);
  const SessionReply first = open(1, 1, 2);
  const auto rights = registry->on_open_lane(token(first));
  ASSERT_TRUE(rights);
  EXPECT_EQ(rights->session_id, first.grant().session_id());
  ASSERT_EQ(rights->regions.size(), 2u);
  EXPECT_EQ(rights->regions[0].key, first.grant().regions(0).key());
  EXPECT_EQ(rights->regions[0].base, slots);
  EXPECT_FALSE(registry->on_open_lane(token(first)));
  for (int i = 0; i < 6; ++i) {  // kept alive past the token's life
    responder.advance(kSecond);
    ASSERT_TRUE(registry->tick(rights->session_id, {.era = registry->era()}));
  }
  EXPECT_TRUE(registry->unspent_tokens().empty());
  EXPECT_FALSE(registry->on_open_lane(token(first, 1)));
  EXPECT_FALSE(registry->on_open_lane({}));
}

// The registry looks for expired tokens now and then: it refuses a token that it has not found yet, too.
TEST_F(RegistryTest, ATokenExpiresByItsOwnTime) {
  publish(1);
  const std::uint64_t first = must_open(1);  // its timer runs now, and not when the tokens of the next expire
  responder.advance(100 * kMillisecond);
  const SessionReply second = open(2, 1, 2);
  const auto keep = [&](Nanos time) {
    responder.advance(time);
    for (const std::uint64_t id : {first, second.grant().session_id()}) {
      ASSERT_TRUE(registry->tick(id, {.era = registry->era()}));
    }
  };
  for (int i = 0; i < 4; ++i) keep(kSecond);
  keep(990 * kMillisecond);
  EXPECT_TRUE(registry->on_open_lane(token(second, 0)));
  keep(20 * kMillisecond);
  ASSERT_EQ(registry->unspent_tokens().size(), 1u) << "it has not been looked for";
  EXPECT_FALSE(registry->on_open_lane(token(second, 1)));
}

// While a session is being fenced nothing new of it may begin: the fence cuts what existed when it began.
TEST_F(RegistryTest, ALaneTokenIsRefusedFromTheMomentThatItsSessionIsBeingFenced) {
  for (const bool by_operator : {false, true}) {
    rebuild({});
    publish(1);
    SessionRequest asked = request();
    asked.mutable_open()->set_client_incarnation(1);
    asked.mutable_open()->set_client_process(7);
    asked.mutable_open()->set_epoch(1);
    asked.mutable_open()->set_node_incarnation(kNode);
    asked.mutable_open()->set_lanes(3);
    const SessionReply opened = exchange(asked);
    ASSERT_EQ(opened.code(), SessionReply::CODE_OK) << opened.message();
    EXPECT_TRUE(registry->on_open_lane(token(opened, 0)));
    responder.advance(4 * kSecond);
    ASSERT_TRUE(registry->tick(opened.grant().session_id(), {.era = 1}));
    if (by_operator) {
      registry->fence_processes({7}, [](std::uint32_t) {});
    } else {
      registry->refuse(nullptr, "another epoch");
    }
    ASSERT_EQ(responder.fences.size(), 1u);
    EXPECT_TRUE(registry->unspent_tokens().empty()) << "a token proves nothing any more";
    EXPECT_FALSE(registry->on_open_lane(token(opened, 1))) << "while it is being fenced";
    EXPECT_EQ(responder.finish_fences(), std::vector{opened.grant().session_id()});
    EXPECT_FALSE(registry->on_open_lane(token(opened, 2))) << "when it has been";
  }
}

TEST_F(RegistryTest, ASessionWithoutTicksIsFencedAndItsIncarnationNeverComesBack) {
  publish(1);
  const std::uint64_t quiet = must_open(1), lively = must_open(2);
  for (int i = 0; i < 7; ++i) {
    responder.advance(kSecond);
    ASSERT_TRUE(registry->tick(lively, {.era = 1}));
  }
  EXPECT_FALSE(registry->tick(quiet, {.era = 1}));  // while it is being fenced
  EXPECT_EQ(responder.finish_fences(), std::vector{quiet});
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_FALSE(ended[0].clean);
  EXPECT_NE(ended[0].why.find("lease"), std::string::npos);
  EXPECT_FALSE(registry->live(quiet));
  EXPECT_EQ(open(1).code(), SessionReply::CODE_FENCED);
  EXPECT_EQ(open(2).code(), SessionReply::CODE_BAD_REQUEST);  // live
  EXPECT_EQ(registry->counters().fenced, 1u);
}

TEST_F(RegistryTest, SlotsThatNameAHolderStayAndIdleOnesServeTheNext) {
  publish(1);
  const std::uint64_t a = must_open(1), b = must_open(2), c = must_open(3);
  set_slot(0, 1);  // the first client dies in mid-operation
  responder.advance(6 * kSecond);
  EXPECT_EQ(responder.finish_fences(), (std::vector{a, b, c}));
  EXPECT_TRUE(ended[0].holds);
  EXPECT_FALSE(ended[1].holds);
  EXPECT_EQ(registry->held_by_the_dead(), 1u);
  EXPECT_EQ(open(4).grant().slots_offset(), 2 * sizeof(layout::OperationSlot));
  EXPECT_EQ(open(5).grant().slots_offset(), 4 * sizeof(layout::OperationSlot));
  EXPECT_EQ(open(6).code(), SessionReply::CODE_TOO_MANY_SESSIONS);
}

TEST_F(RegistryTest, AClaimThatLandedInPartCountsAsHeld) {
  publish(1);
  must_open(1);
  base::store(slots + layout::kSlotHolder.offset, std::uint64_t{1});
  responder.advance(6 * kSecond);
  responder.finish_fences();
  EXPECT_TRUE(ended.at(0).holds);
}

TEST_F(RegistryTest, SlotsOfTheDeadServeAgainWhenTheyAreRepaired) {
  publish(1);
  must_open(1);
  set_slot(0, 1);
  responder.advance(6 * kSecond);
  responder.finish_fences();
  ASSERT_EQ(registry->dead().size(), 1u);
  EXPECT_EQ(registry->dead()[0].incarnation, 1u);
  EXPECT_EQ(registry->busy_slots(registry->dead()[0].group), 1u);
  registry->reclaim();
  EXPECT_EQ(registry->held_by_the_dead(), 1u);
  set_slot(0, 0);
  registry->reclaim();
  EXPECT_EQ(registry->held_by_the_dead(), 0u);
  EXPECT_EQ(open(2).grant().slots_offset(), 0u);
}

TEST_F(RegistryTest, WhatIsRepairedIsNoticedWhileClientsWork) {
  publish(1);
  must_open(1);
  set_slot(0, 1);
  responder.advance(6 * kSecond);
  responder.finish_fences();
  ASSERT_EQ(registry->held_by_the_dead(), 1u);
  must_open(2);
  set_slot(0, 0);
  responder.advance(kSecond);
  EXPECT_EQ(registry->held_by_the_dead(), 0u);
}

TEST_F(RegistryTest, OfAnEarlierLifeOnlyGroupsWithSomethingInThemAreOfTheDead) {
  set_slot(0, 1);
  Registry::Config config{.pool_uid = "pool", .node_incarnation = kNode, .max_sessions = 3, .slots_per_session = 2};
  config.places = 2;
  registry =
      std::make_unique<Registry>(config, std::vector<RegionSpan>{{layout::kSlots, slots, 2048}}, responder, *this);
  EXPECT_EQ(registry->held_by_the_dead(), 1u);
  EXPECT_EQ(registry->dead()[0].group, 0u);
  publish(1);
  EXPECT_EQ(open(2).grant().slots_offset(), 2 * sizeof(layout::OperationSlot));
}

TEST_F(RegistryTest, AClientThatComesGetsWhatWasRepairedLast) {
  publish(1);
  const std::uint64_t a = must_open(1), b = must_open(2), c = must_open(3);
  set_slot(0, 1);
  responder.advance(4 * kSecond);
  for (const std::uint64_t lively : {b, c}) ASSERT_TRUE(registry->tick(lively, {.era = 1}));
  responder.advance(2 * kSecond);
  ASSERT_EQ(responder.finish_fences(), std::vector{a});
  EXPECT_EQ(open(4).code(), SessionReply::CODE_TOO_MANY_SESSIONS);
  set_slot(0, 0);  // no timer has passed since
  EXPECT_EQ(open(4).code(), SessionReply::CODE_OK);
}

layout::FenceRequest complaint(std::uint64_t slot, std::uint64_t holder, std::uint64_t says) {
  return {.of = layout::FenceRequest::kSlot, .index = slot, .holder = holder, .says = says};
}

TEST_F(RegistryTest, AClientIsNotFencedForTheSlotOfAnother) {
  using layout::FenceReply;
  publish(1);
  const std::uint64_t first = must_open(1), second = must_open(2);
  set_slot(0, 2, 256);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(registry->fence(complaint(0, 1, 256)).value().status, FenceReply::kMoved);
    responder.advance(kSecond);
    for (const std::uint64_t id : {first, second}) ASSERT_TRUE(registry->tick(id, {.era = registry->era()}));
  }
  EXPECT_TRUE(responder.fences.empty());
}

TEST_F(RegistryTest, AComplaintThatIsNotRepeatedIsForgotten) {
  using layout::FenceReply;
  publish(1);
  const std::uint64_t id = must_open(1);
  set_slot(0, 1, 256);
  EXPECT_EQ(registry->fence(complaint(0, 1, 256)).value().status, FenceReply::kNoted);
  for (int i = 0; i < 10; ++i) {
    responder.advance(kSecond);
    ASSERT_TRUE(registry->tick(id, {.era = registry->era()}));
  }
  EXPECT_EQ(registry->fence(complaint(0, 1, 256)).value().status, FenceReply::kNoted);
  EXPECT_TRUE(registry->live(id));
}

TEST_F(RegistryTest, AClientIsFencedOnlyIfItsSlotStandsStillForTheFailureTimeout) {
  using layout::FenceReply;
  publish(1);
  const std::uint64_t id = must_open(1);
  set_slot(0, 1, 256);
  const auto status = [&](const layout::FenceRequest& request) { return registry->fence(request).value().status; };
  EXPECT_EQ(status(complaint(0, 1, 512)), FenceReply::kMoved);  // it says something else
  EXPECT_EQ(status(complaint(0, 1, 256)), FenceReply::kNoted);
  responder.advance(1900 * kMillisecond);
  EXPECT_EQ(status(complaint(0, 1, 256)), FenceReply::kNoted);
  // When it moves, the complaint begins anew, whether the complaint that notices the move names the old sequence or the
  // new one.
  for (const bool old_is_named : {true, false}) {
    const std::uint64_t before = old_is_named ? 256 : 384, after = old_is_named ? 384 : 512;
    set_slot(0, 1, after);
    if (old_is_named) EXPECT_EQ(status(complaint(0, 1, before)), FenceReply::kMoved);
    EXPECT_TRUE(registry->tick(id, {.era = 1}));
    responder.advance(200 * kMillisecond);
    EXPECT_EQ(status(complaint(0, 1, after)), FenceReply::kNoted);
    responder.advance(1900 * kMillisecond);
    EXPECT_EQ(status(complaint(0, 1, after)), FenceReply::kNoted);
  }
  EXPECT_TRUE(registry->tick(id, {.era = 1}));
  responder.advance(200 * kMillisecond);
  layout::FenceRequest ask = complaint(0, 1, 512);
  ask.ask = 1;
  EXPECT_EQ(status(ask), FenceReply::kNoted) << "a question fences nobody";
  EXPECT_EQ(status(complaint(0, 1, 512)), FenceReply::kEnding);
  EXPECT_FALSE(registry->live(id));
  EXPECT_EQ(status(complaint(0, 1, 512)), FenceReply::kEnding);
  responder.finish_fences();
  EXPECT_EQ(status(complaint(0, 1, 512)), FenceReply::kEnded);
  EXPECT_EQ(status(complaint(0, 99, 512)), FenceReply::kEnded) << "of a client that never was here nothing executes";
  EXPECT_FALSE(registry->fence(complaint(6 + 1, 1, 512))) << "there is no such slot";
  layout::FenceRequest odd = complaint(0, 1, 512);
  odd.of = 2;
  EXPECT_FALSE(registry->fence(odd));
  EXPECT_EQ(registry->fence(ask)->places, 1u);
  // The complaints were about the fenced client: for the next client with the slot, time counts from its own first
  // complaint.
  must_open(2);
  set_slot(0, 2, 512);
  EXPECT_EQ(status(complaint(0, 2, 512)), FenceReply::kNoted);
}

TEST_F(RegistryTest, AProcessThatTheOperatorNamesEndsWithAllItsSessions) {
  publish(1);
  SessionRequest first = request(), second = request();
  for (SessionRequest* each : {&first, &second}) {
    *each->mutable_open() = open_request(each == &first ? 1 : 2);
    each->mutable_open()->set_client_process(77);
  }
  ASSERT_EQ(exchange(first).code(), SessionReply::CODE_OK);
  ASSERT_EQ(exchange(second).code(), SessionReply::CODE_OK);
  must_open(3);
  std::optional<std::uint32_t> done;
  registry->fence_processes({77}, [&](std::uint32_t sessions) { done = sessions; });
  EXPECT_FALSE(done) << "verbs may still execute";
  responder.finish_fences();
  EXPECT_EQ(done, 2u);
  EXPECT_EQ(registry->sessions(), 1u);
  SessionRequest again = request();
  *again.mutable_open() = open_request(4);
  again.mutable_open()->set_client_process(77);
  EXPECT_EQ(exchange(again).code(), SessionReply::CODE_PROCESS_FENCED);
  done.reset();
  registry->fence_processes({77, 0}, [&](std::uint32_t sessions) { done = sessions; });
  EXPECT_EQ(done, 0u);
}

TEST_F(RegistryTest, TheOperatorIsAnsweredWhenTheLastOfAProcessSessionsHasEnded) {
  publish(1);
  for (const std::uint64_t incarnation : {1u, 2u}) {
    SessionRequest asked = request();
    *asked.mutable_open() = open_request(incarnation);
    asked.mutable_open()->set_client_process(77);
    ASSERT_EQ(exchange(asked).code(), SessionReply::CODE_OK);
  }
  int answers = 0;
  registry->fence_processes({77}, [&](std::uint32_t) { ++answers; });
  ASSERT_EQ(responder.fences.size(), 2u);
  auto fences = std::exchange(responder.fences, {});
  fences[0].second();
  EXPECT_EQ(answers, 0) << "verbs of the other session may still execute";
  fences[1].second();
  EXPECT_EQ(answers, 1);
}

TEST_F(RegistryTest, WhatBeganAFenceIsTheReasonThatIsTold) {
  publish(1);
  SessionRequest bye = request();
  bye.mutable_close()->set_session_id(must_open(1));
  bye.mutable_close()->set_client_incarnation(1);
  bye.mutable_close()->set_token(tokens[1]);
  registry->on_exchange(kClient, bye.SerializeAsString(), [](const std::string&) {});
  responder.advance(10 * kSecond);  // its lease ends meanwhile
  registry->refuse(nullptr, "another epoch");
  EXPECT_EQ(responder.fences.size(), 1u) << "it is fenced already";
  responder.finish_fences();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].clean) << ended[0].why;
  EXPECT_EQ(registry->counters().closed, 1u);
}

// A client reads a lease's word before it complains of it. Meanwhile the holder may give the lease back.
TEST_F(RegistryTest, ALeaseThatMovedOnSaysNothingOfItsHolder) {
  using layout::FenceReply;
  std::vector<std::uint64_t> leases(64);
  registry = std::make_unique<Registry>(
      Registry::Config{.pool_uid = "pool", .node_incarnation = kNode, .max_sessions = 3, .slots_per_session = 2},
      std::vector<RegionSpan>{{layout::kSlots, slots, 2048},
                              {layout::kLeases, reinterpret_cast<std::byte*>(leases.data()), leases.size() * 8}},
      responder, *this);
  publish(1);
  const std::uint64_t held = layout::LeaseWord::Session::put(must_open(1));
  const layout::FenceRequest complaint{.of = layout::FenceRequest::kLease, .index = 5, .says = held};
  leases[5] = held;
  EXPECT_EQ(registry->fence(complaint)->status, FenceReply::kNoted);
  leases[5] = 0;
  EXPECT_EQ(registry->fence(complaint)->status, FenceReply::kMoved);
  leases[5] = layout::LeaseWord::Session::put(77);  // of a session that was never here
  EXPECT_EQ(registry->fence(complaint)->status, FenceReply::kMoved);
}

// Where clients only read leases, the memory node writes what a client would write that keeps to the rules.
TEST_F(RegistryTest, ALeaseIsTakenFromNoSessionThatLives) {
  using layout::LeaseWord;
  std::vector<std::uint64_t> leases(8);
  const auto begin = [&](bool read_only) {
    auto* base = reinterpret_cast<std::byte*>(leases.data());
    registry = std::make_unique<Registry>(
        Registry::Config{.pool_uid = "pool", .node_incarnation = kNode, .max_sessions = 3, .slots_per_session = 2},
        std::vector<RegionSpan>{{layout::kSlots, slots, 2048}, {layout::kLeases, base, 64, read_only}}, responder,
        *this);
    publish(1);
  };
  begin(true);
  const std::uint64_t one = must_open(1), two = must_open(2);
  const auto swap = [&](std::uint64_t session, std::uint64_t says, std::uint64_t word, std::uint64_t index = 5) {
    const auto reply = registry->swap_lease(session, {.index = index, .says = says, .word = word});
    return reply ? std::optional(reply->before) : std::nullopt;
  };
  const std::uint64_t held = LeaseWord::held_by(0, one);
  EXPECT_EQ(swap(one, 0, held, 8), std::nullopt) << "there is no such lease";
  EXPECT_EQ(swap(one, 0, held + 1), std::nullopt) << "for somebody else";
  EXPECT_EQ(swap(one, 0, LeaseWord::released(0)), std::nullopt) << "nobody holds it";
  EXPECT_EQ(swap(one, 0, held), 0u);
  EXPECT_EQ(leases[5], held);
  EXPECT_EQ(swap(two, 0, LeaseWord::held_by(0, two)), held) << "it says something else";
  EXPECT_EQ(swap(two, held, LeaseWord::held_by(held, two)), std::nullopt) << "its holder lives";
  EXPECT_EQ(swap(two, held, LeaseWord::released(held)), std::nullopt);
  EXPECT_EQ(leases[5], held);
  const std::uint64_t renewed = LeaseWord::held_by(held, one);
  EXPECT_EQ(swap(one, held, renewed), held);
  SessionRequest again = request();
  *again.mutable_open() = open_request(3);
  again.mutable_open()->set_previous_incarnation(1);
  again.mutable_open()->set_previous_token(tokens[1]);
  ASSERT_EQ(exchange(again).code(), SessionReply::CODE_OK);
  EXPECT_EQ(leases[5], renewed) << "a CALL of it may still execute";
  responder.finish_fences();
  const std::uint64_t free = LeaseWord::released(renewed);
  EXPECT_EQ(leases[5], free) << "a session that ends has none";
  const std::uint64_t taken = LeaseWord::held_by(free, two);
  EXPECT_EQ(swap(two, free, taken), free);
  EXPECT_EQ(swap(two, taken, LeaseWord::released(taken)), taken);
  EXPECT_FALSE(LeaseWord::held(leases[5]));
  begin(false);
  EXPECT_EQ(swap(must_open(5), 0, held), std::nullopt) << "clients write it themselves";
}

TEST_F(RegistryTest, AClientThatComesBackEndsItsLifeBefore) {
  publish(1);
  const std::uint64_t id = must_open(1);
  SessionRequest again = request();
  *again.mutable_open() = open_request(2);
  again.mutable_open()->set_previous_incarnation(1);
  again.mutable_open()->set_previous_token(tokens[1]);
  again.mutable_open()->set_client_name("somebody else");
  ASSERT_EQ(exchange(again).code(), SessionReply::CODE_OK);
  EXPECT_TRUE(registry->live(id)) << "only its own";
  *again.mutable_open() = open_request(3);
  again.mutable_open()->set_previous_incarnation(1);
  again.mutable_open()->set_previous_token(tokens[1]);
  ASSERT_EQ(exchange(again).code(), SessionReply::CODE_OK);
  EXPECT_FALSE(registry->live(id));
}

// Incarnations, names and processes are in operation slots, statuses and logs: a client that knows those of another
// cannot end its session.
TEST_F(RegistryTest, NobodyEndsTheSessionOfAnother) {
  publish(1);
  const std::uint64_t id = must_open(1);
  fabric::Peer other = kClient;
  other.name = "other";
  std::uint64_t incarnation = 2;
  for (const auto& [peer, token] : std::vector<std::pair<fabric::Peer, std::string>>{
           {kClient, ""}, {kClient, std::string(16, 'x')}, {other, tokens[1]}}) {
    SessionRequest attack = request();
    *attack.mutable_open() = open_request(incarnation++);
    attack.mutable_open()->set_previous_incarnation(1);
    attack.mutable_open()->set_previous_token(token);
    const SessionReply opened_too = exchange(attack, peer);
    EXPECT_EQ(opened_too.code(), SessionReply::CODE_OK);
    EXPECT_TRUE(registry->live(id)) << peer.name << " with a token of " << token.size() << " bytes";
    attack.mutable_close()->set_session_id(opened_too.grant().session_id());
    attack.mutable_close()->set_client_incarnation(incarnation - 1);
    attack.mutable_close()->set_token(opened_too.grant().lane_tokens(0));
    registry->on_exchange(peer, attack.SerializeAsString(), [](const std::string&) {});
    responder.finish_fences();
    attack.mutable_close()->set_session_id(id);
    attack.mutable_close()->set_client_incarnation(1);
    attack.mutable_close()->set_token(token);
    EXPECT_EQ(exchange(attack, peer).code(), SessionReply::CODE_BAD_REQUEST);
    EXPECT_TRUE(registry->live(id));
  }
  SessionRequest odd = request();
  odd.mutable_close()->set_session_id(id);
  odd.mutable_close()->set_client_incarnation(1);
  odd.mutable_close()->set_token("short");
  EXPECT_EQ(exchange(odd).code(), SessionReply::CODE_BAD_REQUEST);
}

TEST_F(RegistryTest, AClientIsWhoItsCertificateSays) {
  Registry::Config config;
  config.check_names = true;
  rebuild(config);
  publish(1);
  std::uint64_t incarnation = 0;
  const auto as = [&](const std::string& name, std::uint64_t process, const fabric::Peer& peer) {
    SessionRequest asked = request();
    *asked.mutable_open() = open_request(++incarnation);
    asked.mutable_open()->set_client_name(name);
    asked.mutable_open()->set_client_process(process);
    const SessionReply reply = exchange(asked, peer);
    if (process == 0 && reply.code() == SessionReply::CODE_OK) {
      registry->refuse(nullptr, "room for the next");
      responder.finish_fences();
      publish(1);
    }
    return reply.code();
  };
  for (const char* name : {"", "shar", "shards", "shards-1/0", "other"}) {
    EXPECT_EQ(as(name, 0, kClient), SessionReply::CODE_FORBIDDEN) << name;
  }
  for (const char* name : {"shard", "shard/0", "shard-5f-x2/0"}) {
    EXPECT_EQ(as(name, 0, kClient), SessionReply::CODE_OK) << name;
  }
  // A process that others use may be fenced with them, or for them.
  EXPECT_EQ(as("shard-5f-x2/0", 77, kClient), SessionReply::CODE_OK);
  EXPECT_EQ(as("shard-5f-x2/1", 77, kClient), SessionReply::CODE_OK);
  EXPECT_EQ(as("shard-5f-x3/0", 77, kClient), SessionReply::CODE_FORBIDDEN);
  fabric::Peer above = kClient;
  above.name = "shard-5f";
  EXPECT_EQ(as("shard-5f-x2/2", 77, above), SessionReply::CODE_FORBIDDEN);
}

TEST_F(RegistryTest, AGoodbyeIsAnsweredAfterTheFence) {
  publish(1);
  const std::uint64_t id = must_open(1);
  SessionRequest bye = request();
  bye.mutable_close()->set_token(tokens[1]);
  bye.mutable_close()->set_session_id(id);
  bye.mutable_close()->set_client_incarnation(2);
  EXPECT_EQ(exchange(bye).code(), SessionReply::CODE_BAD_REQUEST);  // not its session
  EXPECT_EQ(registry->counters().refused, 1u);
  bye.mutable_close()->set_client_incarnation(1);
  int answers = 0;
  registry->on_exchange(kClient, bye.SerializeAsString(), [&](const std::string& bytes) {
    SessionReply reply;
    EXPECT_TRUE(reply.ParseFromString(bytes));
    EXPECT_EQ(reply.code(), SessionReply::CODE_OK);
    ++answers;
  });
  EXPECT_EQ(answers, 0);
  EXPECT_FALSE(registry->tick(id, {.era = 1}));
  responder.finish_fences();
  EXPECT_EQ(answers, 1);
  EXPECT_TRUE(ended.at(0).clean);
  EXPECT_EQ(registry->lanes(), 0u);
  EXPECT_EQ(open(1).code(), SessionReply::CODE_FENCED);
  EXPECT_EQ(open(2).grant().slots_offset(), 0u);
}

// An operator that was away when a process ended asks which sessions were closed in order.
TEST_F(RegistryTest, AProcessThatClosedItsLastSessionIsToldFromOneThatDied) {
  Registry::Config config;
  config.remembered_closed = 2;
  rebuild(config);
  publish(1);
  std::map<std::uint64_t, std::uint64_t> ids;
  const auto begin = [&](std::uint64_t incarnation, std::uint64_t process) {
    SessionRequest asked = request();
    *asked.mutable_open() = open_request(incarnation);
    asked.mutable_open()->set_client_process(process);
    const SessionReply reply = exchange(asked);
    ASSERT_EQ(reply.code(), SessionReply::CODE_OK) << reply.message();
    ids[incarnation] = reply.grant().session_id();
    tokens[incarnation] = reply.grant().lane_tokens(0);
  };
  const auto ask_to_close = [&](std::uint64_t incarnation) {
    SessionRequest bye = request();
    bye.mutable_close()->set_token(tokens[incarnation]);
    bye.mutable_close()->set_session_id(ids[incarnation]);
    bye.mutable_close()->set_client_incarnation(incarnation);
    registry->on_exchange(kClient, bye.SerializeAsString(), [](const std::string&) {});
  };
  const auto close = [&](std::uint64_t incarnation) {
    ask_to_close(incarnation);
    responder.finish_fences();
  };
  const auto die = [&] {
    responder.advance(6 * kSecond);
    responder.finish_fences();
  };
  using Closed = std::deque<std::uint64_t>;

  begin(1, 77);
  begin(2, 77);
  close(1);
  EXPECT_EQ(registry->closed(), Closed{}) << "it has a session";
  ask_to_close(2);
  EXPECT_EQ(registry->closed(), Closed{}) << "its verbs may still execute";
  responder.finish_fences();
  EXPECT_EQ(registry->closed(), Closed{77});
  begin(3, 77);
  EXPECT_EQ(registry->closed(), Closed{}) << "it has come back";
  die();
  EXPECT_EQ(registry->closed(), Closed{}) << "it died";

  // A session that is lost earlier says nothing if its process closes the last one; a session that is lost last does.
  begin(4, 78);
  die();
  begin(5, 78);
  close(5);
  EXPECT_EQ(registry->closed(), Closed{78});
  begin(6, 79);
  begin(7, 79);
  close(6);
  die();
  EXPECT_EQ(registry->closed(), Closed{78});
  // While one of two sessions is being fenced, the other is not the last.
  begin(8, 79);
  begin(9, 79);
  registry->fence_processes({79}, [](std::uint32_t) {});
  ask_to_close(9);
  responder.finish_fences();
  EXPECT_EQ(registry->closed(), Closed{78}) << "the operator ended it";

  // Clients without a process of the pool are not named, and the oldest processes are forgotten.
  begin(10, 0);
  close(10);
  EXPECT_EQ(registry->closed(), Closed{78});
  for (const std::uint64_t process : {80u, 81u}) {
    begin(process, process);
    close(process);
  }
  EXPECT_EQ(registry->closed(), (Closed{80, 81}));
}

TEST_F(RegistryTest, ErasAdvanceWhenEveryLiveSessionHasPublished) {
  publish(1);
  const std::uint64_t a = must_open(1), b = must_open(2);
  EXPECT_EQ(registry->tick(a, {.era = 1})->era, 2u);  // both began in era 1
  EXPECT_EQ(registry->tick(a, {.era = 2})->safe_era, 1u);
  EXPECT_EQ(registry->tick(a, {.era = 2})->era, 2u);  // b still lags
  EXPECT_EQ(registry->tick(b, {.era = 1})->era, 2u);  // b runs an operation of era 1
  EXPECT_EQ(registry->safe_era(), 1u);
  const auto told = registry->tick(b, {.era = 2});
  EXPECT_EQ(told->era, 3u);
  EXPECT_EQ(told->safe_era, 2u);
  EXPECT_EQ(told->epoch, 1u);
  EXPECT_FALSE(registry->tick(a, {.era = 4}));  // an era that never was
}

TEST_F(RegistryTest, OtherThreadsSeeTheErasAsSoonAsAClientCan) {
  const auto expect_eras = [&](std::uint64_t now, std::uint64_t safe) {
    EXPECT_EQ(registry->era(), now);
    EXPECT_EQ(registry->safe_era(), safe);
    EXPECT_EQ(eras.now, now);
    EXPECT_EQ(eras.safe, safe);
  };
  publish(1);
  expect_eras(1, 2);
  const std::uint64_t a = must_open(1);
  expect_eras(1, 1);
  const std::uint64_t b = must_open(2);
  ASSERT_TRUE(registry->tick(a, {.era = 1}));
  expect_eras(2, 1);
  ASSERT_TRUE(registry->tick(a, {.era = 2}));
  expect_eras(2, 1);
  ASSERT_TRUE(registry->tick(b, {.era = 2}));
  expect_eras(3, 2);
  registry->refuse(nullptr, "it is over");
  expect_eras(3, 2);
  responder.finish_fences();
  expect_eras(registry->era(), registry->era() + 1);
}

// The end of a session says nothing about what the others still read.
TEST_F(RegistryTest, AnEraOutlivesSessionsThatHadPublishedIt) {
  publish(1);
  const std::uint64_t a = must_open(1), b = must_open(2), c = must_open(3);
  ASSERT_EQ(registry->tick(a, {.era = 1})->era, 2u);
  ASSERT_TRUE(registry->tick(a, {.era = 2}));
  SessionRequest bye = request();
  bye.mutable_close()->set_token(tokens[1]);
  bye.mutable_close()->set_session_id(a);
  bye.mutable_close()->set_client_incarnation(1);
  registry->on_exchange(kClient, bye.SerializeAsString(), [](const std::string&) {});
  ASSERT_EQ(responder.finish_fences(), std::vector{a});
  EXPECT_EQ(registry->era(), 2u) << "two have not published it";
  EXPECT_EQ(registry->safe_era(), 1u);
  EXPECT_EQ(registry->tick(b, {.era = 2})->era, 2u) << "one has not published it";
  EXPECT_EQ(registry->safe_era(), 1u);
  EXPECT_EQ(registry->tick(c, {.era = 2})->era, 3u);
}

TEST_F(RegistryTest, EverybodyHearsForAWhileThatSomebodyWaitsForAnEra) {
  publish(1);
  const std::uint64_t a = must_open(1), b = must_open(2);
  EXPECT_EQ(registry->tick(b, {.era = 1})->hurry, 0u);
  EXPECT_EQ(registry->tick(a, {.era = 1, .hurry = 1})->hurry, 1u);
  EXPECT_EQ(registry->tick(b, {.era = 1})->hurry, 1u);
  responder.advance(2 * registry->tick_interval());
  EXPECT_EQ(registry->tick(b, {.era = 1})->hurry, 0u);
}

TEST_F(RegistryTest, SessionsThatKeepUpWithErasAreNotFencedForThem) {
  publish(1);
  const std::uint64_t a = must_open(1), b = must_open(2);
  for (int i = 0; i < 80; ++i) {  // forty seconds; one of them is behind at any time
    responder.advance(500 * kMillisecond);
    ASSERT_TRUE(registry->tick(i % 2 == 0 ? a : b, {.era = registry->era()}));
  }
  EXPECT_GT(registry->era(), 30u);
  EXPECT_TRUE(responder.fences.empty());
}

TEST_F(RegistryTest, AFencedReaderHoldsItsEraUntilTheFenceIsDone) {
  publish(1);
  const std::uint64_t a = must_open(1), b = must_open(2);
  ASSERT_TRUE(registry->tick(a, {.era = 1}));
  for (int i = 0; i < 6; ++i) {
    responder.advance(kSecond);
    ASSERT_TRUE(registry->tick(a, {.era = 2}));
  }
  EXPECT_FALSE(registry->live(b));
  EXPECT_EQ(registry->safe_era(), 1u);  // one of its READs may still execute
  responder.finish_fences();
  EXPECT_EQ(registry->safe_era(), 2u);
  EXPECT_EQ(registry->era(), 3u);
}

TEST_F(RegistryTest, ASessionThatHoldsAnEraBackForTooLongIsFenced) {
  publish(1);
  const std::uint64_t a = must_open(1), b = must_open(2);
  ASSERT_TRUE(registry->tick(a, {.era = 1}));
  for (int i = 0; i < 40 && registry->live(b); ++i) {  // both renew their leases; b never gets past era 1
    responder.advance(500 * kMillisecond);
    ASSERT_TRUE(registry->tick(a, {.era = std::min<std::uint64_t>(registry->era(), 2)}));
    if (registry->live(b)) registry->tick(b, {.era = 1});
  }
  EXPECT_EQ(responder.finish_fences(), std::vector{b});
  EXPECT_NE(ended.at(0).why.find("era"), std::string::npos);
  EXPECT_TRUE(registry->live(a));
}

TEST_F(RegistryTest, AnEpochWithoutTheNodeCutsItsSessions) {
  publish(1);
  const std::uint64_t a = must_open(1), b = must_open(2);
  publish(2);  // still serving: sessions go on and learn of it
  EXPECT_EQ(registry->tick(a, {.era = 1})->epoch, 2u);
  registry->refuse(nullptr, "stopped: its memory was lost");
  EXPECT_EQ(responder.finish_fences(), (std::vector{a, b}));
  const SessionReply reply = open(3, 2);
  EXPECT_EQ(reply.code(), SessionReply::CODE_NOT_SERVING);
  EXPECT_EQ(reply.message(), "stopped: its memory was lost");
  EXPECT_EQ(reply.map().epoch(), 2u);
  v1alpha1::ShardMap map;
  map.set_epoch(3);
  registry->refuse(&map, "stopped still");
  SessionRequest read = request();
  read.mutable_read_map();
  EXPECT_EQ(exchange(read).map().epoch(), 3u);
}

TEST_F(RegistryTest, OpensAreLimitedInRate) {
  Registry::Config config;
  config.opens_per_second = 2;
  rebuild(config);
  publish(1);
  must_open(1);
  must_open(2);
  EXPECT_EQ(open(3).code(), SessionReply::CODE_TOO_MANY_SESSIONS);
  responder.advance(600 * kMillisecond);
  EXPECT_EQ(open(3).code(), SessionReply::CODE_OK);
  const SessionReply refused = open(4);
  EXPECT_EQ(refused.code(), SessionReply::CODE_TOO_MANY_SESSIONS);
  EXPECT_NE(refused.message().find("sessions a second"), std::string::npos) << refused.message();
}

// What a namespace's sidecars hold: its certificate says how many sessions they may have together.
const fabric::Peer kSidecars{
    .pool_uid = "pool", .role = "client", .name = "shop.sidecars", .authenticated = true, .sessions = 2};

TEST_F(RegistryTest, OneCertificateCannotTakeEverySession) {
  publish(1);
  EXPECT_EQ(open(1, 1, 1, kSidecars).code(), SessionReply::CODE_OK);
  EXPECT_EQ(open(2, 1, 1, kSidecars).code(), SessionReply::CODE_OK);
  for (std::uint64_t client = 3; client < 300; ++client) {
    const SessionReply refused = open(client, 1, 1, kSidecars);
    ASSERT_EQ(refused.code(), SessionReply::CODE_OVER_QUOTA);
    ASSERT_NE(refused.message().find("all of the 2 sessions"), std::string::npos) << refused.message();
  }
  EXPECT_EQ(registry->counters().over_quota, 297u);
  EXPECT_EQ(registry->counters().refused, 297u);
  must_open(300);  // the pool's own client has its place, and has waited for none of the attempts
  EXPECT_EQ(open(301).code(), SessionReply::CODE_TOO_MANY_SESSIONS);
}

TEST_F(RegistryTest, EachCertificateHasAShareOfItsOwn) {
  publish(1);
  EXPECT_EQ(open(1, 1, 1, kSidecars).code(), SessionReply::CODE_OK);
  fabric::Peer other = kSidecars;
  other.name = "web.sidecars";
  other.sessions = 1;
  EXPECT_EQ(open(2, 1, 1, other).code(), SessionReply::CODE_OK);
  EXPECT_EQ(open(3, 1, 1, other).code(), SessionReply::CODE_OVER_QUOTA);
  EXPECT_EQ(open(4, 1, 1, kSidecars).code(), SessionReply::CODE_OK);
}

// The memory node has a bound of lanes, too, and a session may ask for sixteen.
TEST_F(RegistryTest, LanesCountAgainstTheShareOfACertificate) {
  publish(1);
  EXPECT_EQ(open(1, 1, 3, kSidecars).code(), SessionReply::CODE_OVER_QUOTA);
  EXPECT_EQ(open(1, 1, 2, kSidecars).code(), SessionReply::CODE_OK);
  EXPECT_EQ(open(2, 1, 1, kSidecars).code(), SessionReply::CODE_OVER_QUOTA);
}

// A client that dies again and again would otherwise leave no place to others.
TEST_F(RegistryTest, WhatTheDeadHoldCountsAgainstTheShareOfTheirCertificate) {
  publish(1);
  for (std::uint64_t client = 1; client <= 2; ++client) {
    const SessionReply reply = open(client, 1, 1, kSidecars);
    ASSERT_EQ(reply.code(), SessionReply::CODE_OK) << reply.message();
    set_slot(static_cast<std::uint32_t>(2 * (client - 1)), client);
  }
  responder.advance(6 * kSecond);
  EXPECT_EQ(open(3, 1, 1, kSidecars).code(), SessionReply::CODE_OVER_QUOTA) << "the fence has not ended yet";
  responder.finish_fences();
  ASSERT_EQ(registry->held_by_the_dead(), 2u);
  EXPECT_EQ(open(3, 1, 1, kSidecars).code(), SessionReply::CODE_OVER_QUOTA);
  must_open(4);
  set_slot(2, 0);  // repaired
  EXPECT_EQ(open(5, 1, 1, kSidecars).code(), SessionReply::CODE_OK);
}

TEST_F(RegistryTest, PeersWithAShareOpenNoFasterThanThatAndDelayNobody) {
  Registry::Config config;
  config.opens_per_second = 1;
  rebuild(config);
  publish(1);
  const SessionReply first = open(1, 1, 1, kSidecars);
  ASSERT_EQ(first.code(), SessionReply::CODE_OK);
  EXPECT_EQ(open(2, 1, 1, kSidecars).code(), SessionReply::CODE_TOO_MANY_SESSIONS);
  must_open(3);
  EXPECT_EQ(open(4).code(), SessionReply::CODE_TOO_MANY_SESSIONS);
  responder.advance(1100 * kMillisecond);
  EXPECT_EQ(open(2, 1, 1, kSidecars).code(), SessionReply::CODE_OK);
  config.opens_per_second = 200;
  rebuild(config);
  publish(1);
  fabric::Peer one = kSidecars;
  one.sessions = 1;
  const SessionReply only = open(1, 1, 1, one);
  SessionRequest bye = request();
  bye.mutable_close()->set_session_id(only.grant().session_id());
  bye.mutable_close()->set_client_incarnation(1);
  bye.mutable_close()->set_token(only.grant().lane_tokens(0));
  registry->on_exchange(one, bye.SerializeAsString(), [](const std::string&) {});
  responder.finish_fences();
  const SessionReply refused = open(2, 1, 1, one);
  EXPECT_EQ(refused.code(), SessionReply::CODE_TOO_MANY_SESSIONS);
  EXPECT_NE(refused.message().find("more than 1 sessions a second"), std::string::npos) << refused.message();
}

TEST_F(RegistryTest, LanesAreBoundedOverAllSessions) {
  Registry::Config config;
  config.max_lanes = 5;
  rebuild(config);
  publish(1);
  EXPECT_EQ(open(1, 1, 4).code(), SessionReply::CODE_OK);
  EXPECT_EQ(open(2, 1, 2).code(), SessionReply::CODE_TOO_MANY_SESSIONS);
  EXPECT_EQ(open(2, 1, 1).code(), SessionReply::CODE_OK);
}

TEST_F(RegistryTest, RemembersABoundedNumberOfEndedIncarnations) {
  Registry::Config config;
  config.remembered_incarnations = 2;
  rebuild(config);
  publish(1);
  for (std::uint64_t client = 1; client <= 4; ++client) {
    must_open(client);
    responder.advance(6 * kSecond);
    responder.finish_fences();
  }
  EXPECT_EQ(open(4).code(), SessionReply::CODE_FENCED);
  EXPECT_EQ(open(3).code(), SessionReply::CODE_FENCED);
  EXPECT_EQ(open(2).code(), SessionReply::CODE_OK);  // forgotten
  EXPECT_EQ(open(1).code(), SessionReply::CODE_OK);
}

// An operator may name a process again and again: it takes one place in the list of ended processes. 0 is no process.
TEST_F(RegistryTest, AProcessThatIsNamedAgainIsNotForgottenForIt) {
  Registry::Config config;
  config.remembered_incarnations = 2;
  rebuild(config);
  publish(1);
  const auto open_as = [&](std::uint64_t process) {
    SessionRequest asked = request();
    *asked.mutable_open() = open_request(100 + process);
    asked.mutable_open()->set_client_process(process);
    return exchange(asked).code();
  };
  for (const std::uint64_t process : {7u, 8u, 8u, 0u, 8u, 0u})
    registry->fence_processes({process}, [](std::uint32_t) {});
  EXPECT_EQ(open_as(7), SessionReply::CODE_PROCESS_FENCED);
  EXPECT_EQ(open_as(8), SessionReply::CODE_PROCESS_FENCED);
  registry->fence_processes({9}, [](std::uint32_t) {});
  EXPECT_EQ(open_as(7), SessionReply::CODE_OK) << "the first that was named is forgotten";
  EXPECT_EQ(open_as(8), SessionReply::CODE_PROCESS_FENCED);
}

TEST_F(RegistryTest, TimersStopWhenThereIsNothingToWatchAndOutliveTheRegistry) {
  publish(1);
  must_open(1);
  must_open(2);
  EXPECT_EQ(responder.timers(), 1u) << "one for all that there is to watch";
  responder.advance(6 * kSecond);
  responder.finish_fences();
  responder.advance(kSecond);
  EXPECT_EQ(responder.timers(), 0u);
  must_open(3);
  responder.advance(6 * kSecond);  // its fence is pending
  registry.reset();
  responder.advance(10 * kSecond);
  responder.finish_fences();
}

}  // namespace
}  // namespace farpool::session
