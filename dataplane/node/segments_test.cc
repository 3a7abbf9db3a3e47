// SPDX-License-Identifier: Apache-2.0
#include "node/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "layout/segment.h"
#include "node/memory.h"

namespace farpool::node {
namespace {

using layout::kRun;
using layout::Pressure;
using layout::SegmentHeader;

constexpr Segments::Caller kOne{.session = 7, .incarnation = 70}, kOther{.session = 8, .incarnation = 80};
constexpr base::Nanos kLease = base::kSecond;
constexpr Segments::Moment kEarly{.now = 0, .era = 5, .safe_era = 4}, kLate{.now = 0, .era = 9, .safe_era = 8};

struct Heap {
  explicit Heap(std::uint64_t bytes = 4 << 20) : memory(std::move(*Memory::anonymous(bytes))) {
    layout::GeometryRequest request;
    request.memory_bytes = bytes;
    request.table_percent = 5;
    request.max_sessions = 4;
    request.slots_per_session = 4;
    geometry = *layout::plan_geometry(request);
    segments.emplace(geometry, memory.span(), kLease);
  }
  std::byte* at(std::uint64_t segment) const {
    return memory.span().data() + geometry.at(layout::kHeap).offset + segment * geometry.segment_bytes;
  }
  SegmentHeader header(std::uint64_t segment) const {
    SegmentHeader header;
    std::memcpy(&header, at(segment), sizeof header);
    return header;
  }
  std::uint64_t marks(std::uint64_t segment) const {
    return base::load<std::uint64_t>(at(segment) + sizeof(SegmentHeader));
  }
  layout::AllocateSegmentsReply grant(const Segments::Caller& caller, std::uint64_t size_class, std::uint64_t count = 1,
                                      const Segments::Moment& when = kEarly, bool replaces = false,
                                      bool in_vain = false) {
    const layout::AllocateSegmentsRequest request{
        .count = count, .size_class = size_class, .replaces = replaces ? 1u : 0u, .in_vain = in_vain ? 1u : 0u};
    EXPECT_TRUE(segments->is_possible(request));
    return segments->grant(caller, request, when);
  }
  // Grants everything that new keys may have.
  std::vector<std::uint64_t> grant_all(const Segments::Caller& caller, std::uint64_t size_class) {
    std::vector<std::uint64_t> firsts;
    for (;;) {
      const auto reply = grant(caller, size_class);
      if (reply.status != 0) return firsts;
      firsts.push_back(reply.first);
    }
  }

  Memory memory;
  layout::Geometry geometry;
  std::optional<Segments> segments;
};

// The client frees all blocks but the first one of a segment of class 3, and gives it up with that.
void give_up_all_but_one_block(Heap& heap, std::uint64_t segment) {
  const layout::SegmentShape shape = layout::segment_shape(3, heap.geometry.segment_bytes);
  for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
    base::store(heap.at(segment) + sizeof(SegmentHeader) + word * 8,
                layout::blocks_of_word(shape, word) & ~(word == 0 ? 1ull : 0));
  }
  EXPECT_EQ(heap.segments->take_back(kOne, {.first = segment, .count = 1, .orphan = 1}, kEarly.era).status, 0u);
}

TEST(Segments, AGrantIsWrittenInTheHeader) {
  Heap heap;
  const auto reply = heap.grant(kOne, 3);
  ASSERT_EQ(reply.status, 0u);
  EXPECT_EQ(heap.header(reply.first).owner, 7u);
  EXPECT_EQ(heap.header(reply.first).incarnation, 70u);
  EXPECT_EQ(heap.header(reply.first).size_class, 3u);
  EXPECT_EQ(heap.header(reply.first).run, 1u);
  const auto run = heap.grant(kOne, kRun, 3);
  ASSERT_EQ(run.status, 0u);
  EXPECT_EQ(heap.header(run.first).run, 3u);
  EXPECT_EQ(heap.header(run.first).size_class, kRun);
}

TEST(Segments, OnlyRunsComeInNumbers) {
  const Heap heap;
  const std::uint64_t largest = layout::largest_class(heap.geometry.segment_bytes);
  EXPECT_TRUE(heap.segments->is_possible({.count = 1, .size_class = largest}));
  EXPECT_FALSE(heap.segments->is_possible({.count = 2, .size_class = largest}));
  EXPECT_FALSE(heap.segments->is_possible({.count = 0, .size_class = largest}));
  EXPECT_FALSE(heap.segments->is_possible({.count = 1, .size_class = largest + 1}));
  EXPECT_TRUE(heap.segments->is_possible({.count = 2, .size_class = kRun}));
}

TEST(Segments, WhatIsGivenBackRestsAndIsZeroWhenItIsGrantedAgain) {
  Heap heap;
  const std::uint64_t first = heap.grant(kOne, 3).first;
  std::byte* const block = heap.at(first) + 4096;
  *block = std::byte{1};
  EXPECT_EQ(heap.segments->take_back(kOther, {.first = first, .count = 1}, kEarly.era).status, 1u) << "another's";
  EXPECT_EQ(heap.segments->take_back(kOne, {.first = first, .count = 1}, kEarly.era).status, 0u);
  EXPECT_EQ(heap.header(first).owner, 0u);
  EXPECT_EQ(heap.header(first).run, 1u) << "it rests: readers of an older era may be there";
  EXPECT_NE(heap.marks(first), 0u);
  heap.segments->settle(kEarly);
  EXPECT_EQ(heap.segments->ledger().counts().resting, 1u);
  heap.segments->settle(kLate);
  EXPECT_EQ(heap.segments->ledger().counts().resting, 0u);
  EXPECT_EQ(heap.header(first).run, 0u);
  for (std::uint64_t i = 0; i < heap.geometry.segments; ++i) {
    const auto again = heap.grant(kOne, 3, 1, kLate, true);
    if (again.status == 0 && again.first == first) break;
  }
  EXPECT_EQ(heap.header(first).owner, 7u);
  EXPECT_EQ(*block, std::byte{0});
  EXPECT_EQ(heap.marks(first), 0u);
}

TEST(Segments, AnOrphanOfTheClassWithRoomIsAdoptedFirst) {
  Heap heap;
  const std::uint64_t full = heap.grant(kOne, 3).first, roomy = heap.grant(kOne, 3).first;
  *(heap.at(roomy) + sizeof(SegmentHeader)) = std::byte{2};  // a block is marked free
  for (const std::uint64_t first : {full, roomy})
    EXPECT_EQ(heap.segments->take_back(kOne, {.first = first, .count = 1, .orphan = 1}, kEarly.era).status, 0u);
  const auto adopted = heap.grant(kOther, 3);
  EXPECT_EQ(adopted.first, roomy);
  EXPECT_EQ(adopted.adopted, 1u);
  EXPECT_EQ(heap.header(roomy).owner, 8u);
  EXPECT_EQ(heap.marks(roomy), 2u);
  EXPECT_EQ(heap.grant(kOther, 3).adopted, 0u) << "nothing is marked in the other";
}

TEST(Segments, SegmentsOfTheDeadAndSparseOrphansAreBequeathed) {
  Heap heap;
  const std::uint64_t first = heap.grant(kOne, 3).first, sparse = heap.grant(kOne, 3).first;
  give_up_all_but_one_block(heap, sparse);
  EXPECT_EQ(heap.segments->bequeath(kOther, {.size_class = 3, .run = layout::AdoptSegmentRequest::kSparse}).status, 1u)
      << "of the class that is wanted";
  const auto emptier = heap.segments->bequeath(kOther, {.size_class = 9, .run = layout::AdoptSegmentRequest::kSparse});
  EXPECT_EQ(emptier.status, 0u);
  EXPECT_EQ(emptier.first, sparse);
  EXPECT_EQ(emptier.run, 1 | layout::AdoptSegmentReply::kOrphan);
  EXPECT_EQ(heap.header(sparse).owner, 8u);
  EXPECT_EQ(heap.segments->bequeath(kOther, {.size_class = 3, .run = 1}).status, 1u) << "nobody has died";
  EXPECT_EQ(heap.segments->ledger().bury(kOne.session), 1u);
  const auto left = heap.segments->bequeath(kOther, {.size_class = 3, .run = 1});
  EXPECT_EQ(left.status, 0u);
  EXPECT_EQ(left.first, first);
  EXPECT_EQ(heap.header(first).owner, 8u);
}

TEST(Segments, AShortageIsToldForALease) {
  Heap heap;
  const std::vector<std::uint64_t> taken = heap.grant_all(kOne, 3);
  EXPECT_EQ(heap.segments->ledger().counts().free, heap.geometry.segments / 16) << "kept for replacements";
  EXPECT_EQ(heap.segments->refusals(), 1u);
  EXPECT_EQ(heap.segments->pressure(kLease - 1), Pressure::scarce);
  EXPECT_EQ(heap.segments->pressure(kLease), Pressure::none);
  while (heap.grant(kOne, 3, 1, kEarly, true).status == 0) {
  }
  EXPECT_EQ(heap.segments->pressure(kLease - 1), Pressure::spent);
  EXPECT_EQ(heap.grant(kOne, 3, 1, kEarly, true, true).status, 1u);
  EXPECT_EQ(heap.segments->pressure(kLease - 1), Pressure::dry);
  EXPECT_EQ(heap.segments->pressure(kLease), Pressure::none);
  // A resting segment is free soon: no client has to go without.
  EXPECT_EQ(heap.segments->take_back(kOne, {.first = taken[0], .count = 1}, kEarly.era).status, 0u);
  EXPECT_EQ(heap.grant(kOne, 3, 1, {.now = 2 * kLease, .era = 5, .safe_era = 4}, true, true).status, 2u);
  EXPECT_EQ(heap.segments->pressure(3 * kLease - 1), Pressure::scarce);
  const auto again = heap.grant(kOne, 3, 1, kLate, true);
  EXPECT_EQ(again.status, 0u);
  EXPECT_EQ(again.first, taken[0]);
}

TEST(Segments, ASixteenthIsKeptForReplacements) {
  Heap heap(16 << 20);
  const std::uint64_t kept = heap.geometry.segments / 16;
  ASSERT_GT(kept, 1u);
  EXPECT_EQ(heap.grant_all(kOne, 3).size(), heap.geometry.segments - kept);
  EXPECT_EQ(heap.segments->ledger().counts().free, kept);
  EXPECT_EQ(heap.grant(kOne, kRun, 2).status, 1u);
  for (std::uint64_t i = 0; i < kept; ++i) EXPECT_EQ(heap.grant(kOne, 3, 1, kEarly, true).status, 0u);
  EXPECT_EQ(heap.grant(kOne, 3, 1, kEarly, true).status, 1u);
}

// What a run lacks is segments side by side. New keys may still take single ones.
TEST(Segments, ARunThatIsRefusedKeepsNewKeysFromNothing) {
  Heap heap;
  while (heap.grant(kOne, 3, 1, kEarly, true).status == 0) {
  }
  EXPECT_EQ(heap.grant(kOther, kRun, 3, kEarly, true, true).status, 1u);
  EXPECT_EQ(heap.segments->pressure(kLease - 1), Pressure::spent);
  EXPECT_EQ(heap.grant(kOther, 4, 1, kEarly, true, true).status, 1u);
  EXPECT_EQ(heap.segments->pressure(kLease - 1), Pressure::dry);
}

// A run that is refused starts the clearing of a stretch, for as long as clients ask for it, and for at most half a
// lease.
TEST(Segments, AStretchIsClearedForARunThatIsRefused) {
  Heap heap;
  const std::vector<std::uint64_t> taken = heap.grant_all(kOne, 3);
  EXPECT_EQ(heap.grant(kOther, kRun, 3).status, 1u);
  EXPECT_EQ(heap.segments->cleared(0).count, 0u) << "it would fit nowhere";
  // In every second segment, all blocks but one are free.
  for (std::size_t i = 0; i < taken.size(); i += 2) give_up_all_but_one_block(heap, taken[i]);
  EXPECT_EQ(heap.grant(kOther, kRun, 3).status, 1u);
  const layout::Stretch cleared = heap.segments->cleared(0);
  EXPECT_EQ(cleared.count, 3u);
  EXPECT_EQ(heap.segments->cleared(kLease / 8).count, 0u) << "nobody asks any more";
  Segments::Moment now = kEarly;
  for (; now.now < kLease / 2; now.now += kLease / 10) {
    EXPECT_EQ(heap.segments->cleared(now.now), cleared);
    EXPECT_EQ(heap.grant(kOther, kRun, 3, now).status, 1u);
  }
  EXPECT_EQ(heap.segments->cleared(now.now).count, 0u);
  // Blocks of their class come first from other segments.
  EXPECT_EQ(heap.grant(kOther, kRun, 3, now).status, 1u);
  const layout::Stretch again = heap.segments->cleared(now.now);
  ASSERT_EQ(again.count, 3u);
  for (auto reply = heap.grant(kOther, 3, 1, now); reply.adopted == 1; reply = heap.grant(kOther, 3, 1, now)) {
    if (!again.overlaps(reply.first, 1)) continue;
    for (const std::uint64_t first : taken) {
      const bool outside = !again.overlaps(first, 1);
      EXPECT_FALSE(outside && heap.header(first).owner == 0) << first << " was left, and " << reply.first << " given";
    }
  }
}

// What is free in it goes to a replacement before that is refused, and to nobody else until the clearing is over.
TEST(Segments, OnlyReplacementsTakeWhatIsFreeInAStretchThatIsCleared) {
  Heap heap;
  const std::vector<std::uint64_t> taken = heap.grant_all(kOne, 3);
  for (std::size_t i = 0; i < taken.size(); i += 2) give_up_all_but_one_block(heap, taken[i]);
  EXPECT_EQ(heap.grant(kOther, 4).status, 1u);
  EXPECT_EQ(heap.segments->cleared(0).count, 0u) << "a single needs no neighbours";
  EXPECT_EQ(heap.grant(kOther, kRun, 3).status, 1u);
  const layout::Stretch cleared = heap.segments->cleared(0);
  ASSERT_EQ(cleared.count, 3u);
  std::uint64_t inside = cleared.first;
  while (heap.header(inside).owner != kOne.session) ++inside;
  ASSERT_LT(inside, cleared.first + cleared.count);
  const auto give_back = [&](const Segments::Caller& caller) {
    EXPECT_EQ(heap.segments->take_back(caller, {.first = inside, .count = 1}, kEarly.era).status, 0u);
    heap.segments->settle(kLate);
    EXPECT_EQ(heap.header(inside).run, 0u);
  };
  give_back(kOne);
  EXPECT_EQ(heap.grant(kOther, 4).status, 1u);
  const auto owned = [&] { return heap.segments->ledger().counts().owned; };
  const std::uint64_t before = owned();
  const auto replacement = heap.grant(kOther, 4, 1, kEarly, true);
  EXPECT_EQ(replacement.status, 0u);
  EXPECT_EQ(replacement.first, inside);
  EXPECT_EQ(owned(), before + 1);
  give_back(kOther);
  EXPECT_EQ(heap.grant(kOther, 4, 1, {.now = kLease / 2 - 1, .era = 9, .safe_era = 8}).first, inside)
      << "nobody has asked for the run since";
}

TEST(Segments, AReplacementTakesOneSegment) {
  Heap heap;
  EXPECT_EQ(heap.grant(kOne, 3, 1, kEarly, true).status, 0u);
  EXPECT_EQ(heap.segments->ledger().counts().owned, 1u);
}

// Its length would be lost: an orphan of blocks is one segment.
TEST(Segments, AnOrphanedRunIsNotAdopted) {
  Heap heap;
  const std::uint64_t first = heap.grant(kOne, kRun, 2).first;
  *(heap.at(first) + sizeof(SegmentHeader)) = std::byte{1};  // its block is marked free
  EXPECT_EQ(heap.segments->take_back(kOne, {.first = first, .count = 2, .orphan = 1}, kEarly.era).status, 0u);
  const auto run = heap.grant(kOther, kRun, 2);
  EXPECT_EQ(run.adopted, 0u);
  EXPECT_NE(run.first, first);
  EXPECT_EQ(heap.header(run.first).run, 2u);
  EXPECT_EQ(heap.header(first).run, 2u);
}

TEST(Segments, AStretchIsToldInAWordThatOthersTakeForAHurry) {
  const layout::Stretch stretch{.first = 0xfffffff0, .count = 5};
  EXPECT_EQ(layout::Hurry::cleared(layout::Hurry::with(0, stretch)), stretch);
  EXPECT_EQ(layout::Hurry::cleared(layout::Hurry::with(1, stretch)), stretch);
  EXPECT_EQ(layout::Hurry::with(1, {}), 1u);
  EXPECT_EQ(layout::Hurry::with(0, {}), 0u);
  EXPECT_EQ(layout::Hurry::cleared(1), layout::Stretch{});
  EXPECT_EQ(layout::Hurry::with(1, {.first = 1ull << 32, .count = 5}), 1u) << "one that does not fit is not told";
}

TEST(Segments, TakesUpWhatAnEarlierLifeLeft) {
  Heap heap;
  const layout::SegmentShape shape = layout::segment_shape(3, heap.geometry.segment_bytes);
  FoundSegment found{.kind = FoundSegment::Kind::owned,
                     .first = 2,
                     .owner = 7,
                     .size_class = 3,
                     .shape = shape,
                     .in_use = std::vector<std::uint64_t>(shape.bitmap_words),
                     .marked = std::vector<std::uint64_t>(shape.bitmap_words)};
  found.in_use[0] = 4;
  found.marked[0] = 1;
  heap.segments->take_up(found, true);
  EXPECT_EQ(heap.marks(2), layout::blocks_of_word(shape, 0) & ~4ull);
  EXPECT_EQ(heap.header(2).owner, 0u);
  EXPECT_EQ(heap.header(2).size_class, 3u);
  found.first = 3;
  heap.segments->take_up(found, false);
  EXPECT_EQ(heap.marks(3), 1u) << "where it is not known what is in use";
  EXPECT_EQ(heap.segments->ledger().counts().orphaned, 2u);
  found.first = 4;
  std::fill(found.in_use.begin(), found.in_use.end(), 0);
  heap.segments->take_up(found, true);
  EXPECT_EQ(heap.header(4).run, 0u) << "nothing is in use: it is free";
  heap.segments->take_up({.kind = FoundSegment::Kind::damaged, .first = 5}, true);
  EXPECT_EQ(heap.segments->ledger().counts().damaged, 1u);
  EXPECT_EQ(heap.segments->ledger().counts().orphaned, 2u);
}

TEST(Segments, ABlockOfEachKeyIsUsed) {
  Heap heap;
  EXPECT_EQ(heap.segments->used(0, 0), 0u);
  EXPECT_EQ(heap.segments->used(10, 1000), 0u) << "no segment is handed out";
  (void)heap.grant(kOne, 3);
  EXPECT_GE(heap.segments->used(10, 1000), 1000u);
  EXPECT_LE(heap.segments->used(10, 1000), 2000u);
  EXPECT_EQ(heap.segments->used(1'000'000, 100'000'000), heap.geometry.segment_bytes) << "no more than that";
}

}  // namespace
}  // namespace farpool::node
