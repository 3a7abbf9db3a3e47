// SPDX-License-Identifier: Apache-2.0
#include "apps/memory_node/metrics.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "fabric/session_port/server.h"
#include "index/counts.h"

namespace farpool::apps {
namespace {

void collect_life(Samples& s, const node::MemoryNode::Stats& node, bool fresh) {
  s.gauge("farpool_node_incarnation_info", "One life of this memory node.", 1,
          {{"incarnation", std::to_string(node.incarnation)}});
  s.gauge("farpool_node_serving", "1 if an epoch that contains this incarnation is published and not stopped.",
          node.serving);
  s.gauge("farpool_node_evicts", "1 if the shard map has an eviction policy: clients then remove keys to make room.",
          node.evicts);
  s.gauge("farpool_node_memory_fresh",
          "1 if this incarnation formatted the memory: whatever an earlier one held is lost.", fresh);
  s.gauge("farpool_node_warm_restarts", "Times that a process has taken this memory up from the one before.",
          node.lives - 1);
  s.gauge("farpool_node_verification_seconds", "How long this process looked through the memory that it took up.",
          static_cast<double>(node.verification) / base::kSecond);
  s.gauge("farpool_node_repaired_operations",
          "Operations half done in the memory that this process took up: finished or undone.", node.repaired);
  s.gauge("farpool_node_defects", "Defects found in the memory that this process took up.", node.defects);
  s.gauge("farpool_node_quarantined_rows", "Rows that no crash explains: locked until a person has looked at them.",
          node.quarantined_rows);
  s.gauge("farpool_node_epoch", "Epoch of the shard map held.", node.epoch);
  s.gauge("farpool_node_locks_in_device_memory", "1 where the locks lie in the memory of the RDMA device itself.",
          node.locks_in_device);
  s.gauge("farpool_node_era", "Reclamation clock.", node.era);
  s.gauge("farpool_node_era_lag", "Eras that some session still holds back.",
          node.era > node.safe_era ? node.era - node.safe_era : 0);
}

void collect_sessions(Samples& s, const node::MemoryNode::Stats& node) {
  s.gauge("farpool_node_sessions", "Sessions open.", node.sessions);
  s.gauge("farpool_node_older_sessions",
          "Sessions whose clients speak an older protocol version than this memory node's newest.",
          node.older_sessions);
  s.counter("farpool_node_sessions_opened_total", "Sessions that were opened.", node.sessions_opened);
  s.counter("farpool_node_sessions_closed_total", "Sessions that ended with a goodbye.", node.sessions_closed);
  s.counter("farpool_node_sessions_fenced_total",
            "Sessions fenced: lease run out, era held back, or epoch without this node.", node.sessions_fenced);
  s.gauge("farpool_node_sessions_dead_holders",
          "Ended sessions whose operation slots say that they left something half done.",
          node.sessions_held_by_the_dead);
  s.counter("farpool_node_handshakes_refused_total", "Handshakes that were answered with a refusal.",
            node.handshakes_refused);
  s.counter("farpool_node_sessions_over_quota_total",
            "Sessions refused because clients with the same certificate's name had as many as they may have.",
            node.sessions_over_quota);
  s.counter("farpool_node_calls_total", "CALLs handled.", node.calls);
}

void collect_table(Samples& s, const node::MemoryNode::Stats& node) {
  s.gauge("farpool_node_keys", "Keys in the table, as the operation slots count them.", node.keys);
  s.gauge("farpool_node_key_value_bytes", "Bytes of keys and values, likewise.", node.bytes);
  s.gauge("farpool_node_table_entries", "Entries that the table has.", node.entries);
  s.gauge("farpool_node_load_factor", "Keys over entries.",
          node.entries == 0 ? 0.0 : static_cast<double>(node.keys) / static_cast<double>(node.entries));
  s.gauges("farpool_node_index_", index::kNodeGauges, node.index);
  s.counters("farpool_node_index_", index::kNodeCounts, node.index);
}

void collect_heap(Samples& s, const node::MemoryNode::Stats& node) {
  const char* segments_help = "Heap segments by state.";
  s.gauge("farpool_node_segments", segments_help, node.segments.free, {{"state", "free"}});
  s.gauge("farpool_node_segments", segments_help, node.segments.owned, {{"state", "owned"}});
  s.gauge("farpool_node_segments", segments_help, node.segments.orphaned, {{"state", "orphaned"}});
  s.gauge("farpool_node_segments", segments_help, node.segments.dead, {{"state", "dead"}});
  s.gauge("farpool_node_segments", segments_help, node.segments.resting, {{"state", "resting"}});
  s.gauge("farpool_node_segments", segments_help, node.segments.damaged, {{"state", "damaged"}});
  for (const auto& one : node.segments_by_class) {
    const std::string bytes = one.block_bytes == 0 ? "run" : std::to_string(one.block_bytes);
    const char* help = "Heap segments by the size of their blocks, and by state.";
    s.gauge("farpool_node_size_class_segments", help, one.segments.owned, {{"block_bytes", bytes}, {"state", "owned"}});
    s.gauge("farpool_node_size_class_segments", help, one.segments.orphaned,
            {{"block_bytes", bytes}, {"state", "orphaned"}});
    s.gauge("farpool_node_size_class_segments", help, one.segments.dead, {{"block_bytes", bytes}, {"state", "dead"}});
  }
  const std::uint64_t free = node.segments.free * node.segment_bytes;
  const char* heap_help =
      "Heap by what holds it: live is about what keys and values take; reclaimable is free within segments that are "
      "handed out, for values of their size at once and for others when a write needs it; free is of no segment.";
  s.gauge("farpool_node_heap_bytes", heap_help, node.heap_live, {{"state", "live"}});
  s.gauge("farpool_node_heap_bytes", heap_help,
          node.heap_bytes - free - std::min(node.heap_live, node.heap_bytes - free), {{"state", "reclaimable"}});
  s.gauge("farpool_node_heap_bytes", heap_help, free, {{"state", "free"}});
  s.gauge("farpool_node_segment_bytes", "Size of a heap segment.", node.segment_bytes);
  s.counter("farpool_node_segment_refusals_total", "Requests for segments refused because the heap was full.",
            node.segment_refusals);
}

}  // namespace

void collect(Samples& s, const node::MemoryNode::Stats& node, bool fresh) {
  collect_life(s, node, fresh);
  collect_sessions(s, node);
  collect_table(s, node);
  collect_heap(s, node);
}

void collect(Samples& s, const fabric::tcp::ResponderStats& wire) {
  const fabric::session_port::Stats& port = wire;
  s.gauges("farpool_wire_", fabric::session_port::kGauges, port);
  s.counters("farpool_wire_", fabric::session_port::kCounts, port);
  s.gauges("farpool_wire_", fabric::tcp::kResponderGauges, wire);
  s.counters("farpool_wire_", fabric::tcp::kResponderCounts, wire);
  static constexpr const char* kVerbs[] = {"read", "write", "cas", "masked_cas", "fetch_add", "call"};
  for (std::size_t verb = 0; verb < wire.verbs.size(); ++verb) {
    s.counter("farpool_wire_verbs_total", "Verbs executed.", wire.verbs[verb], {{"verb", kVerbs[verb]}});
  }
  s.counter("farpool_wire_bytes_total", "Bytes of lane frames.", wire.bytes_in, {{"direction", "in"}});
  s.counter("farpool_wire_bytes_total", "Bytes of lane frames.", wire.bytes_out, {{"direction", "out"}});
}

void collect(Samples& s, const fabric::verbs::VerbsStats& verbs) {
  s.gauges("farpool_verbs_", fabric::verbs::kVerbsGauges, verbs);
  s.counters("farpool_verbs_", fabric::verbs::kVerbsCounts, verbs);
  s.gauges("farpool_verbs_data_", fabric::verbs::kCallGauges, verbs.data);
  s.counters("farpool_verbs_data_", fabric::verbs::kCallCounts, verbs.data);
}

}  // namespace farpool::apps
