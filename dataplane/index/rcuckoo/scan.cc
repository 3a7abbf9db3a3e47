// SPDX-License-Identifier: Apache-2.0
// A scan reads the rows in order. An entry belongs to its first row, in whichever row it lies, unless its two rows are
// far apart: then it belongs to the row that it is found in, and is only displaced upwards, to rows that the scan has
// yet to read. So a client that reads rows and the kReach behind them has read every place to which their entries could
// escape.
//
// The rows are not read at one moment, and an entry may be displaced against the order of reading. A row's version
// tells its history: of a row that was read with versions v and v + 1, every state has been seen. So rows are read in
// rounds, one after the other, until no entry can have been missed:
//  - There is a moment between two rounds. If no row skipped a state between the last two, an entry that was never seen
//    was in neither of its rows at that moment.
//  - If a row was read in three rounds without skipping a state, the other rows were read in the middle round. An entry
//    that was never seen in it lay in its other row then, and was seen there. That row need not be read again.
//
// Rows that were never used (layout/geometry.h) are skipped. An entry may be displaced to such a row meanwhile, and its
// mark is set before: so the marks are read again behind the last round, and the step begins anew if one has been set.
// A page of only such rows misses nothing: an entry that is there all the while lies in a row with a mark, and no mark
// of such a row is cleared while the page is read (docs/adr/0029).
#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "index/heads.h"
#include "index/page.h"
#include "index/rcuckoo/scan.h"

namespace farpool::rcuckoo {
namespace {

constexpr std::uint64_t kMostRows = 512;    // of a page, that are read
constexpr std::uint64_t kMostMarks = 8192;  // that a page goes by: 64 KiB of them

class Scan {
 public:
  Scan(Table::State& state, std::uint64_t first, std::uint64_t rows, Nanos deadline, Cost& cost)
      : state_(state),
        first_(first),
        wanted_(rows),
        reach_(std::min(kReach, state.geometry.rows)),
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
    bool ours = false;         // of the page; other rows are read for entries that belong to the page
    std::array<Stamp, 3> was;  // in the last rounds, the last one first
  };
  using Rows = std::vector<Row*>;

  Task<Status> choose_rows();
  Task<Result<std::vector<bool>>> read_marks();
  std::size_t place_of(std::uint64_t row) const;  // of its mark, in marks_
  bool marked(std::uint64_t row) const { return marks_[place_of(row)]; }
  Task<Result<bool>> anything_new();
  void tell_of_empty_rows();
  Task<Status> read_rows();
  Task<Status> read_round(const Rows& rows);
  Status collect(const Row& row);
  Task<Result<bool>> read_keys();

  // Says whether every state of the row between the two has been seen.
  static bool seen_through(const Stamp& before, const Stamp& after) {
    const std::uint64_t steps = after.version - before.version;
    return steps == 0 ? after.checksum == before.checksum : steps == 1;
  }
  RowView view(const Row& row) const {
    return {state_.geometry, base::Bytes(buffer_.span()).subspan(row.at, state_.geometry.row_bytes())};
  }

  Table::State& state_;
  const std::uint64_t first_;
  const std::uint64_t wanted_;  // rows to be read, as long as there are so many
  const std::uint64_t reach_;
  std::uint64_t rows_ = 0;  // covered by the page
  std::uint64_t marks_first_ = 0, marks_count_ = 0, marks_wrapped_ = 0;
  std::vector<bool> marks_;          // of the rows from first_ on; behind them, of the table's first rows
  std::vector<std::size_t> passed_;  // places of marks whose rows are passed over
  const std::uint64_t known_move_;
  const Nanos deadline_;
  Cost& cost_;
  TornRow torn_;
  std::vector<Row> all_;
  fabric::Buffer buffer_;
  std::unordered_map<std::string, index::Millis> keys_;  // and when their values expire
  std::map<std::uint64_t, Entry> extents_;               // by block
};

std::size_t Scan::place_of(std::uint64_t row) const {
  const std::uint64_t mark = state_.geometry.mark_of(row);
  return mark >= marks_first_ && mark - marks_first_ < marks_count_ ? mark - marks_first_ : marks_count_ + mark;
}

Task<Result<std::vector<bool>>> Scan::read_marks() {
  return index::read_marks(state_.session, state_.geometry, marks_first_, marks_count_, marks_wrapped_, deadline_,
                           cost_);
}

// Decides how far the page goes, and which rows to read there and behind, where displaced entries may lie.
Task<Status> Scan::choose_rows() {
  const Geometry& g = state_.geometry;
  const std::uint64_t in_reach = (reach_ + g.rows_per_mark() - 1) / g.rows_per_mark() + 1;
  marks_first_ = g.mark_of(first_);
  const std::uint64_t ahead = g.marks() - marks_first_;
  marks_count_ = std::min(kMostMarks + in_reach, ahead);
  marks_wrapped_ = marks_count_ == ahead ? std::min(in_reach, g.marks()) : 0;
  Result<std::vector<bool>> marks = co_await read_marks();
  if (!marks.ok()) co_return marks.status();
  marks_ = std::move(*marks);
  const std::uint64_t end = std::min(g.rows, (marks_first_ + std::min(kMostMarks, ahead)) * g.rows_per_mark());
  std::uint64_t row = first_;
  for (std::uint64_t left = wanted_; row < end;) {
    const std::uint64_t stretch = std::min(end, (g.mark_of(row) + 1) * g.rows_per_mark()) - row;
    const std::uint64_t taken = marked(row) ? std::min(stretch, left) : stretch;
    if (taken == 0) break;
    if (marked(row)) left -= taken;
    row += taken;
  }
  rows_ = std::min(base::round_up(row - first_, rows_per_position(g.rows)), g.rows - first_);
  all_.clear();
  passed_.clear();
  const std::uint64_t covered = std::min(rows_ + reach_, g.rows);
  for (std::uint64_t i = 0; i < covered;) {
    const std::uint64_t number = first_ + i < g.rows ? first_ + i : first_ + i - g.rows;
    if (!marked(number)) {
      passed_.push_back(place_of(number));
      i += std::min(g.rows, (g.mark_of(number) + 1) * g.rows_per_mark()) - number;
      continue;
    }
    all_.push_back({.number = number, .at = all_.size() * g.row_bytes(), .ours = i < rows_, .was = {}});
    ++i;
  }
  co_return Status();
}

// Says whether a skipped row may have entries by now.
Task<Result<bool>> Scan::anything_new() {
  if (all_.empty() || passed_.empty()) co_return false;
  const Result<std::vector<bool>> now = co_await read_marks();
  if (!now.ok()) co_return now.status();
  co_return std::any_of(passed_.begin(), passed_.end(), [&now](std::size_t place) { return (*now)[place]; });
}

bool is_empty(const RowView& row, std::uint64_t entries) {
  for (std::uint64_t slot = 0; slot < entries; ++slot) {
    if (!row.entry(slot).empty()) return false;
  }
  return true;
}

void Scan::tell_of_empty_rows() {
  for (const Row& row : all_) {
    if (!row.ours) continue;
    state_.clearing.seen(row.number, row.number + 1, is_empty(view(row), state_.geometry.entries_per_row));
  }
}

Task<Result<index::Page>> Scan::run() {
  const session::EraPin pin = state_.session.pin();
  for (bool again = true; again;) {
    keys_.clear();
    extents_.clear();
    if (Status status = co_await choose_rows(); !status.ok()) co_return status;
    if (Status status = co_await read_rows(); !status.ok()) co_return status;
    const Result<bool> news = co_await anything_new();
    if (!news.ok()) co_return news.status();
    again = *news;
    if (again) ++state_.marks.restless_scans;
  }
  const Result<bool> whole = co_await read_keys();
  if (!whole.ok()) co_return whole.status();
  if (!*whole) {
    co_return Status(Code::corrupt, "an extent of " + state_.name_row(first_) + " or of the " +
                                        std::to_string(rows_ + reach_ - 1) + " rows behind it is damaged");
  }
  tell_of_empty_rows();
  index::Page page;
  page.keys.reserve(keys_.size());
  while (!keys_.empty()) {
    auto entry = keys_.extract(keys_.begin());
    page.add(std::move(entry.key()), entry.mapped());
  }
  page.next = first_ + rows_ < state_.geometry.rows ? first_ + rows_ : 0;
  co_return page;
}

Task<Status> Scan::read_rows() {
  buffer_ = state_.port().buffer(std::max<std::uint64_t>(1, all_.size()) * state_.geometry.row_bytes());
  Rows restless;
  for (Row& row : all_) restless.push_back(&row);
  for (int round = 1; restless.size() > 1 || (round == 1 && !restless.empty()); ++round) {
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
  co_return Status();
}

// Reads each row once, and again until it is whole.
Task<Status> Scan::read_round(const Rows& rows) {
  for (Rows left = rows; !left.empty();) {
    for (std::size_t first = 0; first < left.size();) {
      if (state_.now() >= deadline_) {
        co_return Status(Code::timed_out, "the deadline passed before the rows from " + state_.name_row(first_) +
                                              " on, of " + std::to_string(state_.geometry.rows) + ", had been read");
      }
      Chain chain;
      while (first < left.size() && chain.size() < fabric::kMaxChain) {
        // Adjacent rows share a READ.
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

// Adds the row's entries that belong to the page. Entries that have left the row are in another table, which a client
// that knows of the move scans later.
Status Scan::collect(const Row& row) {
  if (view(row).move() > known_move_) return index::map_is_old(known_move_);
  if (const auto slot = state_.impossible(view(row))) {
    return {Code::corrupt, "entry " + std::to_string(*slot) + " of " + state_.name_row(row.number) + " cannot be"};
  }
  for (std::uint64_t slot = 0; slot < state_.geometry.entries_per_row; ++slot) {
    const Entry entry = view(row).entry(slot);
    if (entry.empty()) continue;
    const Places places = locate(hash_of(entry, state_.seed()), state_.geometry.rows);
    const bool belongs =
        near(places, state_.geometry.rows) ? places.first - first_ < rows_ : row.ours;  // below first_: a large number
    if (!belongs) continue;
    if (entry.type() == EntryType::in_place) {
      const auto stored = index::Stored::parse(base::text_of(entry.value()));
      keys_.insert_or_assign(std::string(base::text_of(entry.key())), stored ? stored->expires : index::kNoExpiry);
    } else {
      extents_.emplace(entry.block(), entry);
    }
  }
  return {};
}

// Returns false if an extent is not what its entry says, although no block is reused while the era is held.
Task<Result<bool>> Scan::read_keys() {
  std::vector<index::Head> heads;
  heads.reserve(extents_.size());
  for (const auto& [block, entry] : extents_) heads.push_back({.block = block, .most = entry.bytes()});
  if (Status status = co_await index::read_heads_and_expiries(state_.session, heads, deadline_, cost_); !status.ok()) {
    co_return status;
  }
  for (index::Head& head : heads) {
    const Entry& entry = extents_.at(head.block);
    if (base::round_up(head.extent_bytes, layout::kBlockUnit) != entry.bytes() ||
        state_.hash(head.key) != entry.hash()) {
      co_return false;
    }
    keys_.insert_or_assign(std::move(head.key), head.expires);
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

Task<Result<std::vector<bool>>> Table::State::empty(std::span<const std::uint64_t> of_marks, Nanos deadline,
                                                    Cost& cost) {
  std::vector<index::RowsOfMark> rows;
  for (std::size_t i = 0; i < of_marks.size(); ++i) {
    const std::uint64_t first = of_marks[i] * geometry.rows_per_mark();
    rows.push_back({i, first * geometry.row_bytes(), std::min(geometry.rows_per_mark(), geometry.rows - first)});
  }
  const auto empty_row = [this](base::Bytes row) { return is_empty({geometry, row}, geometry.entries_per_row); };
  return index::are_empty(session, of_marks.size(), std::move(rows), geometry.row_bytes(), empty_row, deadline, cost);
}

Task<Result<index::Page>> scan(Table::State& state, std::uint64_t first, std::uint64_t rows, Nanos deadline,
                               Cost& cost) {
  Scan scan(state, first, rows, deadline, cost);
  co_return co_await scan.run();
}

}  // namespace farpool::rcuckoo
