// SPDX-License-Identifier: Apache-2.0
#include "index/stored.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "index/named_edit.h"

namespace farpool::index {
namespace {

std::string sealed(std::string text, Millis expires = kNoExpiry) {
  Stored::seal(text, expires);
  return text;
}

TEST(Stored, StringsAreKeptAsTheyAreUnlessTheyEndLikeAKind) {
  for (const std::string& text : {std::string(), std::string("red"), std::string("\0", 1), std::string("\xf8 red"),
                                  std::string("\xf4\x8f\xbf\xbf"), std::string("red\xf7")}) {
    EXPECT_EQ(sealed(text), text);
  }
  for (int last = Stored::kFirstKind; last <= 0xff; ++last) {
    const std::string text = std::string("red") + static_cast<char>(last);
    EXPECT_EQ(sealed(text), text + '\xf8');
  }
}

TEST(Stored, WhatIsSealedIsReadBack) {
  std::vector<std::string> texts{"", "red", "\xf8", "\xf9", "\xff", std::string(8, '\0'), std::string(20, '\xf9')};
  for (const std::string& text : texts) {
    for (const Millis expires : {kNoExpiry, Millis{1}, Millis{1'700'000'000'000}, ~Millis{0}}) {
      const std::string kept = sealed(text, expires);
      const auto stored = Stored::parse(kept);
      ASSERT_TRUE(stored.has_value());
      EXPECT_EQ(stored->text, text);
      EXPECT_EQ(stored->expires, expires);
    }
  }
}

TEST(Stored, WhatHasNoMeaningIsRefused) {
  for (int last = 0xfa; last <= 0xff; ++last) {
    EXPECT_FALSE(Stored::parse(std::string(20, 'a') + static_cast<char>(last)).has_value());
  }
  EXPECT_FALSE(Stored::parse("short\xf9").has_value());
  EXPECT_FALSE(Stored::parse(std::string(8, '\0') + '\xf9').has_value()) << "an expiry that says never";
}

TEST(Stored, ExpiresWhenItsTimeHasPassed) {
  const std::string kept = sealed("red", 1000);
  EXPECT_FALSE(Stored::parse(kept)->expired(0));
  EXPECT_FALSE(Stored::parse(kept)->expired(1000));
  EXPECT_TRUE(Stored::parse(kept)->expired(1001));
  const std::string lasting = sealed("red");
  EXPECT_FALSE(Stored::parse(lasting)->expired(std::numeric_limits<Millis>::max()));
}

TEST(NamedEdits, RefuseAValueOfAKindThatTheyDoNotKnow) {
  using Name = NamedEdit::Name;
  const std::string other = "a hash, perhaps\xfa";
  for (const Name name : {Name::swap, Name::take, Name::add, Name::append, Name::overlay, Name::add_float}) {
    NamedEdit edit(name, "1");
    EXPECT_EQ(edit.edit(other).kind, Edit::Kind::keep);
    EXPECT_EQ(edit.outcome().refusal, NamedEdit::Refusal::other_kind);
  }
  NamedEdit remove(Name::remove, {});
  EXPECT_EQ(remove.edit(other).kind, Edit::Kind::erase);
  EXPECT_TRUE(remove.outcome().existed);
  NamedEdit expire(Name::expire, {});
  expire.set_now(~Millis{0});
  EXPECT_EQ(expire.edit(other).kind, Edit::Kind::keep);
  NamedEdit update(Name::update, "red");
  EXPECT_EQ(update.edit(other).value, "red");
}

TEST(NamedEdits, RemoveOnlyWhatHasExpired) {
  NamedEdit expire(NamedEdit::Name::expire, {});
  expire.set_now(1000);
  EXPECT_EQ(expire.edit(std::nullopt).kind, Edit::Kind::keep);
  EXPECT_EQ(expire.edit("red").kind, Edit::Kind::keep);
  EXPECT_EQ(expire.edit(sealed("red", 1000)).kind, Edit::Kind::keep);
  EXPECT_FALSE(expire.outcome().existed);
  EXPECT_EQ(expire.edit(sealed("red", 999)).kind, Edit::Kind::erase);
  EXPECT_TRUE(expire.outcome().existed);
}

}  // namespace
}  // namespace farpool::index
