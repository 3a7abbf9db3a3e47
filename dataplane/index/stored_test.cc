// SPDX-License-Identifier: Apache-2.0
#include "index/stored.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "index/named_edit.h"

namespace farpool::index {
namespace {

std::string sealed(std::string text, Millis expires = kNoExpiry, Type type = Type::string) {
  Stored::seal(text, expires, type);
  return text;
}

// A type of a later version.
constexpr auto kLater = static_cast<Type>(0x7f);

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
      for (const Type type : {Type::string, Type::hash, kLater}) {
        const std::string kept = sealed(text, expires, type);
        EXPECT_LE(kept.size(), text.size() + Stored::kMostTailBytes);
        const auto stored = Stored::parse(kept);
        ASSERT_TRUE(stored.has_value());
        EXPECT_EQ(stored->text, text);
        EXPECT_EQ(stored->expires, expires);
        EXPECT_EQ(stored->type, type);
        // Scans see the end alone.
        const auto end =
            Stored::parse(std::string_view(kept).substr(kept.size() - std::min(kept.size(), Stored::kMostTailBytes)));
        ASSERT_TRUE(end.has_value());
        EXPECT_EQ(end->expires, expires);
      }
    }
  }
}

TEST(Stored, WhatHasNoMeaningIsRefused) {
  for (int last = 0xfc; last <= 0xff; ++last) {
    EXPECT_FALSE(Stored::parse(std::string(20, 'a') + static_cast<char>(last)).has_value());
  }
  EXPECT_FALSE(Stored::parse("\xfa").has_value());
  EXPECT_FALSE(Stored::parse(std::string("a\0\xfa", 3)).has_value()) << "a type that says string";
  EXPECT_FALSE(Stored::parse("\x01too few\xfb").has_value());
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

class NamedEditsOfOthers : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Kinds, NamedEditsOfOthers,
                         ::testing::Values("of a later version\xff", sealed("a hash", kNoExpiry, Type::hash),
                                           sealed("of a later version", kNoExpiry, kLater),
                                           sealed("a hash", 1000, Type::hash)));

TEST_P(NamedEditsOfOthers, RefuseAValueThatIsNoString) {
  using Name = NamedEdit::Name;
  const std::string other = GetParam();
  for (const Name name : {Name::swap, Name::take, Name::add, Name::append, Name::overlay, Name::add_float}) {
    NamedEdit edit(name, "1");
    EXPECT_EQ(edit.edit(other).kind, Edit::Kind::keep);
    EXPECT_EQ(edit.outcome().refusal, NamedEdit::Refusal::other_kind);
  }
  NamedEdit remove(Name::remove, {});
  EXPECT_EQ(remove.edit(other).kind, Edit::Kind::erase);
  EXPECT_TRUE(remove.outcome().existed);
  NamedEdit expire(Name::expire, {});
  expire.set_now(1000);
  EXPECT_EQ(expire.edit(other).kind, Edit::Kind::keep);
  NamedEdit update(Name::update, "red");
  EXPECT_EQ(update.edit(other).value, "red");
}

TEST(NamedEdits, AHashThatHasExpiredIsAbsent) {
  const std::string kept = sealed("a hash", 999, Type::hash);
  for (const auto name : {NamedEdit::Name::append, NamedEdit::Name::add, NamedEdit::Name::swap}) {
    NamedEdit edit(name, "1", name == NamedEdit::Name::add ? 1 : 0);
    edit.set_now(1000);
    EXPECT_EQ(edit.edit(kept).value, "1");
    EXPECT_FALSE(edit.outcome().existed);
  }
  NamedEdit expire(NamedEdit::Name::expire, {});
  expire.set_now(1000);
  EXPECT_EQ(expire.edit(kept).kind, Edit::Kind::erase);
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
