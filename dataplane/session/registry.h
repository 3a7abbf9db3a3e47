// SPDX-License-Identifier: Apache-2.0
// The memory node's side of sessions: the clients that were admitted, with which keys and slots, for how long, and in
// which era. A state machine without a thread, clock or randomness of its own: the responder provides time, randomness,
// timers and the fence. It belongs to the control thread.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "fabric/host.h"
#include "farpool/v1alpha1/session.pb.h"
#include "layout/calls.h"
#include "session/clock.h"
#include "session/eras.h"

namespace farpool::session {

using base::Nanos;

// Memory that every session of this node may touch, each under a key of its own.
struct RegionSpan {
  std::uint32_t id = 0;  // layout::RegionId
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  bool read_only = false;
};

// Receives the ends of sessions, on the control thread. The registry may call it from within the observer's own calls
// into the registry; the observer must not call back from there.
class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  virtual void on_opened(std::uint64_t session_id, std::uint64_t client_incarnation,
                         const std::string& client_name) = 0;
  struct Ended {
    std::uint64_t session_id = 0;
    std::uint64_t client_incarnation = 0;
    std::uint64_t client_process = 0;
    std::string client_name;
    bool clean = false;
    bool holds = false;  // its operation slots say that it left something half done; they stay
    std::string why;
  };
  // Called when no verb of the session can execute any more.
  virtual void on_ended(const Ended& ended) = 0;
};

class Registry {
 public:
  struct Config {
    std::string pool_uid;
    std::uint64_t node_incarnation = 0;
    Nanos lease = 5 * base::kSecond;
    Nanos failure_timeout = 2 * base::kSecond;
    Nanos era_patience = 15 * base::kSecond;  // a session that holds an era back for longer is fenced
    std::uint32_t max_sessions = 256;         // at most what the slots region was cut for
    std::uint32_t max_lanes = 1024;           // over all sessions
    std::uint32_t slots_per_session = 64;
    std::uint32_t opens_per_second = 200;           // sustained; as many again at once
    std::size_t remembered_incarnations = 1 << 17;  // ended clients that it recognises if they come back
    std::size_t remembered_closed = 1024;           // processes that closed their last session
    bool require_authentication = true;             // false: a session port without TLS, for local use
    bool check_names = false;                       // a client's name has to begin with the name in its certificate
    base::HashSecret table_seed;
    // Executes the CALLs for data of every session; without one they are refused. It outlives the responder.
    fabric::Service* service = nullptr;
    // Receives the eras; none: no other thread asks. It outlives the registry.
    EraWords* eras = nullptr;
    // Returns the host's clock: nanoseconds since 1970. None: the fabric's clock stands for it.
    std::function<std::uint64_t()> wall;
    // Groups of slots [0, places) were granted before this process started. Idle ones are granted again; the others
    // belong to dead clients.
    std::uint32_t places = 0;
  };

  // The regions and the responder outlive the registry.
  Registry(Config config, std::vector<RegionSpan> regions, fabric::Responder& responder, SessionObserver& observer);
  Registry(const Registry&) = delete;
  ~Registry();

  // Returns how often clients should tick.
  Nanos tick_interval() const;

  // Admits sessions that follow this map's epoch. Sessions of earlier epochs continue; their next tick reports the new
  // epoch.
  void serve(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret);
  // Admits no session, for the given reason, and ends every session. Clients can still read a map, if there is one.
  void refuse(const v1alpha1::ShardMap* map, std::string why);

  // Serves fabric::Host's exchanges that concern sessions.
  void on_exchange(const fabric::Peer& peer, std::string_view request, std::function<void(std::string)> reply);
  std::optional<fabric::LaneRights> on_open_lane(const std::array<std::byte, 16>& token);
  std::vector<std::array<std::byte, 16>> unspent_tokens() const;
  // Says whether the client that a slot or a lease names has ended, and ends it if it has stood still for the failure
  // timeout. Returns nothing if the request is impossible.
  std::optional<layout::FenceReply> fence(const layout::FenceRequest& request);
  // Changes a lease's word where clients cannot write it: the session takes, renews or releases the lease. Returns
  // nothing if clients can, or if the request is impossible: a lease of another session stays. Leases of sessions that
  // have ended are released.
  std::optional<layout::SwapLeaseReply> swap_lease(std::uint64_t session_id, const layout::SwapLeaseRequest& request);
  // Ends every session of these processes, now and for ever: it admits none of them again. Calls `done` with the number
  // of sessions, once no verb of them can execute any more.
  void fence_processes(const std::vector<std::uint64_t>& processes, std::function<void(std::uint32_t sessions)> done);
  // Renews the lease. Returns nothing if the session is not live or the request is impossible: then the lane must end.
  std::optional<layout::TickReply> tick(std::uint64_t session_id, const layout::TickRequest& request);

  bool live(std::uint64_t session_id) const;
  std::uint64_t incarnation_of(std::uint64_t session_id) const;  // 0 if not live

  std::uint64_t epoch() const { return map_.epoch(); }
  std::uint64_t era() const { return era_; }
  // Returns the oldest era in which a session may run an operation, or still make a verb execute.
  std::uint64_t safe_era() const { return sessions_.empty() ? era_ + 1 : lagging_ > 0 ? era_ - 1 : era_; }

  std::size_t sessions() const { return sessions_.size(); }
  // Returns how many of them have clients that speak an older protocol version than this program's newest.
  std::uint64_t older_sessions() const { return older_; }
  std::uint64_t lanes() const { return lanes_; }
  // Returns the number of session places whose dead clients left something in their slots.
  std::uint64_t held_by_the_dead() const { return dead_.size(); }
  struct Dead {
    std::uint32_t group = 0;  // of slots
    std::uint64_t incarnation = 0;
    std::uint64_t process = 0;
    std::string name;
    std::string owner;  // the name in its certificate; empty: unknown, or none
  };
  // Returns the clients that left them, in the order in which they ended.
  const std::deque<Dead>& dead() const { return dead_; }
  // Returns the processes without a session here that closed their last one themselves, in that order. A process is
  // removed if it opens another session, or if one of its sessions is fenced.
  const std::deque<std::uint64_t>& closed() const { return closed_; }
  // Returns how many slots of a group are not idle.
  std::uint32_t busy_slots(std::uint32_t group) const;
  // Takes back slots of dead clients that have been repaired since.
  void reclaim();
  // Returns n: groups [0, n) have been granted at some time; the others are as they were formatted.
  std::uint32_t groups_used() const { return next_group_; }

  struct Counters {
    std::uint64_t opened = 0, closed = 0, fenced = 0, refused = 0;
    std::uint64_t over_quota = 0;  // of those refused
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Entry {
    std::uint64_t id = 0;
    std::uint64_t incarnation = 0;
    std::uint64_t process = 0;
    std::string name;
    std::string owner;  // the name in its certificate
    std::string token;  // the first that it was granted: no other client knows it
    std::uint32_t group = 0;
    std::uint32_t lanes = 0;
    std::vector<std::uint64_t> keys;  // by index into regions_
    Nanos lease_end = 0;
    std::uint64_t era = 0;  // published
    bool older = false;     // its client does not speak this program's newest protocol version
    bool fencing = false;
    bool clean = false;
    std::string why;
    std::vector<std::function<void(std::string)>> goodbyes;
  };
  // What a slot or a lease said when a client first complained of it.
  struct Complaint {
    std::uint64_t says = 0;
    Nanos since = 0;
  };
  // An end that a caller waits for, of these sessions.
  struct Farewell {
    std::set<std::uint64_t> sessions;
    std::uint32_t count = 0;
    std::function<void(std::uint32_t)> done;
  };
  struct Token {
    std::uint64_t session_id = 0;
    Nanos expires = 0;
  };
  struct TokenHash {
    std::size_t operator()(const std::array<std::byte, 16>& token) const {
      std::size_t value;
      std::memcpy(&value, token.data(), sizeof value);  // random already
      return value;
    }
  };

  v1alpha1::SessionReply admit(const fabric::Peer& peer, const v1alpha1::SessionRequest& request) const;
  // Opens a session in a protocol version that both sides speak.
  v1alpha1::SessionReply open(const fabric::Peer& peer, const v1alpha1::OpenSession& request, std::uint32_t version);
  // Returns a refusal for requests that would fail even with a free session.
  std::optional<v1alpha1::SessionReply> may_not_open(const fabric::Peer& peer,
                                                     const v1alpha1::OpenSession& request) const;
  void cut_previous(const fabric::Peer& peer, const v1alpha1::OpenSession& request);
  v1alpha1::SessionReply grant_session(const fabric::Peer& peer, const v1alpha1::OpenSession& request,
                                       std::uint32_t group, std::uint32_t version);
  void close(const fabric::Peer& peer, const v1alpha1::CloseSession& request, std::function<void(std::string)> reply);
  v1alpha1::SessionReply refusal(v1alpha1::SessionReply::Code code, std::string message) const;
  // Says whether clients of the peer's name would have more here than its certificate allows. Each lane of a session
  // counts, and each place that a dead client still holds.
  bool over_quota(const fabric::Peer& peer, std::uint32_t lanes) const;
  // Permits to open sessions: so many at once, and as many again in each second.
  struct Permits {
    double left = 0;
    Nanos at = 0;
  };
  std::uint32_t opens_per_second(const fabric::Peer& peer) const;
  bool take_open_permit(const fabric::Peer& peer);
  std::optional<std::uint32_t> take_group();
  // A bounded set that forgets its oldest members.
  struct Memory {
    std::unordered_set<std::uint64_t> known;
    std::vector<std::uint64_t> order;  // a ring
    std::size_t next = 0;
    void remember(std::uint64_t one, std::size_t most);
  };
  std::byte* region(std::uint32_t id, std::uint64_t& bytes) const;
  void cut(Entry& entry, bool clean, std::string why);
  // Returns the leases if the memory node alone writes their words.
  const RegionSpan* own_leases() const;
  void release_leases(std::uint64_t session_id);
  void fenced(std::uint64_t session_id);
  void remember_end(const Entry& entry);
  void advance_era();
  void tell_eras();
  void arm();
  void sweep();

  Config config_;
  std::vector<RegionSpan> regions_;
  fabric::Responder& responder_;
  SessionObserver& observer_;
  // Callbacks of the responder hold this weakly, because they may come after the registry is gone.
  std::shared_ptr<bool> here_ = std::make_shared<bool>(true);

  v1alpha1::ShardMap map_;
  base::HashSecret pool_secret_;
  bool serving_ = false;
  std::string not_serving_why_ = "no epoch has been published to it yet";

  std::unordered_map<std::uint64_t, Entry> sessions_;  // by id, fencing ones included
  std::unordered_map<std::uint64_t, std::uint64_t> by_incarnation_;
  std::unordered_map<std::array<std::byte, 16>, Token, TokenHash> tokens_;
  Memory ended_;                                                             // incarnations
  Memory ended_processes_;                                                   // that were named by the operator
  std::map<std::pair<std::uint64_t, std::uint64_t>, Complaint> complaints_;  // by kind and index
  std::vector<Farewell> farewells_;

  std::uint64_t next_id_ = 1;
  std::set<std::uint32_t> free_groups_;  // below next_group_; lowest first keeps what is scanned short
  std::uint32_t next_group_ = 0;
  std::deque<Dead> dead_;
  std::deque<std::uint64_t> closed_;
  std::uint64_t lanes_ = 0;
  std::uint64_t older_ = 0;  // sessions

  std::uint64_t era_ = 1;
  std::size_t lagging_ = 0;  // sessions whose published era is era_ - 1
  Nanos era_since_ = 0;
  Nanos hurry_until_ = 0;  // until then a client waits for an era
  std::uint64_t forgets_ = 0;
  NodeClock clock_;
  std::uint64_t reclaimer_ = 0;  // the session that looks for keys that have expired; it may have ended

  Permits permits_;
  // By name, for peers with a bound. The pool's authority signs few names.
  std::unordered_map<std::string, Permits> bounded_permits_;
  bool armed_ = false;
  Counters counters_;
};

}  // namespace farpool::session
