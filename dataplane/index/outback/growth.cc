// SPDX-License-Identifier: Apache-2.0
#include "index/outback/growth.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/crc64.h"
#include "base/marks.h"

namespace farpool::outback {
namespace {

// Up to so many slots of a thousand have keys when a locator is built of all of them; the others stay in overflow.
constexpr std::uint64_t kPlacedPermille = 950;
// A request that changes nothing helps so little.
constexpr std::uint64_t kUnitsOfRead = 4;
// Buckets' worth of work that writing a partition's arrays is.
constexpr std::uint64_t kUnitsOfWrite = 64;
// Steps of changes that one thread takes at once for others.
constexpr std::uint64_t kMostOwed = 4;

}  // namespace

base::Status check_locator(const Cut& cut, const Stage& stage, base::Bytes place) {
  const auto header = LocatorHeader::parse(place);
  if (!header.ok()) return header.status();
  LocatorShape shape = cut.shape(stage.level);
  shape.array_words = header->shape.array_words;
  if (header->generation != stage.generation || header->salt != cut.figures.salt || header->shape != shape ||
      header->bytes() > place.size()) {
    return {base::Code::corrupt, "the locator is not that of the table"};
  }
  return Locator::check(place);
}

Growth::Load Growth::load() const {
  Load load;
  for (const auto& zone : zones_) {
    load.keys += zone->counted().keys.get();
    load.overflow += zone->counted().overflow.get();
  }
  return load;
}

std::uint64_t Growth::units(bool paced) const {
  const GrowthSettings& by = ground_.settings.growth;
  if (!paced) return kUnitsOfRead;
  const std::uint64_t room = ground_.cut.overflow_at(stage().level), overflow = load().overflow;
  const std::uint64_t begin = room * by.begin_permille / 1000, latest = room * by.latest_permille / 1000;
  if (overflow <= begin) return by.step;
  if (overflow >= latest) return by.most_step;
  return by.step + (by.most_step - by.step) * (overflow - begin) / (latest - begin);
}

// Says whether another locator would bring so many keys out of overflow that it is worth its work.
bool Growth::wanted(const Load& load, bool& doubled) {
  const Cut& cut = ground_.cut;
  const GrowthSettings& by = ground_.settings.growth;
  const Stage stage = this->stage();
  const std::uint64_t begin = std::max<std::uint64_t>(cut.overflow_at(stage.level) * by.begin_permille / 1000, 1);
  const std::uint64_t tags = cut.scan_tags() - std::min(cut.scan_tags(), cut.growths(stage) + 1);
  if (load.overflow < begin || tags == 0) return false;
  const std::uint64_t slots = cut.shape(stage.level).table_slots();
  doubled = load.keys * 1000 > slots * by.double_permille && stage.level < cut.figures.doublings;
  if (doubled) return true;
  // A table keeps the tags that its doublings need.
  if (tags <= cut.figures.doublings - stage.level) return false;
  left_ = std::min(left_, load.overflow);
  const std::uint64_t fit = slots * kPlacedPermille / 1000;
  return load.keys < fit + begin / 2 && load.overflow >= left_ + begin;
}

bool Growth::begin(fabric::Hand hand) {
  const Load now = load();
  bool doubled = false;
  if (!wanted(now, doubled)) return false;
  const Cut& cut = ground_.cut;
  const Stage stage = this->stage();
  next_stage_ = {.generation = next_generation(stage.generation, ground_.life),
                 .level = stage.level + (doubled ? 1 : 0),
                 .moving = true,
                 .doubled = doubled,
                 .place = 1 - stage.place};
  shape_ = cut.shape(next_stage_.level);
  // As many keys again as have come when the locator is there.
  const std::uint64_t keys = std::min(now.keys + now.keys / 16, shape_.table_slots());
  shape_.array_words = LocatorShape::array_words_for(keys, shape_.partitions);
  if (shape_.words() * 8 > place().size()) return false;
  hand.write(place().data(), 0);  // nobody goes by what is being written
  partition_ = keys_ = checksum_ = 0;
  bucket_ = 0;
  hashes_.clear();
  next_.store(next_stage_.generation, std::memory_order_relaxed);
  building_.store(true, std::memory_order_release);
  begun_.fetch_add(1, std::memory_order_relaxed);
  FARPOOL_MARK(outback_growth_begun);
  phase_ = Phase::gather;
  return true;
}

// Brings the hashes of a partition's keys together. Keys that come or go meanwhile do no harm: a locator has an answer
// for every key.
bool Growth::gather(std::uint64_t& units, Doors& doors) {
  const Cut& cut = ground_.cut;
  const std::uint64_t buckets = shape_.buckets;
  const std::uint64_t from = partition_ % cut.shape(next_stage_.old_level()).partitions;
  const std::uint64_t zone = cut.zone_of(from * buckets);
  if (!doors.enter(zone)) return false;
  const std::uint64_t some = std::min(units, buckets - bucket_);
  for (std::uint64_t i = 0; i < some; ++i)
    zones_[zone]->gather(from * buckets + bucket_++, partition_, shape_, hashes_);
  doors.leave(zone);
  units -= some;
  if (bucket_ < buckets) return true;
  const LocatorShape one{.partitions = 1, .buckets = shape_.buckets, .array_words = shape_.array_words};
  builder_ = std::make_unique<Builder>(
      one, next_stage_.generation, base::mix(next_stage_.generation ^ cut.figures.salt) + partition_, hashes_.size());
  FARPOOL_CHECK(builder_->add(hashes_));
  hashes_.clear();
  bucket_ = 0;
  phase_ = Phase::build;
  return true;
}

bool Growth::build(std::uint64_t& units) {
  const std::uint64_t some = std::min<std::uint64_t>(units, 16);
  units -= some;
  if (!builder_->step(some * kBucketSlots)) phase_ = Phase::write;
  return true;
}

bool Growth::write(std::uint64_t& units, fabric::Hand hand) {
  const Locator locator = builder_->finish();
  builder_.reset();
  const auto words = locator.words().subspan(LocatorHeader::kWords);
  checksum_ = base::crc64(std::as_bytes(words.first(1 + 2 * std::uint64_t{shape_.array_words})), checksum_);
  keys_ += locator.header().keys;
  hand.write(place().data() + LocatorHeader::kBytes + partition_ * shape_.partition_words() * 8, std::as_bytes(words));
  units -= std::min(units, kUnitsOfWrite);
  phase_ = ++partition_ < shape_.partitions ? Phase::gather : Phase::publish;
  return true;
}

// The header's first word is the last one of the locator, and the table's stage follows it at once.
bool Growth::publish(fabric::Hand hand) {
  std::array<std::uint64_t, LocatorHeader::kWords> words{};
  LocatorHeader{.generation = next_stage_.generation,
                .salt = ground_.cut.figures.salt,
                .keys = keys_,
                .shape = shape_,
                .arrays_checksum = checksum_}
      .put(words);
  hand.write(place().data() + 8, std::as_bytes(std::span(words).subspan(1)));
  hand.write(place().data(), words[0]);
  hand.write(ground_.memory.data() + kStageAt, next_stage_.word());
  stage_.store(next_stage_.word(), std::memory_order_release);
  locator_bytes_.store(shape_.words() * 8, std::memory_order_relaxed);
  building_.store(false, std::memory_order_release);
  published_.fetch_add(1, std::memory_order_relaxed);
  if (next_stage_.doubled) doubled_.fetch_add(1, std::memory_order_relaxed);
  FARPOOL_MARK(outback_locator_published);
  if (next_stage_.doubled && next_stage_.level == 4) FARPOOL_MARK(outback_grown_sixteenfold);
  return true;
}

bool Growth::move(std::uint64_t& units, fabric::Hand hand, Doors& doors) {
  const std::uint64_t zone = zone_;
  if (!doors.enter(zone)) return false;
  zones_[zone]->enter();
  const bool over = zones_[zone]->settle(units, hand);
  doors.leave(zone);
  if (!over) return true;
  zone_ = (zone_ + 1) % zones_.size();
  if (++zones_done_ < zones_.size()) return true;
  Stage stage = this->stage();
  stage.moving = stage.doubled = false;
  hand.write(ground_.memory.data() + kStageAt, stage.word());
  stage_.store(stage.word(), std::memory_order_release);
  ended_.fetch_add(1, std::memory_order_relaxed);
  left_ = load().overflow;
  phase_ = Phase::rest;
  return true;
}

void Growth::owe() { owed_.fetch_add(units(true), std::memory_order_relaxed); }

std::uint64_t Growth::take_owed() {
  const std::uint64_t owed = owed_.load(std::memory_order_relaxed);
  const bool rests = phase_ == Phase::rest && !stage().moving;
  const std::uint64_t taken = rests ? owed : std::min(owed, kMostOwed * ground_.settings.growth.most_step);
  owed_.fetch_sub(taken, std::memory_order_relaxed);
  return rests ? 0 : taken;  // there was nothing to do
}

void Growth::work(fabric::Hand hand, Doors& doors, bool paced) {
  if (ground_.settings.locator.empty()) return;
  if (busy_.exchange(true, std::memory_order_acquire)) {
    if (paced) owe();
    return;
  }
  std::uint64_t left = units(paced);
  left += paced ? take_owed() : 0;
  for (bool goes_on = true; goes_on && left > 0;) {
    switch (phase_) {
      case Phase::rest:
        if (stage().moving) {
          zone_ = zones_done_ = 0;
          phase_ = Phase::move;
        } else {
          goes_on = paced && begin(hand);
        }
        break;
      case Phase::gather:
        goes_on = gather(left, doors);
        break;
      case Phase::build:
        goes_on = build(left);
        break;
      case Phase::write:
        goes_on = write(left, hand);
        break;
      case Phase::publish:
        goes_on = publish(hand);
        phase_ = Phase::rest;
        break;
      case Phase::move:
        goes_on = move(left, hand, doors);
        break;
    }
  }
  busy_.store(false, std::memory_order_release);
}

}  // namespace farpool::outback
