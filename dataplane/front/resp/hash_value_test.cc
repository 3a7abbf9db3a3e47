// SPDX-License-Identifier: Apache-2.0
#include "front/resp/hash_value.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"

namespace farpool::front::resp {
namespace {

using Fields = std::vector<Field>;

constexpr std::size_t kMost = 1 << 20;

std::string image_of(const Fields& fields) { return with_fields(Hash(), fields, kMost)->image; }

Fields fields_of(const std::string& image) {
  const std::optional<Hash> hash = Hash::parse(image);
  EXPECT_TRUE(hash.has_value());
  Fields fields;
  if (!hash) return fields;
  for (const Field& field : *hash) fields.push_back(field);
  EXPECT_EQ(fields.size(), hash->size());
  return fields;
}

TEST(HashValue, HasTheBytesThatItsFormSays) {
  EXPECT_EQ(image_of({{"a", "red"}, {"", ""}}), std::string("\x01\x01"
                                                            "a"
                                                            "\x03"
                                                            "red"
                                                            "\0\0",
                                                            9));
  const std::string long_value(300, 'v');
  EXPECT_EQ(image_of({{"a", long_value}}),
            "\x01\x01"
            "a"
            "\xac\x02" +
                long_value);
}

TEST(HashValue, FieldsComeInTheOrderInWhichTheyWereFirstSet) {
  const Fields first{{"c", "1"}, {"a", "2"}, {"c", "3"}, {"b", "4"}};
  const std::string image = image_of(first);
  EXPECT_EQ(fields_of(image), (Fields{{"c", "3"}, {"a", "2"}, {"b", "4"}}));
  const Fields more{{"z", "5"}, {"a", "6"}, {"z", "7"}, {"y", ""}};
  const auto changed = with_fields(*Hash::parse(image), more, kMost);
  ASSERT_TRUE(changed.has_value());
  EXPECT_EQ(changed->changed, 2u);
  EXPECT_EQ(changed->size, 5u);
  EXPECT_EQ(fields_of(changed->image), (Fields{{"c", "3"}, {"a", "6"}, {"b", "4"}, {"z", "7"}, {"y", ""}}));
}

TEST(HashValue, RemovesFieldsAndIsNoneWithoutAny) {
  const std::string image = image_of({{"a", "1"}, {"b", "2"}, {"c", "3"}});
  const std::vector<std::string_view> some{"b", "nope", "b"};
  const ChangedHash two = without_fields(*Hash::parse(image), some);
  EXPECT_EQ(two.changed, 1u);
  EXPECT_EQ(fields_of(two.image), (Fields{{"a", "1"}, {"c", "3"}}));
  const std::vector<std::string_view> rest{"a", "c"};
  const ChangedHash none = without_fields(*Hash::parse(two.image), rest);
  EXPECT_EQ(none.changed, 2u);
  EXPECT_EQ(none.size, 0u);
  EXPECT_EQ(none.image, "");
}

TEST(HashValue, FindsFields) {
  const std::string image = image_of({{"a", "1"}, {"", "2"}, {"c", ""}});
  const Hash hash = *Hash::parse(image);
  EXPECT_EQ(hash.find("a"), "1");
  EXPECT_EQ(hash.find(""), "2");
  EXPECT_EQ(hash.find("c"), "");
  EXPECT_EQ(hash.find("b"), std::nullopt);
  const std::vector<std::string_view> names{"c", "b", "a", "c"};
  EXPECT_EQ(hash.find_all(names), (std::vector<std::optional<std::string_view>>{"", std::nullopt, "1", ""}));
  EXPECT_EQ(Hash().find(""), std::nullopt);
}

TEST(HashValue, IsNoLongerThanItMayBe) {
  const Fields fields{{"name", std::string_view("value")}};
  const std::string image = image_of(fields);
  EXPECT_TRUE(with_fields(Hash(), fields, image.size()).has_value());
  EXPECT_FALSE(with_fields(Hash(), fields, image.size() - 1).has_value());
  const std::string longest(kMost, 'v');
  EXPECT_FALSE(with_fields(Hash(), Fields{{"n", longest}}, kMost).has_value());
  const Hash before = *Hash::parse(image);
  EXPECT_FALSE(with_fields(before, Fields{{"more", ""}}, image.size()).has_value());
  EXPECT_TRUE(with_fields(before, Fields{{"name", "short"}}, image.size()).has_value());
}

TEST(HashValue, BytesThatAreNoHashAreRefused) {
  for (const std::string& bytes : {std::string(), std::string("\x01"),
                                   std::string("\x02\x01"
                                               "a\x01"
                                               "b"),
                                   std::string("\0\0\0", 3),
                                   std::string("\x01\x01"
                                               "a"),
                                   std::string("\x01\x01"
                                               "a\x02"
                                               "b"),
                                   std::string("\x01\x01"
                                               "a\x01"
                                               "b\x01"),
                                   std::string("\x01\x81"),
                                   std::string("\x01\x81\x00"
                                               "a\x00",
                                               5),
                                   std::string("\x01\x80\x80\x80\x00", 5),
                                   std::string("\x01\xff\xff\x7f"
                                               "a")}) {
    EXPECT_FALSE(Hash::parse(bytes).has_value()) << ::testing::PrintToString(bytes);
  }
}

// Every cut of an image is refused, or is a hash of the fields that came whole.
TEST(HashValue, ACutImageIsRefusedOrHasFewerFields) {
  const std::string image = image_of({{"a", "1"}, {"bb", std::string_view("value")}, {"c", ""}});
  const Fields whole = fields_of(image);
  for (std::size_t size = 0; size < image.size(); ++size) {
    const std::string cut = image.substr(0, size);
    if (!Hash::parse(cut)) continue;
    const Fields left = fields_of(cut);
    ASSERT_LT(left.size(), whole.size());
    EXPECT_TRUE(std::equal(left.begin(), left.end(), whole.begin()));
  }
}

// Large hashes take time in proportion to fields and words, not to their product: this would take hours otherwise.
TEST(HashValue, ManyFieldsAreSetReadAndRemovedAtOnce) {
  std::vector<std::string> texts;
  for (int i = 0; i < 100'000; ++i) texts.push_back(std::to_string(i));
  Fields fields;
  for (const std::string& text : texts) fields.push_back({text, "v"});
  const std::string image = image_of(fields);
  const Hash hash = *Hash::parse(image);
  EXPECT_EQ(hash.size(), texts.size());
  const std::vector<std::string_view> names(texts.begin(), texts.end());
  for (const auto& value : hash.find_all(names)) ASSERT_EQ(value, "v");
  EXPECT_EQ(with_fields(hash, fields, kMost)->changed, 0u);
  EXPECT_EQ(without_fields(hash, names).changed, texts.size());
}

}  // namespace
}  // namespace farpool::front::resp
