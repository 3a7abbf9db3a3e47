// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "fabric/buffer.h"
#include "fabric/cost.h"
#include "fabric/timer.h"
#include "fabric/words.h"

namespace farpool::fabric {
namespace {

std::array<std::byte, 1168> memory;
Op sized(Verb verb, std::size_t bytes) { return {.verb = verb, .local = base::MutableBytes(memory).first(bytes)}; }

TEST(Cost, FollowsTheRoceHeaderArithmetic) {
  EXPECT_EQ(wire_bytes(sized(Verb::read, 64)), 74u + 62u + 64u);
  EXPECT_EQ(wire_bytes(sized(Verb::write, 64)), 74u + 62u + 64u);
  EXPECT_EQ(wire_bytes(sized(Verb::cas, 0)), 86u + 70u);
  EXPECT_EQ(wire_bytes(sized(Verb::masked_cas, 0)), 102u + 70u);
}

TEST(Cost, ReproducesThePapersRows) {
  // RCuckoo, 73-byte rows, 16 rows a lock (digest 6.1): a read of separate rows, an update, an insert without cuckoo.
  const std::array read{sized(Verb::read, 73), sized(Verb::read, 73)};
  const std::array lock{sized(Verb::masked_cas, 0), sized(Verb::read, 73), sized(Verb::read, 73)};
  const std::array unlock{sized(Verb::write, 73), sized(Verb::masked_cas, 0)};
  Cost lookup, update;
  lookup.charge(read);
  update.charge(lock);
  update.charge(unlock);
  EXPECT_EQ(lookup.bytes, 418u);
  EXPECT_EQ(update.bytes, 971u);
  EXPECT_EQ(update.trips, 2u);
  EXPECT_EQ(update.messages, 5u);
}

struct Recorder final : Timer {
  Recorder(std::string& log, char name, base::Nanos at) : log(log), name(name) { when = at; }
  void fire() noexcept override { log.push_back(name); }
  std::string& log;
  char name;
};

TEST(TimerQueue, FiresInTimeThenArmingOrderAndForgetsTheDisarmed) {
  std::string log;
  Recorder a(log, 'a', 30), b(log, 'b', 10), c(log, 'c', 20), d(log, 'd', 10);
  TimerQueue queue;
  for (Recorder* timer : {&a, &b, &c, &d}) queue.arm(*timer);
  queue.disarm(c);
  EXPECT_EQ(queue.next(), 10);
  EXPECT_EQ(queue.fire_due(15), 2u);
  EXPECT_EQ(log, "bd");
  EXPECT_EQ(queue.fire_due(100), 1u);
  EXPECT_EQ(log, "bda");
  EXPECT_EQ(queue.next(), base::kNever);
}

TEST(BufferPool, ReusesMemoryOfTheSameSize) {
  BufferPool pool;
  std::byte* first;
  {
    Buffer buffer = pool.take(100);
    first = buffer.data();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
  }
  Buffer again = pool.take(128);
  EXPECT_EQ(again.data(), first);
}

TEST(BufferPool, CutsSlabsAndAsksForMoreWhenOneIsSpent) {
  struct Source final : SlabSource {
    std::size_t slab_bytes() const override { return 1024; }
    std::byte* slab(std::size_t bytes) override {
      asked.push_back(bytes);
      memory.push_back(std::make_unique<Line[]>(bytes / sizeof(Line)));
      return memory.back()[0].bytes;
    }
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    std::vector<std::size_t> asked;
    std::vector<std::unique_ptr<Line[]>> memory;
  } source;
  BufferPool pool(&source);
  {
    Buffer first = pool.take(512), second = pool.take(500);
    EXPECT_EQ(second.data(), first.data() + 512) << "not of one slab";
    Buffer third = pool.take(64), large = pool.take(3000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(third.data()) % 64, 0u);
    EXPECT_EQ(source.asked, (std::vector<std::size_t>{1024, 1024, 4096}));
  }
  Buffer again = pool.take(512), large = pool.take(4000);
  EXPECT_EQ(source.asked.size(), 3u) << "what was given back is not used again";
}

TEST(Words, MaskedCasTouchesOnlyItsBits) {
  alignas(8) std::uint64_t word = 0b1010;
  auto* at = reinterpret_cast<std::byte*>(&word);
  EXPECT_EQ(masked_cas_word(at, 0, 0b0101, 0b0101, 0b0101), 0b1010u);
  EXPECT_EQ(word, 0b1111u);
  EXPECT_EQ(masked_cas_word(at, 0, 0b0001, 0b0001, 0b0001), 0b1111u);  // held: refused, unchanged
  EXPECT_EQ(word, 0b1111u);
  EXPECT_EQ(fetch_add_word(at, 1), 15u);
  EXPECT_EQ(word, 16u);
}

}  // namespace
}  // namespace farpool::fabric
