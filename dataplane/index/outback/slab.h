// SPDX-License-Identifier: Apache-2.0
// Which blocks of the memory are in use. All of it is in this process's own memory: the next process finds out from what
// slots and overflow lists point to. So a process that dies leaves nothing half allocated.
//
// The memory is cut into chunks, and a zone takes a chunk when it needs one. Blocks of up to kMostSmall bytes lie in
// pages; a page has blocks of one size. Longer ones are runs of kRunUnit bytes. A page without blocks goes back to the
// chunk's free runs, and a chunk without any goes back to all zones.
//
// Sizes are so close that the average block wastes about 3 %. When values change their length, pages of the old size
// lose their blocks one by one: Slabs names the emptiest page (victim), and the zone moves its blocks elsewhere.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "index/outback/layout.h"

namespace farpool::outback {

inline constexpr std::uint64_t kMostSmall = 2048;
inline constexpr std::uint64_t kRunUnit = 256;

// The sizes of small blocks.
class Sizes {
 public:
  Sizes();
  std::size_t count() const { return sizes_.size(); }
  std::uint64_t bytes(std::size_t of) const { return sizes_[of]; }
  std::size_t of(std::uint64_t bytes) const { return by_units_[(bytes + kBlockAlign - 1) / kBlockAlign]; }
  std::uint64_t blocks(std::size_t of) const { return kPageBytes / sizes_[of]; }

 private:
  std::vector<std::uint64_t> sizes_;
  std::array<std::uint8_t, kMostSmall / kBlockAlign + 1> by_units_{};
};
const Sizes& sizes();
// Returns how much memory a block of that length takes.
std::uint64_t footprint(std::uint64_t bytes);

// What all zones share: who has which chunk, and the state of each page. A page's state belongs to the zone that has the
// chunk.
class Chunks {
 public:
  static constexpr std::uint32_t kNone = ~0u;
  struct Page {
    std::uint16_t size = 0;  // index in Sizes, plus 1; 0: not a page of blocks
    std::uint16_t used = 0;  // blocks
    bool listed = false;     // among the pages that have room
    std::uint32_t before = kNone, after = kNone;
    std::array<std::uint64_t, 6> taken{};
  };

  explicit Chunks(const Cut& cut);
  const Cut& cut() const { return cut_; }
  // Gives a chunk that nobody has to a zone. Any thread.
  std::optional<std::uint64_t> claim(std::uint64_t zone);
  bool claim(std::uint64_t chunk, std::uint64_t zone);
  void release(std::uint64_t chunk) { owners_[chunk].store(0, std::memory_order_release); }
  Page& page(std::uint64_t index) { return pages_[index]; }
  std::uint64_t chunk_of(std::uint64_t address) const { return (address - cut_.blocks) / cut_.figures.chunk_bytes; }

 private:
  const Cut cut_;
  std::vector<std::atomic<std::uint32_t>> owners_;  // zone + 1
  std::vector<Page> pages_;
};

// The blocks of one zone. One thread at a time.
class Slabs {
 public:
  Slabs(Chunks& chunks, std::uint64_t zone);

  // Returns the address of room for a block of that length. Nothing: there is none.
  std::optional<std::uint64_t> take(std::uint64_t bytes);
  void give(std::uint64_t address, std::uint64_t bytes);

  // Keeps a free run back, so that a value may change its length when nothing else is free: its new block is taken
  // before its old one is given back. New keys get no block while there is no reserve. Returns whether there is one.
  bool hold_reserve();
  // Makes the reserve free memory. Returns false if there was none.
  bool spend_reserve();
  std::uint64_t reserve_bytes() const {
    return std::max(kPageBytes, cut().figures.chunk_bytes / 16 / kPageBytes * kPageBytes);
  }

  // Takes a block over that an earlier process left. False: it overlaps another one, or its page has blocks of another
  // size. After the last one, finish().
  bool adopt(std::uint64_t address, std::uint64_t bytes);
  bool finish();

  struct Usage {
    std::uint64_t live = 0;   // bytes of blocks, as long as they are
    std::uint64_t taken = 0;  // bytes of pages and runs that have blocks
  };
  const Usage& usage() const { return usage_; }
  // Returns the page to be emptied, if pages take more than they should. Its blocks must move; take() uses it no more.
  // It stays the victim until it is empty, or until spare() gives up on it.
  std::optional<std::uint64_t> victim();
  // Returns the address of a block in a page, from the given one on.
  std::optional<std::uint64_t> next_block(std::uint64_t page, std::uint64_t from) const;
  void spare();
  std::optional<std::uint64_t> emptying() const { return victim_; }

 private:
  struct Class {
    std::uint32_t first = Chunks::kNone;  // of its pages that have room, the last used first
    std::uint64_t pages = 0;
    std::uint64_t used = 0;  // blocks
  };
  std::uint64_t page_of(std::uint64_t address) const { return (address - cut().blocks) / kPageBytes; }
  std::uint64_t page_at(std::uint64_t page) const { return cut().blocks + page * kPageBytes; }
  const Cut& cut() const { return chunks_.cut(); }
  std::optional<std::uint64_t> take_run(std::uint64_t bytes, std::uint64_t align);
  void give_run(std::uint64_t address, std::uint64_t bytes);
  void add_free(std::uint64_t address, std::uint64_t bytes);
  void remove_free(std::uint64_t address, std::uint64_t bytes);
  void list(std::uint32_t page);
  void unlist(std::uint32_t page);
  bool choose_victim();

  Chunks& chunks_;
  const std::uint64_t zone_;
  std::vector<Class> classes_;
  std::map<std::uint64_t, std::uint64_t> free_;  // by address
  std::set<std::pair<std::uint64_t, std::uint64_t>> free_by_length_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> adopted_;  // runs
  Usage usage_;
  std::optional<std::uint64_t> reserve_;  // its address
  std::optional<std::uint64_t> victim_;
  std::uint64_t given_since_ = 0;  // blocks, since no victim was found
};

}  // namespace farpool::outback
