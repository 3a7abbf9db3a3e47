// SPDX-License-Identifier: Apache-2.0
#include "client/cursor.h"

#include <gtest/gtest.h>

namespace farpool::client {
namespace {

TEST(Cursor, NamesItsPlaceUnderTheSameMove) {
  for (const std::uint64_t move : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{126}, std::uint64_t{127}}) {
    for (const ScanPlace& place :
         {ScanPlace{}, ScanPlace{.pass = kDeparted, .table = 3, .position = 7}, ScanPlace{.pass = kOthers},
          ScanPlace{.pass = kOthers, .table = Cursor::Table::kMax, .position = Cursor::Position::kMax}}) {
      EXPECT_EQ(ScanPlace::of(place.cursor(move), move), place);
      EXPECT_NE(place.cursor(move), 0u) << "0 is the beginning, and the end";
      EXPECT_LT(place.cursor(move), 1ull << 53) << "a double holds it";
    }
  }
}

TEST(Cursor, OfAnotherMoveBeginsAnew) {
  const ScanPlace place{.pass = kOthers, .table = 3, .position = 7};
  EXPECT_EQ(ScanPlace::of(place.cursor(4), 5), ScanPlace{});
  EXPECT_EQ(ScanPlace::of(place.cursor(4), 4 + 127), place) << "no scan pauses for 127 moves";
}

TEST(Cursor, AnyOtherNumberBeginsAnew) {
  const ScanPlace place{.pass = kOthers, .table = 3, .position = 7};
  EXPECT_EQ(ScanPlace::of(0, 0), ScanPlace{});
  EXPECT_EQ(ScanPlace::of(~0ull, 0), ScanPlace{});
  EXPECT_EQ(ScanPlace::of(place.cursor(4) | 1ull << 53, 4), ScanPlace{});
  EXPECT_EQ(ScanPlace::of(place.cursor(4) | 1ull << 63, 4), ScanPlace{});
}

}  // namespace
}  // namespace farpool::client
