// SPDX-License-Identifier: Apache-2.0
#include "fabric/sim/lane.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"
#include "fabric/cost.h"

namespace farpool::fabric::sim {

SimLane::~SimLane() {
  FARPOOL_CHECK(pending_ == 0);
  port_.disarm(late_);
  link_->lane = nullptr;
  if (open_) port_.network_->close(*link_);
  port_.network_->unrung_ -= std::erase(port_.dirty_, this);
}

void SimLane::enqueue(Posting& posting) noexcept {
  ++pending_;
  if (!open_) {
    complete_soon({&posting}, refused_ ? Fate::refused : Fate::maybe);
    return;
  }
  queued_.push_back(&posting);
  if (queued_.size() == 1) ring_soon();
  watch(posting.deadline);
}

void SimLane::ring() {
  if (queued_.empty() || must_wait(*queued_.front())) return;
  ++stats_.doorbells;
  Network& network = *port_.network_;
  std::vector<Posting*> postings = std::exchange(queued_, std::move(spare_));
  for (std::size_t i = 0; i < postings.size(); ++i) {
    Posting& posting = *postings[i];
    if (must_wait(posting)) {  // and so must all that is behind it
      queued_.assign(postings.begin() + static_cast<std::ptrdiff_t>(i), postings.end());
      break;
    }
    if (!posting.ops.empty() && is_service_call(posting.ops[0])) ++calls_;
    ++stats_.chains;
    stats_.messages += posting.ops.size();
    const Ref<Flight> flight = network.flights_.take();
    for (const Op& op : posting.ops) {
      flight->request_bytes += request_bytes(op);
      flight->answer_bytes += reply_bytes(op);
    }
    stats_.bytes += flight->request_bytes + flight->answer_bytes;
    flight->link = link_;
    flight->posting = &posting;
    flight->record = network.trace().post(port_.index_, link_->number, network.now(), posting.ops);
    flight->left = posting.ops.size();
    flight->number = link_->sent++;
    flight->verbs.reserve(posting.ops.size());
    for (const Op& op : posting.ops) flight->verbs.push_back({.op = op});
    flights_.push_back(flight);
    if (!is_chain(posting.ops)) {
      for (; i < postings.size(); ++i) {
        if (postings[i] != &posting) orphans_.push_back(postings[i]);
      }
      flight->why = why_no_chain(posting.ops);
      end(flight.get());
      return;
    }
    link_->flights.push_back(flight);
    const Nanos arrival = network.times_ == nullptr
                              ? network.now() + network.message_delay()
                              : nanos(network.times_->depart(port_.index_, picos(network.now()), flight->request_bytes,
                                                             posting.ops.size()));
    link_->last_arrival = std::max(link_->last_arrival, arrival);
    network.at(link_->last_arrival, [&network, flight] { network.arrive(flight); });
  }
  postings.clear();
  spare_ = std::move(postings);
}

void SimLane::done(const Ref<Flight>& flight) {
  Posting& posting = *flight->posting;
  if (!flight->reply.empty()) std::copy(flight->reply.begin(), flight->reply.end(), posting.ops[0].reply.begin());
  posting.outcome = {.fate = Fate::done, .reply_bytes = flight->reply_bytes};
  port_.told_ = base::mix(port_.told_ ^ flight->seen());
  flight->posting = nullptr;
  std::erase(flights_, flight);
  if (is_service_call(posting.ops[0])) {
    --calls_;
    if (!queued_.empty()) ring_soon();
  }
  port_.network_->trace().end(flight->record, port_.network_->now(), Fate::done);
  --pending_;
  posting.waiter.resume();  // may destroy this lane
}

void SimLane::end(Flight* refused) {
  if (!open_) return;
  open_ = false;
  refused_ = refused != nullptr;
  port_.disarm(late_);
  port_.network_->cut_tail(*this);
  std::vector<Posting*> others;
  for (const auto& flight : flights_) {
    if (flight.get() != refused) others.push_back(flight->posting);
  }
  others.insert(others.end(), orphans_.begin(), orphans_.end());
  others.insert(others.end(), queued_.begin(), queued_.end());
  orphans_.clear();
  queued_.clear();
  if (refused != nullptr) complete_soon({refused->posting}, Fate::refused, refused->why);
  complete_soon(std::move(others), Fate::maybe);
}

void SimLane::watch(Nanos deadline) {
  if (deadline == base::kNever || deadline >= watched_) return;
  watched_ = deadline;
  port_.disarm(late_);
  late_.when = deadline;
  port_.arm(late_);
}

void SimLane::look_for_late() {
  watched_ = base::kNever;
  Nanos next = base::kNever;
  for (const auto& flight : flights_) next = std::min(next, flight->posting->deadline);
  for (const Posting* posting : queued_) next = std::min(next, posting->deadline);
  if (next <= port_.now()) {
    end(nullptr);
  } else {
    watch(next);
  }
}

void SimLane::ring_soon() {
  if (std::find(port_.dirty_.begin(), port_.dirty_.end(), this) != port_.dirty_.end()) return;
  port_.dirty_.push_back(this);
  ++port_.network_->unrung_;
}

void SimLane::complete_soon(std::vector<Posting*> postings, Fate fate, Refusal why) {
  if (postings.empty()) return;
  Network& network = *port_.network_;
  network.at(network.now(), [this, &port = port_, postings = std::move(postings), fate, why] {
    port.turn([this, postings, fate, why] { complete(postings, fate, why); });
  });
}

void SimLane::complete(const std::vector<Posting*>& postings, Fate fate, Refusal why) {
  for (Posting* posting : postings) release(posting, fate);
  for (Posting* posting : postings) {
    port_.told_ = base::mix(port_.told_ ^ (0xfa7e + static_cast<std::uint64_t>(fate)));
    posting->outcome = {.fate = fate, .why = why};
    --pending_;
    posting->waiter.resume();  // the last one may destroy this lane
  }
}

void SimLane::release(Posting* posting, Fate fate) {
  const auto found =
      std::find_if(flights_.begin(), flights_.end(), [&](const auto& flight) { return flight->posting == posting; });
  if (found == flights_.end()) return;
  const Ref<Flight> flight = std::move(*found);
  flights_.erase(found);
  Network& network = *port_.network_;
  for (VerbRun& run : flight->verbs) {
    if (run.op.verb == Verb::write || run.op.verb == Verb::call) {
      run.payload.assign(run.op.local.begin(), run.op.local.end());
    } else if (run.op.verb == Verb::read) {
      const std::uint64_t garbage = network.random().next();
      for (std::size_t i = 0; i + 8 <= run.op.local.size(); i += 8) base::store(run.op.local.data() + i, garbage + i);
    } else if (run.op.old != nullptr) {
      *run.op.old = network.random().next();
    }
  }
  flight->posting = nullptr;
  network.trace().end(flight->record, network.now(), fate);
}

}  // namespace farpool::fabric::sim
