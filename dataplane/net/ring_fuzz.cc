// SPDX-License-Identifier: Apache-2.0
// The peer writes arbitrary words and bytes into the rings: an end never leaves its memory, moves no more bytes than
// there are, and stays broken once it has seen an impossible word.
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "net/ring.h"

namespace farpool::net::detail {
namespace {

constexpr std::size_t kCapacity = 64;

void run(base::Bytes input) {
  RingWords words{};
  std::vector<std::byte> bytes(kCapacity);  // an overrun is seen by the sanitizer
  RingProducer producer(words, bytes.data(), kCapacity);
  RingConsumer consumer(words, bytes.data(), kCapacity);
  std::vector<std::byte> buffer(2 * kCapacity);
  while (input.size() >= 10) {
    const auto what = static_cast<std::uint8_t>(input[0]);
    const std::size_t count = static_cast<std::uint8_t>(input[1]) % (buffer.size() + 1);
    const auto word = base::load<std::uint64_t>(input.data() + 2);
    input = input.subspan(10);
    const bool out_broken = producer.broken(), in_broken = consumer.broken();
    std::size_t moved = 0;
    switch (what % 8) {
      case 0:
        words.tail.store(word);
        break;
      case 1:
        words.head.store(word);
        break;
      case 2:  // a lie that is nearly true
        words.head.store(words.head.load() + word % (2 * kCapacity));
        break;
      case 3:
        words.consumer_sleeps.store(static_cast<std::uint32_t>(word));
        words.producer_sleeps.store(static_cast<std::uint32_t>(word >> 32));
        break;
      case 4:
        moved = producer.write(base::Bytes(buffer).first(count));
        FARPOOL_CHECK(moved <= kCapacity && !(out_broken && moved > 0));
        break;
      case 5:
        moved = consumer.read(base::MutableBytes(buffer).first(count));
        FARPOOL_CHECK(moved <= kCapacity && !(in_broken && moved > 0));
        break;
      case 6:
        (void)producer.must_ring();
        (void)consumer.must_ring();
        break;
      default:
        (void)producer.may_sleep();
        (void)consumer.may_sleep();
        break;
    }
    FARPOOL_CHECK((!out_broken || producer.broken()) && (!in_broken || consumer.broken()));
  }
}

}  // namespace
}  // namespace farpool::net::detail

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  farpool::net::detail::run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
