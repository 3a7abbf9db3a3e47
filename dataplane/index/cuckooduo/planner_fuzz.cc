// SPDX-License-Identifier: Apache-2.0
// Changes of keys whose hashes the input chooses, so that they collide as no keys under a secret do. After each change a
// lookup of every key meets it, and of keys among the arrays at its first match.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "index/cuckooduo/planner.h"

namespace duo = farpool::cuckooduo;

namespace {

constexpr duo::Shape kShape{
    .buckets = 3, .slots = 4, .second = 2, .print_bits = 4, .path = 3, .slot_bytes = 40, .stash = 6, .spares = 2};
constexpr std::uint8_t kKeys = 48;

struct Table {
  duo::FingerIndex index{kShape, 5};
  duo::Planner planner{index, 1};
  std::array<int, 64> vault{};  // the key at each place, from 1 on; 0: none
  std::array<std::uint64_t, kKeys + 1> hashes{};
  std::array<bool, kKeys + 1> there{};
  duo::Planned change;

  void run(int key, bool removes) {
    FARPOOL_CHECK(planner.begin(change, hashes[static_cast<std::size_t>(key)]));
    duo::Advice step = duo::Advice::read;
    while ((step = removes ? planner.remove(change) : planner.put(change)) == duo::Advice::read) {
      while (!change.wanted().empty()) {
        const duo::Place place = change.wanted().front();
        const int lies = vault[place];
        FARPOOL_CHECK(planner.learn(change, place, hashes[static_cast<std::size_t>(lies)], lies == key).ok());
      }
    }
    bool& is_there = there[static_cast<std::size_t>(key)];
    FARPOOL_CHECK((change.found() != duo::kNowhere) == is_there);
    FARPOOL_CHECK(step == duo::Advice::write ||
                  (removes ? step == duo::Advice::absent && !is_there : step == duo::Advice::full && !is_there));
    if (step != duo::Advice::write) {
      planner.abort(change);
      return;
    }
    for (const duo::Effect& effect : change.effects()) {
      vault[effect.place] = effect.kind == duo::Effect::Kind::pair   ? key
                            : effect.kind == duo::Effect::Kind::copy ? vault[effect.from]
                                                                     : 0;
    }
    planner.commit(change);
    is_there = !removes;
  }
  void check() const {
    FARPOOL_CHECK(planner.idle());
    std::size_t keys = 0;
    for (std::size_t key = 1; key <= kKeys; ++key) {
      if (!there[key]) continue;
      ++keys;
      const duo::FingerIndex::Candidates found = index.find(hashes[key]);
      std::size_t at = 0;
      while (at < found.count && vault[found.places[at]] != static_cast<int>(key)) ++at;
      FARPOOL_CHECK(at < found.count);
    }
    FARPOOL_CHECK(index.keys() == keys);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  static_assert(kShape.rows() * kShape.slots + kShape.stash <= 64);
  Table table;
  // The low bits of the mask say how alike the hashes are.
  const std::uint64_t mask = farpool::base::mix(data[0] % 16) | static_cast<std::uint64_t>(data[0]) << 56 | data[1];
  for (std::size_t key = 1; key <= kKeys; ++key)
    table.hashes[key] = farpool::base::mix(key) & (data[0] % 4 == 0 ? ~0ull : mask);
  for (std::size_t i = 2; i < size; ++i) {
    table.run(1 + data[i] % kKeys, data[i] >= 192);
    table.check();
  }
  return 0;
}
