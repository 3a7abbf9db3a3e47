// SPDX-License-Identifier: Apache-2.0
#include "index/race/split.h"

#include <array>
#include <cstring>

#include "index/race/group.h"

namespace farpool::race {

using directory::Split;

namespace {

constexpr std::uint64_t kBuckets = Group::kBuckets;

bool may_move(Slot slot) { return !slot.moving(); }

class Moving {
 public:
  Moving(Table::State& state, const Split& split, std::uint64_t row, Nanos deadline, Cost& cost)
      : state_(state),
        split_(split),
        deadline_(deadline),
        cost_(cost),
        old_(state, split.from, row),
        new_(state, split.to, row) {}

  Task<Status> run();

 private:
  Task<Status> change_headers();
  bool moves(std::uint64_t slot) const {
    const Group::Known& known = old_.known(slot);
    return known.readable && split_.moves(directory::hash_of(known.pool_hash));
  }
  Task<Status> post(const Chain& chain) {
    const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
    if (outcome.fate == Fate::done) co_return Status();
    co_return state_.gone(Code::unavailable, "the split of table " + std::to_string(split_.from) + " was cut short");
  }

  Table::State& state_;
  const Split& split_;
  const Nanos deadline_;
  Cost& cost_;
  Group old_, new_;
};

// Changes the headers: from here on no moving key is placed here and committed, because an inserter reads the headers
// behind its CAS. Each header keeps its number of a move of keys to other memory nodes.
Task<Status> Moving::change_headers() {
  const std::uint64_t before = HeaderWord::of(split_.depth - 1, split_.suffix);
  const std::uint64_t after = HeaderWord::of(split_.depth, split_.suffix);
  std::array<std::uint64_t, kBuckets> expected{}, found{};
  expected.fill(HeaderWord::reached_by(before, state_.move.number));
  for (bool again = true; again;) {
    Chain chain;
    for (std::uint64_t i = 0; i < kBuckets; ++i) {
      const std::uint64_t move = HeaderWord::Move::get(expected[i]);
      chain.add(Op::cas(old_.header_at(i), found[i], expected[i], HeaderWord::reached_by(after, move)));
    }
    chain.add(old_.read());
    chain.add(new_.read());
    if (Status status = co_await post(chain); !status.ok()) co_return status;
    again = false;
    for (std::uint64_t i = 0; i < kBuckets; ++i) {
      if (found[i] == expected[i] || HeaderWord::keys(found[i]) == after) continue;
      if (HeaderWord::keys(found[i]) != before) {
        co_return Status(Code::corrupt, "a header of table " + std::to_string(split_.from) +
                                            " is not of the keys that the directory says: its split stops");
      }
      expected[i] = found[i];
      again = true;
    }
  }
  co_return Status();
}

Task<Status> Moving::run() {
  const session::EraPin pin = state_.session.pin();
  if (Status status = co_await change_headers(); !status.ok()) co_return status;
  Chain chain;
  // The first header is written when all slots are there. Other clients may already use what a dead splitter has
  // opened.
  if (!HeaderWord::open(new_.header(kOpenedFirst))) {
    for (;;) {
      if (Status status = co_await old_.learn(may_move, deadline_, cost_); !status.ok()) co_return status;
      std::array<std::uint64_t, kGroupSlots> found{};
      std::array<Slot, kGroupSlots> expected{};
      chain.clear();
      for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
        const Slot slot = old_.slot(i);
        if (slot.empty() || slot.moving()) continue;
        if (slot.leaving() && moves(i)) {
          co_return Status(Code::unavailable, "a key of table " + std::to_string(split_.from) +
                                                  " is on its way to another memory node: the split waits for it");
        }
        if (slot.committed() && moves(i)) {
          chain.add(Op::cas(old_.slot_at(i), found[i], slot.word(), slot.as(Slot::State::moving).word()));
        } else if (slot.tentative() && (moves(i) || !old_.known(i).readable)) {
          chain.add(Op::cas(old_.slot_at(i), found[i], slot.word(), 0));  // costs its inserter another try
        } else {
          continue;
        }
        expected[i] = slot;
      }
      if (chain.size() == 0) break;
      chain.add(old_.read());
      if (Status status = co_await post(chain); !status.ok()) co_return status;
      for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
        if (expected[i].empty()) continue;
        if (found[i] != expected[i].word()) {
          ++state_.marks.slot_conflicts;
        } else if (expected[i].committed()) {
          ++state_.marks.moved;
        } else {
          ++state_.marks.removed;
        }
      }
    }
    std::memset(new_.bytes().data(), 0, kGroupBytes);
    for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
      if (old_.slot(i).moving()) new_.set(i, old_.slot(i).as(Slot::State::committed));
    }
    chain.clear();
    chain.add(Op::write(new_.remote(), new_.bytes()));
  }
  fabric::Buffer headers = state_.port().buffer(8 * kBuckets);
  for (const std::uint64_t i : {kOpenedFirst, std::uint64_t{0}, std::uint64_t{2}}) {
    const std::uint64_t move = HeaderWord::Move::get(old_.header(i));
    base::store(headers.data() + 8 * i, HeaderWord::of(split_.depth, split_.suffix_of_target(), move));
    chain.add(Op::write(new_.header_at(i), headers.span().subspan(8 * i, 8)));
  }
  co_return co_await post(chain);
}

}  // namespace

Task<Status> Groups::move(const Split& split, std::uint64_t row, Nanos deadline, Cost& cost) {
  Moving moving(state_, split, row, deadline, cost);
  co_return co_await moving.run();
}

Task<Status> Groups::clear(const Split& split, std::uint64_t row, Nanos deadline, Cost& cost) {
  Group group(state_, split.from, row);
  const auto cut_short = [this] { return state_.gone(Code::unavailable, "a split was cut short"); };
  Chain chain;
  chain.add(group.read());
  Outcome outcome = co_await state_.session.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done) co_return cut_short();
  std::array<std::uint64_t, kGroupSlots> before{};
  chain.clear();
  for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
    if (group.slot(i).moving()) chain.add(Op::cas(group.slot_at(i), before[i], group.slot(i).word(), 0));
  }
  if (chain.size() == 0) co_return Status();
  outcome = co_await state_.session.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done) co_return cut_short();
  co_return Status();
}

}  // namespace farpool::race
