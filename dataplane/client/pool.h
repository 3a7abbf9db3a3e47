// SPDX-License-Identifier: Apache-2.0
// The C++ client library: one thread's way into a pool.
//
//   client::Pool pool(port, {.pool_uid = uid, .client_name = "me", .bootstrap = {"10.0.0.7:7400"}});
//   pool.start();
//   auto value = co_await pool.get("key");
//   ...
//   co_await pool.close(port.now() + base::kSecond);
//
// Threads: a pool, its port and every coroutine that awaits it belong to one thread; other threads have pools of their
// own. Members marked "any thread" may be read from any. Units: times are nanoseconds on the port's clock; sizes are
// bytes. Keys have up to 64 KiB, values up to 1 MiB. Keys and values are views of the caller's memory, which must live
// until the operation has ended.
//
// The pool reads the shard map from any memory node that it can reach, and holds one session with each node that
// serves. It follows new epochs, restarted nodes, and nodes that come and go. An operation waits for that within
// Options::operation_deadline, and is tried again if an attempt did nothing. It ends with one of
//
//   ok
//   too_large        the key or the value is too large; nothing was done. A string that expires may be nine bytes shorter
//                    than others, one that ends with a byte above 0xf7 one byte, and an image two or ten
//                    (index/stored.h)
//   out_of_memory    the node that serves the key is full, and the pool's eviction policy allows no key there to be
//                    removed; nothing was done
//   timed_out        nothing was done by the deadline
//   locked           a lock of the key has stood past the pool's failure timeout; the message names the holder; nothing
//                    was done
//   unavailable      the node that serves the key could not be reached by the deadline, or is stopped; nothing was done
//   stale            the map was too old until the deadline, or the pool closed meanwhile; nothing was done
//   forbidden        the certificate was refused; nothing was done
//   corrupt          the pool holds impossible bytes
//   unknown_outcome  the session ended in the middle: the operation took effect or did not. Read before trying again
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/counter.h"
#include "base/hash.h"
#include "base/signature.h"
#include "client/eviction.h"
#include "client/gate.h"
#include "client/kv.h"
#include "fabric/fabric.h"
#include "index/table.h"
#include "map/shard_map.h"
#include "session/clock.h"
#include "session/wait.h"
#include "task/scope.h"

namespace farpool::client {

using base::Nanos;

struct ScanPlace;

enum class Operation : std::uint8_t { get, put, erase, modify, count, scan };
inline constexpr std::size_t kOperations = 6;
inline constexpr std::size_t kCodes = static_cast<std::size_t>(base::Code::internal) + 1;
std::string_view name_of(Operation operation);

// What this thread's operations came to, and what they cost on the wire. Any thread may read it.
struct PoolCounters {
  struct PerOperation {
    std::array<base::Counter, kCodes> outcomes;  // by base::Code
    base::Counter trips;
    base::Counter chains;
    base::Counter messages;
    base::Counter bytes;
    base::Counter retries;  // attempts beyond the first
    base::Latencies latencies;
  };
  std::array<PerOperation, kOperations> operations;
  base::Counter sessions;  // open now
  base::Counter sessions_opened;
  base::Counter sessions_lost;  // ended without this client's goodbye
  base::Counter failed_opens;
  base::Counter epoch;  // followed; 0: none
  base::Counter map_fetches;
  base::Counter failed_map_fetches;
  base::Counter expired_keys;    // removed by this thread because they had expired
  base::Counter evicted_keys;    // removed by this thread to make room
  base::Counter doubted_clocks;  // times that memory nodes told, too far ahead of the others' to be believed
  base::Counter forged_maps;     // shown by memory nodes, but not signed by the operator
  // Sums over the tables, as of the last second.
  base::PublishedCounts<index::Marks, index::kMarks.size()> index{index::kMarks};
  base::PublishedCounts<session::RepairMarks, session::kRepairMarks.size()> repair{session::kRepairMarks};
};

struct NodeState {
  std::string name;
  std::string endpoint;
  std::uint64_t incarnation = 0;
  bool stopped = false;  // by the map: its memory was lost and a person decides
  bool open = false;     // a session is
  std::string trouble;   // why there is none
  bool leaving = false;  // keys are to move away, and some may still be there
};
struct PoolState {
  std::uint64_t epoch = 0;  // followed; 0: none yet
  bool ready = false;       // holds a session with every node that serves
  std::string message;      // why it is not ready
  std::vector<NodeState> nodes;
};

class Pool final : public Kv {
 public:
  struct Options {
    std::string pool_uid;
    std::string client_name;             // for people
    std::uint64_t process = 0;           // of this thread, as its agent reports it; 0: none
    std::vector<std::string> bootstrap;  // host:port of memory nodes; more by set_bootstrap()
    // Checks the operator's signature. With it, the pool follows only maps that the operator has signed, and each
    // memory node must show the certificate of the name that the map gives it. Without it, the pool follows any map.
    std::shared_ptr<const base::SignatureCheck> map_key;
    Nanos operation_deadline = 5 * base::kSecond;
    // Removes keys that have expired, at the memory nodes that choose this client for it. False, in tests: a memory node
    // that chooses it has nobody who does.
    bool reclaims = true;
    // The deadline of a handshake, and of a read of the map; once known, the pool's failure timeout if that is longer.
    Nanos connect_deadline = 3 * base::kSecond;
    // What is known of the use of keys, by which keys are evicted: the same for all pools of a process, on whatever thread.
    // None: this pool keeps what it sees itself, from the first policy on that needs it.
    std::shared_ptr<Accesses> accesses;
    // Called when the epoch, or the sessions with its nodes, have changed; never inline from an operation.
    std::function<void(const PoolState&)> on_change;
    // Called when a memory node admits no session of this process any more, because the operator has fenced it for good;
    // perhaps more than once. The line says so for people. Another process has to take over.
    std::function<void(const std::string&)> on_fenced;
    // Receives what happened, as one line for people, without bytes of keys or values.
    std::function<void(bool warning, const std::string& line)> log;
  };

  Pool(fabric::Port& port, Options options);
  ~Pool() override;  // must have been closed, if it was started
  Pool(const Pool&) = delete;

  // Starts to follow the pool. Operations may be called at once; they wait for it.
  void start();
  // Replaces the addresses to begin with, and to fall back to.
  void set_bootstrap(std::vector<std::string> endpoints);
  // Says goodbye to every node: what the sessions held is free at once. Running operations end first; new ones are
  // refused.
  task::Task<void> close(Nanos deadline);

  // Repairs what ended clients left on every memory node that serves.
  struct Repair {
    std::string node;  // empty: there was no map by the deadline
    std::uint64_t slots_repaired = 0;
    std::uint64_t slots_left = 0;
    std::string trouble;  // why something is left
  };
  task::Task<std::vector<Repair>> repair(Nanos deadline);

  PoolState state() const;
  const PoolCounters& counters() const { return counters_; }  // any thread

  task::Task<base::Result<std::optional<std::string>>> get(std::string_view key, std::string room = {}) override;
  task::Task<base::Status> put(std::string_view key, std::string_view value, Millis expires = kNoExpiry) override;
  task::Task<base::Result<bool>> erase(std::string_view key) override;
  task::Task<base::Status> modify(std::string_view key, Editor& editor) override;
  task::Task<base::Result<std::optional<Value>>> read(std::string_view key) override;
  task::Task<base::Result<Millis>> time() override;
  task::Task<base::Result<std::vector<std::optional<Value>>>> multi_read(std::vector<std::string_view> keys) override;
  task::Task<base::Result<std::uint64_t>> count() override;
  task::Task<base::Result<Page>> scan(std::uint64_t cursor, std::uint64_t count, Keys keys = Keys::live) override;
  task::Task<base::Result<std::optional<std::string>>> any_key() override;
  std::uint64_t random() override { return port_.random(); }
  std::string_view eviction_policy() const override { return policy_.name(); }

 private:
  struct Bond;     // a session with a node, and the table behind it
  struct Lasting;  // a table that outlives its sessions
  struct Link;     // a node of the map
  struct Room;     // what this client does about the room at a node
  struct Turn;     // a way through a table
  class Eviction;  // of a key
  class Borrowed;  // the bond that an operation uses
  struct Removal;  // of a key
  class Account;   // what an operation cost and came to
  template <class Inner>
  class Timed;  // an editor that knows the time

  // Returns the node that serves a key, for the next attempt; nullptr: not known yet.
  Link* route(std::string_view key, Account& account) const;
  std::uint64_t epoch() const;  // followed; 0: none yet
  // Changes a key: tries `attempt` at the table that serves it until one attempt counts. Returns what that returned.
  template <class Answer, class Attempt>
  task::Task<Answer> change(std::string_view key, Operation operation, std::uint64_t bytes, Attempt attempt);
  // Returns the bond with the node that serves the key; nothing if there is a reason to wait, or to give up.
  std::optional<Borrowed> borrow_now(std::string_view key, Account& account);
  // The same, but waits for the bond until the account's deadline. Closes the account if it returns an error.
  task::Task<base::Status> borrow(std::string_view key, Account& account, std::optional<Borrowed>& into);
  // Returns the bond with that node of the map. Waits for it until the deadline.
  task::Task<base::Result<Borrowed>> borrow(std::size_t node, Nanos deadline);
  task::Task<base::Result<Borrowed>> borrow_by(const std::function<Link*()>& which, Nanos deadline);
  base::Status why_not(const Link* link) const;
  // Says whether another attempt should follow one with this outcome; waits until that makes sense.
  task::Task<bool> again(const base::Status& status, const Borrowed& used, Account& account);
  // Says whether keys leave the table, by the map.
  bool keys_leave(const v1alpha1::TableEntry& table) const;
  // Returns the map's first table with that id or a higher one, among the tables that keys leave or among the others;
  // nullptr: there is none. Needs a map.
  const v1alpha1::TableEntry* table_from(std::uint64_t id, bool left) const;
  // Returns the table of the map that a scan reads next, and moves `place` to it; nullptr: the scan has ended. Needs a
  // map.
  const v1alpha1::TableEntry* table_at(ScanPlace& place) const;
  // Waits until there is a map.
  task::Task<base::Status> follow(Nanos deadline);
  task::Task<base::Result<Page>> scan_from(std::uint64_t cursor, std::uint64_t count, Keys keys, Account& account);
  task::Task<base::Result<std::optional<std::string>>> look_for_any(Account& account);
  task::Task<base::Status> put_sealed(std::string_view key, std::string_view value, Millis expires);
  task::Task<base::Status> modify_by_editor(std::string_view key, Editor& editor);
  // Returns the pool's time; 0 before the first session is open.
  Millis clock() { return clock_.now(port_.now()) / base::kMillisecond; }
  task::Task<void> read_into(std::string_view key, base::Result<std::optional<Value>>& into);

  task::Task<void> follow_map();
  void adopt(map::Map map);
  task::Task<void> keep(Link& link);
  task::Task<base::Result<std::unique_ptr<Bond>>> bind(Link& link);
  task::Task<void> watch(Link& link, Bond& bond);
  void tell_split_trouble(const Link& link, Bond& bond);
  // Repairs what ended clients left although it blocks nobody: the first client that gets to it does.
  task::Task<void> repair_after_deaths(const Link& link, Bond& bond);
  // Removes keys that have expired, for as long as the memory node chooses this client (reclaim.cc).
  task::Task<void> reclaim(Link& link, Bond& bond);
  task::Task<base::Result<Page>> reclaim_page(Bond& bond, std::uint64_t position);
  bool reclaims_at(const Link& link, const Bond& bond) const;
  // Says whether additions at the memory node have to be made up for, as far as this client knows.
  bool is_full(const Bond& bond) const;
  // Notes that so many bytes were added at a memory node: if it is full, this client owes it as many.
  void owe(Bond& bond, std::uint64_t bytes);
  // Starts to pay what is owed, in the background, unless that is under way.
  void pay(Bond& bond);
  task::Task<void> pay_debt(Bond& bond);
  task::Task<base::Result<Page>> take_sample(Bond& bond, Turn& turn);
  // Adds a part of the heap to what is owed for a write of so many bytes that finds no room, unless room is being made.
  void raise_debt(Bond& bond, std::uint64_t bytes);
  // Does so before the write waits, under a policy that allows every key. Says whether additions are made up for.
  bool begin_to_make_room(Bond& bond, std::uint64_t bytes);
  // Makes room for a write of so many bytes that has found none. Returns false if no key may be removed.
  task::Task<bool> make_room(Bond& bond, std::uint64_t bytes, Nanos deadline);
  // Does so before a write finds none, when the memory node says that it is short of room.
  void make_room_ahead(Bond& bond);
  static std::uint64_t heap_bytes(const Bond& bond);
  // Returns the keys of a page that may go: what has expired, and what the policy allows. `most` becomes how many of
  // them should. Counts in the turn the keys that may not.
  std::vector<const std::string*> choose(const Page& page, Turn& turn, std::size_t& most);
  task::Task<void> remove_some(Bond& bond, const Page& page, Turn& turn);
  task::Task<void> remove_one(Bond& bond, const std::string& key, Gates::Pass);
  std::uint64_t hash_of(std::string_view key) const;
  // Notes that an operation has used its key.
  void used(const Account& account);
  // Gives a bond up: waits for its operations, and says goodbye.
  task::Task<void> part(std::unique_ptr<Bond> bond);
  // Returns the table of this memory that outlives sessions, or opens it; nullptr: the protocol has none such.
  std::shared_ptr<Lasting> lasting_of(const Link& link, const session::Session& session,
                                      const layout::Geometry& geometry);
  // Gives a table up whose memory is gone, or no longer in the map.
  void forget(Lasting& lasting);
  // Says whether another bond than this one has its table.
  bool is_shared(const Bond& bond) const;
  task::Task<void> split_ahead(const Link& link, Bond& bond);
  index::Move move_of(const Link& link) const;
  task::Task<void> move_away(Link& link, Bond& bond);
  // Returns stale if another client is moving the keys, or another map has come.
  task::Task<base::Status> try_to_move(Link& link, Bond& bond, std::uint64_t number);
  task::Task<void> pause(const Link& link, Nanos until);
  Nanos jittered(Nanos bound);
  Nanos patience() const { return std::max(options_.connect_deadline, failure_timeout_); }
  void changed();
  // Makes follow_map() read the map soon, also if it is in the middle of a read.
  void refresh();
  // Adds what this bond's session has counted, and its table unless that outlives the session.
  static void add_marks(const Bond& bond, index::Marks& marks, session::RepairMarks& repairs);
  void publish_marks();
  void log(bool warning, const std::string& line) const;

  fabric::Port& port_;
  Options options_;
  PoolCounters counters_;
  std::optional<map::Map> map_;
  std::optional<base::HashSecret> pool_secret_;  // the same at every node of the pool
  Nanos failure_timeout_ = 0;                    // of the pool; 0: no session has been granted yet
  std::vector<std::shared_ptr<Lasting>> lasting_;
  std::vector<std::unique_ptr<Link>> links_;  // of this epoch, and of earlier ones until they have parted
  std::vector<Link*> link_of_node_;           // by index in the map
  std::vector<const Bond*> parting_;          // of links no more, but not yet counted in the past
  std::string map_trouble_ = "no shard map has been read yet";
  std::uint64_t wanted_epoch_ = 0;  // that a node has reported
  index::Marks marks_of_the_past_;
  session::RepairMarks repairs_of_the_past_;
  bool refresh_due_ = false;
  bool moving_ = false;  // keys between memory nodes
  bool closing_ = false;
  Nanos close_deadline_ = base::kNever;
  bool started_ = false;
  session::PoolClock clock_{&counters_.doubted_clocks};
  EvictionPolicy policy_;
  Gates gates_;
  session::WaitQueue changed_;    // something an operation may wait for
  session::WaitQueue refresh_;    // the map should be read
  session::WaitQueue links_due_;  // a link should look at what it holds
  task::Scope scope_;
};

}  // namespace farpool::client
