// SPDX-License-Identifier: Apache-2.0
// The memory of an Outback memory node: how it is cut and formatted, what the audit says of it, what a life mends, and
// what clients reach of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "index/outback/locator.h"
#include "index/outback/protocol.h"
#include "layout/private_page.h"
#include "layout/superblock.h"
#include "node/audit.h"
#include "protocols/outback/world_test.h"
#include "session/session.h"
#include "task/scope.h"

namespace farpool::outback {
namespace {

using layout::Geometry;
using ::testing::HasSubstr;

constexpr layout::GeometryRequest kRequest{
    .memory_bytes = 8 << 20, .table_percent = 2, .max_sessions = 8, .protocol = layout::Protocol::outback};

// What layout knows of a table is said a second time in the protocol's room.
TEST(OutbackMemory, IsCutAsItsTableNeeds) {
  for (std::uint64_t bytes = 4 << 20; bytes <= 1ull << 40; bytes = bytes * 3 / layout::kPage / 2 * layout::kPage) {
    for (const std::uint64_t percent : {1u, 10u, 30u}) {
      layout::GeometryRequest request = kRequest;
      request.memory_bytes = bytes;
      request.table_percent = percent;
      const auto geometry = layout::plan_geometry(request);
      ASSERT_TRUE(geometry.ok()) << geometry.status().message();
      ASSERT_TRUE(layout::check_geometry(*geometry).ok());
      EXPECT_EQ(geometry->marks(), 0u);
      EXPECT_EQ(geometry->slots_per_session, 1u) << "a session has one, which it never uses";
      if (!protocol().check(*geometry).ok()) {
        EXPECT_LT(bytes, 8u << 20) << bytes << ": " << protocol().check(*geometry).message();
        continue;
      }
      const Cut made = *cut(figures_of(*geometry, {1, 2}));
      EXPECT_EQ(made.bucket_count, geometry->rows) << "there is room for all rows at last";
      EXPECT_GE(made.figures.doublings, 4u) << "a table can grow sixteenfold";
      EXPECT_GE(made.scan_tags(), 2 * made.figures.doublings) << "other locators beside those of doublings";
      LocatorShape shape = made.shape(made.figures.doublings);
      shape.array_words = LocatorShape::array_words_for(shape.table_slots(), shape.partitions);
      EXPECT_EQ(shape.table_buckets(), geometry->rows);
      EXPECT_EQ(shape.words() * 8, made.locator_bytes);
      if (bytes >= 1ull << 30 && percent >= 10) {
        EXPECT_GE(made.figures.partitions, 16u) << "threads share no lock";
      }
      EXPECT_GE(geometry->at(layout::kTable).bytes, shape.words() * 8) << "there is room for a locator of all keys";
      EXPECT_LE(geometry->at(layout::kTable).bytes, shape.words() * 8 + shape.partitions * 16);
      // Slots, seeds and heads take what the percentage says. The other place of the locator, and blocks, follow.
      EXPECT_LE(made.locator - made.seeds, bytes / 100 * percent + kPageBytes + 4096);
      const layout::Span heap = protocol().reachable(*geometry, layout::kHeap);
      EXPECT_EQ(heap.offset, geometry->at(layout::kHeap).offset + made.locator);
      EXPECT_LE(heap.offset + heap.bytes, geometry->at(layout::kHeap).offset + geometry->at(layout::kHeap).bytes);
    }
  }
}

TEST(OutbackMemory, ThatIsTooSmallIsRefused) {
  PoolWorld world({}, 2560 << 10);
  ASSERT_TRUE(world.begin_life().ok());
  PoolWorld small({}, 2304 << 10);
  const base::Status refused = small.begin_life();
  EXPECT_EQ(refused.code(), base::Code::invalid_argument);
  EXPECT_THAT(refused.message(), HasSubstr("bytes"));
}

TEST(OutbackMemory, AForgedGeometryIsRefused) {
  const Geometry good = *layout::plan_geometry(kRequest);
  Geometry g = good;
  g.slots_per_session = 2;
  EXPECT_FALSE(layout::check_geometry(g).ok());
  g = good;
  g.region[layout::kTable].bytes += 8;
  EXPECT_FALSE(layout::check_geometry(g).ok());
  g = good;
  g.rows = 3 * 4096 + 1;  // partitions of different sizes
  EXPECT_FALSE(layout::check_geometry(g).ok());
}

// No client takes a memory's table for that of a memory which was there before.
TEST(OutbackMemory, BeginsWithAGenerationOfItsOwn) {
  PoolWorld world;
  std::set<std::uint64_t> generations, salts;
  for (int memory = 0; memory < 20; ++memory) {
    ASSERT_TRUE(world.begin_life().ok());
    const auto header = LocatorHeader::parse(world.region(layout::kTable));
    ASSERT_TRUE(header.ok()) << header.status().message();
    const Cut made = *parse(world.region(layout::kHeap));
    EXPECT_EQ(header->generation, made.figures.generation);
    EXPECT_EQ(header->salt, made.figures.salt);
    EXPECT_GT(header->generation, 1u);
    EXPECT_TRUE(generations.insert(header->generation).second);
    EXPECT_TRUE(salts.insert(header->salt).second);
    // Another life of the same memory keeps both.
    world.kill();
    ASSERT_TRUE(world.begin_life().ok());
    EXPECT_EQ(*LocatorHeader::parse(world.region(layout::kTable)), *header);
    world.kill();
    world.lose_memory();
  }
}

class Audited : public ::testing::Test {
 protected:
  Audited() {
    const base::Status begun = world.begin_life();
    FARPOOL_CHECK(begun.ok());
  }
  node::Audit audit() const {
    auto found = node::audit_memory(world.memory.span());
    FARPOOL_CHECK(found.ok());
    return std::move(found->audit);
  }
  PoolWorld world;
};

TEST_F(Audited, EveryByteIsAccountedFor) {
  const node::Audit found = audit();
  EXPECT_EQ(found.damage() + found.explained(), 0u);
  std::uint64_t sum = 0;
  for (const std::uint64_t bytes : found.bytes_of_use) sum += bytes;
  EXPECT_EQ(sum, world.node->geometry().memory_bytes);
  EXPECT_EQ(found.bytes(node::Use::entries_free), world.node->geometry().entries() * 8);
}

TEST_F(Audited, ALocatorThatIsDamagedIsToldAndWrittenAgain) {
  const base::MutableBytes locator = world.region(layout::kTable);
  const std::vector<std::byte> before(locator.begin(), locator.end());
  const std::size_t arrays = LocatorHeader::kBytes + 8;
  for (const std::size_t at : {std::size_t{0}, std::size_t{16}, std::size_t{72}, arrays}) {
    locator[at] ^= std::byte{4};
    EXPECT_EQ(audit().count(node::Wrong::entry_impossible), 1u) << at;
    world.kill();
    ASSERT_TRUE(world.begin_life().ok());
    EXPECT_TRUE(world.logged("found the locator damaged, and wrote it again"));
    world.log.clear();
    EXPECT_TRUE(std::ranges::equal(world.region(layout::kTable), before)) << at;
    EXPECT_EQ(audit().damage(), 0u);
  }
}

TEST_F(Audited, ASuperblockThatIsDamagedOrAnotherMemorysIsNotServed) {
  const base::MutableBytes heap = world.region(layout::kHeap);
  heap[24] ^= std::byte{1};
  EXPECT_EQ(audit().count(node::Wrong::row_torn), 1u);
  world.kill();
  EXPECT_EQ(world.begin_life().code(), base::Code::corrupt);
  // One with a checksum, and with figures of another memory.
  std::ranges::fill(heap, std::byte{0});
  const Geometry geometry = *layout::plan_geometry(kRequest);
  ASSERT_TRUE(format(heap, figures_of(geometry, {1, 2})).ok());
  EXPECT_EQ(audit().count(node::Wrong::row_torn), 1u);
}

TEST_F(Audited, AnyBytesComeToAnEnd) {
  base::Random random(5);
  const std::vector<std::byte> whole(world.memory.span().begin(), world.memory.span().end());
  const Geometry geometry = world.node->geometry();
  const layout::PrivatePage page = layout::read_private_page(base::Bytes(whole).last(layout::kPage));
  ASSERT_TRUE(page.record);
  world.kill();
  for (int round = 0; round < 200; ++round) {
    std::ranges::copy(whole, world.memory.span().begin());
    for (std::uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
      const layout::Span& at = geometry.at(random.below(2) == 0 ? layout::kTable : layout::kHeap);
      const std::uint64_t most = random.below(2) == 0 ? 4096 : at.bytes;
      const std::uint64_t word = random.below(std::min(most, at.bytes) / 8) * 8;
      base::store(world.memory.span().data() + at.offset + word, random.next() >> random.below(64));
    }
    const auto found = node::audit_memory(world.memory.span());
    ASSERT_TRUE(found.ok());
    std::uint64_t sum = 0;
    for (const std::uint64_t bytes : found->audit.bytes_of_use) sum += bytes;
    EXPECT_EQ(sum, geometry.memory_bytes);
    if (world.begin_life().ok()) world.kill();
  }
}

// --- what clients reach

task::Task<void> try_to_write(PoolWorld& world, fabric::Port& port, std::uint32_t region, bool& refused) {
  auto session = co_await session::Session::open(port, {.endpoint = kEndpoint,
                                                        .pool_uid = kUid,
                                                        .client_name = "test",
                                                        .epoch = world.node->facts().epoch(),
                                                        .node_incarnation = world.node->incarnation(),
                                                        .deadline = port.now() + base::kSecond});
  EXPECT_TRUE(session.ok()) << session.status().message();
  if (!session.ok()) co_return;
  const Geometry& geometry = world.node->geometry();
  EXPECT_EQ((*session)->region_bytes(region),
            protocol().reachable(geometry, static_cast<layout::RegionId>(region)).bytes);
  fabric::Cost cost;
  fabric::Buffer word = port.buffer(8);
  const std::array read{fabric::Op::read({region, 0}, word.first(8))};
  const fabric::Outcome can_read = co_await (*session)->post(read, port.now() + base::kSecond, cost);
  EXPECT_EQ(can_read.fate, fabric::Fate::done) << region;
  const std::array write{fabric::Op::write({region, 0}, word.first(8))};
  const fabric::Outcome outcome = co_await (*session)->post(write, port.now() + base::kSecond, cost);
  refused = outcome.fate == fabric::Fate::refused;
  co_await (*session)->close(port.now() + base::kSecond);
}

TEST(OutbackMemory, ClientsMayReadItAndWriteNothing) {
  PoolWorld world;
  ASSERT_TRUE(world.begin_life().ok());
  fabric::sim::SimPort& port = world.network.add_client(kPeer);
  for (std::uint32_t region = 0; region < layout::kRegions; ++region) {
    bool refused = false;
    task::Scope scope;
    scope.spawn(try_to_write(world, port, region, refused));
    ASSERT_TRUE(world.network.run_until([&] { return scope.running() == 0; }, world.network.now() + base::kSecond * 9));
    EXPECT_TRUE(refused) << region;
  }
}

}  // namespace
}  // namespace farpool::outback
