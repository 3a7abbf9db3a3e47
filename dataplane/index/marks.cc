// SPDX-License-Identifier: Apache-2.0
#include "index/marks.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "layout/regions.h"

namespace farpool::index {

using base::Code;
using base::Nanos;
using base::Result;
using fabric::Op;
using task::Task;

RowMarks::RowMarks(session::Session& session, const layout::Geometry& geometry)
    : session_(session), geometry_(geometry), known_(geometry.marks(), false) {}

void RowMarks::forget_what_is_old() {
  if (std::exchange(known_since_, forgets()) != forgets()) known_.assign(known_.size(), false);
}

bool RowMarks::add_to(Chain& chain, std::uint64_t row) {
  forget_what_is_old();
  if (known_[geometry_.mark_of(row)]) return false;
  add_anew_to(chain, row);
  return true;
}

void RowMarks::add_anew_to(Chain& chain, std::uint64_t row) {
  const std::uint64_t offset = geometry_.mark_offset(geometry_.mark_of(row));
  chain.add(Op::fetch_add({layout::kTable, offset}, before_, layout::MarkWord::kSetOnce));
}

// An FAA that was posted before others were to forget may have executed before, too.
void RowMarks::landed(std::uint64_t row, std::uint64_t forgets) {
  forget_what_is_old();
  if (forgets == known_since_) known_[geometry_.mark_of(row)] = true;
}

Task<Result<std::vector<bool>>> read_marks(session::Session& session, const layout::Geometry& geometry,
                                           std::uint64_t first, std::uint64_t count, std::uint64_t also, Nanos deadline,
                                           fabric::Cost& cost) {
  fabric::Buffer buffer = session.port().buffer((count + also) * 8);
  Chain chain;
  chain.add(Op::read({layout::kTable, geometry.mark_offset(first)}, buffer.first(count * 8)));
  if (also > 0) {
    chain.add(Op::read({layout::kTable, geometry.mark_offset(0)}, buffer.span().subspan(count * 8, also * 8)));
  }
  const fabric::Outcome outcome = co_await session.post(chain.ops(), deadline, cost);
  if (outcome.fate != fabric::Fate::done) co_return gone(session, Code::unavailable, "marks of rows could not be read");
  std::vector<bool> marks(count + also, false);
  for (std::uint64_t i = 0; i < marks.size(); ++i) {
    marks[i] = layout::MarkWord::is_set(base::load<std::uint64_t>(buffer.data() + i * 8));
  }
  co_return marks;
}

}  // namespace farpool::index
