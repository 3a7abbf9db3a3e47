// SPDX-License-Identifier: Apache-2.0
// How a memory node gets its memory: it formats zeros, and takes up what an earlier life has left.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "directory/directory.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"
#include "layout/superblock.h"
#include "node/audit.h"
#include "node/memory_node.h"

namespace farpool::node {
namespace {

using base::Code;
using base::Status;
using layout::OperationSlot;

constexpr base::Nanos kProgress = 5 * base::kSecond;  // between lines that say how far a verification has come
constexpr std::size_t kDefectsLogged = 20;

// Names the flags by which one geometry differs from the other, with their old and new values.
std::string differing_flags(const layout::Geometry& was, const layout::Geometry& is) {
  std::string flags;
  const auto compare = [&flags](const std::string& flag, const std::string& before, const std::string& now) {
    if (before != now) flags += (flags.empty() ? "" : ", ") + flag + " was " + before + " and is " + now;
  };
  const auto number = [&compare](const std::string& flag, std::uint64_t before, std::uint64_t now) {
    compare(flag, std::to_string(before), std::to_string(now));
  };
  compare("--protocol", std::string(was.shape().name), std::string(is.shape().name));
  number("--memory", was.memory_bytes, is.memory_bytes);
  if (was.protocol == is.protocol) {
    number("--entry-bytes", was.entry_bytes, is.entry_bytes);
    number("--entries-per-row", was.entries_per_row, is.entries_per_row);
    number("--rows-per-lock", was.rows_per_lock, is.rows_per_lock);
  }
  number("--tables", was.tables, is.tables);
  number("--max-sessions", was.max_sessions, is.max_sessions);
  // The rest follows from the others, except the percentage, which the memory does not record.
  if (flags.empty() && was.rows != is.rows) {
    flags = "--table-percent is another, as the table had " + std::to_string(was.rows) + " rows and would have " +
            std::to_string(is.rows);
  }
  if (flags.empty() && was != is) flags = "none that can be named: another version of the memory node formatted it";
  return flags;
}

}  // namespace

// Reports how far a step through the rows of the table has come.
std::function<void(std::uint64_t)> MemoryNode::rows_done(const char* step) const {
  if (!options_.progress) return {};
  return [this, step](std::uint64_t rows) {
    options_.progress(step, rows * geometry_.row_bytes(), geometry_.rows * geometry_.row_bytes());
  };
}

// Formats memory of zeros: slots are idle, locks and leases free, no segment is handed out. Writes only what is not
// zero when empty. The private page comes last, so that no process takes a half-formatted memory for a whole one.
void MemoryNode::format() {
  const auto progress = rows_done("formats its table");
  if (progress) progress(0);
  const base::HashSecret seed{responder_.random(), responder_.random()};
  protocol_.format(geometry_, memory_, seed, options_.initial_tables, progress);
  const layout::Span& entries = geometry_.at(layout::kDirectory);
  directory::format(memory_.subspan(entries.offset, entries.bytes), geometry_.tables, options_.initial_tables);
  record_ = {.pool = layout::pool_tag(options_.pool_uid), .unnamed = true, .table_seed = seed, .geometry = geometry_};
}

// Places the locks that this life begins with: the locks of what no crash explains. Locks that clients take in the
// NIC's memory end with the process, as every session does; the next life learns from the slots who held what.
Status MemoryNode::place_locks() {
  if (options_.locks == LockPlacement::host || !geometry_.shape().locks) return {};
  const layout::Span& at = geometry_.at(layout::kLocks);
  const Status placed = responder_.place_in_device(memory_.subspan(at.offset, at.bytes));
  locks_in_device_ = placed.ok();
  if (!placed.ok() && options_.locks == LockPlacement::device_required) {
    return {placed.code(), "its locks have to lie in the NIC's memory, and cannot: " + placed.message()};
  }
  log(!placed.ok(), placed.ok() ? "its locks, " + std::to_string(at.bytes) + " bytes, lie in the NIC's memory"
                                : "its locks lie in host memory, as the NIC's cannot take them: " + placed.message());
  return {};
}

Status MemoryNode::begin_to_execute() {
  base::Result<std::unique_ptr<index::NodeSide>> side =
      protocol_.serve(geometry_, memory_, record_.table_seed, executor_->eras);
  if (!side.ok()) return side.status();
  executor_->side = std::move(*side);
  return {};
}

// Begins a life. The superblock repeats what the private page says, and every life writes it again: a superblock that
// is torn, because a process died just here, is no loss.
void MemoryNode::begin_life() {
  const auto superblock = layout::write_superblock(
      {.incarnation = incarnation_, .pool = layout::pool_tag(options_.pool_uid), .geometry = geometry_});
  record_.incarnation = incarnation_;
  ++record_.lives;
  std::memcpy(region(layout::kSuperblock), superblock.data(), superblock.size());
  layout::write_private_page(private_page(), record_);
}

Status MemoryNode::take_up() {
  const auto corrupt = [](std::string why) { return Status(Code::corrupt, std::move(why)); };
  const layout::PrivatePage page = layout::read_private_page(private_page());
  if (page.other_format != 0) {
    return {Code::invalid_argument, "the memory that it found has " + layout::unreadable_format(page.other_format) +
                                        ", or remove the memory to begin empty"};
  }
  if (!page.record) return corrupt("neither record of its private page is whole");
  if (page.record->pool != layout::pool_tag(options_.pool_uid)) return corrupt("it is the memory of another pool");
  if (page.record->geometry != geometry_) {
    return {Code::invalid_argument, "the memory that it found was formatted with other flags: " +
                                        differing_flags(page.record->geometry, geometry_) +
                                        "; give the earlier flags again, or remove the memory to begin empty"};
  }
  const auto superblock = layout::parse_superblock(base::Bytes(memory_).first(layout::kPage));
  if (superblock.ok() && (superblock->pool != page.record->pool || superblock->geometry != geometry_)) {
    return corrupt("its superblock contradicts its private page");
  }
  record_ = *page.record;
  // Keys come into a memory through sessions, and sessions open when a map names this life. An earlier life that began
  // empty and only received maps of the life before has an epoch, and no keys.
  fresh_ = record_.unnamed;

  const index::Mended mended = protocol_.mend(geometry_, memory_, rows_done("repairs the table that it found"));
  repaired_ = mended.operations;
  log(repaired_ > 0, mended.what);
  for (const std::string& what : mended.left) log(true, "left as it is, with its locks: " + what);
  verify();
  return {};
}

// Reads everything, and rebuilds the heap from it: what no entry points to is marked free, and any client that asks may
// have it. Where it is unknown what is in use, nothing more becomes free.
void MemoryNode::verify() {
  const base::Nanos begun = responder_.now();
  base::Nanos told = begun;
  const auto rebuild = [this](const FoundSegment& found, const Audit& so_far) {
    segments_.take_up(found, so_far.reach_known());
  };
  const auto progress = [&](std::uint64_t done, std::uint64_t of) {
    if (options_.progress) options_.progress("looks through the memory that it found", done, of);
    if (responder_.now() - told < kProgress) return;
    told = responder_.now();
    log(false,
        "looks through the memory that it found: " + std::to_string(done) + " of " + std::to_string(of) + " bytes");
  };
  std::vector<bool> used(geometry_.marks(), false);
  const auto use = [&](const index::Sighting& sighting) {
    if (!used.empty()) used[geometry_.mark_of(sighting.row % geometry_.rows_per_table())] = true;
  };
  const Audit audit = audit_regions(geometry_, memory_, record_.table_seed, record_.pool_secret,
                                    {.visit = use, .segment = rebuild, .progress = progress});
  // Clears marks of rows that are certain to be empty now: so scans are quick again.
  for (std::uint64_t mark = 0; mark < used.size(); ++mark) {
    if (!used[mark] && (!audit.reach_known() || audit.damage() > 0)) continue;
    base::store(region(layout::kTable) + geometry_.mark_offset(mark), used[mark] ? layout::MarkWord::kSetOnce : 0);
  }
  segments_.all_written();
  if (geometry_.shape().served == nullptr) settle_counters(audit.table.keys, audit.table.bytes);
  defects_ = audit.damage();
  verification_ = responder_.now() - begun;
  std::size_t logged = 0;
  for (const Finding& finding : audit.findings) {
    if (kind_of(finding.wrong).damage && logged++ < kDefectsLogged) log(true, finding.what);
  }
  log(defects_ > 0, "took up the memory of incarnation " + std::to_string(record_.incarnation) + ": " +
                        std::to_string(audit.table.keys) + " keys in " + std::to_string(audit.table.rows) + " rows, " +
                        std::to_string(audit.table.extents) + " of them in the heap, " + std::to_string(defects_) +
                        " defects");
}

// Corrects the slots' counters. They are net figures: only their sum means something. Nobody writes them now.
void MemoryNode::settle_counters(std::uint64_t keys, std::uint64_t bytes) {
  const std::uint64_t slots = geometry_.max_sessions * geometry_.slots_per_session;
  std::uint64_t idle = slots;
  for (std::uint64_t i = slots; i-- > 0;) {
    const auto slot = base::load<OperationSlot>(slot_at(i));
    keys -= slot.keys;
    bytes -= slot.bytes;
    if (slot.holder == 0) idle = i;
    const base::Bytes words = base::bytes_of(slot);
    if (places_ == 0 && std::any_of(words.begin(), words.end(), [](std::byte b) { return b != std::byte{0}; })) {
      places_ = static_cast<std::uint32_t>(i / geometry_.slots_per_session) + 1;
    }
  }
  if ((keys == 0 && bytes == 0) || idle == slots) return;
  log(true, "the operation slots counted " + std::to_string(static_cast<std::int64_t>(-keys)) + " keys and " +
                std::to_string(static_cast<std::int64_t>(-bytes)) + " bytes more than there are: set right");
  auto slot = base::load<OperationSlot>(slot_at(idle));
  slot.keys += keys;
  slot.bytes += bytes;
  base::store(slot_at(idle), slot);
  places_ = std::max(places_, static_cast<std::uint32_t>(idle / geometry_.slots_per_session) + 1);
}

}  // namespace farpool::node
