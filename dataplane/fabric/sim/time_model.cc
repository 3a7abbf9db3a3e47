// SPDX-License-Identifier: Apache-2.0
#include "fabric/sim/time_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "fabric/cost.h"

namespace farpool::fabric::sim {
namespace {

// std::llround of what is not negative, without a call: the fraction is exact.
Picos of_nanos(double nanos) {
  const double picos = nanos * 1e3;
  const auto whole = static_cast<Picos>(picos);
  return whole + (picos - static_cast<double>(whole) >= 0.5 ? 1 : 0);
}
Picos interval(double mops) { return std::llround(1e6 / mops); }

bool is_atomic(Verb verb) { return verb == Verb::cas || verb == Verb::masked_cas || verb == Verb::fetch_add; }

// Busy words whose time is over are thrown away when there are this many, or twice as many as were left the last time.
constexpr std::size_t kBusyWords = 64;

}  // namespace

// Names in brackets are rows of the papers' measurements (calibration.h).
const NicModel kConnectX5{
    .name = "ConnectX-5, 100 Gb/s",
    // Lock, answer, unlock and again takes 2 us (NIC-06) of which the second atomic is a third; the rest is one trip.
    .post = 345,
    .propagation = 300,
    .complete = 345,
    .link_gbps = 100,
    .frame_overhead = 24,
    .message_mops = 200,
    .pcie_gbps = 126,
    // An atomic on host memory is a read over PCIe, and nothing else may touch the word meanwhile (NIC-02).
    .pcie_trip = 333,
    // 6.2 and 2.5 times the atomics on one address (NIC-03). Seven queue pairs fill the link (NIC-04).
    .lane_mops_host = 18.6,
    .lane_mops_device = 22.5,
    .lane_atomic_mops_host = 2.7,  // (NIC-01)
    .lane_atomic_mops_device = 4.86,
    .atomic_mops_host = 52.5,    // (NIC-01)
    .atomic_mops_device = 94.5,  // 1.8 times as many (NIC-02)
    .word_atomic_mops_host = 3,  // (NIC-02)
    .word_atomic_mops_device = 9,
    .jitter = 30,
    // Three of a hundred answers change places, by 13 or 15 at most at one request a microsecond (NIC-05).
    .straggle = 0.0145,
    .straggle_mean = 3000,
    .straggle_most = 14'000,
    .call = 1000,
    .control = 10'000,
    .connects_mops = 0.0014,  // RCuckoo's own point of reference
    .fence = 50'000,
};

// An older one: only what a row says of it is its own (NIC-08).
const NicModel kConnectX3 = [] {
  NicModel nic = kConnectX5;
  nic.name = "ConnectX-3, 40 Gb/s";
  nic.link_gbps = 40;
  nic.message_mops = 75;
  return nic;
}();

TimeModel::Reckoned::Reckoned(const NicModel& nic)
    : depart(of_nanos(nic.post + nic.propagation)),
      propagation(of_nanos(nic.propagation)),
      complete(of_nanos(nic.complete)),
      pcie_trip(of_nanos(nic.pcie_trip)),
      call(of_nanos(nic.call)),
      control(of_nanos(nic.control)),
      fence(of_nanos(nic.fence)),
      fence_trip(of_nanos(nic.post + nic.complete + 2 * nic.propagation)),
      message(interval(nic.message_mops)),
      connect(interval(nic.connects_mops)),
      lane{interval(nic.lane_mops_host), interval(nic.lane_mops_device)},
      lane_atomic{interval(nic.lane_atomic_mops_host), interval(nic.lane_atomic_mops_device)},
      atomic{interval(nic.atomic_mops_host), interval(nic.atomic_mops_device)},
      word_atomic{interval(nic.word_atomic_mops_host), interval(nic.word_atomic_mops_device)} {}

// The first of the words that is not before that one. Without branches that nobody can foretell.
std::size_t TimeModel::Busy::at_or_behind(std::pair<std::uint32_t, std::uint64_t> word) const {
  std::size_t first = 0;
  for (std::size_t count = words.size(); count > 0;) {
    const std::size_t half = (count + 1) / 2;
    first += words[first + half - 1] < word ? half : 0;
    count -= half;
  }
  return first;
}

void TimeModel::Busy::erase_until(Picos time) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (until[i] <= time) continue;
    words[kept] = words[i];
    until[kept++] = until[i];
  }
  words.resize(kept);
  until.resize(kept);
}

TimeModel::TimeModel(Timing timing, std::uint64_t seed)
    : timing_(timing), nic_(*timing.nic), reckoned_(*timing.nic), random_(seed) {
  FARPOOL_CHECK(timing.clients_per_machine > 0);
}

TimeModel::Node& TimeModel::node(std::size_t index) {
  if (index >= nodes_.size()) nodes_.resize(index + 1);
  return nodes_[index];
}

TimeModel::Machine& TimeModel::machine(std::size_t client) {
  const std::size_t index = client / timing_.clients_per_machine;
  if (index >= machines_.size()) machines_.resize(index + 1);
  return machines_[index];
}

Picos TimeModel::on_link(std::uint64_t bytes, std::uint64_t packets) const {
  const double all = static_cast<double>(bytes) + static_cast<double>(packets) * nic_.frame_overhead;
  return of_nanos(all * 8 / nic_.link_gbps);
}

Picos TimeModel::on_pcie(std::uint64_t bytes) const {
  return of_nanos(static_cast<double>(bytes) * 8 / nic_.pcie_gbps);
}

Picos TimeModel::chance_delay() {
  const double uniform = static_cast<double>(random_.next() >> 11) * 0x1.0p-53;
  double delay = nic_.jitter * uniform;
  if (random_.chance(nic_.straggle)) {
    const double drawn = static_cast<double>(random_.next() >> 11) * 0x1.0p-53;
    delay += std::min(-nic_.straggle_mean * std::log1p(-drawn), nic_.straggle_most);
  }
  return of_nanos(delay);
}

// Bytes pass a link while they come in from the one before: what a link adds is what others are in its way.
Picos TimeModel::depart(std::size_t client, Picos now, std::uint64_t bytes, std::uint64_t packets) {
  const Picos time = on_link(bytes, packets);
  return machine(client).out.serve(now, time) - time + reckoned_.depart;
}

Picos TimeModel::arrive(std::size_t at, Picos now, const Op& op) {
  Node& to = node(at);
  const Picos there = to.in.serve(now, on_link(request_bytes(op), 1));
  return to.messages.serve(there, reckoned_.message);
}

Picos TimeModel::earliest(const LaneClock& lane, Picos arrived, const Op& op) const {
  Picos start = std::max(arrived, lane.free);
  // A fence is the requester's: it waits for the answers, and then for a trip of its own.
  if (op.fence && lane.answered > 0) {
    start = std::max(start, lane.answered + reckoned_.fence_trip);
  }
  return start;
}

Picos TimeModel::begin(std::size_t at, LaneClock& lane, Picos start, const Op& op) {
  Node& on = node(at);
  const bool device = in_device(op);
  Picos executed = start;
  if (is_atomic(op.verb)) {
    lane.free = start + reckoned_.lane_atomic[device];
    start = on.atomics[device].serve(start, reckoned_.atomic[device]);
    if (on.busy.words.size() >= on.most_busy) {
      on.busy.erase_until(start);
      on.most_busy = std::max(kBusyWords, 2 * on.busy.words.size());
    }
    const std::pair word(op.at.region, op.at.offset);
    const std::size_t place = on.busy.at_or_behind(word);
    if (place == on.busy.words.size() || on.busy.words[place] != word) {
      on.busy.words.insert(on.busy.words.begin() + static_cast<std::ptrdiff_t>(place), word);
      on.busy.until.insert(on.busy.until.begin() + static_cast<std::ptrdiff_t>(place), 0);
    }
    Picos& until = on.busy.until[place];
    until = std::max(until, start) + reckoned_.word_atomic[device];
    executed = until;
  } else if (op.verb == Verb::call) {
    lane.free = start;  // what is posted behind it does not wait for its handler
    return std::max(lane.executed, on.processor.serve(start, reckoned_.call));
  } else {
    const std::uint64_t bytes = op.local.size();
    lane.free = start + reckoned_.lane[device];
    // Verbs on a word that an atomic works on wait for it.
    const std::pair behind(op.at.region, op.at.offset + bytes);
    for (std::size_t i = on.busy.at_or_behind({op.at.region, op.at.offset});
         i < on.busy.words.size() && on.busy.words[i] < behind; ++i) {
      start = std::max(start, on.busy.until[i]);
    }
    if (device) {
      executed = start;
    } else if (op.verb == Verb::read) {
      executed = on.pcie_out.serve(start, on_pcie(bytes)) + reckoned_.pcie_trip;
    } else {
      executed = on.pcie_in.serve(start, on_pcie(bytes));
    }
  }
  lane.executed = std::max(lane.executed, executed);
  if (op.verb == Verb::read || is_atomic(op.verb)) lane.answered = lane.executed;
  return lane.executed;
}

Picos TimeModel::told(LaneClock& lane, Picos now) { return lane.told = std::max(lane.told, now + chance_delay()); }

Picos TimeModel::answer(std::size_t from, std::size_t client, Picos now, std::uint64_t bytes, std::uint64_t packets) {
  const Picos time = on_link(bytes, packets);
  const Picos begun = node(from).out.serve(now, time) - time;
  const Picos there = machine(client).in.serve(begun + reckoned_.propagation, time);
  return there + reckoned_.complete;
}

Picos TimeModel::control() const { return reckoned_.control; }

Picos TimeModel::connect(std::size_t at, Picos now) { return node(at).connects.serve(now, reckoned_.connect); }

Picos TimeModel::fence() const { return reckoned_.fence; }

}  // namespace farpool::fabric::sim
