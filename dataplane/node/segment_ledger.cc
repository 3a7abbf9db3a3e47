// SPDX-License-Identifier: Apache-2.0
#include "node/segment_ledger.h"

#include <algorithm>

#include "base/check.h"
#include "layout/segment.h"

namespace farpool::node {
namespace {
constexpr std::size_t kLooks = 64;            // at orphans, per call: the control thread must not stand still
constexpr std::uint64_t kDoubted = ~0ull;     // for a number of deaths
constexpr std::uint64_t kStretchLooks = 256;  // at segments, per look for a stretch

// Takes out the first segment with room; moves the segments that it looked at before to the end.
std::optional<std::uint64_t> take_with_room(std::deque<std::uint64_t>& segments,
                                            const std::function<bool(std::uint64_t)>& has_room) {
  for (std::size_t looks = std::min(kLooks, segments.size()); looks > 0; --looks) {
    const std::uint64_t first = segments.front();
    segments.pop_front();
    if (has_room(first)) return first;
    segments.push_back(first);
  }
  return std::nullopt;
}
}  // namespace

SegmentLedger::SegmentLedger(std::uint64_t segments) : segments_(segments) {
  if (segments > 0) holes_[0] = segments;
  counts_.free = segments;
}

void SegmentLedger::add_hole(std::uint64_t first, std::uint64_t count) {
  auto after = holes_.lower_bound(first);
  if (after != holes_.begin()) {
    const auto before = std::prev(after);
    FARPOOL_CHECK(before->first + before->second <= first);
    if (before->first + before->second == first) {
      first = before->first;
      count += before->second;
      holes_.erase(before);
    }
  }
  if (after != holes_.end() && first + count == after->first) {
    count += after->second;
    holes_.erase(after);
  }
  holes_[first] = count;
}

void SegmentLedger::take_from_hole(std::map<std::uint64_t, std::uint64_t>::iterator hole, std::uint64_t first,
                                   std::uint64_t count) {
  const auto [begin, length] = *hole;
  holes_.erase(hole);
  if (first > begin) holes_[begin] = first - begin;
  if (first + count < begin + length) holes_[first + count] = begin + length - first - count;
}

std::optional<std::uint64_t> SegmentLedger::find_free(std::uint64_t count, bool anywhere) const {
  std::uint64_t first = 0, length = 0;
  const auto consider = [&](std::uint64_t begin, std::uint64_t end) {
    if (end < begin + count) return;
    if (count > 1) {  // the last that fits
      length = end - begin;
      first = end - count;
    } else if (length == 0 || end - begin < length) {
      length = end - begin;
      first = begin;
    }
  };
  for (const auto& [begin, count_of_hole] : holes_) {
    const std::uint64_t end = begin + count_of_hole;
    if (anywhere || !cleared_.overlaps(begin, count_of_hole)) {
      consider(begin, end);
    } else {
      if (begin < cleared_.first) consider(begin, cleared_.first);
      if (cleared_.first + cleared_.count < end) consider(cleared_.first + cleared_.count, end);
    }
    if (count == 1 && length == 1) break;
  }
  return length > 0 ? std::optional(first) : std::nullopt;
}

// Returns the last such place. A long hole has one among its last `count` places.
std::optional<std::uint64_t> SegmentLedger::find_packed(std::uint64_t count) const {
  std::size_t looks = kLooks;
  for (auto hole = holes_.rbegin(); hole != holes_.rend() && looks > 0; ++hole) {
    if (hole->second < count) continue;
    --looks;
    const std::uint64_t begin = hole->first, end = begin + hole->second;
    std::uint64_t row_begin = begin, row_end = end;
    while (row_begin > 0 && begin - row_begin < kStretchLooks) {
      const std::uint64_t before = begin_of(row_begin - 1);
      if (stays(segments_[before], count)) break;
      row_begin = before;
    }
    while (row_end < segments_.size() && row_end - end < kStretchLooks && !stays(segments_[row_end], count))
      row_end += std::max<std::uint64_t>(1, segments_[row_end].run);
    const std::uint64_t most = (row_end - row_begin) / count;
    for (std::uint64_t at = end - count, tries = 0; tries < count; --at, ++tries) {
      if ((at - row_begin) / count + 1 + (row_end - at - count) / count == most) return at;
      if (at == begin) break;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> SegmentLedger::grant(std::uint64_t count, std::uint64_t size_class, std::uint64_t session,
                                                  bool anywhere) {
  if (count == 0 || count > segments_.size()) return std::nullopt;
  std::optional<std::uint64_t> found;
  if (count < cleared_.count) found = find_free(count, false);
  if (count > 1 && count >= cleared_.count) found = find_packed(count);
  if (!found && (anywhere || count >= cleared_.count)) found = find_free(count, true);
  if (!found) return std::nullopt;
  const std::uint64_t first = *found;
  if (count > 1 && cleared_.overlaps(first, count)) cleared_ = {};
  take_from_hole(hole_of(first, count), first, count);
  for (std::uint64_t i = 0; i < count; ++i) segments_[first + i].state = State::rest_of_run;
  segments_[first].size_class = static_cast<std::uint8_t>(size_class);
  segments_[first].run = static_cast<std::uint32_t>(count);
  counts_.free -= count;
  own(first, session);
  return first;
}

std::optional<SegmentLedger::Adopted> SegmentLedger::adopt(std::uint64_t size_class, std::uint64_t session,
                                                           const std::function<bool(std::uint64_t)>& has_room) {
  if (const auto orphans = orphans_.find(size_class); orphans != orphans_.end()) {
    if (const auto first = take_with_room(orphans->second, has_room)) {
      counts_.orphaned -= segments_[*first].run;
      own(*first, session);
      return Adopted{.first = *first};
    }
  }
  const auto dead = dead_.find({size_class, 1});
  if (dead == dead_.end()) return std::nullopt;
  const auto first = take_with_room(dead->second, has_room);
  if (!first) return std::nullopt;
  if (dead->second.empty()) dead_.erase(dead);
  from_the_dead(*first);
  own(*first, session);
  segments_[*first].deaths = kDoubted;
  return Adopted{.first = *first, .doubted = true};
}

std::optional<std::uint64_t> SegmentLedger::adopt_sparse(std::uint64_t except, std::uint64_t session,
                                                         std::uint64_t segment_bytes, const FreeBlocks& free_blocks) {
  if (const auto in_the_way = adopt_in_stretch(except, session)) return in_the_way;
  std::optional<std::uint64_t> best;
  std::uint64_t best_used = 875;  // of a thousand
  for (auto& [size_class, orphans] : orphans_) {
    if (size_class == except || size_class == layout::kRun) continue;
    const std::uint64_t blocks = layout::segment_shape(size_class, segment_bytes).blocks;
    for (std::size_t looks = std::min(kLooks, orphans.size()); looks > 0; --looks) {
      const std::uint64_t first = orphans.front();
      orphans.pop_front();
      orphans.push_back(first);
      const std::uint64_t used = 1000 * (blocks - std::min(blocks, free_blocks(first, size_class))) / blocks;
      if (used > best_used || (best && used == best_used)) continue;
      best = first;
      best_used = used;
    }
  }
  if (!best) return std::nullopt;
  std::erase(orphans_.at(segments_[*best].size_class), *best);
  counts_.orphaned -= segments_[*best].run;
  own(*best, session);
  return best;
}

// A run as long as the stretch, or longer, has nowhere to go.
std::optional<std::uint64_t> SegmentLedger::adopt_in_stretch(std::uint64_t except, std::uint64_t session) {
  if (cleared_.count == 0) return std::nullopt;
  for (std::uint64_t at = begin_of(cleared_.first); at < cleared_.first + cleared_.count; ++at) {
    const Segment& segment = segments_[at];
    if (segment.state != State::orphan) continue;
    if (segment.size_class == layout::kRun ? segment.run >= cleared_.count : segment.size_class == except) continue;
    std::erase(orphans_.at(segment.size_class), at);
    counts_.orphaned -= segment.run;
    own(at, session);
    return at;
  }
  return std::nullopt;
}

bool SegmentLedger::stays(const Segment& segment, std::uint64_t count) {
  if (segment.state == State::free || segment.state == State::resting) return false;
  return segment.state == State::damaged || segment.state == State::dead ||
         (segment.size_class == layout::kRun && segment.run >= count);
}

std::uint64_t SegmentLedger::begin_of(std::uint64_t index) const {
  while (index > 0 && segments_[index].state == State::rest_of_run) --index;
  return index;
}

std::vector<SegmentLedger::Part> SegmentLedger::parts_of(std::uint64_t begin, std::uint64_t end, std::uint64_t count,
                                                         std::uint64_t segment_bytes,
                                                         const FreeBlocks& free_blocks) const {
  std::vector<Part> parts;
  for (std::uint64_t at = begin; at < end; at += parts.back().length) {
    const Segment& segment = segments_[at];
    Part part{.first = at, .length = std::max<std::uint64_t>(1, segment.run), .size_class = segment.size_class};
    part.free = segment.state == State::free || segment.state == State::resting;
    part.stays = stays(segment, count);
    part.stuck = segment.stuck && !part.free;
    if (!part.free && !part.stays) {
      part.blocks = layout::segment_shape(segment.size_class, segment_bytes * part.length).blocks;
      part.room = std::min(part.blocks, free_blocks(at, segment.size_class));
      part.used = part.blocks - part.room;
    }
    parts.push_back(part);
  }
  return parts;
}

// Chooses the last one among stretches with equal use, because runs are granted from the far end, too.
std::pair<std::size_t, std::size_t> SegmentLedger::least_used(const std::vector<Part>& parts, std::uint64_t count,
                                                              bool packed) {
  // Segments before and behind each part that are adjacent to it and may be part of a stretch.
  std::vector<std::uint64_t> before(parts.size() + 1, 0), behind(parts.size() + 1, 0);
  const auto bars = [&parts](std::size_t i) { return parts[i].stays || parts[i].stuck; };
  for (std::size_t i = 0; i < parts.size(); ++i) before[i + 1] = bars(i) ? 0 : before[i] + parts[i].length;
  for (std::size_t i = parts.size(); i-- > 0;) behind[i] = bars(i) ? 0 : behind[i + 1] + parts[i].length;
  std::pair<std::size_t, std::size_t> best{0, 0};
  double best_used = 0;  // in segments
  for (std::size_t from = 0; from < parts.size(); ++from) {
    const std::uint64_t in_a_row = before[from] + behind[from], rest = behind[from] - std::min(count, behind[from]);
    if (packed && before[from] / count + rest / count + 1 < in_a_row / count) continue;
    double used = 0;
    std::uint64_t length = 0;
    std::size_t to = from;
    for (; to < parts.size() && length < count && !bars(to); ++to) {
      length += parts[to].length;
      used += static_cast<double>(parts[to].length * parts[to].used) / static_cast<double>(parts[to].blocks);
    }
    if (length < count || (best.second > 0 && used > best_used)) continue;
    best = {from, to};
    best_used = used;
  }
  return best;
}

bool SegmentLedger::fit_elsewhere(const std::vector<Part>& parts, std::pair<std::size_t, std::size_t> inside,
                                  const layout::Stretch& stretch, std::uint64_t kept,
                                  std::uint64_t segment_bytes) const {
  std::map<std::uint64_t, std::int64_t> homeless;  // blocks, minus the room in others of the size class
  std::uint64_t wanted = 0, free = counts_.free + counts_.resting;
  std::uint64_t runs = 0, longest = 1;  // that move
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const bool is_inside = inside.first <= i && i < inside.second;
    if (part.free) {
      if (is_inside) free -= part.length;
    } else if (part.size_class == layout::kRun) {
      if (!is_inside || part.used == 0) continue;
      wanted += part.length;
      ++runs;
      longest = std::max(longest, part.length);
    } else if (!part.stays) {
      homeless[part.size_class] +=
          is_inside ? static_cast<std::int64_t>(part.used) : -static_cast<std::int64_t>(part.room);
    }
  }
  for (const auto& [size_class, blocks] : homeless) {
    const auto each = static_cast<std::int64_t>(layout::segment_shape(size_class, segment_bytes).blocks);
    if (blocks > 0) wanted += static_cast<std::uint64_t>((blocks + each - 1) / each);
  }
  std::uint64_t rooms = 0;
  for (const auto& [first, length] : holes_) {
    if (!stretch.overlaps(first, length)) rooms += length / longest;
  }
  return wanted + kept <= free && runs <= rooms;
}

std::optional<layout::Stretch> SegmentLedger::choose_stretch(std::uint64_t count, std::uint64_t kept,
                                                             std::uint64_t segment_bytes,
                                                             const FreeBlocks& free_blocks) {
  const std::uint64_t total = segments_.size();
  if (count == 0 || count > total || count > kStretchLooks / 2) return std::nullopt;
  const std::uint64_t begin = begin_of(looked_for_stretch_ + count <= total ? looked_for_stretch_ : 0);
  const std::uint64_t end = std::min(total, begin + kStretchLooks);
  looked_for_stretch_ = end < total ? end - count : 0;
  const std::vector<Part> parts = parts_of(begin, end, count, segment_bytes, free_blocks);
  for (const bool packed : {true, false}) {
    const auto best = least_used(parts, count, packed);
    if (best.second == 0) continue;
    const layout::Stretch stretch{.first = parts[best.first].first, .count = count};
    if (fit_elsewhere(parts, best, stretch, kept, segment_bytes)) return stretch;
  }
  for (const Part& part : parts) segments_[part.first].stuck = false;
  return std::nullopt;
}

double SegmentLedger::used_in_stretch(std::uint64_t segment_bytes, const FreeBlocks& free_blocks) const {
  double used = 0;
  const std::uint64_t end = cleared_.first + cleared_.count;
  for (const Part& part : parts_of(begin_of(cleared_.first), end, cleared_.count, segment_bytes, free_blocks)) {
    if (!part.free) used += static_cast<double>(part.length * part.used) / static_cast<double>(part.blocks);
  }
  return used;
}

void SegmentLedger::clear(const layout::Stretch& stretch, std::uint64_t segment_bytes, const FreeBlocks& free_blocks) {
  cleared_ = stretch;
  used_before_ = used_in_stretch(segment_bytes, free_blocks);
}

void SegmentLedger::end_clearing(std::uint64_t segment_bytes, const FreeBlocks& free_blocks) {
  if (cleared_.count == 0) return;
  if (used_in_stretch(segment_bytes, free_blocks) >= used_before_) {
    for (std::uint64_t i = 0; i < cleared_.count; ++i) segments_[begin_of(cleared_.first + i)].stuck = true;
  }
  cleared_ = {};
}

std::map<std::uint64_t, SegmentLedger::Counts> SegmentLedger::counts_by_class() const {
  std::map<std::uint64_t, Counts> counts;
  for (const Segment& segment : segments_) {
    switch (segment.state) {
      case State::owned:
        counts[segment.size_class].owned += segment.run;
        break;
      case State::orphan:
        counts[segment.size_class].orphaned += segment.run;
        break;
      case State::dead:
        counts[segment.size_class].dead += segment.run;
        break;
      default:
        break;
    }
  }
  return counts;
}

void SegmentLedger::own(std::uint64_t first, std::uint64_t session) {
  Segment& segment = segments_[first];
  segment.state = State::owned;
  segment.session = session;
  segment.deaths = deaths_;
  segment.stuck = false;
  counts_.owned += segment.run;
}

void SegmentLedger::to_the_dead(std::uint64_t first, std::uint64_t left_by) {
  Segment& segment = segments_[first];
  segment.state = State::dead;
  segment.session = left_by;
  if (left_by != 0) left_by_[left_by] += segment.run;
  dead_[{segment.size_class, segment.run}].push_back(first);
  counts_.dead += segment.run;
}

std::uint64_t SegmentLedger::bury(std::uint64_t session) {
  const std::uint64_t before = counts_.dead;
  for (std::uint64_t first = 0; first < segments_.size(); ++first) {
    if (segments_[first].state != State::owned || segments_[first].session != session) continue;
    counts_.owned -= segments_[first].run;
    to_the_dead(first, session);
  }
  return counts_.dead - before;
}

void SegmentLedger::doubt() {
  ++deaths_;
  for (const auto& [size_class, orphans] : orphans_) {
    for (const std::uint64_t first : orphans) to_the_dead(first, 0);
  }
  counts_.orphaned = 0;
  orphans_.clear();
}

std::optional<SegmentLedger::Inherited> SegmentLedger::inherit(std::uint64_t size_class, std::uint64_t count,
                                                               std::uint64_t session) {
  auto found = dead_.find({size_class, count});
  if (found == dead_.end()) found = dead_.begin();
  if (found == dead_.end()) return std::nullopt;
  const std::uint64_t first = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) dead_.erase(found);
  from_the_dead(first);
  own(first, session);
  return Inherited{first, segments_[first].run, segments_[first].size_class};
}

void SegmentLedger::from_the_dead(std::uint64_t first) {
  counts_.dead -= segments_[first].run;
  const auto left = left_by_.find(segments_[first].session);
  if (left == left_by_.end()) return;
  left->second -= segments_[first].run;
  if (left->second == 0) left_by_.erase(left);
}

std::uint64_t SegmentLedger::left_by(std::uint64_t session) const {
  const auto left = left_by_.find(session);
  return left == left_by_.end() ? 0 : left->second;
}

std::map<std::uint64_t, std::uint64_t>::iterator SegmentLedger::hole_of(std::uint64_t first, std::uint64_t count) {
  auto after = holes_.upper_bound(first);
  FARPOOL_CHECK(count > 0 && after != holes_.begin());
  const auto hole = std::prev(after);
  FARPOOL_CHECK(first + count <= hole->first + hole->second);
  return hole;
}

void SegmentLedger::restore_orphan(std::uint64_t first, std::uint64_t count, std::uint64_t size_class) {
  take_from_hole(hole_of(first, count), first, count);
  for (std::uint64_t i = 0; i < count; ++i) segments_[first + i].state = State::rest_of_run;
  segments_[first] = {.state = State::orphan,
                      .size_class = static_cast<std::uint8_t>(size_class),
                      .run = static_cast<std::uint32_t>(count)};
  orphans_[size_class].push_back(first);
  counts_.free -= count;
  counts_.orphaned += count;
}

void SegmentLedger::set_aside(std::uint64_t first, std::uint64_t count) {
  take_from_hole(hole_of(first, count), first, count);
  for (std::uint64_t i = 0; i < count; ++i) segments_[first + i].state = State::damaged;
  counts_.free -= count;
  counts_.damaged += count;
}

bool SegmentLedger::is_granted(std::uint64_t first, std::uint64_t count, std::uint64_t session) const {
  return first < segments_.size() && segments_[first].state == State::owned && segments_[first].session == session &&
         segments_[first].run == count;
}

void SegmentLedger::rest(std::uint64_t first, std::uint64_t count, std::uint64_t era) {
  FARPOOL_CHECK(resting_.empty() || resting_.back().era <= era);
  segments_[first].state = State::resting;
  resting_.push_back({era, first, count});
  counts_.resting += count;
}

bool SegmentLedger::give_back(std::uint64_t first, std::uint64_t count, std::uint64_t session, std::uint64_t era) {
  if (!is_granted(first, count, session)) return false;
  counts_.owned -= count;
  rest(first, count, era);
  return true;
}

bool SegmentLedger::orphan(std::uint64_t first, std::uint64_t count, std::uint64_t session) {
  if (!is_granted(first, count, session)) return false;
  counts_.owned -= count;
  if (segments_[first].deaths != deaths_) {
    to_the_dead(first, 0);
    return true;
  }
  segments_[first].state = State::orphan;
  segments_[first].session = 0;
  orphans_[segments_[first].size_class].push_back(first);
  counts_.orphaned += count;
  return true;
}

std::size_t SegmentLedger::rest_empty_orphans(std::uint64_t era,
                                              const std::function<bool(std::uint64_t, std::uint64_t)>& wholly_free) {
  std::size_t rested = 0;
  for (auto& [size_class, orphans] : orphans_) {
    for (std::size_t looks = std::min(kLooks, orphans.size()); looks > 0; --looks) {
      const std::uint64_t first = orphans.front();
      orphans.pop_front();
      if (!wholly_free(first, size_class)) {
        orphans.push_back(first);
        continue;
      }
      counts_.orphaned -= segments_[first].run;
      rest(first, segments_[first].run, era);
      ++rested;
    }
  }
  return rested;
}

std::uint64_t SegmentLedger::settle(std::uint64_t safe_era,
                                    const std::function<void(std::uint64_t, std::uint64_t)>& told) {
  std::uint64_t freed = 0;
  while (!resting_.empty() && resting_.front().era < safe_era) {
    const Resting rested = resting_.front();
    resting_.pop_front();
    if (told) told(rested.first, rested.count);
    for (std::uint64_t i = 0; i < rested.count; ++i) segments_[rested.first + i] = {};
    add_hole(rested.first, rested.count);
    freed += rested.count;
  }
  counts_.resting -= freed;
  counts_.free += freed;
  return freed;
}

std::uint64_t SegmentLedger::largest_hole() const {
  std::uint64_t largest = 0;
  for (const auto& [first, count] : holes_) largest = std::max(largest, count);
  return largest;
}

}  // namespace farpool::node
