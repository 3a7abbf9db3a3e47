// SPDX-License-Identifier: Apache-2.0
#include "node/audit.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "directory/directory.h"
#include "layout/lease.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"
#include "layout/segment.h"
#include "layout/superblock.h"
#include "protocols/protocols.h"

namespace farpool::node {
namespace {

using index::Defect;
using index::HalfDone;
using layout::Geometry;
using layout::OperationSlot;

constexpr std::string_view kReport = "a defect, or memory that lies: keep the file and report it";
constexpr std::string_view kNextLife = "nothing: the memory node that takes the memory up does away with it";
constexpr std::string_view kReload = "report it; where the key is known, write or delete it, else load the data again";

constexpr std::array<WrongKind, kWrongs> kKinds{{
    {"superblock_damaged", false, true, kNextLife},
    {"superblock_of_another_life", false, true, kNextLife},
    {"superblock_contradicts", true, false, "no memory node takes this memory up: load its data again, and report it"},
    {"private_record_damaged", true, true, kReport},
    {"operation_half_done", false, true, kNextLife},
    {"operation_quarantined", true, false, "report it; to be rid of it, empty the memory node and load its data again"},
    {"operation_unexplained", true, false, "report it; a memory node that takes the memory up leaves it in quarantine"},
    {"insert_half_done", false, true, kNextLife},
    {"claim_impossible", true, true, kReport},
    {"lock_held_twice", true, true, kReport},
    {"lock_without_holder", true, true, kReport},
    {"lock_impossible", true, true, kReport},
    {"barrier_standing", false, true, kNextLife},
    {"barrier_without_cause", true, true, kReport},
    {"lease_held", false, true, kNextLife},
    {"counters_off", false, true, "nothing: only the number of keys that is told is wrong, until the next restart"},
    {"directory_impossible", true, false, "report it; keys may not be found: load the data again"},
    {"split_half_done", false, false, "nothing: clients go on with it"},
    {"row_half_written", false, true, kNextLife},
    {"row_torn", true, false, "report it; the keys of the row are lost: load the data again"},
    {"entry_impossible", true, false, "report it; its key is lost: load the data again"},
    {"entry_beyond_heap", true, false, "report it; its key is lost: load the data again"},
    {"extent_damaged", true, false, "report it; its key is lost: load the data again"},
    {"hash_wrong", true, false, kReload},
    {"entry_misplaced", true, false, kReload},
    {"key_twice", true, false, kReload},
    {"block_shared", true, false, kReload},
    {"segment_header_impossible", true, false,
     "report it; the memory node sets the segment aside, what entries point to in it can be read"},
    {"bitmap_impossible", true, true, kReport},
    {"block_marked_in_use", true, true, kReport},
    {"block_size_wrong", true, false, kReload},
    {"entry_to_no_block", true, false, "report it; the memory node sets the segment aside"},
    {"blocks_lost", false, true, kNextLife},
    {"padding_written", true, false, kReport},
}};
static_assert(std::none_of(kKinds.begin(), kKinds.end(), [](const WrongKind& kind) { return kind.name.empty(); }));

constexpr std::array<std::string_view, kUses> kUseNames = {"superblock",        "operation_slots", "repair_leases",
                                                           "lock_words",        "entries_in_use",  "entries_free",
                                                           "rows_unreadable",   "directory",       "row_trailers",
                                                           "row_marks",         "segments_free",   "segments_damaged",
                                                           "segment_headers",   "blocks_in_use",   "blocks_marked_free",
                                                           "blocks_with_owner", "blocks_lost",     "served_table",
                                                           "served_heap",       "private_page",    "padding"};
static_assert(std::none_of(kUseNames.begin(), kUseNames.end(), [](std::string_view name) { return name.empty(); }));

constexpr std::array<std::string_view, layout::kRegions> kRegionNames = {
    "superblock", "operation slots", "repair leases", "lock words", "tables", "directory", "heap"};
constexpr std::string_view kPrivatePage = "private page";

constexpr std::array<Wrong, Defect::kKinds> kOfDefect = {
    Wrong::row_torn,       Wrong::entry_impossible, Wrong::entry_beyond_heap,
    Wrong::extent_damaged, Wrong::hash_wrong,       Wrong::entry_misplaced,
    Wrong::key_twice,      Wrong::block_shared,     Wrong::insert_half_done};
constexpr std::array<Wrong, SegmentDefect::kKinds> kOfSegment = {Wrong::segment_header_impossible,
                                                                 Wrong::bitmap_impossible, Wrong::block_marked_in_use,
                                                                 Wrong::block_size_wrong, Wrong::entry_to_no_block};

constexpr std::uint64_t kProgressSegments = 1024;
constexpr std::array<std::byte, layout::kPage> kZeros{};

std::string words_of(HalfDone::State state) {
  switch (state) {
    case HalfDone::State::begun:
      return "was about to claim its locks";
    case HalfDone::State::locking:
      return "was taking its locks, or giving them back";
    case HalfDone::State::writing:
      return "was writing its rows";
    case HalfDone::State::written:
      return "had written its rows, and was releasing its locks";
    default:
      return "is in quarantine";
  }
}

class Auditor {
 public:
  Auditor(const Geometry& geometry, base::Bytes memory, const base::HashSecret& seed,
          const base::HashSecret& pool_secret, const Auditing& how)
      : g_(geometry),
        protocol_(protocols::of(geometry.protocol)),
        memory_(memory),
        seed_(seed),
        pool_secret_(pool_secret),
        how_(how),
        audit_(geometry) {}

  Audit run() {
    use(Use::superblock, g_.at(layout::kSuperblock).bytes);
    use(Use::operation_slots, g_.at(layout::kSlots).bytes);
    use(Use::repair_leases, g_.at(layout::kLeases).bytes);
    use(Use::lock_words, g_.at(layout::kLocks).bytes);
    use(Use::directory, g_.at(layout::kDirectory).bytes);
    use(Use::private_page, layout::kPage);
    look_at_slots();
    look_at_locks();
    look_at_leases();
    look_at_directory();
    look_at_rows();
    if (g_.shape().served == nullptr) {
      look_at_counters();
      look_at_heap();
    }
    look_at_padding();
    return std::move(audit_);
  }

 private:
  base::Bytes region(layout::RegionId id) const { return memory_.subspan(g_.at(id).offset, g_.at(id).bytes); }
  void use(Use what, std::uint64_t bytes) { audit_.bytes_of_use[static_cast<std::size_t>(what)] += bytes; }
  bool kept(Wrong wrong) {  // the words of another one
    return ++audit_.of_kind[static_cast<std::size_t>(wrong)] <= Audit::kMostFindings;
  }
  Finding at(Wrong wrong, layout::RegionId id, std::uint64_t offset, std::string what) const {
    return {.wrong = wrong, .region = kRegionNames[id], .offset = g_.at(id).offset + offset, .what = std::move(what)};
  }
  void progress(std::uint64_t done) const {
    if (how_.progress) how_.progress(std::min(done, g_.memory_bytes), g_.memory_bytes);
  }

  // --- Operation slots, locks, leases

  void tell_of_slot(Wrong wrong, const HalfDone::Slot& slot, const std::string& what) {
    if (!kept(wrong)) return;
    Finding finding = at(wrong, layout::kSlots, slot.index * sizeof(OperationSlot),
                         "operation slot " + std::to_string(slot.index) + ", of client incarnation " +
                             std::to_string(slot.says.holder) + ", " + what);
    finding.operation_slot = slot.index;
    audit_.findings.push_back(std::move(finding));
  }

  // A protocol without locks plans nothing, either.
  void look_for_claims() {
    const base::Bytes slots = region(layout::kSlots);
    for (std::uint64_t i = 0; (i + 1) * sizeof(OperationSlot) <= slots.size(); ++i) {
      const HalfDone::Slot slot{.index = i,
                                .says = base::load<OperationSlot>(slots.data() + i * sizeof(OperationSlot))};
      if (slot.says.holder != 0) tell_of_slot(Wrong::claim_impossible, slot, "claims locks that there are not");
    }
  }

  void look_at_slots() {
    if (!g_.shape().locks) return look_for_claims();
    audit_.half_done = protocol_.half_done(g_, memory_);
    std::map<std::uint64_t, std::uint64_t> held;  // lock word -> bits that are held for certain
    for (const HalfDone::Slot& slot : audit_.half_done.slots) {
      if (slot.state == HalfDone::State::quarantined) {
        const bool before = slot.says.quarantined();
        tell_of_slot(before ? Wrong::operation_quarantined : Wrong::operation_unexplained, slot,
                     before ? "is in quarantine, with its locks" : "cannot be finished: " + slot.why);
      } else {
        tell_of_slot(Wrong::operation_half_done, slot, words_of(slot.state));
      }
      if (!slot.says.claims()) continue;
      for (const layout::HeldLocks& named : slot.says.lock_word) {
        if (named.mask == 0) continue;
        if (named.offset % 8 != 0 || named.offset >= g_.at(layout::kLocks).bytes ||
            (named.mask & ~bits_of_word(named.offset)) != 0) {
          tell_of_slot(Wrong::claim_impossible, slot, "claims locks that there are not");
          break;
        }
        if (slot.state != HalfDone::State::writing) continue;
        std::uint64_t& bits = held[named.offset];
        if ((bits & named.mask) != 0) tell_of_slot(Wrong::lock_held_twice, slot, "writes under a lock of another slot");
        bits |= named.mask;
      }
      if (slot.state == HalfDone::State::writing) tell_of_rows(slot);
    }
  }

  void tell_of_rows(const HalfDone::Slot& slot) {
    for (const std::uint64_t row : slot.rows) {
      if (!kept(Wrong::row_half_written)) continue;
      Finding finding =
          at(Wrong::row_half_written, layout::kTable, row * g_.row_bytes(),
             "row " + std::to_string(row) + " is still to be written by operation slot " + std::to_string(slot.index));
      finding.row = row;
      finding.operation_slot = slot.index;
      audit_.findings.push_back(std::move(finding));
    }
  }

  std::uint64_t bits_of_word(std::uint64_t offset) const { return layout::bits_of_lock_word(offset, g_.lock_bits); }
  bool claimed(std::uint64_t offset, std::uint64_t mask) const {
    return std::any_of(audit_.half_done.slots.begin(), audit_.half_done.slots.end(), [&](const HalfDone::Slot& slot) {
      return slot.says.claims() && slot.says.covers(offset, mask);
    });
  }
  void tell_of_lock(Wrong wrong, std::uint64_t offset, const std::string& what) {
    if (!kept(wrong)) return;
    Finding finding = at(wrong, layout::kLocks, offset, what + " lock word " + std::to_string(offset / 8));
    finding.lock_word = offset / 8;
    audit_.findings.push_back(std::move(finding));
  }

  void look_at_locks() {
    const base::Bytes locks = region(layout::kLocks);
    for (std::uint64_t offset = 0; offset < locks.size(); offset += 8) {
      const auto word = base::load<std::uint64_t>(locks.data() + offset);
      if (word == 0) continue;
      if ((word & layout::kBarrier) != 0) {
        ++audit_.barriers;
        if (claimed(offset, ~0ull)) {
          tell_of_lock(Wrong::barrier_standing, offset, "a repairer has left its barrier in");
        } else {
          tell_of_lock(Wrong::barrier_without_cause, offset, "a barrier stands, and no slot names a lock of");
        }
      }
      for (std::uint64_t left = word & ~layout::kBarrier; left != 0; left &= left - 1) {
        const std::uint64_t bit = left & ~(left - 1);
        ++audit_.lock_bits;
        const std::string name = "bit " + std::to_string(std::countr_zero(bit));
        if ((bit & bits_of_word(offset)) == 0) {
          tell_of_lock(Wrong::lock_impossible, offset, name + " is set and stands for no lock, in");
        } else if (!claimed(offset, bit)) {
          tell_of_lock(Wrong::lock_without_holder, offset, name + " is set, and no operation slot names it, in");
        }
      }
    }
  }

  void look_at_leases() {
    const base::Bytes leases = region(layout::kLeases);
    for (std::uint64_t offset = 0; offset < leases.size(); offset += 8) {
      const auto word = base::load<std::uint64_t>(leases.data() + offset);
      if (!layout::LeaseWord::held(word)) continue;
      audit_.leases.push_back(word);
      if (!kept(Wrong::lease_held)) continue;
      audit_.findings.push_back(at(Wrong::lease_held, layout::kLeases, offset,
                                   "repair lease " + std::to_string(offset / 8) +
                                       " is held by a session that ends in " +
                                       std::to_string(layout::LeaseWord::Session::get(word))));
    }
  }

  void look_at_directory() {
    const directory::View view(region(layout::kDirectory), g_.tables);
    for (const std::string& what : directory::verify(view, g_.rows_per_table())) {
      if (kept(Wrong::directory_impossible)) {
        audit_.findings.push_back(at(Wrong::directory_impossible, layout::kDirectory, 0, what));
      }
    }
    for (std::uint64_t table = 0; table < g_.tables; ++table) {
      if (view.split(table) == 0 || !kept(Wrong::split_half_done)) continue;
      audit_.findings.push_back(at(Wrong::split_half_done, layout::kDirectory, layout::record_offset(g_.tables, table),
                                   "table " + std::to_string(table) + " is being split"));
    }
  }

  // --- Rows

  void look_at_rows() {
    index::Verification how{.visit = how_.visit,
                            .progress = {},
                            .instead = &audit_.half_done.rows,
                            .directory = region(layout::kDirectory),
                            .pool_secret = pool_secret_};
    how.progress = [this](std::uint64_t rows) { progress(g_.at(layout::kTable).offset + rows * g_.row_bytes()); };
    audit_.table = protocol_.verify(g_, region(layout::kTable), region(layout::kHeap), seed_, how);
    index::Report& table = audit_.table;
    for (std::size_t i = 0; i < Defect::kKinds; ++i) {
      audit_.of_kind[static_cast<std::size_t>(kOfDefect[i])] += table.of_kind[i];
    }
    const bool served = g_.shape().served != nullptr;
    for (const Defect& defect : table.defects) {
      const Wrong wrong = kOfDefect[static_cast<std::size_t>(defect.kind)];
      Finding finding = at(wrong, served ? layout::kHeap : layout::kTable, defect.offset, defect.what);
      finding.row = defect.row;
      if (wrong != Wrong::row_torn) finding.entry = defect.slot;
      audit_.findings.push_back(std::move(finding));
    }
    if (served) return use_of_served();
    const std::uint64_t readable = table.rows - table.torn_rows;
    use(Use::rows_unreadable, table.torn_rows * g_.row_bytes());
    use(Use::row_trailers, readable * (g_.row_bytes() - g_.entries_per_row * g_.entry_bytes));
    use(Use::row_marks, g_.marks() * 8);
    use(Use::entries_in_use, table.entries * g_.entry_bytes);
    use(Use::entries_free, (readable * g_.entries_per_row - table.entries) * g_.entry_bytes);
  }

  // Entries and blocks lie in the heap there, and the protocol's own records between them.
  void use_of_served() {
    const index::Report& table = audit_.table;
    const std::uint64_t heap = g_.at(layout::kHeap).bytes;
    const std::uint64_t slots = std::min(table.rows * g_.entries_per_row, heap / g_.entry_bytes);
    const std::uint64_t in_use = std::min(table.entries, slots) * g_.entry_bytes;
    const std::uint64_t entries = slots * g_.entry_bytes;
    const std::uint64_t blocks = std::min(table.block_bytes, heap - entries);
    use(Use::served_table, g_.at(layout::kTable).bytes);
    use(Use::entries_in_use, in_use);
    use(Use::entries_free, entries - in_use);
    use(Use::blocks_in_use, blocks);
    use(Use::served_heap, heap - entries - blocks);
    audit_.blocks_in_use = table.extents;
    progress(g_.memory_bytes);
  }

  // The counters are net figures: only their sum means something. Half-done operations count as if finished.
  void look_at_counters() {
    if (audit_.damage() > 0) return;  // what is there cannot be counted
    const base::Bytes slots = region(layout::kSlots);
    std::uint64_t keys = 0, bytes = 0;
    for (std::uint64_t offset = 0; offset < slots.size(); offset += sizeof(OperationSlot)) {
      auto slot = base::load<OperationSlot>(slots.data() + offset);
      if (slot.holder != 0 && slot.planned()) slot.settle();
      keys += slot.keys;
      bytes += slot.bytes;
    }
    audit_.keys_off = static_cast<std::int64_t>(keys - audit_.table.keys);
    if (keys == audit_.table.keys && bytes == audit_.table.bytes) return;
    if (!kept(Wrong::counters_off)) return;
    const auto more = [](std::uint64_t counted, std::uint64_t there) {
      return std::to_string(static_cast<std::int64_t>(counted - there));
    };
    audit_.findings.push_back(at(Wrong::counters_off, layout::kSlots, 0,
                                 "the operation slots count " + more(keys, audit_.table.keys) + " keys and " +
                                     more(bytes, audit_.table.bytes) + " bytes more than there are"));
  }

  // --- Heap

  void look_at_heap() {
    const base::Bytes heap = region(layout::kHeap);
    const auto defect = [this](SegmentDefect told) {
      const Wrong wrong = kOfSegment[static_cast<std::size_t>(told.kind)];
      if (!kept(wrong)) return;
      Finding finding = at(wrong, layout::kHeap, told.offset, std::move(told.what));
      finding.segment = told.first;
      audit_.findings.push_back(std::move(finding));
    };
    walk_segments(
        g_, heap, audit_.table.reached, [this](const FoundSegment& found) { look_at(found); }, defect);
    progress(g_.memory_bytes);
  }

  void look_at(const FoundSegment& found) {
    using Kind = FoundSegment::Kind;
    const std::uint64_t bytes = found.run * g_.segment_bytes;
    if (found.first % kProgressSegments == 0) progress(g_.at(layout::kHeap).offset + found.first * g_.segment_bytes);
    if (found.kind == Kind::free) {
      audit_.segments_free += found.run;
      use(Use::segments_free, bytes);
    } else if (found.kind == Kind::damaged) {
      audit_.segments_damaged += found.run;
      use(Use::segments_damaged, bytes);
    } else {
      (found.kind == Kind::owned ? audit_.segments_owned : audit_.segments_orphaned) += found.run;
      account_for_blocks(found);
    }
    if (how_.segment) how_.segment(found, audit_);
  }

  void account_for_blocks(const FoundSegment& found) {
    const layout::SegmentShape& shape = found.shape;
    std::uint64_t in_use = 0, marked = 0;
    for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
      in_use += static_cast<std::uint64_t>(std::popcount(found.in_use[word]));
      marked += static_cast<std::uint64_t>(std::popcount(found.marked[word]));
    }
    const std::uint64_t others = shape.blocks - in_use - marked;
    const bool owned = found.kind == FoundSegment::Kind::owned;
    audit_.blocks_in_use += in_use;
    audit_.blocks_marked_free += marked;
    audit_.blocks_with_owner += owned ? others : 0;
    use(Use::blocks_in_use, in_use * shape.block_bytes);
    use(Use::blocks_marked_free, marked * shape.block_bytes);
    use(owned ? Use::blocks_with_owner : Use::blocks_lost, others * shape.block_bytes);
    use(Use::segment_headers, found.run * g_.segment_bytes - shape.blocks * shape.block_bytes);
    if (owned || others == 0) return;
    std::uint64_t& count = audit_.of_kind[static_cast<std::size_t>(Wrong::blocks_lost)];
    count += others;
    if (count - others >= Audit::kMostFindings) return;
    Finding finding = at(Wrong::blocks_lost, layout::kHeap, found.first * g_.segment_bytes,
                         std::to_string(others) + " blocks of segment " + std::to_string(found.first) +
                             ", which nobody owns, are neither in use nor marked free");
    finding.segment = found.first;
    audit_.findings.push_back(std::move(finding));
  }

  // --- What lies between the regions. Nothing is written there.
  void look_at_padding() {
    std::uint64_t begin = 0;
    const auto gap = [&](std::uint64_t end) {
      use(Use::padding, end - begin);
      for (std::uint64_t offset = begin; offset < end; offset += layout::kPage) {
        const base::Bytes page = memory_.subspan(offset, std::min(layout::kPage, end - offset));
        if (std::memcmp(page.data(), kZeros.data(), page.size()) == 0) continue;
        if (!kept(Wrong::padding_written)) break;
        audit_.findings.push_back({.wrong = Wrong::padding_written,
                                   .region = "padding",
                                   .offset = offset,
                                   .what = "bytes that no region has are not zero, within a page of here"});
        break;  // one for each gap
      }
    };
    for (const layout::Span& span : g_.region) {
      gap(span.offset);
      begin = span.offset + span.bytes;
    }
    gap(g_.private_page());
  }

  const Geometry& g_;
  const index::Protocol& protocol_;
  const base::Bytes memory_;
  const base::HashSecret seed_;
  const base::HashSecret pool_secret_;
  const Auditing& how_;
  Audit audit_;
};

// Compares what superblock and private page say, as far as both can be read.
void compare_pages(base::Bytes memory, const layout::PrivatePage& page, Audit& audit) {
  const auto tell = [&audit](Wrong wrong, std::string_view region, std::uint64_t offset, std::string what) {
    ++audit.of_kind[static_cast<std::size_t>(wrong)];
    audit.findings.insert(audit.findings.begin(),
                          {.wrong = wrong, .region = region, .offset = offset, .what = std::move(what)});
  };
  const std::string_view super = kRegionNames[layout::kSuperblock];
  const layout::PrivateRecord& record = *page.record;
  if (page.damaged) {
    tell(Wrong::private_record_damaged, kPrivatePage, record.geometry.private_page(),
         "one of the two records of the private page is not whole; the other serves");
  }
  const auto superblock = layout::parse_superblock(memory.first(layout::kPage));
  if (!superblock.ok()) {
    tell(Wrong::superblock_damaged, super, 0, superblock.status().message());
  } else if (superblock->pool != record.pool || superblock->geometry != record.geometry) {
    tell(Wrong::superblock_contradicts, super, 0,
         "the superblock is of another pool or geometry than the private page");
  } else if (superblock->incarnation != record.incarnation) {
    tell(Wrong::superblock_of_another_life, super, 0,
         "the superblock was written by a memory node that died before it served");
  }
}

}  // namespace

const WrongKind& kind_of(Wrong wrong) { return kKinds[static_cast<std::size_t>(wrong)]; }
std::string_view name_of(Use use) { return kUseNames[static_cast<std::size_t>(use)]; }

std::uint64_t Audit::damage() const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kWrongs; ++i) sum += kKinds[i].damage ? of_kind[i] : 0;
  return sum;
}

std::uint64_t Audit::explained() const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kWrongs; ++i) sum += kKinds[i].damage ? 0 : of_kind[i];
  return sum;
}

bool Audit::reach_known() const {
  return table.defect_count() == 0 && count(Wrong::operation_quarantined) + count(Wrong::operation_unexplained) == 0;
}

Audit audit_regions(const Geometry& geometry, base::Bytes memory, const base::HashSecret& seed,
                    const base::HashSecret& pool_secret, const Auditing& how) {
  return Auditor(geometry, memory, seed, pool_secret, how).run();
}

base::Result<MemoryAudit> audit_memory(base::Bytes memory, const Auditing& how) {
  const auto corrupt = [](std::string why) { return base::Status(base::Code::corrupt, std::move(why)); };
  if (memory.size() < 2 * layout::kPage || memory.size() % layout::kPage != 0) {
    return corrupt("it has " + std::to_string(memory.size()) + " bytes, which no memory node lends: it was cut short");
  }
  const layout::PrivatePage page = layout::read_private_page(memory.last(layout::kPage));
  if (!page.written) {
    return corrupt(
        "its last page is not a memory node's: it is something else, was cut short, or never formatted to its end");
  }
  if (page.other_format != 0) return corrupt("it has " + layout::unreadable_format(page.other_format));
  if (!page.record) {
    return corrupt(
        "neither record of its private page is whole: without geometry and hash seed nothing in it can be read");
  }
  if (page.record->geometry.memory_bytes != memory.size()) {
    return corrupt("its private page speaks of " + std::to_string(page.record->geometry.memory_bytes) +
                   " bytes, and there are " + std::to_string(memory.size()));
  }
  const layout::PrivateRecord& record = *page.record;
  MemoryAudit found{.record = record,
                    .audit = audit_regions(record.geometry, memory, record.table_seed, record.pool_secret, how)};
  compare_pages(memory, page, found.audit);
  return found;
}

}  // namespace farpool::node
