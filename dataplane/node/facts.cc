// SPDX-License-Identifier: Apache-2.0
// What a memory node reports: facts to the operator, and numbers.
#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "directory/directory.h"
#include "fabric/words.h"
#include "layout/directory.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"
#include "layout/segment.h"
#include "layout/superblock.h"
#include "node/memory_node.h"
#include "session/handshake.h"

namespace farpool::node {
namespace {

using layout::OperationSlot;

constexpr std::size_t kMaxDeadTold = 256;  // in the facts

// Says whether a coarse counter moved by more than a percent of `scale`, or from or to zero.
bool moved(std::uint64_t from, std::uint64_t to, std::uint64_t scale) {
  const std::uint64_t distance = from > to ? from - to : to - from;
  return distance * 100 > scale || (from == 0) != (to == 0);
}

}  // namespace

v1alpha1::MemoryNodeEntry MemoryNode::entry() const {
  v1alpha1::MemoryNodeEntry entry;
  entry.set_name(options_.name);
  entry.set_endpoint(options_.endpoint);
  entry.set_incarnation(incarnation_);
  entry.set_state(v1alpha1::MemoryNodeEntry::STATE_SERVING);
  entry.set_memory_bytes(geometry_.memory_bytes);
  protocol_.describe(geometry_, entry);
  if (!geometry_.shape().locks) return entry;
  auto& locks = *entry.mutable_lock_region();
  locks.set_placement(locks_in_device_ ? v1alpha1::LockRegion::PLACEMENT_DEVICE_MEMORY
                                       : v1alpha1::LockRegion::PLACEMENT_HOST_MEMORY);
  locks.set_bytes(geometry_.at(layout::kLocks).bytes);
  locks.set_locks(geometry_.lock_bits);
  locks.set_rows_per_lock(static_cast<std::uint32_t>(geometry_.rows_per_lock));
  return entry;
}

std::vector<v1alpha1::DeadClient> MemoryNode::dead() {
  std::vector<v1alpha1::DeadClient> processes;
  const auto entry_of = [&processes](std::uint64_t process, const std::string& name) -> v1alpha1::DeadClient& {
    for (v1alpha1::DeadClient& one : processes) {
      if (one.process() == process && (process != 0 || one.name() == name)) return one;
    }
    processes.emplace_back();
    processes.back().set_process(process);
    processes.back().set_name(name);
    return processes.back();
  };
  // A process names its threads behind a slash.
  const auto name_of = [](std::uint64_t process, const std::string& name) {
    return process == 0 ? name : name.substr(0, name.find('/'));
  };
  for (const session::Registry::Dead& dead : registry_->dead()) {
    v1alpha1::DeadClient& left = entry_of(dead.process, name_of(dead.process, dead.name));
    left.set_slots(left.slots() + registry_->busy_slots(dead.group));
  }
  std::erase_if(left_, [this](const Left& left) { return segments_.ledger().left_by(left.session) == 0; });
  for (const Left& one : left_) {
    v1alpha1::DeadClient& left = entry_of(one.process, name_of(one.process, one.name));
    left.set_segments(left.segments() + static_cast<std::uint32_t>(segments_.ledger().left_by(one.session)));
  }
  return processes;
}

MemoryNode::Stats MemoryNode::take_stock() const {
  Stats stats;
  stats.incarnation = incarnation_;
  stats.epoch = maps_.followed().epoch();
  stats.era = registry_->era();
  stats.safe_era = registry_->safe_era();
  stats.sessions = registry_->sessions();
  stats.older_sessions = registry_->older_sessions();
  stats.lanes = registry_->lanes();
  stats.sessions_opened = registry_->counters().opened;
  stats.sessions_closed = registry_->counters().closed;
  stats.sessions_fenced = registry_->counters().fenced;
  stats.handshakes_refused = registry_->counters().refused;
  stats.sessions_over_quota = registry_->counters().over_quota;
  stats.sessions_held_by_the_dead = registry_->held_by_the_dead();
  stats.keys = keys_;
  stats.bytes = bytes_;
  stats.entries = geometry_.entries();
  stats.segment_bytes = geometry_.segment_bytes;
  stats.calls = calls_;
  stats.segment_refusals = segments_.refusals();
  if (geometry_.shape().served == nullptr) stats.segments = segments_.ledger().counts();
  for (const auto& [size_class, counts] : segments_.ledger().counts_by_class()) {
    const bool run = size_class == layout::kRun;
    stats.segments_by_class.push_back({run ? 0 : layout::block_bytes(size_class), counts});
  }
  stats.heap_bytes = geometry_.at(layout::kHeap).bytes;
  if (const auto numbers = executor_->side ? executor_->side->numbers() : std::nullopt) {
    stats.heap_bytes = numbers->heap;
    stats.heap_live = numbers->live;
    stats.index = numbers->marks;
  } else {
    stats.heap_live = segments_.used(keys_, bytes_);
  }
  stats.serving = serving_;
  stats.evicts = maps_.followed().eviction() != v1alpha1::EVICTION_NOEVICTION;
  stats.locks_in_device = locks_in_device_;
  stats.lives = record_.lives;
  stats.repaired = repaired_;
  stats.defects = defects_;
  stats.quarantined_rows = quarantined_rows_;
  stats.verification = verification_;
  return stats;
}

v1alpha1::Facts MemoryNode::tell() {
  v1alpha1::Facts facts;
  facts.set_pool_uid(options_.pool_uid);
  facts.set_role(v1alpha1::ROLE_MEMORY_NODE);
  facts.set_name(options_.name);
  facts.set_incarnation(incarnation_);
  facts.set_version(options_.version);
  session::tell_versions(*facts.mutable_versions());
  facts.mutable_versions()->set_memory_format(layout::kVersion);
  facts.set_epoch(maps_.followed().epoch());
  facts.set_ready(serving_);
  facts.set_message(!why_not_.empty() || defects_ == 0
                        ? why_not_
                        : std::to_string(defects_) +
                              " defects were found in the memory that it took up; its log names them");
  auto& node = *facts.mutable_memory_node();
  const v1alpha1::MemoryNodeEntry own = entry();
  node.set_endpoint(own.endpoint());
  node.set_memory_bytes(own.memory_bytes());
  protocol_.describe(geometry_, node);
  if (own.has_lock_region()) *node.mutable_lock_region() = own.lock_region();
  if (geometry_.shape().most_tables > 1) node.set_even_tables(static_cast<std::uint32_t>(even_tables()));
  node.set_move_finished(move_finished());
  node.set_memory_fresh(fresh_);
  node.set_recorded_epoch(record_.epoch);
  if (maps_.newest().epoch() != 0) *node.mutable_map() = maps_.newest();
  const auto numbers = executor_->side ? executor_->side->numbers() : std::nullopt;
  node.set_heap_bytes(numbers ? numbers->heap : geometry_.at(layout::kHeap).bytes);
  const std::vector<v1alpha1::DeadClient> left = dead();
  node.set_dead_clients(left.size());
  node.set_quarantined_rows(quarantined_rows_);
  for (std::size_t i = 0; i < std::min<std::size_t>(left.size(), kMaxDeadTold); ++i) *node.add_dead() = left[i];
  node.mutable_closed()->Add(registry_->closed().begin(), registry_->closed().end());
  return facts;
}

void MemoryNode::refresh_facts() {
  if (!registry_) return;  // called while it is being made
  const Stats stats = take_stock();
  v1alpha1::Facts facts = tell();
  auto& node = *facts.mutable_memory_node();
  bool changed = false;
  {
    const std::scoped_lock lock(mutex_);
    const auto& before = facts_.memory_node();
    const auto coarse = [](std::uint64_t from, std::uint64_t to, std::uint64_t scale) {
      return moved(from, to, scale) ? to : from;
    };
    node.set_sessions(coarse(before.sessions(), stats.sessions, geometry_.max_sessions));
    // The step is a percent of the keys, not of the room for them: a few long values fill a node, and the number of
    // keys tells how far a drain has come. Small numbers go in steps of ten, because otherwise each key would be news.
    node.set_older_sessions(coarse(before.older_sessions(), stats.older_sessions, geometry_.max_sessions));
    node.set_keys(coarse(before.keys(), keys_, std::max({before.keys(), keys_, std::uint64_t{1000}})));
    node.set_heap_bytes_used(coarse(before.heap_bytes_used(), stats.heap_live, stats.heap_bytes));
    changed = facts.SerializeAsString() != facts_.SerializeAsString();
    facts_ = std::move(facts);
    stats_ = stats;
  }
  if (changed && options_.on_change) options_.on_change();
}

v1alpha1::Facts MemoryNode::facts() const {
  const std::scoped_lock lock(mutex_);
  return facts_;
}

MemoryNode::Stats MemoryNode::stats() const {
  const std::scoped_lock lock(mutex_);
  return stats_;
}

// Sums what clients count in their own slots. A slot that is being written counts with its value before.
void MemoryNode::count_keys() {
  if (const auto numbers = executor_->side ? executor_->side->numbers() : std::nullopt) {
    keys_ = numbers->keys;
    bytes_ = numbers->bytes;
    return;
  }
  slot_counts_.resize(std::uint64_t{registry_->groups_used()} * geometry_.slots_per_session);
  keys_ = bytes_ = 0;
  for (std::size_t i = 0; i < slot_counts_.size(); ++i) {
    std::array<std::uint64_t, 2> counters{};
    fabric::read_words(region(layout::kSlots) + i * sizeof(OperationSlot), base::mutable_bytes_of(counters));
    slot_counts_[i] = {counters[0], counters[1]};
    keys_ += slot_counts_[i].keys;
    bytes_ += slot_counts_[i].bytes;
  }
  // If one client added a key and another removed it, two slots count that, and they are not read in one instant.
  if (static_cast<std::int64_t>(keys_) < 0) keys_ = 0;
  if (static_cast<std::int64_t>(bytes_) < 0) bytes_ = 0;
}

// Slots in quarantine are dead clients': a client's repair, or the start of a life, put them there. A plan of another
// table counts as one row.
void MemoryNode::count_quarantined() {
  std::set<std::uint64_t> rows;
  std::uint64_t unnamed = 0;
  for (const session::Registry::Dead& dead : registry_->dead()) {
    for (std::uint64_t i = 0; i < geometry_.slots_per_session; ++i) {
      OperationSlot slot;
      fabric::read_words(slot_at(dead.group * geometry_.slots_per_session + i), base::mutable_bytes_of(slot));
      if (slot.holder == 0 || !slot.quarantined()) continue;
      const auto named = protocol_.rows_of(geometry_, slot);
      if (named) rows.insert(named->begin(), named->end());
      unnamed += named ? 0 : 1;
    }
  }
  quarantined_rows_ = rows.size() + unnamed;
}

// The client that moves keys writes it over the wire (docs/adr/0012).
std::uint64_t MemoryNode::move_finished() const {
  std::uint64_t word = 0;
  fabric::read_words(region(layout::kDirectory) + layout::move_offset(geometry_.tables), base::mutable_bytes_of(word));
  return word;
}

// Clients write the directory, word by word.
std::uint64_t MemoryNode::even_tables() const {
  std::vector<std::byte> words(geometry_.at(layout::kDirectory).bytes);
  fabric::read_words(region(layout::kDirectory), words);
  return directory::even_tables(directory::View(words, geometry_.tables));
}

}  // namespace farpool::node
