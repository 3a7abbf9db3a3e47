// SPDX-License-Identifier: Apache-2.0
// What a table counts of rare events.
#pragma once

#include <array>
#include <cstdint>

#include "base/counts.h"

namespace farpool::index {

// Counts of one client's table: see kMarks. An owner is a protocol's name.
struct Marks {
  std::uint64_t stale_extents = 0;
  std::uint64_t slot_conflicts = 0;
  std::uint64_t rivals = 0;
  std::uint64_t removed = 0;
  std::uint64_t stale_routes = 0;
  std::uint64_t looked_again = 0;
  std::uint64_t split_waits = 0;
  std::uint64_t splits = 0;
  std::uint64_t splits_finished = 0;
  std::uint64_t splits_taken_over = 0;
  std::uint64_t moved = 0;
  std::uint64_t move_waits = 0;
  std::uint64_t moved_away = 0;
  std::uint64_t restless_scans = 0;
  std::uint64_t cleared_marks = 0;
  std::uint64_t kept_marks = 0;
  std::uint64_t lock_conflicts = 0;
  std::uint64_t lock_restarts = 0;
  std::uint64_t torn_rows = 0;
  std::uint64_t changed_misses = 0;
  std::uint64_t escalations = 0;
  std::uint64_t failed_searches = 0;
  std::uint64_t explorations = 0;
  std::uint64_t displaced = 0;
  std::uint64_t multi_word_locks = 0;
  std::uint64_t make_ups = 0;
  std::uint64_t seeds_learned = 0;
  std::uint64_t locators_read = 0;
  std::uint64_t stale_answers = 0;
  std::uint64_t long_blocks = 0;
  std::uint64_t room_waits = 0;
  std::uint64_t lines_taken = 0;
  std::uint64_t reconnections = 0;
  std::uint64_t asked_again = 0;
  friend bool operator==(const Marks&, const Marks&) = default;
};

inline constexpr auto kMarks = std::to_array<base::Count<Marks>>({
    {&Marks::stale_extents, "stale_extents", "Extents read after their reuse, and looked up again."},
    {&Marks::move_waits, "move_waits", "Attempts that waited for a key on its way to another memory node."},
    {&Marks::moved_away, "keys_moved_away", "Keys moved to other memory nodes."},
    {&Marks::cleared_marks, "marks_cleared",
     "Stretches of rows that scans pass over from then on, because they are empty."},
    {&Marks::kept_marks, "marks_kept",
     "Stretches of rows found empty by a scan, that got entries before their mark was cleared."},
    {&Marks::slot_conflicts, "slot_conflicts", "Slots that another client changed before a CAS.", "race",
     base::Cause::contention},
    {&Marks::rivals, "rivals", "Inserts that met another insert of their key.", "race", base::Cause::contention},
    {&Marks::removed, "tentative_slots_removed", "Tentative slots of other clients that were taken away.", "race"},
    {&Marks::stale_routes, "stale_routes", "Buckets that did not have the key any more.", "race"},
    {&Marks::looked_again, "buckets_looked_again", "Buckets that a split was changing while they were read.", "race"},
    {&Marks::split_waits, "split_waits", "Attempts that waited for a split.", "race"},
    {&Marks::splits, "splits", "Splits of tables begun.", "race"},
    {&Marks::splits_finished, "splits_finished", "Splits of tables finished, no matter which client began them.",
     "race"},
    {&Marks::splits_taken_over, "splits_taken_over",
     "Splits of tables taken over from clients that stood still or ended.", "race"},
    {&Marks::moved, "slots_moved", "Slots moved by splits.", "race"},
    {&Marks::restless_scans, "restless_scans", "Pages of scans whose rows were read more than twice.", "rcuckoo",
     base::Cause::scan},
    {&Marks::lock_conflicts, "lock_conflicts", "Attempts at a lock that found it taken.", "rcuckoo",
     base::Cause::contention},
    {&Marks::lock_restarts, "lock_restarts", "Lock words given back because a later one did not come free.", "rcuckoo"},
    {&Marks::torn_rows, "torn_rows", "Rows read in the middle of a write, and read again.", "rcuckoo"},
    {&Marks::changed_misses, "changed_misses", "Misses that the second read did not confirm.", "rcuckoo"},
    {&Marks::escalations, "escalations", "Puts that found no path among the rows under their locks, and took more.",
     "rcuckoo"},
    {&Marks::failed_searches, "failed_searches", "Path searches that found no path among the locked rows.", "rcuckoo"},
    {&Marks::explorations, "explorations", "Path searches that read rows.", "rcuckoo"},
    {&Marks::displaced, "displaced", "Entries moved to make room.", "rcuckoo"},
    {&Marks::multi_word_locks, "multi_word_locks", "Operations whose locks needed more than one masked CAS.",
     "rcuckoo"},
    {&Marks::make_ups, "make_up_gets", "Lookups that needed a second request: the seed was old, or keys in overflow.",
     "outback"},
    {&Marks::seeds_learned, "seeds_learned", "Seeds of buckets that replies brought.", "outback"},
    {&Marks::locators_read, "locators_read", "Locators read from memory nodes.", "outback"},
    {&Marks::stale_answers, "stale_answers", "Requests refused because the client had an old locator.", "outback"},
    {&Marks::long_blocks, "long_blocks_read", "Keys and values that no reply had room for, and that were read.",
     "outback"},
    {&Marks::room_waits, "room_waits", "Changes that waited until an era freed room.", "outback"},
    {&Marks::lines_taken, "lines_taken", "Times that a client got its request lines.", "outback"},
    {&Marks::reconnections, "reconnections", "Tables that went on with another session.", "outback"},
    {&Marks::asked_again, "changes_asked_again", "Changes asked again because their answer was lost.", "outback"},
});
// A counter that the table lacks is never summed or shown.
static_assert(sizeof(Marks) == kMarks.size() * sizeof(std::uint64_t));

// What a memory node counts where it executes the operations itself (NodeSide): see kNodeGauges and kNodeCounts.
struct NodeMarks {
  std::uint64_t overflow_keys = 0;
  std::uint64_t locator_bytes = 0;
  std::uint64_t resize_stage = 0;
  std::uint64_t doublings = 0;
  std::uint64_t doublings_left = 0;
  std::uint64_t make_ups = 0;
  std::uint64_t reseeds = 0;
  std::uint64_t pulled = 0;
  std::uint64_t locators_published = 0;
  std::uint64_t settled = 0;
  std::uint64_t moved_blocks = 0;
  std::uint64_t in_place = 0;
  std::uint64_t held_calls = 0;
  friend bool operator==(const NodeMarks&, const NodeMarks&) = default;
};

inline constexpr auto kNodeGauges = std::to_array<base::Count<NodeMarks>>({
    {&NodeMarks::overflow_keys, "overflow_keys", "Keys that lie in no slot, but in the overflow list of their bucket.",
     "outback"},
    {&NodeMarks::locator_bytes, "locator_bytes", "Size of the locator that clients find keys with.", "outback"},
    {&NodeMarks::resize_stage, "resize_stage",
     "1 while another locator is being built, 2 while keys move to where it says, 0 otherwise.", "outback"},
    {&NodeMarks::doublings, "doublings", "Times that the table was doubled since its memory was formatted.", "outback"},
    {&NodeMarks::doublings_left, "doublings_left", "Times that the table can still be doubled in its memory.",
     "outback"},
});
inline constexpr auto kNodeCounts = std::to_array<base::Count<NodeMarks>>({
    {&NodeMarks::make_ups, "make_up_gets", "Second requests of lookups that were answered.", "outback"},
    {&NodeMarks::reseeds, "reseeds", "Buckets that got another seed, so that a key has a slot.", "outback"},
    {&NodeMarks::pulled, "keys_pulled", "Keys taken out of overflow into a slot that came free.", "outback"},
    {&NodeMarks::locators_published, "locators_published", "Locators that the table got while it served.", "outback"},
    {&NodeMarks::settled, "keys_settled", "Keys that another locator has given another bucket.", "outback"},
    {&NodeMarks::moved_blocks, "blocks_moved", "Blocks moved out of pages that are almost empty.", "outback"},
    {&NodeMarks::in_place, "updates_in_place", "Updates that needed no other block.", "outback"},
    {&NodeMarks::held_calls, "calls_held", "Requests left to the thread that was at work in their zone of the table.",
     "outback"},
});
static_assert(sizeof(NodeMarks) == (kNodeGauges.size() + kNodeCounts.size()) * sizeof(std::uint64_t));

inline void operator+=(Marks& sum, const Marks& more) { base::add_counts(kMarks, sum, more); }

}  // namespace farpool::index
