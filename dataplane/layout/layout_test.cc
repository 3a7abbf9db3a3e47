// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/crc64.h"
#include "base/random.h"
#include "layout/calls.h"
#include "layout/extent.h"
#include "layout/geometry.h"
#include "layout/lease.h"
#include "layout/operation_slot.h"
#include "layout/private_page.h"
#include "layout/segment.h"
#include "layout/superblock.h"

namespace farpool::layout {
namespace {

using namespace std::string_view_literals;

std::string hex(base::Bytes bytes) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (std::byte b : bytes) {
    text += digits[std::to_integer<unsigned>(b) >> 4];
    text += digits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

TEST(Segment, SizeClassesGrowByAQuarter) {
  EXPECT_EQ(block_bytes(0), 64u);
  std::uint64_t last = 0;
  for (std::uint64_t c = 0; c < 60; ++c) {
    const std::uint64_t bytes = block_bytes(c);
    EXPECT_GT(bytes, last);
    EXPECT_EQ(bytes % kBlockUnit, 0u);
    if (last >= 256) EXPECT_LE(bytes * 4, last * 5) << c;
    last = bytes;
  }
  // The definition, spelled out: 64 * {1, 1.25, 1.5, 1.75} * 2^k rounded up to 64.
  std::set<std::uint64_t> defined;
  for (std::uint64_t k = 0; k < 15; ++k) {
    for (std::uint64_t q = 4; q < 8; ++q) defined.insert(base::round_up(16 * q << k, 64));
  }
  std::uint64_t c = 0;
  for (std::uint64_t bytes : defined) EXPECT_EQ(block_bytes(c++), bytes);
}

TEST(Segment, TheSmallestClassThatHolds) {
  for (std::uint64_t segment : {256u << 10, 1u << 20, 2u << 20}) {
    for (std::uint64_t bytes = 1; bytes < segment; bytes += 1 + bytes / 7) {
      const std::uint64_t c = size_class_for(bytes, segment);
      // The client that frees knows the size only in units of 64: both must find the same class.
      EXPECT_EQ(c, size_class_for(base::round_up(bytes, 64), segment));
      if (c == kRun) {
        EXPECT_GT(base::round_up(bytes * 5 / 4 + 64, 64), segment / 4);
        const std::uint64_t run = run_segments(bytes, segment);
        EXPECT_EQ(run, run_segments(base::round_up(bytes, 64), segment));
        const SegmentShape shape = segment_shape(kRun, run * segment);
        EXPECT_GE(shape.block_bytes, bytes);
        EXPECT_EQ(shape.first_block % kBlockUnit, 0u);
      } else {
        EXPECT_GE(block_bytes(c), bytes);
        EXPECT_LE(block_bytes(c), segment / 4);
        if (c > 0) EXPECT_LT(block_bytes(c - 1), bytes);
      }
    }
  }
}

TEST(Segment, ShapesFillTheirSegment) {
  for (std::uint64_t segment : {256u << 10, 512u << 10, 2u << 20}) {
    for (std::uint64_t c = 0; block_bytes(c) <= segment / 4; ++c) {
      const SegmentShape shape = segment_shape(c, segment);
      EXPECT_GE(shape.bitmap_words * 64, shape.blocks);
      EXPECT_GE(shape.first_block, sizeof(SegmentHeader) + shape.bitmap_words * 8);
      EXPECT_EQ(shape.first_block % kBlockUnit, 0u);
      EXPECT_LE(shape.first_block + shape.blocks * shape.block_bytes, segment);
      // One block more would not fit.
      EXPECT_GT(shape.first_block + (shape.blocks + 1) * shape.block_bytes + 64, segment);
      EXPECT_GE(shape.blocks, 3u);
    }
  }
}

TEST(Extent, RoundTripsEveryLength) {
  base::Random random(1);
  for (std::uint64_t key_bytes : {0u, 1u, 7u, 8u, 250u, 64u << 10}) {
    for (std::uint64_t value_bytes : {0u, 1u, 8u, 1000u, 1u << 20}) {
      std::string key(key_bytes, 'k'), value(value_bytes, 'v');
      for (char& c : value) c = static_cast<char>(random.below(256));
      std::vector<std::byte> bytes(extent_bytes(key_bytes, value_bytes), std::byte{0xee});
      write_extent(bytes, 77, base::bytes_of(key), base::bytes_of(value));
      bytes.resize(base::round_up(bytes.size(), 64), std::byte{0x55});  // as a READ of whole units sees it
      const auto view = read_extent(bytes, 77);
      ASSERT_TRUE(view.has_value());
      EXPECT_EQ(base::text_of(view->key), key);
      EXPECT_EQ(base::text_of(view->value), value);
      EXPECT_FALSE(read_extent(bytes, 78).has_value()) << "whole bytes at another address";
    }
  }
}

TEST(Extent, AnyFlippedBitIsSeen) {
  std::vector<std::byte> bytes(extent_bytes(5, 9));
  write_extent(bytes, 3, base::bytes_of("apple"sv), base::bytes_of("red apple"sv));
  ASSERT_TRUE(read_extent(bytes, 3).has_value());
  for (std::size_t bit = 0; bit < (kExtentHeader + 14) * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(read_extent(bytes, 3).has_value()) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(Extent, TornWordsAreSeen) {
  std::vector<std::byte> old_bytes(extent_bytes(8, 40)), new_bytes(extent_bytes(8, 40));
  write_extent(old_bytes, 9, base::bytes_of("01234567"sv), base::bytes_of(std::string(40, 'a')));
  write_extent(new_bytes, 9, base::bytes_of("01234567"sv), base::bytes_of(std::string(40, 'b')));
  const std::size_t words = old_bytes.size() / 8;
  for (std::size_t mask = 1; mask + 1 < (1u << words); ++mask) {
    if ((mask >> 2 & 1) == 1) continue;  // the key's word is the same in both
    std::vector<std::byte> torn = old_bytes;
    for (std::size_t w = 0; w < words; ++w) {
      if ((mask >> w & 1) == 1)
        std::copy_n(new_bytes.begin() + static_cast<long>(w * 8), 8, torn.begin() + static_cast<long>(w * 8));
    }
    if (torn == old_bytes || torn == new_bytes) continue;
    EXPECT_FALSE(read_extent(torn, 9).has_value()) << mask;
  }
}

TEST(Extent, Golden) {
  std::vector<std::byte> bytes(extent_bytes(5, 3));
  write_extent(bytes, 0x1234, base::bytes_of("apple"sv), base::bytes_of("red"sv));
  EXPECT_EQ(hex(bytes),
            "0500000003000000"
            "bee34fbf56d9a200"
            "6170706c65726564");
}

OperationSlot claimed_slot() {
  OperationSlot slot;
  slot.holder = 7;
  slot.sequence = Sequence::of(3, 0);
  slot.state = 0x34;
  slot.lock_word[0] = {.offset = 16, .mask = 0b1010};
  slot.seal_claim();
  return slot;
}

// Any mix of the words of two images, within a part.
OperationSlot torn(const OperationSlot& before, const OperationSlot& after, SlotPart part, base::Random& random) {
  constexpr std::size_t kWords = sizeof(OperationSlot) / 8;
  std::array<std::uint64_t, kWords> words{}, landed{};
  std::memcpy(words.data(), &before, sizeof before);
  std::memcpy(landed.data(), &after, sizeof after);
  for (std::size_t w = part.offset / 8; w < (part.offset + part.bytes) / 8; ++w) {
    if (random.chance(0.5)) words[w] = landed[w];
  }
  OperationSlot slot;
  std::memcpy(&slot, words.data(), sizeof slot);
  return slot;
}

TEST(OperationSlot, AClaimSurvivesWhateverPartOfItsRaiseLands) {
  const OperationSlot before = claimed_slot();
  OperationSlot after = before;
  after.sequence = Sequence::of(4, 1);
  after.seal_claim();
  base::Random random(3);
  for (int i = 0; i < 1000; ++i) {
    const OperationSlot slot = torn(before, after, kSlotClaim, random);
    ASSERT_TRUE(slot.claims());
    EXPECT_TRUE(slot.covers(16, 0b0010));
    EXPECT_FALSE(slot.covers(16, 0b0101));
    EXPECT_FALSE(slot.covers(0, 0b0010));
  }
  OperationSlot idle;
  EXPECT_FALSE(idle.claims());
  OperationSlot other = before;
  other.holder = 8;
  EXPECT_FALSE(other.claims());
}

TEST(OperationSlot, APlanIsOfItsOperationAloneAndWholeOrNothing) {
  OperationSlot before = claimed_slot();
  before.row[0] = 5;
  before.keys_after = 1;
  before.seal_plan();
  EXPECT_TRUE(before.planned());
  EXPECT_TRUE(before.writing());
  before.settle();
  EXPECT_TRUE(before.planned());
  EXPECT_FALSE(before.writing());
  EXPECT_EQ(before.keys, 1u);

  OperationSlot next = before;  // the slot's next operation: the plan of the one before is none of its
  next.sequence = Sequence::of(4, 0);
  next.seal_claim();
  EXPECT_TRUE(next.claims());
  EXPECT_FALSE(next.planned());
  OperationSlot planned = next;
  planned.row[0] = 9;
  planned.redo[3] = 77;
  planned.keys_after = 2;
  planned.seal_plan();
  base::Random random(4);
  int whole = 0;
  for (int i = 0; i < 1000; ++i) {
    const OperationSlot slot = torn(next, planned, kSlotPlan, random);
    if (!slot.writing()) continue;
    ++whole;
    EXPECT_EQ(slot.row[0], 9u);
    EXPECT_EQ(slot.redo[3], 77u);
    EXPECT_EQ(slot.keys_after, 2u);
  }
  EXPECT_GT(whole, 0);
  planned.done = OperationSlot::kQuarantined;
  EXPECT_FALSE(planned.writing());
}

TEST(Lease, WordsNeverLookTheSameTwiceInARow) {
  std::uint64_t word = 0;
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t held = LeaseWord::held_by(word, 0x1'0000'0007);
    EXPECT_TRUE(LeaseWord::held(held));
    EXPECT_EQ(LeaseWord::Session::get(held), 7u);
    EXPECT_NE(held, LeaseWord::held_by(held, 7));
    word = LeaseWord::released(held);
    EXPECT_FALSE(LeaseWord::held(word));
    EXPECT_NE(word, 0u);
  }
}

TEST(Lease, NeighboursShareALeaseAndAllLeasesAreUsed) {
  constexpr std::uint64_t kBytes = 8 * 1000;
  std::uint64_t before = 0;
  for (std::uint64_t offset = 0; offset < kBytes; offset += 8) {
    const std::uint64_t lease = lease_of(offset, kBytes);
    EXPECT_GE(lease, before);
    EXPECT_LE(lease, before + 1);
    before = lease;
  }
  EXPECT_EQ(before, kRepairLeases - 1);
  EXPECT_EQ(lease_of(0, 8), 0u);
}

GeometryRequest request_of(std::uint64_t memory) {
  GeometryRequest request;
  request.memory_bytes = memory;
  return request;
}

TEST(Geometry, RegionsLieInOrderAndFillTheMemory) {
  base::Random random(2);
  for (int i = 0; i < 2000; ++i) {
    GeometryRequest request = request_of((16ull << 20) + random.below(1 << 20) * kPage);
    constexpr std::uint64_t kEntry[] = {16, 24, 32, 48, 64};
    request.entry_bytes = kEntry[random.below(5)];
    request.entries_per_row = 2 + random.below(15);
    request.rows_per_lock = 1ull << random.below(7);
    request.table_percent = 1 + random.below(60);
    request.max_lock_bytes = random.chance(0.5) ? 0 : 8 + 8 * random.below(4096);
    const auto planned = plan_geometry(request);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    const Geometry& g = *planned;
    EXPECT_TRUE(check_geometry(g).ok()) << check_geometry(g).message();
    EXPECT_EQ(g.row_bytes() % 8, 0u);
    EXPECT_LE(g.at(kHeap).offset + g.at(kHeap).bytes, g.private_page());
    EXPECT_LT(g.private_page() - (g.at(kHeap).offset + g.at(kHeap).bytes), g.segment_bytes);
    EXPECT_LE(g.rows * g.row_bytes(), g.memory_bytes / 100 * request.table_percent);
    if (request.max_lock_bytes != 0) EXPECT_LE(g.at(kLocks).bytes, request.max_lock_bytes);
    EXPECT_GE(g.at(kLocks).bytes * 8, g.lock_bits);
    if (g.segment_bytes > (256u << 10)) EXPECT_GE(g.segments, 64u);
  }
}

TEST(Geometry, SaysWhatCannotWork) {
  const auto refused = [](auto change) {
    GeometryRequest request = request_of(64 << 20);
    change(request);
    const auto planned = plan_geometry(request);
    EXPECT_FALSE(planned.ok());
    return planned.status().message();
  };
  EXPECT_NE(refused([](auto& r) { r.memory_bytes += 8; }).find("multiple of 4096"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.memory_bytes = 2 << 20; }).find("lend more memory"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.entry_bytes = 20; }).find("use 16, 24, 32, 48 or 64"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.entries_per_row = 17; }).find("2 to 16"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.rows_per_lock = 12; }).find("power of two"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.rows_per_lock = 0; }).find("power of two"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.table_percent = 95; }).find("percent"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.max_sessions = 0; }).find("sessions"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.max_lock_bytes = 4; }).find("multiple of 8"), std::string::npos);
}

// Whatever is asked for entries, rows and locks, a RACE table is groups of 21 slots.
TEST(Geometry, OfARaceTable) {
  GeometryRequest request = request_of(64 << 20);
  request.protocol = Protocol::race;
  request.entry_bytes = 20;
  const auto g = plan_geometry(request);
  ASSERT_TRUE(g.ok()) << g.status().message();
  EXPECT_TRUE(check_geometry(*g).ok());
  EXPECT_EQ(g->row_bytes(), 192u);
  EXPECT_EQ(g->rows, (64u << 20) / 100 * 25 / 192);
  EXPECT_EQ(g->entries(), g->rows * 21);
  EXPECT_EQ(g->at(kLocks).bytes, 8u);
  EXPECT_EQ(parse_superblock(write_superblock({.incarnation = 5, .pool = 6, .geometry = *g}))->geometry, *g);
  const auto spoiled = [&g](auto change) {
    Geometry other = *g;
    change(other);
    return check_geometry(other).message();
  };
  EXPECT_NE(spoiled([](auto& o) { o.entries_per_row = 20; }).find("21 in a group"), std::string::npos);
  EXPECT_NE(spoiled([](auto& o) { o.entry_bytes = 16; }).find("8 bytes"), std::string::npos);
  const auto of_no_protocol = [](auto& o) {
    base::store(reinterpret_cast<std::byte*>(&o.protocol), std::uint64_t{kShapeCount});
  };
  EXPECT_NE(spoiled(of_no_protocol).find("index protocol"), std::string::npos);
  EXPECT_NE(spoiled([](auto& o) { o.rows = 1ull << 32; }).find("rows"), std::string::npos);
  EXPECT_NE(spoiled([](auto& o) { o.protocol = Protocol::rcuckoo; }), "");
}

TEST(Geometry, SixteenMebibytesWork) {
  const auto g = plan_geometry(request_of(16 << 20));
  ASSERT_TRUE(g.ok()) << g.status().message();
  EXPECT_EQ(g->segment_bytes, 256u << 10);
  EXPECT_GE(g->segments, 40u);
}

TEST(Geometry, OperationSlotsTakeNoMoreThanASixteenthIfThatHasSixteenForEach) {
  EXPECT_EQ(plan_geometry(request_of(16 << 20))->slots_per_session, 16u);
  EXPECT_EQ(plan_geometry(request_of(64 << 20))->slots_per_session, 32u);
  EXPECT_EQ(plan_geometry(request_of(128 << 20))->slots_per_session, 64u);
  EXPECT_EQ(plan_geometry(request_of(1ull << 30))->slots_per_session, 128u) << "a sixty-fourth has room for no more";
  EXPECT_EQ(plan_geometry(request_of(2ull << 30))->slots_per_session, 256u);
  EXPECT_EQ(plan_geometry(request_of(1ull << 40))->slots_per_session, 256u);
  GeometryRequest request = request_of(64 << 20);
  request.max_sessions = 64;
  EXPECT_EQ(plan_geometry(request)->slots_per_session, 64u);
  request.slots_per_session = 3;
  EXPECT_EQ(plan_geometry(request)->slots_per_session, 3u);
}

TEST(Superblock, RoundTrips) {
  const Superblock superblock{
      .incarnation = 5, .pool = pool_tag("uid"), .geometry = plan_geometry(request_of(64 << 20)).value()};
  const auto page = write_superblock(superblock);
  const auto parsed = parse_superblock(page);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(*parsed, superblock);
}

TEST(Superblock, EveryFlippedBitIsRefused) {
  auto page = write_superblock({.incarnation = 5, .pool = 6, .geometry = plan_geometry(request_of(64 << 20)).value()});
  for (std::size_t bit = 0; bit < page.size() * 8; ++bit) {
    page[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_EQ(parse_superblock(page).code(), base::Code::corrupt) << bit;
    page[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_TRUE(parse_superblock(page).ok());
}

TEST(Superblock, OtherVersionsAreNamed) {
  auto page = write_superblock({.incarnation = 5, .pool = 6, .geometry = plan_geometry(request_of(64 << 20)).value()});
  const auto seal = [&page] { base::store(page.data() + kPage - 8, base::crc64(base::Bytes(page).first(kPage - 8))); };
  base::store(page.data() + 8, kVersion + 1);
  seal();
  const auto status = parse_superblock(page).status();
  EXPECT_EQ(status.code(), base::Code::corrupt);
  EXPECT_NE(status.message().find(
                "it has format 8, and this program reads format 7: run a version of farpool that reads format 8"),
            std::string::npos)
      << status.message();
  base::store(page.data() + 8, kVersion);
  base::store(page.data() + 32 + 5 * 8, ~0ull);  // rows
  seal();
  EXPECT_NE(parse_superblock(page).status().message().find("rows"), std::string::npos);
  EXPECT_NE(parse_superblock(base::Bytes(page).first(512)).status().message().find("512 bytes"), std::string::npos);
}

PrivateRecord record_of(std::uint64_t epoch) {
  return {.incarnation = 5 + epoch,
          .pool = pool_tag("uid"),
          .epoch = epoch,
          .lives = 1,
          .unnamed = epoch % 2 == 0,
          .table_seed = {1, 2},
          .pool_secret = {3, epoch},
          .geometry = plan_geometry(request_of(64 << 20)).value()};
}

TEST(PrivatePage, TheNewestRecordIsRead) {
  alignas(8) std::array<std::byte, kPage> page{};
  EXPECT_FALSE(read_private_page(page).written);
  for (std::uint64_t epoch = 1; epoch < 6; ++epoch) {
    write_private_page(page, record_of(epoch));
    const PrivatePage read = read_private_page(page);
    EXPECT_TRUE(read.written);
    EXPECT_FALSE(read.damaged);
    EXPECT_EQ(read.counter, epoch);
    ASSERT_TRUE(read.record.has_value());
    EXPECT_EQ(*read.record, record_of(epoch));
  }
}

// The words of the newer record land one after the other; a process that is killed in between leaves any prefix of
// them.
TEST(PrivatePage, AKillAtAnyWordLeavesTheOldOrTheNewRecord) {
  for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
    alignas(8) std::array<std::byte, kPage> before{}, after{};
    for (std::uint64_t earlier = 1; earlier <= epoch; ++earlier) write_private_page(before, record_of(earlier));
    after = before;
    write_private_page(after, record_of(epoch + 1));
    std::vector<std::size_t> changed;
    for (std::size_t at = 0; at < kPage; at += 8) {
      if (std::memcmp(&before[at], &after[at], 8) != 0) changed.push_back(at);
    }
    ASSERT_GT(changed.size(), 2u);
    // The counter goes first, to zero, and comes last.
    const std::size_t counter = changed.front();
    alignas(8) std::array<std::byte, kPage> page = before;
    for (std::size_t landed = 0; landed <= changed.size(); ++landed) {
      const PrivatePage read = read_private_page(page);
      EXPECT_FALSE(read.damaged) << landed;
      EXPECT_EQ(read.written, epoch > 0) << landed;
      if (epoch > 0) {
        ASSERT_TRUE(read.record.has_value()) << landed;
        EXPECT_EQ(*read.record, record_of(epoch)) << landed;
      }
      if (landed == 0) {
        base::store(&page[counter], std::uint64_t{0});
      } else if (landed < changed.size()) {
        std::memcpy(&page[changed[landed]], &after[changed[landed]], 8);
      }
    }
    std::memcpy(&page[counter], &after[counter], 8);
    EXPECT_EQ(page, after);
    EXPECT_EQ(read_private_page(page).record, record_of(epoch + 1));
  }
}

TEST(PrivatePage, AFlippedBitLeavesTheOtherRecord) {
  alignas(8) std::array<std::byte, kPage> page{};
  write_private_page(page, record_of(1));
  write_private_page(page, record_of(2));
  for (std::size_t bit = 0; bit < page.size() * 8; ++bit) {
    page[bit / 8] ^= std::byte{1} << (bit % 8);
    const PrivatePage read = read_private_page(page);
    ASSERT_TRUE(read.record.has_value()) << bit;
    EXPECT_TRUE(*read.record == record_of(1) || *read.record == record_of(2)) << bit;
    page[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  // Both damaged: written, and nothing to be had.
  page[100] ^= std::byte{1};
  page[100 + kPage / 2] ^= std::byte{1};
  const PrivatePage read = read_private_page(page);
  EXPECT_TRUE(read.written && read.damaged);
  EXPECT_FALSE(read.record.has_value());
}

// Writes over a record what a program of another format may write: another number of fields.
void become_of_format(base::MutableBytes page, std::size_t copy, std::uint64_t format, std::size_t fields) {
  const base::MutableBytes record = page.subspan(copy * (kPage / 2), kPage / 2);
  base::store(record.data() + 16, format);
  base::store(record.data() + fields, base::crc64(record.first(fields)));
}

TEST(PrivatePage, ANewerRecordOfAnotherFormatIsToldAndNothingIsRead) {
  for (const std::size_t fields : {std::size_t{64}, 96 + sizeof(Geometry)}) {
    for (const std::uint64_t newest : {1u, 2u}) {
      alignas(8) std::array<std::byte, kPage> page{};
      for (std::uint64_t epoch = 1; epoch <= newest + 1; ++epoch) write_private_page(page, record_of(epoch));
      const std::size_t copy = base::load<std::uint64_t>(page.data()) == newest + 1 ? 0 : 1;
      become_of_format(page, copy, kVersion + 1, fields);
      PrivatePage read = read_private_page(page);
      EXPECT_TRUE(read.written);
      EXPECT_EQ(read.other_format, kVersion + 1);
      EXPECT_FALSE(read.record.has_value());
      // An older record of another format is one that this program's record has taken the place of.
      base::store(page.data() + copy * (kPage / 2), std::uint64_t{1});
      become_of_format(page, copy, kVersion - 1, fields);
      base::store(page.data() + (1 - copy) * (kPage / 2), std::uint64_t{0});
      EXPECT_EQ(read_private_page(page).other_format, kVersion - 1);
      for (std::uint64_t epoch = 5; epoch < 7; ++epoch) write_private_page(page, record_of(epoch));
      read = read_private_page(page);
      EXPECT_EQ(read.other_format, 0u);
      EXPECT_EQ(read.record, record_of(6));
    }
  }
}

}  // namespace
}  // namespace farpool::layout
