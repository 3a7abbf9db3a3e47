// SPDX-License-Identifier: Apache-2.0
// A table of CuckooDuo in memory, for tests: a vault as bytes, its owner's index and planner, and what the table should
// have. WRITEs land word by word, and the owner may die after any.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "index/cuckooduo/planner.h"
#include "index/cuckooduo/rebuild.h"
#include "index/cuckooduo/slot.h"

namespace farpool::cuckooduo {

using Pairs = std::map<std::string, std::string>;

inline constexpr base::HashSecret kSecret{0x243f6a8885a308d3ull, 0x13198a2e03707344ull};

// Keys that begin with '@' are kept by pointer: the block is the value, as a number.
inline bool by_pointer(const std::string& key) { return key.starts_with('@'); }

struct Word {
  std::uint64_t at = 0;  // in the vault
  std::uint64_t value = 0;
};

class Bed {
 public:
  explicit Bed(const Shape& shape, std::uint64_t salt = 7)
      : shape(shape), salt(salt), vault(shape.vault_bytes()), index(shape, salt), planner(index, 1) {}

  Shape shape;
  std::uint64_t salt;
  std::vector<std::byte> vault;
  FingerIndex index;
  Planner planner;
  Pairs pairs;

  static std::uint64_t hash_of(const std::string& key) { return base::keyed_hash(kSecret, base::bytes_of(key)); }
  Slot slot(Place place) const { return slot_in(vault, place); }
  Slot slot_in(const std::vector<std::byte>& bytes, Place place) const {
    return read_slot(base::Bytes(bytes).subspan(place * shape.slot_bytes, shape.slot_bytes), place);
  }
  static bool has_key(const Slot& slot, const std::string& key) {
    if (!slot.whole()) return false;
    if (by_pointer(key)) return slot.state == SlotState::pointer && slot.hash == hash_of(key);
    return slot.state == SlotState::in_place && base::text_of(slot.key) == key;
  }
  static std::string value_of(const Slot& slot) {
    return slot.state == SlotState::pointer ? std::to_string(slot.block) : std::string(base::text_of(slot.value));
  }

  // Brings what a change wants until it READs nothing more.
  template <class Next>
  Advice drive(Planned& change, const std::string& key, Next&& next) {
    for (;;) {
      const Advice step = next(change);
      if (step != Advice::read) return step;
      while (!change.wanted().empty()) learn(change, key, change.wanted().front());
      ++reads;
    }
  }
  void learn(Planned& change, const std::string& key, Place place) {
    const Slot there = slot(place);
    ASSERT_TRUE(there.whole()) << place;
    const auto status = planner.learn(change, place, there.hash_under(kSecret), has_key(there, key));
    ASSERT_TRUE(status.ok()) << status.message();
  }
  // Returns the words that the change's effects WRITE, those of each effect in order of addresses, or the other way.
  std::vector<Word> words(const Planned& change, const std::string& key, const std::string& value, bool upwards) const {
    return words(change.effects(), vault, upwards, [&](base::MutableBytes into, const Effect& effect) {
      if (by_pointer(key)) return put_pointer(into, effect.place, effect.version, std::stoull(value), 1, hash_of(key));
      return put_pair(into, effect.place, effect.version, base::bytes_of(key), base::bytes_of(value));
    });
  }
  std::vector<Word> words(std::span<const Effect> effects, const std::vector<std::byte>& from, bool upwards,
                          const std::function<std::uint64_t(base::MutableBytes, const Effect&)>& own) const {
    std::vector<Word> all;
    for (const Effect& effect : effects) {
      std::vector<std::byte> bytes(shape.slot_bytes);
      std::uint64_t length = kClearedBytes;
      if (effect.kind == Effect::Kind::pair) length = own(bytes, effect);
      if (effect.kind == Effect::Kind::copy) {
        length = put_copy(bytes, effect.place, effect.version, slot_in(from, effect.from));
      }
      std::vector<Word> one;
      for (std::uint64_t i = 0; i < length; i += 8) {
        one.push_back({effect.place * shape.slot_bytes + i, base::load<std::uint64_t>(bytes.data() + i)});
      }
      if (!upwards) std::reverse(one.begin(), one.end());
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  static void land(std::vector<std::byte>& bytes, std::span<const Word> words) {
    for (const Word& word : words) base::store(bytes.data() + word.at, word.value);
  }

  // Whole operations.
  Advice put(const std::string& key, const std::string& value) {
    Planned& change = scratch;
    if (!planner.begin(change, hash_of(key))) return Advice::busy;
    const Advice step = drive(change, key, [this](Planned& one) { return planner.put(one); });
    if (step != Advice::write) {
      planner.abort(change);
      return step;
    }
    land(vault, words(change, key, value, true));
    planner.commit(change);
    pairs[key] = value;
    return step;
  }
  Advice remove(const std::string& key) {
    Planned& change = scratch;
    if (!planner.begin(change, hash_of(key))) return Advice::busy;
    const Advice step = drive(change, key, [this](Planned& one) { return planner.remove(one); });
    if (step != Advice::write) {
      planner.abort(change);
      return step;
    }
    land(vault, words(change, key, "", true));
    planner.commit(change);
    pairs.erase(key);
    return step;
  }

  // Returns what lookups of these keys find; of keys in the arrays the first match is the only one that is read.
  std::optional<std::string> get(const FingerIndex& of, const std::vector<std::byte>& bytes,
                                 const std::string& key) const {
    const FingerIndex::Candidates candidates = of.find(hash_of(key));
    for (const Place place : candidates.all()) {
      const Slot there = slot_in(bytes, place);
      if (has_key(there, key)) return value_of(there);
    }
    return std::nullopt;
  }
  // Returns every pair in the vault that the index leads to.
  Pairs found(const FingerIndex& of, const std::vector<std::byte>& bytes, const Pairs& sought) const {
    Pairs all;
    for (const auto& [key, value] : sought) {
      if (const auto there = get(of, bytes, key)) all[key] = *there;
    }
    return all;
  }
  // Expects the table to have these pairs and nothing else, whole and once.
  void expect(const FingerIndex& of, const std::vector<std::byte>& bytes, const Pairs& expected) const {
    EXPECT_EQ(found(of, bytes, expected), expected);
    EXPECT_EQ(of.keys(), expected.size());
    std::uint64_t whole = 0;
    for (Place place = 0; place < shape.end(); ++place) {
      const Slot there = slot_in(bytes, place);
      whole += there.whole() ? 1 : 0;
      EXPECT_NE(there.verdict, Slot::Verdict::torn) << place;
      EXPECT_EQ(there.whole(), of.taken(place)) << place;
      if (there.whole()) EXPECT_TRUE(of.may_be(place, there.hash_under(kSecret))) << place;
    }
    EXPECT_EQ(whole, expected.size());
  }
  void expect_pairs() const { expect(index, vault, pairs); }

  base::Result<Rebuilt> rebuild_from(const std::vector<std::byte>& bytes) const {
    return rebuild(shape, salt, kSecret, bytes, [](const Slot& a, const Slot& b) {
      return a.state == SlotState::pointer && b.state == SlotState::pointer && a.hash == b.hash;
    });
  }

  std::uint64_t reads = 0;  // trips
  Planned scratch;
};

}  // namespace farpool::cuckooduo
