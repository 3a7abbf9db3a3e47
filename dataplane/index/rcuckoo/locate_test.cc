// SPDX-License-Identifier: Apache-2.0
// The pure parts: bytes, hashing, path search.
#include "index/rcuckoo/locate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/memory.h"
#include "index/rcuckoo/path.h"

namespace farpool::rcuckoo {
namespace {

using namespace std::string_view_literals;

Geometry geometry_of(std::uint64_t entry_bytes, std::uint64_t entries, std::uint64_t rows) {
  Geometry g;
  g.entry_bytes = entry_bytes;
  g.entries_per_row = entries;
  g.rows_per_lock = 16;
  g.rows = rows;
  g.lock_bits = g.locks();
  return g;
}

TEST(Locate, RangesAreTheFormulas) {
  for (std::size_t z = 0; z < 42; ++z) {
    const double exact = std::floor(std::pow(2.3, 2.3 + static_cast<double>(z)));
    EXPECT_NEAR(static_cast<double>(kRange[z]), exact, exact * 1e-12) << z;
  }
  EXPECT_EQ(kRange[0], 6u);
  EXPECT_EQ(kRange[1], 15u);
  EXPECT_EQ(kRange[2], 35u);
  EXPECT_EQ(kRange[3], 82u);
  EXPECT_EQ(kRange[4], 190u);
  EXPECT_EQ(kRange[5], 437u);
}

TEST(Locate, EveryKeyHasTwoRowsOfTheTable) {
  base::Random random(1);
  for (const std::uint64_t rows : {2u, 3u, 5u, 64u, 1000u, 1u << 20}) {
    for (int i = 0; i < 20000; ++i) {
      const std::uint64_t hash = random.next();
      const Places places = locate(hash, rows);
      ASSERT_LT(places.first, rows);
      ASSERT_LT(places.second, rows);
      ASSERT_NE(places.first, places.second);
      ASSERT_EQ(alternate(hash, places.first, rows), places.second);
      ASSERT_EQ(alternate(hash, places.second, rows), places.first);
    }
  }
}

TEST(Locate, DistancesAreThoseOfThePaper) {
  base::Random random(2);
  constexpr std::uint64_t kRows = 1 << 20;
  int same = 0, near = 0;
  constexpr int kKeys = 200000;
  for (int i = 0; i < kKeys; ++i) {
    const Places places = locate(random.next(), kRows, Offset::printed);
    const std::uint64_t distance = (places.second + kRows - places.first) % kRows;
    same += distance == 0 ? 1 : 0;
    near += distance <= 5 ? 1 : 0;
  }
  EXPECT_NEAR(100.0 * same / kKeys, 10.5, 0.4);
  EXPECT_NEAR(100.0 * near / kKeys, 62.7, 0.5);
}

// The table's bytes depend on these values: other values are another version of the layout.
TEST(Locate, Golden) {
  EXPECT_EQ(locate(0, 1000).first, 586u);
  EXPECT_EQ(locate(0, 1000).second, 600u);
  EXPECT_EQ(locate(1, 1000).first, 492u);
  EXPECT_EQ(locate(1, 1000).second, 493u);
  const base::HashSecret seed{.low = 1, .high = 2};
  EXPECT_EQ(base::keyed_hash(seed, base::bytes_of("apple"sv)), 6678746559889349742u);
  EXPECT_EQ(locate(0x0123456789abcdef, 12'500'000).first, 10617918u);
  EXPECT_EQ(locate(0x0123456789abcdef, 12'500'000).second, 10618081u);
}

TEST(Entry, InPlaceRoundTrips) {
  for (const std::uint64_t size : {16u, 24u, 32u, 48u, 64u}) {
    for (std::size_t k = 0; k <= size; ++k) {
      for (std::size_t v = 0; k + v <= size; ++v) {
        if (!Entry::fits(size, k, v)) continue;
        const std::string key(k, 'k'), value(v, 'v');
        const Entry entry = Entry::in_place(base::bytes_of(key), base::bytes_of(value));
        ASSERT_TRUE(entry.well_formed(size));
        ASSERT_FALSE(entry.empty());
        ASSERT_EQ(base::text_of(entry.key()), key);
        ASSERT_EQ(base::text_of(entry.value()), value);
        ASSERT_EQ(Entry(entry.raw().first(size)), entry) << "bytes beyond the entry";
      }
    }
  }
  EXPECT_TRUE(Entry::fits(16, 6, 8));
  EXPECT_FALSE(Entry::fits(16, 7, 8));
  EXPECT_FALSE(Entry::fits(64, 64, 0));
}

TEST(Entry, ExtentRoundTrips) {
  const Entry entry = Entry::extent(0x3fff'ffff'ffff, 65, 0xabcdef);
  EXPECT_EQ(entry.type(), EntryType::extent);
  EXPECT_EQ(entry.block(), 0x3fff'ffff'ffffu);
  EXPECT_EQ(entry.bytes(), 128u);
  EXPECT_EQ(entry.hash(), 0xabcdefu);
  EXPECT_TRUE(entry.well_formed(16));
  EXPECT_EQ(Entry::extent(1, 1113 * 1024, 0).bytes(), 1113u * 1024) << "the largest pair";
}

TEST(Entry, ImpossibleWordsAreSeen) {
  const auto bytes = [](std::uint64_t a, std::uint64_t b) {
    std::array<std::uint64_t, 2> words{a, b};
    return Entry(std::as_bytes(std::span(words)));
  };
  EXPECT_TRUE(bytes(0, 0).well_formed(16));
  EXPECT_FALSE(bytes(0, 1).well_formed(16)) << "an empty entry with something in it";
  EXPECT_FALSE(bytes(2, 5).well_formed(16)) << "an extent of no units";
  EXPECT_FALSE(bytes(1 | 60 << 2, 0).well_formed(16)) << "longer than the entry";
  EXPECT_FALSE(bytes(1, 1).well_formed(16)) << "bytes after the end";
}

// By words or byte by byte: the same.
TEST(Entry, AnyBytesAreJudgedAlike) {
  base::Random random(1);
  for (int i = 0; i < 100'000; ++i) {
    const std::uint64_t size = 16 + 8 * random.below(7);
    std::array<std::uint64_t, layout::kMaxEntryBytes / 8> words{};
    for (std::uint64_t w = 0; w < size / 8; ++w) words[w] = random.chance(0.5) ? 0 : random.next() >> random.below(64);
    const base::Bytes bytes = std::as_bytes(std::span(words)).first(size);
    const Entry entry(bytes);
    std::uint64_t used = 0;
    if (entry.type() == EntryType::in_place)
      used = 2 + EntryWord::KeyBytes::get(words[0]) + EntryWord::ValueBytes::get(words[0]);
    if (entry.type() == EntryType::extent) used = 16;
    bool can_be = used <= size && (entry.type() != EntryType::extent || entry.bytes() > 0);
    for (std::uint64_t at = used; can_be && at < size; ++at) can_be = bytes[at] == std::byte{0};
    ASSERT_EQ(can_be_entry(bytes), can_be) << std::hex << words[0] << " " << words[1];
  }
}

// A key is found by its own entry alone, or by one that has the same first bytes.
TEST(Entry, FewOthersMayBeASoughtKey) {
  constexpr std::uint64_t kHash = 0xfeed;
  for (std::size_t size = 0; size <= 100; ++size) {
    const std::string key(size, 'k');
    const Sought sought(base::bytes_of(key), kHash);
    const auto may_be = [&](const Entry& entry) { return sought.may_be(entry.words()[0], entry.words()[1]); };
    EXPECT_TRUE(may_be(Entry::extent(1, 100, kHash)));
    EXPECT_TRUE(may_be(Entry::extent(1, 100, kHash).as_leaving(true)));
    EXPECT_FALSE(may_be(Entry::extent(1, 100, kHash + 1)));
    EXPECT_FALSE(may_be(Entry()));
    if (!Entry::fits(64, size, 0)) continue;
    EXPECT_TRUE(may_be(Entry::in_place(base::bytes_of(key), {})));
    EXPECT_TRUE(may_be(Entry::in_place(base::bytes_of(key), {}).as_leaving(true)));
    if (size > 0) {
      std::string other = key;
      other[size > 6 ? 5 : size - 1] = 'l';
      EXPECT_FALSE(may_be(Entry::in_place(base::bytes_of(other), {}))) << size;
    }
    const std::string longer = key + "k";
    if (!Entry::fits(64, size + 1, 0)) continue;
    EXPECT_FALSE(may_be(Entry::in_place(base::bytes_of(longer), {}))) << size;
  }
}

TEST(Entry, Golden) {
  const Entry in_place = Entry::in_place(base::bytes_of("apple"sv), base::bytes_of("red"sv));
  EXPECT_EQ(in_place.words()[0], 0x7070'6103'15ull | 0x656cull << 40 | 0x72ull << 56);
  EXPECT_EQ(in_place.words()[1], 0x6465ull);
  const Entry extent = Entry::extent(0x1234, 300, 0x1122334455667788);
  EXPECT_EQ(extent.words()[0], 0x2468'0016ull);
  EXPECT_EQ(extent.words()[1], 0x1122334455667788ull);
}

TEST(Entry, IsTheSamePairWhileItIsLeaving) {
  const Entry in_place = Entry::in_place(base::bytes_of("apple"sv), base::bytes_of("red"sv));
  const Entry extent = Entry::extent(0x3fff'ffff'ffff, 300, 0x1122334455667788);
  for (const Entry& entry : {in_place, extent}) {
    const Entry leaving = entry.as_leaving(true);
    EXPECT_TRUE(leaving.leaving());
    EXPECT_FALSE(entry.leaving());
    EXPECT_FALSE(leaving == entry);
    EXPECT_EQ(leaving.as_leaving(true), leaving);
    EXPECT_EQ(leaving.as_leaving(false), entry);
    EXPECT_EQ(leaving.type(), entry.type());
    EXPECT_TRUE(leaving.well_formed(16));
    EXPECT_EQ(hash_of(leaving, {1, 2}), hash_of(entry, {1, 2}));
  }
  EXPECT_EQ(base::text_of(in_place.as_leaving(true).value()), "red");
  EXPECT_EQ(extent.as_leaving(true).block(), extent.block());
  EXPECT_EQ(extent.as_leaving(true).bytes(), extent.bytes());
  EXPECT_FALSE(Entry().leaving());
  EXPECT_EQ(in_place.as_leaving(true).words()[0], in_place.words()[0] | 2);
  EXPECT_EQ(extent.as_leaving(true).words()[0], extent.words()[0] | 1ull << 63);
}

TEST(Version, CountsWritesAndMovesEachOnItsOwn) {
  std::uint64_t word = 0;
  for (const std::uint64_t move : {std::uint64_t{1}, std::uint64_t{7}, layout::kMostMoves}) {
    word = VersionWord::raised(word, move);
    EXPECT_EQ(VersionWord::Move::get(word), move);
    EXPECT_EQ(VersionWord::Move::get(VersionWord::raised(word, move - 1)), move) << "it never goes back";
  }
  EXPECT_EQ(VersionWord::Count::get(word), 3u);
  EXPECT_EQ(VersionWord::lowered(VersionWord::raised(word)), word);
  const std::uint64_t last = VersionWord::Count::put(VersionWord::Count::kMax) | VersionWord::Move::put(5);
  EXPECT_EQ(VersionWord::raised(last), VersionWord::Move::put(5)) << "the count does not run over";
  EXPECT_EQ(VersionWord::lowered(VersionWord::Move::put(5)), last);
}

TEST(Row, FormattedRowsAreEmptyAndWhole) {
  const Geometry g = geometry_of(16, 8, 40);
  std::vector<std::byte> table(g.rows * g.row_bytes(), std::byte{0xff});
  format_table(g, table);
  for (std::uint64_t row = 0; row < g.rows; ++row) {
    const base::MutableBytes bytes = base::MutableBytes(table).subspan(row * g.row_bytes(), g.row_bytes());
    const RowView view(g, bytes);
    EXPECT_TRUE(view.whole(row));
    EXPECT_FALSE(view.whole(row + 1)) << "whole bytes at another row";
    EXPECT_EQ(view.empty_slot(), 0);
    EXPECT_EQ(view.version(), 0u);
    edit_row(g, bytes, row, 0, Entry::extent(1, 64, row));
    EXPECT_TRUE(view.whole(row));
    EXPECT_EQ(view.version(), 1u);
    EXPECT_EQ(view.empty_slot(), 1);
    EXPECT_EQ(view.entry(0), Entry::extent(1, 64, row));
  }
  const std::vector<std::byte> zeros(g.row_bytes());
  EXPECT_FALSE(RowView(g, zeros).whole(0)) << "memory that was never formatted";
}

TEST(Row, AnyMixOfTwoVersionsIsSeen) {
  const Geometry g = geometry_of(16, 8, 4);
  std::vector<std::byte> before(g.row_bytes() * g.rows);
  format_table(g, before);
  before.resize(g.row_bytes());
  edit_row(g, before, 0, 3, Entry::extent(7, 64, 1));
  std::vector<std::byte> after = before;
  edit_row(g, after, 0, 3, Entry::extent(9, 64, 2));
  // The entry (2 words), the version and the checksum differ.
  const std::size_t words[] = {6, 7, 16, 17};
  for (unsigned mask = 1; mask < 15; ++mask) {
    std::vector<std::byte> torn = before;
    for (std::size_t i = 0; i < 4; ++i) {
      if ((mask >> i & 1) == 1) std::memcpy(torn.data() + words[i] * 8, after.data() + words[i] * 8, 8);
    }
    EXPECT_FALSE(RowView(g, torn).whole(0)) << mask;
  }
}

TEST(Locks, VirtualLocksShareBits) {
  Geometry g = geometry_of(16, 8, 16 * 1000);
  EXPECT_EQ(lock_of(g, 15), 0u);
  EXPECT_EQ(lock_of(g, 16), 1u);
  EXPECT_EQ(lock_bit(g, 62).offset, 0u);
  EXPECT_EQ(lock_bit(g, 62).mask, 1ull << 62);
  EXPECT_EQ(lock_bit(g, 63).offset, 8u) << "the last bit bars the word";
  EXPECT_EQ(lock_bit(g, 70).offset, 8u);
  EXPECT_EQ(lock_bit(g, 70).mask, 1ull << 7);
  g.lock_bits = 63;
  EXPECT_EQ(lock_bit(g, 70).offset, 0u);
  EXPECT_EQ(lock_bit(g, 70).mask, 1ull << 7);
}

TEST(Cache, RemembersWholeNeighbourhoods) {
  const Geometry g = geometry_of(16, 8, 100000);
  RowCache cache(g);
  std::vector<std::byte> row(g.row_bytes());
  for (std::uint64_t n = 0; n < 455; ++n) {
    row[0] = std::byte(n);
    cache.learn(5000 + n, row);
  }
  for (std::uint64_t n = 0; n < 455; ++n) EXPECT_EQ(cache.recall(5000 + n)[0], std::byte(n));
  EXPECT_TRUE(cache.recall(4999).empty());
  cache.learn(5455, row);
  EXPECT_TRUE(cache.recall(5000).empty()) << "the one that shares its place is gone";
  cache.forget();
  EXPECT_TRUE(cache.recall(5455).empty());
}

// Rows of hashes, some unknown or out of bounds.
struct Rows {
  std::uint64_t rows = 50;
  std::map<std::uint64_t, std::vector<std::uint64_t>> known;
  std::set<std::uint64_t> excluded;
  Sight sight(std::uint64_t row) const {
    return excluded.contains(row) ? Sight::excluded : known.contains(row) ? Sight::known : Sight::unknown;
  }
  int empty_slot(std::uint64_t row) const {
    const auto& slots = known.at(row);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] == 0) return static_cast<int>(i);
    }
    return -1;
  }
  std::uint64_t alternate(std::uint64_t row, std::uint64_t slot) const {
    return rcuckoo::alternate(known.at(row)[slot], row, rows);
  }
  bool accepts(const Path&) const { return true; }
};

TEST(Path, UnknownRowsArePresumedFree) {
  Rows rows;
  PathSearch search;
  Path path;
  const std::uint64_t roots[] = {3, 4};
  ASSERT_TRUE(search.find(rows, 4, roots, kDepth, path));
  EXPECT_TRUE(path.presumed);
  ASSERT_EQ(path.length, 1u);
  EXPECT_EQ(path.step[0].row, 3u);
  rows.excluded = {3, 4};
  EXPECT_FALSE(search.find(rows, 4, roots, kDepth, path));
}

TEST(Path, IsShortestAndCanBeWalked) {
  base::Random random(5);
  PathSearch search;
  int moved = 0, none = 0;
  for (int world = 0; world < 400; ++world) {
    Rows rows;
    rows.rows = 30;
    for (std::uint64_t row = 0; row < rows.rows; ++row) {
      auto& slots = rows.known[row];
      for (int slot = 0; slot < 3; ++slot) {
        // An entry that belongs in this row, or room.
        std::uint64_t hash = 0;
        if (!random.chance(0.04)) {
          do {
            hash = random.next();
          } while (locate(hash, rows.rows).first != row && locate(hash, rows.rows).second != row);
        }
        slots.push_back(hash);
      }
    }
    const Places places = locate(random.next(), rows.rows);
    const std::uint64_t roots[] = {places.first, places.second};
    Path path;
    if (!search.find(rows, 3, roots, kDepth, path)) {
      ++none;
      continue;
    }
    EXPECT_FALSE(path.presumed);
    EXPECT_TRUE(path.step[0].row == places.first || path.step[0].row == places.second);
    std::set<std::uint64_t> seen;
    for (std::size_t i = 0; i < path.length; ++i) {
      EXPECT_TRUE(seen.insert(path.step[i].row).second) << "a row twice";
      if (i + 1 < path.length) {
        EXPECT_EQ(rows.alternate(path.step[i].row, path.step[i].slot), path.step[i + 1].row);
        ++moved;
      } else {
        EXPECT_EQ(rows.known[path.step[i].row][path.step[i].slot], 0u);
      }
    }
    Path shorter;
    if (path.length > 1) {
      EXPECT_FALSE(search.find(rows, 3, roots, static_cast<unsigned>(path.length) - 2, shorter));
    }
  }
  EXPECT_GT(moved, 100);
  EXPECT_GT(none, 10);
}

}  // namespace
}  // namespace farpool::rcuckoo
