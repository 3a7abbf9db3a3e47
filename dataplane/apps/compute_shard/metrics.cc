// SPDX-License-Identifier: Apache-2.0
#include "apps/compute_shard/metrics.h"

#include <string>
#include <utility>

#include "base/counts.h"
#include "index/counts.h"
#include "session/repair.h"

namespace farpool::apps {
namespace {

using base::Code;
namespace resp = front::resp;

// What the metrics show of all that a pool has counted besides its operations, its tables and its repairs.
struct PoolCount {
  base::Counter client::PoolCounters::*value;
  const char* name;
  const char* help;
};
constexpr PoolCount kPoolCounts[] = {
    {&client::PoolCounters::sessions_opened, "farpool_pool_sessions_opened_total", "Sessions that were opened."},
    {&client::PoolCounters::sessions_lost, "farpool_pool_sessions_lost_total",
     "Sessions that ended otherwise than by a goodbye."},
    {&client::PoolCounters::failed_opens, "farpool_pool_sessions_failed_total", "Attempts at a session that failed."},
    {&client::PoolCounters::map_fetches, "farpool_pool_map_reads_total", "Reads of the shard map."},
    {&client::PoolCounters::failed_map_fetches, "farpool_pool_map_reads_failed_total",
     "Reads of the shard map that failed."},
    {&client::PoolCounters::expired_keys, "farpool_pool_expired_keys_total", "Keys removed because they had expired."},
    {&client::PoolCounters::doubted_clocks, "farpool_pool_doubted_clocks_total",
     "Times that memory nodes told and this process did not believe: more than two hours ahead of another."},
    {&client::PoolCounters::evicted_keys, "farpool_pool_evicted_keys_total",
     "Keys removed to make room for writes, by the pool's eviction policy."},
    {&client::PoolCounters::forged_maps, "farpool_pool_forged_maps_total",
     "Shard maps that memory nodes showed and the operator has not signed."},
};

// Sums over the workers, part by part.
class Collector {
 public:
  Collector(const std::vector<std::unique_ptr<Shard>>& shards, const ShardView& view) : shards_(shards), view_(view) {}

  void collect_process(Samples& s) const {
    s.gauge("farpool_shard_ready", "1 if every worker holds a session with every memory node that serves.",
            view_.ready ? 1 : 0);
    s.gauge("farpool_shard_epoch", "Epoch of the shard map that every worker follows at least.", view_.epoch);
    s.gauge("farpool_shard_workers", "Worker threads.", shards_.size());
    if (view_.device != nullptr && view_.device->options().masked_cas) {
      s.gauge("farpool_verbs_masked_cas_given_up",
              "1 since a trial of the device's own masked CAS went wrong: lanes send a CAS of a guessed word instead.",
              view_.device->masked_cas() ? 0 : 1);
    }
    s.gauge("farpool_resp_connections", "Client connections open.", view_.connections);
    s.counter("farpool_resp_connections_total", "Client connections accepted.",
              sum([](const Shard& shard) { return shard.counters().connections_total.get(); }));
    s.counter("farpool_resp_connections_refused_total", "Client connections refused because there were too many.",
              view_.listening.refused_full);
    s.counter("farpool_resp_handshakes_failed_total", "TLS handshakes of clients that failed or took too long.",
              view_.listening.failed_handshakes);
    s.gauge("farpool_resp_in_flight", "Commands that run on the pool.",
            sum([](const Shard& shard) { return shard.counters().in_flight.get(); }));
    s.counter("farpool_resp_bytes_total", "Bytes of requests and replies.",
              sum([](const Shard& shard) { return shard.counters().input_bytes.get(); }), {{"direction", "in"}});
    s.counter("farpool_resp_bytes_total", "Bytes of requests and replies.",
              sum([](const Shard& shard) { return shard.counters().output_bytes.get(); }), {{"direction", "out"}});
    s.counter("farpool_resp_stalls_total",
              "Times that a connection was not read because its pipeline or its replies were too much.",
              sum([](const Shard& shard) { return shard.counters().stalls.get(); }));
    const char* cut_help = "Connections closed because their clients did not take their replies.";
    s.counter("farpool_resp_slow_clients_closed_total", cut_help,
              sum([](const Shard& shard) { return shard.counters().cut_for_unread.get(); }), {{"reason", "unread"}});
    s.counter("farpool_resp_slow_clients_closed_total", cut_help,
              sum([](const Shard& shard) { return shard.counters().cut_for_memory.get(); }), {{"reason", "memory"}});
    s.counter("farpool_resp_slow_clients_closed_total", cut_help,
              sum([](const Shard& shard) { return shard.counters().cut_after_end.get(); }), {{"reason", "ended"}});
    s.gauge("farpool_resp_held_bytes", "Bytes of requests and replies that are held for clients.", view_.held_bytes);
    s.counter("farpool_resp_protocol_errors_total", "Connections closed for bytes that are no request.",
              sum([](const Shard& shard) { return shard.counters().protocol_errors.get(); }));
    s.counter("farpool_resp_failed_authentications_total", "Passwords refused.",
              sum([](const Shard& shard) { return shard.counters().failed_authentications.get(); }));
    s.counter("farpool_resp_refused_commands_total",
              "Commands refused: unknown, of wrong arity, or before authentication.",
              sum([](const Shard& shard) { return shard.counters().refused.get(); }));
    s.counter("farpool_resp_unknown_outcomes_total", "Commands answered with UNKNOWNOUTCOME.",
              sum([](const Shard& shard) { return shard.counters().unknown_outcomes.get(); }));
  }

  void collect_commands(Samples& s) const {
    std::vector<std::size_t> used;
    for (std::size_t i = 0; i < resp::kMaxCommands; ++i) {
      if (sum([i](const Shard& shard) { return shard.counters().commands[i].calls.get(); }) > 0) used.push_back(i);
    }
    const auto label = [](std::size_t i) {
      return Samples::Labels{{"command", std::string(resp::command_at(i)->name)}};
    };
    for (const std::size_t i : used) {
      s.counter("farpool_resp_command_errors_total", "Commands that were answered with an error.",
                sum([i](const Shard& shard) { return shard.counters().commands[i].errors.get(); }), label(i));
    }
    for (const std::size_t i : used) {
      latencies(s, "farpool_resp_command_seconds", "Time from a command's start to its reply.", label(i),
                [i](const Shard& shard) -> const base::Latencies& { return shard.counters().commands[i].latencies; });
    }
  }

  void collect_pool(Samples& s) const {
    s.gauge("farpool_pool_sessions", "Sessions with memory nodes.",
            sum([](const Shard& shard) { return shard.pool_counters().sessions.get(); }));
    for (const PoolCount& count : kPoolCounts) {
      s.counter(count.name, count.help,
                sum([&count](const Shard& shard) { return (shard.pool_counters().*count.value).get(); }));
    }

    const auto each = [](auto what) {
      for (std::size_t i = 0; i < client::kOperations; ++i) {
        what(i, Samples::Labels{{"operation", std::string(client::name_of(static_cast<client::Operation>(i)))}});
      }
    };
    each([&](std::size_t i, Samples::Labels labels) {
      for (std::size_t code = 0; code < client::kCodes; ++code) {
        const std::uint64_t count =
            sum([i, code](const Shard& shard) { return shard.pool_counters().operations[i].outcomes[code].get(); });
        if (count == 0 && code != 0) continue;
        auto with_outcome = labels;
        with_outcome.emplace_back("outcome", std::string(base::name_of(static_cast<Code>(code))));
        s.counter("farpool_pool_operations_total", "Operations by what they came to.", count, with_outcome);
      }
    });
    each([&](std::size_t i, const Samples::Labels& labels) {
      s.counter("farpool_pool_trips_total", "Round trips that operations waited for.",
                sum([i](const Shard& shard) { return shard.pool_counters().operations[i].trips.get(); }), labels);
    });
    each([&](std::size_t i, const Samples::Labels& labels) {
      s.counter("farpool_pool_messages_total", "Verbs posted.",
                sum([i](const Shard& shard) { return shard.pool_counters().operations[i].messages.get(); }), labels);
    });
    each([&](std::size_t i, const Samples::Labels& labels) {
      s.counter("farpool_pool_wire_bytes_total", "Bytes of requests and replies, as RoCEv2 would carry them.",
                sum([i](const Shard& shard) { return shard.pool_counters().operations[i].bytes.get(); }), labels);
    });
    each([&](std::size_t i, const Samples::Labels& labels) {
      s.counter("farpool_pool_retries_total", "Further attempts after one that left nothing done.",
                sum([i](const Shard& shard) { return shard.pool_counters().operations[i].retries.get(); }), labels);
    });
    each([&](std::size_t i, const Samples::Labels& labels) {
      latencies(
          s, "farpool_pool_operation_seconds", "Time that operations took.", labels,
          [i](const Shard& shard) -> const base::Latencies& { return shard.pool_counters().operations[i].latencies; });
    });

    for (std::size_t i = 0; i < index::kMarks.size(); ++i) {
      s.counter("farpool_index_" + std::string(index::kMarks[i].name) + "_total", std::string(index::kMarks[i].help),
                sum([i](const Shard& shard) { return shard.pool_counters().index.get(i); }));
    }
    for (std::size_t i = 0; i < session::kRepairMarks.size(); ++i) {
      s.counter("farpool_repair_" + std::string(session::kRepairMarks[i].name) + "_total",
                std::string(session::kRepairMarks[i].help),
                sum([i](const Shard& shard) { return shard.pool_counters().repair.get(i); }));
    }
  }

 private:
  template <class Get>
  std::uint64_t sum(Get get) const {
    std::uint64_t total = 0;
    for (const auto& shard : shards_) total += get(*shard);
    return total;
  }
  template <class Get>
  void latencies(Samples& s, const std::string& name, const std::string& help, const Samples::Labels& labels,
                 Get get) const {
    constexpr std::size_t kFirst = 3;  // 8 us: nothing that matters is faster
    std::vector<std::pair<double, std::uint64_t>> buckets;
    std::uint64_t count = 0, nanos = 0;
    for (std::size_t i = 0; i <= base::Latencies::kBuckets; ++i) {
      count += sum([&get, i](const Shard& shard) { return get(shard).bucket(i); });
      if (i >= kFirst && i < base::Latencies::kBuckets)
        buckets.emplace_back(static_cast<double>(1ull << i) / 1e6, count);
    }
    nanos = sum([&get](const Shard& shard) { return get(shard).sum_nanos(); });
    s.histogram(name, help, buckets, count, static_cast<double>(nanos) / 1e9, labels);
  }

  const std::vector<std::unique_ptr<Shard>>& shards_;
  const ShardView& view_;
};

}  // namespace

void collect(Samples& s, const std::vector<std::unique_ptr<Shard>>& shards, const ShardView& view) {
  const Collector collector(shards, view);
  collector.collect_process(s);
  collector.collect_commands(s);
  collector.collect_pool(s);
}

}  // namespace farpool::apps
