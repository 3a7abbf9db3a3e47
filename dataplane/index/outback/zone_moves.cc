// SPDX-License-Identifier: Apache-2.0
// What a zone does while keys move to another memory node: docs/adr/0035.
#include <algorithm>

#include "base/marks.h"
#include "index/outback/zone.h"

namespace farpool::outback {

// Returns the number of the mark of a key that is leaving.
std::optional<std::uint64_t> Zone::mark_of_key(std::uint64_t hash) const {
  if (leaving_ == 0) return std::nullopt;
  const auto found = std::find(marks_.begin(), marks_.end(), mark_of(hash));
  if (found == marks_.end()) return std::nullopt;
  return static_cast<std::uint64_t>(found - marks_.begin());
}

// The caller has written the word, or lets a change of several words write it.
void Zone::set_mark(std::uint64_t mark, std::uint64_t word) {
  leaving_ += word != 0 ? 1 : 0;
  leaving_ -= marks_[mark] != 0 ? 1 : 0;
  marks_[mark] = word;
}

// Says why the client may not make this change here, by what it knows of moves.
Status Zone::judge_move(const Work& work) const {
  const Request& request = *work.request;
  if (closed_ > request.move) return Status::old_map;
  const bool leaves = (request.flags & Request::kLeaves) != 0;
  if (!work.found.there && leaves && closed_ == request.move) return Status::moved;
  if (mark_of_key(work.hash)) {
    FARPOOL_MARK(outback_key_is_leaving);
    return Status::leaving;
  }
  return Status::done;
}

Status Zone::close(std::uint64_t move, fabric::Hand hand) {
  if (closed_ > move) return Status::old_map;
  if (closed_ == move) return Status::done;
  hand.write(at(closed_at(cut().figures, number_)), move);
  closed_ = move;
  return Status::done;
}

Status Zone::leave(const Request& request, fabric::Hand hand, Answer& answer) {
  hand_ = hand;
  if (closed_ != request.move) return closed_ > request.move ? Status::old_map : Status::bad_place;
  Work work{.request = &request};
  if (const Status status = seek(work); status != Status::done) return status;
  if (!work.found.there) return Status::absent;
  if (!mark_of_key(work.hash)) {
    const auto end = marks_.begin() + static_cast<std::ptrdiff_t>(marks_of(cut().figures));
    const auto free = std::find(marks_.begin(), end, 0);
    if (free == end) return Status::full;
    const auto mark = static_cast<std::uint64_t>(free - marks_.begin());
    hand.write(at(mark_at(cut().figures, number_, mark)), mark_of(work.hash));
    set_mark(mark, mark_of(work.hash));
  }
  answer.reply.version = work.found.view.head.version;
  answer.reply.value = work.found.view.value;
  answer.block = work.found.address;
  answer.key_bytes = static_cast<std::uint32_t>(work.found.view.key.size());
  return Status::done;
}

// The key and its mark go together, in the zone's own record.
Status Zone::left(const Request& request, fabric::Hand hand) {
  hand_ = hand;
  Work work{.request = &request};
  if (const Status status = seek(work); status != Status::done) return status;
  const auto mark = mark_of_key(work.hash);
  if (!work.found.there) return Status::absent;
  if (!mark) return Status::bad_place;  // a key that may have been changed since it was sent
  if (const Status status = erase(work); status != Status::done) return status;
  work.plan.add(mark_at(cut().figures, number_, *mark), 0);
  commit_own(work.plan);
  set_mark(*mark, 0);
  count(work);
  tidy(work);
  return Status::done;
}

Status Zone::stay(const Request& request, fabric::Hand hand) {
  hand_ = hand;
  const std::uint64_t key = hash(request.key);
  if (!belongs(key, request.place)) return Status::bad_place;
  if (const auto mark = mark_of_key(key)) {
    hand.write(at(mark_at(cut().figures, number_, *mark)), 0);
    set_mark(*mark, 0);
  }
  return Status::done;
}

}  // namespace farpool::outback
