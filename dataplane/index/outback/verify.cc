// SPDX-License-Identifier: Apache-2.0
#include "index/outback/verify.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "index/outback/message.h"
#include "index/outback/slab.h"

namespace farpool::outback {
namespace {

using index::Report;

constexpr std::uint64_t kProgressBuckets = 1 << 18;

LineRecord record_at(base::Bytes memory, std::uint64_t offset) {
  return base::load<LineRecord>(memory.data() + offset);
}

// Says whether a memory node may write the word: one of seeds, slots and heads, or of a block; or a mark of a key that
// leaves.
bool may_change(const Cut& cut, std::uint64_t at) {
  return at % 8 == 0 && ((at >= cut.seeds && at < cut.heads_end()) || (at >= cut.blocks && at < cut.blocks_end()) ||
                         (at >= kMovesAt && at < kMovesAt + kMovesWords * 8));
}

bool can_be(const Cut& cut, const LineRecord& line) {
  const std::uint64_t phase = LineState::Phase::get(line.state);
  if (phase > LineState::kDecided) return false;
  if (phase == LineState::kBegun || line.state == 0) return true;
  if (OutcomeWord::TextBytes::get(line.outcome) > kTextBytes || line.effect_count > kMostEffects) return false;
  return phase != LineState::kDecided ||
         std::all_of(line.effects.begin(), line.effects.begin() + static_cast<std::ptrdiff_t>(line.effect_count),
                     [&](const Effect& effect) { return may_change(cut, effect.at); });
}

class Verifier {
  using Kind = index::Defect::Kind;

 public:
  Verifier(const Cut& cut, base::Bytes memory, const base::HashSecret& secret, const Look& look)
      : cut_(cut), memory_(memory), secret_(secret), look_(look), report_(0) {
    const auto stage = stage_of(cut, memory);
    if (stage.ok()) {
      shape_ = cut.shape(stage->level);
      old_shape_ = stage->moving ? cut.shape(stage->old_level()) : shape_;
    } else {
      shape_ = old_shape_ = cut.shape(0);
      tell(Kind::impossible, 0, 0, kStageAt, stage.status().message());
    }
  }

  Report run() {
    lines();
    marks();
    tokens();
    lists();
    for (std::uint64_t number = 0; number < cut_.bucket_count; ++number) {
      if (look_.progress && number % kProgressBuckets == 0) look_.progress(number);
      ++report_.rows;
      bucket(number);
    }
    overlaps();
    for (const auto& [mark, at] : marks_) {
      tell(Kind::impossible, 0, 0, at, "a key that is said to leave for another memory node is not there");
    }
    if (look_.progress) look_.progress(cut_.bucket_count);
    return std::move(report_);
  }

 private:
  void tell(Kind kind, std::uint64_t bucket, std::uint64_t slot, std::uint64_t offset, std::string what) {
    report_.tell({kind, bucket, slot, offset, std::move(what)});
  }
  std::uint64_t word(std::uint64_t at) const {
    const auto pending = pending_.find(at);
    return pending != pending_.end() ? pending->second : base::load<std::uint64_t>(memory_.data() + at);
  }
  // Returns the block as it is once the changes under way are made.
  std::optional<BlockView> block_at(std::uint64_t address) {
    auto view = view_block(cut_, memory_, address);
    if (!view) return view;
    const auto first = pending_.lower_bound(address);
    const std::uint64_t bytes = view->head.bytes();
    if (first == pending_.end() || first->first >= address + bytes) return view;
    auto& patched = patched_.emplace_back(memory_.begin() + static_cast<std::ptrdiff_t>(address),
                                          memory_.begin() + static_cast<std::ptrdiff_t>(address + bytes));
    for (auto at = first; at != pending_.end() && at->first < address + bytes; ++at) {
      base::store(patched.data() + (at->first - address), at->second);
    }
    view->head = base::load<BlockHead>(patched.data());
    if (view->head.bytes() != bytes) return std::nullopt;
    view->key = base::Bytes(patched).subspan(kBlockHeader, view->head.key_bytes());
    view->value = base::Bytes(patched).subspan(kBlockHeader + view->head.key_bytes(), view->head.value_bytes());
    return view;
  }

  void lines() {
    for (std::uint64_t number = 0; number < cut_.line_count(); ++number) {
      const std::uint64_t offset = cut_.lines + number * kLineBytes;
      const LineRecord line = record_at(memory_, offset);
      if (!can_be(cut_, line)) {
        tell(Kind::impossible, 0, 0, offset, "line " + std::to_string(number) + " remembers what cannot be");
        continue;
      }
      if (LineState::Phase::get(line.state) != LineState::kDecided) continue;
      tell(Kind::tentative, 0, 0, offset, "the change of line " + std::to_string(number) + " was not over");
      for (std::uint64_t i = 0; i < line.effect_count; ++i) pending_[line.effects[i].at] = line.effects[i].word;
    }
    for (std::uint64_t number = 0; number < cut_.line_count(); ++number) held_by(number);
  }
  void held_by(std::uint64_t number) {
    const std::uint64_t offset = cut_.lines + number * kLineBytes;
    const LineRecord line = record_at(memory_, offset);
    if (!can_be(cut_, line) || LineState::Phase::get(line.state) == LineState::kBegun || line.state == 0) return;
    if (line.block == 0) return;
    const auto block = block_at(line.block);
    if (!block || block->head.bucket >= cut_.bucket_count || !is_whole(*block, line.block)) {
      return tell(Kind::extent, 0, 0, offset, "the block of line " + std::to_string(number) + " is not whole");
    }
    reach({.address = line.block,
           .bytes = block->head.bytes(),
           .bucket = block->head.bucket,
           .by = Seen::By::line,
           .block = *block},
          "line " + std::to_string(number));
  }
  void marks() {
    for (std::uint64_t zone = 0; zone < cut_.figures.zones; ++zone) {
      for (std::uint64_t mark = 0; mark < marks_of(cut_.figures); ++mark) {
        const std::uint64_t at = mark_at(cut_.figures, zone, mark);
        if (word(at) != 0) marks_[word(at)] = at;
      }
    }
  }
  void tokens() {
    std::unordered_set<std::uint64_t> tokens;
    for (std::uint64_t client = 0; client < cut_.figures.clients; ++client) {
      const std::uint64_t token = word(cut_.client_at(client));
      if (token != 0 && !tokens.insert(token).second) {
        tell(Kind::twice, 0, 0, cut_.client_at(client),
             "client " + std::to_string(client) + " has another one's lines");
      }
    }
  }

  // Notes that a block is in use; false if something else points to it, too.
  bool reach(const Seen& seen, const std::string& whose) {
    if (!reached_.insert(seen.address).second) {
      tell(Kind::shared, seen.bucket, 0, seen.address, "the block of " + whose + " is another one's, too");
      return false;
    }
    if (seen.bytes > kMostSmall) {
      if ((seen.address - cut_.blocks) % kRunUnit != 0) {
        tell(Kind::impossible, seen.bucket, 0, seen.address, "the block of " + whose + " begins where none can");
      }
      extents_.emplace_back(seen.address, base::round_up(seen.bytes, kRunUnit));
    } else {
      const std::uint64_t page = (seen.address - cut_.blocks) / kPageBytes;
      const std::uint64_t begin = cut_.blocks + page * kPageBytes, size = footprint(seen.bytes);
      const auto [of, first] = page_sizes_.emplace(page, size);
      if (first) extents_.emplace_back(begin, kPageBytes);
      if (of->second != size || (seen.address - begin) % size != 0 || seen.address - begin + size > kPageBytes) {
        tell(Kind::impossible, seen.bucket, 0, seen.address, "the block of " + whose + " begins where none can");
      }
    }
    const std::uint64_t chunk = (seen.address - cut_.blocks) / cut_.figures.chunk_bytes;
    if (chunk_zones_.emplace(chunk, cut_.zone_of(seen.bucket)).first->second != cut_.zone_of(seen.bucket)) {
      tell(Kind::impossible, seen.bucket, 0, seen.address, "the block of " + whose + " lies in another zone's chunk");
    }
    report_.block_bytes += footprint(seen.bytes);
    if (look_.visit) look_.visit(seen);
    return true;
  }
  void count_key(const BlockView& block) {
    if (!marks_.empty()) marks_.erase(mark_of(hash_of(secret_, cut_.figures.salt, block.key)));
    ++report_.keys;
    ++report_.extents;
    report_.bytes += block.key.size() + block.value.size();
  }

  void lists() {
    for (std::uint64_t head = 0; head < cut_.figures.overflow; ++head) {
      const std::uint64_t at = cut_.heads + head * 8;
      std::uint64_t from = at;
      for (std::uint64_t address = word(at); address != 0;) {
        const std::string whose = "overflow list " + std::to_string(head);
        const auto block = block_at(address);
        if (!block) {
          tell(Kind::beyond_heap, 0, 0, from, whose + " leads to no block");
          break;
        }
        const std::uint64_t bucket = block->head.bucket;
        if (bucket >= cut_.bucket_count || cut_.head_of(bucket) != head) {
          tell(Kind::misplaced, bucket, 0, address, whose + " has a key of another list");
          break;
        }
        ++report_.entries;
        const bool first = reach(
            {.address = address, .bytes = block->head.bytes(), .bucket = bucket, .by = Seen::By::list, .block = *block},
            whose);
        if (!first) break;
        if (!is_whole(*block, address)) {
          tell(Kind::extent, bucket, 0, address, "a block of " + whose + " is not whole");
        }
        if (!may_lie(hash_of(secret_, cut_.figures.salt, block->key), bucket)) {
          tell(Kind::misplaced, bucket, 0, address, "a key of " + whose + " belongs into no such bucket");
        }
        auto& keys = listed_[bucket];
        if (std::ranges::any_of(keys, [&](base::Bytes key) { return std::ranges::equal(key, block->key); })) {
          tell(Kind::twice, bucket, 0, address, whose + " has a key twice");
        }
        keys.push_back(block->key);
        count_key(*block);
        from = address + kNextAt;
        address = block->head.next;
      }
    }
  }

  void bucket(std::uint64_t number) {
    const auto listed = listed_.find(number);
    const bool cached = listed != listed_.end();
    const std::uint64_t pair = word(cut_.seed_word_at(number)) >> cut_.seed_number(number) % kSeedsPerWord * 32;
    if ((pair >> 24 & 0xff) != 0) {
      tell(Kind::impossible, number, 0, cut_.seed_word_at(number),
           "the seed of bucket " + std::to_string(number) + " cannot be");
    }
    for (std::uint64_t slot = 0; slot < kBucketSlots; ++slot) {
      const std::uint64_t at = cut_.slot_at(number, slot), says = word(at);
      if (SlotWord::cached(says) != cached) {
        tell(Kind::impossible, number, slot, at,
             "the cache bit of " + place(number, slot) + " does not say whether its bucket has keys in overflow");
      }
      if (!SlotWord::empty(says)) {
        slot_of_bucket(number, slot, says, cached ? &listed->second : nullptr);
      } else if (SlotWord::cached_as(says, false) != 0) {
        tell(Kind::impossible, number, slot, at, place(number, slot) + " is empty, and says more");
      }
    }
  }
  static std::string place(std::uint64_t bucket, std::uint64_t slot) {
    return "slot " + std::to_string(slot) + " of bucket " + std::to_string(bucket);
  }
  void slot_of_bucket(std::uint64_t number, std::uint64_t slot, std::uint64_t says,
                      const std::vector<base::Bytes>* listed) {
    const std::uint64_t address = SlotWord::Address::get(says), at = cut_.slot_at(number, slot);
    const std::string whose = place(number, slot);
    ++report_.entries;
    const auto block = block_at(address);
    if (!block) return tell(Kind::beyond_heap, number, slot, at, whose + " points to no block");
    const std::uint64_t bytes = block->head.bytes();
    if (!is_whole(*block, address)) {
      return tell(Kind::extent, number, slot, at, "the block of " + whose + " is not whole");
    }
    if (block->head.bucket != number) {
      return tell(Kind::misplaced, number, slot, at, "the block of " + whose + " is another bucket's");
    }
    if (!reach({.address = address, .bytes = bytes, .bucket = number, .by = Seen::By::slot, .block = *block}, whose)) {
      return;
    }
    count_key(*block);
    const std::uint64_t hash = hash_of(secret_, cut_.figures.salt, block->key);
    const Seed seed = seed_in(word(cut_.seed_word_at(number)), cut_.seed_number(number));
    if (SlotWord::Print::get(says) != print_of(hash)) {
      tell(Kind::hash, number, slot, at, "the print of " + whose + " is not its key's");
    }
    if (SlotWord::Length::get(says) != SlotWord::Length::get(SlotWord::of(0, bytes, 0, false))) {
      tell(Kind::impossible, number, slot, at, "the length of " + whose + " is not its block's");
    }
    if (!may_lie(hash, number) || slot_of(hash, seed.value) != slot) {
      tell(Kind::misplaced, number, slot, at, "the key of " + whose + " does not belong there");
    }
    const auto same = [&](base::Bytes key) { return std::ranges::equal(key, block->key); };
    if (listed != nullptr && std::ranges::any_of(*listed, same)) {
      tell(Kind::twice, number, slot, at, whose + " has a key that is in overflow, too");
    }
  }

  // While keys are moving, a key may still be where the table had it before.
  bool may_lie(std::uint64_t hash, std::uint64_t bucket) const {
    return is_candidate(shape_, hash, bucket) || is_candidate(old_shape_, hash, bucket);
  }

  void overlaps() {
    std::sort(extents_.begin(), extents_.end());
    for (std::size_t i = 1; i < extents_.size(); ++i) {
      if (extents_[i].first < extents_[i - 1].first + extents_[i - 1].second) {
        tell(Kind::shared, 0, 0, extents_[i].first, "a block overlaps another one");
      }
    }
  }

  const Cut& cut_;
  const base::Bytes memory_;
  const base::HashSecret secret_;
  const Look& look_;
  LocatorShape shape_, old_shape_;
  std::map<std::uint64_t, std::uint64_t> pending_;  // words that changes under way write
  std::deque<std::vector<std::byte>> patched_;
  std::unordered_map<std::uint64_t, std::vector<base::Bytes>> listed_;  // keys in overflow, by bucket
  std::unordered_set<std::uint64_t> reached_;
  std::unordered_map<std::uint64_t, std::uint64_t> page_sizes_, chunk_zones_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> extents_;
  std::map<std::uint64_t, std::uint64_t> marks_;  // of keys that leave and have not been seen yet: where they are
  Report report_;
};

}  // namespace

Report verify(const Cut& cut, base::Bytes memory, const base::HashSecret& secret, const Look& look) {
  return Verifier(cut, memory, secret, look).run();
}

base::Result<std::uint64_t> finish_decided(const Cut& cut, base::MutableBytes memory, fabric::Hand hand) {
  std::uint64_t finished = 0;
  for (std::uint64_t number = 0; number < cut.line_count(); ++number) {
    const std::uint64_t offset = cut.lines + number * kLineBytes;
    const LineRecord line = record_at(memory, offset);
    if (LineState::Phase::get(line.state) <= LineState::kBegun) continue;
    if (!can_be(cut, line)) {
      return base::Status{base::Code::corrupt,
                          "line " + std::to_string(number) +
                              " of the Outback table has a change that cannot be: let farpool-fsck "
                              "look at the memory"};
    }
    for (std::uint64_t i = 0; i < line.effect_count; ++i) {
      hand.write(memory.data() + line.effects[i].at, line.effects[i].word);
    }
    hand.write(memory.data() + offset, LineState::of(LineState::Number::get(line.state), LineState::kDone));
    ++finished;
  }
  return finished;
}

}  // namespace farpool::outback
