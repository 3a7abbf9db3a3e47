// SPDX-License-Identifier: Apache-2.0
// A memory node: the memory it lends, the clients that may touch it, and the little that its CPU does: handshakes,
// ticks, segments.
//
// Everything but facts() and stats() belongs to the wire's control thread. A node starts in take_up.cc, serves sessions
// in memory_node.cc, and reports in facts.cc; Segments and Maps decide by themselves. The node's CPU never reads,
// modifies and writes a word that clients change: it only reads free bitmaps and lock words, and formats memory that
// nobody holds.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/result.h"
#include "base/signature.h"
#include "fabric/host.h"
#include "farpool/v1alpha1/agent.pb.h"
#include "index/protocol.h"
#include "layout/calls.h"
#include "layout/geometry.h"
#include "layout/private_page.h"
#include "node/maps.h"
#include "node/progress.h"
#include "node/segment_ledger.h"
#include "node/segments.h"
#include "session/registry.h"

namespace farpool::node {

// Where the locks of a table are to lie, if its protocol has any.
enum class LockPlacement : std::uint8_t {
  host,
  device_preferred,  // in the NIC's memory if it has room, else in the host's
  device_required,   // in the NIC's memory, or the memory node does not start
};

class MemoryNode final : public fabric::Host, private session::SessionObserver {
 public:
  struct Options {
    std::string name;
    std::string pool_uid;
    std::string endpoint;              // host:port for clients
    std::string version;               // of the binary
    layout::GeometryRequest geometry;  // memory_bytes is taken from the memory itself
    std::uint64_t initial_tables = 1;  // that a newly formatted memory begins with
    base::Nanos lease = 5 * base::kSecond;
    base::Nanos failure_timeout = 2 * base::kSecond;
    std::uint32_t max_lanes = 1024;
    std::uint32_t opens_per_second = 200;
    bool require_authentication = true;  // false only where the session port has no TLS
    // Checks the operator's signature. With it, the memory node holds only maps that the operator has signed, and
    // clients open sessions under the names of their certificates.
    std::shared_ptr<const base::SignatureCheck> map_key;
    LockPlacement locks = LockPlacement::host;
    // Executes the CALLs for data of every session where the protocol does not; without one they are refused. It
    // outlives the responder.
    fabric::Service* service = nullptr;
    // The last map that `keep_map` of an earlier process of this node got, if it is known.
    std::string kept_map;
    // Called when a map is held: it must be kept for the next process, which may be the only one to know of it. Control
    // thread.
    std::function<void(const std::string& map)> keep_map;
    // Returns the host's clock: nanoseconds since 1970. None: the fabric's clock stands for it.
    std::function<std::uint64_t()> wall;
    // Receives what happened, as one line without bytes of keys or values; the application writes structured logs.
    // Control thread.
    std::function<void(bool warning, const std::string& line)> log;
    // Receives how far create has come, on the thread that calls it.
    Progress progress;
    // Called when the facts have changed. Control thread.
    std::function<void()> on_change;
  };

  // Starts a new incarnation over page-aligned memory. The memory and the responder outlive the node. Formats a memory
  // of zeros. Takes up what an earlier incarnation left: nothing of its clients can execute any more, so the node
  // finishes or undoes their half-done operations, releases the locks, checks every byte, and frees what no entry
  // points to. If it dies while it does this, the next life can take the memory up. Errors: invalid_argument says which
  // figure of the geometry cannot work, what the protocol needs and the wire lacks, or with which other flags the
  // memory was formatted. corrupt says why the memory cannot be taken up; nothing in it has been changed then.
  // unavailable says why locks that must lie in the NIC's memory do not.
  static base::Result<std::unique_ptr<MemoryNode>> create(Options options, base::MutableBytes memory,
                                                          fabric::Responder& responder);
  ~MemoryNode() override;

  using Verdict = node::Verdict;
  struct Published {
    Verdict verdict = Verdict::invalid;
    std::uint64_t epoch = 0;  // held afterwards
    std::string message;      // why not, for people
  };
  // Prepares an epoch: the first of two phases. The node holds its map: it accepts no earlier one any more, and keeps
  // it for the next process, but tells clients nothing. The map that it holds is the last one that was prepared or
  // followed. Before there is one, it holds what an earlier life has kept and what the memory says: epochs and moves
  // only increase, over all lives of the memory.
  Published prepare(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret);
  // Follows an epoch, prepared or not. An epoch that does not contain this incarnation, or stops it, ends every
  // session.
  Published publish(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret);
  // Publishes an epoch of its own with itself as the one node: without an operator. The epoch is above every one that
  // its memory knows of, and no lower than `at_least`: clients that followed an earlier life, whose memory is gone,
  // recognise a new map by its epoch alone.
  Published stand_alone(std::uint64_t at_least = 1);

  // Ends every session of these processes, for ever. Calls `done` with what they left here, once nothing of them can
  // execute any more.
  void fence(const std::vector<std::uint64_t>& processes, std::function<void(v1alpha1::FenceResponse)> done);

  // Returns what executes CALLs for data: the caller keeps it until the wire has ended, which calls it from threads of
  // its own.
  std::shared_ptr<const void> executor() const { return executor_; }
  // Returns this node as an entry of a shard map.
  v1alpha1::MemoryNodeEntry entry() const;
  std::uint64_t incarnation() const { return incarnation_; }
  const layout::Geometry& geometry() const { return geometry_; }

  // Any thread.
  v1alpha1::Facts facts() const;
  struct Stats {
    std::uint64_t incarnation = 0, epoch = 0, era = 0, safe_era = 0;
    std::uint64_t sessions = 0, older_sessions = 0, lanes = 0, sessions_opened = 0, sessions_closed = 0,
                  sessions_fenced = 0, handshakes_refused = 0, sessions_held_by_the_dead = 0, sessions_over_quota = 0;
    std::uint64_t keys = 0, bytes = 0, entries = 0;  // bytes of keys and values
    std::uint64_t segment_bytes = 0, calls = 0, segment_refusals = 0;
    SegmentLedger::Counts segments;
    struct OfClass {
      std::uint64_t block_bytes = 0;  // 0: runs, of one large block each
      SegmentLedger::Counts segments;
    };
    std::vector<OfClass> segments_by_class;
    std::uint64_t heap_bytes = 0;
    std::uint64_t heap_live = 0;  // of blocks that entries point to, approximately
    bool serving = false;
    bool evicts = false;  // its map has a policy by which clients remove keys to make room
    bool locks_in_device = false;
    std::uint64_t lives = 0;             // incarnations that have served from this memory, with this one
    std::uint64_t repaired = 0;          // half-done operations that this one finished or undid
    std::uint64_t defects = 0;           // found when this one took the memory up
    std::uint64_t quarantined_rows = 0;  // that no crash explains: locked until a person looks at them
    base::Nanos verification = 0;        // how long looking for them took
    index::NodeMarks index;              // where the memory node executes the operations itself
  };
  Stats stats() const;

  // fabric::Host
  void on_exchange(const fabric::Peer& peer, std::string request, std::function<void(std::string)> reply) override;
  std::optional<fabric::LaneRights> on_open_lane(const std::array<std::byte, 16>& token) override;
  std::vector<std::array<std::byte, 16>> unspent_tokens() const override;
  std::optional<std::size_t> on_call(std::uint64_t session_id, std::uint32_t opcode, base::Bytes request,
                                     base::MutableBytes reply) override;

 private:
  MemoryNode(Options options, base::MutableBytes memory, const layout::Geometry& geometry,
             fabric::Responder& responder);
  std::function<void(std::uint64_t)> rows_done(const char* step) const;
  void format();
  base::Status take_up();
  void verify();
  void settle_counters(std::uint64_t keys, std::uint64_t bytes);
  base::Status place_locks();
  base::Status begin_to_execute();
  void begin_life();
  void serve_sessions();

  void on_opened(std::uint64_t session_id, std::uint64_t client_incarnation, const std::string& client_name) override;
  void on_ended(const Ended& ended) override;

  Segments::Caller caller(std::uint64_t session_id) const {
    return {.session = session_id, .incarnation = registry_->incarnation_of(session_id)};
  }
  Segments::Moment moment() const {
    return {.now = responder_.now(), .era = registry_->era(), .safe_era = registry_->safe_era()};
  }

  std::byte* region(layout::RegionId id) const { return memory_.data() + geometry_.at(id).offset; }
  base::MutableBytes private_page() const { return memory_.subspan(geometry_.private_page(), layout::kPage); }
  std::byte* slot_at(std::uint64_t index) const;

  void log(bool warning, const std::string& line) const;
  void arm();
  void keep_house();
  void count_keys();
  void count_quarantined();
  std::uint64_t move_finished() const;
  // Returns why a map cannot be held; nothing if it can.
  std::optional<Published> refusal(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret) const;
  Maps::Memory remembered() const;
  void keep(const v1alpha1::ShardMap& map);
  std::uint64_t even_tables() const;
  // Returns what ended processes left here, the earliest first.
  std::vector<v1alpha1::DeadClient> dead();
  Stats take_stock() const;
  v1alpha1::Facts tell();  // without coarse numbers
  void refresh_facts();

  const Options options_;
  const base::MutableBytes memory_;
  const layout::Geometry geometry_;
  const index::Protocol& protocol_;
  fabric::Responder& responder_;
  // What runs for clients, and the eras that it sees.
  struct Executor {
    session::EraWords eras;
    std::unique_ptr<index::NodeSide> side;  // none: clients do all of it themselves
  };
  const std::shared_ptr<Executor> executor_ = std::make_shared<Executor>();
  layout::PrivateRecord record_;  // as it stands in the private page
  bool fresh_ = true;
  bool locks_in_device_ = false;
  std::uint64_t incarnation_ = 0;
  std::unique_ptr<session::Registry> registry_;
  Segments segments_;
  Maps maps_;
  // Ended sessions that left segments, oldest first.
  struct Left {
    std::uint64_t session = 0;
    std::uint64_t process = 0;
    std::string name;
  };
  std::vector<Left> left_;
  std::uint64_t calls_ = 0;

  bool serving_ = false;
  std::string why_not_ = "no epoch has been published to it yet";

  struct SlotCount {
    std::uint64_t keys = 0, bytes = 0;
  };
  std::vector<SlotCount> slot_counts_;
  std::uint32_t places_ = 0;  // slot groups [0, places_) were granted by earlier lives
  std::uint64_t repaired_ = 0;
  std::uint64_t quarantined_rows_ = 0;
  std::uint64_t defects_ = 0;
  base::Nanos verification_ = 0;
  std::uint64_t keys_ = 0, bytes_ = 0;
  bool armed_ = false;
  std::shared_ptr<bool> here_ = std::make_shared<bool>(true);  // timers may fire after the node is gone

  mutable std::mutex mutex_;  // guards what other threads read
  v1alpha1::Facts facts_;
  Stats stats_;
};

}  // namespace farpool::node
