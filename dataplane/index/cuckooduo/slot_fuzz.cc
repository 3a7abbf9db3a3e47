// SPDX-License-Identifier: Apache-2.0
// Slots and vaults of other bytes. A slot has a verdict, whatever its bytes; one that is whole is what its pair would be
// put as. A vault gives an index, or a reason why not; once it has been repaired, its index needs no repairs. Some inputs
// have checksums that match.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/crc64.h"
#include "index/cuckooduo/rebuild.h"
#include "index/cuckooduo/slot.h"

namespace duo = farpool::cuckooduo;
namespace base = farpool::base;

namespace {

constexpr duo::Shape kShape{
    .buckets = 3, .slots = 4, .second = 1, .print_bits = 5, .slot_bytes = 48, .stash = 6, .spares = 1};
constexpr base::HashSecret kSecret{1, 2};

base::MutableBytes slot_of(std::vector<std::byte>& vault, duo::Place place) {
  return base::MutableBytes(vault).subspan(place * kShape.slot_bytes, kShape.slot_bytes);
}

void read(std::vector<std::byte>& vault, duo::Place place) {
  const duo::Slot slot = duo::read_slot(slot_of(vault, place), place);
  if (!slot.whole()) return;
  std::vector<std::byte> again(kShape.slot_bytes);
  const std::uint64_t length = duo::put_copy(again, place, slot.version, slot);
  FARPOOL_CHECK(duo::read_slot(again, place).whole());
  const auto end =
      again.begin() + static_cast<std::ptrdiff_t>(slot.state == duo::SlotState::pointer
                                                      ? length
                                                      : duo::kSlotHeader + slot.key.size() + slot.value.size());
  const auto body = again.begin() + duo::kSlotHeader;
  FARPOOL_CHECK(std::equal(body, end, slot_of(vault, place).begin() + duo::kSlotHeader));
}

// The checksum that the slot would have: its first word says how long it is.
void seal(base::MutableBytes slot, duo::Place place) {
  const auto head = base::load<std::uint64_t>(slot.data());
  const std::uint64_t pair = duo::SlotHead::KeyBytes::get(head) + duo::SlotHead::ValueBytes::get(head);
  const std::uint64_t body = duo::SlotHead::State::get(head) == 2 ? 16 : base::round_up(pair, 8);
  if (duo::kSlotHeader + body > slot.size()) return;
  base::store(slot.data() + 8, base::crc64(slot.subspan(16, 8 + body), base::crc64(slot.first(8), place + 1)));
}

// Half of all pointers with one hash have one key.
bool same_key(const duo::Slot& a, const duo::Slot& b) { return (a.units ^ b.units) % 2 == 0; }

void rebuild(std::vector<std::byte> vault) {
  auto rebuilt = duo::rebuild(kShape, 3, kSecret, vault, same_key);
  if (!rebuilt.ok()) {
    FARPOOL_CHECK(rebuilt.code() == base::Code::corrupt && !rebuilt.status().message().empty());
    return;
  }
  if (rebuilt->next_version + kShape.end() > duo::kMostVersion) return;
  const std::vector<std::byte> before = vault;
  for (const duo::Effect& effect : rebuilt->repairs) {
    const base::MutableBytes into = slot_of(vault, effect.place);
    if (effect.kind == duo::Effect::Kind::clear) {
      std::memset(into.data(), 0, duo::kClearedBytes);
    } else {
      const auto from = base::Bytes(before).subspan(effect.from * kShape.slot_bytes, kShape.slot_bytes);
      duo::put_copy(into, effect.place, effect.version, duo::read_slot(from, effect.from));
    }
  }
  for (duo::Place place = 0; place < kShape.end(); ++place) {
    const duo::Slot slot = duo::read_slot(slot_of(vault, place), place);
    FARPOOL_CHECK(slot.verdict != duo::Slot::Verdict::torn && slot.whole() == rebuilt->index.taken(place));
    if (!slot.whole()) continue;
    const duo::FingerIndex::Candidates found = rebuilt->index.find(slot.hash_under(kSecret));
    FARPOOL_CHECK(std::find(found.places.begin(), found.places.begin() + found.count, place) !=
                  found.places.begin() + found.count);
  }
  const auto again = duo::rebuild(kShape, 3, kSecret, vault, same_key);
  FARPOOL_CHECK(again.ok() && again->repairs.empty() && again->index.keys() == rebuilt->index.keys());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t how = *data++;
  --size;
  std::vector<std::byte> vault(kShape.vault_bytes());
  if (how % 2 == 0) {
    if (size > 0) std::memcpy(vault.data(), data, std::min(size, vault.size()));
  } else {
    // Pairs and pointers: a place, a version, and a key or hash of few that there are.
    for (; size >= 4; data += 4, size -= 4) {
      const duo::Place place = data[0] % kShape.end();
      const std::uint64_t version = 1 + data[1] % 16;
      const std::byte key[] = {std::byte{data[2]}, std::byte{data[3]}};
      if (data[3] % 3 == 0) {
        duo::put_pointer(slot_of(vault, place), place, version, data[2], 1 + data[2] % 4,
                         data[2] % 8 * 0x1020408011223344ull);
      } else {
        duo::put_pair(slot_of(vault, place), place, version, key, {});
      }
      if (data[1] > 240) slot_of(vault, place)[data[1] % 48] ^= std::byte{data[2]};
    }
  }
  for (duo::Place place = 0; place < kShape.end(); ++place) {
    if (how % 4 == 2) seal(slot_of(vault, place), place);
    read(vault, place);
  }
  rebuild(std::move(vault));
  return 0;
}
