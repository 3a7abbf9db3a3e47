// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/slot.h"

#include <cstring>

#include "base/check.h"
#include "base/crc64.h"

namespace farpool::cuckooduo {

using base::Bytes;
using base::MutableBytes;

namespace {

std::uint64_t checksum(Bytes slot, std::uint64_t body_bytes, Place place) {
  return base::crc64(slot.subspan(16, 8 + body_bytes), base::crc64(slot.first(8), place + 1));
}

// Returns the bytes of the body that this head tells of, whole words. 0: there can be no such head.
std::uint64_t body_bytes_of(std::uint64_t head) {
  if (SlotHead::Zero::get(head) != 0) return 0;
  const std::uint64_t pair = SlotHead::KeyBytes::get(head) + SlotHead::ValueBytes::get(head);
  switch (static_cast<SlotState>(SlotHead::State::get(head))) {
    case SlotState::in_place:
      return base::round_up(pair, 8);
    case SlotState::pointer:
      return pair == 0 ? 16 : 0;
    case SlotState::empty:
      break;
  }
  return 0;
}

bool is_empty_pair(std::uint64_t head) {
  return head == SlotHead::State::put(static_cast<std::uint64_t>(SlotState::in_place));
}

std::uint64_t seal(MutableBytes into, Place place, std::uint64_t version, std::uint64_t head,
                   std::uint64_t body_bytes) {
  FARPOOL_CHECK(version > 0 && version <= kMostVersion);
  base::store(into.data(), head);
  base::store(into.data() + 16, version);
  base::store(into.data() + 8, checksum(into, body_bytes, place));
  return kSlotHeader + body_bytes;
}

}  // namespace

Slot read_slot(Bytes bytes, Place place) {
  FARPOOL_CHECK(bytes.size() >= kLeastSlotBytes);
  const auto head = base::load<std::uint64_t>(bytes.data());
  Slot slot;
  slot.version = base::load<std::uint64_t>(bytes.data() + 16);
  if (slot.version > kMostVersion) slot.version = 0;
  if (head == 0) return slot;
  slot.verdict = Slot::Verdict::torn;
  const std::uint64_t body_bytes = body_bytes_of(head);
  if ((body_bytes == 0 && !is_empty_pair(head)) || kSlotHeader + body_bytes > bytes.size() || slot.version == 0 ||
      base::load<std::uint64_t>(bytes.data() + 8) != checksum(bytes, body_bytes, place)) {
    return slot;
  }
  const Bytes body = bytes.subspan(kSlotHeader, body_bytes);
  slot.state = static_cast<SlotState>(SlotHead::State::get(head));
  if (slot.state == SlotState::pointer) {
    const auto pointer = base::load<std::uint64_t>(body.data());
    slot.block = SlotPointer::Block::get(pointer);
    slot.units = SlotPointer::Units::get(pointer);
    slot.hash = base::load<std::uint64_t>(body.data() + 8);
    if (slot.units == 0) return slot;
  } else {
    slot.key = body.first(SlotHead::KeyBytes::get(head));
    slot.value = body.subspan(slot.key.size(), SlotHead::ValueBytes::get(head));
  }
  slot.verdict = Slot::Verdict::whole;
  return slot;
}

std::uint64_t put_pair(MutableBytes into, Place place, std::uint64_t version, Bytes key, Bytes value) {
  FARPOOL_CHECK(fits_in_place(static_cast<std::uint32_t>(into.size()), key.size(), value.size()));
  std::byte* body = into.data() + kSlotHeader;
  const std::uint64_t pair = key.size() + value.size();
  const std::uint64_t words = base::round_up(pair, 8);
  if (!key.empty()) std::memmove(body, key.data(), key.size());
  if (!value.empty()) std::memmove(body + key.size(), value.data(), value.size());
  if (words > pair) std::memset(body + pair, 0, words - pair);
  const std::uint64_t head = SlotHead::State::put(static_cast<std::uint64_t>(SlotState::in_place)) |
                             SlotHead::KeyBytes::put(key.size()) | SlotHead::ValueBytes::put(value.size());
  return seal(into, place, version, head, words);
}

std::uint64_t put_pointer(MutableBytes into, Place place, std::uint64_t version, std::uint64_t block,
                          std::uint64_t units, std::uint64_t hash) {
  FARPOOL_CHECK(block <= SlotPointer::Block::kMax && units > 0 && units <= SlotPointer::Units::kMax);
  base::store(into.data() + kSlotHeader, SlotPointer::Block::put(block) | SlotPointer::Units::put(units));
  base::store(into.data() + kSlotHeader + 8, hash);
  return seal(into, place, version, SlotHead::State::put(static_cast<std::uint64_t>(SlotState::pointer)), 16);
}

std::uint64_t put_copy(MutableBytes into, Place place, std::uint64_t version, const Slot& from) {
  FARPOOL_CHECK(from.whole());
  if (from.state == SlotState::pointer) return put_pointer(into, place, version, from.block, from.units, from.hash);
  return put_pair(into, place, version, from.key, from.value);
}

}  // namespace farpool::cuckooduo
