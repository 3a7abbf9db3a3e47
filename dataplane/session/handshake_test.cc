// SPDX-License-Identifier: Apache-2.0
#include "session/handshake.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "layout/operation_slot.h"
#include "layout/regions.h"

namespace farpool::session {
namespace {

using base::Code;
using v1alpha1::SessionReply;
using v1alpha1::SessionRequest;

SessionRequest open_request() {
  SessionRequest request = begin_request("pool");
  request.mutable_open()->set_client_incarnation(7);
  request.mutable_open()->set_epoch(3);
  request.mutable_open()->set_node_incarnation(9);
  request.mutable_open()->set_lanes(2);
  request.mutable_open()->set_client_name("shard-0/1");
  return request;
}

TEST(Handshake, AcceptsWhatIsInBounds) {
  EXPECT_TRUE(parse_request(open_request().SerializeAsString()).ok());
  SessionRequest read = begin_request("pool");
  read.mutable_read_map();
  EXPECT_TRUE(parse_request(read.SerializeAsString()).ok());
}

TEST(Handshake, RefusesEachFieldOutOfBoundsAndSaysWhich) {
  struct Case {
    const char* says;
    std::function<void(SessionRequest&)> spoil;
  };
  const Case cases[] = {
      {"client speaks protocol version 1 to 2, and this memory node 3 to 4: run both in versions",
       [](SessionRequest& r) {
         r.set_protocol_version(1);
         r.set_newest_version(2);
       }},
      {"client speaks protocol version 5, and",
       [](SessionRequest& r) {
         r.set_protocol_version(5);
         r.clear_newest_version();
       }},
      {"newest_version is 3, which is before",
       [](SessionRequest& r) {
         r.set_protocol_version(4);
         r.set_newest_version(3);
       }},
      {"pool_uid is empty", [](SessionRequest& r) { r.clear_pool_uid(); }},
      {"pool_uid has 300 bytes", [](SessionRequest& r) { r.set_pool_uid(std::string(300, 'p')); }},
      {"pool_uid has bytes that are not printable", [](SessionRequest& r) { r.set_pool_uid("a\nb"); }},
      {"neither read_map nor open nor close", [](SessionRequest& r) { r.clear_open(); }},
      {"client_incarnation is 0", [](SessionRequest& r) { r.mutable_open()->set_client_incarnation(0); }},
      {"node_incarnation is 0", [](SessionRequest& r) { r.mutable_open()->set_node_incarnation(0); }},
      {"epoch is 0", [](SessionRequest& r) { r.mutable_open()->set_epoch(0); }},
      {"0 lanes", [](SessionRequest& r) { r.mutable_open()->set_lanes(0); }},
      {"17 lanes", [](SessionRequest& r) { r.mutable_open()->set_lanes(17); }},
      {"client_name has bytes", [](SessionRequest& r) { r.mutable_open()->set_client_name("\x1b[2J"); }},
      {"session_id is 0", [](SessionRequest& r) { r.mutable_close()->set_client_incarnation(1); }},
      {"client_incarnation is 0", [](SessionRequest& r) { r.mutable_close()->set_session_id(1); }},
      {"16 bytes, not 3", [](SessionRequest& r) { r.mutable_open()->set_previous_token("abc"); }},
      {"16 bytes, not 17",
       [](SessionRequest& r) {
         r.mutable_close()->set_session_id(1);
         r.mutable_close()->set_client_incarnation(1);
         r.mutable_close()->set_token(std::string(17, 't'));
       }},
      {"at most 4096", [](SessionRequest& r) { r.mutable_open()->set_client_name(std::string(5000, 'n')); }},
  };
  for (const Case& c : cases) {
    SessionRequest request = open_request();
    c.spoil(request);
    const auto parsed = parse_request(request.SerializeAsString());
    ASSERT_FALSE(parsed.ok()) << c.says;
    EXPECT_EQ(parsed.code(), Code::invalid_argument);
    EXPECT_NE(parsed.status().message().find(c.says), std::string::npos) << parsed.status().message();
  }
  // The part before the end of a broken request does not count.
  const auto broken = parse_request(open_request().SerializeAsString() + "\xff");
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.status().message().find("does not parse"), std::string::npos) << broken.status().message();
  EXPECT_FALSE(parse_request("\xff\xff\xff").ok());
  EXPECT_FALSE(parse_request("").ok());
}

TEST(Handshake, BothGoByTheNewestVersionThatBothSpeak) {
  struct Case {
    std::uint32_t oldest, newest, agreed;
  };
  const Case cases[] = {
      {kOldestProtocolVersion, kProtocolVersion, kProtocolVersion},
      {kOldestProtocolVersion, 0, kOldestProtocolVersion},  // a client from before versions were told
      {kOldestProtocolVersion - 1, kOldestProtocolVersion, kOldestProtocolVersion},
      {kOldestProtocolVersion, kProtocolVersion + 1, kProtocolVersion},  // a client of the next version
      {kProtocolVersion, kProtocolVersion + 2, kProtocolVersion},
      {kProtocolVersion + 1, kProtocolVersion + 2, 0},
      {1, kOldestProtocolVersion - 1, 0},
      {0, 0, 0},
  };
  for (const Case& c : cases) {
    SessionRequest request = open_request();
    request.set_protocol_version(c.oldest);
    request.set_newest_version(c.newest);
    EXPECT_EQ(agreed_version(request), c.agreed) << c.oldest << " to " << c.newest;
    EXPECT_EQ(parse_request(request.SerializeAsString()).ok(), c.agreed != 0) << c.oldest << " to " << c.newest;
  }
}

TEST(Handshake, ASessionBeyondAShareIsRefusedForAReasonOfItsOwn) {
  SessionReply reply;
  reply.set_code(SessionReply::CODE_OVER_QUOTA);
  reply.set_message("all are taken");
  const base::Status status = status_of(reply, "node:7400");
  EXPECT_EQ(status.code(), base::Code::unavailable) << "a client tries again";
  EXPECT_NE(status.message().find("over quota: all are taken"), std::string::npos) << status.message();
}

SessionReply granted() {
  SessionReply reply;
  reply.set_code(SessionReply::CODE_OK);
  auto& grant = *reply.mutable_grant();
  grant.set_session_id(5);
  grant.set_node_incarnation(9);
  grant.set_lease_ms(5000);
  grant.set_tick_ms(250);
  grant.set_failure_timeout_ms(2000);
  grant.set_slots(16);
  grant.set_slots_offset(16 * sizeof(layout::OperationSlot));
  grant.set_pool_secret(std::string(8, 's') + std::string(8, 'S'));
  grant.set_table_seed(std::string(16, 't'));
  grant.add_lane_tokens(std::string(16, 'l'));
  grant.set_era(4);
  grant.set_calls(true);
  for (std::uint32_t id = 0; id < layout::kRegions; ++id) {
    auto& region = *grant.add_regions();
    region.set_region(id);
    region.set_bytes(id == layout::kSlots ? 65536 : std::uint64_t{1} << 30);
    region.set_key(id + 1);
    region.set_read_only(id == layout::kLeases);
  }
  return reply;
}

TEST(Handshake, ReadsAWholeGrant) {
  const auto grant = parse_grant(granted(), "node:7400", 7, 9);
  ASSERT_TRUE(grant.ok()) << grant.status().message();
  EXPECT_EQ(grant->session_id, 5u);
  EXPECT_EQ(grant->client_incarnation, 7u);
  EXPECT_EQ(grant->node_incarnation, 9u);
  EXPECT_EQ(grant->lease, 5 * base::kSecond);
  EXPECT_EQ(grant->tick, 250 * base::kMillisecond);
  EXPECT_EQ(grant->failure_timeout, 2 * base::kSecond);
  EXPECT_EQ(grant->slots, 16u);
  EXPECT_EQ(grant->slots_offset, 16 * sizeof(layout::OperationSlot));
  EXPECT_EQ(grant->era, 4u);
  EXPECT_EQ(grant->lane.endpoint, "node:7400");
  EXPECT_TRUE(grant->lane.calls);
  EXPECT_EQ(grant->read_only, 1u << layout::kLeases);
  EXPECT_EQ(grant->lane.session_id, 5u);
  EXPECT_EQ(grant->lane.node_incarnation, 9u);
  EXPECT_EQ(base::text_of(grant->lane.token), std::string(16, 'l'));
  ASSERT_EQ(grant->lane.regions.size(), layout::kRegions);
  for (std::uint32_t id = 0; id < layout::kRegions; ++id) {
    EXPECT_EQ(grant->lane.regions[id].id, id);
    EXPECT_EQ(grant->lane.regions[id].bytes, granted().grant().regions(static_cast<int>(id)).bytes());
    EXPECT_EQ(grant->lane.regions[id].key, id + 1);
  }
  EXPECT_EQ(secret_bytes(grant->pool_secret), std::string(8, 's') + std::string(8, 'S'));
  EXPECT_EQ(secret_bytes(grant->table_seed), std::string(16, 't'));
}

TEST(Handshake, AGrantHasAVersionThatTheClientSpeaks) {
  SessionReply reply = granted();
  EXPECT_EQ(parse_grant(reply, "node:7400", 7, 9)->protocol_version, kOldestProtocolVersion)
      << "a memory node from before versions were told";
  for (const std::uint32_t version : {kOldestProtocolVersion, kProtocolVersion}) {
    reply.set_protocol_version(version);
    EXPECT_EQ(parse_grant(reply, "node:7400", 7, 9)->protocol_version, version);
  }
  for (const std::uint32_t version : {kOldestProtocolVersion - 1, kProtocolVersion + 1}) {
    reply.set_protocol_version(version);
    const auto refused = parse_grant(reply, "node:7400", 7, 9);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("and the client speaks 3 to 4"), std::string::npos)
        << refused.status().message();
  }
}

TEST(Handshake, RefusesGrantsThatCannotBe) {
  const std::function<void(v1alpha1::SessionGrant&)> spoils[] = {
      [](auto& g) { g.set_session_id(0); },
      [](auto& g) { g.set_node_incarnation(8); },
      [](auto& g) { g.set_lease_ms(0); },
      [](auto& g) { g.set_tick_ms(4000); },
      [](auto& g) { g.set_failure_timeout_ms(0); },
      [](auto& g) { g.set_slots(0); },
      [](auto& g) { g.set_slots(1 << 30); },
      [](auto& g) { g.set_slots_offset(8); },
      [](auto& g) { g.set_slots_offset(~0ull << 6); },
      [](auto& g) { g.set_slots_offset((65536 / sizeof(layout::OperationSlot) - 1) * sizeof(layout::OperationSlot)); },
      [](auto& g) { g.set_pool_secret("short"); },
      [](auto& g) { g.set_table_seed(""); },
      [](auto& g) { g.clear_lane_tokens(); },
      [](auto& g) { g.set_lane_tokens(0, "x"); },
      [](auto& g) { g.mutable_regions(2)->set_key(0); },
      [](auto& g) { g.mutable_regions(2)->set_region(1); },
      [](auto& g) { g.mutable_regions(2)->set_region(77); },
      [](auto& g) { g.mutable_regions(2)->set_bytes(12); },
      [](auto& g) { g.mutable_regions()->RemoveLast(); },
  };
  int which = 0;
  for (const auto& spoil : spoils) {
    SessionReply reply = granted();
    spoil(*reply.mutable_grant());
    const auto grant = parse_grant(reply, "node:7400", 7, 9);
    ASSERT_FALSE(grant.ok()) << which;
    EXPECT_EQ(grant.code(), Code::corrupt);
    ++which;
  }
}

TEST(Handshake, RefusesRepliesThatAreNone) {
  const auto whole = parse_reply(granted().SerializeAsString());
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_EQ(whole->grant().session_id(), 5u);
  EXPECT_EQ(parse_reply("\x0a\xff").code(), Code::corrupt);  // a field that goes on beyond the end
  // An unknown field of 5 MiB: it parses, and is longer than any reply.
  const std::string unknown = std::string("\xc2\x3e\x80\x80\xc0\x02") + std::string(5 << 20, 'x');
  ASSERT_GT(unknown.size(), kMaxReplyBytes);
  EXPECT_TRUE(SessionReply().ParseFromString(unknown));
  EXPECT_EQ(parse_reply(unknown).code(), Code::corrupt);
  const auto grant = parse_grant(SessionReply(), "node:7400", 7, 9);
  ASSERT_FALSE(grant.ok());
  EXPECT_NE(grant.status().message().find("there is none"), std::string::npos) << grant.status().message();
}

TEST(Handshake, RefusalsBecomeStatusesThatNameTheNode) {
  SessionReply reply;
  reply.set_code(SessionReply::CODE_STALE_EPOCH);
  reply.set_message("the node follows epoch 4");
  const base::Status status = status_of(reply, "node:7400");
  EXPECT_EQ(status.code(), Code::stale);
  EXPECT_EQ(status.message(), "node:7400: stale epoch: the node follows epoch 4");
  // A node's text goes to people's terminals: only if it is short, and text.
  for (const std::string& message : {std::string("\x1b[2J"), std::string(1025, 'm'), std::string()}) {
    reply.set_message(message);
    EXPECT_EQ(status_of(reply, "node:7400").message(), "node:7400: stale epoch");
  }
  reply.set_message(std::string(1024, 'm'));
  EXPECT_EQ(status_of(reply, "n").message(), "n: stale epoch: " + std::string(1024, 'm'));
  reply.set_code(SessionReply::CODE_OK);
  EXPECT_TRUE(status_of(reply, "node:7400").ok());
  EXPECT_EQ(status_of(reply, "node:7400").message(), "");
  ASSERT_TRUE(reply.ParseFromString("\x08\x63"));  // code: 99
  EXPECT_EQ(status_of(reply, "n").code(), Code::corrupt);
}

}  // namespace
}  // namespace farpool::session
