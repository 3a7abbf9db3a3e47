// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

namespace farpool::fabric::verbs {
namespace {

Gid gid_of(std::uint8_t last) {
  Gid gid{};
  gid[10] = gid[11] = std::byte{0xff};
  gid[15] = std::byte{last};
  return gid;
}

AttachRequest some_request() {
  return {.client = {.queue_pair = 0x123456, .sequence = 0xffffff, .mtu = 3, .depth = 16, .gid = gid_of(1)},
          .nonce = 0x1122334455667788,
          .managed = true,
          .keys = {{.region = 7, .key = 0xa1a2a3a4a5a6a7a8}, {.region = 9, .key = 1}}};
}
AttachReply some_reply() {
  return {.node = {.queue_pair = 17, .sequence = 1, .mtu = 5, .depth = 4, .gid = gid_of(2)},
          .patience = {.timeout = 14, .retries = 6},
          .nonce = 5,
          .manager_port = 0x1234,
          .places = {{.region = 7, .key = 0x01020304, .begin = 0x7fff00001000, .read_only = true}}};
}

TEST(Handshake, IsReadAsItWasWritten) {
  const std::string request = put(some_request());
  const auto asked = get_request(base::bytes_of(request));
  ASSERT_TRUE(asked);
  EXPECT_EQ(put(*asked), request);
  EXPECT_EQ(asked->client.queue_pair, 0x123456u);
  EXPECT_EQ(asked->keys[0].key, 0xa1a2a3a4a5a6a7a8u);
  EXPECT_TRUE(asked->managed);
  const std::string reply = put(some_reply());
  const auto answered = get_reply(base::bytes_of(reply));
  ASSERT_TRUE(answered);
  EXPECT_EQ(put(*answered), reply);
  EXPECT_EQ(answered->patience.retries, 6);
  EXPECT_EQ(answered->manager_port, 0x1234);
  EXPECT_EQ(answered->places[0].begin, 0x7fff00001000u);
  EXPECT_TRUE(answered->places[0].read_only);
}

TEST(Handshake, HasTheseBytes) {
  const std::string bytes = put(some_reply());
  const std::string want(
      "fpv1"
      "\x11\0\0\0\x01\0\0\0\x05\x04\x0e\x06"
      "\0\0\0\0\0\0\0\0\0\0\xff\xff\0\0\0\x02"
      "\x05\0\0\0\0\0\0\0\x01\0\0\0\x34\x12\0\0"
      "\x07\0\0\0\x04\x03\x02\x01\0\x10\0\0\xff\x7f\0\0"
      "\x01\0\0\0\0\0\0\0",
      72);
  EXPECT_EQ(bytes, want);
}

TEST(Handshake, WhatCannotBeIsNotTaken) {
  const std::string request = put(some_request()), reply = put(some_reply());
  for (std::size_t cut = 0; cut < request.size(); ++cut) {
    EXPECT_FALSE(get_request(base::bytes_of(request.substr(0, cut)))) << cut;
  }
  EXPECT_FALSE(get_request(base::bytes_of(request + '\0')));
  EXPECT_FALSE(get_request(base::bytes_of(reply))) << "a reply passes for a request";
  EXPECT_FALSE(get_reply(base::bytes_of(request))) << "a request passes for a reply";
  const auto spoiled = [&reply](std::size_t at, char byte) {
    std::string bytes = reply;
    bytes[at] = byte;
    return get_reply(base::bytes_of(bytes)).has_value();
  };
  EXPECT_TRUE(spoiled(16, 1));  // any GID may be
  EXPECT_FALSE(spoiled(0, 'F')) << "magic";
  EXPECT_FALSE(spoiled(7, 1)) << "a queue pair number of more than 24 bits";
  EXPECT_FALSE(spoiled(4, 0)) << "queue pair 0";
  EXPECT_FALSE(spoiled(11, 1)) << "a sequence number of more than 24 bits";
  EXPECT_FALSE(spoiled(12, 6)) << "MTU";
  EXPECT_FALSE(spoiled(12, 0)) << "MTU";
  EXPECT_FALSE(spoiled(13, 0)) << "no READ may be outstanding";
  EXPECT_FALSE(spoiled(14, 32)) << "timeout";
  EXPECT_FALSE(spoiled(14, 0)) << "a timeout of 0 is for ever";
  EXPECT_FALSE(spoiled(15, 7)) << "seven retries are for ever";
  EXPECT_FALSE(spoiled(40, 2)) << "a region that is not there";
  EXPECT_FALSE(spoiled(43, 0x7f)) << "regions beyond counting";
  EXPECT_FALSE(spoiled(46, 1)) << "CALLs for data that are not there";
  EXPECT_FALSE(spoiled(64, 2)) << "rights that there are not";
  EXPECT_FALSE(spoiled(68, 1)) << "zeros";
}

CallEnd some_calls(CallForm form) {
  return {.form = form, .queue_pair = 0x654321, .sequence = 0x00abcdef, .window = 16, .bytes = 4096};
}

TEST(Handshake, OffersCallsForData) {
  for (const CallForm form : {CallForm::connected, CallForm::datagrams}) {
    AttachRequest request = some_request();
    request.calls = some_calls(form);
    const auto asked = get_request(base::bytes_of(put(request)));
    ASSERT_TRUE(asked && asked->calls);
    EXPECT_EQ(put(*asked), put(request));
    EXPECT_EQ(asked->calls->form, form);
    EXPECT_EQ(asked->calls->queue_pair, 0x654321u);
    EXPECT_EQ(asked->keys.size(), request.keys.size());
    AttachReply reply = some_reply();
    reply.calls = some_calls(form);
    reply.calls->cookie = 0x0102030405060708;
    const std::string bytes = put(reply);
    const auto answered = get_reply(base::bytes_of(bytes));
    ASSERT_TRUE(answered && answered->calls);
    EXPECT_EQ(put(*answered), bytes);
    EXPECT_EQ(answered->calls->cookie, 0x0102030405060708u);
    EXPECT_EQ(answered->calls->window, 16u);
    EXPECT_EQ(answered->calls->bytes, 4096u);
    for (std::size_t cut = 1; cut <= 24; ++cut) {
      EXPECT_FALSE(get_reply(base::bytes_of(bytes.substr(0, bytes.size() - cut)))) << cut;
    }
  }
  EXPECT_FALSE(get_request(base::bytes_of(put(some_request())))->calls);
}

TEST(Handshake, RefusesCallsForDataThatCannotBe) {
  const auto taken = [](CallEnd calls) {
    AttachRequest request = some_request();
    request.calls = calls;
    return get_request(base::bytes_of(put(request))).has_value();
  };
  CallEnd good = some_calls(CallForm::connected), bad = good;
  EXPECT_TRUE(taken(good));
  bad.queue_pair = 0;
  EXPECT_FALSE(taken(bad));
  bad = good, bad.queue_pair = 1 << 24;
  EXPECT_FALSE(taken(bad));
  bad = good, bad.sequence = 1 << 24;
  EXPECT_FALSE(taken(bad));
  bad.form = CallForm::datagrams;
  EXPECT_TRUE(taken(bad)) << "a key may have 32 bits";
  bad = good, bad.form = static_cast<CallForm>(3);
  EXPECT_FALSE(taken(bad));
  bad = good, bad.window = 0;
  EXPECT_FALSE(taken(bad));
  bad = good, bad.window = 4097;
  EXPECT_FALSE(taken(bad));
  bad = good, bad.bytes = (1u << 20) + 1;
  EXPECT_FALSE(taken(bad));
  bad = good, bad.cookie = 1;
  EXPECT_FALSE(taken(bad)) << "the cookie is the memory node's to draw";
}

TEST(Claim, IsReadAsItWasWrittenWhateverFollows) {
  const auto bytes = put(Claim{.queue_pair = 0x123456, .nonce = 0x1122334455667788});
  EXPECT_EQ(base::text_of(bytes), std::string("fpc1\x56\x34\x12\0\x88\x77\x66\x55\x44\x33\x22\x11", 16));
  std::array<std::byte, 56> carried{};
  std::copy(bytes.begin(), bytes.end(), carried.begin());
  const auto claim = get_claim(carried);
  ASSERT_TRUE(claim);
  EXPECT_EQ(claim->queue_pair, 0x123456u);
  EXPECT_EQ(claim->nonce, 0x1122334455667788u);
  EXPECT_FALSE(get_claim(base::Bytes(carried).first(kClaimBytes - 1)));
  carried[3] = std::byte{'2'};
  EXPECT_FALSE(get_claim(carried));
}

TEST(Patience, EndsWithinHalfOfTheFailureTimeout) {
  for (base::Nanos failure : {kShortestFailureTimeout, 50 * base::kMillisecond, 100 * base::kMillisecond,
                              2 * base::kSecond, 30 * base::kSecond}) {
    const Patience patience = patience_within(failure);
    const base::Nanos total = (base::Nanos{4096} << patience.timeout) * (patience.retries + 1);
    EXPECT_LE(total, failure / 2) << failure;
    EXPECT_GT(total, failure / 5) << failure << ": shorter than it need be";
    EXPECT_GE(patience.retries, 1);
    EXPECT_LT(patience.retries, 7) << "seven is for ever on rxe";
    EXPECT_GT(patience.timeout, 0) << "0 is for ever";
  }
  // No failure timeout makes it wait for less than hosts need, nor for ever.
  EXPECT_GE(patience_within(0).timeout, 8);
  EXPECT_LE(patience_within(base::kNever).timeout, 31);
}

}  // namespace
}  // namespace farpool::fabric::verbs
