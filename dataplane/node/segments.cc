// SPDX-License-Identifier: Apache-2.0
#include "node/segments.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <optional>

#include "fabric/words.h"
#include "layout/extent.h"
#include "layout/regions.h"
#include "layout/segment.h"

namespace farpool::node {
namespace {

constexpr std::uint64_t kKeptForReplacements = 16;  // 1/16 of the segments
// A stretch is cleared for 1/kClearing of a lease, and for another 1/kForgotten after a client has last asked for the
// run.
constexpr base::Nanos kClearing = 2, kForgotten = 8;

}  // namespace

Segments::Segments(const layout::Geometry& geometry, base::MutableBytes memory, base::Nanos lease)
    : geometry_(geometry),
      memory_(memory),
      lease_(lease),
      largest_class_(layout::largest_class(geometry.segment_bytes)),
      ledger_(geometry.segments),
      written_(geometry.segments, false),
      free_blocks_([this](std::uint64_t first, std::uint64_t size_class) { return free_blocks(first, size_class); }) {}

bool Segments::is_possible(const layout::AllocateSegmentsRequest& request) const {
  return request.size_class == layout::kRun || (request.count == 1 && request.size_class <= largest_class_);
}

layout::AllocateSegmentsReply Segments::grant(const Caller& caller, const layout::AllocateSegmentsRequest& request,
                                              const Moment& at) {
  if (cleared(at.now).count == 0) ledger_.end_clearing(geometry_.segment_bytes, free_blocks_);
  // The stretch that is being cleared comes last.
  const auto adopt = [&](bool anywhere) -> std::optional<layout::AllocateSegmentsReply> {
    if (request.size_class == layout::kRun) return std::nullopt;
    const auto adopted = ledger_.adopt(request.size_class, caller.session, [&](std::uint64_t first) {
      return (anywhere || !ledger_.cleared().overlaps(first, 1)) && free_blocks(first, request.size_class) > 0;
    });
    if (!adopted) return std::nullopt;
    write_header(adopted->first, caller, request.size_class, 1);
    return layout::AllocateSegmentsReply{.first = adopted->first, .adopted = adopted->doubted ? 2u : 1u};
  };
  if (const auto adopted = adopt(false)) return *adopted;
  const SegmentLedger::Counts& segments = ledger_.counts();
  const std::uint64_t kept = request.replaces != 0 ? 0 : geometry_.segments / kKeptForReplacements;
  const auto granted = [&](bool anywhere) -> std::optional<std::uint64_t> {
    if (segments.free < kept || segments.free - kept < request.count) return std::nullopt;
    return ledger_.grant(request.count, request.size_class, caller.session, anywhere);
  };
  std::optional<std::uint64_t> first = granted(false);
  if (!first) {
    settle(at);
    first = granted(false);
  }
  if (!first && ledger_.cleared().count > 0) {
    if (const auto adopted = adopt(true)) return *adopted;
    if (request.replaces != 0) first = granted(true);
  }
  if (!first) {
    ++refusals_;
    if (request.count > 1) look_for_stretch(request.count, kept, at.now);
    const std::uint64_t coming = segments.free + segments.resting;
    const bool soon = segments.resting > 0 && request.count > 0 && coming >= kept && coming - kept >= request.count;
    scarce_until_ = at.now + lease_;
    if (request.replaces != 0 && !soon) {
      spent_until_ = scarce_until_;
      // A run finds none because they are not adjacent. New keys that take single segments are not in its way.
      if (request.in_vain != 0 && request.count == 1) dry_until_ = scarce_until_;
    }
    return {.status = soon ? 2u : 1u};
  }
  zero(*first, request.count);
  write_header(*first, caller, request.size_class, request.count);
  return {.status = 0, .first = *first};
}

layout::AdoptSegmentReply Segments::bequeath(const Caller& caller, const layout::AdoptSegmentRequest& request) {
  if (request.run == layout::AdoptSegmentRequest::kSparse) {
    const auto first = ledger_.adopt_sparse(request.size_class, caller.session, geometry_.segment_bytes, free_blocks_);
    if (!first) return {.status = 1};
    const std::uint64_t size_class = ledger_.size_class_of(*first), run = ledger_.run_of(*first);
    write_header(*first, caller, size_class, run);
    return {.first = *first, .run = run | layout::AdoptSegmentReply::kOrphan, .size_class = size_class};
  }
  const auto segment = ledger_.inherit(request.size_class, request.run, caller.session);
  if (!segment) return {.status = 1};
  write_header(segment->first, caller, segment->size_class, segment->run);
  return {.first = segment->first, .run = segment->run, .size_class = segment->size_class};
}

layout::ReturnSegmentsReply Segments::take_back(const Caller& caller, const layout::ReturnSegmentsRequest& request,
                                                std::uint64_t era) {
  const bool taken = request.orphan != 0 ? ledger_.orphan(request.first, request.count, caller.session)
                                         : ledger_.give_back(request.first, request.count, caller.session, era);
  if (!taken) return {.status = 1};
  if (request.orphan == 0) mark_all_free(request.first, request.count);
  // Without an owner, but with a class: blocks in it live on, or a session of an older era may still read them.
  write_header(request.first, {}, ledger_.size_class_of(request.first), request.count);
  return {.status = 0};
}

void Segments::settle(const Moment& at) {
  ledger_.rest_empty_orphans(at.era, [this](std::uint64_t first, std::uint64_t size_class) {
    return free_blocks(first, size_class) == layout::segment_shape(size_class, geometry_.segment_bytes).blocks;
  });
  ledger_.settle(at.safe_era, [this](std::uint64_t first, std::uint64_t count) { clear_headers(first, count); });
}

layout::Pressure Segments::pressure(base::Nanos now) const {
  if (now < dry_until_) return layout::Pressure::dry;
  if (now < spent_until_) return layout::Pressure::spent;
  return now < scarce_until_ ? layout::Pressure::scarce : layout::Pressure::none;
}

layout::Stretch Segments::cleared(base::Nanos now) const {
  return now < cleared_until_ ? ledger_.cleared() : layout::Stretch{};
}

void Segments::look_for_stretch(std::uint64_t count, std::uint64_t kept, base::Nanos now) {
  if (cleared(now).count < count) {
    const auto stretch = ledger_.choose_stretch(count, kept, geometry_.segment_bytes, free_blocks_);
    if (!stretch) return;
    ledger_.clear(*stretch, geometry_.segment_bytes, free_blocks_);
    clearing_since_ = now;
  }
  cleared_until_ = std::min(clearing_since_ + lease_ / kClearing, now + lease_ / kForgotten);
}

std::uint64_t Segments::used(std::uint64_t keys, std::uint64_t bytes) const {
  const std::uint64_t taken = (geometry_.segments - ledger_.counts().free) * geometry_.segment_bytes;
  if (keys == 0) return 0;
  const std::uint64_t each = layout::kExtentHeader + bytes / keys;
  const std::uint64_t size_class = layout::size_class_for(each, geometry_.segment_bytes);
  return std::min(taken, keys * (size_class == layout::kRun ? each : layout::block_bytes(size_class)));
}

void Segments::write_header(std::uint64_t first, const Caller& owner, std::uint64_t size_class, std::uint64_t run) {
  const layout::SegmentHeader header{
      .owner = owner.session, .size_class = size_class, .run = run, .incarnation = owner.incarnation};
  // The length goes first when it is removed and comes last when it is given, after whatever word the process is
  // killed: a segment without a length is free.
  const auto put_run = [&] {
    fabric::word_at(segment(first) + offsetof(layout::SegmentHeader, run)).store(run, std::memory_order_release);
  };
  if (run == 0) put_run();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::size_t at = 0; at < sizeof header; at += 8) {
    if (at == offsetof(layout::SegmentHeader, run)) continue;
    fabric::word_at(segment(first) + at)
        .store(base::load<std::uint64_t>(base::bytes_of(header).data() + at), std::memory_order_release);
  }
  if (run != 0) put_run();
}

// No client frees a block of a segment that was given back whole.
void Segments::mark_all_free(std::uint64_t first, std::uint64_t run) {
  const std::uint64_t size_class = ledger_.size_class_of(first);
  const layout::SegmentShape shape = layout::segment_shape(size_class, run * geometry_.segment_bytes);
  for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
    fabric::word_at(segment(first) + sizeof(layout::SegmentHeader) + word * 8)
        .store(layout::blocks_of_word(shape, word), std::memory_order_release);
  }
}

// Clears headers only when no client reads the run any more: within a run, a later segment's header lies in the middle
// of a value. The first header goes last, because otherwise the rest of the value would pass for headers after a kill.
void Segments::clear_headers(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t index = first + count; index-- > first;) write_header(index, {}, 0, 0);
}

void Segments::zero(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t index = first; index < first + count; ++index) {
    if (written_[index]) {
      std::byte* at = segment(index);
      for (std::uint64_t i = 0; i < geometry_.segment_bytes; i += 8)
        fabric::word_at(at + i).store(0, std::memory_order_relaxed);
    }
    written_[index] = true;
  }
}

// Only reads: clients' atomics mark freed blocks.
std::uint64_t Segments::free_blocks(std::uint64_t first, std::uint64_t size_class) const {
  const layout::SegmentShape shape = layout::segment_shape(size_class, geometry_.segment_bytes);
  std::uint64_t count = 0;
  for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
    std::byte* at = segment(first) + sizeof(layout::SegmentHeader) + word * 8;
    count += static_cast<std::uint64_t>(std::popcount(fabric::word_at(at).load(std::memory_order_relaxed)));
  }
  return count;
}

void Segments::take_up(const FoundSegment& found, bool in_use_is_known) {
  using Kind = FoundSegment::Kind;
  if (found.kind == Kind::free) return;
  if (found.kind == Kind::damaged) return ledger_.set_aside(found.first, found.run);
  bool whole = true;
  for (std::uint64_t word = 0; word < found.shape.bitmap_words; ++word) {
    const std::uint64_t blocks = layout::blocks_of_word(found.shape, word);
    const std::uint64_t free = in_use_is_known ? blocks & ~found.in_use[word] : found.marked[word];
    whole = whole && free == blocks;
    base::store(segment(found.first) + sizeof(layout::SegmentHeader) + word * 8, free);
  }
  if (whole) return clear_headers(found.first, found.run);
  write_header(found.first, {}, found.size_class, found.run);
  ledger_.restore_orphan(found.first, found.run, found.size_class);
}

}  // namespace farpool::node
