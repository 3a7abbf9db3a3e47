// SPDX-License-Identifier: Apache-2.0
#include "fabric/sim/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>

#include "base/check.h"
#include "fabric/cost.h"
#include "fabric/sim/network.h"
#include "task/scope.h"

namespace farpool::fabric::sim {
namespace {

constexpr std::uint32_t kHost = 1, kDevice = 2;  // region ids
constexpr std::uint64_t kRegionBytes = 1 << 20;
constexpr Nanos kWarmUp = 50 * base::kMicrosecond, kMeasured = 150 * base::kMicrosecond;
constexpr std::size_t kDepth = 512;  // verbs of a lane under way: more than a late answer can hold up

// Memory, and everybody may have it.
class Memory final : public Host {
 public:
  void on_exchange(const Peer&, std::string, std::function<void(std::string)>) override {}
  std::optional<LaneRights> on_open_lane(const std::array<std::byte, 16>&) override {
    LaneRights rights{.session_id = 1, .regions = {}};
    for (std::uint32_t id : {kHost, kDevice}) {
      rights.regions.push_back({.id = id, .base = bytes_.data() + (id - 1) * kRegionBytes, .bytes = kRegionBytes});
    }
    return rights;
  }
  std::optional<std::size_t> on_call(std::uint64_t, std::uint32_t, base::Bytes, base::MutableBytes) override {
    return 0;
  }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(2 * kRegionBytes);
};

// Queue pairs, each of a machine of its own, on one memory node.
class Bench {
 public:
  Bench(const NicModel& nic, std::size_t lanes, std::uint64_t seed)
      : network_({.seed = seed, .timing = {.nic = &nic, .device_regions = 1u << kDevice}}),
        node_(network_.add_node("node")) {
    node_.serve(memory_);
    for (std::size_t i = 0; i < lanes; ++i) ports_.push_back(&network_.add_client({.role = "client"}));
    lanes_.resize(lanes);
    for (std::size_t i = 0; i < lanes; ++i) scope_.spawn(open(i));
    FARPOOL_CHECK(network_.run_until([this] { return scope_.running() == 0; }, base::kSecond));
  }
  ~Bench() {
    over_ = true;
    FARPOOL_CHECK(network_.run_until([this] { return scope_.running() == 0; }, network_.now() + base::kSecond));
    lanes_.clear();
  }

  using Make = std::function<Op(std::size_t lane, std::size_t which, base::MutableBytes at, std::uint64_t& old)>;

  // Every lane keeps `depth` of these verbs under way. Millions executed in a second.
  double rate(std::size_t depth, const Make& make) {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      for (std::size_t i = 0; i < depth; ++i) scope_.spawn(repeat(lane, i, make));
    }
    run_for(kWarmUp);
    const std::uint64_t before = done_;
    run_for(kMeasured);
    return static_cast<double>(done_ - before) * 1e3 / static_cast<double>(kMeasured);
  }

  // The mean time of one verb at a time, in microseconds.
  double latency(const Make& make) {
    scope_.spawn(repeat(0, 0, make));
    run_for(10 * kMeasured);
    return static_cast<double>(10 * kMeasured) / 1e3 / static_cast<double>(done_);
  }

  // A lock at one address that two take by turns, each as soon as it can be taken: so often a second, in thousands.
  double handovers() {
    scope_.spawn(take_turns());
    run_for(10 * kMeasured);
    return static_cast<double>(done_) * 1e6 / static_cast<double>(10 * kMeasured);
  }

  // One request every microsecond, on any lane, of any verb, to popular addresses; the order of the answers.
  struct Order {
    double kept = 0;  // percent of answers that come right behind the request before theirs
    double worst = 0;
  };
  Order order(std::uint64_t seed) {
    constexpr std::size_t kRequests = 50'000, kAddresses = 1024;
    std::vector<double> weight(kAddresses);
    double sum = 0;
    for (std::size_t i = 0; i < kAddresses; ++i) weight[i] = sum += std::pow(static_cast<double>(i + 1), -0.99);
    base::Random random(seed);
    std::vector<std::size_t> answers;
    for (std::size_t i = 0; i < kRequests; ++i) {
      const double drawn = sum * static_cast<double>(random.next() >> 11) * 0x1.0p-53;
      const auto address =
          static_cast<std::uint64_t>(std::upper_bound(weight.begin(), weight.end(), drawn) - weight.begin());
      const std::size_t lane = random.below(lanes_.size());
      const std::uint64_t verb = random.below(3);
      network_.at(
          network_.now() + static_cast<Nanos>(i) * base::kMicrosecond,
          [this, lane, verb, address, i, &answers] { scope_.spawn(ask(lane, verb, address * 64, i, answers)); });
    }
    FARPOOL_CHECK(network_.run_until([&] { return answers.size() == kRequests; }, network_.now() + base::kSecond));
    Order order;
    std::size_t kept = 0;
    for (std::size_t i = 1; i < answers.size(); ++i) {
      const auto gap = static_cast<double>(answers[i]) - static_cast<double>(answers[i - 1]);
      kept += gap == 1 ? 1 : 0;
      order.worst = std::max(order.worst, std::abs(gap));
    }
    order.kept = 100 * static_cast<double>(kept) / static_cast<double>(kRequests - 1);
    return order;
  }

 private:
  task::Task<void> open(std::size_t i) {
    LaneGrant grant{.endpoint = "node", .session_id = 1};
    grant.regions = {{kHost, kRegionBytes, 0}, {kDevice, kRegionBytes, 0}};
    auto lane = co_await ports_[i]->open_lane(grant, base::kSecond);
    FARPOOL_CHECK(lane.ok());
    lanes_[i] = std::move(*lane);
  }

  task::Task<void> repeat(std::size_t lane, std::size_t which, const Make& make) {
    Buffer buffer = ports_[lane]->buffer(1024);
    std::uint64_t old = 0;
    const std::array op{make(lane, which, buffer.span(), old)};
    while (!over_) {
      FARPOOL_CHECK((co_await lanes_[lane]->post(op, base::kNever)).fate == Fate::done);
      ++done_;
    }
  }

  // The next holder's attempt comes in right behind the one that gives the lock back.
  task::Task<void> take_turns() {
    std::size_t holder = 0;
    std::uint64_t taken = 0;
    const std::array take{Op::cas({kHost, 0}, taken, 0, 1)};
    while (!over_) {
      FARPOOL_CHECK((co_await lanes_[holder]->post(take, base::kNever)).fate == Fate::done);
      FARPOOL_CHECK(taken == 0);
      scope_.spawn(give_back(holder));
      holder = 1 - holder;
      ++done_;
    }
  }
  task::Task<void> give_back(std::size_t lane) {
    std::uint64_t given = 0;
    const std::array give{Op::cas({kHost, 0}, given, 1, 0)};
    FARPOOL_CHECK((co_await lanes_[lane]->post(give, base::kNever)).fate == Fate::done);
  }

  task::Task<void> ask(std::size_t lane, std::uint64_t verb, std::uint64_t offset, std::size_t number,
                       std::vector<std::size_t>& answers) {
    Buffer buffer = ports_[lane]->buffer(8);
    std::uint64_t old = 0;
    const Remote at{kHost, offset};
    const std::array op{verb == 0   ? Op::read(at, buffer.first(8))
                        : verb == 1 ? Op::write(at, buffer.first(8))
                                    : Op::cas(at, old, 0, 1)};
    FARPOOL_CHECK((co_await lanes_[lane]->post(op, base::kNever)).fate == Fate::done);
    answers.push_back(number);
  }

  void run_for(Nanos time) {
    const Nanos until = network_.now() + time;
    bool past = false;
    network_.at(until, [&past] { past = true; });
    network_.run_until([&past] { return past; }, until);
  }

  Memory memory_;
  Network network_;
  SimResponder& node_;
  std::vector<SimPort*> ports_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  task::Scope scope_;
  bool over_ = false;
  std::uint64_t done_ = 0;
};

// Returns the address of verb `which` of a lane; addresses lie a cache line apart.
Remote own(std::uint32_t region, std::size_t lane, std::size_t which) { return {region, (lane * kDepth + which) * 64}; }

Bench::Make reads(std::uint64_t bytes) {
  return [bytes](std::size_t lane, std::size_t which, base::MutableBytes at, std::uint64_t&) {
    return Op::read({kHost, (lane * kDepth + which) % 256 * bytes}, at.first(bytes));
  };
}
Bench::Make writes_apart() {
  return [](std::size_t lane, std::size_t which, base::MutableBytes at, std::uint64_t&) {
    return Op::write(own(kHost, lane, which), at.first(8));
  };
}
Bench::Make writes_at_one(std::uint32_t region) {
  return [region](std::size_t, std::size_t, base::MutableBytes at, std::uint64_t&) {
    return Op::write({region, 0}, at.first(8));
  };
}
Bench::Make atomics_apart(std::uint32_t region) {
  return [region](std::size_t lane, std::size_t which, base::MutableBytes, std::uint64_t& old) {
    return Op::cas(own(region, lane, which), old, 0, 0);
  };
}
Bench::Make atomics_at_one(std::uint32_t region) {
  return [region](std::size_t, std::size_t, base::MutableBytes, std::uint64_t& old) {
    return Op::cas({region, 0}, old, 0, 0);
  };
}

// Millions a second of a verb that only the link limits.
double link_limit(const NicModel& nic, std::uint64_t bytes) {
  return nic.link_gbps * 1e3 / 8 / (static_cast<double>(bytes) + nic.frame_overhead);
}

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value >= 100 ? "%.0f" : "%.3g", value);
  return text;
}

}  // namespace

double Measurement::error() const {
  if (measured < least) return 100 * (measured / least - 1);
  return measured > most ? 100 * (measured / most - 1) : 0;
}

std::vector<Measurement> calibrate(std::uint64_t seed) {
  constexpr std::size_t kMany = 20;
  const NicModel& nic = kConnectX5;
  const auto rate = [&](const NicModel& of, std::size_t lanes, const Bench::Make& make) {
    return Bench(of, lanes, seed).rate(kDepth, make);
  };
  const auto latency = [&](const Bench::Make& make) { return Bench(nic, 1, seed).latency(make); };

  std::vector<Measurement> all;
  const auto note = [&all](std::string row, std::string what, std::string unit, double least, double most,
                           double measured, double allowed) {
    all.push_back({std::move(row), std::move(what), std::move(unit), least, most, measured, allowed});
  };

  note("NIC-01", "CAS, addresses apart, host memory, 1 queue pair", "M/s", 2.7, 2.7, rate(nic, 1, atomics_apart(kHost)),
       3);
  const double apart = rate(nic, kMany, atomics_apart(kHost));
  note("NIC-01", "the same, 20 queue pairs", "M/s", 50, 55, apart, 3);
  const double write_limit = link_limit(nic, 74 + 8), read_limit = link_limit(nic, 74);
  note("NIC-01", "WRITE of 8 bytes, 20 queue pairs, beside what the link passes", "M/s", write_limit, write_limit,
       rate(nic, kMany, writes_apart()), 5);
  note("NIC-01", "READ of 8 bytes, 20 queue pairs, beside what the link passes", "M/s", read_limit, read_limit,
       rate(nic, kMany, reads(8)), 5);

  const double at_one = rate(nic, kMany, atomics_at_one(kHost));
  const double at_one_device = rate(nic, kMany, atomics_at_one(kDevice));
  const double apart_device = rate(nic, kMany, atomics_apart(kDevice));
  note("NIC-02", "CAS, one address, host memory", "M/s", 3, 3, at_one, 3);
  note("NIC-02", "CAS, one address, device memory", "M/s", 9, 9, at_one_device, 3);
  note("NIC-02", "device memory beside host memory, one address", "times", 3.1, 3.1, at_one_device / at_one, 5);
  note("NIC-02", "the same, addresses apart, 20 queue pairs", "times", 1.8, 1.8, apart_device / apart, 5);

  note("NIC-03", "WRITEs of one queue pair beside CAS, one address, host memory", "times", 6.2, 6.2,
       rate(nic, 1, writes_at_one(kHost)) / at_one, 5);
  note("NIC-03", "the same, device memory", "times", 2.5, 2.5, rate(nic, 1, writes_at_one(kDevice)) / at_one_device, 5);

  double most = 0;
  std::vector<double> by_lanes;
  for (std::size_t lanes = 1; lanes <= 10; ++lanes) {
    by_lanes.push_back(rate(nic, lanes, writes_apart()));
    most = std::max(most, by_lanes.back());
  }
  const auto full = std::find_if(by_lanes.begin(), by_lanes.end(), [most](double one) { return one >= 0.98 * most; });
  note("NIC-04", "queue pairs that WRITE at full rate together, at least", "", 7, 7,
       static_cast<double>(full - by_lanes.begin() + 1), 0);

  const Bench::Order order = Bench(nic, 32, seed).order(seed);
  note("NIC-05", "answers in the order of their requests: 32 queue pairs, 1 M/s, 1,024 addresses Zipf .99", "%", 97, 97,
       order.kept, 1);
  note("NIC-05", "the same, the worst gap", "", 13, 15, order.worst, 10);

  note("NIC-06", "a lock at one address in host memory, taken and given back by turns", "k/s", 500, 500,
       Bench(nic, 2, seed).handovers(), 5);

  const double smallest = latency(reads(8));
  note("NIC-07", "READ of 128 bytes beside one of 8, a trip's time", "times", 1, 1, latency(reads(128)) / smallest, 5);
  note("NIC-07", "READ of 1 KiB beside two of 8 bytes, one after the other", "times", 0, 1,
       latency(reads(1024)) / (2 * smallest), 0);

  note("NIC-08", "READ of 1 KiB, 40 Gb/s, ConnectX-3", "M/s", 5, 5, rate(kConnectX3, kMany, reads(1024)), 12);

  note("NIC-11", "a trip, READ of 8 bytes", "us", 1, 2, smallest, 0);
  return all;
}

std::string report(const std::vector<Measurement>& measurements) {
  std::string text =
      "| row | measured | the paper | the model | error % | allowed % |\n| --- | --- | --- | --- | --- | --- |\n";
  for (const Measurement& one : measurements) {
    const std::string unit = one.unit.empty() ? "" : " " + one.unit;
    std::string paper = text_of(one.most);
    if (one.least == 0) {
      paper = "less than " + paper;
    } else if (one.least != one.most) {
      paper = text_of(one.least) + " to " + paper;
    }
    char error[32], allowed[32];
    std::snprintf(error, sizeof error, "%.1f", one.error() == 0 ? 0 : one.error());
    std::snprintf(allowed, sizeof allowed, "%.0f", one.allowed);
    text += "| " + one.row + " | " + one.what + " | " + paper + unit + " | " + text_of(one.measured) + unit + " | " +
            error + " | " + allowed + " |\n";
  }
  return text;
}

}  // namespace farpool::fabric::sim
