// SPDX-License-Identifier: Apache-2.0
// The part of the index that clients hold: where a key lies if it is in the table. It is a few bits for each key, has no
// keys, and answers for keys that it has never seen, too: an insert goes where it says.
//
// A table's buckets are cut into partitions of at most kPartitionBuckets, each a perfect hash of its own (Ludo hashing):
// two bit arrays A and B whose bits, at two places that the key's hash tells, say together which one of two buckets has
// the key (Othello); and a seed for each bucket, which says in which slot (seed.h). Keys, buckets and arrays of one
// partition fit a processor's cache when the locator is built, and are near each other when it is asked.
//
// A locator is its own serialised form, words of 64 bits, as it lies in the memory node's locator region:
//
// WORD  header
//    0  kMagic
//    1  kFormat
//    2  generation: grows from one locator of a table to the next
//    3  salt, of the hashes of keys (hash_of): one for all locators of a table
//    4  keys that it was built of and that are not in the overflow table
//    5  partitions 32 | buckets of each 32, the former in the low half
//    6  words of A, and of B, of each partition 32 | level 8 | doublings 8
//    7  words in all
//    8  checksum of the partitions' arrays
//    9  checksum of the words above
//       partition, one after the other
//    0  its salt
//       A, B
//       seeds, one a byte, zeros to a whole word
//
// The checksums leave the seeds out. A memory node may change them in place while clients read the region: any byte is
// a seed, and a wrong one costs a second trip and nothing else. The order for a client: it reads the header, then all of
// it, then the header again; if the generation is the same, the arrays are.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/result.h"
#include "index/outback/seed.h"

namespace farpool::outback {

// Where a client believes that a key is.
struct Spot {
  std::uint32_t bucket = 0;
  std::uint8_t slot = 0;
  std::uint8_t seed = 0;  // by which it believes so
  friend constexpr bool operator==(const Spot&, const Spot&) = default;
};

// How a locator is cut.
struct LocatorShape {
  static constexpr std::uint32_t kPartitionBuckets = 4096;
  static constexpr std::uint64_t kMostBuckets = 1ull << 31;
  static constexpr std::uint32_t kMostArrayWords = 1024;

  std::uint32_t partitions = 1;
  std::uint32_t buckets = 1;      // of each partition
  std::uint32_t array_words = 1;  // of A, and of B, of each partition
  std::uint32_t level = 0;        // times that the table was doubled: each partition has become two each time
  std::uint32_t doublings = 0;    // times that it can be

  // Returns the shape for a table of at least that many buckets, of which no partition has more than one too many, and
  // arrays for that many keys.
  static base::Result<LocatorShape> of(std::uint64_t table_buckets, std::uint64_t keys);
  // Returns the words of each array, for that many keys in all partitions.
  static std::uint32_t array_words_for(std::uint64_t keys, std::uint64_t partitions);
  // Returns the buckets that that many keys fill to that load, from 0 to 1.
  static std::uint64_t buckets_for(std::uint64_t keys, double load);
  // Says what is impossible about the shape, or ok.
  base::Status check() const;

  std::uint64_t table_buckets() const { return std::uint64_t{partitions} * buckets; }
  std::uint64_t table_slots() const { return table_buckets() * kBucketSlots; }
  std::uint64_t array_bits() const { return std::uint64_t{array_words} * 64; }
  std::uint64_t partition_words() const {
    return 1 + 2 * std::uint64_t{array_words} + (std::uint64_t{buckets} + 7) / 8;
  }
  std::uint64_t words() const;  // of the whole locator, with its header
  // Returns the tags that a scan's position has beside bucket and partition (message.h).
  std::uint64_t scan_tags() const;
  // Returns a position that no scan comes to, however often the table is doubled.
  std::uint64_t scan_end() const;
  friend bool operator==(const LocatorShape&, const LocatorShape&) = default;
};

// The header of a serialised locator: what clients read first.
struct LocatorHeader {
  static constexpr std::uint64_t kMagic = 0x4b4c434f4c425546ull;
  static constexpr std::uint64_t kFormat = 1;
  static constexpr std::size_t kWords = 10;
  static constexpr std::size_t kBytes = kWords * 8;

  std::uint64_t generation = 0;
  std::uint64_t salt = 0;
  std::uint64_t keys = 0;
  LocatorShape shape;
  std::uint64_t arrays_checksum = 0;

  std::uint64_t bytes() const { return shape.words() * 8; }
  // Returns the header, or says what is wrong with these bytes. `corrupt`: they are no header.
  static base::Result<LocatorHeader> parse(base::Bytes bytes);
  void put(std::span<std::uint64_t> words) const;  // kWords of them, checksum and all
  friend bool operator==(const LocatorHeader&, const LocatorHeader&) = default;
};

// What a key's hash says about its place, apart from the arrays.
//
// A table that is doubled has twice as many partitions, of as many buckets. The keys of partition p of n then belong
// into p or p + n, as the next bit of the hash says, and each into the same two buckets as before.
struct Candidates {
  std::uint32_t partition = 0;
  std::array<std::uint32_t, 2> buckets{};  // within the partition; the same one only if that has no other

  static constexpr std::uint32_t partition_of(std::uint64_t hash, const LocatorShape& shape) {
    const std::uint32_t at_first = shape.partitions >> shape.level;
    const std::uint64_t scaled = (hash >> 32) * at_first;
    const std::uint32_t turned = __builtin_bitreverse32(static_cast<std::uint32_t>(scaled)) & ((1u << shape.level) - 1);
    return static_cast<std::uint32_t>(scaled >> 32) + at_first * turned;
  }
  static constexpr Candidates of(std::uint64_t hash, const LocatorShape& shape) {
    constexpr auto scale = [](std::uint64_t half, std::uint64_t size) {
      return static_cast<std::uint32_t>(half * size >> 32);
    };
    const std::uint64_t mixed = base::mix(hash ^ 0x9e3779b97f4a7c15ull);
    const std::uint32_t first = scale(mixed >> 32, shape.buckets);
    const std::uint32_t second = first + 1 + scale(mixed & 0xffffffff, shape.buckets - 1);
    return {partition_of(hash, shape), {first, second < shape.buckets ? second : second - shape.buckets}};
  }
};

// The places of a hash's bits in A and B under a partition's salt.
struct ArrayPlaces {
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  static constexpr ArrayPlaces of(std::uint64_t hash, std::uint64_t partition_salt, std::uint64_t array_bits) {
    const std::uint64_t mixed = base::mix(hash ^ partition_salt);
    return {static_cast<std::uint32_t>((mixed >> 32) * array_bits >> 32),
            static_cast<std::uint32_t>((mixed & 0xffffffff) * array_bits >> 32)};
  }
};

// Returns the bucket that a serialised locator gives a key, as Locator::find does; and the seed that it has for a bucket.
// The locator has been parsed before.
std::uint32_t bucket_in(const LocatorShape& shape, base::Bytes locator, std::uint64_t hash);
std::uint8_t seed_in(const LocatorShape& shape, base::Bytes locator, std::uint64_t bucket);

// Any number of threads may find(), learn() and seed_of() at the same time.
class Locator {
 public:
  // Says what is wrong with a serialised locator, or ok.
  static base::Status check(base::Bytes locator);
  // Takes over a serialised locator, or says what is wrong with it.
  static base::Result<Locator> parse(std::vector<std::uint64_t> words);

  const LocatorHeader& header() const { return header_; }
  // Returns where the key of this hash lies, if it is in the table and the bucket's seed is not outdated.
  Spot find(std::uint64_t hash) const;
  std::uint8_t seed_of(std::uint32_t bucket) const;
  // Takes over a bucket's seed from a reply or a tick, unless it is older than the one that is known. Returns whether
  // the bucket's seed is another one now. A bucket that there is not is ignored.
  bool learn(std::uint32_t bucket, Seed seed);
  // Returns the serialised form. Its seeds are those known now.
  std::span<const std::uint64_t> words() const { return words_; }
  // Returns the bytes of a client's memory that it takes.
  std::uint64_t bytes() const { return bytes_of(header_.shape); }
  static std::uint64_t bytes_of(const LocatorShape& shape);

 private:
  friend class Builder;
  Locator(LocatorHeader header, std::vector<std::uint64_t> words);
  std::uint8_t* seed_at(std::uint32_t bucket);

  LocatorHeader header_;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint64_t> salts_;  // of partitions, together: find() looks at one first
  // Versions of the seeds that were learned last. A word is a bucket, its seed and the version, and has its place by the
  // bucket's low bits. A bucket that has lost its place to another one takes any seed.
  std::vector<std::uint64_t> learned_;
};

}  // namespace farpool::outback
