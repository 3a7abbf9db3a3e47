// SPDX-License-Identifier: Apache-2.0
#include "index/race/layout.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <set>
#include <vector>

#include "base/random.h"
#include "index/race/locate.h"
#include "layout/regions.h"

namespace farpool::race {
namespace {

TEST(Slot, IsAWordOfFields) {
  const Slot slot = Slot::of(0xab, 0x123456, 200, Slot::State::tentative);
  EXPECT_EQ(slot.word(), 0xab04'4000'0012'3456ull);
  EXPECT_EQ(slot.print(), 0xabu);
  EXPECT_EQ(slot.block(), 0x123456u);
  EXPECT_EQ(slot.bytes(), 256u);
  EXPECT_TRUE(slot.tentative());
  EXPECT_FALSE(slot.committed());
  EXPECT_FALSE(slot.open_ended());
  const Slot committed = slot.as(Slot::State::committed);
  EXPECT_EQ(committed.word(), 0xab04'0000'0012'3456ull);
  EXPECT_TRUE(committed.committed());
  EXPECT_EQ(committed.as(Slot::State::tentative), slot);
  EXPECT_TRUE(Slot().empty());
  EXPECT_FALSE(Slot().committed());
}

TEST(Slot, TellsHowMuchIsReadAtOnce) {
  const auto of = [](std::uint64_t bytes) { return Slot::of(1, 1, bytes, Slot::State::committed); };
  EXPECT_EQ(of(1).bytes(), 64u);
  EXPECT_EQ(of(64).bytes(), 64u);
  EXPECT_EQ(of(65).bytes(), 128u);
  EXPECT_FALSE(of(254 * 64).open_ended());
  EXPECT_EQ(of(254 * 64).bytes(), 254u * 64);
  for (const std::uint64_t bytes : {254u * 64 + 1, 255u * 64, 255u * 64 + 1, 1u << 21}) {
    EXPECT_TRUE(of(bytes).open_ended()) << bytes;
    EXPECT_EQ(of(bytes).bytes(), 255u * 64) << bytes;
    EXPECT_TRUE(of(bytes).fits(bytes));
  }
  EXPECT_TRUE(of(65).fits(128));
  EXPECT_FALSE(of(65).fits(129));
  EXPECT_FALSE(of(65).fits(64));
}

TEST(Slot, KnowsWhatCannotBe) {
  EXPECT_TRUE(Slot().well_formed());
  EXPECT_TRUE(Slot::of(0, 0, 64, Slot::State::committed).well_formed());
  EXPECT_FALSE(Slot(SlotWord::Block::put(7)).well_formed()) << "of no length";
  EXPECT_FALSE(Slot(SlotWord::State::put(3)).well_formed());
}

// The digest's three cases: a header with another suffix shows that the key has moved, whatever depth the reader
// expected.
TEST(Header, SaysWhichKeysItsBucketHolds) {
  EXPECT_TRUE(HeaderWord::covers(HeaderWord::of(0, 0), 0x1234));  // a table that was never split
  EXPECT_FALSE(HeaderWord::covers(0, 0)) << "closed";
  const std::uint64_t odd = HeaderWord::of(1, 1), upper = HeaderWord::of(2, 2);
  EXPECT_TRUE(HeaderWord::covers(odd, 0b01));
  EXPECT_TRUE(HeaderWord::covers(odd, 0b11));
  EXPECT_FALSE(HeaderWord::covers(odd, 0b10));
  EXPECT_TRUE(HeaderWord::covers(upper, 0b110));
  EXPECT_FALSE(HeaderWord::covers(upper, 0b100));
  EXPECT_TRUE(HeaderWord::well_formed(0) && HeaderWord::well_formed(odd) && HeaderWord::well_formed(upper));
  EXPECT_FALSE(HeaderWord::well_formed(HeaderWord::of(1, 2))) << "a suffix longer than its depth";
  EXPECT_FALSE(HeaderWord::well_formed(HeaderWord::of(33, 0)));
  EXPECT_FALSE(HeaderWord::well_formed(1ull << 41));
  EXPECT_FALSE(HeaderWord::well_formed(1)) << "neither open nor closed";
}

// The keys of a bucket and the number of the last move that has reached it are independent.
TEST(Header, CountsMoves) {
  for (const std::uint64_t move : {std::uint64_t{1}, std::uint64_t{7}, layout::kMostMoves}) {
    const std::uint64_t header = HeaderWord::reached_by(HeaderWord::of(2, 2, 5), move);
    EXPECT_EQ(header, HeaderWord::of(2, 2, move));
    EXPECT_EQ(HeaderWord::Move::get(header), move);
    EXPECT_EQ(HeaderWord::keys(header), HeaderWord::of(2, 2));
    EXPECT_TRUE(HeaderWord::well_formed(header));
    EXPECT_TRUE(HeaderWord::covers(header, 0b110));
    EXPECT_FALSE(HeaderWord::covers(header, 0b100));
  }
}

TEST(Combined, BucketsShareTheirOverflow) {
  std::array<std::uint64_t, kGroupBytes / 8> group{};
  for (std::size_t i = 0; i < group.size(); ++i) group[i] = i;
  const base::Bytes bytes = std::as_bytes(std::span(group));
  std::array<std::set<std::uint64_t>, 2> slots, overflow;
  for (const std::uint64_t side : {0u, 1u}) {
    const Place place{.group = 5, .side = side};
    const CombinedView view(bytes.subspan(place.offset() - 5 * kGroupBytes, kCombinedBytes), side);
    EXPECT_EQ(view.header(), side == 0 ? 0u : 16u);
    for (std::uint64_t i = 0; i < kCombinedSlots; ++i) {
      EXPECT_EQ(view.slot(i).word(), (place.slot_offset(i) - 5 * kGroupBytes) / 8);
      (i < kBucketSlots ? slots : overflow)[side].insert(view.slot(i).word());
    }
    EXPECT_EQ(slots[side].size(), kBucketSlots);
  }
  EXPECT_EQ(overflow[0], overflow[1]);
  EXPECT_EQ(overflow[0], (std::set<std::uint64_t>{9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(slots[0], (std::set<std::uint64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(slots[1], (std::set<std::uint64_t>{17, 18, 19, 20, 21, 22, 23}));
}

TEST(Locate, GivesTwoGroupsAndEveryBucketItsShare) {
  base::Random random(7);
  for (const std::uint64_t groups : {2ull, 3ull, 97ull, 0xffffffffull}) {
    for (int i = 0; i < 2000; ++i) {
      const Places places = locate(random.next(), groups);
      ASSERT_NE(places[0].group, places[1].group);
      ASSERT_LT(std::max(places[0].group, places[1].group), groups);
    }
  }
  constexpr std::uint64_t kGroups = 50;
  constexpr int kKeys = 200'000;
  std::array<std::array<int, 2 * kGroups>, 2> hits{};
  std::array<int, 256> prints{};
  for (int i = 0; i < kKeys; ++i) {
    const std::uint64_t hash = random.next();
    const Places places = locate(hash, kGroups);
    for (const std::size_t which : {0u, 1u}) ++hits[which][places[which].group * 2 + places[which].side];
    ++prints[print_of(hash)];
  }
  for (const auto& one : hits) {
    for (const int count : one) EXPECT_NEAR(count, kKeys / (2.0 * kGroups), 250);
  }
  for (const int count : prints) EXPECT_NEAR(count, kKeys / 256.0, 150);
}

// The next version must find what lies in a pool's memory, too.
TEST(Locate, IsForGood) {
  EXPECT_EQ(locate(0x0123456789abcdef, 1000), (Places{Place{450, 0}, Place{503, 1}}));
  EXPECT_EQ(print_of(0x0123456789abcdef), 162u);
}

// A subtable without a fabric: fills it as choose() says, one key after the other.
class Filler {
 public:
  Filler(std::uint64_t groups, std::uint64_t seed) : table_(groups * kGroupBytes / 8), groups_(groups), random_(seed) {}

  // Adds keys until one finds no slot. Returns the share of slots that are taken.
  double fill(bool balanced) {
    std::uint64_t taken = 0;
    for (;; ++taken) {
      const Places places = locate(random_.next(), groups_);
      const std::array<CombinedView, 2> views = {view(places[0]), view(places[1])};
      const auto choice = balanced ? choose(views) : first_fit(views);
      if (!choice) return static_cast<double>(taken) / static_cast<double>(groups_ * kGroupSlots);
      table_[places[choice->place].slot_offset(choice->index) / 8] = 1;
    }
  }

 private:
  CombinedView view(const Place& place) const {
    return {std::as_bytes(std::span(table_)).subspan(place.offset(), kCombinedBytes), place.side};
  }
  static std::optional<Choice> first_fit(const std::array<CombinedView, 2>& views) {
    for (const std::uint64_t first : {std::uint64_t{0}, kBucketSlots}) {
      for (const std::size_t place : {0u, 1u}) {
        for (std::uint64_t i = first; i < first + kBucketSlots; ++i) {
          if (views[place].slot(i).empty()) return Choice{place, i};
        }
      }
    }
    return std::nullopt;
  }
  std::vector<std::uint64_t> table_;
  std::uint64_t groups_;
  base::Random random_;
};

TEST(Choose, TakesTheLessLoadedAndMainBucketsFirst) {
  std::array<std::array<std::uint64_t, kCombinedBytes / 8>, 2> words{};
  const auto chosen = [&words] {
    return choose(
        {CombinedView(std::as_bytes(std::span(words[0])), 0), CombinedView(std::as_bytes(std::span(words[1])), 1)});
  };
  std::vector<std::size_t> places;
  for (std::uint64_t i = 0; i < 2 * kCombinedSlots; ++i) {
    const auto choice = chosen();
    ASSERT_TRUE(choice);
    EXPECT_EQ(choice->index < kBucketSlots, i < kCombinedSlots) << "main buckets first";
    places.push_back(choice->place);
    words[choice->place][CombinedView::offset(choice->place, choice->index) / 8] = 1;
  }
  for (std::size_t i = 0; i < places.size(); ++i) EXPECT_EQ(places[i], i % 2) << "in turn";
  EXPECT_FALSE(chosen()) << "all slots are taken";
  words[1][CombinedView::offset(1, 3) / 8] = 0;
  EXPECT_EQ(chosen()->place, 1u);
  EXPECT_EQ(chosen()->index, 3u);
}

// RA-02: about 90 percent at the first insert that fails, less the larger the table.
TEST(Choose, FillsATableToNinetyPercent) {
  struct Size {
    std::uint64_t groups;
    int times;
    double least;
  };
  for (const auto& [groups, times, least] : {Size{1'000, 3, 0.90}, Size{10'000, 1, 0.885}, Size{50'000, 1, 0.87}}) {
    double sum = 0, naive = 0;
    for (int i = 0; i < times; ++i) {
      sum += Filler(groups, 100 + static_cast<std::uint64_t>(i)).fill(true);
      naive += Filler(groups, 100 + static_cast<std::uint64_t>(i)).fill(false);
    }
    std::printf("%7llu slots: full at %.3f, first fit at %.3f\n", static_cast<unsigned long long>(groups * kGroupSlots),
                sum / times, naive / times);
    EXPECT_GT(sum / times, least) << groups;
    EXPECT_LT(naive / times, 0.82) << groups;
  }
}

}  // namespace
}  // namespace farpool::race
