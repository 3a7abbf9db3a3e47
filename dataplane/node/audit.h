// SPDX-License-Identifier: Apache-2.0
// An account of every byte of a memory that no client changes any more: its use, what an interrupted operation
// explains, and what nothing explains. It is the one checker of the memory node, the simulator and farpool-fsck. Pure:
// it writes nothing, and takes any bytes.
//
// It finishes what operation slots call half done, on copies, as the memory node does when it takes the memory up, and
// judges the memory in that state. So a torn row, or a key that lies twice, is damage unless a plan mends it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/result.h"
#include "index/image.h"
#include "layout/geometry.h"
#include "layout/private_page.h"
#include "node/segment_walk.h"

namespace farpool::node {

enum class Wrong : std::uint8_t {
  // The two pages that say what the rest is.
  superblock_damaged,
  superblock_of_another_life,
  superblock_contradicts,
  private_record_damaged,
  // Operation slots, locks and leases.
  operation_half_done,
  operation_quarantined,
  operation_unexplained,
  insert_half_done,
  claim_impossible,
  lock_held_twice,
  lock_without_holder,
  lock_impossible,
  barrier_standing,
  barrier_without_cause,
  lease_held,
  counters_off,
  // The directory.
  directory_impossible,
  split_half_done,
  // Rows and entries.
  row_half_written,
  row_torn,
  entry_impossible,
  entry_beyond_heap,
  extent_damaged,
  hash_wrong,
  entry_misplaced,
  key_twice,
  block_shared,
  // The heap.
  segment_header_impossible,
  bitmap_impossible,
  block_marked_in_use,
  block_size_wrong,
  entry_to_no_block,
  blocks_lost,
  // Bytes that hold nothing.
  padding_written,
};
inline constexpr std::size_t kWrongs = static_cast<std::size_t>(Wrong::padding_written) + 1;

struct WrongKind {
  std::string_view name;    // for programs; does not change
  bool damage = false;      // false: a process that dies in the middle of its work leaves this
  bool mended = false;      // by the memory node that takes the memory up
  std::string_view remedy;  // for people
};
const WrongKind& kind_of(Wrong wrong);

struct Finding {
  Wrong wrong = Wrong::row_torn;
  std::string_view region;   // "heap", ...
  std::uint64_t offset = 0;  // in the memory
  // Which one of its kind, if it has a number.
  std::optional<std::uint64_t> row, entry, segment, operation_slot, lock_word;
  std::string what;
};

// What bytes are used for: the figures add up to the memory.
enum class Use : std::uint8_t {
  superblock,
  operation_slots,
  repair_leases,
  lock_words,
  entries_in_use,
  entries_free,
  rows_unreadable,
  directory,
  row_trailers,  // the rest of a row, behind its entries
  row_marks,     // which rows have been used
  segments_free,
  segments_damaged,
  segment_headers,  // with their bitmaps, and the rest behind the last block
  blocks_in_use,
  blocks_marked_free,
  blocks_with_owner,  // of a session: free as far as it knows, or about to be published
  blocks_lost,
  served_table,  // what clients find keys by, where the memory node executes the operations
  served_heap,   // what it keeps for itself there, besides entries and blocks
  private_page,
  padding,
};
inline constexpr std::size_t kUses = static_cast<std::size_t>(Use::padding) + 1;
std::string_view name_of(Use use);

struct Audit {
  static constexpr std::size_t kMostFindings = 100;  // kept of each kind

  explicit Audit(const layout::Geometry& geometry) : table(geometry.at(layout::kHeap).bytes) {}
  std::uint64_t count(Wrong wrong) const { return of_kind[static_cast<std::size_t>(wrong)]; }
  std::uint64_t damage() const;
  std::uint64_t explained() const;
  std::uint64_t bytes(Use use) const { return bytes_of_use[static_cast<std::size_t>(use)]; }
  // Says whether the audit knows of every block if an entry points to it.
  bool reach_known() const;

  std::vector<Finding> findings;
  std::array<std::uint64_t, kWrongs> of_kind{};
  std::array<std::uint64_t, kUses> bytes_of_use{};
  index::HalfDone half_done;
  std::uint64_t lock_bits = 0;        // that are set
  std::uint64_t barriers = 0;         // that are set
  std::vector<std::uint64_t> leases;  // words that are held
  std::int64_t keys_off = 0;          // how many too many the operation slots count
  index::Report table;                // rows, after half-done operations are finished
  std::uint64_t blocks_in_use = 0, blocks_marked_free = 0, blocks_with_owner = 0;
  std::uint64_t segments_free = 0, segments_owned = 0, segments_orphaned = 0, segments_damaged = 0;
};

struct Auditing {
  // Receives each key, in the order of rows.
  std::function<void(const index::Sighting&)> visit;
  // Receives each segment, after the last row, with what has been found so far. It may change the segment.
  std::function<void(const FoundSegment&, const Audit&)> segment;
  // Called now and then: how many bytes of all have been read.
  std::function<void(std::uint64_t done, std::uint64_t of)> progress;
};

// Audits the regions of a memory whose geometry and hash secrets are known.
Audit audit_regions(const layout::Geometry& geometry, base::Bytes memory, const base::HashSecret& seed,
                    const base::HashSecret& pool_secret, const Auditing& how = {});

// A whole memory that explains itself.
struct MemoryAudit {
  layout::PrivateRecord record;
  Audit audit;
};
// Returns corrupt if it is unknown what the bytes are, and says why.
base::Result<MemoryAudit> audit_memory(base::Bytes memory, const Auditing& how = {});

}  // namespace farpool::node
