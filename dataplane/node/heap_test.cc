// SPDX-License-Identifier: Apache-2.0
// The heap against a memory node, on a wire that tears, delays and reorders.
#include "heap/heap.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/random.h"
#include "layout/extent.h"
#include "layout/regions.h"
#include "layout/segment.h"
#include "node/world_test.h"

namespace farpool::node {
namespace {

using base::Code;
using base::Result;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using heap::Block;
using heap::Heap;
using heap::Purpose;
using session::EraPin;
using task::Task;

struct HeapClient {
  std::unique_ptr<Session> session;
  std::unique_ptr<Heap> heap;
};

struct HeapWorld : TestWorld {
  explicit HeapWorld(std::uint64_t seed = 1, std::uint64_t memory_bytes = 4 << 20) : TestWorld(seed, memory_bytes, 6) {
    node->stand_alone();
  }
  HeapClient join(SimPort& port) {
    HeapClient joined{.session = open(port), .heap = nullptr};
    joined.heap = std::make_unique<Heap>(*joined.session, geometry().at(layout::kHeap).bytes, geometry().segment_bytes);
    return joined;
  }
  HeapClient join() { return join(client()); }
  void leave(HeapClient client) {
    if (client.session->alive()) run(client.heap->release(network.now() + 10 * kSecond));
    close(std::move(client.session));
  }
  void tick(HeapClient& client, int times = 1) {
    for (int i = 0; i < times; ++i) run(client.session->tick_now(network.now() + 5 * kSecond));
  }

  static Task<void> allocating(Heap& heap, std::uint64_t bytes, Purpose purpose, Nanos deadline, Cost& cost,
                               Result<Block>& into) {
    into = co_await heap.allocate(bytes, purpose, deadline, cost);
  }
  Result<Block> allocate(HeapClient& client, std::uint64_t bytes, Nanos patience = 30 * kSecond,
                         Purpose purpose = Purpose::addition) {
    Result<Block> block(base::Status(Code::internal, ""));
    run(allocating(*client.heap, bytes, purpose, network.now() + patience, cost, block));
    return block;
  }
  // Allocates a block in the place of another one, and frees that.
  Result<Block> replace(HeapClient& client, const Block& old, std::uint64_t bytes, Nanos patience = 30 * kSecond) {
    Result<Block> block = allocate(client, bytes, patience, Purpose::replacement);
    if (block.ok()) {
      client.heap->published(*block);
      client.heap->free(old.units, bytes, cost);
    }
    return block;
  }
  std::vector<Block> fill(HeapClient& client, std::uint64_t bytes) {
    std::vector<Block> blocks;
    for (;;) {
      const auto block = allocate(client, bytes);
      if (!block.ok()) {
        EXPECT_EQ(block.code(), Code::out_of_memory) << block.status().message();
        return blocks;
      }
      client.heap->published(*block);
      blocks.push_back(*block);
    }
  }
  std::byte* at(std::uint64_t units) const {
    return memory.span().data() + geometry().at(layout::kHeap).offset + layout::block_offset(units);
  }
  SegmentLedger::Counts segments() {
    pass(2 * kSecond);  // housekeeping
    return node->stats().segments;
  }
  Cost cost;
};

// Maintains a client's heap until it ends.
class Upkeep {
 public:
  Upkeep(HeapWorld& world, HeapClient& client) : world_(world) { scope_.spawn(maintain(client)); }

  void end() {
    ended_ = true;
    EXPECT_TRUE(world_.wait_until([this] { return scope_.running() == 0; }));
  }

 private:
  Task<void> maintain(HeapClient& client) {
    while (!ended_ && client.session->alive()) {
      co_await client.heap->maintain(client.session->port().now() + kSecond);
      co_await client.session->port().sleep_for(client.session->grant().tick);
    }
  }

  HeapWorld& world_;
  bool ended_ = false;
  task::Scope scope_;
};

TEST(Heap, HandsOutDistinctBlocksOfAtLeastTheSize) {
  HeapWorld world;
  HeapClient client = world.join();
  const std::uint64_t heap_bytes = world.geometry().at(layout::kHeap).bytes;
  std::map<std::uint64_t, std::uint64_t> taken;  // begin -> end
  base::Random random(3);
  for (int i = 0; i < 400; ++i) {
    const std::uint64_t bytes = random.chance(0.01) ? 70'000 + random.below(200'000) : 1 + random.below(320);
    const auto block = world.allocate(client, bytes);
    ASSERT_TRUE(block.ok()) << block.status().message();
    EXPECT_GE(block->bytes, bytes);
    const std::uint64_t begin = layout::block_offset(block->units);
    EXPECT_LE(begin + block->bytes, heap_bytes);
    const auto after = taken.lower_bound(begin);
    EXPECT_TRUE(after == taken.end() || begin + block->bytes <= after->first);
    EXPECT_TRUE(after == taken.begin() || std::prev(after)->second <= begin);
    taken[begin] = begin + block->bytes;
  }
  world.leave(std::move(client));
}

// The reported fill counts what keys take, without blocks that clients hold in stock.
TEST(Heap, IsAsFullAsItsKeysAreLong) {
  HeapWorld world;
  HeapClient client = world.join();
  const auto told = [&](std::uint64_t keys, std::uint64_t bytes) {
    auto slot = world.slot(0);
    slot.keys = keys;
    slot.bytes = bytes;
    base::store(world.memory.span().data() + world.geometry().at(layout::kSlots).offset, slot);
    world.pass(2 * kSecond);
    return world.node->facts().memory_node().heap_bytes_used();
  };
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(world.allocate(client, 1000).ok());
  const std::uint64_t segment = world.geometry().segment_bytes;
  EXPECT_EQ(told(0, 0), 0u);
  EXPECT_EQ(told(1000, 1000 * 700), 1000 * layout::block_bytes(layout::size_class_for(716, segment)));
  EXPECT_EQ(told(4, 4 * 300'000), 4 * 300'016u) << "runs";
  const std::uint64_t handed_out = world.node->stats().segments.owned * segment;
  EXPECT_EQ(told(1'000'000, 1'000'000 * 700), handed_out) << "never more than that";
  world.leave(std::move(client));
}

TEST(Heap, TakesBlocksWithoutATripOnceItHasASegment) {
  HeapWorld world;
  HeapClient client = world.join();
  ASSERT_TRUE(world.allocate(client, 100).ok());
  EXPECT_EQ(world.cost.trips, 1u);  // the CALL for the segment
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(world.allocate(client, 100).ok());
  EXPECT_EQ(world.cost.trips, 1u);
  world.leave(std::move(client));
}

TEST(Heap, AnUnpublishedBlockIsReusableAtOnceAndAFreedOneAfterItsEra) {
  HeapWorld world;
  HeapClient client = world.join(), other = world.join();
  const auto block = world.allocate(client, 100);
  client.heap->discard(*block);
  EXPECT_EQ(world.allocate(client, 100)->units, block->units);
  const std::uint64_t free_before = client.heap->usage().blocks_free;
  client.heap->free(block->units, 100, world.cost);
  EXPECT_EQ(client.heap->usage().blocks_limbo, 1u);
  {
    const EraPin reader = other.session->pin();
    world.tick(client, 20);
    EXPECT_NE(world.allocate(client, 100)->units, block->units);
    EXPECT_EQ(client.heap->usage().blocks_limbo, 1u);
  }
  world.pass(3 * kSecond);
  world.run(client.heap->maintain(world.network.now() + kSecond));
  EXPECT_EQ(client.heap->usage().blocks_limbo, 0u);
  EXPECT_EQ(client.heap->usage().blocks_free, free_before);
  world.leave(std::move(client));
  world.leave(std::move(other));
}

// The node's era may be one ahead of the owner's, and a reader may have begun in it.
TEST(Heap, AReaderThatIsAnEraAheadOfTheOwnerIsWaitedForToo) {
  HeapWorld world;
  HeapClient owner = world.join(), reader = world.join();
  const auto block = world.allocate(owner, 100);
  ASSERT_TRUE(world.wait_until([&] { return reader.session->era() == owner.session->era() + 1; }));
  {
    const EraPin pin = reader.session->pin();
    owner.heap->free(block->units, 100, world.cost);
    for (int i = 0; i < 20; ++i) {
      world.tick(owner);
      world.tick(reader);
      world.run(owner.heap->maintain(world.network.now() + kSecond));
      ASSERT_EQ(owner.heap->usage().blocks_limbo, 1u) << "after " << i << " ticks";
    }
  }
  world.pass(2 * kSecond);
  world.run(owner.heap->maintain(world.network.now() + kSecond));
  EXPECT_EQ(owner.heap->usage().blocks_limbo, 0u);
  world.leave(std::move(owner));
  world.leave(std::move(reader));
}

TEST(Heap, OneClientFreesWhatAnotherOwns) {
  HeapWorld world;
  HeapClient owner = world.join(), other = world.join();
  // Takes the whole heap, in blocks of one class.
  std::vector<Block> blocks;
  for (;;) {
    const auto block = world.allocate(owner, 8000);
    if (!block.ok()) {
      EXPECT_EQ(block.code(), Code::out_of_memory);
      EXPECT_NE(block.status().message().find("more memory"), std::string::npos);
      break;
    }
    blocks.push_back(*block);
  }
  ASSERT_GT(blocks.size(), 100u);
  Cost cost;
  for (const Block& block : blocks) other.heap->free(block.units, 8000, cost);
  EXPECT_EQ(cost.trips, 0u);
  EXPECT_GT(cost.messages, 0u);
  EXPECT_LT(cost.messages, blocks.size());  // frees of one turn share words
  world.pass(5 * kSecond);
  std::set<std::uint64_t> again;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto block = world.allocate(owner, 8000);
    ASSERT_TRUE(block.ok()) << i << " of " << blocks.size() << ": " << block.status().message();
    EXPECT_TRUE(again.insert(block->units).second);
  }
  EXPECT_EQ(owner.heap->usage().anomalies, 0u);
  world.leave(std::move(other));
  world.leave(std::move(owner));
}

TEST(Heap, RunsOfSegmentsComeAndGo) {
  HeapWorld world;
  HeapClient owner = world.join(), other = world.join();
  const std::uint64_t bytes = world.geometry().segment_bytes * 2;  // with its header: three segments
  for (int round = 0; round < 20; ++round) {
    std::vector<Block> runs;
    for (;;) {
      const auto run = world.allocate(owner, bytes);
      if (!run.ok()) break;
      runs.push_back(*run);
    }
    ASSERT_GE(runs.size(), (world.geometry().segments - 1) / 3) << round;
    // A value fits without touching the next run's header.
    for (const Block& run : runs) std::memset(world.at(run.units), round, run.bytes);
    for (std::size_t i = 0; i < runs.size(); ++i)
      (i % 2 == 0 ? owner : other).heap->free(runs[i].units, bytes, world.cost);
    world.pass(5 * kSecond);
  }
  EXPECT_EQ(owner.heap->usage().anomalies, 0u);
  world.leave(std::move(other));
  world.leave(std::move(owner));
  EXPECT_EQ(world.segments(), (SegmentLedger::Counts{.free = world.geometry().segments}));
}

// A small store over the heap, as an index would use it: it writes and publishes a key's block, and frees it when the
// key is replaced. The content of a block names its key and version, so that a reader notices a block that is reused
// while it reads.
struct Store {
  struct Entry {
    std::uint64_t units = 0, bytes = 0, stamp = 0;
  };
  explicit Store(HeapWorld& world, std::size_t keys) : world(world), entries(keys) {}
  HeapWorld& world;
  std::vector<std::optional<Entry>> entries;
  std::uint64_t stamps = 0;
  std::uint64_t written = 0;  // bytes of blocks
  std::uint64_t reads = 0;
  std::uint64_t wrong = 0;
  base::Status failed;
  bool stop = false;
};

Task<void> put(Store& store, HeapClient& client, std::size_t key, std::uint64_t bytes) {
  Cost cost;
  fabric::Port& port = client.session->port();
  const Nanos deadline = port.now() + 30 * kSecond;
  auto block = co_await client.heap->allocate(bytes, Purpose::addition, deadline, cost);
  if (!block.ok()) {
    store.failed = block.status();
    co_return;
  }
  const EraPin pin = client.session->pin();
  const std::uint64_t stamp = ++store.stamps * 1000 + key;
  // The ends of the block are enough to tell; writing long ones would only make the test slow.
  const std::uint64_t ends = std::min<std::uint64_t>(base::round_up(bytes, 8), 256);
  fabric::Buffer buffer = port.buffer(ends);
  for (std::uint64_t i = 0; i < ends; i += 8) base::store(buffer.data() + i, stamp);
  const std::uint64_t last = layout::block_offset(block->units) + base::round_up(bytes, 8) - ends;
  const std::array chain{Op::write({layout::kHeap, layout::block_offset(block->units)}, buffer.span()),
                         Op::write({layout::kHeap, last}, buffer.span())};
  if ((co_await client.session->post(chain, deadline, cost)).fate != Fate::done) {
    store.failed = client.session->why();
    co_return;
  }
  // Publishes and unlinks in one step, as under a row's lock.
  const auto old = std::exchange(store.entries[key], Store::Entry{block->units, bytes, stamp});
  store.written += block->bytes;
  if (old) client.heap->free(old->units, old->bytes, cost);
}

Task<void> write_on(Store& store, HeapClient& client, std::uint64_t seed, std::uint64_t until) {
  base::Random random(seed);
  while (store.written < until && store.failed.ok() && !store.stop) {
    // Few classes, because each takes a segment and a small heap has few.
    constexpr std::uint64_t kSizes[] = {100, 3000, 20'000, 150'000};
    const std::uint64_t bytes = kSizes[random.chance(0.03) ? 3 : random.below(3)];
    co_await put(store, client, random.below(store.entries.size()), bytes);
  }
}

Task<void> read_on(Store& store, HeapClient& client, std::uint64_t seed) {
  base::Random random(seed);
  fabric::Port& port = client.session->port();
  fabric::Buffer buffer = port.buffer(8);
  while (!store.stop && client.session->alive()) {
    const EraPin pin = client.session->pin();
    const auto entry = store.entries[random.below(store.entries.size())];
    if (entry) {
      // A slow reader: it follows the address long after it has read it.
      for (int i = 0; i < 3; ++i) {
        co_await port.sleep_for(static_cast<Nanos>(random.below(400'000'000)));
        Cost cost;
        const std::array chain{Op::read({layout::kHeap, layout::block_offset(entry->units)}, buffer.first(8))};
        if ((co_await client.session->post(chain, port.now() + kSecond, cost)).fate != Fate::done) co_return;
        ++store.reads;
        if (base::load<std::uint64_t>(buffer.data()) != entry->stamp) ++store.wrong;
      }
    }
    co_await port.sleep_for(kMillisecond);
  }
}

TEST(Heap, IsOverwrittenAHundredTimes) {
  HeapWorld world(7);
  HeapClient writers[] = {world.join(), world.join()};
  Store store(world, 30);
  const std::uint64_t capacity = world.geometry().at(layout::kHeap).bytes;
  task::Scope scope;
  for (std::uint64_t i = 0; i < 2; ++i) scope.spawn(write_on(store, writers[i], i, 100 * capacity));
  ASSERT_TRUE(world.wait_until([&] { return scope.running() == 0; }, 3600 * kSecond));
  EXPECT_TRUE(store.failed.ok()) << store.failed.message();
  EXPECT_GE(store.written, 100 * capacity);
  for (const auto& entry : store.entries) {
    if (entry) EXPECT_EQ(base::load<std::uint64_t>(world.at(entry->units)), entry->stamp);
  }
  for (HeapClient& writer : writers) EXPECT_EQ(writer.heap->usage().anomalies, 0u);
  Cost cost;
  for (auto& entry : store.entries) {
    if (entry) writers[0].heap->free(entry->units, entry->bytes, cost);
  }
  world.leave(std::move(writers[0]));
  world.leave(std::move(writers[1]));
  // Every byte is accounted for: all blocks were freed, so all segments are free when the eras are over.
  world.pass(5 * kSecond);
  EXPECT_EQ(world.segments(), (SegmentLedger::Counts{.free = world.geometry().segments}));
}

Task<void> write_over(Store& store, HeapClient& client, std::uint64_t seed, std::uint64_t bytes, Nanos rest) {
  base::Random random(seed);
  while (store.failed.ok() && !store.stop) {
    co_await put(store, client, random.below(store.entries.size()), bytes);
    co_await client.session->port().sleep_for(rest);
  }
}

// Each client finds in its own segments what the other has freed there, before it takes another one.
TEST(Heap, WhatIsWrittenOverTakesNoMoreAndMoreSegments) {
  HeapWorld world(5, 16 << 20);
  HeapClient writers[] = {world.join(), world.join()};
  constexpr std::uint64_t kBytes = 500;
  Store store(world, 4000);
  task::Scope scope;
  // Overwrites everything once in 20 ticks.
  const Nanos rest = 20 * writers[0].session->grant().tick / 4000 * 2;
  for (std::uint64_t i = 0; i < 2; ++i) scope.spawn(write_over(store, writers[i], i, kBytes, rest));
  const auto segments = [&] { return writers[0].heap->usage().segments + writers[1].heap->usage().segments; };
  std::uint64_t most = 0;
  const std::uint64_t block = layout::block_bytes(layout::size_class_for(kBytes, world.geometry().segment_bytes));
  for (std::uint64_t times = 1; times <= 25; ++times) {
    ASSERT_TRUE(world.wait_until([&] { return store.written >= times * 4000 * block; }, 3600 * kSecond));
    if (times > 5) most = std::max(most, segments());
  }
  store.stop = true;
  ASSERT_TRUE(world.wait_until([&] { return scope.running() == 0; }));
  EXPECT_TRUE(store.failed.ok()) << store.failed.message();
  std::uint64_t live = 0;
  for (const auto& entry : store.entries) live += entry ? block : 0;
  EXPECT_LE(most * world.geometry().segment_bytes, 2 * live) << most << " segments";
  for (HeapClient& writer : writers) world.leave(std::move(writer));
}

TEST(Heap, NoBlockIsReusedWhileAnOlderEraCanReadIt) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    HeapWorld world(seed, 8 << 20);
    HeapClient writers[] = {world.join(), world.join()};
    HeapClient readers[] = {world.join(), world.join()};
    Store store(world, 30);
    const std::uint64_t capacity = world.geometry().at(layout::kHeap).bytes;
    task::Scope writing, reading;
    for (std::uint64_t i = 0; i < 2; ++i) {
      reading.spawn(read_on(store, readers[i], seed * 10 + i));
      writing.spawn(write_on(store, writers[i], seed * 20 + i, 8 * capacity));
    }
    ASSERT_TRUE(world.wait_until([&] { return writing.running() == 0; }, 3600 * kSecond));
    store.stop = true;
    ASSERT_TRUE(world.wait_until([&] { return reading.running() == 0; }));
    EXPECT_TRUE(store.failed.ok()) << store.failed.message();
    EXPECT_GT(store.reads, 20u);
    EXPECT_EQ(store.wrong, 0u) << "seed " << seed << ", of " << store.reads;
    for (HeapClient& client : writers) world.leave(std::move(client));
    for (HeapClient& client : readers) world.leave(std::move(client));
  }
}

TEST(Heap, AStoppedReaderCannotFillTheHeap) {
  HeapWorld world(5);
  SimPort& stopped = world.client();
  HeapClient reader = world.join(stopped), writer = world.join();
  std::optional<EraPin> pin(reader.session->pin());
  world.pass(kSecond);
  stopped.pause();
  Store store(world, 30);
  const std::uint64_t capacity = world.geometry().at(layout::kHeap).bytes;
  task::Scope scope;
  scope.spawn(write_on(store, writer, 1, 10 * capacity));
  ASSERT_TRUE(world.wait_until([&] { return scope.running() == 0; }, 3600 * kSecond));
  EXPECT_TRUE(store.failed.ok()) << store.failed.message();
  EXPECT_EQ(world.node->stats().sessions_fenced, 1u);
  stopped.resume();
  EXPECT_FALSE(reader.session->alive());
  pin.reset();
  world.leave(std::move(reader));
  world.leave(std::move(writer));
}

TEST(Heap, AReaderThatNeverEndsIsFencedAlthoughItTicks) {
  HeapWorld world(5);
  HeapClient reader = world.join(), writer = world.join();
  std::optional<EraPin> pin(reader.session->pin());
  Store store(world, 30);
  const std::uint64_t capacity = world.geometry().at(layout::kHeap).bytes;
  task::Scope scope;
  scope.spawn(write_on(store, writer, 1, 10 * capacity));
  ASSERT_TRUE(world.wait_until([&] { return scope.running() == 0; }, 3600 * kSecond));
  EXPECT_TRUE(store.failed.ok()) << store.failed.message();
  EXPECT_FALSE(reader.session->alive());
  pin.reset();
  world.leave(std::move(reader));
  world.leave(std::move(writer));
}

TEST(Heap, WhatALeavingClientLeavesBehindIsAdopted) {
  HeapWorld world;
  HeapClient first = world.join();
  std::vector<Block> blocks;
  for (;;) {
    const auto block = world.allocate(first, 4000);
    if (!block.ok()) break;
    blocks.push_back(*block);
  }
  // Every other block stays in use.
  for (std::size_t i = 0; i < blocks.size(); i += 2) first.heap->free(blocks[i].units, 4000, world.cost);
  world.leave(std::move(first));
  EXPECT_EQ(world.segments().orphaned, world.geometry().segments);
  HeapClient second = world.join();
  std::set<std::uint64_t> live;
  for (std::size_t i = 1; i < blocks.size(); i += 2) live.insert(blocks[i].units);
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    const auto block = world.allocate(second, 4000);
    ASSERT_TRUE(block.ok()) << i << ": " << block.status().message();
    EXPECT_TRUE(live.insert(block->units).second) << "a block that lives was handed out";
  }
  for (const std::uint64_t units : live) second.heap->free(units, 4000, world.cost);
  world.leave(std::move(second));
  world.pass(5 * kSecond);
  EXPECT_EQ(world.segments(), (SegmentLedger::Counts{.free = world.geometry().segments}));
}

// Asks of the heap what an index does, without the values.
Task<void> replace(Store& store, HeapClient& client, std::uint64_t seed, std::uint64_t bytes, Nanos rest) {
  base::Random random(seed);
  Cost cost;
  while (store.failed.ok() && !store.stop) {
    for (int i = 0; i < 10; ++i) {
      const auto block =
          co_await client.heap->allocate(bytes, Purpose::addition, client.session->port().now() + 30 * kSecond, cost);
      if (!block.ok()) {
        store.failed = block.status();
        co_return;
      }
      client.heap->published(*block);
      const std::size_t keys = store.entries.size();
      const std::uint64_t stamp = store.stamps++;
      const auto old = std::exchange(store.entries[stamp < keys ? stamp : random.below(keys)],
                                     Store::Entry{block->units, bytes, stamp});
      store.written += block->bytes;
      if (old) client.heap->free(old->units, old->bytes, cost);
    }
    co_await client.session->port().sleep_for(rest);
  }
}

// Overwrites everything in so many ticks: what is in limbo for three of them, without haste, would be much or little.
TEST(Heap, TakesAFifthMoreThanLivesAtMostHoweverOftenItIsWrittenOver) {
  for (const Nanos ticks : {12, 40}) {
    HeapWorld world(5, 64 << 20);
    HeapClient writers[] = {world.join(), world.join()};
    constexpr std::uint64_t kBytes = 500, kKeys = 20'000;
    Store store(world, kKeys);
    Upkeep upkeep_of_one(world, writers[0]), upkeep_of_other(world, writers[1]);
    task::Scope scope;
    const Nanos rest = ticks * writers[0].session->grant().tick * 2 * 10 / static_cast<Nanos>(kKeys);
    for (std::uint64_t i = 0; i < 2; ++i) scope.spawn(replace(store, writers[i], i, kBytes, rest));
    const std::uint64_t segment = world.geometry().segment_bytes;
    const std::uint64_t live = kKeys * layout::block_bytes(layout::size_class_for(kBytes, segment));
    std::uint64_t most = 0;
    for (std::uint64_t tenths = 10; tenths <= 300; ++tenths) {
      ASSERT_TRUE(world.wait_until([&] { return store.written * 10 >= tenths * live; }, 3600 * kSecond));
      most = std::max(most, writers[0].heap->usage().segments + writers[1].heap->usage().segments);
    }
    store.stop = true;
    ASSERT_TRUE(world.wait_until([&] { return scope.running() == 0; }));
    EXPECT_TRUE(store.failed.ok()) << store.failed.message();
    EXPECT_LE(most * segment * 10, live * 12) << most << " segments for " << live / segment << ", in " << ticks;
    upkeep_of_one.end();
    upkeep_of_other.end();
    for (HeapClient& writer : writers) world.leave(std::move(writer));
  }
}

// This holds even if no client is short of segments: others would take new segments for what it keeps.
TEST(Heap, AQuietClientGivesUpWhatIsMostlyFree) {
  HeapWorld world(1, 64 << 20);
  HeapClient quiet = world.join(), busy = world.join();
  constexpr std::uint64_t kBytes = 500, kSegments = 40;
  std::vector<Block> blocks;
  while (quiet.heap->usage().segments < kSegments) {
    blocks.push_back(*world.allocate(quiet, kBytes));
    quiet.heap->published(blocks.back());
  }
  Upkeep upkeep(world, quiet);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 4 != 0) busy.heap->free(blocks[i].units, kBytes, world.cost);
  }
  EXPECT_TRUE(world.wait_until([&] { return quiet.heap->usage().segments <= 2; }, 60 * kSecond))
      << quiet.heap->usage().segments;
  const std::uint64_t free = world.segments().free;
  for (std::size_t i = 0; i < blocks.size() / 2; ++i) ASSERT_TRUE(world.allocate(busy, kBytes).ok());
  EXPECT_EQ(world.segments().free, free);
  upkeep.end();
  world.leave(std::move(quiet));
  world.leave(std::move(busy));
}

TEST(Heap, AQuietClientGivesUpWhatOthersHaveFreedOfIt) {
  HeapWorld world;
  HeapClient quiet = world.join(), busy = world.join();
  std::vector<Block> blocks;
  for (;;) {
    const auto block = world.allocate(quiet, 4000);
    if (!block.ok()) break;
    blocks.push_back(*block);
    quiet.heap->published(*block);
  }
  Upkeep upkeep(world, quiet);
  EXPECT_EQ(world.allocate(busy, 4000).code(), Code::out_of_memory);
  for (std::size_t i = 0; i < blocks.size(); i += 2) busy.heap->free(blocks[i].units, 4000, world.cost);
  world.pass(10 * kSecond);
  std::size_t got = 0;
  while (world.allocate(busy, 4000).ok()) ++got;
  EXPECT_GT(got, blocks.size() / 3);
  upkeep.end();
  world.leave(std::move(quiet));
  world.leave(std::move(busy));
}

TEST(Heap, AQuietClientKeepsNoFreeRunWhereOthersAreShort) {
  HeapWorld world;
  HeapClient quiet = world.join(), busy = world.join();
  const std::uint64_t two = 2 * world.geometry().segment_bytes - layout::kRunHeader;
  std::vector<Block> blocks = world.fill(quiet, two);
  ASSERT_GT(blocks.size(), 4u);
  for (const Block& block : blocks) quiet.heap->free(block.units, two, world.cost);
  Upkeep upkeep(world, quiet);
  std::size_t got = 0;
  while (world.allocate(busy, two).ok()) ++got;
  EXPECT_EQ(got, blocks.size());
  upkeep.end();
  world.leave(std::move(quiet));
  world.leave(std::move(busy));
}

// It gives up full segments, too: the client that needs the run empties them.
TEST(Heap, WhatLiesInTheWayOfARunIsGivenUp) {
  HeapWorld world;
  HeapClient owner = world.join(), other = world.join();
  constexpr std::uint64_t kBytes = 4000;
  const std::vector<Block> blocks = world.fill(owner, kBytes);
  const std::uint64_t segment_bytes = world.geometry().segment_bytes;
  // In every second segment, all blocks but one are free.
  std::set<std::uint64_t> left;
  for (const Block& block : blocks) {
    const std::uint64_t segment = layout::block_offset(block.units) / segment_bytes;
    if (segment % 2 == 0 && !left.insert(segment).second) other.heap->free(block.units, kBytes, world.cost);
  }
  Upkeep upkeep(world, owner);
  const auto block = world.allocate(other, 3 * segment_bytes - layout::kRunHeader);
  EXPECT_EQ(block.code(), Code::out_of_memory) << "nobody here knows how to empty segments";
  std::uint64_t side_by_side = 0, most = 0;
  for (std::uint64_t i = 0; i < world.geometry().segments; ++i) {
    const std::byte* at = world.at(i * segment_bytes / layout::kBlockUnit);
    const auto header = base::load<layout::SegmentHeader>(at);
    side_by_side = header.run != 0 && header.owner == 0 ? side_by_side + 1 : 0;
    most = std::max(most, side_by_side);
  }
  EXPECT_GE(most, 3u);
  upkeep.end();
  world.leave(std::move(owner));
  world.leave(std::move(other));
}

TEST(Heap, AFullHeapSaysSoAtOnceAndRecovers) {
  HeapWorld world;
  HeapClient client = world.join();
  std::vector<Block> blocks;
  for (;;) {
    const auto block = world.allocate(client, 20'000);
    if (!block.ok()) break;
    blocks.push_back(*block);
  }
  const Nanos begun = world.network.now();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(world.allocate(client, 20'000).code(), Code::out_of_memory);
  EXPECT_LT(world.network.now() - begun, 10 * kMillisecond);
  client.heap->free(blocks[0].units, 20'000, world.cost);
  world.pass(3 * kSecond);
  const auto block = world.allocate(client, 20'000);
  ASSERT_TRUE(block.ok()) << block.status().message();
  EXPECT_EQ(block->units, blocks[0].units);
  EXPECT_EQ(world.allocate(client, 1ull << 40).code(), Code::out_of_memory);
  world.leave(std::move(client));
}

// Two clients replace, each class by itself: the one that filled the heap, and one that has come since.
TEST(Heap, AFullHeapStillReplaces) {
  HeapWorld world(1, 16 << 20);
  HeapClient filler = world.join(), newcomer = world.join();
  std::map<std::uint64_t, std::vector<Block>> filled;
  for (const std::uint64_t bytes : {20'000u, 1000u, 100u}) filled[bytes] = world.fill(filler, bytes);
  EXPECT_GT(filled[20'000].size(), 500u);
  EXPECT_EQ(world.segments().free, world.geometry().segments / 16);
  Upkeep upkeep_of_one(world, filler), upkeep_of_other(world, newcomer);
  for (auto& [bytes, blocks] : filled) {
    for (HeapClient* client : {&filler, &newcomer}) {
      Nanos longest = 0;
      for (Block& block : blocks) {
        const Nanos begun = world.network.now();
        const auto other = world.replace(*client, block, bytes);
        ASSERT_TRUE(other.ok()) << other.status().message();
        block = *other;
        longest = std::max(longest, world.network.now() - begun);
      }
      // There are fewer segments left than classes: a class waits for one until the other client has given up what it
      // can.
      EXPECT_LT(longest, 16 * client->session->grant().tick) << "blocks of " << bytes;
      // What little room is left may be added; then everything is replaced as before.
      EXPECT_LE(world.fill(*client, bytes).size(), blocks.size() / 16) << bytes;
    }
  }
  for (auto& [bytes, blocks] : filled) {
    for (Block& block : blocks) {
      const auto other = world.replace(newcomer, block, bytes);
      ASSERT_TRUE(other.ok()) << other.status().message();
      block = *other;
    }
  }
  // Deleting makes room for as much.
  std::vector<Block>& small = filled[1000];
  const std::size_t half = small.size() / 2;
  for (std::size_t i = 0; i < half; ++i) filler.heap->free(small[i].units, 1000, world.cost);
  world.pass(10 * kSecond);
  for (std::size_t i = 0; i < half / 2; ++i) ASSERT_TRUE(world.allocate(newcomer, 1000).ok()) << i << " of " << half;
  upkeep_of_one.end();
  upkeep_of_other.end();
  for (const HeapClient* client : {&filler, &newcomer}) EXPECT_EQ(client->heap->usage().anomalies, 0u);
  world.leave(std::move(filler));
  world.leave(std::move(newcomer));
}

Task<void> add_all_the_time(HeapClient& client, std::uint64_t bytes, std::vector<Block>& added, const bool& stop) {
  Cost cost;
  fabric::Port& port = client.session->port();
  while (!stop) {
    const auto block = co_await client.heap->allocate(bytes, Purpose::addition, port.now() + 30 * kSecond, cost);
    if (block.ok()) {
      client.heap->published(*block);
      added.push_back(*block);
    } else {
      EXPECT_EQ(block.code(), Code::out_of_memory);
    }
    co_await port.sleep_for(kMillisecond);
  }
}

// What one client replaces lies in the segments of another, and comes free there.
TEST(Heap, WhatReplacementsNeedIsNotAdded) {
  HeapWorld world(1, 16 << 20);
  HeapClient adds = world.join(), replaces = world.join();
  constexpr std::uint64_t kBytes = 1000;
  std::vector<Block> blocks = world.fill(adds, kBytes), added;
  ASSERT_NE(blocks.size() % 1009, 0u);
  bool stop = false;
  Upkeep upkeep_of_one(world, adds), upkeep_of_other(world, replaces);
  task::Scope scope;
  scope.spawn(add_all_the_time(adds, kBytes, added, stop));
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      Block& block = blocks[i * 1009 % blocks.size()];  // a little of each segment
      const auto other = world.replace(replaces, block, kBytes);
      ASSERT_TRUE(other.ok()) << other.status().message() << " in round " << round;
      block = *other;
    }
  }
  stop = true;  // NOLINT(clang-analyzer-deadcode.DeadStores): the task has a reference to it
  ASSERT_TRUE(world.wait_until([&] { return scope.running() == 0; }));
  // At most a tick's worth, before the client learns that it must stop.
  EXPECT_LT(added.size(), blocks.size() / 8);
  upkeep_of_one.end();
  upkeep_of_other.end();
  world.leave(std::move(adds));
  world.leave(std::move(replaces));
}

TEST(Heap, ShortDeadlinesAreKeptAndNothingIsLost) {
  HeapWorld world;
  HeapClient client = world.join();
  std::vector<Block> blocks;
  for (;;) {
    const auto block = world.allocate(client, 20'000);
    if (!block.ok()) break;
    blocks.push_back(*block);
  }
  HeapClient reader = world.join();
  {
    const EraPin pin = reader.session->pin();  // so that nothing comes free
    for (const Block& block : blocks) client.heap->free(block.units, 20'000, world.cost);
    const Nanos begun = world.network.now();
    EXPECT_FALSE(world.allocate(client, 20'000, kMillisecond).ok());
    EXPECT_LE(world.network.now() - begun, 3 * kMillisecond);
  }
  world.leave(std::move(reader));
  world.pass(3 * kSecond);
  for (std::size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(world.allocate(client, 20'000).ok()) << i;
  world.leave(std::move(client));
}

TEST(Heap, FreesThatCannotBeAreNotActedUpon) {
  HeapWorld world;
  HeapClient owner = world.join(), other = world.join();
  const auto block = world.allocate(owner, 100);
  owner.heap->free(block->units, 100, world.cost);
  owner.heap->free(block->units, 100, world.cost);     // twice
  owner.heap->free(block->units, 70'000, world.cost);  // no block of that class begins there
  owner.heap->free(~0ull >> 8, 100, world.cost);       // beyond the heap
  owner.heap->free(1, 0, world.cost);
  EXPECT_EQ(owner.heap->usage().anomalies, 4u);
  EXPECT_EQ(owner.heap->usage().blocks_limbo, 1u);
  world.leave(std::move(other));
  world.leave(std::move(owner));
}

TEST(Heap, AnEndedSessionEndsItsHeap) {
  HeapWorld world;
  HeapClient client = world.join(), other = world.join();
  const auto block = world.allocate(client, 100), others = world.allocate(other, 100);
  client.session->end({Code::unavailable, "cut"});
  client.heap->free(others->units, 100, world.cost);  // nobody can be told
  client.heap->discard(*block);
  while (client.heap->usage().blocks_free > 0) {
    ASSERT_TRUE(world.allocate(client, 100, kSecond, Purpose::replacement).ok());
  }
  const auto refused = world.allocate(client, 100);
  EXPECT_EQ(refused.code(), Code::unavailable);
  EXPECT_NE(refused.status().message().find("cut"), std::string::npos);
  world.leave(std::move(client));
  world.leave(std::move(other));
}

// --- Segments of the dead

// What an index would know: which blocks its entries point to.
struct FakeIndex final : heap::References {
  explicit FakeIndex(HeapWorld& world) : world(world) {}
  Task<Result<bool>> refers(std::uint64_t units, base::Bytes extent, Nanos, Cost&) override {
    ++asked;
    EXPECT_TRUE(layout::read_extent(extent, units).has_value());
    const bool fails = trouble > 0;
    if (fails) {
      --trouble;
      co_return base::Status(Code::timed_out, "the key's lock is held");
    }
    co_return entries.contains(units);
  }
  Task<base::Status> rewrite(std::vector<std::uint64_t>, std::uint64_t, Nanos, Cost&) override {
    co_return base::Status();
  }
  HeapWorld& world;
  std::set<std::uint64_t> entries;
  std::uint64_t asked = 0;
  int trouble = 0;
};

void write_extent_at(HeapWorld& world, const Block& block, std::uint64_t bytes, char letter) {
  const std::string value(bytes - layout::kExtentHeader - 8, letter);
  layout::write_extent({world.at(block.units), layout::extent_bytes(8, value.size())}, block.units,
                       base::bytes_of(std::string_view("the key.")), base::bytes_of(std::string_view(value)));
}

// A client that fills the rest of the heap and then dies. It published a third of its blocks, filled a third without
// publishing them, and left a third untouched; some of the published ones have been freed since. Returns the blocks in
// use.
std::set<std::uint64_t> fill_and_die(HeapWorld& world, FakeIndex& index, std::uint64_t bytes, HeapClient& other) {
  HeapClient client = world.join();
  std::vector<Block> blocks;
  for (;;) {
    const auto block = world.allocate(client, bytes);
    if (!block.ok()) break;
    blocks.push_back(*block);
  }
  std::set<std::uint64_t> in_use;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 3 == 2) continue;
    write_extent_at(world, blocks[i], bytes, static_cast<char>('a' + i % 26));
    if (i % 3 == 1) continue;
    in_use.insert(blocks[i].units);
    index.entries.insert(blocks[i].units);
    if (i % 9 != 0) continue;
    // Either it unlinks the block itself, and tells nobody, or another client does, and marks it.
    in_use.erase(blocks[i].units);
    index.entries.erase(blocks[i].units);
    (i % 2 == 0 ? client : other).heap->free(blocks[i].units, bytes, world.cost);
  }
  world.pass(50 * kMillisecond);
  client.session->end({Code::unavailable, "died"});
  world.leave(std::move(client));
  return in_use;
}

TEST(HeapOfTheDead, CanBeFilledAgainToTheLastBlock) {
  for (const std::uint64_t bytes : {std::uint64_t{200}, std::uint64_t{5000}, std::uint64_t{300'000}}) {
    HeapWorld world(bytes);
    FakeIndex index(world);
    HeapClient survivor = world.join();
    survivor.heap->set_references(index);
    std::size_t most = 0;
    {
      HeapClient first = world.join();
      while (world.allocate(first, bytes).ok()) ++most;
      world.leave(std::move(first));  // nothing of it was freed: its blocks are in use for ever, as far as it knows
    }
    world.kill();
    world.begin_life();
    world.node->stand_alone();
    survivor.session->end({Code::unavailable, "the node died"});
    world.leave(std::move(survivor));
    survivor = world.join();
    survivor.heap->set_references(index);

    std::set<std::uint64_t> in_use;
    for (int death = 0; death < 3; ++death) {
      const std::set<std::uint64_t> more = fill_and_die(world, index, bytes, survivor);
      in_use.insert(more.begin(), more.end());
      ASSERT_TRUE(world.wait_until([&] { return world.node->stats().sessions == 1; })) << death;
      world.tick(survivor);
    }
    std::set<std::uint64_t> got;
    for (;;) {
      const auto block = world.allocate(survivor, bytes, 120 * kSecond);
      if (!block.ok()) {
        EXPECT_EQ(block.code(), Code::out_of_memory) << block.status().message();
        break;
      }
      EXPECT_TRUE(got.insert(block->units).second);
      EXPECT_FALSE(in_use.contains(block->units)) << "a block in use was handed out";
    }
    EXPECT_EQ(got.size() + in_use.size(), most) << bytes;
    EXPECT_EQ(survivor.heap->usage().anomalies, 0u);
    EXPECT_GT(survivor.heap->usage().taken_over, 0u);
    EXPECT_GT(survivor.heap->usage().reclaimed, 0u);
    EXPECT_GT(index.asked, 0u);
    EXPECT_EQ(world.segments().dead, 0u);
    world.leave(std::move(survivor));
  }
}

TEST(HeapOfTheDead, IsTakenOverInQuietTimesToo) {
  HeapWorld world;
  FakeIndex index(world);
  HeapClient survivor = world.join();
  survivor.heap->set_references(index);
  const std::set<std::uint64_t> in_use = fill_and_die(world, index, 3000, survivor);
  index.trouble = 3;  // it is asked again
  Upkeep upkeep(world, survivor);
  EXPECT_TRUE(world.wait_until([&] { return world.node->stats().segments.dead > 0; }));
  EXPECT_TRUE(world.wait_until(
      [&] {
        const SegmentLedger::Counts counts = world.node->stats().segments;
        return counts.dead == 0 && survivor.heap->usage().taken_over >= world.geometry().segments &&
               survivor.heap->usage().blocks_limbo == 0;
      },
      600 * kSecond));
  EXPECT_EQ(index.trouble, 0);
  upkeep.end();
  world.leave(std::move(survivor));
}

// Without an index to ask, only blocks that are marked free are used: every eighteenth.
TEST(HeapOfTheDead, StaysWhereNobodyCanJudgeIt) {
  constexpr std::uint64_t kBytes = 3000;
  HeapWorld world;
  FakeIndex index(world);
  HeapClient survivor = world.join();
  const std::set<std::uint64_t> in_use = fill_and_die(world, index, kBytes, survivor);
  ASSERT_TRUE(world.wait_until([&] { return world.node->stats().segments.dead > 0; }));
  EXPECT_EQ(world.node->stats().segments.dead, world.geometry().segments);
  std::set<std::uint64_t> got;
  for (;;) {
    const auto block = world.allocate(survivor, kBytes, 30 * kSecond, Purpose::replacement);
    if (!block.ok()) {
      EXPECT_EQ(block.code(), Code::out_of_memory);
      break;
    }
    EXPECT_TRUE(got.insert(block->units).second);
    EXPECT_FALSE(in_use.contains(block->units)) << "a block in use was handed out";
  }
  const std::uint64_t segment = world.geometry().segment_bytes;
  const std::uint64_t in_each = layout::segment_shape(layout::size_class_for(kBytes, segment), segment).blocks;
  const std::uint64_t died_with = world.geometry().segments * in_each - in_each / 16;
  EXPECT_EQ(got.size(), (died_with + 8) / 18);
  EXPECT_EQ(survivor.heap->usage().taken_over, 0u);
  EXPECT_EQ(survivor.heap->usage().reclaimed, 0u);
  EXPECT_EQ(survivor.heap->usage().anomalies, 0u);
  world.leave(std::move(survivor));
}

// If the index cannot answer, the heap keeps the block, and only that block.
TEST(HeapOfTheDead, ABlockThatCannotBeJudgedIsKept) {
  HeapWorld world;
  FakeIndex index(world);
  HeapClient survivor = world.join();
  survivor.heap->set_references(index);
  const std::set<std::uint64_t> in_use = fill_and_die(world, index, 60'000, survivor);
  ASSERT_TRUE(world.wait_until([&] { return world.node->stats().sessions == 1; }));
  index.trouble = 1 << 20;
  world.tick(survivor);
  std::set<std::uint64_t> got;
  for (;;) {
    const auto block = world.allocate(survivor, 60'000, 600 * kSecond);
    if (!block.ok()) break;
    got.insert(block->units);
  }
  for (const std::uint64_t units : in_use) EXPECT_FALSE(got.contains(units));
  EXPECT_GT(got.size(), 0u);
  EXPECT_LT(index.trouble, 1 << 20);
  world.leave(std::move(survivor));
}

// A client that dies before it has marked a block that it unlinked leaves it lost in its owner's segment.
TEST(HeapOfTheDead, WhatTheDeadUnlinkedIsFoundInTheSegmentsOfTheLiving) {
  constexpr std::uint64_t kBytes = 3000;
  HeapWorld world;
  FakeIndex index(world);
  HeapClient owner = world.join(), mortal = world.join();
  owner.heap->set_references(index);
  std::vector<Block> blocks;
  for (int i = 0; i < 120; ++i) {
    blocks.push_back(*world.allocate(owner, kBytes));
    write_extent_at(world, blocks.back(), kBytes, 'x');
    if (i % 10 == 9) continue;  // about to be published
    index.entries.insert(blocks.back().units);
    owner.heap->published(blocks.back());
  }
  // It tells its heap of one block that it unlinks, and the heap marks it; nobody learns of the others.
  std::set<std::uint64_t> lost;
  for (std::size_t i = 0; i < blocks.size(); i += 30) {
    index.entries.erase(blocks[i].units);
    lost.insert(blocks[i].units);
  }
  index.entries.erase(blocks[1].units);
  mortal.heap->free(blocks[1].units, kBytes, world.cost);
  world.pass(50 * kMillisecond);
  mortal.session->end({Code::unavailable, "died"});
  Upkeep upkeep(world, owner);
  EXPECT_TRUE(world.wait_until([&] { return owner.heap->usage().reclaimed == lost.size(); }));
  upkeep.end();
  EXPECT_EQ(owner.heap->usage().taken_over, 0u);
  EXPECT_GT(index.asked, 100u);

  std::set<std::uint64_t> had, got;
  for (const Block& block : blocks) had.insert(block.units);
  for (;;) {
    const auto block = world.allocate(owner, kBytes);
    if (!block.ok()) break;
    EXPECT_TRUE(got.insert(block->units).second);
    if (had.contains(block->units)) EXPECT_TRUE(lost.contains(block->units) || block->units == blocks[1].units);
  }
  for (const std::uint64_t units : lost) EXPECT_TRUE(got.contains(units)) << "is lost for ever";
  EXPECT_TRUE(got.contains(blocks[1].units));
  EXPECT_EQ(owner.heap->usage().anomalies, 0u);
  world.leave(std::move(owner));
  world.leave(std::move(mortal));
}

// The segment serves at once; the client finds what is lost in it all the same.
TEST(HeapOfTheDead, WhatIsAdoptedForItsMarksIsLookedThrough) {
  constexpr std::uint64_t kBytes = 3000;
  HeapWorld world;
  FakeIndex index(world);
  HeapClient owner = world.join(), mortal = world.join(), heir = world.join();
  heir.heap->set_references(index);
  std::set<std::uint64_t> lost, marked;
  for (int i = 0; i < 300; ++i) {
    const Block block = *world.allocate(owner, kBytes);
    write_extent_at(world, block, kBytes, 'x');
    owner.heap->published(block);
    if (i % 10 == 0) {
      lost.insert(block.units);
    } else if (i % 10 == 1) {
      marked.insert(block.units);
      mortal.heap->free(block.units, kBytes, world.cost);
    } else {
      index.entries.insert(block.units);
    }
  }
  world.leave(std::move(owner));
  world.pass(50 * kMillisecond);
  mortal.session->end({Code::unavailable, "died"});
  ASSERT_TRUE(world.wait_until([&] { return world.node->stats().sessions == 1; }));
  ASSERT_GE(world.node->stats().segments.dead, 3u);

  for (int i = 0; i < 5; ++i) {
    const auto block = world.allocate(heir, kBytes, kSecond);
    ASSERT_TRUE(block.ok()) << block.status().message();
    EXPECT_EQ(marked.erase(block->units), 1u);
    index.entries.insert(block->units);
    write_extent_at(world, *block, kBytes, 'y');
    heir.heap->published(*block);
  }
  EXPECT_EQ(heir.heap->usage().taken_over, 0u);
  Upkeep upkeep(world, heir);
  EXPECT_TRUE(world.wait_until([&] { return heir.heap->usage().reclaimed >= lost.size(); }));
  upkeep.end();
  EXPECT_EQ(heir.heap->usage().reclaimed, lost.size());
  EXPECT_EQ(heir.heap->usage().anomalies, 0u);
  world.leave(std::move(heir));
  world.leave(std::move(mortal));
}

// Answers by what the blocks hold, and some questions late.
struct SlowIndex final : heap::References {
  Task<Result<bool>> refers(std::uint64_t units, base::Bytes extent, Nanos, Cost&) override {
    const auto read = layout::read_extent(extent, units);
    EXPECT_TRUE(read.has_value());
    const char letter = static_cast<char>(read->value[0]);
    if (units == slow) ++asked[letter];
    while (units == slow && !answered.contains(letter)) co_await port->sleep_for(kMillisecond);
    const auto entry = entries.find(units);
    co_return entry != entries.end() && entry->second == letter;
  }
  Task<base::Status> rewrite(std::vector<std::uint64_t>, std::uint64_t, Nanos, Cost&) override {
    co_return base::Status();
  }
  SimPort* port = nullptr;
  std::map<std::uint64_t, char> entries;  // block, letter of its value
  std::uint64_t slow = 0;                 // the block about which questions are answered late
  std::set<char> answered;
  std::map<char, int> asked;
};

// The client gives a segment up while it is looking through it, another one fills it and dies, and the client inherits
// it once more: what the first look has learned must not be taken for what is there now.
TEST(HeapOfTheDead, ALookEndsWithTheSegmentItIsIn) {
  constexpr std::uint64_t kBytes = 60'000;
  HeapWorld world;
  SlowIndex index;
  SimPort& port = world.client();
  index.port = &port;
  HeapClient survivor = world.join(port);
  survivor.heap->set_references(index);
  const auto use_two_segments_and_die = [&](char letter) {
    HeapClient client = world.join();
    std::vector<Block> blocks;
    while (client.heap->usage().segments < 2 || client.heap->usage().blocks_free > 0) {
      blocks.push_back(*world.allocate(client, kBytes));
      write_extent_at(world, blocks.back(), kBytes, letter);
      index.entries[blocks.back().units] = letter;
      client.heap->published(blocks.back());
    }
    if (index.slow == 0) index.slow = blocks[0].units;
    client.session->end({Code::unavailable, "died"});
    world.leave(std::move(client));
    return blocks;
  };
  const std::vector<Block> first = use_two_segments_and_die('a');
  Upkeep upkeep(world, survivor);
  ASSERT_TRUE(world.wait_until([&] { return index.asked['a'] == 1 && survivor.heap->usage().taken_over == 2; }));
  for (const Block& block : first) {
    index.entries.erase(block.units);
    survivor.heap->free(block.units, kBytes, world.cost);
  }
  // A client that quietly holds what others lack gives it back.
  HeapClient filler = world.join();
  while (world.allocate(filler, 1'000'000, kSecond).ok()) {
  }
  ASSERT_TRUE(world.wait_until([&] { return survivor.heap->usage().segments == 0; }));
  world.pass(5 * kSecond);
  const std::vector<Block> second = use_two_segments_and_die('b');
  ASSERT_EQ(second[0].units, first[0].units) << "the segment that was given up";
  ASSERT_TRUE(world.wait_until([&] { return index.asked['b'] == 1; }));
  index.answered.insert('a');
  world.pass(10 * kSecond);
  EXPECT_EQ(index.asked['a'], 1);
  std::set<std::uint64_t> in_use;
  for (const Block& block : second) in_use.insert(block.units);
  for (;;) {
    const auto block = world.allocate(survivor, kBytes, 30 * kSecond, Purpose::replacement);
    if (!block.ok()) break;
    EXPECT_FALSE(in_use.contains(block->units)) << "a block in use was handed out";
  }
  index.answered.insert('b');
  upkeep.end();
  world.leave(std::move(survivor));
  world.leave(std::move(filler));
}

// A client that inherits the segment would take the block for lost, and hand it out.
TEST(HeapOfTheDead, ASegmentWithABlockThatIsAboutToBePublishedIsKept) {
  constexpr std::uint64_t kBytes = 3000;
  HeapWorld world;
  HeapClient owner = world.join(), other = world.join();
  const Block kept = *world.allocate(owner, kBytes);
  std::vector<Block> freed;
  while (owner.heap->usage().segments < 4) freed.push_back(*world.allocate(owner, kBytes));
  const std::uint64_t units = world.geometry().segment_bytes / layout::kBlockUnit;
  Block alive;  // published, in another segment, so that it is not wholly free
  for (const Block& block : freed) {
    owner.heap->published(block);
    if (alive.bytes == 0 && block.units / units != kept.units / units) {
      alive = block;
    } else {
      owner.heap->free(block.units, kBytes, world.cost);
    }
  }
  Upkeep upkeep(world, owner);
  // The other client wants everything, again and again.
  const auto press = [&](std::uint64_t orphaned) {
    for (int i = 0; i < 40; ++i) {
      while (world.allocate(other, 200'000, kSecond).ok()) {
      }
      if (world.segments().orphaned >= orphaned) return;
    }
  };
  press(2);
  EXPECT_EQ(world.node->stats().segments.orphaned, 1u) << "one of them has a block that is about to be published";
  owner.heap->published(kept);
  press(2);
  EXPECT_EQ(world.node->stats().segments.orphaned, 2u);
  upkeep.end();
  world.leave(std::move(owner));
  world.leave(std::move(other));
}

TEST(HeapOfTheDead, TheFactsNameWhoLeftHowMuch) {
  HeapWorld world;
  FakeIndex index(world);
  HeapClient survivor = world.join();
  survivor.heap->set_references(index);
  {
    SimPort& port = world.client();
    Session::Options options = world.session_options(port);
    options.client_name = "shard-7/0";
    options.client_process = 777;
    auto opened = world.try_open(port, options);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    HeapClient mortal{.session = std::move(*opened), .heap = nullptr};
    mortal.heap = std::make_unique<Heap>(*mortal.session, world.geometry().at(layout::kHeap).bytes,
                                         world.geometry().segment_bytes);
    ASSERT_TRUE(world.allocate(mortal, 3000).ok());
    ASSERT_TRUE(world.allocate(mortal, 300'000).ok());
    mortal.session->end({Code::unavailable, "died"});
    world.leave(std::move(mortal));
  }
  ASSERT_TRUE(world.wait_until([&] { return world.node->stats().segments.dead > 0; }));
  const v1alpha1::MemoryNodeFacts facts = world.node->facts().memory_node();
  ASSERT_EQ(facts.dead_size(), 1);
  EXPECT_EQ(facts.dead(0).process(), 777u);
  EXPECT_EQ(facts.dead(0).name(), "shard-7");
  EXPECT_EQ(facts.dead(0).slots(), 0u);
  EXPECT_EQ(facts.dead(0).segments(), 3u);
  v1alpha1::FenceResponse said;
  world.node->fence({777}, [&](v1alpha1::FenceResponse response) { said = std::move(response); });
  ASSERT_EQ(said.left_size(), 1);
  EXPECT_EQ(said.left(0).segments(), 3u);
  Upkeep upkeep(world, survivor);
  EXPECT_TRUE(world.wait_until([&] { return world.node->facts().memory_node().dead_clients() == 0; }));
  EXPECT_EQ(world.node->stats().segments.dead, 0u);
  upkeep.end();
  world.leave(std::move(survivor));
}

Task<void> take_all(HeapClient& client, std::uint64_t bytes, std::vector<Block>& into, bool& over) {
  Cost cost;
  for (;;) {
    auto block =
        co_await client.heap->allocate(bytes, Purpose::replacement, client.session->port().now() + 120 * kSecond, cost);
    if (!block.ok()) break;
    into.push_back(*block);
  }
  over = true;
}

// The client that takes over dies after its 0th, 1st, 2nd ... effect; the next one finds everything.
TEST(HeapOfTheDead, ACrashAfterAnyEffectOfTakingOverLosesNothing) {
  constexpr std::uint64_t kBytes = 20'000;
  for (const auto posted : {fabric::sim::InFlight::lands, fabric::sim::InFlight::cut}) {
    bool survived = false;
    std::uint64_t points = 0;
    for (std::uint64_t after = 0; !survived; after += after < 40 ? 1 : 7, ++points) {
      HeapWorld world(after + 1);
      FakeIndex index(world);
      HeapClient last = world.join();
      last.heap->set_references(index);
      const std::set<std::uint64_t> in_use = fill_and_die(world, index, kBytes, last);
      ASSERT_TRUE(world.wait_until([&] { return world.node->stats().sessions == 1; }));
      const std::size_t blocks = world.geometry().segments *
                                 layout::segment_shape(layout::size_class_for(kBytes, world.geometry().segment_bytes),
                                                       world.geometry().segment_bytes)
                                     .blocks;

      SimPort& port = world.client();
      auto doomed = std::make_shared<HeapClient>(world.join(port));
      doomed->heap->set_references(index);
      auto taken = std::make_shared<std::vector<Block>>();
      auto over = std::make_shared<bool>(false);
      auto scope = std::make_shared<task::Scope>();
      const std::uint64_t before = port.effects();
      port.crash_after(after, posted);
      scope->spawn(take_all(*doomed, kBytes, *taken, *over));
      ASSERT_TRUE(world.wait_until([&] { return port.crashed() || *over; }, 600 * kSecond)) << after;
      if (port.crashed()) {
        fabric::sim::bury(doomed);
        fabric::sim::bury(taken);
        fabric::sim::bury(over);
        fabric::sim::bury(scope);
      } else {
        survived = true;
        EXPECT_GT(port.effects() - before, 5u);
        port.crash_after(~0ull >> 1, posted);
        world.leave(std::move(*doomed));
      }
      // The doomed client never published what it had been given.
      ASSERT_TRUE(world.wait_until([&] { return world.node->stats().sessions == 1; }, 600 * kSecond));
      world.tick(last);
      std::vector<Block> rest;
      bool ended = false;
      world.run(take_all(last, kBytes, rest, ended), 3600 * kSecond);
      std::set<std::uint64_t> got;
      for (const Block& block : rest) {
        EXPECT_TRUE(got.insert(block.units).second) << "after " << after;
        EXPECT_FALSE(in_use.contains(block.units)) << "after " << after;
      }
      // A client that leaves keeps the blocks that it allocated and never published.
      if (!survived) EXPECT_EQ(got.size() + in_use.size(), blocks) << "after " << after;
      EXPECT_EQ(last.heap->usage().anomalies, 0u) << "after " << after;
      world.leave(std::move(last));
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(points, 10u);
  }
}

// Clients overwrite each other's keys, and die. Others take over their segments while blocks in them are being unlinked
// and marked. The heap never hands out a block that an entry points to or that a client holds, and in the end the whole
// heap is there.
struct Mortals {
  Mortals(HeapWorld& world, std::size_t keys, std::uint64_t least_bytes, std::uint64_t most_bytes)
      : world(world), index(world), least_bytes(least_bytes), most_bytes(most_bytes), entries(keys) {}
  HeapWorld& world;
  FakeIndex index;
  const std::uint64_t least_bytes, most_bytes;  // of an extent
  struct Entry {
    std::uint64_t units = 0, bytes = 0;  // 0: none
  };
  std::vector<Entry> entries;
  std::set<std::uint64_t> given;  // allocated, and not published yet
  std::uint64_t puts = 0, refused = 0;
  bool stop = false;
};

Task<void> mortal_put(std::shared_ptr<Mortals> all, HeapClient& client, std::size_t key, base::Random& random) {
  Cost cost;
  fabric::Port& port = client.session->port();
  const std::uint64_t bytes = all->least_bytes + random.below(all->most_bytes - all->least_bytes + 1);
  const Purpose purpose = client.heap->purpose_of(bytes, all->entries[key].bytes);
  auto block = co_await client.heap->allocate(bytes, purpose, port.now() + 30 * kSecond, cost);
  if (!block.ok()) {
    if (block.code() == Code::out_of_memory) ++all->refused;
    co_return;
  }
  EXPECT_FALSE(all->index.entries.contains(block->units)) << "handed out although an entry points to it";
  EXPECT_TRUE(all->given.insert(block->units).second) << "handed out twice";
  const EraPin pin = client.session->pin();
  const std::string value(bytes - layout::kExtentHeader - 8, static_cast<char>('a' + key % 26));
  fabric::Buffer buffer = port.buffer(layout::extent_bytes(8, value.size()));
  layout::write_extent(buffer.first(layout::extent_bytes(8, value.size())), block->units,
                       base::bytes_of(std::string_view("the key.")), base::bytes_of(std::string_view(value)));
  const std::array chain{Op::write({layout::kHeap, layout::block_offset(block->units)},
                                   buffer.first(layout::extent_bytes(8, value.size())))};
  if ((co_await client.session->post(chain, port.now() + kSecond, cost)).fate != Fate::done) co_return;
  const Mortals::Entry old = std::exchange(all->entries[key], {block->units, bytes});
  all->given.erase(block->units);
  client.heap->published(*block);
  all->index.entries.insert(block->units);
  if (old.bytes != 0) all->index.entries.erase(old.units);
  ++all->puts;
  // There may be a while between unlinking and marking.
  co_await port.sleep_for(static_cast<Nanos>(random.below(300'000'000)));
  if (old.bytes != 0) client.heap->free(old.units, old.bytes, cost);
}

Task<void> live(std::shared_ptr<Mortals> all, HeapClient& client, std::uint64_t seed) {
  base::Random random(seed);
  Nanos tended = 0;
  while (!all->stop && client.session->alive()) {
    co_await mortal_put(all, client, random.below(all->entries.size()), random);
    co_await client.session->port().sleep_for(kMillisecond);  // a full heap says so at once
    if (client.session->port().now() - tended > client.session->grant().tick) {
      tended = client.session->port().now();
      co_await client.heap->maintain(tended + kSecond);
    }
  }
}

struct Life {
  HeapClient client;
  task::Scope scope;
  SimPort* port = nullptr;
};

// Lets three clients live and die so often. Returns the last clients, at rest, and adds up what they found again.
std::vector<std::shared_ptr<Life>> live_and_die(HeapWorld& world, const std::shared_ptr<Mortals>& all,
                                                std::uint64_t seed, std::uint64_t deaths, std::uint64_t& reclaimed) {
  const auto begin = [&](std::uint64_t number) {
    auto life = std::make_shared<Life>();
    life->port = &world.client();
    life->client = world.join(*life->port);
    life->client.heap->set_references(all->index);
    for (std::uint64_t i = 0; i < 3; ++i) life->scope.spawn(live(all, life->client, number * 10 + i));
    return life;
  };
  base::Random random(seed);
  std::vector<std::shared_ptr<Life>> lives;
  for (std::uint64_t i = 0; i < 3; ++i) lives.push_back(begin(seed * 1000 + i));
  for (std::uint64_t death = 0; death < deaths; ++death) {
    world.pass(kSecond + static_cast<Nanos>(random.below(2'000'000'000)));
    auto& victim = lives[random.below(lives.size())];
    victim->port->crash(random.chance(0.5) ? fabric::sim::InFlight::lands : fabric::sim::InFlight::cut);
    reclaimed += victim->client.heap->usage().reclaimed;
    EXPECT_EQ(victim->client.heap->usage().anomalies, 0u) << "seed " << seed;
    fabric::sim::bury(victim);
    fabric::sim::bury(all);
    all->given
        .clear();  // clients that were given these, by the dead's word: a live client's are few, and are seen again
    victim = begin(seed * 1000 + 10 + death);
  }
  world.pass(20 * kSecond);
  all->stop = true;
  for (auto& life : lives) {
    EXPECT_TRUE(world.wait_until([&] { return life->scope.running() == 0; }, 600 * kSecond)) << "seed " << seed;
    EXPECT_EQ(life->client.heap->usage().anomalies, 0u) << "seed " << seed;
    reclaimed += life->client.heap->usage().reclaimed;
  }
  EXPECT_GT(all->puts, 100u);
  return lives;
}

TEST(HeapOfTheDead, NothingIsHandedOutThatIsInUseWhileClientsDie) {
  constexpr std::uint64_t kMortalBytes = 6000;
  std::uint64_t reclaimed = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    HeapWorld world(seed, 4 << 20);
    auto all = std::make_shared<Mortals>(world, 150, kMortalBytes, kMortalBytes);
    const auto lives = live_and_die(world, all, seed, 8, reclaimed);
    // One of them gets everything again; the others leave.
    HeapClient heir = std::move(lives[0]->client);
    world.leave(std::move(lives[1]->client));
    world.leave(std::move(lives[2]->client));
    std::vector<Block> rest;
    bool ended = false;
    world.run(take_all(heir, kMortalBytes, rest, ended), 3600 * kSecond);
    const std::uint64_t segment = world.geometry().segment_bytes;
    const std::size_t blocks = world.geometry().segments *
                               layout::segment_shape(layout::size_class_for(kMortalBytes, segment), segment).blocks;
    EXPECT_EQ(rest.size() + all->index.entries.size(), blocks) << "seed " << seed;
    for (const Block& block : rest) EXPECT_FALSE(all->index.entries.contains(block.units)) << "seed " << seed;
    world.leave(std::move(heir));
  }
  EXPECT_GT(reclaimed, 0u);
}

// After each death all segments without an owner are dead clients', and each client that begins needs one of every
// class. Their blocks that are marked free serve meanwhile, in a heap with much room and in one with little.
TEST(HeapOfTheDead, IsNotFullWhileLittleLives) {
  constexpr std::array<std::pair<std::uint64_t, std::uint64_t>, 2> kBytesAndKeys{{{24 << 20, 600}, {17 << 20, 300}}};
  for (const auto& [bytes, keys] : kBytesAndKeys) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      HeapWorld world(seed, bytes);
      auto all = std::make_shared<Mortals>(world, keys, 100, 2400);
      std::uint64_t reclaimed = 0;
      const auto lives = live_and_die(world, all, seed, 25, reclaimed);
      EXPECT_EQ(all->refused, 0u) << "of " << all->puts << ", " << bytes << " bytes, seed " << seed;
      for (const auto& life : lives) world.leave(std::move(life->client));
    }
  }
}

}  // namespace
}  // namespace farpool::node
