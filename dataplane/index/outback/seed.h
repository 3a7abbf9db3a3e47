// SPDX-License-Identifier: Apache-2.0
// The second half of the perfect hash: a bucket has four slots and a seed of eight bits, under which its keys have
// different slots. Clients and memory nodes go by the same functions. Pure.
//
// A key's 64-bit hash gives eight words, and each word 32 fields of two bits. A seed names one field, whose value is the
// key's slot. So one comparison of two words tells for 32 seeds at once whether they keep two keys apart.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/hash.h"

namespace farpool::outback {

inline constexpr std::uint32_t kBucketSlots = 4;
inline constexpr std::uint32_t kSeeds = 256;

// Returns the hash that places a key. The secret comes with the handshake and never changes; the salt is drawn for each
// table, so that nobody can choose keys that collide. A key has the same hash under all locators of a table.
inline std::uint64_t hash_of(const base::HashSecret& secret, std::uint64_t salt, base::Bytes key) {
  return base::keyed_hash({secret.low ^ base::mix(salt), secret.high ^ base::mix(~salt)}, key);
}

namespace detail {
inline constexpr std::uint32_t kFields = 32;  // of two bits in a word
inline constexpr std::array<std::uint64_t, kSeeds / kFields> kWords = {
    0x8f1bbcdc62c1d6a5ull, 0x2545f4914f6cdd1dull, 0xd1342543de82ef95ull, 0x5851f42d4c957f2dull,
    0xa0761d6478bd642full, 0xe7037ed1a0b428dbull, 0x8ebc6af09c88c6e3ull, 0x589965cc75374cc3ull};
constexpr std::uint64_t word_of(std::uint64_t hash, std::uint32_t word) { return base::mix(hash ^ kWords[word]); }
}  // namespace detail

// Returns the slot of a key in its bucket under a seed: 0 to 3.
constexpr std::uint8_t slot_of(std::uint64_t hash, std::uint8_t seed) {
  return detail::word_of(hash, seed / detail::kFields) >> (seed % detail::kFields * 2) & 3;
}

// Returns the smallest seed from `first` on under which at most four hashes have different slots. Nothing: there is
// none, as for two equal hashes.
constexpr std::optional<std::uint8_t> find_seed(std::span<const std::uint64_t> hashes, std::uint8_t first = 0) {
  constexpr std::uint64_t kLow = 0x5555555555555555ull;  // the lower bit of each field
  std::uint64_t fit = kLow << (first % detail::kFields * 2);
  for (std::uint32_t word = first / detail::kFields; word < detail::kWords.size(); ++word, fit = kLow) {
    std::array<std::uint64_t, kBucketSlots> fields{};
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      fields[i] = detail::word_of(hashes[i], word);
      for (std::size_t k = 0; k < i; ++k) {
        const std::uint64_t differ = fields[i] ^ fields[k];
        fit &= differ | differ >> 1;
      }
    }
    if (fit != 0) {
      return static_cast<std::uint8_t>(word * detail::kFields + static_cast<std::uint32_t>(std::countr_zero(fit)) / 2);
    }
  }
  return std::nullopt;
}

// A bucket's seed with its version, which the memory node raises by one when it gives the bucket another seed. Replies
// and ticks carry both, in no order: the newest wins.
struct Seed {
  std::uint8_t value = 0;
  std::uint16_t version = 0;
  friend constexpr bool operator==(const Seed&, const Seed&) = default;
};

// Says whether a client that knows version `known` goes by `told`. Versions wrap. Messages that overtake one another
// differ by few versions, so only one that is a little older counts as older: a client that was idle while a bucket got
// any number of seeds follows the next message that it gets.
inline constexpr std::uint16_t kOvertaken = 256;
constexpr bool newer(std::uint16_t told, std::uint16_t known) {
  return static_cast<std::uint16_t>(known - told) >= kOvertaken;
}

}  // namespace farpool::outback
