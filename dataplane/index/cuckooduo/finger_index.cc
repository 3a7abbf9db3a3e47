// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/finger_index.h"

#include "base/bytes.h"
#include "base/check.h"

namespace farpool::cuckooduo {

FingerIndex::FingerIndex(const Shape& shape, std::uint64_t salt)
    : shape_(shape),
      salt_(salt),
      prints_((shape.stash_begin() * shape.print_bits + 7) / 8 + sizeof(std::uint32_t)),
      stash_(shape.stash) {
  FARPOOL_CHECK(shape.check().ok());
}

Print FingerIndex::print(Place place) const {
  const std::uint64_t bit = place * shape_.print_bits;
  const auto word = base::load<std::uint32_t>(prints_.data() + bit / 8);
  return static_cast<Print>((word >> (bit % 8)) & ((1u << shape_.print_bits) - 1));
}

void FingerIndex::put_print(Place place, Print print) {
  const std::uint64_t bit = place * shape_.print_bits;
  std::byte* at = prints_.data() + bit / 8;
  const std::uint32_t mask = ((1u << shape_.print_bits) - 1) << (bit % 8);
  const auto word = base::load<std::uint32_t>(at);
  base::store(at, (word & ~mask) | (static_cast<std::uint32_t>(print) << (bit % 8)));
}

void FingerIndex::put(Place place, std::uint64_t hash) {
  if (shape_.in_stash(place)) {
    Stashed& stashed = stash_[place - shape_.stash_begin()];
    stashed_ += stashed.taken ? 0 : 1;
    stashed = {hash, true};
    return;
  }
  keys_ += taken(place) ? 0 : 1;
  put_print(place, spots(hash).at(place, shape_));
}

void FingerIndex::clear(Place place) {
  if (!taken(place)) return;
  if (shape_.in_stash(place)) {
    --stashed_;
    stash_[place - shape_.stash_begin()] = {};
    return;
  }
  --keys_;
  put_print(place, 0);
}

bool FingerIndex::taken(Place place) const {
  return shape_.in_stash(place) ? stash_[place - shape_.stash_begin()].taken : print(place) != 0;
}

bool FingerIndex::may_be(Place place, std::uint64_t hash) const {
  if (!taken(place)) return false;
  if (shape_.in_stash(place)) return stashed_hash(place) == hash;
  const Spots its = spots(hash);
  const std::uint64_t row = shape_.row_of(place);
  return (row == its.row1 || row == its.row2) && print(place) == its.at(place, shape_);
}

Place FingerIndex::find_print(Place begin, Place end, Print sought) const {
  for (Place place = begin; place < end; ++place) {
    if (print(place) == sought) return place;
  }
  return kNowhere;
}

Place FingerIndex::match(const Spots& spots) const {
  const Range other = all_of(spots.row2), seconds = seconds_of(spots.row1), firsts = firsts_of(spots.row1);
  if (const Place place = find_print(other.begin, other.end, spots.first); place != kNowhere) return place;
  if (const Place place = find_print(seconds.begin, seconds.end, spots.second); place != kNowhere) return place;
  return find_print(firsts.begin, firsts.end, spots.first);
}

std::size_t FingerIndex::twins(std::uint64_t hash) const {
  std::size_t count = 0;
  for (const Stashed& stashed : stash_) count += stashed.taken && stashed.hash == hash ? 1 : 0;
  return count;
}

FingerIndex::Candidates FingerIndex::find(std::uint64_t hash) const {
  Candidates found;
  for (std::size_t i = 0, left = stashed_; left > 0; ++i) {
    if (!stash_[i].taken) continue;
    --left;
    if (stash_[i].hash != hash) continue;
    FARPOOL_CHECK(found.count < kMostTwins);
    found.places[found.count++] = shape_.stash_begin() + i;
  }
  if (const Place place = match(spots(hash)); place != kNowhere) found.places[found.count++] = place;
  return found;
}

}  // namespace farpool::cuckooduo
