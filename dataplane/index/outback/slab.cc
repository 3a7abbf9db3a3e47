// SPDX-License-Identifier: Apache-2.0
#include "index/outback/slab.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace farpool::outback {
namespace {

// Pages may take a sixteenth more than what blocks of their sizes would need.
constexpr std::uint64_t kSpareShare = 16;
// A search for a victim looks at so many pages of a size, and there is one after so many blocks were given back.
constexpr int kPagesLookedAt = 32;
constexpr std::uint64_t kGivenBetween = 64;
// Free runs that are looked at for an aligned one, before one is taken that is surely long enough.
constexpr int kRunsLookedAt = 16;

}  // namespace

Sizes::Sizes() {
  // Sizes that fill a page with few bytes left, each at most a sixteenth more than the one before where there are such.
  std::vector<std::uint64_t> fits;
  for (std::uint64_t blocks = kPageBytes / 48; blocks >= kPageBytes / kMostSmall; --blocks) {
    const std::uint64_t bytes = kPageBytes / blocks / kBlockAlign * kBlockAlign;
    if (fits.empty() || fits.back() != bytes) fits.push_back(bytes);
  }
  for (std::size_t i = 0; i < fits.size(); ++i) {
    const std::uint64_t last = sizes_.empty() ? 0 : sizes_.back();
    const bool is_last = i + 1 == fits.size();
    if (is_last || sizes_.empty() || fits[i + 1] * 16 > last * 17) sizes_.push_back(fits[i]);
  }
  std::size_t of = 0;
  for (std::size_t units = 0; units < by_units_.size(); ++units) {
    while (sizes_[of] < units * kBlockAlign) ++of;
    by_units_[units] = static_cast<std::uint8_t>(of);
  }
}

const Sizes& sizes() {
  static const Sizes all;
  return all;
}

std::uint64_t footprint(std::uint64_t bytes) {
  return bytes <= kMostSmall ? sizes().bytes(sizes().of(bytes)) : base::round_up(bytes, kRunUnit);
}

Chunks::Chunks(const Cut& cut)
    : cut_(cut), owners_(cut.chunks), pages_(cut.chunks * (cut.figures.chunk_bytes / kPageBytes)) {}

bool Chunks::claim(std::uint64_t chunk, std::uint64_t zone) {
  std::uint32_t nobody = 0;
  const auto us = static_cast<std::uint32_t>(zone + 1);
  return owners_[chunk].compare_exchange_strong(nobody, us, std::memory_order_acq_rel) || nobody == us;
}

std::optional<std::uint64_t> Chunks::claim(std::uint64_t zone) {
  for (std::uint64_t chunk = 0; chunk < owners_.size(); ++chunk) {
    if (owners_[chunk].load(std::memory_order_relaxed) == 0 && claim(chunk, zone)) return chunk;
  }
  return std::nullopt;
}

Slabs::Slabs(Chunks& chunks, std::uint64_t zone) : chunks_(chunks), zone_(zone), classes_(sizes().count()) {}

void Slabs::add_free(std::uint64_t address, std::uint64_t bytes) {
  free_.emplace(address, bytes);
  free_by_length_.emplace(bytes, address);
}
void Slabs::remove_free(std::uint64_t address, std::uint64_t bytes) {
  free_.erase(address);
  free_by_length_.erase({bytes, address});
}

std::optional<std::uint64_t> Slabs::take_run(std::uint64_t bytes, std::uint64_t align) {
  for (;;) {
    auto found = free_by_length_.lower_bound({bytes, 0});
    for (int looked = 0; found != free_by_length_.end(); ++found, ++looked) {
      if (looked == kRunsLookedAt) {
        const auto sure = free_by_length_.lower_bound({bytes + align, 0});
        if (sure != free_by_length_.end() && sure->first > found->first) found = sure;
      }
      const auto [length, address] = *found;
      const std::uint64_t begin = cut().blocks + base::round_up(address - cut().blocks, align);
      if (begin + bytes > address + length) continue;
      remove_free(address, length);
      if (begin > address) add_free(address, begin - address);
      if (begin + bytes < address + length) add_free(begin + bytes, address + length - begin - bytes);
      return begin;
    }
    const auto chunk = bytes > cut().figures.chunk_bytes ? std::nullopt : chunks_.claim(zone_);
    if (!chunk) return std::nullopt;
    add_free(cut().blocks + *chunk * cut().figures.chunk_bytes, cut().figures.chunk_bytes);
  }
}

void Slabs::give_run(std::uint64_t address, std::uint64_t bytes) {
  // Runs of two chunks never become one.
  const std::uint64_t chunk = chunks_.chunk_of(address);
  auto after = free_.lower_bound(address);
  if (after != free_.end() && after->first == address + bytes && chunks_.chunk_of(after->first) == chunk) {
    bytes += after->second;
    remove_free(after->first, after->second);
  }
  auto before = free_.lower_bound(address);
  if (before != free_.begin()) {
    --before;
    if (before->first + before->second == address && chunks_.chunk_of(before->first) == chunk) {
      address = before->first;
      bytes += before->second;
      remove_free(before->first, before->second);
    }
  }
  if (bytes == cut().figures.chunk_bytes) return chunks_.release(chunk);
  add_free(address, bytes);
}

void Slabs::list(std::uint32_t page) {
  Chunks::Page& at = chunks_.page(page);
  Class& of = classes_[at.size - 1u];
  at.listed = true;
  at.before = Chunks::kNone;
  at.after = of.first;
  if (of.first != Chunks::kNone) chunks_.page(of.first).before = page;
  of.first = page;
}

void Slabs::unlist(std::uint32_t page) {
  Chunks::Page& at = chunks_.page(page);
  if (!at.listed) return;
  at.listed = false;
  if (at.before != Chunks::kNone) chunks_.page(at.before).after = at.after;
  if (at.after != Chunks::kNone) chunks_.page(at.after).before = at.before;
  Class& of = classes_[at.size - 1u];
  if (of.first == page) of.first = at.after;
}

std::optional<std::uint64_t> Slabs::take(std::uint64_t bytes) {
  if (bytes > kMostSmall) {
    const std::uint64_t run = base::round_up(bytes, kRunUnit);
    const auto address = take_run(run, kRunUnit);
    if (address) usage_.live += bytes, usage_.taken += run;
    return address;
  }
  const std::size_t size = sizes().of(bytes);
  Class& of = classes_[size];
  if (of.first == Chunks::kNone) {
    const auto run = take_run(kPageBytes, kPageBytes);
    if (!run) return std::nullopt;
    const auto page = static_cast<std::uint32_t>(page_of(*run));
    chunks_.page(page) = {.size = static_cast<std::uint16_t>(size + 1)};
    ++of.pages;
    usage_.taken += kPageBytes;
    list(page);
  }
  const std::uint32_t number = of.first;
  Chunks::Page& page = chunks_.page(number);
  std::size_t word = 0;
  while (page.taken[word] == ~0ull) ++word;
  const auto bit = static_cast<std::uint64_t>(std::countr_one(page.taken[word]));
  const std::uint64_t block = word * 64 + bit;
  page.taken[word] |= 1ull << bit;
  ++of.used;
  if (++page.used == sizes().blocks(size)) unlist(number);
  usage_.live += bytes;
  return page_at(number) + block * sizes().bytes(size);
}

bool Slabs::hold_reserve() {
  if (!reserve_) reserve_ = take_run(reserve_bytes(), kPageBytes);
  return reserve_.has_value();
}

bool Slabs::spend_reserve() {
  if (!reserve_) return false;
  give_run(*std::exchange(reserve_, std::nullopt), reserve_bytes());
  return true;
}

void Slabs::give(std::uint64_t address, std::uint64_t bytes) {
  usage_.live -= bytes;
  if (usage_.live == 0) spend_reserve();  // nothing is left to change: other zones may need the chunk
  ++given_since_;
  if (bytes > kMostSmall) {
    const std::uint64_t run = base::round_up(bytes, kRunUnit);
    usage_.taken -= run;
    return give_run(address, run);
  }
  const auto number = static_cast<std::uint32_t>(page_of(address));
  Chunks::Page& page = chunks_.page(number);
  const std::size_t size = page.size - 1u;
  const std::uint64_t block = (address - page_at(number)) / sizes().bytes(size);
  FARPOOL_CHECK(page.size != 0 && (page.taken[block / 64] >> block % 64 & 1) != 0);
  page.taken[block / 64] &= ~(1ull << block % 64);
  Class& of = classes_[size];
  --of.used;
  if (--page.used > 0) {
    if (!page.listed && victim_ != number) list(number);
    return;
  }
  unlist(number);
  if (victim_ == number) victim_.reset();
  page.size = 0;
  --of.pages;
  usage_.taken -= kPageBytes;
  give_run(page_at(number), kPageBytes);
}

bool Slabs::adopt(std::uint64_t address, std::uint64_t bytes) {
  if (!chunks_.claim(chunks_.chunk_of(address), zone_)) return false;
  usage_.live += bytes;
  if (bytes > kMostSmall) {
    const std::uint64_t run = base::round_up(bytes, kRunUnit);
    usage_.taken += run;
    adopted_.emplace_back(address, run);
    return (address - cut().blocks) % kRunUnit == 0;
  }
  const std::size_t size = sizes().of(bytes);
  const auto number = static_cast<std::uint32_t>(page_of(address));
  Chunks::Page& page = chunks_.page(number);
  Class& of = classes_[size];
  if (page.size == 0) {
    page = {.size = static_cast<std::uint16_t>(size + 1)};
    ++of.pages;
    usage_.taken += kPageBytes;
    adopted_.emplace_back(page_at(number), kPageBytes);
  }
  const std::uint64_t block = (address - page_at(number)) / sizes().bytes(size);
  if (page.size != size + 1 || (address - page_at(number)) % sizes().bytes(size) != 0 ||
      block >= sizes().blocks(size)) {
    return false;
  }
  if ((page.taken[block / 64] >> block % 64 & 1) != 0) return false;
  page.taken[block / 64] |= 1ull << block % 64;
  ++page.used;
  ++of.used;
  return true;
}

bool Slabs::finish() {
  std::sort(adopted_.begin(), adopted_.end());
  const std::uint64_t chunk_bytes = cut().figures.chunk_bytes;
  bool sound = true;
  for (std::size_t i = 0; i < adopted_.size();) {
    const std::uint64_t chunk = chunks_.chunk_of(adopted_[i].first);
    std::uint64_t at = cut().blocks + chunk * chunk_bytes;
    const std::uint64_t end = at + chunk_bytes;
    for (; i < adopted_.size() && adopted_[i].first < end; ++i) {
      const auto [address, bytes] = adopted_[i];
      if (address < at || address + bytes > end) return false;
      if (address > at) add_free(at, address - at);
      at = address + bytes;
    }
    if (at < end) add_free(at, end - at);
  }
  for (const auto& [address, bytes] : adopted_) {
    const auto number = static_cast<std::uint32_t>(page_of(address));
    const Chunks::Page& page = chunks_.page(number);
    if (bytes != kPageBytes || page_at(number) != address || page.size == 0) continue;
    if (page.used < sizes().blocks(page.size - 1u)) list(number);
  }
  adopted_ = {};
  return sound;
}

bool Slabs::choose_victim() {
  std::size_t worst = classes_.size();
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    const std::uint64_t blocks = sizes().blocks(i);
    const std::uint64_t spare = classes_[i].pages * blocks - classes_[i].used;
    // A page's worth may lie in the page that take() fills.
    if (spare < 2 * blocks || spare * kSpareShare < classes_[i].pages * blocks) continue;
    if (spare * sizes().bytes(i) > most) most = spare * sizes().bytes(i), worst = i;
  }
  if (worst == classes_.size()) return false;
  std::uint32_t emptiest = Chunks::kNone;
  int looked = 0;
  for (std::uint32_t at = classes_[worst].first; at != Chunks::kNone && looked < kPagesLookedAt;
       at = chunks_.page(at).after, ++looked) {
    if (emptiest == Chunks::kNone || chunks_.page(at).used < chunks_.page(emptiest).used) emptiest = at;
  }
  if (emptiest == Chunks::kNone) return false;
  unlist(emptiest);
  victim_ = emptiest;
  return true;
}

std::optional<std::uint64_t> Slabs::victim() {
  if (!victim_ && given_since_ >= kGivenBetween && !choose_victim()) given_since_ = 0;
  return victim_;
}

void Slabs::spare() {
  if (!victim_) return;
  const auto page = static_cast<std::uint32_t>(*victim_);
  victim_.reset();
  given_since_ = 0;
  if (chunks_.page(page).used < sizes().blocks(chunks_.page(page).size - 1u)) list(page);
}

std::optional<std::uint64_t> Slabs::next_block(std::uint64_t page, std::uint64_t from) const {
  const Chunks::Page& at = chunks_.page(page);
  if (at.size == 0) return std::nullopt;
  const std::uint64_t bytes = sizes().bytes(at.size - 1u), begin = page_at(page);
  for (std::uint64_t block = from <= begin ? 0 : (from - begin + bytes - 1) / bytes;
       block < sizes().blocks(at.size - 1u); ++block) {
    if ((at.taken[block / 64] >> block % 64 & 1) != 0) return begin + block * bytes;
  }
  return std::nullopt;
}

}  // namespace farpool::outback
