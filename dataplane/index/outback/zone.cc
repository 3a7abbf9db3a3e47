// SPDX-License-Identifier: Apache-2.0
#include "index/outback/zone.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/marks.h"
#include "fabric/once.h"
#include "index/stored.h"

namespace farpool::outback {
namespace {

// A lock is held for one operation. Who finds it taken for longer has its CALL held instead of waiting.
constexpr int kSteps = 256;
// Blocks that one change moves out of a page that is being emptied.
constexpr int kMovedAtOnce = 3;
// Blocks that one change gives back whose era is over, unless it finds no room.
constexpr std::size_t kCollectedAtOnce = 64;
// Values of up to so many bytes are written in place, by effects of the line's record.
constexpr std::uint64_t kMostInPlace = 64;

}  // namespace

Zone::Zone(const Ground& ground, Chunks& chunks, std::uint64_t number)
    : ground_(ground), number_(number), slabs_(chunks, number) {
  closed_ = word(closed_at(cut().figures, number));
  for (std::uint64_t mark = 0; mark < marks_of(cut().figures); ++mark) {
    marks_[mark] = word(mark_at(cut().figures, number, mark));
    leaving_ += marks_[mark] != 0 ? 1 : 0;
  }
  enter();
}

Zone::~Zone() {
  for (Freed* freed = given_back_.load(); freed != nullptr;) delete std::exchange(freed, freed->next);
}

bool Zone::try_lock() {
  for (int step = 0; step < kSteps; ++step) {
    if (!locked_.load(std::memory_order_seq_cst) && !locked_.exchange(true, std::memory_order_seq_cst)) return true;
  }
  return false;
}

void Zone::give_back(std::uint64_t address, std::uint64_t bytes) {
  auto* freed = new Freed{.next = given_back_.load(std::memory_order_relaxed), .address = address, .bytes = bytes};
  while (!given_back_.compare_exchange_weak(freed->next, freed, std::memory_order_release)) {
  }
}

bool Zone::adopt(std::uint64_t address, std::uint64_t bytes, const BlockView* key, bool overflow) {
  if (key != nullptr) {
    counted_.keys.add();
    counted_.bytes.add(key->key.size() + key->value.size());
    counted_.overflow.add(overflow ? 1 : 0);
  }
  return slabs_.adopt(address, bytes);
}

// --- looking

Zone::Words Zone::words_of(std::uint64_t bucket) const {
  Words words{};
  for (std::uint64_t slot = 0; slot < kBucketSlots; ++slot) words[slot] = word(cut().slot_at(bucket, slot));
  return words;
}

void Zone::describe(std::uint64_t bucket, Reply& reply) const {
  reply.hint = hint_of(seed_of(bucket));
  // A key that has not been moved yet is found like one in overflow: by a make-up get.
  if (SlotWord::cached(word(cut().slot_at(bucket, 0))) || is_moving(bucket)) reply.flags |= kCached;
}

bool Zone::look(std::uint64_t bucket, std::uint64_t hash, base::Bytes key, Found& found) const {
  found = {};
  found.slot = slot_of(hash, seed_of(bucket).value);
  const std::uint64_t slot = word(cut().slot_at(bucket, found.slot));
  if (!SlotWord::empty(slot) && SlotWord::Print::get(slot) == print_of(hash)) {
    const auto block = view(SlotWord::Address::get(slot));
    if (!block) return false;
    if (std::ranges::equal(block->key, key)) {
      found.there = true;
      found.address = SlotWord::Address::get(slot);
      found.view = *block;
      return true;
    }
  }
  if (!SlotWord::cached(slot)) return true;
  std::uint64_t steps = counted_.overflow.get();
  std::uint64_t link = cut().head_at(bucket);
  for (std::uint64_t address = word(link); address != 0; --steps) {
    const auto block = view(address);
    if (!block || steps == 0) return false;
    if (block->head.bucket == bucket && std::ranges::equal(block->key, key)) {
      found = {.there = true, .overflow = true, .slot = found.slot, .address = address, .link = link, .view = *block};
      return true;
    }
    link = address + kNextAt;
    address = block->head.next;
  }
  return true;
}

std::optional<std::uint64_t> Zone::others_in_list(std::uint64_t bucket, std::uint64_t except) const {
  std::uint64_t others = 0, steps = counted_.overflow.get();
  for (std::uint64_t address = word(cut().head_at(bucket)); address != 0; --steps) {
    const auto block = view(address);
    if (!block || steps == 0) return std::nullopt;
    others += block->head.bucket == bucket && address != except ? 1 : 0;
    address = block->head.next;
  }
  return others;
}

Status Zone::get(std::uint64_t bucket, std::uint64_t slot, Answer& answer) {
  const std::uint64_t found = word(cut().slot_at(bucket, slot));
  describe(bucket, answer.reply);
  if (SlotWord::empty(found)) {
    answer.reply.flags |= Reply::kEmpty;
    return Status::done;
  }
  const auto block = view(SlotWord::Address::get(found));
  if (!block) return Status::damaged;
  answer.reply.version = block->head.version;
  answer.reply.key = block->key;
  answer.reply.value = block->value;
  answer.block = SlotWord::Address::get(found);
  return Status::done;
}

Status Zone::find(const Request& request, Answer& answer) {
  bump<&index::NodeMarks::make_ups>();
  const std::uint64_t key = hash(request.key);
  if (!belongs(key, request.place)) return Status::bad_place;
  describe(request.place, answer.reply);
  Found found;
  std::uint64_t bucket = request.place;
  if (!look_before(request.place, key, request.key, found, bucket)) return Status::damaged;
  if (!found.there) return Status::absent;
  answer.reply.version = found.view.head.version;
  answer.reply.value = found.view.value;
  answer.block = found.address;
  answer.key_bytes = static_cast<std::uint32_t>(found.view.key.size());
  return Status::done;
}

Status Zone::scan(std::uint64_t first, std::uint64_t end, std::uint64_t count, std::size_t room,
                  std::vector<std::byte>& keys, std::uint64_t& next) {
  std::uint64_t looked = 0;  // at buckets from the first on that has a key
  keys.clear();
  struct Key {
    std::uint64_t address = 0;
    base::Bytes key;
    index::Millis expires = index::kNoExpiry;
  };
  std::vector<Key> of_bucket;
  for (next = first; next < end && looked < count; ++next) {
    of_bucket.clear();
    std::size_t here = 0;
    std::size_t named_here = 0;
    const auto add = [&](std::uint64_t address, const BlockView& block) {
      const auto stored = index::Stored::parse(base::text_of(block.value));
      of_bucket.push_back({address, block.key, stored ? stored->expires : index::kNoExpiry});
      const std::size_t around = of_bucket.back().expires != index::kNoExpiry ? 12 : 4;
      here += around + block.key.size();
      named_here += around + 8;
    };
    const Words words = words_of(next);
    for (const std::uint64_t slot : words) {
      if (SlotWord::empty(slot)) continue;
      const auto block = view(SlotWord::Address::get(slot));
      if (!block) return Status::damaged;
      add(SlotWord::Address::get(slot), *block);
    }
    std::uint64_t steps = counted_.overflow.get();
    for (std::uint64_t address = SlotWord::cached(words[0]) ? word(cut().head_at(next)) : 0; address != 0; --steps) {
      const auto block = view(address);
      if (!block || steps == 0) return Status::damaged;
      if (block->head.bucket == next) add(address, *block);
      address = block->head.next;
    }
    if (!keys.empty() || !of_bucket.empty()) ++looked;
    const bool named = keys.size() + here > room;
    if (named && next > first) break;
    if (named && named_here > room) return Status::no_room;
    for (const auto& [address, key, expires] : of_bucket) {
      const auto bytes = static_cast<std::uint32_t>(key.size());
      const bool has_expiry = expires != index::kNoExpiry;
      const std::uint32_t length = bytes | (named ? ScanKey::kNamed : 0) | (has_expiry ? ScanKey::kExpires : 0);
      const base::Bytes head = base::bytes_of(length), body = named ? base::bytes_of(address) : key;
      keys.insert(keys.end(), head.begin(), head.end());
      keys.insert(keys.end(), body.begin(), body.end());
      const base::Bytes end = base::bytes_of(expires);
      if (has_expiry) keys.insert(keys.end(), end.begin(), end.end());
    }
  }
  return Status::done;
}

Status Zone::recall(std::uint64_t record, Answer& answer) {
  const auto line = base::load<LineRecord>(at(record));
  answer.reply.flags |= static_cast<std::uint16_t>(OutcomeWord::Flags::get(line.outcome)) | Reply::kAgain;
  answer.reply.version = line.version;
  answer.reply.number = line.number;
  if (line.block != 0) {
    const auto block = view(line.block);
    if (!block || block->head.bucket >= cut().bucket_count) return Status::damaged;
    // Another zone's block may be freed now. The client asks with another bucket than before.
    if (cut().zone_of(block->head.bucket) != number_) return Status::bad_request_id;
    answer.reply.value = block->value;
    answer.block = line.block;
    answer.key_bytes = static_cast<std::uint32_t>(block->key.size());
  } else {
    std::memcpy(text_.data(), line.text.data(), kTextBytes);
    answer.reply.value =
        base::Bytes(text_).first(std::min<std::uint64_t>(OutcomeWord::TextBytes::get(line.outcome), kTextBytes));
  }
  return static_cast<Status>(OutcomeWord::Status::get(line.outcome));
}

// --- room

std::optional<std::uint64_t> Zone::take(std::uint64_t bytes, For what) {
  const auto attempt = [&]() -> std::optional<std::uint64_t> {
    if (what == For::new_key && !slabs_.hold_reserve()) return std::nullopt;
    return slabs_.take(bytes);
  };
  if (const auto address = attempt()) return address;
  collect(limbo_.size());
  if (const auto address = attempt()) return address;
  if (what == For::new_key || !slabs_.spend_reserve()) return std::nullopt;
  FARPOOL_MARK(outback_reserve_spent);
  return slabs_.take(bytes);
}

void Zone::free(std::uint64_t address, std::uint64_t bytes) {
  if (ground_.settings.eras == nullptr || bytes <= ground_.settings.inline_bytes) return slabs_.give(address, bytes);
  limbo_.push_back({.era = ground_.settings.eras->now(), .address = address, .bytes = bytes});
}

void Zone::collect(std::size_t most) {
  for (Freed* freed = given_back_.exchange(nullptr, std::memory_order_acquire); freed != nullptr;) {
    free(freed->address, freed->bytes);
    delete std::exchange(freed, freed->next);
  }
  if (limbo_.empty()) return;
  const std::uint64_t safe = ground_.settings.eras->safe();
  for (; most > 0 && !limbo_.empty() && limbo_.front().era < safe; limbo_.pop_front(), --most) {
    slabs_.give(limbo_.front().address, limbo_.front().bytes);
  }
}

void Zone::write(std::uint64_t address, std::uint64_t bucket, std::uint64_t version, std::uint64_t next,
                 base::Bytes key, base::Bytes value) {
  block_.resize(block_bytes(key.size(), value.size()));
  write_block(block_, address, bucket, version, next, key, value);
  hand_.write(at(address), block_);
}

// --- placing

Zone::Arranged Zone::arrange(Words& words, Seed& seed, std::uint64_t hash, std::uint64_t key) const {
  std::uint64_t& own = words[slot_of(hash, seed.value)];
  const bool cached = SlotWord::cached(own);
  if (SlotWord::empty(own)) {
    own = SlotWord::cached_as(key, cached);
    return Arranged::yes;
  }
  std::array<std::uint64_t, kBucketSlots> hashes{hash}, keys{key};
  std::size_t count = 1;
  for (const std::uint64_t other : words) {
    if (SlotWord::empty(other)) continue;
    if (count == kBucketSlots) return Arranged::no;
    const auto block = view(SlotWord::Address::get(other));
    if (!block) return Arranged::damaged;
    hashes[count] = this->hash(block->key);
    keys[count++] = other;
  }
  const auto another = find_seed(std::span(hashes).first(count));
  if (!another) return Arranged::no;
  words.fill(SlotWord::cached_as(0, cached));
  for (std::size_t i = 0; i < count; ++i) words[slot_of(hashes[i], *another)] = SlotWord::cached_as(keys[i], cached);
  seed = {.value = *another, .version = static_cast<std::uint16_t>(seed.version + 1)};
  return Arranged::yes;
}

void Zone::plan_bucket(std::uint64_t bucket, const Words& before, const Words& after, Seed seed_before, Seed seed_after,
                       Plan& plan) const {
  for (std::uint64_t slot = 0; slot < kBucketSlots; ++slot) {
    if (after[slot] != before[slot]) plan.add(cut().slot_at(bucket, slot), after[slot]);
  }
  if (seed_after == seed_before) return;
  const std::uint64_t at = cut().seed_word_at(bucket);
  plan.add(at, with_seed(word(at), cut().seed_number(bucket), seed_after));
}

// A key that is not there gets a slot, a slot under another seed, or a place at the head of the overflow list.
Status Zone::place(Work& work, std::uint64_t address, std::uint64_t bytes, std::uint64_t& next) {
  const std::uint64_t bucket = work.request->place;
  const Words before = words_of(bucket);
  const Seed seed_before = seed_of(bucket);
  Words after = before;
  Seed seed = seed_before;
  next = 0;
  switch (arrange(after, seed, work.hash, SlotWord::of(print_of(work.hash), bytes, address, false))) {
    case Arranged::damaged:
      return Status::damaged;
    case Arranged::yes:
      work.as = Work::As::placed;
      work.reseeded = seed != seed_before;
      break;
    case Arranged::no:
      work.as = Work::As::overflowed;
      for (std::uint64_t& slot : after) slot = SlotWord::cached_as(slot, true);
      next = word(cut().head_at(bucket));
      work.plan.add(cut().head_at(bucket), address);
      break;
  }
  plan_bucket(bucket, before, after, seed_before, seed, work.plan);
  return Status::done;
}

// --- changing

bool Zone::fits_in_place(const Work& work) const {
  const Found& found = work.found;
  if (!found.there || found.view.value.size() != work.decision.value.size() ||
      work.decision.value.size() > kMostInPlace || found.view.head.bytes() > ground_.settings.inline_bytes) {
    return false;
  }
  const bool long_text = work.decision.value.size() > kTextBytes;
  return work.decision.text == Decision::Text::none || !long_text;
}

void Zone::put_in_place(Work& work) {
  const Found& found = work.found;
  work.as = Work::As::in_place;
  BlockHead head = found.view.head;
  head.version = work.version;
  head.checksum = block_checksum(found.address, head, found.view.key, work.decision.value);
  work.plan.add(found.address + kVersionAt, head.version);
  work.plan.add(found.address + kChecksumAt, head.checksum);
  const std::uint64_t begin = kBlockHeader + found.view.key.size(), end = begin + work.decision.value.size();
  for (std::uint64_t offset = begin / 8 * 8; offset < end; offset += 8) {
    std::uint64_t now = word(found.address + offset);
    auto bytes = base::mutable_bytes_of(now);
    for (std::uint64_t i = 0; i < 8; ++i) {
      if (offset + i >= begin && offset + i < end) bytes[i] = work.decision.value[offset + i - begin];
    }
    if (now != word(found.address + offset)) work.plan.add(found.address + offset, now);
  }
}

Status Zone::put(Work& work) {
  work.version = next_version();
  if (fits_in_place(work)) {
    put_in_place(work);
    return keep_text(work);
  }
  const Request& request = *work.request;
  const std::uint64_t bytes = block_bytes(request.key.size(), work.decision.value.size());
  const auto address = take(bytes, work.found.there ? For::other : For::new_key);
  if (!address) return Status::full;
  std::uint64_t next = 0;
  Status status = Status::done;
  if (work.found.there) {
    work.as = Work::As::replaced;
    const std::uint64_t slot = cut().slot_at(request.place, work.found.slot);
    if (work.found.overflow) {
      next = work.found.view.head.next;
      work.plan.add(work.found.link, *address);
    } else {
      work.plan.add(slot, SlotWord::of(print_of(work.hash), bytes, *address, SlotWord::cached(word(slot))));
    }
  } else {
    status = place(work, *address, bytes, next);
  }
  if (status == Status::done) status = keep_text(work);
  if (status != Status::done) {
    slabs_.give(*address, bytes);
    return status;
  }
  write(*address, request.place, work.version, next, request.key, work.decision.value);
  return Status::done;
}

Status Zone::erase(Work& work) {
  const std::uint64_t bucket = work.request->place;
  work.as = Work::As::erased;
  const Words before = words_of(bucket);
  Words after = before;
  if (work.found.overflow) {
    const auto others = others_in_list(bucket, work.found.address);
    if (!others) return Status::damaged;
    work.plan.add(work.found.link, work.found.view.head.next);
    for (std::uint64_t& slot : after) slot = SlotWord::cached_as(slot, *others > 0);
  } else {
    after[work.found.slot] = SlotWord::cached_as(0, SlotWord::cached(before[work.found.slot]));
  }
  const Seed seed = seed_of(bucket);
  plan_bucket(bucket, before, after, seed, seed, work.plan);
  return keep_text(work);
}

// Sees to it that the line remembers the text of the outcome: in its record, or in a block.
Status Zone::keep_text(Work& work) {
  using Text = Decision::Text;
  if (work.decision.text == Text::none) return Status::done;
  const bool before = work.decision.text == Text::before;
  const base::Bytes text = before ? work.found.view.value : work.decision.value;
  if (text.size() <= kTextBytes) {
    std::copy(text.begin(), text.end(), text_.begin());
    work.before_inline = before;
    return Status::done;
  }
  if (before) {
    work.outcome_block = work.found.address;
    work.keeps_old = true;
    return Status::done;
  }
  const std::uint64_t bytes = block_bytes(0, text.size());
  const auto address = take(bytes, For::other);
  if (!address) return Status::full;
  work.outcome_block = *address;
  write(*address, work.request->place, work.version, 0, {}, text);
  return Status::done;
}

void Zone::make(const Plan& plan) const {
  for (std::size_t i = 0; i < plan.count; ++i) hand_.write(at(plan.effects[i].at), plan.effects[i].word);
}

void Zone::commit(const Work& work, const Answer& answer) {
  const std::uint64_t number = fabric::RequestId::of(work.request->request_id).number;
  LineRecord line{.state = LineState::of(number, LineState::kDecided),
                  .version = answer.reply.version,
                  .number = answer.reply.number,
                  .block = work.outcome_block,
                  .effect_count = work.plan.count};
  const bool inline_text = work.outcome_block == 0 && work.decision.text != Decision::Text::none;
  line.outcome = OutcomeWord::Status::put(static_cast<std::uint64_t>(answer.reply.status)) |
                 OutcomeWord::Flags::put(answer.reply.flags & Reply::kExisted) |
                 OutcomeWord::TextBytes::put(inline_text ? answer.reply.value.size() : 0);
  if (inline_text) std::memcpy(line.text.data(), text_.data(), kTextBytes);
  std::copy_n(work.plan.effects.begin(), work.plan.count, line.effects.begin());
  const std::size_t used = offsetof(LineRecord, effects) + work.plan.count * sizeof(Effect);
  hand_.write(at(work.record), LineState::of(number, LineState::kBegun));
  hand_.write(at(work.record) + 8, base::bytes_of(line).first(used).subspan(8));
  hand_.write(at(work.record), line.state);
  make(work.plan);
  hand_.write(at(work.record), LineState::of(number, LineState::kDone));
}

void Zone::count(const Work& work) {
  using As = Work::As;
  const std::uint64_t after = work.request->key.size() + work.decision.value.size();
  const std::uint64_t before = work.found.view.key.size() + work.found.view.value.size();
  switch (work.as) {
    case As::nothing:
      return;
    case As::placed:
    case As::overflowed:
      counted_.keys.add();
      counted_.bytes.add(after);
      counted_.overflow.add(work.as == As::overflowed ? 1 : 0);
      bump<&index::NodeMarks::reseeds>(work.reseeded ? 1 : 0);
      return;
    case As::replaced:
      return counted_.bytes.add(after - before);
    case As::in_place:
      return bump<&index::NodeMarks::in_place>();
    case As::erased:
      counted_.keys.add(~0ull);
      counted_.bytes.add(0 - before);
      counted_.overflow.add(work.found.overflow ? ~0ull : 0);
      return;
  }
}

// What follows a change, and is no zone of it.
void Zone::tidy(const Work& work) {
  using As = Work::As;
  if ((work.as == As::replaced || work.as == As::erased) && !work.keeps_old) {
    free(work.found.address, work.found.view.head.bytes());
  }
  if (work.as == As::erased && !work.found.overflow) pull(work.request->place);
  compact();
}

Status Zone::seek(Work& work) {
  const Request& request = *work.request;
  collect(kCollectedAtOnce);
  work.hash = hash(request.key);
  if (!belongs(work.hash, request.place)) return Status::bad_place;
  std::uint64_t bucket = request.place;
  if (!look_before(request.place, work.hash, request.key, work.found, bucket)) return Status::damaged;
  if (bucket == request.place) return Status::done;
  // The key moves first, and then it is where the request says.
  if (!move_key(bucket, work.found, work.hash, request.place)) return Status::damaged;
  return look(request.place, work.hash, request.key, work.found) ? Status::done : Status::damaged;
}

Status Zone::change(const Request& request, fabric::Hand hand, std::uint64_t record, Answer& answer, Done& done) {
  hand_ = hand;
  done = {};
  Work work{.request = &request, .record = record};
  if (const Status status = seek(work); status != Status::done) return status;
  if (const Status status = judge_move(work); status != Status::done) return status;
  const Found& found = work.found;
  work.decision = decide(request, found.there ? std::optional(found.view) : std::nullopt, scratch_);
  answer.reply.flags |= work.decision.existed ? Reply::kExisted : 0;
  answer.reply.version = found.there ? found.view.head.version : 0;
  answer.reply.number = work.decision.number;
  Status status = work.decision.status;
  if (work.decision.kind == Decision::Kind::put) status = put(work);
  if (work.decision.kind == Decision::Kind::erase) status = erase(work);
  if (status == Status::full && !limbo_.empty()) answer.reply.flags |= Reply::kWaits;
  if (status != Status::done || work.decision.kind == Decision::Kind::keep) return status;
  answer.reply.version = work.version;
  const bool before = work.decision.text == Decision::Text::before;
  if (work.decision.text != Decision::Text::none) {
    answer.reply.value = before ? found.view.value : work.decision.value;
    if (work.before_inline) answer.reply.value = base::Bytes(text_).first(found.view.value.size());
    answer.block = work.outcome_block;
    answer.key_bytes = before ? static_cast<std::uint32_t>(found.view.key.size()) : 0;
  }
  done.dropped = base::load<LineRecord>(at(record)).held();
  commit(work, answer);
  done.changed = true;
  count(work);
  tidy(work);
  return Status::done;
}

// A slot has become free: a key of the overflow list moves there if it can. That is a change of its own, in the zone's
// own record.
bool Zone::pull(std::uint64_t bucket) {
  const Words before = words_of(bucket);
  if (!SlotWord::cached(before[0])) return false;
  std::uint64_t link = cut().head_at(bucket), steps = counted_.overflow.get();
  for (std::uint64_t address = word(link); address != 0; --steps) {
    const auto block = view(address);
    if (!block || steps == 0) return false;
    if (block->head.bucket != bucket) {
      link = address + kNextAt;
      address = block->head.next;
      continue;
    }
    const auto others = others_in_list(bucket, address);
    if (!others) return false;
    Words after = before;
    Seed seed = seed_of(bucket);
    const std::uint64_t key = hash(block->key);
    if (arrange(after, seed, key, SlotWord::of(print_of(key), block->head.bytes(), address, false)) != Arranged::yes) {
      return false;
    }
    for (std::uint64_t& slot : after) slot = SlotWord::cached_as(slot, *others > 0);
    Plan plan;
    plan.add(link, block->head.next);
    plan_bucket(bucket, before, after, seed_of(bucket), seed, plan);
    const bool reseeded = seed != seed_of(bucket);
    commit_own(plan);
    counted_.overflow.add(~0ull);
    bump<&index::NodeMarks::pulled>();
    bump<&index::NodeMarks::reseeds>(reseeded ? 1 : 0);
    return true;
  }
  return false;
}

// A change that nobody asked for, in the zone's own record.
void Zone::commit_own(const Plan& plan) const {
  LineRecord line{.effect_count = plan.count};
  std::copy_n(plan.effects.begin(), plan.count, line.effects.begin());
  const std::uint64_t record = cut().zone_line_at(number_);
  hand_.write(at(record), LineState::of(1, LineState::kBegun));
  hand_.write(at(record) + 8, base::bytes_of(line).first(offsetof(LineRecord, effects) + plan.count * 16).subspan(8));
  hand_.write(at(record), LineState::of(1, LineState::kDecided));
  make(plan);
  hand_.write(at(record), LineState::of(1, LineState::kDone));
}

void Zone::compact() {
  for (int i = 0; i < kMovedAtOnce; ++i) {
    const auto page = slabs_.victim();
    if (!page) {
      cursor_ = 0;
      return;
    }
    const auto block = slabs_.next_block(*page, cursor_);
    if (!block) {
      slabs_.spare();
      cursor_ = 0;
      return;
    }
    cursor_ = *block + 1;
    move(*block);
    if (slabs_.emptying() != page) cursor_ = 0;
  }
}

// Copies a block to another place. The one word that points to it then is the change.
void Zone::move(std::uint64_t address) {
  const auto block = view(address);
  if (!block || block->head.bytes() > kMostSmall || block->head.bucket >= cut().bucket_count ||
      cut().zone_of(block->head.bucket) != number_) {
    return;
  }
  const std::uint64_t bucket = block->head.bucket, key = hash(block->key), bytes = block->head.bytes();
  Found found;
  // Blocks that lines hold, or that wait for an era, stay.
  if (!look(bucket, key, block->key, found) || !found.there || found.address != address) return;
  const auto to = slabs_.take(bytes);
  if (!to) return;
  write(*to, bucket, block->head.version, found.overflow ? block->head.next : 0, block->key, block->value);
  const std::uint64_t slot = cut().slot_at(bucket, found.slot);
  if (found.overflow) {
    hand_.write(at(found.link), *to);
  } else {
    hand_.write(at(slot), SlotWord::of(print_of(key), bytes, *to, SlotWord::cached(word(slot))));
  }
  free(address, bytes);
  bump<&index::NodeMarks::moved_blocks>();
}

}  // namespace farpool::outback
