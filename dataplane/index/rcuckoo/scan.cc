// SPDX-License-Identifier: Apache-2.0
// A scan goes through the rows in order. An entry belongs to its first row, wherever it lies, unless its two rows are
// far from each other: then it belongs to the row that it is found in, and is displaced upwards alone, to where a scan
// has yet to come. So whoever reads rows and the kReach behind them has read every place from which what belongs to
// these rows could escape.
//
// The rows are not read at one moment, and an entry may be displaced against the order in which they are. A row's
// version tells what it has been: of a row that was read with versions v and v + 1 every state has been seen. So rows
// are read in rounds, one after the other, until no entry can have been missed:
//  - Between two rounds there is a moment. If in none of the rows a state was left out between the last two, an entry
//    that was never seen was in neither of its rows at that moment.
//  - Of a row that was read in three rounds without leaving out a state, the other rows were read in the middle one. An
//    entry that was never seen in it lay in its other row then, and was seen there. That row need not be read again.
#include <algorithm>
#include <array>
#include <map>
#include <unordered_set>
#include <vector>

#include "index/heads.h"
#include "index/page.h"
#include "index/rcuckoo/scan.h"

namespace farpool::rcuckoo {
namespace {

constexpr std::uint64_t kMostRows = 64;  // of a page

class Scan {
 public:
  Scan(Table::State& state, std::uint64_t first, std::uint64_t rows, Nanos deadline, Cost& cost)
      : state_(state),
        first_(first),
        rows_(std::min(state.geometry.rows - first, rows)),
        known_move_(state.move.number),
        deadline_(deadline),
        cost_(cost),
        torn_(state) {}

  Task<Result<index::Page>> run();

 private:
  struct Stamp {
    std::uint64_t version = 0;
    std::uint64_t checksum = 0;
  };
  struct Row {
    std::uint64_t number = 0;
    std::uint64_t at = 0;      // in the buffer
    bool ours = false;         // of the page; others are read because of their guests
    std::array<Stamp, 3> was;  // in the last rounds, the last one first
  };
  using Rows = std::vector<Row*>;

  Task<Status> read_round(const Rows& rows);
  Status collect(const Row& row);
  Task<Result<bool>> read_keys();

  // Whether every state of the row between the two has been seen.
  static bool seen_through(const Stamp& before, const Stamp& after) {
    const std::uint64_t steps = after.version - before.version;
    return steps == 0 ? after.checksum == before.checksum : steps == 1;
  }
  RowView view(const Row& row) const {
    return {state_.geometry, base::Bytes(buffer_.span()).subspan(row.at, state_.geometry.row_bytes())};
  }

  Table::State& state_;
  const std::uint64_t first_;
  const std::uint64_t rows_;
  const std::uint64_t known_move_;
  const Nanos deadline_;
  Cost& cost_;
  TornRow torn_;
  std::vector<Row> all_;
  fabric::Buffer buffer_;
  std::unordered_set<std::string> keys_;
  std::map<std::uint64_t, Entry> extents_;  // by block
};

Task<Result<index::Page>> Scan::run() {
  const session::EraPin pin = state_.session.pin();
  const std::uint64_t row_bytes = state_.geometry.row_bytes();
  all_.resize(std::min(rows_ + kReach, state_.geometry.rows));
  buffer_ = state_.port().buffer(all_.size() * row_bytes);
  Rows restless;
  for (std::uint64_t i = 0; i < all_.size(); ++i) {
    const std::uint64_t number = first_ + i < state_.geometry.rows ? first_ + i : first_ + i - state_.geometry.rows;
    all_[i] = {.number = number, .at = i * row_bytes, .ours = i < rows_, .was = {}};
    restless.push_back(&all_[i]);
  }
  for (int round = 1; restless.size() > 1 || round == 1; ++round) {
    if (round == 3) ++state_.marks.restless_scans;
    if (Status status = co_await read_round(restless); !status.ok()) co_return status;
    for (Row* row : restless) {
      const Stamp now{view(*row).version(), view(*row).checksum()};
      if (round == 1 || now.version != row->was[0].version || now.checksum != row->was[0].checksum) {
        if (Status status = collect(*row); !status.ok()) co_return status;
      }
      row->was = {now, row->was[0], row->was[1]};
    }
    const auto settled = [](const Row* row) { return seen_through(row->was[1], row->was[0]); };
    if (round >= 2 && std::all_of(restless.begin(), restless.end(), settled)) break;
    if (round < 3) continue;
    std::erase_if(restless, [&](const Row* row) { return settled(row) && seen_through(row->was[2], row->was[1]); });
  }
  const Result<bool> whole = co_await read_keys();
  if (!whole.ok()) co_return whole.status();
  if (!*whole) {
    co_return Status(Code::corrupt, "an extent of " + state_.name_row(first_) + " or of the " +
                                        std::to_string(all_.size() - 1) + " rows behind it is damaged");
  }
  index::Page page;
  page.keys.reserve(keys_.size());
  while (!keys_.empty()) page.keys.push_back(std::move(keys_.extract(keys_.begin()).value()));
  page.next = first_ + rows_ < state_.geometry.rows ? first_ + rows_ : 0;
  co_return page;
}

// Each row once, and again until it was whole.
Task<Status> Scan::read_round(const Rows& rows) {
  for (Rows left = rows; !left.empty();) {
    for (std::size_t first = 0; first < left.size();) {
      if (state_.now() >= deadline_) {
        co_return Status(Code::timed_out, "the deadline passed before " + std::to_string(left.size()) +
                                              " rows behind " + state_.name_row(first_) + " had come to rest");
      }
      Chain chain;
      while (first < left.size() && chain.size() < fabric::kMaxChain) {
        // Neighbours in one READ.
        std::size_t end = first + 1;
        const auto follows = [&](std::size_t i) {
          return left[i]->number == left[i - 1]->number + 1 && left[i]->at > left[i - 1]->at &&
                 left[i]->at - left[i - 1]->at == state_.geometry.row_bytes();
        };
        while (end < left.size() && follows(end)) ++end;
        chain.add(Op::read(state_.row_at(left[first]->number),
                           buffer_.span().subspan(left[first]->at, (end - first) * state_.geometry.row_bytes())));
        first = end;
      }
      const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
      if (outcome.fate != Fate::done) co_return state_.gone(Code::unavailable, "rows could not be read");
    }
    std::erase_if(left, [this](const Row* row) { return view(*row).whole(row->number); });
    if (left.empty()) break;
    state_.marks.torn_rows += left.size();
    const Row& torn = *left[0];
    if (Status status = co_await torn_.wait(torn.number, view(torn).checksum(), deadline_, cost_); !status.ok()) {
      co_return status;
    }
  }
  torn_.came_good();
  co_return Status();
}

// What of the row belongs to the page. What has left the row is in another table, which who knows of the move goes
// through later.
Status Scan::collect(const Row& row) {
  if (view(row).move() > known_move_) return index::map_is_old(known_move_);
  for (std::uint64_t slot = 0; slot < state_.geometry.entries_per_row; ++slot) {
    const Entry entry = view(row).entry(slot);
    if (entry.empty()) continue;
    if (!entry.well_formed(state_.geometry.entry_bytes) ||
        (entry.type() == EntryType::extent && !state_.in_heap(entry))) {
      return {Code::corrupt, "entry " + std::to_string(slot) + " of " + state_.name_row(row.number) + " cannot be"};
    }
    const Places places = locate(hash_of(entry, state_.seed()), state_.geometry.rows);
    const bool belongs =
        near(places, state_.geometry.rows) ? places.first - first_ < rows_ : row.ours;  // below first_: a large number
    if (!belongs) continue;
    if (entry.type() == EntryType::in_place) {
      keys_.emplace(base::text_of(entry.key()));
    } else {
      extents_.emplace(entry.block(), entry);
    }
  }
  return {};
}

// False: one is not what its entry says, although no block is reused while the era is held.
Task<Result<bool>> Scan::read_keys() {
  std::vector<index::Head> heads;
  heads.reserve(extents_.size());
  for (const auto& [block, entry] : extents_) heads.push_back({.block = block, .most = entry.bytes()});
  if (Status status = co_await index::read_heads(state_.session, heads, deadline_, cost_); !status.ok()) {
    co_return status;
  }
  for (index::Head& head : heads) {
    const Entry& entry = extents_.at(head.block);
    if (base::round_up(head.extent_bytes, layout::kBlockUnit) != entry.bytes() ||
        state_.hash(head.key) != entry.hash()) {
      co_return false;
    }
    keys_.insert(std::move(head.key));
  }
  co_return true;
}

}  // namespace

std::uint64_t Table::positions() const {
  const std::uint64_t rows = state_->geometry.rows, unit = rows_per_position(rows);
  return (rows + unit - 1) / unit;
}

Task<Result<index::Page>> Table::scan(std::uint64_t position, std::uint64_t count, Nanos deadline, Cost& cost) {
  if (position >= positions()) co_return index::Page();
  const std::uint64_t unit = rows_per_position(state_->geometry.rows);
  const auto rows = std::clamp<std::uint64_t>(count / state_->geometry.entries_per_row, 1, kMostRows);
  Result<index::Page> page =
      co_await rcuckoo::scan(*state_, position * unit, base::round_up(rows, unit), deadline, cost);
  if (page.ok()) page->next /= unit;  // a step that is not the last one covers whole positions
  co_return page;
}

Task<Result<index::Page>> scan(Table::State& state, std::uint64_t first, std::uint64_t rows, Nanos deadline,
                               Cost& cost) {
  Scan scan(state, first, rows, deadline, cost);
  co_return co_await scan.run();
}

}  // namespace farpool::rcuckoo
