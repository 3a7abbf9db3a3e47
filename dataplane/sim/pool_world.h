// SPDX-License-Identifier: Apache-2.0
// A pool of several memory nodes, its clients, and an operator that publishes epochs, with the history of every key and
// what is wrong with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/time.h"
#include "client/pool.h"
#include "fabric/sim/network.h"
#include "map/shard_map.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "sim/history.h"
#include "sim/pools.h"
#include "sim/setting.h"
#include "sim/story.h"
#include "task/scope.h"

namespace farpool::sim {

// What names of keys begin with that only sim/expiry.h knows.
inline constexpr const char* kExpiringKey = "expiring-";

inline constexpr Nanos kPoolPatience = 20 * base::kSecond;  // of a call

// A call under way, while its caller may still learn its outcome.
struct Asked {
  Call call;
  std::size_t number = 0;  // in its memory node's history
  bool over = false;
  bool straddles = false;  // it began before a loss of memory: its effect and its answer may be of either pool
};

// A memory node, through all its lives, with the history of the keys that it serves at first.
struct PoolMember {
  PoolMember(fabric::sim::SimResponder& responder, std::string called, std::uint64_t bytes)
      : wire(responder), name(std::move(called)), memory(std::move(*node::Memory::anonymous(bytes))) {}
  fabric::sim::SimResponder& wire;
  std::string name;
  node::Memory memory;
  std::unique_ptr<node::MemoryNode> node;
  v1alpha1::MemoryNodeEntry entry;  // of its last life
  bool fresh = false;               // its memory was lost, and the operator does not know yet
  std::string kept;                 // its newest map, beside its memory
  Nanos ahead = 0;                  // of the fabric's clock: what its host shows
  History history;
  std::vector<std::shared_ptr<Asked>> asked;
};

// A client thread. If it crashes, the objects that its coroutines refer to are kept with it.
struct PoolClient {
  struct Body {
    std::unique_ptr<client::Pool> pool;
    task::Scope scope;
  };
  fabric::sim::SimPort* port = nullptr;
  Nanos since = 0;  // that it has been there
  std::shared_ptr<Body> body = std::make_shared<Body>();
  bool left = false;
};

class PoolWorld {
 public:
  explicit PoolWorld(const PoolSetting& setting, PoolVerdict& verdict);
  ~PoolWorld();
  PoolWorld(const PoolWorld&) = delete;

  fabric::sim::Network& network() { return network_; }
  const std::vector<std::unique_ptr<PoolClient>>& clients() const { return clients_; }
  bool right() const { return verdict_.wrong.empty(); }
  void wrong(std::string what) { verdict_.wrong.push_back(std::move(what)); }

  PoolClient& connect();

  bool over(const PoolClient& client) const { return client.port->crashed() || client.body->scope.running() == 0; }
  bool run_until(const std::function<bool()>& done, Nanos within) {
    return network_.run_until(done, network_.now() + within);
  }
  bool run(PoolClient& client, task::Task<void> task, Nanos within = 2 * kPoolPatience) {
    client.body->scope.spawn(std::move(task));
    return run_until([&] { return over(client); }, within);
  }

  // Kills a memory node's process. It comes back later, when the operator learns of it.
  void kill(std::size_t which, bool keeps_memory);

  // Lets the operator make an epoch of the lives that it knows. In the first phase one memory node after the other
  // holds it; in the second they follow it. Another operator may take over in between: the phases of several epochs
  // overlap.
  void publish();

  // Lets the operator ask for so many tables at each memory node, ahead of keys; for fewer than before if a resize is
  // aborted.
  void wish(std::uint64_t tables);
  bool split_ahead() const {
    return std::all_of(members_.begin(), members_.end(), [this](const auto& member) {
      return member->node->facts().memory_node().even_tables() >= least_tables_;
    });
  }

  // Runs a scan, which is a look at each key.
  task::Task<void> scan(PoolClient& client, std::vector<std::string> keys, std::uint64_t count);

  // Lets the operator move some of a member's parts to one or more others. While another move is under way, it waits.
  void begin_move(std::size_t from, std::uint64_t which);
  Nanos last_life_began() const { return last_life_began_; }  // of any memory node
  bool moving() const { return !departures_.empty() || moves_waiting_ > 0; }

  task::Task<void> call(PoolClient& client, Call call);

  // Says whether a key may have been removed whose value has not expired, but would have later.
  bool evicts_expiring() const { return evicts_.which != Evicts::Which::none; }
  // Lets the operator forbid that, and returns when all clients know.
  void stop_evicting();

  // Ends faults: no client dies any more, and stopped clients continue. Memory nodes that are down come back by
  // themselves.
  void calm();
  // Closes calls whose answers never came.
  void close_books();
  void judge_histories() {
    for (const auto& member : members_) {
      if (const auto judged = member->history.judge(evicts_)) wrong(member->name + ": " + *judged);
    }
  }

  // Returns what is wrong with a memory, or what dead clients have left in it.
  std::vector<std::string> leftovers() const;

  // Says whether all keys are counted: no session can have ended in the middle.
  bool exact() const;

  // Returns keys that lie where the map does not say.
  std::vector<std::string> strays() const;

  // Returns what has happened since then, as far as the history of memory that still exists goes.
  std::string story(Nanos from);

  std::uint64_t up() const {
    return static_cast<std::uint64_t>(
        std::count_if(members_.begin(), members_.end(), [](const auto& member) { return member->node != nullptr; }));
  }
  void sum_up();

 private:
  static constexpr std::uint64_t kMemory = 2560 << 10;
  // If keys move, all may come to lie at one node, in segments of many clients. A segment has blocks of one size, and
  // blocks never move: so a node of few segments is full with few keys, and no move to it would end.
  std::uint64_t memory() const { return (setting_.moves > 0 && setting_.ballast == 0 ? 3 : 1) * kMemory; }
  static constexpr Nanos kMoveLook = 5 * base::kMillisecond;

  // The operator learns that a move is finished from the memory node that keys have left.
  void follow_move(PoolMember& source, std::uint64_t move);

  Nanos some(Nanos most) { return static_cast<Nanos>(random_.below(static_cast<std::uint64_t>(most))); }

  void begin_life(PoolMember& member);

  // Forgets what callers knew of its keys. A waiting client may still write to the memory that follows. In a part that
  // is on its way, it is unknown which keys were here.
  void lose(PoolMember& lost);

  using Phase = node::MemoryNode::Published (node::MemoryNode::*)(const v1alpha1::ShardMap&, const base::HashSecret&);
  void tell(PoolMember& member, const v1alpha1::ShardMap& map, Phase phase);

  static task::Task<base::Status> put(client::Pool& pool, const Call& call);
  void note(PoolMember& member, Asked& asked, const base::Status& status, std::optional<std::string> found);

  const PoolSetting& setting_;
  PoolVerdict& verdict_;
  Evicts evicts_;  // so far
  v1alpha1::Eviction eviction_;
  Story befell_;
  layout::Geometry geometry_;  // of every memory node
  fabric::sim::Network network_;
  base::Random random_;
  std::vector<std::unique_ptr<PoolMember>> members_;
  std::vector<std::unique_ptr<PoolClient>> clients_;
  std::optional<map::Map> map_;        // says which history a key belongs to
  std::vector<std::uint32_t> owners_;  // members, by part of the hash space
  Nanos last_life_began_ = 0;
  std::uint64_t least_tables_ = 0;
  std::uint64_t move_ = 0;
  std::uint64_t moves_waiting_ = 0;                    // for the present one
  std::map<std::uint32_t, std::uint32_t> departures_;  // of the move that is under way: part, and where it comes from
};

}  // namespace farpool::sim
