// SPDX-License-Identifier: Apache-2.0
#include "index/outback/build.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/crc64.h"

namespace farpool::outback {

// Hashes by partition. Each partition has a list of chunks, the last of which is filled, so that one pass over the keys
// sorts them, whatever their number in each partition.
class Builder::Sorted {
 public:
  Sorted(const LocatorShape& shape, std::uint64_t most_keys)
      : shape_(shape),
        most_keys_(most_keys),
        lists_(shape.partitions),
        chunks_(most_keys / kChunk + shape.partitions),
        next_(chunks_, kNone),
        hashes_(new std::uint64_t[chunks_ * kChunk]) {}

  bool add(std::span<const std::uint64_t> hashes) {
    if (hashes.size() > most_keys_ - keys_) return false;
    for (const std::uint64_t hash : hashes) {
      List& list = lists_[Candidates::partition_of(hash, shape_)];
      if (list.count % kChunk == 0) grow(list);
      hashes_[list.at + list.count++ % kChunk] = hash;
    }
    keys_ += hashes.size();
    return true;
  }
  std::uint64_t keys() const { return keys_; }
  std::uint64_t keys_of(std::uint32_t partition) const { return lists_[partition].count; }

  // Appends some hashes of a partition, about as many as wanted, and returns how many. `from`: how many it has given.
  // Calls for one partition follow each other.
  std::uint64_t take(std::uint32_t partition, std::uint64_t from, std::uint64_t wanted,
                     std::vector<std::uint64_t>& to) {
    const List& list = lists_[partition];
    if (from == 0) reading_ = list.first;
    std::uint64_t taken = 0;
    while (from + taken < list.count && taken < wanted) {
      const std::uint64_t zone = std::min(kChunk, list.count - from - taken);
      const std::uint64_t* const begin = hashes_.get() + reading_ * kChunk;
      to.insert(to.end(), begin, begin + zone);
      reading_ = next_[reading_];
      taken += zone;
    }
    return taken;
  }

 private:
  static constexpr std::uint64_t kChunk = 256;
  static constexpr std::uint32_t kNone = ~0u;
  struct List {
    std::uint64_t at = 0;  // the hash that the last chunk begins with
    std::uint64_t count = 0;
    std::uint32_t first = kNone;
  };
  void grow(List& list) {
    FARPOOL_CHECK(used_ < chunks_);
    if (list.count == 0) {
      list.first = used_;
    } else {
      next_[list.at / kChunk] = used_;
    }
    list.at = std::uint64_t{used_++} * kChunk;
  }

  const LocatorShape shape_;
  const std::uint64_t most_keys_;
  std::uint64_t keys_ = 0;
  std::vector<List> lists_;
  const std::uint64_t chunks_;
  std::uint32_t used_ = 0;
  std::vector<std::uint32_t> next_;
  std::unique_ptr<std::uint64_t[]> hashes_;  // not zeroed
  std::uint32_t reading_ = kNone;
};

// One partition while it is built. Keys are their indexes in `hashes_`. What it looks at often fits a processor's
// second cache: 8 bytes of hash and 4 of buckets for each key, 4 for each slot, and 4 for each vertex of the graph.
class Builder::Partition {
 public:
  Partition(const LocatorShape& shape, BuildFigures& figures, std::vector<std::uint64_t>& left_out)
      : shape_(shape), figures_(figures), left_out_(left_out) {
    slots_.resize(std::uint64_t{shape.buckets} * kBucketSlots);
    sizes_.resize(shape.buckets);
    visited_.resize(shape.buckets);
    parents_.resize(2 * shape.array_bits());
    visits_.reserve(kMostVisited + kBucketSlots);
  }

  void begin(std::uint64_t salt) {
    salt_ = salt;
    salts_tried_ = 0;
    placed_ = 0;
    hashes_.clear();
    pairs_.clear();
    places_.clear();
    std::fill(sizes_.begin(), sizes_.end(), std::uint8_t{0});
  }
  std::vector<std::uint64_t>& hashes() { return hashes_; }
  std::uint64_t placed() const { return placed_; }

  // Each of these works on the keys, vertices or buckets from `at` on, moves it, and returns whether that was the last.
  bool place(std::uint64_t& at, std::uint64_t count) {
    const std::uint64_t end = std::min<std::uint64_t>(at + count, hashes_.size());
    for (; at < end; ++at) {
      const Candidates candidates = Candidates::of(hashes_[at], shape_);
      pairs_.push_back(
          {static_cast<std::uint16_t>(candidates.buckets[0]), static_cast<std::uint16_t>(candidates.buckets[1])});
      places_.push_back(kNowhere);
      place_key(static_cast<std::uint32_t>(at));
    }
    return at == hashes_.size();
  }
  // Returns nothing while there is more to do, and at the end whether all keys could be connected.
  std::optional<bool> connect(std::uint64_t& at, std::uint64_t count);
  bool write(std::uint64_t& at, std::uint64_t count, std::span<std::uint64_t> words);
  bool seed(std::uint64_t& at, std::uint64_t count, std::span<std::uint64_t> words);
  // Begins the graph again under another salt; false: enough have been tried.
  bool next_salt() {
    if (++salts_tried_ == kMostSalts) return false;
    salt_ = base::mix(salt_ + 1);
    ++figures_.retries;
    return true;
  }
  void leave_out_contradicted() {
    for (const std::uint32_t key : contradicted_) leave_out(key, figures_.contradicted);
  }

 private:
  using Pair = std::array<std::uint16_t, 2>;
  static constexpr std::uint8_t kNowhere = 2;
  struct Visit {
    std::uint32_t bucket;
    std::uint32_t from;  // the visit that led here; itself: none
    std::uint32_t key;   // that would move here
  };

  void place_key(std::uint32_t key);
  bool make_room(std::uint32_t key);
  void put(std::uint32_t key, std::uint8_t side) {
    const std::uint32_t bucket = pairs_[key][side];
    slots_[bucket * kBucketSlots + sizes_[bucket]++] = key;
    places_[key] = side;
  }
  void take_away(std::uint32_t key) {
    const std::uint32_t bucket = pairs_[key][places_[key]];
    const auto begin = slots_.begin() + bucket * kBucketSlots, end = begin + sizes_[bucket]--;
    *std::find(begin, end, key) = *(end - 1);
    places_[key] = kNowhere;
  }
  void move(std::uint32_t key) {
    const auto side = static_cast<std::uint8_t>(1 - places_[key]);
    take_away(key);
    put(key, side);
  }
  void leave_out(std::uint32_t key, std::uint64_t& figure) {
    if (places_[key] != kNowhere) {
      take_away(key);
      --placed_;
    }
    left_out_.push_back(hashes_[key]);
    ++figure;
  }
  // Returns the vertex's root, and the sum of the bits on the way to it.
  std::pair<std::uint32_t, std::uint32_t> root_of(std::uint32_t vertex) {
    std::uint32_t sum = 0;
    for (;;) {
      const std::uint32_t up = parents_[vertex];
      if (up >> 1 == vertex) return {vertex, sum};
      parents_[vertex] = parents_[up >> 1] ^ (up & 1);
      sum ^= parents_[vertex] & 1;
      vertex = parents_[vertex] >> 1;
    }
  }
  void seed_bucket(std::uint32_t bucket, std::uint8_t& seed);
  std::uint32_t odd_one_out(std::span<const std::uint32_t> keys) const;

  const LocatorShape& shape_;
  BuildFigures& figures_;
  std::vector<std::uint64_t>& left_out_;
  std::uint64_t salt_ = 0;
  std::uint32_t salts_tried_ = 0;
  std::uint64_t placed_ = 0;
  std::vector<std::uint64_t> hashes_;
  std::vector<Pair> pairs_;             // the two buckets of each key
  std::vector<std::uint8_t> places_;    // which of the two has it, or kNowhere
  std::vector<std::uint32_t> slots_;    // keys by bucket; those of one bucket in no order
  std::vector<std::uint8_t> sizes_;     // of buckets
  std::vector<std::uint32_t> visited_;  // by which search a bucket was visited last
  std::uint32_t search_ = 0;
  std::vector<Visit> visits_;
  // The graph as a forest: a vertex's parent, and in the lowest bit the sum of both values. Roots have the value 0.
  std::vector<std::uint32_t> parents_;
  std::vector<std::uint32_t> contradicted_;
};

void Builder::Partition::place_key(std::uint32_t key) {
  const Pair pair = pairs_[key];
  const std::uint8_t side = sizes_[pair[1]] < sizes_[pair[0]] ? 1 : 0;
  if (sizes_[pair[side]] < kBucketSlots) {
    put(key, side);
    ++placed_;
  } else if (make_room(key)) {
    ++placed_;
  } else {
    leave_out(key, figures_.homeless);
  }
}

// Searches for the shortest chain of moves that makes room for the key, nearest buckets first, and carries it out.
bool Builder::Partition::make_room(std::uint32_t key) {
  visits_.clear();
  ++search_;
  for (std::uint32_t side = 0; side < 2; ++side) {
    visits_.push_back({pairs_[key][side], side, key});
    visited_[pairs_[key][side]] = search_;
  }
  for (std::uint32_t at = 0; at < visits_.size() && visits_.size() < kMostVisited; ++at) {
    const std::uint32_t bucket = visits_[at].bucket;
    for (std::uint32_t slot = 0; slot < kBucketSlots; ++slot) {
      const std::uint32_t moving = slots_[bucket * kBucketSlots + slot];
      const std::uint32_t other = pairs_[moving][1 - places_[moving]];
      if (visited_[other] == search_) continue;
      visited_[other] = search_;
      visits_.push_back({other, at, moving});
      if (sizes_[other] == kBucketSlots) continue;
      auto from = static_cast<std::uint32_t>(visits_.size() - 1);
      for (; visits_[from].from != from; from = visits_[from].from) {
        move(visits_[from].key);
        ++figures_.moved;
      }
      put(key, static_cast<std::uint8_t>(from));  // the first two visits are of the key's buckets
      return true;
    }
  }
  return false;
}

std::optional<bool> Builder::Partition::connect(std::uint64_t& at, std::uint64_t count) {
  if (at == 0) {
    for (std::uint32_t vertex = 0; vertex < parents_.size(); ++vertex) parents_[vertex] = vertex << 1;
    contradicted_.clear();
  }
  const auto side_b = static_cast<std::uint32_t>(shape_.array_bits());
  const std::uint64_t end = std::min<std::uint64_t>(at + count, hashes_.size());
  for (; at < end; ++at) {
    const auto key = static_cast<std::uint32_t>(at);
    if (places_[key] == kNowhere) continue;
    const ArrayPlaces bits = ArrayPlaces::of(hashes_[key], salt_, shape_.array_bits());
    const auto [root_a, sum_a] = root_of(bits.a);
    const auto [root_b, sum_b] = root_of(side_b + bits.b);
    if (root_a != root_b) {
      parents_[root_a] = root_b << 1 | (sum_a ^ sum_b ^ places_[key]);
    } else if ((sum_a ^ sum_b) != places_[key]) {
      if (sizes_[pairs_[key][1 - places_[key]]] < kBucketSlots) {
        move(key);
        ++figures_.turned;
      } else {
        contradicted_.push_back(key);
      }
    }
  }
  if (at < hashes_.size()) return std::nullopt;
  return contradicted_.empty();
}

bool Builder::Partition::write(std::uint64_t& at, std::uint64_t count, std::span<std::uint64_t> words) {
  words[0] = salt_;
  const std::uint64_t end = std::min<std::uint64_t>(at + base::round_up(count, 64), parents_.size());
  for (; at < end; at += 64) {
    std::uint64_t word = 0;
    for (std::uint32_t bit = 0; bit < 64; ++bit) {
      word |= std::uint64_t{root_of(static_cast<std::uint32_t>(at) + bit).second} << bit;
    }
    words[1 + at / 64] = word;
  }
  return at == parents_.size();
}

bool Builder::Partition::seed(std::uint64_t& at, std::uint64_t count, std::span<std::uint64_t> words) {
  auto* const seeds = reinterpret_cast<std::uint8_t*>(words.data() + 1 + 2 * std::uint64_t{shape_.array_words});
  const std::uint64_t end = std::min<std::uint64_t>(at + count, shape_.buckets);
  for (; at < end; ++at) seed_bucket(static_cast<std::uint32_t>(at), seeds[at]);
  return at == shape_.buckets;
}

void Builder::Partition::seed_bucket(std::uint32_t bucket, std::uint8_t& seed) {
  for (;;) {
    const std::span keys(slots_.data() + bucket * kBucketSlots, sizes_[bucket]);
    std::array<std::uint64_t, kBucketSlots> hashes;
    for (std::size_t i = 0; i < keys.size(); ++i) hashes[i] = hashes_[keys[i]];
    if (const auto found = find_seed(std::span(hashes).first(keys.size()))) {
      seed = *found;
      return;
    }
    const auto repeats = [&](std::uint32_t key) {
      return std::ranges::count(std::span(hashes).first(keys.size()), hashes_[key]) > 1;
    };
    const auto repeated = std::ranges::find_if(keys, repeats);
    if (repeated != keys.end()) {
      leave_out(*repeated, figures_.repeated);
    } else {
      leave_out(keys.back(), figures_.unseeded);
    }
  }
}

struct Builder::State {
  enum class Phase { gather, place, connect, write, seed, done };

  State(const LocatorShape& the_shape, std::uint64_t the_generation, std::uint64_t the_salt, std::uint64_t most_keys)
      : shape(the_shape),
        generation(the_generation),
        salt(the_salt),
        sorted(shape, most_keys),
        words(shape.words()),
        zone(shape, figures, left_out) {}

  std::span<std::uint64_t> zone_words() {
    return std::span(words).subspan(LocatorHeader::kWords + partition * shape.partition_words(),
                                    shape.partition_words());
  }
  void go_on(Phase next) {
    phase = next;
    at = 0;
  }
  // Works on about that many keys within one phase.
  void work(std::uint64_t count);
  void end_partition();

  const LocatorShape shape;
  const std::uint64_t generation;
  const std::uint64_t salt;
  Sorted sorted;
  std::vector<std::uint64_t> words;
  std::vector<std::uint64_t> left_out;
  BuildFigures figures;
  std::uint64_t checksum = 0;
  std::uint64_t placed = 0;

  Partition zone;
  Phase phase = Phase::gather;
  bool begun = false;
  std::uint32_t partition = 0;
  std::uint64_t at = 0;  // in the phase
};

void Builder::State::work(std::uint64_t count) {
  switch (phase) {
    case Phase::gather:
      if (at == 0) zone.begin(base::mix(salt + partition));
      at += sorted.take(partition, at, count, zone.hashes());
      if (at == sorted.keys_of(partition)) go_on(Phase::place);
      break;
    case Phase::place:
      if (zone.place(at, count)) go_on(Phase::connect);
      break;
    case Phase::connect: {
      const auto connected = zone.connect(at, count);
      if (!connected) break;
      if (*connected) {
        go_on(Phase::write);
      } else if (zone.next_salt()) {
        go_on(Phase::connect);
      } else {
        zone.leave_out_contradicted();
        go_on(Phase::write);
      }
      break;
    }
    case Phase::write:
      if (zone.write(at, 2 * count, zone_words())) go_on(Phase::seed);
      break;
    case Phase::seed:
      if (zone.seed(at, count, zone_words())) end_partition();
      break;
    case Phase::done:
      break;
  }
}

void Builder::State::end_partition() {
  checksum = base::crc64(std::as_bytes(zone_words().first(1 + 2 * std::uint64_t{shape.array_words})), checksum);
  placed += zone.placed();
  go_on(++partition == shape.partitions ? Phase::done : Phase::gather);
}

Builder::Builder(const LocatorShape& shape, std::uint64_t generation, std::uint64_t salt, std::uint64_t most_keys) {
  FARPOOL_CHECK(shape.check().ok() && generation != 0);
  state_ = std::make_unique<State>(shape, generation, salt, most_keys);
}
Builder::~Builder() = default;

bool Builder::add(std::span<const std::uint64_t> hashes) {
  if (state_->begun || !state_->sorted.add(hashes)) return false;
  state_->figures.keys += hashes.size();
  return true;
}

bool Builder::step(std::uint64_t keys) {
  // A phase does its work several times faster for each key than all of them together.
  constexpr std::uint64_t kPhases = 4;
  state_->begun = true;
  for (std::uint64_t i = 0; i < kPhases && state_->phase != State::Phase::done; ++i) {
    state_->work(std::max<std::uint64_t>(keys, 1));
  }
  return state_->phase != State::Phase::done;
}

Locator Builder::finish() {
  FARPOOL_CHECK(state_->phase == State::Phase::done && !state_->words.empty());
  LocatorHeader header;
  header.generation = state_->generation;
  header.salt = state_->salt;
  header.keys = state_->placed;
  header.shape = state_->shape;
  header.arrays_checksum = state_->checksum;
  header.put(state_->words);
  return Locator(header, std::exchange(state_->words, {}));
}

const std::vector<std::uint64_t>& Builder::left_out() const { return state_->left_out; }
const BuildFigures& Builder::figures() const { return state_->figures; }

Built build(const LocatorShape& shape, std::uint64_t generation, std::uint64_t salt,
            std::span<const std::uint64_t> hashes) {
  Builder builder(shape, generation, salt, hashes.size());
  FARPOOL_CHECK(builder.add(hashes));
  while (builder.step(1u << 16)) {
  }
  return {builder.finish(), builder.left_out(), builder.figures()};
}

}  // namespace farpool::outback
