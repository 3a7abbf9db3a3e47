// SPDX-License-Identifier: Apache-2.0
// What a zone does when its table has got another locator: each key moves to the bucket that the locator gives it. A move
// is a change like any other, decided by one word of the zone's own record.
#include <array>

#include "base/check.h"
#include "base/marks.h"
#include "index/outback/zone.h"

namespace farpool::outback {
namespace {}  // namespace

base::Status GrowthSettings::check() const {
  const auto wrong = [](const std::string& what) {
    return base::Status{base::Code::invalid_argument, "an Outback table cannot grow so: " + what};
  };
  if (begin_permille == 0 || begin_permille >= latest_permille || latest_permille > 1000) {
    return wrong("overflow of " + std::to_string(begin_permille) + " thousandths begins a locator, and " +
                 std::to_string(latest_permille) + " are the latest: use 0 < first < second <= 1000");
  }
  if (double_permille < 100 || double_permille > 1000) {
    return wrong("a table is doubled at " + std::to_string(double_permille) +
                 " thousandths of its slots: use 100 to 1000");
  }
  if (step == 0 || step > most_step || most_step > 1 << 16) {
    return wrong("a change works on " + std::to_string(step) + " to " + std::to_string(most_step) +
                 " buckets: use 1 <= first <= second <= 65536");
  }
  return {};
}

void Zone::enter() {
  const std::uint64_t word = ground_.stage->load(std::memory_order_acquire);
  if (word == stage_word_) return;
  stage_word_ = word;
  stage_ = Stage::of(word).value();
  shape_ = cut().shape(stage_.level);
  cursors_.clear();
  source_ = 0;
  if (!stage_.moving) return;
  // A process that is dying may not have written the locator: it moves keys anywhere, and nothing of that is written.
  const auto header = LocatorHeader::parse(ground_.place(stage_.place));
  if (header.ok()) shape_.array_words = header->shape.array_words;
  old_shape_ = cut().shape(stage_.old_level());
  cursors_.resize((cut().first_partition(number_ + 1) - cut().first_partition(number_)) << stage_.old_level());
}

std::size_t Zone::source_of(std::uint64_t bucket) const {
  const std::uint64_t first = cut().first_partition(number_), count = cut().first_partition(number_ + 1) - first;
  const std::uint64_t old = bucket / shape_.buckets % old_shape_.partitions;
  return old / cut().figures.partitions * count + old % cut().figures.partitions - first;
}

std::uint64_t Zone::old_partition(std::size_t source) const {
  const std::uint64_t first = cut().first_partition(number_), count = cut().first_partition(number_ + 1) - first;
  return source / count * cut().figures.partitions + first + source % count;
}

bool Zone::look_before(std::uint64_t place, std::uint64_t hash, base::Bytes key, Found& found,
                       std::uint64_t& bucket) const {
  bucket = place;
  if (!look(place, hash, key, found)) return false;
  if (found.there || !is_moving(place)) return true;
  // Where the table that is doubled had it, or the locator before this one.
  for (const LocatorShape* shape : {&old_shape_, &shape_}) {
    if (shape == &shape_ && !stage_.doubled) break;
    const Candidates before = Candidates::of(hash, *shape);
    for (const std::uint64_t each : before.buckets) {
      const std::uint64_t old = std::uint64_t{before.partition} * shape_.buckets + each;
      Found there;
      if (old == place) continue;
      if (!look(old, hash, key, there)) return false;
      if (!there.there) continue;
      found = there;
      bucket = old;
      return true;
    }
  }
  return true;
}

void Zone::gather(std::uint64_t bucket, std::uint64_t partition, const LocatorShape& shape,
                  std::vector<std::uint64_t>& hashes) const {
  const auto add = [&](const BlockView& block) {
    const std::uint64_t key = hash(block.key);
    if (Candidates::partition_of(key, shape) == partition) hashes.push_back(key);
  };
  const Words words = words_of(bucket);
  for (const std::uint64_t slot : words) {
    const auto block = SlotWord::empty(slot) ? std::nullopt : view(SlotWord::Address::get(slot));
    if (block) add(*block);
  }
  std::uint64_t steps = counted_.overflow.get();
  for (std::uint64_t address = SlotWord::cached(words[0]) ? word(cut().head_at(bucket)) : 0; address != 0; --steps) {
    const auto block = view(address);
    if (!block || steps == 0) return;
    if (block->head.bucket == bucket) add(*block);
    address = block->head.next;
  }
}

// Moves a key of the bucket that belongs elsewhere. False: there is none.
bool Zone::move_out(std::uint64_t bucket) {
  const Words words = words_of(bucket);
  for (std::uint64_t slot = 0; slot < kBucketSlots; ++slot) {
    const std::uint64_t address = SlotWord::Address::get(words[slot]);
    const auto block = SlotWord::empty(words[slot]) ? std::nullopt : view(address);
    if (!block) continue;
    const std::uint64_t key = hash(block->key), home = home_of(key);
    if (home == bucket) continue;
    return move_key(bucket, {.there = true, .slot = slot, .address = address, .view = *block}, key, home);
  }
  std::uint64_t steps = counted_.overflow.get();
  std::uint64_t link = cut().head_at(bucket);
  for (std::uint64_t address = SlotWord::cached(words[0]) ? word(link) : 0; address != 0; --steps) {
    const auto block = view(address);
    if (!block || steps == 0) return false;
    const std::uint64_t key = hash(block->key), home = home_of(key);
    if (block->head.bucket == bucket && home != bucket) {
      return move_key(bucket, {.there = true, .overflow = true, .address = address, .link = link, .view = *block}, key,
                      home);
    }
    link = address + kNextAt;
    address = block->head.next;
  }
  return false;
}

// The block stays where it is. What points to it, and the bucket that it names, change together. False: the memory's
// bytes cannot be.
bool Zone::move_key(std::uint64_t from, const Found& found, std::uint64_t hash, std::uint64_t to) {
  const Words before = words_of(to);
  const Seed seed_before = seed_of(to);
  Words after = before;
  Seed seed = seed_before;
  const std::uint64_t address = found.address;
  const Arranged arranged =
      arrange(after, seed, hash, SlotWord::of(print_of(hash), found.view.head.bytes(), address, false));
  if (arranged == Arranged::damaged) return false;
  const bool listed = arranged == Arranged::no;
  const bool same_list = listed && found.overflow && cut().head_at(from) == cut().head_at(to);
  Plan plan;
  for (std::uint64_t& slot : after) slot = listed ? SlotWord::cached_as(slot, true) : slot;
  plan_bucket(to, before, after, seed_before, seed, plan);
  BlockHead head = found.view.head;
  head.bucket = to;
  plan.add(address + kBucketAt, to);
  plan.add(address + kChecksumAt, block_checksum(address, head, found.view.key, found.view.value));
  if (found.overflow) {
    const auto others = others_in_list(from, address);
    if (!others) return false;
    if (!same_list) plan.add(found.link, head.next);
    for (std::uint64_t slot = 0; *others == 0 && slot < kBucketSlots; ++slot) {
      plan.add(cut().slot_at(from, slot), SlotWord::cached_as(word(cut().slot_at(from, slot)), false));
    }
  } else {
    const std::uint64_t at = cut().slot_at(from, found.slot);
    plan.add(at, SlotWord::cached_as(0, SlotWord::cached(word(at))));
  }
  if (listed && !same_list) {
    plan.add(address + kNextAt, word(cut().head_at(to)));
    plan.add(cut().head_at(to), address);
  }
  commit_own(plan);
  bump<&index::NodeMarks::settled>();
  bump<&index::NodeMarks::reseeds>(seed != seed_before ? 1 : 0);
  counted_.overflow.add((listed ? 1 : 0) - (found.overflow ? 1ull : 0));
  return true;
}

// Gives a bucket the seed that the locator has, so that clients need not learn it, if its keys allow that.
void Zone::align(std::uint64_t bucket) {
  const Words before = words_of(bucket);
  const Seed seed_before = seed_of(bucket);
  Seed seed{.value = outback::seed_in(shape_, ground_.place(stage_.place), bucket),
            .version = static_cast<std::uint16_t>(seed_before.version + 1)};
  if (seed.value == seed_before.value) return;
  Words after{};
  after.fill(SlotWord::cached_as(0, SlotWord::cached(before[0])));
  for (const std::uint64_t slot : before) {
    if (SlotWord::empty(slot)) continue;
    const auto block = view(SlotWord::Address::get(slot));
    if (!block) return;
    std::uint64_t& own = after[slot_of(hash(block->key), seed.value)];
    if (!SlotWord::empty(own)) return;
    own = slot;
  }
  Plan plan;
  plan_bucket(bucket, before, after, seed_before, seed, plan);
  commit_own(plan);
  bump<&index::NodeMarks::reseeds>();
}

// First buckets lose the keys that belong elsewhere. All that the old partition has become are looked at: a locator that
// was damaged, and is another one now, has left keys in any of them.
void Zone::settle_source(std::size_t source, std::uint64_t& buckets) {
  const std::uint64_t each = shape_.buckets, all = each * (stage_.doubled ? 2 : 1);
  const std::uint64_t first = old_partition(source) * each;
  std::uint32_t& cursor = cursors_[source];
  for (; buckets > 0 && cursor < 2 * all; --buckets) {
    const std::uint64_t number = cursor % all;
    const std::uint64_t bucket = first + (number < each ? number : old_shape_.partitions * each + number - each);
    if (cursor < all) {
      if (!move_out(bucket)) ++cursor;
      continue;
    }
    align(bucket);
    while (pull(bucket)) {
    }
    ++cursor;
  }
}

bool Zone::settle(std::uint64_t& buckets, fabric::Hand hand) {
  hand_ = hand;
  for (; stage_.moving && source_ < cursors_.size(); ++source_) {
    settle_source(source_, buckets);
    if (cursors_[source_] < 2 * std::uint64_t{shape_.buckets} * (stage_.doubled ? 2 : 1)) return false;
  }
  return true;
}

bool Zone::settle_partition(std::uint64_t partition, std::uint64_t& buckets, fabric::Hand hand) {
  if (!stage_.moving) return true;
  hand_ = hand;
  const std::size_t source = source_of(partition * shape_.buckets);
  settle_source(source, buckets);
  return is_settled(source);
}

}  // namespace farpool::outback
