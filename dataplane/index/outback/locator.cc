// SPDX-License-Identifier: Apache-2.0
#include "index/outback/locator.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/crc64.h"
#include "index/page.h"

namespace farpool::outback {

using base::Code;
using base::Status;

namespace {

// Bits of A, and of B, for each key. A random graph whose edges are fewer than the mean of both sides' vertices has few
// cycles; 2.33 bits for both together is what Othello takes.
constexpr double kArrayBitsOfKey = 1.165;
constexpr std::uint32_t kMostDoublings = 20;

constexpr std::uint64_t halves(std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; }

std::uint64_t checksum_of(std::span<const std::uint64_t> words, std::uint64_t seed = 0) {
  return base::crc64(std::as_bytes(words), seed);
}

std::uint64_t arrays_checksum(const LocatorShape& shape, std::span<const std::uint64_t> words) {
  std::uint64_t checksum = 0;
  for (std::uint64_t partition = 0; partition < shape.partitions; ++partition) {
    checksum = checksum_of(words.subspan(LocatorHeader::kWords + partition * shape.partition_words(),
                                         1 + 2 * std::uint64_t{shape.array_words}),
                           checksum);
  }
  return checksum;
}

// The words of a serialised locator, which lies aligned.
std::span<const std::uint64_t> words_of(base::Bytes locator) {
  return {reinterpret_cast<const std::uint64_t*>(locator.data()), locator.size() / 8};
}

std::uint64_t bit(const std::uint64_t* words, std::uint32_t place) { return words[place / 64] >> (place % 64) & 1; }

// How many versions a client remembers.
std::uint64_t versions_of(const LocatorShape& shape) {
  return std::bit_floor(std::clamp<std::uint64_t>(shape.table_buckets() / 256, 64, 65536));
}

// Other threads may learn seeds meanwhile.
std::uint8_t load_seed(const std::uint8_t* at) {
  return std::atomic_ref(*const_cast<std::uint8_t*>(at)).load(std::memory_order_relaxed);
}

// A word of Locator::learned_.
struct Learned {
  static constexpr std::uint64_t of(std::uint32_t bucket, Seed seed) {
    return (std::uint64_t{bucket} + 1) << 24 | std::uint64_t{seed.version} << 8 | seed.value;
  }
  static constexpr bool is_of(std::uint64_t word, std::uint32_t bucket) {
    return word >> 24 == std::uint64_t{bucket} + 1;
  }
  static constexpr Seed seed(std::uint64_t word) {
    return {static_cast<std::uint8_t>(word), static_cast<std::uint16_t>(word >> 8)};
  }
};

}  // namespace

base::Result<LocatorShape> LocatorShape::of(std::uint64_t table_buckets, std::uint64_t keys) {
  if (table_buckets == 0 || table_buckets > kMostBuckets) {
    return Status{Code::invalid_argument, "a table has 1 to " + std::to_string(kMostBuckets) + " buckets, not " +
                                              std::to_string(table_buckets)};
  }
  LocatorShape shape;
  shape.partitions = static_cast<std::uint32_t>((table_buckets + kPartitionBuckets - 1) / kPartitionBuckets);
  shape.buckets = static_cast<std::uint32_t>((table_buckets + shape.partitions - 1) / shape.partitions);
  if (keys > shape.table_slots()) {
    return Status{Code::invalid_argument, "a table of " + std::to_string(shape.table_slots()) +
                                              " slots is too small for " + std::to_string(keys) +
                                              " keys: it needs more buckets"};
  }
  shape.array_words = array_words_for(keys, shape.partitions);
  return shape;
}

std::uint32_t LocatorShape::array_words_for(std::uint64_t keys, std::uint64_t partitions) {
  const double bits = std::ceil(static_cast<double>(keys) / static_cast<double>(partitions) * kArrayBitsOfKey);
  return std::clamp(static_cast<std::uint32_t>(bits / 64) + 1, 1u, kMostArrayWords);
}

std::uint64_t LocatorShape::scan_tags() const {
  return (1ull << index::kPositionBits) / ((std::uint64_t{partitions >> level} << doublings) * buckets);
}

std::uint64_t LocatorShape::scan_end() const {
  return (std::uint64_t{partitions >> level} << doublings) * buckets * scan_tags();
}

std::uint64_t LocatorShape::buckets_for(std::uint64_t keys, double load) {
  return std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::ceil(static_cast<double>(keys) / load / kBucketSlots)));
}

Status LocatorShape::check() const {
  const auto wrong = [](const std::string& what) { return Status{Code::corrupt, "a locator " + what}; };
  if (partitions == 0 || buckets == 0 || table_buckets() > kMostBuckets + partitions) {
    return wrong("has " + std::to_string(partitions) + " partitions of " + std::to_string(buckets) + " buckets");
  }
  if (buckets > kPartitionBuckets) {
    return wrong("has " + std::to_string(buckets) + " buckets in a partition, more than " +
                 std::to_string(kPartitionBuckets));
  }
  if (array_words == 0 || array_words > kMostArrayWords) {
    return wrong("has arrays of " + std::to_string(array_words) + " words, not 1 to " +
                 std::to_string(kMostArrayWords));
  }
  if (level > doublings || doublings > kMostDoublings || partitions % (1u << level) != 0 ||
      (std::uint64_t{partitions >> level} << doublings) * buckets > kMostBuckets + partitions) {
    return wrong("says that its " + std::to_string(partitions) + " partitions were doubled " + std::to_string(level) +
                 " times of " + std::to_string(doublings));
  }
  return {};
}

std::uint64_t LocatorShape::words() const { return LocatorHeader::kWords + partitions * partition_words(); }

base::Result<LocatorHeader> LocatorHeader::parse(base::Bytes bytes) {
  const auto wrong = [](const std::string& what) { return Status{Code::corrupt, "the header of a locator " + what}; };
  if (bytes.size() < kBytes) {
    return wrong("has " + std::to_string(kBytes) + " bytes, and there are " + std::to_string(bytes.size()));
  }
  std::array<std::uint64_t, kWords> words;
  std::memcpy(words.data(), bytes.data(), kBytes);
  if (words[0] != kMagic) return wrong("does not begin as one: there is no locator here");
  if (words[1] != kFormat) {
    return wrong("has format " + std::to_string(words[1]) + ", and this program reads format " +
                 std::to_string(kFormat));
  }
  if (words[9] != checksum_of(std::span(words).first(9))) return wrong("does not match its checksum");
  LocatorHeader header;
  header.generation = words[2];
  header.salt = words[3];
  header.keys = words[4];
  header.shape.partitions = static_cast<std::uint32_t>(words[5]);
  header.shape.buckets = static_cast<std::uint32_t>(words[5] >> 32);
  header.shape.array_words = static_cast<std::uint32_t>(words[6]);
  header.shape.level = static_cast<std::uint32_t>(words[6] >> 32 & 0xff);
  header.shape.doublings = static_cast<std::uint32_t>(words[6] >> 40);
  header.arrays_checksum = words[8];
  if (Status status = header.shape.check(); !status.ok()) return status;
  if (header.generation == 0) return wrong("has the generation 0");
  if (header.keys > header.shape.table_slots()) {
    return wrong("has " + std::to_string(header.keys) + " keys in " + std::to_string(header.shape.table_slots()) +
                 " slots");
  }
  if (words[7] != header.shape.words()) {
    return wrong("says " + std::to_string(words[7]) + " words, and its shape has " +
                 std::to_string(header.shape.words()));
  }
  return header;
}

void LocatorHeader::put(std::span<std::uint64_t> words) const {
  FARPOOL_CHECK(words.size() >= kWords);
  words[0] = kMagic;
  words[1] = kFormat;
  words[2] = generation;
  words[3] = salt;
  words[4] = keys;
  words[5] = halves(shape.partitions, shape.buckets);
  words[6] = halves(shape.array_words, shape.level | shape.doublings << 8);
  words[7] = shape.words();
  words[8] = arrays_checksum;
  words[9] = checksum_of(words.first(9));
}

Locator::Locator(LocatorHeader header, std::vector<std::uint64_t> words) : header_(header), words_(std::move(words)) {
  salts_.reserve(header_.shape.partitions);
  for (std::uint64_t partition = 0; partition < header_.shape.partitions; ++partition) {
    salts_.push_back(words_[LocatorHeader::kWords + partition * header_.shape.partition_words()]);
  }
  learned_.resize(versions_of(header_.shape));
}

Status Locator::check(base::Bytes locator) {
  const auto header = LocatorHeader::parse(locator);
  if (!header.ok()) return header.status();
  if (locator.size() < header->bytes()) {
    return Status{Code::corrupt, "a locator has " + std::to_string(header->shape.words()) + " words, and there are " +
                                     std::to_string(locator.size() / 8)};
  }
  if (arrays_checksum(header->shape, words_of(locator)) != header->arrays_checksum) {
    return Status{Code::corrupt, "the arrays of a locator do not match their checksum"};
  }
  return {};
}

base::Result<Locator> Locator::parse(std::vector<std::uint64_t> words) {
  const base::Bytes bytes = std::as_bytes(std::span(words));
  if (Status status = check(bytes); !status.ok()) return status;
  const auto header = LocatorHeader::parse(bytes);
  if (words.size() != header->shape.words()) {
    return Status{Code::corrupt, "a locator has " + std::to_string(header->shape.words()) + " words, and there are " +
                                     std::to_string(words.size())};
  }
  return Locator(*header, std::move(words));
}

std::uint32_t bucket_in(const LocatorShape& shape, base::Bytes locator, std::uint64_t hash) {
  const Candidates candidates = Candidates::of(hash, shape);
  const std::uint64_t* const partition =
      words_of(locator).data() + LocatorHeader::kWords + candidates.partition * shape.partition_words();
  const ArrayPlaces places = ArrayPlaces::of(hash, *partition, shape.array_bits());
  const std::uint64_t* const a = partition + 1;
  const std::uint64_t* const b = a + shape.array_words;
  return candidates.partition * shape.buckets + candidates.buckets[bit(a, places.a) ^ bit(b, places.b)];
}

std::uint8_t seed_in(const LocatorShape& shape, base::Bytes locator, std::uint64_t bucket) {
  const std::uint64_t seeds = LocatorHeader::kWords + bucket / shape.buckets * shape.partition_words() + 1 +
                              2 * std::uint64_t{shape.array_words};
  return static_cast<std::uint8_t>(locator[seeds * 8 + bucket % shape.buckets]);
}

// Nothing that is read waits for anything else that is: both buckets' seeds are fetched while the arrays are.
Spot Locator::find(std::uint64_t hash) const {
  const LocatorShape& shape = header_.shape;
  const Candidates candidates = Candidates::of(hash, shape);
  const std::uint64_t* const a =
      words_.data() + LocatorHeader::kWords + candidates.partition * shape.partition_words() + 1;
  const std::uint64_t* const b = a + shape.array_words;
  const auto* const seeds = reinterpret_cast<const std::uint8_t*>(b + shape.array_words);
  for (const std::uint32_t bucket : candidates.buckets) __builtin_prefetch(seeds + bucket);
  const ArrayPlaces places = ArrayPlaces::of(hash, salts_[candidates.partition], shape.array_bits());
  const std::uint32_t bucket = candidates.buckets[bit(a, places.a) ^ bit(b, places.b)];
  const std::uint8_t seed = load_seed(seeds + bucket);
  return {candidates.partition * shape.buckets + bucket, slot_of(hash, seed), seed};
}

std::uint8_t* Locator::seed_at(std::uint32_t bucket) {
  const LocatorShape& shape = header_.shape;
  std::uint64_t* const partition =
      words_.data() + LocatorHeader::kWords + bucket / shape.buckets * shape.partition_words();
  return reinterpret_cast<std::uint8_t*>(partition + 1 + 2 * std::uint64_t{shape.array_words}) + bucket % shape.buckets;
}

std::uint8_t Locator::seed_of(std::uint32_t bucket) const {
  FARPOOL_CHECK(bucket < header_.shape.table_buckets());
  return load_seed(const_cast<Locator*>(this)->seed_at(bucket));
}

bool Locator::learn(std::uint32_t bucket, Seed seed) {
  if (bucket >= header_.shape.table_buckets()) return false;
  std::atomic_ref learned(learned_[bucket & (learned_.size() - 1)]);
  const std::uint64_t word = Learned::of(bucket, seed);
  std::uint64_t before = learned.load(std::memory_order_acquire);
  do {
    if (Learned::is_of(before, bucket)) {
      const Seed known = Learned::seed(before);
      if (!newer(seed.version, known.version)) return false;
    } else if (seed_of(bucket) == seed.value) {
      return false;  // most replies: nothing to remember
    }
  } while (!learned.compare_exchange_weak(before, word, std::memory_order_acq_rel));
  // Another thread may have learned a newer one since: the last one to store stores what the word says.
  std::atomic_ref byte(*seed_at(bucket));
  const bool changed = byte.exchange(seed.value, std::memory_order_acq_rel) != seed.value;
  for (std::uint64_t now = learned.load(std::memory_order_acquire); now != word;) {
    if (!Learned::is_of(now, bucket)) break;
    byte.store(Learned::seed(now).value, std::memory_order_release);
    const std::uint64_t then = learned.load(std::memory_order_acquire);
    if (then == now) break;
    now = then;
  }
  return changed;
}

std::uint64_t Locator::bytes_of(const LocatorShape& shape) {
  return (shape.words() + shape.partitions + versions_of(shape)) * 8;
}

}  // namespace farpool::outback
