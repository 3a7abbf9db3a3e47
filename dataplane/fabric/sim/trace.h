// SPDX-License-Identifier: Apache-2.0
// What happened in a simulated run: every chain that was posted, readable, and a hash over every word that moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "fabric/fabric.h"

namespace farpool::fabric::sim {

const char* name_of(Verb verb);

// A verb as it was posted: where and how much, never key or value bytes.
struct VerbRecord {
  Verb verb = Verb::read;
  bool fence = false;
  Remote at;
  std::uint64_t bytes = 0;  // READ, WRITE: length. CALL: of the request
  std::uint64_t compare = 0, compare_mask = 0, swap = 0, swap_mask = 0;
  std::uint32_t opcode = 0;
  std::uint64_t head = 0;  // of a CALL for data: the first word of the request
};

// A chain: one trip of the coroutine that awaits it.
struct ChainRecord {
  std::size_t client = 0;
  std::uint64_t lane = 0;
  Nanos posted = 0;
  Nanos ended = 0;  // 0: not yet
  Fate fate = Fate::maybe;
  std::vector<VerbRecord> verbs;
};

class Trace {
 public:
  // Chains are kept only if `keep`; the hash is always there.
  explicit Trace(bool keep) : keep_(keep) {}

  const std::vector<ChainRecord>& chains() const { return chains_; }
  // Over everything that happened, in order: the same seed and the same program give the same hash.
  std::uint64_t hash() const { return hash_; }

  void note(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
    hash_ = base::mix(hash_ + a * 0x9e3779b97f4a7c15 + b * 0xc2b2ae3d27d4eb4f + c);
  }
  // The same as note(at, word, c) of each word, `at` being where it lies.
  void note_words(std::uint64_t at, const std::byte* words, std::uint64_t count, std::uint64_t c) {
    std::uint64_t hash = hash_;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t place = (at + 8 * i) * 0x9e3779b97f4a7c15 + c;
      hash = base::mix(hash + (place + base::load<std::uint64_t>(words + 8 * i) * 0xc2b2ae3d27d4eb4f));
    }
    hash_ = hash;
  }
  std::size_t post(std::size_t client, std::uint64_t lane, Nanos now, std::span<const Op> ops);
  void end(std::size_t chain, Nanos now, Fate fate);
  void clear() { chains_.clear(); }

  // How a place is called; the default gives `region 3 +128`.
  using Namer = std::function<std::string(Remote at, std::uint64_t bytes)>;
  // One line a verb, a chain's first with its trip number:  "trip 1  WRITE slots +0  256 B".
  static std::string format(const std::vector<ChainRecord>& chains, const Namer& name = {});

 private:
  bool keep_;
  std::uint64_t hash_ = 0;
  std::uint64_t posted_ = 0;
  std::vector<ChainRecord> chains_;
};

}  // namespace farpool::fabric::sim
