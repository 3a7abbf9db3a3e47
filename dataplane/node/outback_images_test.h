// SPDX-License-Identifier: Apache-2.0
// What lies in a memory node with an Outback table: keys in slots and in overflow, long values, outcomes that lines
// remember, and a change that the process has decided and not made. For the fuzzer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "index/outback/layout.h"
#include "layout/geometry.h"
#include "sim/dialect_outback.h"
#include "sim/world.h"

namespace farpool::node {

inline constexpr layout::GeometryRequest kOutbackImage{
    .memory_bytes = 2560 << 10, .table_percent = 1, .max_sessions = 4, .protocol = layout::Protocol::outback};

// Returns images of one pool: whole ones, and some whose process died after so many words of a change.
inline std::vector<std::vector<std::byte>> outback_images() {
  const sim::WorldOptions options{.geometry = kOutbackImage};
  const std::vector<std::string> keys = sim::outback_neighbours(options, 8);
  std::vector<std::vector<std::byte>> images;
  for (const std::uint64_t words : {~0ull >> 1, 1ull, 12ull, 20ull, 24ull}) {
    sim::World world(options);
    sim::Client& client = world.connect("a");
    const auto put = [&](const std::string& key, std::string value) {
      world.spawn(client, world.call(client, {.kind = sim::Call::Kind::put, .key = key, .value = std::move(value)},
                                     base::kSecond));
    };
    for (const std::string& key : keys) {
      put(key, key == keys[3] ? std::string(20'000, 'y') : "v");
      FARPOOL_CHECK(world.settle(client));
    }
    for (int i = 0; i < 20; ++i) put("key-" + std::to_string(i), std::string(static_cast<std::size_t>(i) * 30, 'x'));
    FARPOOL_CHECK(world.settle(client));
    world.responder().die_after(words);
    put(keys[0], std::string(200, 'z'));
    FARPOOL_CHECK(world.settle(client) && world.responder().alive() == (words > 100));
    const base::Bytes memory = world.memory();
    images.emplace_back(memory.begin(), memory.end());
  }
  return images;
}

// Edits a word in front of the blocks, or a block's head under a right checksum.
inline void edit_outback(base::MutableBytes heap, bool block, std::uint64_t where, std::uint64_t value) {
  const auto cut = outback::parse(heap);
  if (!cut.ok()) return;
  const auto word = [&](std::uint64_t begin, std::uint64_t end) {
    return heap.data() + begin + where % ((end - begin) / 8) * 8;
  };
  if (!block) {
    const std::uint64_t heads_end = cut->heads + cut->figures.overflow * 8;
    switch (value % 4) {
      case 0:
        return base::store(word(cut->clients, cut->seeds), value / 4);
      case 1:
        return base::store(word(cut->seeds, heads_end), value / 4);
      case 2: {  // another slot's
        const std::uint64_t slots = cut->bucket_count * outback::kBucketSlots;
        return base::store(word(cut->buckets, cut->heads),
                           base::load<std::uint64_t>(heap.data() + cut->buckets + value / 4 % slots * 8));
      }
      default: {
        std::byte* at = word(cut->buckets, heads_end);
        return base::store(at, base::load<std::uint64_t>(at) ^ 1ull << value / 4 % 64);
      }
    }
  }
  // The first slot from there on that has a block.
  for (std::uint64_t i = 0; i < cut->bucket_count * outback::kBucketSlots; ++i) {
    const std::uint64_t slot = (where + i) % (cut->bucket_count * outback::kBucketSlots);
    const auto says = base::load<std::uint64_t>(heap.data() + cut->buckets + slot * 8);
    if (outback::SlotWord::empty(says)) continue;
    const std::uint64_t address = outback::SlotWord::Address::get(says);
    if (address < cut->blocks || address + outback::kBlockHeader > cut->blocks_end() || address % 8 != 0) return;
    base::store(heap.data() + address + value % 5 * 8, value >> 8);
    if (const auto view = outback::view_block(*cut, heap, address)) {
      base::store(heap.data() + address + outback::kChecksumAt,
                  outback::block_checksum(address, view->head, view->key, view->value));
    }
    return;
  }
}

}  // namespace farpool::node
