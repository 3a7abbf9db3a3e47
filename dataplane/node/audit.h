// SPDX-License-Identifier: Apache-2.0
// An account of every byte of a memory that no client changes any more: what it is used for, what an operation that was
// cut short explains, and what nothing explains. The one checker that the memory node, the simulator and farpool-fsck
// have. Pure, never writes; any bytes may be given.
//
// What operation slots say is half done is finished on copies, as the memory node does when it takes the memory up, and
// the memory judged as it is then: so a row that is torn, or a key that lies twice, is damage unless a plan mends it.
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
  // Bytes that nothing is kept in.
  padding_written,
};
inline constexpr std::size_t kWrongs = static_cast<std::size_t>(Wrong::padding_written) + 1;

struct WrongKind {
  std::string_view name;    // for programs; does not change
  bool damage = false;      // false: what a process leaves that dies in the middle of its work
  bool mended = false;      // by the memory node that takes the memory up
  std::string_view remedy;  // for people
};
const WrongKind& kind_of(Wrong wrong);

struct Finding {
  Wrong wrong = Wrong::row_torn;
  std::string_view region;   // "heap", ...
  std::uint64_t offset = 0;  // in the memory
  // Which one of its kind, where it has a number.
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
  row_trailers,  // what of a row is no entry
  row_marks,     // which rows have been used
  segments_free,
  segments_damaged,
  segment_headers,  // with their bitmaps, and what is left behind the last block
  blocks_in_use,
  blocks_marked_free,
  blocks_with_owner,  // of a session: free as far as it knew, or about to be published
  blocks_lost,
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
  // Whether it is known of every block if an entry points to it.
  bool reach_known() const;

  std::vector<Finding> findings;
  std::array<std::uint64_t, kWrongs> of_kind{};
  std::array<std::uint64_t, kUses> bytes_of_use{};
  index::HalfDone half_done;
  std::uint64_t lock_bits = 0;        // that are set
  std::uint64_t barriers = 0;         // that are set
  std::vector<std::uint64_t> leases;  // words that are held
  std::int64_t keys_off = 0;          // that the operation slots count more than there are
  index::Report table;                // rows as they are when what is half done is finished
  std::uint64_t blocks_in_use = 0, blocks_marked_free = 0, blocks_with_owner = 0;
  std::uint64_t segments_free = 0, segments_owned = 0, segments_orphaned = 0, segments_damaged = 0;
};

struct Auditing {
  // Keys, in the order of rows.
  std::function<void(const index::Sighting&)> visit;
  // Segments, behind the last row, with what has been found so far. It may change the segment.
  std::function<void(const FoundSegment&, const Audit&)> segment;
  // Told of now and then: bytes that have been looked at, of all.
  std::function<void(std::uint64_t done, std::uint64_t of)> progress;
};

// The regions of a memory whose geometry and hash secrets are known.
Audit audit_regions(const layout::Geometry& geometry, base::Bytes memory, const base::HashSecret& seed,
                    const base::HashSecret& pool_secret, const Auditing& how = {});

// A whole memory that explains itself.
struct MemoryAudit {
  layout::PrivateRecord record;
  Audit audit;
};
// corrupt: it is not known what the bytes are, and why.
base::Result<MemoryAudit> audit_memory(base::Bytes memory, const Auditing& how = {});

}  // namespace farpool::node
