// SPDX-License-Identifier: Apache-2.0
#include "layout/geometry.h"

#include <algorithm>
#include <bit>
#include <string>

#include "layout/directory.h"
#include "layout/lease.h"
#include "layout/operation_slot.h"

namespace farpool::layout {
namespace {

using base::Code;
using base::Status;

constexpr std::uint64_t kMinSegment = 256 << 10;
constexpr std::uint64_t kMaxSegment = 2 << 20;
// Every client takes segments of its own for each size of block that it uses: many small ones waste less than few large
// ones.
constexpr std::uint64_t kWantedSegments = 1024;
constexpr std::uint64_t kMinRowsPerTable = 8;
constexpr std::uint64_t kMinSegments = 8;  // the largest value fits one run of five small segments
constexpr std::uint64_t kMostSlots = 256, kUsualSlots = 64, kLeastSlots = 16;
constexpr std::uint64_t kMaxMemory = 1ull << 52;

Status invalid(std::string message) { return {Code::invalid_argument, std::move(message)}; }

// The shape of the table: what the pool's spec says, and a forged superblock may get wrong.
Status check_shape(Protocol protocol, const TableFigures& figures, std::uint64_t tables) {
  if (!is_known(protocol)) return invalid("this version knows no such index protocol");
  const Shape& shape = shape_of(protocol);
  if (!std::has_single_bit(tables) || tables > shape.most_tables) {
    return invalid(std::to_string(tables) + " tables are not possible: use " +
                   (shape.most_tables > 1 ? "a power of two up to " + std::to_string(shape.most_tables)
                                          : "1, as tables of " + std::string(shape.name) + " are not split"));
  }
  return shape.check(figures);
}

// As many operation slots for a session as its pipelines can use, where the memory has room for them: a sixty-fourth of
// it for many, a sixteenth for a few.
std::uint64_t fitting_slots(const GeometryRequest& request) {
  std::uint64_t slots = kMostSlots;
  const auto fits = [&request](std::uint64_t count) {
    const std::uint64_t most = request.memory_bytes / (count > kUsualSlots ? 64 : 16);
    return request.max_sessions * count * sizeof(OperationSlot) <= most;
  };
  while (slots > kLeastSlots && !fits(slots)) slots /= 2;
  return slots;
}

}  // namespace

base::Result<Geometry> plan_geometry(const GeometryRequest& request) {
  Geometry g;
  g.protocol = request.protocol;
  g.tables = request.tables;
  TableFigures figures{request.entry_bytes, request.entries_per_row, request.rows_per_lock};
  if (is_known(g.protocol) && g.shape().fixed != nullptr) figures = *g.shape().fixed;
  if (Status status = check_shape(g.protocol, figures, g.tables); !status.ok()) return status;
  g.entry_bytes = figures.entry_bytes;
  g.entries_per_row = figures.entries_per_row;
  g.rows_per_lock = figures.rows_per_lock;
  if (request.memory_bytes % kPage != 0 || request.memory_bytes > kMaxMemory) {
    return invalid("memory of " + std::to_string(request.memory_bytes) + " bytes is not possible: use a multiple of " +
                   std::to_string(kPage) + " of at most " + std::to_string(kMaxMemory));
  }
  if (request.table_percent < 1 || request.table_percent > 90) {
    return invalid("a table of " + std::to_string(request.table_percent) + " percent is not possible: use 1 to 90");
  }
  if (request.max_sessions < 1 || request.max_sessions > 1 << 20 || request.slots_per_session > 1024) {
    return invalid("sessions " + std::to_string(request.max_sessions) + " with " +
                   std::to_string(request.slots_per_session) +
                   " slots each are not possible: use 1 to 1048576 sessions with 1 to 1024 slots");
  }
  if (request.max_lock_bytes % 8 != 0) {
    return invalid("a lock region of " + std::to_string(request.max_lock_bytes) +
                   " bytes is not possible: use a multiple of 8");
  }

  g.memory_bytes = request.memory_bytes;
  g.max_sessions = request.max_sessions;
  g.slots_per_session = request.slots_per_session == 0 ? fitting_slots(request) : request.slots_per_session;
  if (g.shape().served != nullptr) g.slots_per_session = 1;

  g.rows = g.memory_bytes / 100 * request.table_percent / g.row_bytes();
  g.rows = g.shape().served != nullptr ? g.shape().served->rows(g.rows) : g.rows - g.rows % g.tables;
  const std::uint64_t words = (g.locks() + kLocksPerWord - 1) / kLocksPerWord;
  const std::uint64_t lock_words = request.max_lock_bytes == 0 ? words : std::min(words, request.max_lock_bytes / 8);
  g.lock_bits = lock_words == words ? g.locks() : lock_words * kLocksPerWord;

  const std::uint64_t bytes[kHeap] = {kPage,           g.max_sessions * g.slots_per_session * sizeof(OperationSlot),
                                      kLeaseWords * 8, lock_words * 8,
                                      g.table_bytes(), directory_bytes(g.tables)};
  std::uint64_t end = 0;
  for (std::uint32_t id = kSuperblock; id < kHeap; ++id) {
    g.region[id] = {end, bytes[id]};
    end = base::round_up(end + bytes[id], kPage);
  }
  const std::uint64_t left = g.memory_bytes > end + kPage ? g.private_page() - end : 0;
  g.segment_bytes = kMaxSegment;
  while (g.segment_bytes > kMinSegment && left / g.segment_bytes < kWantedSegments) g.segment_bytes /= 2;
  g.segments = left / g.segment_bytes;
  g.region[kHeap] = {end, g.segments * g.segment_bytes};

  if (g.rows < 2 * g.rows_per_lock || g.rows < 64 || g.rows_per_table() < kMinRowsPerTable ||
      g.rows > g.shape().most_rows) {
    return invalid("memory of " + std::to_string(g.memory_bytes) + " bytes leaves " + std::to_string(g.rows) +
                   " rows for " + (g.tables == 1 ? "the table" : std::to_string(g.tables) + " tables") + ", " +
                   (g.rows < 1 << 20 ? "too few: lend more memory or raise the table's percentage"
                                     : "too many: lower the table's percentage"));
  }
  if (g.segments < kMinSegments) {
    return invalid("memory of " + std::to_string(g.memory_bytes) + " bytes leaves " + std::to_string(left) +
                   " bytes for the heap, less than " + std::to_string(kMinSegments * kMinSegment) +
                   ": lend more memory, lower the table's percentage, or allow fewer sessions");
  }
  return g;
}

base::Status check_geometry(const Geometry& g) {
  const TableFigures figures{g.entry_bytes, g.entries_per_row, g.rows_per_lock};
  if (Status status = check_shape(g.protocol, figures, g.tables); !status.ok()) return status;
  if (g.memory_bytes > kMaxMemory || g.memory_bytes < kPage || g.memory_bytes % kPage != 0)
    return invalid("impossible memory size");
  // Bounds first, so that no product below can overflow.
  if (g.rows < 2 || g.rows % g.tables != 0 || g.rows_per_table() < 2 || g.rows > kMaxMemory / g.row_bytes() ||
      g.rows > g.shape().most_rows)
    return invalid("impossible number of rows");
  if (g.shape().served != nullptr && (g.shape().served->rows(g.rows) != g.rows || g.slots_per_session != 1)) {
    return invalid("impossible number of rows or slots of a table that its memory node serves");
  }
  if (g.lock_bits < 1 || g.lock_bits > g.locks()) return invalid("impossible number of lock bits");
  if (g.max_sessions < 1 || g.max_sessions > 1 << 20 || g.slots_per_session < 1 || g.slots_per_session > 1024) {
    return invalid("impossible number of sessions or slots");
  }
  if (!std::has_single_bit(g.segment_bytes) || g.segment_bytes < kMinSegment || g.segment_bytes > kMaxSegment ||
      g.segments < 1 || g.segments > kMaxMemory / g.segment_bytes) {
    return invalid("impossible segments");
  }
  const std::uint64_t bytes[kRegions] = {kPage,
                                         g.max_sessions * g.slots_per_session * sizeof(OperationSlot),
                                         kLeaseWords * 8,
                                         (g.lock_bits + kLocksPerWord - 1) / kLocksPerWord * 8,
                                         g.table_bytes(),
                                         directory_bytes(g.tables),
                                         g.segments * g.segment_bytes};
  std::uint64_t end = 0;
  for (std::uint32_t id = 0; id < kRegions; ++id) {
    const Span& span = g.region[id];
    if (span.offset % kPage != 0 || span.offset < end || span.bytes != bytes[id] || span.offset > g.private_page() ||
        span.bytes > g.private_page() - span.offset) {
      return invalid("region " + std::to_string(id) + " does not lie where it can");
    }
    end = span.offset + span.bytes;
  }
  return {};
}

}  // namespace farpool::layout
