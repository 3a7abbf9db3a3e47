// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/slot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "index/cuckooduo/shape.h"

namespace farpool::cuckooduo {
namespace {

using ::testing::HasSubstr;

struct Bytes64 {
  std::array<std::byte, 64> bytes{};
  Slot read(Place place) const { return read_slot(bytes, place); }
};

TEST(SlotTest, APairIsReadAsItWasPut) {
  Bytes64 slot;
  EXPECT_EQ(
      put_pair(slot.bytes, 5, 9, base::bytes_of(std::string_view("key")), base::bytes_of(std::string_view("value!"))),
      kSlotHeader + 16u);
  const Slot read = slot.read(5);
  ASSERT_TRUE(read.whole());
  EXPECT_EQ(read.state, SlotState::in_place);
  EXPECT_EQ(read.version, 9u);
  EXPECT_EQ(base::text_of(read.key), "key");
  EXPECT_EQ(base::text_of(read.value), "value!");
  EXPECT_EQ(slot.read(6).verdict, Slot::Verdict::torn) << "a slot is whole at its place alone";
}

TEST(SlotTest, APairMayBeEmptyOrFillTheSlot) {
  Bytes64 slot;
  EXPECT_EQ(put_pair(slot.bytes, 0, 1, {}, {}), kSlotHeader);
  EXPECT_TRUE(slot.read(0).whole());
  const std::string key(20, 'k'), value(20, 'v');
  EXPECT_TRUE(fits_in_place(64, 20, 20));
  EXPECT_FALSE(fits_in_place(64, 20, 21));
  EXPECT_FALSE(fits_in_place(kMostSlotBytes, SlotHead::KeyBytes::kMax + 1, 0));
  EXPECT_EQ(put_pair(slot.bytes, 0, 2, base::bytes_of(key), base::bytes_of(value)), 64u);
  EXPECT_EQ(base::text_of(slot.read(0).value), value);
}

TEST(SlotTest, APointerIsReadAsItWasPut) {
  Bytes64 slot;
  EXPECT_EQ(put_pointer(slot.bytes, 3, 4, 12345, 7, 99), kLeastSlotBytes);
  const Slot read = slot.read(3);
  ASSERT_TRUE(read.whole());
  EXPECT_EQ(read.state, SlotState::pointer);
  EXPECT_EQ(read.block, 12345u);
  EXPECT_EQ(read.units, 7u);
  EXPECT_EQ(read.hash_under({}), 99u);
  Bytes64 copy;
  put_copy(copy.bytes, 8, 5, read);
  EXPECT_EQ(copy.read(8).block, 12345u);
  EXPECT_EQ(copy.read(8).version, 5u);
}

// Each of the words of a slot stands alone; every mixture of two slots is one of them or torn, and a remove leaves
// nothing that the next pair's words could bring back.
TEST(SlotTest, MixturesAreTorn) {
  Bytes64 old, next;
  put_pair(old.bytes, 1, 1, base::bytes_of(std::string_view("old key")), base::bytes_of(std::string_view("old value")));
  put_pair(next.bytes, 1, 2, base::bytes_of(std::string_view("new key")),
           base::bytes_of(std::string_view("new value")));
  for (const bool removed : {false, true}) {
    Bytes64 before = old;
    if (removed) std::fill_n(before.bytes.begin(), kClearedBytes, std::byte{0});
    EXPECT_EQ(before.read(1).whole(), !removed);
    for (unsigned landed = 0; landed < 1u << 5; ++landed) {
      Bytes64 mixed = before;
      for (unsigned word = 0; word < 5; ++word) {
        if ((landed >> word & 1) != 0) std::copy_n(&next.bytes[word * 8], 8, &mixed.bytes[word * 8]);
      }
      const Slot read = mixed.read(1);
      if (!read.whole()) continue;
      EXPECT_TRUE(mixed.bytes == next.bytes || (!removed && mixed.bytes == old.bytes)) << landed;
    }
  }
}

TEST(SlotTest, AClearedSlotKeepsItsVersion) {
  Bytes64 slot;
  put_pair(slot.bytes, 1, 77, base::bytes_of(std::string_view("k")), {});
  std::fill_n(slot.bytes.begin(), kClearedBytes, std::byte{0});
  EXPECT_EQ(slot.read(1).verdict, Slot::Verdict::empty);
  EXPECT_EQ(slot.read(1).version, 77u);
}

TEST(ShapeTest, SaysWhatIsImpossible) {
  EXPECT_TRUE(Shape{}.check().ok());
  const auto refusal = [](Shape shape) {
    EXPECT_EQ(shape.check().code(), base::Code::invalid_argument);
    return shape.check().message();
  };
  EXPECT_THAT(refusal({.buckets = 0}), HasSubstr("0 buckets in an array"));
  EXPECT_THAT(refusal({.slots = 17}), HasSubstr("choose 1 to 16"));
  EXPECT_THAT(refusal({.slots = 4, .second = 4}), HasSubstr("fewer than 4"));
  EXPECT_THAT(refusal({.print_bits = 17}), HasSubstr("17 bits in a print"));
  EXPECT_THAT(refusal({.path = 7}), HasSubstr("7 moves in a path"));
  EXPECT_THAT(refusal({.slot_bytes = 60}), HasSubstr("multiple of 8"));
  EXPECT_THAT(refusal({.stash = 4097}), HasSubstr("stash"));
  EXPECT_THAT(refusal({.stash = 4, .spares = 5}), HasSubstr("spare"));
}

TEST(ShapeTest, PlacesTileTheVault) {
  const Shape shape{.buckets = 3, .slots = 4, .second = 1, .slot_bytes = 64, .stash = 2, .spares = 1};
  EXPECT_EQ(shape.stash_begin(), 24u);
  EXPECT_EQ(shape.vault_bytes(), 26u * 64);
  for (Place place = 0; place < shape.stash_begin(); ++place) {
    EXPECT_EQ(shape.place(shape.row_of(place), shape.slot_of(place)), place);
    EXPECT_EQ(shape.is_second(place), place < 12 && place % 4 == 3);
  }
}

}  // namespace
}  // namespace farpool::cuckooduo
