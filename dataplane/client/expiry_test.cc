// SPDX-License-Identifier: Apache-2.0
// Values that expire, in pools of every protocol: by one clock for all clients, whatever the clocks of hosts show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/pool_world_test.h"
#include "session/clock.h"

namespace farpool::client {
namespace {

using base::kMillisecond;
using base::kSecond;
using layout::Protocol;

// What clocks of two clients may differ by, in milliseconds: the slack, and a round trip, and the rounding.
constexpr Millis kBound = session::kClockSlack / kMillisecond + 2;

class SetExpiry final : public Editor {
 public:
  explicit SetExpiry(Millis expires) : expires_(expires) {}
  void show(const About& about) override { before = about.expires; }
  Edit edit(std::optional<std::string_view> value) override {
    found = value.has_value();
    return found ? Edit::put(std::string(*value), expires_) : Edit::keep();
  }
  Millis before = 0;
  bool found = false;

 private:
  const Millis expires_;
};

std::string_view text_for(NamedEdit::Name name) {
  using Name = NamedEdit::Name;
  return name == Name::take || name == Name::add || name == Name::remove ? "" : "1";
}

class PoolExpiryTest : public PoolTest, public ::testing::WithParamInterface<Protocol> {
 protected:
  static layout::GeometryRequest geometry() {
    layout::GeometryRequest geometry = kGeometry;
    geometry.protocol = GetParam();
    return geometry;
  }
  PoolExpiryTest() : PoolTest(0, geometry(), 40 * kMillisecond, 8 << 20) {}

  Client& connected() {
    Client& client = connect();
    EXPECT_TRUE(run_until_ready(client));
    return client;
  }
  static Task<void> time_into(Client& client, Millis& into) {
    const auto time = co_await client.pool->time();
    EXPECT_TRUE(time.ok()) << time.status().message();
    if (time.ok()) into = *time;
  }
  Millis time(Client& client) {
    Millis time = 0;
    run(client, time_into(client, time));
    return time;
  }
  static Task<void> put_expiring(Client& client, std::string key, std::string value, Millis expires) {
    const base::Status status = co_await client.pool->put(key, value, expires);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  void put(Client& client, const std::string& key, const std::string& value, Millis expires = kNoExpiry) {
    run(client, put_expiring(client, key, value, expires));
  }
  static Task<void> get_into(Client& client, std::string key, std::optional<std::string>& into) {
    const auto value = co_await client.pool->get(key);
    EXPECT_TRUE(value.ok()) << value.status().message();
    if (value.ok()) into = *value;
  }
  std::optional<std::string> get(Client& client, const std::string& key) {
    std::optional<std::string> value;
    run(client, get_into(client, key, value));
    return value;
  }
  static Task<void> get_status(Client& client, std::string key, base::Status& into) {
    into = (co_await client.pool->get(key)).status();
  }
  static Task<void> read_into(Client& client, std::string key, std::optional<Value>& into) {
    const auto value = co_await client.pool->read(key);
    EXPECT_TRUE(value.ok()) << value.status().message();
    if (value.ok()) into = *value;
  }
  std::optional<Millis> expiry(Client& client, const std::string& key) {
    std::optional<Value> value;
    run(client, read_into(client, key, value));
    return value ? std::optional(value->expires) : std::nullopt;
  }
  static Task<void> edit_by(Client& client, std::string key, Editor& editor) {
    const base::Status status = co_await client.pool->modify(key, editor);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  NamedEdit::Outcome edit(Client& client, const std::string& key, NamedEdit::Name name, std::string_view value = {},
                          std::uint64_t argument = 0) {
    NamedEdit edit(name, value, argument);
    run(client, edit_by(client, key, edit));
    return edit.outcome();
  }
  bool erase(Client& client, const std::string& key) {
    base::Result<bool> existed{false};
    run(client, erase_into(client, key, existed));
    EXPECT_TRUE(existed.ok());
    return existed.ok() && *existed;
  }
  std::map<std::string, int> scan(Client& client) {
    std::uint64_t cursor = 0;
    std::map<std::string, int> times;
    run(client, scan_into(client, 100, true, cursor, times));
    return times;
  }
  std::uint64_t expired_keys() const { return sum_of(&PoolCounters::expired_keys); }
};

TEST_P(PoolExpiryTest, AValueIsThereUntilItExpiresAndNeverAgain) {
  reclaims_ = false;
  publish(map_of(1));
  Client& a = connected();
  Client& b = connected();
  const Millis expires = time(a) + 500;
  const std::string big(50'000, 'b');
  for (std::uint32_t node = 0; node < 2; ++node) {
    put(a, key_on(node), "short", expires);
    put(a, "big" + key_on(node), big, expires);
  }
  put(a, "stays", "here");
  bool gone = false;
  while (time(b) < expires + 200) {
    for (std::uint32_t node = 0; node < 2; ++node) {
      const Millis before = time(b);
      const auto value = get(b, key_on(node)), long_value = get(b, "big" + key_on(node));
      if (!value) EXPECT_FALSE(long_value.has_value());
      if (value) {
        EXPECT_EQ(*value, "short");
        EXPECT_LE(before, expires);
      } else {
        EXPECT_GT(time(b), expires);
        gone = true;
      }
      if (gone) EXPECT_FALSE(get(a, key_on(node)).has_value() && time(a) > expires + kBound);
    }
    pass(7 * kMillisecond);
  }
  EXPECT_TRUE(gone);
  EXPECT_EQ(scan(b), (std::map<std::string, int>{{"stays", 1}}));
  EXPECT_EQ(*count(b), 5u) << "nobody has removed them yet";
}

TEST_P(PoolExpiryTest, WhatHasExpiredIsAbsentToEveryChange) {
  reclaims_ = false;
  publish(map_of(1));
  Client& a = connected();
  const Millis expires = time(a) + 50;
  using Name = NamedEdit::Name;
  const std::vector<Name> names{Name::insert, Name::update,  Name::swap,      Name::take,  Name::add,
                                Name::append, Name::overlay, Name::add_float, Name::remove};
  for (const Name name : names) put(a, "k" + std::to_string(static_cast<int>(name)), "7", expires);
  put(a, "erased", "x", expires);
  put(a, "edited", "x", expires);
  pass(60 * kMillisecond);
  for (const Name name : names) {
    const std::string key = "k" + std::to_string(static_cast<int>(name));
    SCOPED_TRACE(key);
    const NamedEdit::Outcome outcome = edit(a, key, name, text_for(name), name == Name::add ? 3 : 0);
    EXPECT_FALSE(outcome.existed);
    EXPECT_EQ(outcome.refusal, NamedEdit::Refusal::none);
    if (name != Name::add_float) EXPECT_FALSE(outcome.text.has_value());
    const bool sets = name != Name::update && name != Name::take && name != Name::remove;
    EXPECT_EQ(get(a, key), sets ? std::optional<std::string>(name == Name::add ? "3" : "1") : std::nullopt);
    EXPECT_EQ(expiry(a, key), sets ? std::optional(kNoExpiry) : std::nullopt);
  }
  EXPECT_FALSE(erase(a, "erased"));
  SetExpiry editor(expires + 100'000);
  run(a, edit_by(a, "edited", editor));
  EXPECT_FALSE(editor.found);
}

TEST_P(PoolExpiryTest, WhatIsEditedKeepsItsExpiryAndWhatIsSetLosesIt) {
  publish(map_of(1));
  Client& a = connected();
  using Name = NamedEdit::Name;
  const Millis expires = time(a) + 100'000;
  for (const auto& [name, after] : std::vector<std::pair<Name, std::string>>{
           {Name::add, "10"}, {Name::append, "71"}, {Name::overlay, "1"}, {Name::add_float, "8"}}) {
    put(a, "k", "7", expires);
    const NamedEdit::Outcome outcome = edit(a, "k", name, text_for(name), name == Name::add ? 3 : 0);
    EXPECT_TRUE(outcome.existed);
    if (name == Name::append) EXPECT_EQ(outcome.number, 2);
    if (name == Name::add_float) EXPECT_EQ(outcome.text, "8");
    EXPECT_EQ(get(a, "k"), after);
    EXPECT_EQ(expiry(a, "k"), std::optional(expires));
  }
  for (const Name name : {Name::update, Name::swap}) {
    put(a, "k", "7", expires);
    const NamedEdit::Outcome outcome = edit(a, "k", name, "red\xff");
    EXPECT_TRUE(outcome.existed);
    if (name == Name::swap) EXPECT_EQ(outcome.text, "7");
    EXPECT_EQ(get(a, "k"), "red\xff");
    EXPECT_EQ(expiry(a, "k"), std::optional(kNoExpiry));
  }
  put(a, "k", std::string(3000, '7'), expires);
  EXPECT_EQ(edit(a, "k", Name::take).text, std::string(3000, '7'));
  put(a, "k", "7");
  SetExpiry editor(expires);
  run(a, edit_by(a, "k", editor));
  EXPECT_TRUE(editor.found);
  EXPECT_EQ(editor.before, kNoExpiry);
  EXPECT_EQ(expiry(a, "k"), std::optional(expires));
  EXPECT_TRUE(erase(a, "k"));
}

// A client stands still between its read and its decision, and the value expires meanwhile. Outback's memory node decides
// about edits with names, and by the time that their request says.
TEST_P(PoolExpiryTest, AnEditGoesByTheTimeOfItsDecision) {
  reclaims_ = false;
  publish(map_of(1));
  Client& a = connected();
  Client& b = connected();
  const Millis expires = time(a) + 20;
  put(a, "swapped", "old", expires);
  put(a, "edited", "old", expires);
  NamedEdit swap(NamedEdit::Name::swap, "new");
  SetExpiry editor(expires + 100'000);
  if (GetParam() != Protocol::outback) a.scope.spawn(edit_by(a, "swapped", swap));
  a.scope.spawn(edit_by(a, "edited", editor));
  a.port->pause();
  pass(30 * kMillisecond);
  EXPECT_EQ(get(b, "swapped"), std::nullopt);
  EXPECT_EQ(get(b, "edited"), std::nullopt);
  a.port->resume();
  ASSERT_TRUE(run_until([&a] { return a.scope.running() == 0; }));
  EXPECT_FALSE(swap.outcome().existed);
  EXPECT_FALSE(editor.found) << "others have seen that it is gone";
  EXPECT_EQ(get(b, "edited"), std::nullopt);
}

// Hosts whose clocks are minutes apart, gain and lose, and are set back.
TEST_P(PoolExpiryTest, ClientsAgreeOnTheTimeWhateverClocksOfHostsShow) {
  host_clocks_[1].shows += 300 * static_cast<std::uint64_t>(kSecond);
  host_clocks_[0].ppm = 200;
  host_clocks_[1].ppm = -200;
  publish(map_of(1));
  Client& a = connected();
  pass(kSecond);
  Client& b = connected();
  std::vector<Client*> clients{&a, &b};
  Millis latest_a = 0, latest_b = 0;
  const auto agree = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      const Millis at_a = time(a), at_b = time(b);
      EXPECT_GE(at_a, latest_a);
      EXPECT_GE(at_b, latest_b);
      EXPECT_LE(std::max(at_a, at_b) - std::min(at_a, at_b), kBound) << i;
      latest_a = at_a;
      latest_b = at_b;
      pass(13 * kMillisecond);
    }
  };
  agree(100);
  EXPECT_GE(latest_a, (1'700'000'000ull + 300) * 1000) << "the clock that is ahead counts";
  // The host that is ahead is set back by an hour, and then its memory node dies.
  host_clocks_[1] = {.shows = wall(1) - static_cast<std::uint64_t>((3600 * kSecond)), .at = network_.now()};
  agree(100);
  responders_[1]->stop();
  agree(300);
  const Millis before = latest_a;
  Client& c = connect({"node-0:7400"});
  pass(kSecond);
  Millis at_c = 0;
  run(c, time_into(c, at_c));
  EXPECT_GE(at_c, before) << "the other memory node goes by what clients have told it";
}

TEST_P(PoolExpiryTest, ANodeThatStartsAgainWithAnOldClockReturnsNothingThatHadExpired) {
  reclaims_ = false;
  publish(map_of(1));
  Client& a = connected();
  const std::string key = key_on(0);
  put(a, key, "once", time(a) + 100);
  pass(200 * kMillisecond);
  EXPECT_EQ(get(a, key), std::nullopt);
  host_clocks_[0] = {.shows = wall(0) - static_cast<std::uint64_t>((3600 * kSecond)), .at = network_.now()};
  host_clocks_[1] = {.shows = wall(1) - static_cast<std::uint64_t>((3600 * kSecond)), .at = network_.now()};
  responders_[1]->stop();
  begin_life(1);
  publish(map_of(2));
  Client& b = connect();
  pass(2 * kSecond);
  EXPECT_EQ(get(b, key), std::nullopt);
  EXPECT_EQ(get(a, key), std::nullopt);
}

TEST_P(PoolExpiryTest, AMemoryNodeWhoseHostIsYearsAheadLetsNothingExpire) {
  host_clocks_[1].shows += 10 * 365 * 24 * 3600 * static_cast<std::uint64_t>(kSecond);
  publish(map_of(1));
  Client& a = connected();
  Client& b = connected();
  const Millis expires = time(a) + 60'000;
  EXPECT_LT(expires, (1'700'000'000ull + 3600) * 1000);
  for (std::uint32_t node = 0; node < 2; ++node) put(a, key_on(node), "v", expires);
  pass(10 * kSecond);
  for (std::uint32_t node = 0; node < 2; ++node) EXPECT_TRUE(get(b, key_on(node)).has_value()) << node;
  EXPECT_GT(b.pool->counters().doubted_clocks.get(), 0u);
  EXPECT_LT(time(connected()), (1'700'000'000ull + 3600) * 1000) << "nor does who comes later believe it";
  pass(60 * kSecond);
  for (std::uint32_t node = 0; node < 2; ++node) EXPECT_EQ(get(b, key_on(node)), std::nullopt) << node;
}

TEST_P(PoolExpiryTest, MemoryOfExpiredKeysIsUsedAgainThoughNobodyAsksForThem) {
  publish(map_of(1));
  Client& a = connected();
  Client& b = connected();
  const Millis expires = time(a) + 2'000;
  for (int i = 0; i < 300; ++i) put(a, "key-" + std::to_string(i), std::string(200, 'v'), i % 3 == 0 ? 0 : expires);
  ASSERT_EQ(*count(b), 300u);
  ASSERT_TRUE(run_until([this] { return expired_keys() >= 200; })) << expired_keys();
  pass(5 * kSecond);
  EXPECT_EQ(expired_keys(), 200u);
  EXPECT_EQ(*count(b), 100u);
  for (int i = 0; i < 300; ++i) EXPECT_EQ(get(b, "key-" + std::to_string(i)).has_value(), i % 3 == 0);
  // The client that did it leaves, and another does.
  finish(a);
  put(b, "late", "v", time(b) + 100);
  const std::uint64_t before = expired_keys();
  ASSERT_TRUE(run_until([&] { return expired_keys() > before; }));
  EXPECT_EQ(*count(b), 100u);
}

// Sets a key to an image of another type.
class SetImage final : public Editor {
 public:
  SetImage(Type type, Millis expires) : type_(type), expires_(expires) {}
  bool takes(Type type) const override { return type == type_; }
  Edit edit(std::optional<std::string_view> value) override {
    found = value.has_value();
    return Edit::put(std::string(value.value_or("image")) + "+", expires_, type_);
  }
  bool found = false;

 private:
  const Type type_;
  const Millis expires_;
};

TEST_P(PoolExpiryTest, ValuesOfOtherTypesAreKeptApartAndExpireAsStringsDo) {
  reclaims_ = false;
  publish(map_of(1));
  Client& a = connected();
  const Millis expires = time(a) + 500;
  constexpr auto kLater = static_cast<Type>(0x7f);
  for (const Type type : {Type::hash, kLater}) {
    const std::string key = "image" + std::to_string(static_cast<int>(type));
    SetImage set(type, Edit::kAsBefore), expiring(type, expires);
    run(a, edit_by(a, key, set));
    run(a, edit_by(a, key, expiring));
    EXPECT_TRUE(expiring.found);
    run(a, edit_by(a, key, set));  // keeps the expiry
    std::optional<Value> value;
    run(a, read_into(a, key, value));
    EXPECT_EQ(value, (Value{"image+++", type, expires}));
    base::Status refused;
    run(a, get_status(a, key, refused));
    EXPECT_TRUE(is_other_kind(refused)) << refused.message();
    EXPECT_EQ(edit(a, key, NamedEdit::Name::append, "x").refusal, NamedEdit::Refusal::other_kind);
    EXPECT_EQ(edit(a, key, NamedEdit::Name::take).refusal, NamedEdit::Refusal::other_kind);
    EXPECT_TRUE(edit(a, key, NamedEdit::Name::insert, "x").existed);
    run(a, read_into(a, key, value));
    EXPECT_EQ(value, (Value{"image+++", type, expires}));
  }
  pass(600 * kMillisecond);
  std::optional<Value> value;
  run(a, read_into(a, "image1", value));
  EXPECT_FALSE(value.has_value());
  EXPECT_FALSE(edit(a, "image1", NamedEdit::Name::append, "x").existed);
  EXPECT_EQ(get(a, "image1"), "x");
  EXPECT_EQ(scan(a).count("image127"), 0u);
  EXPECT_EQ(*count(a), 2u);
}

TEST_P(PoolExpiryTest, MemoryOfExpiredHashesIsUsedAgain) {
  publish(map_of(1));
  Client& a = connected();
  const Millis expires = time(a) + 500;
  SetImage set(Type::hash, expires);
  for (int i = 0; i < 20; ++i) run(a, edit_by(a, "hash" + std::to_string(i), set));
  ASSERT_TRUE(run_until([this] { return expired_keys() >= 20; })) << expired_keys();
  EXPECT_EQ(*count(a), 0u);
}

TEST_P(PoolExpiryTest, AFlushFindsWhatHasExpired) {
  reclaims_ = false;
  publish(map_of(1));
  Client& a = connected();
  put(a, "gone", "x", time(a) + 50);
  pass(60 * kMillisecond);
  std::optional<std::string> any;
  run(a, any_into(a, any));
  EXPECT_EQ(any, std::nullopt);
  base::Result<Page> page{Page{}};
  const auto all = [](Client& client, base::Result<Page>& into) -> Task<void> {
    into = co_await client.pool->scan(0, 1000, Kv::Keys::all);
  };
  run(a, all(a, page));
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->keys, std::vector<std::string>{"gone"});
}

std::string name_of_protocol(const ::testing::TestParamInfo<Protocol>& protocol) {
  static constexpr std::array<const char*, 3> kNames{"rcuckoo", "race", "outback"};
  return kNames[static_cast<std::size_t>(protocol.param)];
}

INSTANTIATE_TEST_SUITE_P(Protocols, PoolExpiryTest,
                         ::testing::Values(Protocol::rcuckoo, Protocol::race, Protocol::outback), name_of_protocol);

}  // namespace
}  // namespace farpool::client
