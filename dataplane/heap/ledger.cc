// SPDX-License-Identifier: Apache-2.0
#include "heap/ledger.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"

namespace farpool::heap {
namespace {

using base::Nanos;
using layout::kRun;

constexpr std::uint64_t kDemandTicks = 4;  // of demand: about what is in limbo while nobody hurries
constexpr std::uint64_t kReserve = 16;     // 1/kReserve of the blocks in use may be kept free for that
// 1/kKept of the blocks is left for replacements: with these alone a class goes on, if slowly, when no segment is
// available.
constexpr std::uint64_t kKept = 16;
constexpr std::uint64_t kSparse = 8;    // at least 1/kSparse of a segment is free when it is emptied
constexpr std::uint64_t kSurplus = 16;  // 1/kSurplus when it is given up while the node is short of segments
constexpr std::uint64_t kBitmapOffset = sizeof(layout::SegmentHeader);

std::uint64_t count_of(std::uint64_t bits) { return static_cast<std::uint64_t>(std::popcount(bits)); }

std::uint64_t word_of(base::Bytes bitmap, std::uint64_t word) {
  return base::load<std::uint64_t>(bitmap.data() + word * 8);
}

}  // namespace

SizeClass::SizeClass(std::uint64_t class_id, std::uint64_t segments, std::uint64_t segment_bytes)
    : id(class_id),
      run(segments),
      shape(layout::segment_shape(class_id, segment_bytes * segments)),
      segment_bytes_(segment_bytes) {}

// --- Segments

Segment& SizeClass::add(std::uint64_t first, Origin origin, std::uint64_t deaths) {
  const auto [entry, added] = segments_.try_emplace(first, Segment::Life{first, ++lives_}, shape.bitmap_words);
  FARPOOL_CHECK(added);
  Segment& segment = entry->second;
  segment.examined_ = origin == Origin::dead ? 0 : deaths + 1;
  if (origin == Origin::fresh) {  // else its bitmap says what is free
    for (std::size_t word = 0; word < segment.free_.size(); ++word)
      add_free(segment, word, layout::blocks_of_word(shape, word));
  }
  return segment;
}

void SizeClass::remove(std::uint64_t first) {
  const auto entry = segments_.find(first);
  Segment& segment = entry->second;
  unlink(segment);
  if (!segment.emptied_) free_count_ -= segment.free_count_;
  limbo_count_ -= segment.limbo_count_;
  if (segment.limbo_count_ > 0) limbo_.erase_if([&](const Limbo& limbo) { return limbo.first == first; });
  segments_.erase(entry);
}

Segment* SizeClass::find(std::uint64_t first) {
  const auto found = segments_.find(first);
  return found == segments_.end() ? nullptr : &found->second;
}

Segment* SizeClass::find(const Segment::Life& life) {
  Segment* const segment = find(life.first);
  return segment == nullptr || segment->life().number != life.number ? nullptr : segment;
}

std::vector<std::uint64_t> SizeClass::firsts() const {
  std::vector<std::uint64_t> firsts;
  firsts.reserve(segments_.size());
  for (const auto& [first, segment] : segments_) firsts.push_back(first);
  return firsts;
}

std::vector<std::uint64_t> SizeClass::next_few(std::size_t most) {
  std::vector<std::uint64_t> firsts;
  auto at = segments_.lower_bound(cursor_);
  for (std::size_t i = std::min(most, segments_.size()); i > 0; --i) {
    if (at == segments_.end()) at = segments_.begin();
    firsts.push_back(at->first);
    ++at;
  }
  if (!firsts.empty()) cursor_ = firsts.back() + 1;
  return firsts;
}

Block SizeClass::block_at(std::uint64_t first, std::uint64_t block) const {
  const std::uint64_t offset = first * segment_bytes_ + shape.first_block + block * shape.block_bytes;
  return {.units = offset / layout::kBlockUnit, .bytes = shape.block_bytes};
}

std::uint64_t SizeClass::bitmap_at(std::uint64_t first, std::uint64_t word) const {
  return first * segment_bytes_ + kBitmapOffset + word * 8;
}

bool SizeClass::has_emptied() const {
  return std::any_of(segments_.begin(), segments_.end(), [](const auto& one) { return one.second.emptied_; });
}

// --- Blocks

void SizeClass::unlink(Segment& segment) {
  if (segment.rank_ == kRanks) return;
  if (segment.next_ != nullptr) segment.next_->previous_ = segment.previous_;
  if (segment.previous_ != nullptr) {
    segment.previous_->next_ = segment.next_;
  } else {
    ranks_[segment.rank_] = segment.next_;
    if (segment.next_ == nullptr) ranked_ &= ~(1ull << segment.rank_);
  }
  segment.rank_ = kRanks;
}

// Updates the segment's rank; called when its number of free blocks, or of blocks in limbo, has changed.
void SizeClass::put_in_rank(Segment& segment) {
  const std::uint64_t used = shape.blocks - segment.unused();
  const bool none = segment.free_count_ == 0 || segment.emptied_;
  const std::size_t rank = none ? kRanks : used * kRanks / shape.blocks;
  if (rank == segment.rank_) return;
  unlink(segment);
  if (rank == kRanks) return;
  segment.rank_ = rank;
  segment.previous_ = nullptr;
  segment.next_ = std::exchange(ranks_[rank], &segment);
  if (segment.next_ != nullptr) segment.next_->previous_ = &segment;
  ranked_ |= 1ull << rank;
}

void SizeClass::add_free(Segment& segment, std::size_t word, std::uint64_t bits) {
  segment.free_[word] |= bits;
  segment.doubted_[word] &= ~bits;
  segment.hint_ = std::min(segment.hint_, word);
  segment.free_count_ += count_of(bits);
  if (!segment.emptied_) free_count_ += count_of(bits);
  put_in_rank(segment);
}

// Takes blocks in that are no longer out, whatever happened to them.
void SizeClass::take_in(Segment& segment, std::size_t word, std::uint64_t bits) {
  segment.out_count_ -= count_of(segment.out_[word] & bits);
  segment.out_[word] &= ~bits;
}

void SizeClass::add_limbo(Segment& segment, std::size_t word, std::uint64_t bits, std::uint64_t era) {
  segment.limbo_[word] |= bits;
  segment.doubted_[word] &= ~bits;
  take_in(segment, word, bits);
  segment.limbo_count_ += count_of(bits);
  limbo_count_ += count_of(bits);
  put_in_rank(segment);
  if (!limbo_.empty()) {
    Limbo& last = limbo_.back();
    if (last.era == limbo_era(era) && last.first == segment.first() && last.word == word) {
      last.bits |= bits;
      return;
    }
  }
  limbo_.push_back({limbo_era(era), segment.first(), static_cast<std::uint32_t>(word), bits});
}

void SizeClass::settle(std::uint64_t safe_era) {
  while (!limbo_.empty() && limbo_.front().era < safe_era) {
    const Limbo& over = limbo_.front();
    Segment& segment = segments_.at(over.first);
    segment.limbo_[over.word] &= ~over.bits;
    segment.limbo_count_ -= count_of(over.bits);
    limbo_count_ -= count_of(over.bits);
    add_free(segment, over.word, over.bits);
    limbo_.pop_front();
  }
}

std::uint64_t SizeClass::kept(Purpose purpose, layout::Pressure pressure) const {
  if (purpose == Purpose::replacement) return 0;
  // Blocks that come free go to clients that have run out of replacements.
  if (pressure == layout::Pressure::dry) return std::numeric_limits<std::uint64_t>::max();
  // A share of one segment's blocks; of all segments' blocks when no further segment comes.
  const std::uint64_t segments = pressure == layout::Pressure::spent ? segments_.size() : 1;
  return segments * shape.blocks / kKept;
}

std::optional<Block> SizeClass::take(Purpose purpose, std::uint64_t safe_era, layout::Pressure pressure) {
  settle(safe_era);
  if (!has_room(purpose, pressure)) return std::nullopt;
  full_for(purpose).found = false;
  waiting_since_ = 0;
  // Takes from the fullest segments, so that others become empty and can go back to the node.
  Segment& segment = *ranks_[static_cast<std::size_t>(std::bit_width(ranked_)) - 1];
  while (segment.free_[segment.hint_] == 0) ++segment.hint_;
  std::uint64_t& bits = segment.free_[segment.hint_];
  segment.out_[segment.hint_] |= bits & -bits;
  ++segment.out_count_;
  const auto bit = static_cast<std::uint64_t>(std::countr_zero(bits));
  const Block block = block_at(segment.first(), segment.hint_ * 64 + bit);
  bits &= bits - 1;
  --segment.free_count_;
  --free_count_;
  put_in_rank(segment);
  ++taken_;
  ++takes_;
  return block;
}

void SizeClass::published(Segment& segment, std::uint64_t block) { take_in(segment, block / 64, 1ull << block % 64); }

void SizeClass::discard(Segment& segment, std::uint64_t block) {
  const std::uint64_t bit = 1ull << block % 64;
  take_in(segment, block / 64, bit);
  FARPOOL_CHECK(!segment.is_unused(block));
  add_free(segment, block / 64, bit);
}

bool SizeClass::free(Segment& segment, std::uint64_t block, std::uint64_t era) {
  if (segment.is_unused(block)) return false;
  add_limbo(segment, block / 64, 1ull << block % 64, era);
  return true;
}

std::uint64_t SizeClass::take_marks(std::uint64_t first, base::Bytes bitmap, std::uint64_t era,
                                    std::vector<BitmapAdd>& back) {
  Segment& segment = segments_.at(first);
  std::uint64_t anomalies = 0;
  for (std::size_t word = 0; word < shape.bitmap_words; ++word) {
    const std::uint64_t bits = word_of(bitmap, word);
    if (bits == 0) continue;
    back.push_back({bitmap_at(first, word), ~bits + 1});
    // Bits of blocks that are free already, or of no block, are another client's error: they are taken back and
    // ignored.
    const std::uint64_t good =
        bits & layout::blocks_of_word(shape, word) & ~segment.free_[word] & ~segment.limbo_[word];
    anomalies += count_of(bits ^ good);
    if (good != 0) add_limbo(segment, word, good, era);
  }
  return anomalies;
}

void SizeClass::give_up(std::uint64_t first, std::vector<BitmapAdd>& marks) {
  const Segment& segment = segments_.at(first);
  for (std::size_t word = 0; word < segment.free_.size(); ++word) {
    const std::uint64_t bits = segment.free_[word] | segment.limbo_[word];
    if (bits != 0) marks.push_back({bitmap_at(first, word), bits});
  }
  remove(first);
}

// --- How much the class needs

// Returns how many blocks may be free or in limbo before the class takes another segment. Without haste, the blocks of
// a tick are in limbo for three ticks. If that is much beside the blocks in use, eras are hurried, and a quarter of a
// tick's blocks is enough.
std::uint64_t SizeClass::reserve() const {
  const std::uint64_t demand = std::max(demand_, taken_);
  const std::uint64_t used = segments_.size() * shape.blocks - unused();
  return std::max({std::min(kDemandTicks * demand, used / kReserve), demand / 4, shape.blocks / 8, std::uint64_t{1}});
}

// Returns how many blocks may be taken before others have come through a hurried era.
std::uint64_t SizeClass::few() const { return std::max({shape.blocks / 8, demand_ / 8, std::uint64_t{1}}); }

void SizeClass::look_at_demand(Nanos now, Nanos tick) {
  if (looked_at_ == 0) looked_at_ = now;
  const Nanos elapsed = now - looked_at_;
  if (elapsed <= 0 || elapsed < tick) return;
  const std::uint64_t in_a_tick = taken_ * static_cast<std::uint64_t>(tick) / static_cast<std::uint64_t>(elapsed);
  demand_ = std::max(in_a_tick, demand_ * 3 / 4);
  taken_ = 0;
  looked_at_ = now;
}

bool SizeClass::needs_era() const { return limbo_count_ > 0 && (kDemandTicks * demand_ > unused() || runs_low()); }

bool SizeClass::waits_for_era(bool hurried, Nanos now, Nanos tick) {
  const bool enough = unused() >= reserve();
  if (!hurried && (enough || !runs_low())) return true;
  // A class that has its reserve does not grow, and neither does a class with most of its blocks in limbo: otherwise
  // fast writers would spread over the whole heap. It waits for an era, but not for long.
  if (limbo_count_ == 0 || (!enough && limbo_count_ * 2 < segments_.size() * shape.blocks)) return false;
  if (waiting_since_ == 0) waiting_since_ = now;
  return now - waiting_since_ < tick;
}

bool SizeClass::wants_refill() const {
  return shape.blocks >= 64 && (runs_low() || takes_ >= scan_at_) &&
         !full_[static_cast<std::size_t>(Purpose::addition)].found;
}

void SizeClass::scanned(std::uint64_t before) {
  const bool found = ever_free() > before;
  scan_at_ = takes_ + (found ? std::max<std::uint64_t>(1, shape.blocks / 4) : shape.blocks);
}

std::vector<std::uint64_t> SizeClass::spare(bool all) const {
  std::vector<std::uint64_t> spare;
  const std::uint64_t keep = reserve() + shape.blocks / 2;
  std::uint64_t left = unused();
  for (const auto& [first, segment] : segments_) {
    if (!is_wholly_free(segment) || segment.emptied_) continue;
    if (!all && left < keep + shape.blocks) break;
    left -= shape.blocks;
    spare.push_back(first);
  }
  if (!all) spare.resize((spare.size() + 3) / 4);
  return spare;
}

std::vector<std::uint64_t> SizeClass::surplus(layout::Pressure pressure) const {
  const bool spent = pressure >= layout::Pressure::spent;
  std::uint64_t keep = reserve() + (spent ? 0 : shape.blocks / 4);
  if (pressure != layout::Pressure::none && is_quiet()) keep = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> with_room;  // blocks, first
  for (const auto& [first, segment] : segments_) {
    const std::uint64_t here = segment.unused();
    const std::uint64_t least = pressure == layout::Pressure::none ? shape.blocks / 4
                                : spent                            ? 1
                                        : std::max<std::uint64_t>(1, shape.blocks / kSurplus);
    if (is_wholly_free(segment) || here < least || segment.out_count_ > 0 || segment.looked_through_ ||
        segment.emptied_) {
      continue;
    }
    with_room.emplace_back(here, first);
  }
  if (spent) std::sort(with_room.begin(), with_room.end(), std::greater<>());
  std::vector<std::uint64_t> firsts;
  std::uint64_t left = unused();
  for (const auto& [here, first] : with_room) {
    if (left < keep + here) continue;
    if (spent && firsts.size() == kMostSpentSurplus) break;
    left -= here;
    firsts.push_back(first);
  }
  return firsts;
}

std::vector<std::uint64_t> SizeClass::in_the_way(const layout::Stretch& cleared) const {
  std::vector<std::uint64_t> firsts;
  for (const auto& [first, segment] : segments_) {
    if (!is_in_the_way(first, cleared) || segment.out_count_ > 0 || segment.looked_through_ || segment.emptied_)
      continue;
    firsts.push_back(first);
  }
  return firsts;
}

// --- A look for blocks that got lost in a segment

void SizeClass::begin_look(Segment& segment) {
  segment.looked_through_ = true;
  for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
    segment.doubted_[word] =
        layout::blocks_of_word(shape, word) & ~segment.free_[word] & ~segment.limbo_[word] & ~segment.out_[word];
  }
}

void SizeClass::believe_marks(Segment& segment, base::Bytes bitmap) {
  for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) segment.doubted_[word] &= ~word_of(bitmap, word);
}

void SizeClass::believe(Segment& segment, std::uint64_t block) {
  segment.doubted_[block / 64] &= ~(1ull << block % 64);
}

bool SizeClass::has_doubts(const Segment& segment) const {
  return std::any_of(segment.doubted_.begin(), segment.doubted_.end(), [](std::uint64_t word) { return word != 0; });
}

std::uint64_t SizeClass::reclaim(Segment& segment, base::Bytes bitmap) {
  std::uint64_t reclaimed = 0;
  for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
    const std::uint64_t free = segment.doubted_[word] & ~word_of(bitmap, word);
    segment.doubted_[word] = 0;
    add_free(segment, word, free);
    reclaimed += count_of(free);
  }
  return reclaimed;
}

void SizeClass::end_look(Segment& segment, std::uint64_t deaths) {
  segment.looked_through_ = false;
  segment.examined_ = std::max(segment.examined_, deaths + 1);
  scan_soon();
  for (Full& full : full_) full.found = false;
}

// --- A segment that is emptied

void SizeClass::begin_emptying(Segment& segment) {
  segment.emptied_ = true;
  free_count_ -= segment.free_count_;
  put_in_rank(segment);
}

void SizeClass::end_emptying(Segment& segment) {
  segment.emptied_ = false;
  free_count_ += segment.free_count_;
  put_in_rank(segment);
}

std::vector<std::uint64_t> SizeClass::in_use(const Segment& segment) const {
  std::vector<std::uint64_t> units;
  for (std::uint64_t block = 0; block < shape.blocks; ++block) {
    if (segment.is_unused(block)) continue;
    units.push_back(block_at(segment.first(), block).units);
  }
  return units;
}

// --- All classes

Purpose Ledger::purpose_of(std::uint64_t bytes, std::uint64_t before) const {
  const auto room = [this](std::uint64_t asked) {
    const std::uint64_t size_class = layout::size_class_for(asked, segment_bytes);
    return size_class == kRun ? layout::run_segments(asked, segment_bytes) * segment_bytes
                              : layout::block_bytes(size_class);
  };
  return before != 0 && room(bytes) <= room(before) ? Purpose::replacement : Purpose::addition;
}

SizeClass& Ledger::class_for(std::uint64_t bytes) {
  const std::uint64_t id = layout::size_class_for(bytes, segment_bytes);
  return class_of(id, id == kRun ? layout::run_segments(bytes, segment_bytes) : 1);
}

SizeClass& Ledger::class_of(std::uint64_t id, std::uint64_t run) {
  return classes_.try_emplace(id == kRun ? kRun + run : id, id, run, segment_bytes).first->second;
}

std::optional<Ledger::Place> Ledger::find_place(const SizeClass& size_class, std::uint64_t units) const {
  const layout::SegmentShape& shape = size_class.shape;
  if (units >= heap_segments * (segment_bytes / layout::kBlockUnit)) return std::nullopt;
  const std::uint64_t within = layout::block_offset(units) % segment_bytes;
  if (within < shape.first_block || (within - shape.first_block) % shape.block_bytes != 0) return std::nullopt;
  const Place place{.first = layout::block_offset(units) / segment_bytes,
                    .block = (within - shape.first_block) / shape.block_bytes};
  if (place.block >= shape.blocks || place.first + size_class.run > heap_segments) return std::nullopt;
  return place;
}

void Ledger::add(SizeClass& size_class, std::uint64_t first, SizeClass::Origin origin, std::uint64_t deaths) {
  examined_ = std::min(examined_, size_class.add(first, origin, deaths).examined());
}

void Ledger::published(Block block) {
  SizeClass& size_class = class_for(block.bytes);
  const auto place = find_place(size_class, block.units);
  FARPOOL_CHECK(place.has_value());
  freed_ -= static_cast<std::int64_t>(size_class.shape.block_bytes);
  // The segment is gone if the heap has been released.
  if (Segment* own = size_class.find(place->first); own != nullptr) size_class.published(*own, place->block);
}

bool Ledger::discard(Block block) {
  SizeClass& size_class = class_for(block.bytes);
  const auto place = find_place(size_class, block.units);
  FARPOOL_CHECK(place.has_value());
  Segment* const own = size_class.find(place->first);
  if (own == nullptr) return false;
  size_class.discard(*own, place->block);
  return true;
}

std::optional<BitmapAdd> Ledger::free(std::uint64_t units, std::uint64_t bytes, std::uint64_t era) {
  if (bytes == 0 || !fits(bytes)) {
    ++anomalies;
    return std::nullopt;
  }
  SizeClass& size_class = class_for(bytes);
  const auto place = find_place(size_class, units);
  if (!place) {
    ++anomalies;
    return std::nullopt;
  }
  if (Segment* const own = size_class.find(place->first); own != nullptr) {  // its owner needs no message
    if (size_class.free(*own, place->block, era)) {
      freed_ += static_cast<std::int64_t>(size_class.shape.block_bytes);
    } else {
      ++anomalies;
    }
    return std::nullopt;
  }
  freed_ += static_cast<std::int64_t>(size_class.shape.block_bytes);
  return BitmapAdd{size_class.bitmap_at(place->first, place->block / 64), 1ull << place->block % 64};
}

bool Ledger::note(BitmapAdd mark) {
  for (BitmapAdd& one : noted_) {
    if (one.offset != mark.offset) continue;
    if ((one.bits & mark.bits) != 0) {
      ++anomalies;
    } else {
      one.bits |= mark.bits;
    }
    return false;
  }
  noted_.push_back(mark);
  return true;
}

std::vector<BitmapAdd> Ledger::take_noted() { return std::exchange(noted_, {}); }

void Ledger::settle(std::uint64_t safe_era) {
  for (auto& [id, size_class] : classes_) size_class.settle(safe_era);
}

std::optional<std::uint64_t> Ledger::next_quiet_class() {
  const auto quiet = [](const auto& of) { return of.second.is_quiet(); };
  auto found = std::find_if(classes_.upper_bound(looked_into_), classes_.end(), quiet);
  if (found == classes_.end()) found = std::find_if(classes_.begin(), classes_.end(), quiet);
  if (found == classes_.end()) return std::nullopt;
  return looked_into_ = found->first;
}

std::vector<Ledger::Sparse> Ledger::choose_sparse(std::uint64_t wanted, const layout::Stretch& cleared) {
  std::vector<Sparse> chosen;
  const auto rests = [](const Segment& segment) {
    return segment.out_count() == 0 && !segment.is_looked_through() && !segment.is_emptied();
  };
  for (auto& [id, size_class] : classes_) {
    if (size_class.id == wanted && size_class.id != kRun) continue;
    for (const std::uint64_t first : size_class.in_the_way(cleared)) {
      if (chosen.size() == kEmptied) break;
      chosen.push_back({&size_class, first, size_class.shape.blocks - size_class.at(first).unused()});
    }
  }
  for (auto& [id, size_class] : classes_) {
    if (size_class.id == wanted || size_class.id == kRun) continue;
    const std::uint64_t blocks = size_class.shape.blocks;
    std::uint64_t needed = 0, room = size_class.free_count();
    std::vector<std::pair<std::uint64_t, std::uint64_t>> by_use;  // blocks in use, first
    for (const auto& [first, segment] : size_class.segments()) {
      if (!rests(segment)) continue;
      const std::uint64_t used = blocks - segment.unused();
      if (size_class.is_in_the_way(first, cleared)) {
        needed += used;
        room -= segment.free_count();
      } else if (used > 0 && used <= blocks - blocks / kSparse) {
        by_use.emplace_back(used, first);
      }
    }
    std::sort(by_use.begin(), by_use.end());
    for (const auto& [used, first] : by_use) {
      if (chosen.size() >= kEmptied) return chosen;
      needed += used;
      room -= size_class.at(first).free_count();
      if (needed > room) break;
      chosen.push_back({&size_class, first, used});
    }
  }
  return chosen;
}

}  // namespace farpool::heap
