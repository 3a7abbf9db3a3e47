// SPDX-License-Identifier: Apache-2.0
// Every kind of damage is planted, found and named; the audit does not take for damage what a death explains.
#include "node/audit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "layout/lease.h"
#include "node/image_test.h"
#include "node/memory.h"
#include "node/race_images_test.h"

namespace farpool::node {
namespace {

using layout::OperationSlot;

// The image's bytes in memory that cannot be written.
class ReadOnly {
 public:
  explicit ReadOnly(TestImage& image) {
    std::string pattern = (std::filesystem::temp_directory_path() / "farpool-image-XXXXXX").string();
    const int file = ::mkstemp(pattern.data());
    EXPECT_GE(file, 0);
    ::close(file);
    path_ = pattern;
    const base::MutableBytes bytes = image.bytes();
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  ~ReadOnly() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Audit audit_of(TestImage& image) {
  const ReadOnly file(image);
  const auto mapped = MemoryImage::open(file.path());
  EXPECT_TRUE(mapped.ok()) << mapped.status().message();
  auto memory = audit_memory(mapped->span());
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  const auto& uses = memory->audit.bytes_of_use;
  EXPECT_EQ(std::accumulate(uses.begin(), uses.end(), std::uint64_t{0}), image.bytes().size());
  for (const Finding& finding : memory->audit.findings) {  // which one it is
    const bool of_slot = finding.region == "operation slots" && finding.wrong != Wrong::counters_off;
    EXPECT_EQ(finding.operation_slot.has_value(), of_slot || finding.wrong == Wrong::row_half_written) << finding.what;
    EXPECT_EQ(finding.lock_word.has_value(), finding.region == "lock words") << finding.what;
    EXPECT_EQ(finding.row.has_value(), finding.region == "tables") << finding.what;
    EXPECT_EQ(finding.segment.has_value(), finding.region == "heap") << finding.what;
  }
  return std::move(memory->audit);
}

std::string text(const Audit& audit) {
  std::string lines;
  for (const Finding& finding : audit.findings) {
    lines += std::string(kind_of(finding.wrong).name) + ": " + finding.what + "\n";
  }
  return lines;
}

TEST(Audit, AccountsForEveryByteOfASoundMemory) {
  TestImage image;
  std::map<std::string, std::string> keys;
  std::map<std::uint64_t, std::uint64_t> owners;
  const Auditing how{.visit = [&](const index::Sighting& at) { keys[std::string(at.key)] = at.value; },
                     .segment = [&](const FoundSegment& found, const Audit&) { owners[found.first] = found.owner; }};
  const auto memory = audit_memory(image.bytes(), how);
  ASSERT_TRUE(memory.ok());
  const Audit& audit = memory->audit;
  EXPECT_EQ(audit.damage() + audit.explained(), 0u) << text(audit);
  EXPECT_TRUE(audit.reach_known());
  EXPECT_EQ(keys.size(), 27u);
  EXPECT_EQ(keys.at("huge"), std::string(300'000, 'y'));
  EXPECT_EQ(audit.table.keys, 27u);
  EXPECT_EQ(audit.table.extents, 7u);
  EXPECT_EQ(audit.bytes(Use::entries_in_use), 27 * image.geometry().entry_bytes);
  EXPECT_EQ(audit.blocks_in_use, 7u);
  EXPECT_EQ(audit.blocks_with_owner, image.shape(0).blocks - 3);
  EXPECT_EQ(audit.blocks_marked_free, image.shape(1).blocks - 3);
  EXPECT_EQ(audit.bytes(Use::blocks_marked_free), (image.shape(1).blocks - 3) * image.shape(1).block_bytes);
  EXPECT_EQ(audit.segments_owned, 1 + image.header(2).run);
  EXPECT_EQ(audit.segments_orphaned, 1u);
  EXPECT_EQ(owners.at(0), TestImage::kOwner);
  EXPECT_EQ(owners.at(1), 0u);
  EXPECT_EQ(audit.segments_free, image.geometry().segments - 2 - image.header(2).run);
  const auto& uses = audit.bytes_of_use;
  EXPECT_EQ(std::accumulate(uses.begin(), uses.end(), std::uint64_t{0}), image.bytes().size());
}

TEST(Audit, FindsAndNamesEveryKindOfDamage) {
  struct Case {
    Wrong wrong;
    const char* says;
    std::function<void(TestImage&)> plant;
  };
  const auto flip = [](std::byte& byte) { byte ^= std::byte{1}; };
  const auto put_entry = [](TestImage& image, const TestImage::Place& at, const rcuckoo::Entry& entry) {
    rcuckoo::edit_row(image.geometry(), image.row(at.row), at.row, at.slot, entry);
  };
  // Returns a row that is not one of the key's.
  const auto elsewhere = [](TestImage& image, const std::string& key) {
    const auto rows = rcuckoo::locate(image.hash(key), image.geometry().rows);
    std::uint64_t row = 0;
    while (row == rows.first || row == rows.second || image.view(row).empty_slot() < 0) ++row;
    return TestImage::Place{row, static_cast<std::uint64_t>(image.view(row).empty_slot()), 0};
  };
  const auto heap_at = [](TestImage& image, std::uint64_t units) {
    return image.region(layout::kHeap).data() + layout::block_offset(units);
  };
  const std::vector<Case> cases = {
      {Wrong::superblock_contradicts, "another pool",
       [](TestImage& image) {
         const auto page = layout::write_superblock({.incarnation = 77, .pool = 1, .geometry = image.geometry()});
         std::copy(page.begin(), page.end(), image.bytes().begin());
       }},
      {Wrong::private_record_damaged, "private page",
       [&](TestImage& image) { flip(image.bytes().last(layout::kPage)[40]); }},
      {Wrong::operation_quarantined, "operation slot 3",
       [](TestImage& image) {
         image.plan(3, "new", "v");
         image.slot(3).done = OperationSlot::kQuarantined;
       }},
      {Wrong::operation_unexplained, "is neither what it was nor what it becomes",
       [&](TestImage& image) {
         const auto at = image.plan(3, "new", "v");
         put_entry(image, at, image.entry_of("x", "y"));
         image.slot(0).keys += 1;
       }},
      {Wrong::claim_impossible, "operation slot 2",
       [](TestImage& image) {
         OperationSlot& slot = image.claim(2, {});
         slot.lock_word[0] = {image.region(layout::kLocks).size(), 1};
         slot.seal_claim();
       }},
      {Wrong::lock_held_twice, "lock of another slot",
       [](TestImage& image) {
         image.plan(2, "new", "v");
         image.slot(3) = image.slot(2);
         image.slot(3).keys = 0;
       }},
      {Wrong::lock_without_holder, "bit 5 is set", [](TestImage& image) { image.lock_word(1) |= 1 << 5; }},
      {Wrong::lock_impossible, "stands for no lock",
       [](TestImage& image) {
         const std::uint64_t last = image.region(layout::kLocks).size() / 8 - 1;
         image.lock_word(last) |= 1ull << (image.geometry().lock_bits - last * layout::kLocksPerWord);
       }},
      {Wrong::barrier_without_cause, "barrier", [](TestImage& image) { image.lock_word(0) = layout::kBarrier; }},
      {Wrong::row_torn, "checksum", [&](TestImage& image) { flip(image.row(9)[3]); }},
      {Wrong::entry_impossible, "cannot be",
       [](TestImage& image) {
         base::store(image.row(9).data(), std::uint64_t{2});  // an extent of no units
         image.seal(9);
       }},
      {Wrong::entry_beyond_heap, "beyond the heap",
       [&](TestImage& image) {
         put_entry(image, image.place("large1"), rcuckoo::Entry::extent(1 << 30, 64, image.hash("large1")));
       }},
      {Wrong::extent_damaged, "extent of entry",
       [&](TestImage& image) { flip(heap_at(image, image.place("large1").units)[30]); }},
      {Wrong::hash_wrong, "hash of entry",
       [&](TestImage& image) {
         const auto at = image.place("large1");
         put_entry(image, at, rcuckoo::Entry::extent(at.units, 176, image.hash("large1") ^ 1));
       }},
      {Wrong::entry_misplaced, "neither row of its key",
       [&](TestImage& image) { put_entry(image, elsewhere(image, "stray"), image.entry_of("stray", "v")); }},
      {Wrong::key_twice, "has the key of",
       [&](TestImage& image) { put_entry(image, image.room("small3"), image.entry_of("small3", "w")); }},
      {Wrong::block_shared, "overlaps another",
       [&](TestImage& image) {  // one key, once in its place and once in another's
         const auto at = image.place("large2");
         put_entry(image, elsewhere(image, "large2"), image.view(at.row).entry(at.slot));
       }},
      {Wrong::segment_header_impossible, "header of segment",
       [](TestImage& image) {
         image.header(image.geometry().segments - 1) = {.owner = 5, .size_class = 200, .run = 1};
       }},
      {Wrong::bitmap_impossible, "does not have",
       [](TestImage& image) { image.bitmap(0, image.shape(0).bitmap_words - 1) |= 1ull << 63; }},
      {Wrong::block_marked_in_use, "block 0 of segment 1 is in use and marked free",
       [](TestImage& image) { image.bitmap(1, 0) |= 1; }},
      {Wrong::block_size_wrong, "another size",
       [&](TestImage& image) {
         // An extent in a block of a larger class than its own.
         const std::uint64_t last = image.geometry().segments - 1, segment = image.geometry().segment_bytes;
         image.header(last) = {.owner = 5, .size_class = layout::size_class_for(1000, segment), .run = 1};
         const std::uint64_t units = (last * segment + image.shape(last).first_block) / layout::kBlockUnit;
         put_entry(image, image.place("large1"), image.entry_of("large1", std::string(150, 'x'), units));
       }},
      {Wrong::entry_to_no_block, "where no block", [](TestImage& image) { image.header(0).run = 0; }},
      {Wrong::directory_impossible, "contradicts",
       [](TestImage& image) {
         const std::uint64_t entry = layout::EntryWord::of(0, 1, false, 0);
         base::store(image.region(layout::kDirectory).data() + layout::entry_offset(0), entry);
       }},
      {Wrong::padding_written, "not zero",
       [](TestImage& image) {
         const layout::Span& leases = image.geometry().at(layout::kLeases);
         image.bytes()[leases.offset + leases.bytes + 8] = std::byte{1};
       }},
  };
  std::set<Wrong> planted;
  for (const Case& each : cases) {
    TestImage image;
    each.plant(image);
    const std::string name(kind_of(each.wrong).name);
    planted.insert(each.wrong);
    EXPECT_TRUE(kind_of(each.wrong).damage) << name;
    const Audit audit = audit_of(image);
    EXPECT_GT(audit.damage(), 0u) << name;
    ASSERT_GT(audit.count(each.wrong), 0u) << name << ", found instead:\n" << text(audit);
    bool named = false;
    const bool set_aside = each.wrong == Wrong::segment_header_impossible || each.wrong == Wrong::entry_to_no_block;
    EXPECT_EQ(audit.segments_damaged, set_aside ? 1u : 0u) << name;
    if (each.wrong == Wrong::operation_quarantined) EXPECT_EQ(audit.count(Wrong::row_half_written), 0u);
    if (each.wrong != Wrong::counters_off) EXPECT_EQ(audit.count(Wrong::counters_off), 0u) << name;
    for (const Finding& finding : audit.findings) {
      if (finding.region == "tables" && finding.wrong != Wrong::row_half_written) {
        EXPECT_EQ(finding.entry.has_value(), finding.wrong != Wrong::row_torn) << name;
      }
      named = named || (finding.wrong == each.wrong && finding.what.find(each.says) != std::string::npos);
      EXPECT_LT(finding.offset, image.bytes().size());
      EXPECT_FALSE(finding.region.empty());
    }
    EXPECT_TRUE(named) << name << " does not say '" << each.says << "':\n" << text(audit);
  }
  for (std::size_t i = 0; i < kWrongs; ++i) {
    const auto wrong = static_cast<Wrong>(i);
    EXPECT_FALSE(kind_of(wrong).name.empty() || kind_of(wrong).remedy.empty());
    EXPECT_EQ(kind_of(wrong).damage, planted.contains(wrong)) << kind_of(wrong).name << " has no case";
  }
}

TEST(Audit, SaysWhatADeathExplains) {
  struct Case {
    Wrong wrong;
    std::function<void(TestImage&)> plant;
  };
  const std::vector<Case> cases = {
      {Wrong::superblock_damaged, [](TestImage& image) { image.bytes()[100] ^= std::byte{1}; }},
      {Wrong::superblock_of_another_life,
       [](TestImage& image) {
         const auto page =
             layout::write_superblock({.incarnation = 78, .pool = image.record().pool, .geometry = image.geometry()});
         std::copy(page.begin(), page.end(), image.bytes().begin());
       }},
      // A claim whose first WRITE was cut short, a claim that takes its locks, and one that releases them.
      {Wrong::operation_half_done, [](TestImage& image) { image.slot(2).holder = TestImage::kHolder; }},
      {Wrong::operation_half_done,
       [](TestImage& image) {
         image.claim(2, {4, 9});
       }},
      {Wrong::operation_half_done,
       [](TestImage& image) {
         const auto at = image.plan(2, "new", "v");
         rcuckoo::edit_row(image.geometry(), image.row(at.row), at.row, at.slot, image.entry_of("new", "v"));
         image.slot(2).settle();
       }},
      {Wrong::barrier_standing,
       [](TestImage& image) {
         image.claim(2, {4});
         image.lock_word(0) |= layout::kBarrier;
       }},
      {Wrong::lease_held, [](TestImage& image) { image.lease(7) = layout::LeaseWord::held_by(0, 5); }},
      {Wrong::counters_off, [](TestImage& image) { ++image.slot(1).keys; }},
      {Wrong::row_half_written, [](TestImage& image) { image.plan(2, "new", "v"); }},
      {Wrong::blocks_lost, [](TestImage& image) { image.bitmap(1, 0) &= image.bitmap(1, 0) - 1; }},
  };
  std::set<Wrong> planted;
  for (const Case& each : cases) {
    TestImage image;
    each.plant(image);
    planted.insert(each.wrong);
    const Audit audit = audit_of(image);
    EXPECT_EQ(audit.damage(), 0u) << text(audit);
    EXPECT_EQ(audit.count(each.wrong), 1u) << kind_of(each.wrong).name << ":\n" << text(audit);
    EXPECT_EQ(std::ranges::count(audit.findings, each.wrong, &Finding::wrong), 1) << kind_of(each.wrong).name;
    EXPECT_EQ(audit.barriers, each.wrong == Wrong::barrier_standing ? 1u : 0u);
    EXPECT_EQ(audit.count(Wrong::barrier_standing), audit.barriers);
    EXPECT_EQ(audit.leases.size(), each.wrong == Wrong::lease_held ? 1u : 0u);
    EXPECT_EQ(audit.keys_off, each.wrong == Wrong::counters_off ? 1 : 0);
    EXPECT_TRUE(kind_of(each.wrong).mended);
  }
  // RACE's kinds: index/race/table_test.cc.
  planted.insert(Wrong::insert_half_done);
  planted.insert(Wrong::split_half_done);
  for (std::size_t i = 0; i < kWrongs; ++i) {
    const auto wrong = static_cast<Wrong>(i);
    EXPECT_NE(kind_of(wrong).damage, planted.contains(wrong)) << kind_of(wrong).name << " has no case";
  }
}

// Words of a row land in any order. The plan explains any part of them that has landed when the client dies.
TEST(Audit, APlanExplainsAnyPartOfItsRow) {
  TestImage planned;
  const auto at = planned.plan(2, "new", "v");
  TestImage done;
  done.plan(2, "new", "v");
  rcuckoo::edit_row(done.geometry(), done.row(at.row), at.row, at.slot, done.entry_of("new", "v"));
  std::vector<std::size_t> changed;
  for (std::size_t i = 0; i < planned.geometry().row_bytes(); i += 8) {
    if (std::memcmp(planned.row(at.row).data() + i, done.row(at.row).data() + i, 8) != 0) changed.push_back(i);
  }
  ASSERT_GE(changed.size(), 3u);
  for (std::size_t landed = 0; landed < 1u << changed.size(); ++landed) {
    TestImage image = planned;
    for (std::size_t i = 0; i < changed.size(); ++i) {
      if ((landed >> i & 1) != 0)
        std::memcpy(image.row(at.row).data() + changed[i], done.row(at.row).data() + changed[i], 8);
    }
    const Audit audit = audit_of(image);
    EXPECT_EQ(audit.damage(), 0u) << landed << ":\n" << text(audit);
    EXPECT_EQ(audit.table.keys, 28u);
    EXPECT_EQ(audit.count(Wrong::counters_off), 0u);
    // Nothing else explains it.
    image.slot(2).holder = 0;
    EXPECT_GT(audit_of(image).damage(), 0u) << landed;
  }
}

// The order of repair_image: if it is cut short after any word, what is left is explained, and the next repair finishes
// it.
TEST(Audit, ARepairThatIsCutShortLeavesNoDamage) {
  TestImage before;
  const auto at = before.plan(2, "new", "v");
  before.claim(3, {4, 9});
  before.lease(7) = layout::LeaseWord::held_by(0, 5);
  TestImage after = before;
  const rcuckoo::ImageRepair repair = rcuckoo::repair_image(after.geometry(), after.bytes());
  EXPECT_EQ(repair.slots, 2u);
  EXPECT_EQ(repair.finished, 1u);
  EXPECT_TRUE(after.view(at.row).whole(at.row));
  const Audit repaired = audit_of(after);
  EXPECT_EQ(repaired.damage() + repaired.explained(), 0u) << text(repaired);

  const auto words_of = [&](const layout::Span& span) {
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t i = span.offset; i < span.offset + span.bytes; i += 8) {
      if (std::memcmp(&before.bytes()[i], &after.bytes()[i], 8) != 0) offsets.push_back(i);
    }
    return offsets;
  };
  std::vector<std::uint64_t> order, holders;
  for (const layout::RegionId id : {layout::kTable, layout::kSlots, layout::kLocks, layout::kLeases}) {
    for (const std::uint64_t offset : words_of(before.geometry().at(id))) {
      const bool holder = id == layout::kSlots && (offset - before.geometry().at(id).offset) % sizeof(OperationSlot) ==
                                                      offsetof(OperationSlot, holder);
      (holder ? holders : order).push_back(offset);
    }
  }
  ASSERT_EQ(holders.size(), 2u);
  order.insert(order.end(), holders.begin(), holders.end());
  TestImage image = before;
  for (const std::uint64_t offset : order) {
    std::memcpy(&image.bytes()[offset], &after.bytes()[offset], 8);
    const Audit audit = audit_of(image);
    EXPECT_EQ(audit.damage(), 0u) << offset << ":\n" << text(audit);
    TestImage again = image;
    (void)rcuckoo::repair_image(again.geometry(), again.bytes());
    const Audit repaired_again = audit_of(again);
    EXPECT_EQ(repaired_again.damage() + repaired_again.explained(), 0u) << offset << ":\n" << text(repaired_again);
    EXPECT_EQ(repaired_again.table.keys, 28u);
  }
}

// Lock words in a NIC's memory are lost with it: the slots say what to finish, and what stays locked.
TEST(Audit, ARepairNeedsNoLockWords) {
  TestImage before;
  const auto at = before.plan(2, "new", "v");
  before.plan(3, "newer", "w");
  before.slot(3).done = OperationSlot::kQuarantined;
  TestImage image = before;
  const base::MutableBytes locks = image.region(layout::kLocks);
  std::fill(locks.begin(), locks.end(), std::byte{0});
  EXPECT_EQ(audit_of(image).damage(), 1u) << "the one in quarantine\n" << text(audit_of(image));
  const rcuckoo::ImageRepair repair = rcuckoo::repair_image(image.geometry(), image.bytes());
  EXPECT_EQ(repair.finished, 1u);
  EXPECT_EQ(repair.quarantined.size(), 1u);
  EXPECT_TRUE(image.view(at.row).whole(at.row));
  for (const layout::HeldLocks& held : before.slot(3).lock_word) {
    if (held.mask == 0) continue;
    EXPECT_EQ(image.lock_word(held.offset / 8) & held.mask, held.mask) << "a row in quarantine can be written";
  }
  const Audit repaired = audit_of(image);
  EXPECT_EQ(repaired.damage(), 1u) << text(repaired);
  EXPECT_EQ(repaired.count(Wrong::operation_quarantined), 1u);
  // The result is the same as with the lock words at hand.
  (void)rcuckoo::repair_image(before.geometry(), before.bytes());
  EXPECT_TRUE(std::ranges::equal(before.bytes(), image.bytes()));
}

TEST(Audit, FindsNoDamageAtAnyMomentOfTheLifeOfRaceTables) {
  std::map<std::string, std::uint64_t> splits, inserts;
  for (const RaceImage& image : RaceLife::images()) {
    const auto memory = audit_memory(image.bytes);
    ASSERT_TRUE(memory.ok()) << image.name << ": " << memory.status().message();
    EXPECT_EQ(memory->audit.damage(), 0u) << image.name << ":\n" << text(memory->audit);
    EXPECT_GT(memory->audit.table.keys, 30u) << image.name;
    splits[image.name] = memory->audit.count(Wrong::split_half_done);
    EXPECT_EQ(std::ranges::count(memory->audit.findings, Wrong::split_half_done, &Finding::wrong),
              static_cast<std::ptrdiff_t>(splits[image.name]));
    inserts[image.name] = memory->audit.count(Wrong::insert_half_done);
  }
  EXPECT_EQ(splits.at("a split whose slots are cleared"), 1u);
  EXPECT_EQ(splits.at("two splits whose slots move"), 2u);
  EXPECT_EQ(splits.at("four tables"), 0u);
  EXPECT_EQ(inserts.at("an insert"), 1u);
  EXPECT_EQ(inserts.at("keys that come"), 1u);
}

// A protocol without locks has no claims of locks.
TEST(Audit, AClaimOfLocksThatAProtocolDoesNotHaveIsDamage) {
  RaceImage image = RaceLife::images().front();
  const layout::Geometry g = audit_memory(image.bytes)->record.geometry;
  const std::uint64_t last = g.max_sessions * g.slots_per_session - 1;
  base::store(image.bytes.data() + g.at(layout::kSlots).offset + last * sizeof(OperationSlot),
              OperationSlot{.holder = 5});
  const auto memory = audit_memory(image.bytes);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->audit.count(Wrong::claim_impossible), 1u) << text(memory->audit);
  EXPECT_EQ(memory->audit.damage(), 1u);
}

// Its depth counts more bits than a word has.
TEST(Audit, AHeaderThatCannotBeHasNoKeys) {
  RaceImage image = RaceLife::images().front();
  const layout::Geometry g = audit_memory(image.bytes)->record.geometry;
  const std::uint64_t buckets = 3 * g.rows_per_table();
  for (std::uint64_t bucket = 0; bucket < buckets; ++bucket) {
    image.bytes[g.at(layout::kTable).offset + bucket * RaceLife::kBucketBytes] = std::byte{127};
  }
  const auto memory = audit_memory(image.bytes);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->audit.count(Wrong::row_torn), buckets);
  EXPECT_EQ(memory->audit.count(Wrong::entry_misplaced), memory->audit.table.keys);
}

TEST(Audit, SaysWhyItCannotRead) {
  const auto why = [](TestImage& image, std::size_t bytes) {
    const auto memory = audit_memory(image.bytes().first(bytes));
    return memory.ok() ? std::string() : memory.status().message();
  };
  TestImage image;
  const std::size_t all = image.bytes().size();
  EXPECT_NE(why(image, all - layout::kPage).find("cut short"), std::string::npos);
  EXPECT_NE(why(image, 100).find("cut short"), std::string::npos);
  TestImage both;
  for (const std::size_t at : {std::size_t{40}, std::size_t{2048 + 40}}) {
    both.bytes().last(layout::kPage)[at] ^= std::byte{1};
  }
  EXPECT_NE(why(both, all).find("neither record"), std::string::npos);
  TestImage other;
  other.record().geometry.memory_bytes += layout::kPage;
  layout::write_private_page(other.bytes().last(layout::kPage), other.record());
  EXPECT_NE(why(other, all).find("speaks of"), std::string::npos) << why(other, all);
}

// A segment whose header cannot be is told of once, whatever points into it.
TEST(Audit, ADamagedHeaderIsOneDefect) {
  TestImage image;
  image.header(0).size_class = 200;
  const Audit audit = audit_of(image);
  EXPECT_EQ(audit.count(Wrong::segment_header_impossible), 1u);
  EXPECT_EQ(audit.count(Wrong::entry_to_no_block), 0u);
  EXPECT_EQ(audit.damage(), 1u) << text(audit);
  EXPECT_FALSE(audit.table.reached.any(0, audit.table.reached.units())) << "all that entries point to was found";
}

// A header without a length has to be empty otherwise: the memory node clears all of it.
TEST(Audit, AFreeHeaderWithSomethingInItIsDamage) {
  TestImage image;
  image.header(image.geometry().segments - 1).reserved[0] = 1;
  const Audit audit = audit_of(image);
  EXPECT_EQ(audit.count(Wrong::segment_header_impossible), 1u) << text(audit);
  EXPECT_EQ(audit.segments_damaged, 1u);
}

// A client that waits for a lock names it as the holder does.
TEST(Audit, AClaimOfALockThatAnotherHoldsIsNoDamage) {
  TestImage image;
  const auto at = image.plan(2, "new", "v");
  image.claim(3, {at.row});
  const Audit audit = audit_of(image);
  EXPECT_EQ(audit.damage(), 0u) << text(audit);
  EXPECT_EQ(audit.count(Wrong::operation_half_done), 2u);
}

// Its claim was cut short, or the words are of another operation.
TEST(Audit, LocksThatNobodyClaimsNeedNotBeThere) {
  TestImage image;
  const layout::HeldLocks beyond{image.region(layout::kLocks).size(), 1};
  image.slot(2).holder = TestImage::kHolder;
  image.slot(2).lock_word[0] = beyond;
  image.claim(3, {4});
  image.slot(3).lock_word[3] = {beyond.offset, 0};
  image.slot(3).seal_claim();
  const Audit audit = audit_of(image);
  EXPECT_EQ(audit.damage(), 0u) << text(audit);
  EXPECT_EQ(audit.count(Wrong::operation_half_done), 2u);
}

TEST(Audit, SaysHowFarItIs) {
  TestImage image;
  std::uint64_t last = 0;
  int calls = 0, of_the_table = 0, of_the_heap = 0;
  const std::uint64_t heap = image.geometry().at(layout::kHeap).offset;
  const std::uint64_t table = image.geometry().at(layout::kTable).offset;
  const auto memory = audit_memory(image.bytes(), {.progress = [&](std::uint64_t done, std::uint64_t of) {
                                     EXPECT_EQ(of, image.bytes().size());
                                     EXPECT_GE(done, last);
                                     EXPECT_LE(done, of);
                                     last = done;
                                     ++calls;
                                     of_the_heap += done == heap ? 1 : 0;
                                     of_the_table += done == table ? 1 : 0;
                                   }});
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(last, image.bytes().size());
  EXPECT_GT(of_the_table, 0);
  EXPECT_GT(of_the_heap, 0);
  EXPECT_LT(static_cast<std::uint64_t>(calls), image.geometry().segments);
}

TEST(Audit, KeepsSomeFindingsOfSlotsAndLocks) {
  layout::GeometryRequest request = TestImage::kGeometry;
  request.max_sessions = 128;
  request.rows_per_lock = 1;
  while (!layout::plan_geometry(request).ok()) request.memory_bytes += layout::kPage;
  const layout::Geometry g = layout::plan_geometry(request).value();
  std::vector<std::byte> memory(g.memory_bytes);
  const std::uint64_t slots = g.at(layout::kSlots).bytes / sizeof(OperationSlot), locks = g.lock_bits;
  ASSERT_GT(std::min(slots, locks), Audit::kMostFindings);
  const auto word = [&](layout::RegionId id, std::uint64_t offset) -> std::uint64_t& {
    return *reinterpret_cast<std::uint64_t*>(memory.data() + g.at(id).offset + offset);
  };
  for (std::uint64_t i = 0; i < slots; ++i) {
    word(layout::kSlots, i * sizeof(OperationSlot) + layout::kSlotHolder.offset) = TestImage::kHolder;
  }
  for (std::uint64_t i = 0; i < locks; ++i) {
    word(layout::kLocks, i / layout::kLocksPerWord * 8) |= 1ull << i % layout::kLocksPerWord;
  }
  const Audit audit = audit_regions(g, memory, {}, {});
  EXPECT_EQ(audit.count(Wrong::operation_half_done), slots);
  EXPECT_EQ(audit.count(Wrong::lock_without_holder), locks);
  EXPECT_EQ(audit.lock_bits, locks);
  for (const Wrong wrong : {Wrong::operation_half_done, Wrong::lock_without_holder}) {
    EXPECT_EQ(std::ranges::count(audit.findings, wrong, &Finding::wrong), Audit::kMostFindings) << kind_of(wrong).name;
  }
}

TEST(Audit, KeepsSomeFindingsOfRowsThatAreStillToBeWritten) {
  layout::GeometryRequest request = TestImage::kGeometry;
  request.max_sessions = 64;
  request.table_percent = 20;
  TestImage image(request);
  std::set<std::uint64_t> taken;
  std::uint64_t planned = 0;
  for (int i = 0; planned <= Audit::kMostFindings; ++i) {
    const std::string key = "new" + std::to_string(i);
    const auto rows = rcuckoo::locate(image.hash(key), image.geometry().rows);
    if (taken.contains(rows.first) || taken.contains(rows.second)) continue;
    taken.insert({rows.first, rows.second});
    image.plan(++planned, key, "v");
  }
  const Audit audit = audit_of(image);
  EXPECT_EQ(audit.count(Wrong::row_half_written), planned);
  EXPECT_EQ(std::ranges::count(audit.findings, Wrong::row_half_written, &Finding::wrong), Audit::kMostFindings);
}

TEST(Audit, KeepsSomeFindingsOfSegments) {
  layout::GeometryRequest request = TestImage::kGeometry;
  request.memory_bytes = 64 << 20;
  const layout::Geometry g = layout::plan_geometry(request).value();
  ASSERT_GT(g.segments, Audit::kMostFindings + 2);
  std::vector<std::byte> memory(g.memory_bytes);
  for (std::uint64_t i = 0; i < g.segments; ++i) {
    const layout::SegmentHeader lost{.size_class = 3, .run = 1}, damaged{.owner = 5, .size_class = 200, .run = 1};
    base::store(memory.data() + g.at(layout::kHeap).offset + i * g.segment_bytes, i < 2 ? lost : damaged);
  }
  const Audit audit = audit_regions(g, memory, {}, {});
  const std::uint64_t blocks = layout::segment_shape(3, g.segment_bytes).blocks;
  ASSERT_GT(blocks, Audit::kMostFindings);
  EXPECT_EQ(audit.count(Wrong::blocks_lost), 2 * blocks);
  EXPECT_EQ(std::ranges::count(audit.findings, Wrong::blocks_lost, &Finding::wrong), 1) << "which tells of them all";
  EXPECT_EQ(audit.count(Wrong::segment_header_impossible), g.segments - 2);
  EXPECT_GT(g.private_page(), g.at(layout::kHeap).offset + g.at(layout::kHeap).bytes);
  const auto& uses = audit.bytes_of_use;
  EXPECT_EQ(std::accumulate(uses.begin(), uses.end(), std::uint64_t{0}), g.memory_bytes);
  EXPECT_EQ(std::ranges::count(audit.findings, Wrong::segment_header_impossible, &Finding::wrong),
            Audit::kMostFindings);
}

TEST(Audit, KeepsSomeFindingsOfEachKindAndCountsAll) {
  TestImage image;
  for (std::uint64_t row = 0; row < image.geometry().rows; ++row) image.row(row)[0] ^= std::byte{1};
  const Audit audit = audit_of(image);
  EXPECT_EQ(audit.count(Wrong::row_torn), image.geometry().rows);
  EXPECT_EQ(std::count_if(audit.findings.begin(), audit.findings.end(),
                          [](const Finding& finding) { return finding.wrong == Wrong::row_torn; }),
            Audit::kMostFindings);
  EXPECT_FALSE(audit.reach_known());
  EXPECT_EQ(audit.bytes(Use::rows_unreadable), image.geometry().rows * image.geometry().row_bytes());
}

}  // namespace
}  // namespace farpool::node
