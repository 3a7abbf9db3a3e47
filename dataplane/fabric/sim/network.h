// SPDX-License-Identifier: Apache-2.0
// The simulated wire: one thread, virtual time, and a run that is a function of its seed.
//
// It keeps the contract of fabric/fabric.h and nothing stronger. READs and WRITEs longer than a word execute word by
// word, in any order, while others' verbs execute in between. A verb waits only for the earlier verbs of its lane that
// the contract orders before it: two READs, two atomics, a READ and a later WRITE, or a CALL and what is posted behind
// it change places. Lanes are not ordered. A WRITE that lands while an atomic of another lane changes the same word is
// lost. Postings complete in any order. A WRITE's payload is read as its words land,
// so a buffer that is changed too early is seen. After a posting has ended `maybe` or `refused` its READ buffers hold
// garbage.
//
// CALLs for data wait for one of the memory node's service threads, and occupy it for a while. Each executes in one
// step at the end of that time, in any order. What a service writes through its Hand are effects: the memory node can
// be made to die after any of them, with the words written so far in place. The requests and replies of CALLs get lost
// on demand; a posting whose request or reply was lost ends `maybe` at its deadline, as on any wire.
//
// With Options::timing it is the other wire: as strong and as fast as a NIC (time_model.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/fabric.h"
#include "fabric/host.h"
#include "fabric/sim/event_queue.h"
#include "fabric/sim/flight.h"
#include "fabric/sim/time_model.h"
#include "fabric/sim/trace.h"

namespace farpool::fabric::sim {

// Events that a run is waited for: what goes round in circles is no less hung because little time passes.
inline constexpr std::uint64_t kMostSteps = 3'000'000;

struct Options {
  std::uint64_t seed = 1;
  Nanos min_delay = 500, max_delay = 3000;  // of a message, one way
  Nanos spread = 1500;                      // within which the words of one verb execute
  double straggle = 0.03;                   // chance that a message or a word takes up to `straggle_delay` longer
  Nanos straggle_delay = 20 * base::kMicrosecond;
  bool tear = true;  // off: each verb executes in one step
  // Each chain executes whole when it arrives, in one step. Stronger than any wire, and the cheapest to run: for what
  // takes very many operations and has no use for time or faults.
  bool whole = false;
  // How long after an atomic has changed a word a WRITE of another lane to that word is lost. Shorter than the time in
  // which anyone can hear of the atomic and WRITE.
  Nanos atomic_time = 900;
  double lose_reply = 0;                        // chance that a chain executes and its completion never comes
  double lose_call = 0;                         // chance that the request of a CALL for data never comes
  double lose_exchange = 0;                     // chance that a message of the session port never comes
  bool keep_chains = false;                     // in the trace
  std::uint32_t calls_in_flight = 16;           // CALLs for data on one lane
  std::size_t service_threads = 2;              // of a memory node
  Nanos min_service = 200, max_service = 2000;  // that a CALL for data occupies one
  Nanos retry_time = 0;                         // that ports say they take: nothing that is lost is sent again here
  // The clock of each client and of each memory node is somewhere up to `max_offset` ahead of the simulation's, and
  // faster or slower by up to `max_drift_ppm`.
  Nanos max_offset = 0;
  std::int64_t max_drift_ppm = 0;
  // With a NIC's figures here verbs take the time that they take there, in order and whole, and what is above of delays
  // and tearing counts for nothing.
  Timing timing;
};

// What one machine's clock shows.
class Clock {
 public:
  Clock() = default;
  Clock(Nanos offset, std::int64_t drift_ppm);
  Nanos at(Nanos time) const;
  // The first time at which it shows that.
  Nanos when(Nanos shown) const;

 private:
  Nanos offset_ = 0;
  std::int64_t drift_ppm_ = 0;
};

// What becomes of verbs that a crashed client had posted.
enum class InFlight : std::uint8_t {
  lands,  // they execute, some time
  cut,    // nothing lands after the effect that the client crashed at
};

class Network;

// A client: one thread's port. It may be paused (its thread is stopped, the wire is not) or crash.
class SimPort final : public Port {
 public:
  Caps caps() const override;
  Nanos now() const override;
  std::uint64_t random() override { return random_.next(); }
  task::Task<base::Result<std::unique_ptr<Lane>>> open_lane(LaneGrant grant, Nanos deadline) override;
  void arm(Timer& timer) override;
  void disarm(Timer& timer) override { timers_.disarm(timer); }

  std::size_t index() const { return index_; }
  // Words landed, atomics and CALLs executed on behalf of this client. Failed atomics count, READs do not.
  std::uint64_t effects() const { return effects_; }
  // Verbs that were posted and have neither executed nor been dropped.
  std::size_t in_flight() const;
  // None of its lanes is open at its memory node any more: it may not know yet.
  bool cut_off() const;
  // Ends a client that crashed: all its lanes are closed and end, and its frames go on from there. Nothing of it
  // reaches any other client. For the owner of a world that is finished with it.
  void revive();
  // The client stops for ever as soon as `effects` more have happened; with 0, when the next one is about to.
  void crash_after(std::uint64_t effects, InFlight posted);
  // Likewise, but its thread only stops, as by SIGSTOP: what it has posted lands, and resume() wakes it.
  void pause_after(std::uint64_t effects);
  void crash(InFlight posted);
  bool crashed() const { return state_ == State::crashed; }
  // A stopped thread: its timers and completions wait until it goes on.
  void pause();
  void resume();
  bool paused() const { return state_ == State::paused; }

  ~SimPort() override;

 private:
  // Simulated memory nodes show no certificates.
  task::Task<base::Result<std::string>> exchange_with(std::string node_name, std::string endpoint, std::string request,
                                                      Nanos deadline) override;
  friend class Network;
  friend class SimLane;
  friend class SimResponder;
  enum class State : std::uint8_t { running, paused, crashed };
  SimPort(Network& network, std::size_t index, Peer peer, std::uint64_t seed, Clock clock);

  // Runs `what` as a turn of this client: at once, after the pause, or never.
  template <class What>
  void turn(const What& what);
  void ring();
  void wake();
  bool may_land();  // false: the client's verbs are cut
  // Says whether so many effects make no difference to it but their number.
  bool unmoved_by(std::uint64_t effects) const {
    return state_ != State::crashed && pause_at_ - effects_ > effects && crash_at_ - effects_ > effects;
  }
  void landed();

  Network* network_;
  std::size_t index_;
  Peer peer_;
  base::Random random_;
  Clock clock_;
  State state_ = State::running;
  TimerQueue timers_;
  std::vector<Nanos> wakes_;  // when events stand that look for timers, the latest first
  std::vector<SimLane*> dirty_;
  std::deque<std::function<void()>> deferred_;
  std::uint64_t effects_ = 0;
  std::uint64_t crash_at_ = ~0ull;
  std::uint64_t pause_at_ = ~0ull;
  InFlight posted_ = InFlight::lands;
  std::uint64_t told_ = 0;  // hash of all that it learned since the run is steered
};

// A memory node's side. It drives a Host that knows nothing of simulation.
class SimResponder final : public Responder, private Hand::Watch {
 public:
  ~SimResponder() override;
  // Before any client speaks to it, and again after it was stopped or has died.
  void serve(Host& host) { host_ = &host; }
  // The memory node's process is killed: every lane's verbs stop at whatever word they are at, and end `maybe`. Nobody
  // answers here, and nothing happens that the host has asked for, until a host is served again.
  void stop();
  const std::string& endpoint() const { return endpoint_; }

  Caps caps() const override;
  void fence(std::uint64_t session_id, std::function<void()> done) override;
  void after(Nanos delay, std::function<void()> what) override;
  Nanos now() const override;
  std::uint64_t random() override { return random_.next(); }

  // A NIC with so much memory of its own, which a process that is killed takes along.
  void set_device_bytes(std::uint64_t bytes) { device_bytes_ = bytes; }
  base::Status place_in_device(base::Bytes region) override;
  // What lies there; empty if nothing was placed.
  base::Bytes device_words() const { return std::as_bytes(std::span(device_)); }

  // While held, control CALLs are not answered.
  void hold_calls(bool held);

  // Words that services have written.
  std::uint64_t service_effects() const { return effects_; }
  // The process is killed as by stop() as soon as its services have written so many words more; with 0, when they are
  // about to write the next one.
  void die_after(std::uint64_t effects) { die_at_ = effects_ + effects; }
  bool alive() const { return host_ != nullptr; }

 private:
  friend class Network;
  friend class SimPort;
  SimResponder(Network& network, std::size_t index, std::string endpoint, std::uint64_t seed, Clock clock)
      : network_(network), index_(index), endpoint_(std::move(endpoint)), random_(seed), clock_(clock) {}
  // Ends the lane of a link, and lets its client know a while later.
  void cut(const Ref<Link>& link);

  // CALLs that services hold.
  class HeldDesk;
  class ServedCall;
  struct Held {
    Ref<Flight> flight;
    std::size_t verb = 0;
    Service* service = nullptr;
  };
  struct Drain {
    std::uint64_t session_id = 0;
    std::function<void()> then;
  };
  void close_desk();
  bool may_write() noexcept override;
  void die_if_due();
  void settled(std::uint64_t number, const std::optional<std::vector<std::byte>>& reply);
  bool holds(std::uint64_t session_id) const;
  // Calls `then` once no CALL of the session is held.
  void drain(std::uint64_t session_id, std::function<void()> then);
  // Occupies the service thread that is free first, for the time given. When that is over.
  Nanos occupy_thread(std::size_t threads, Nanos now, Nanos time);

  Network& network_;
  std::size_t index_;
  std::string endpoint_;
  base::Random random_;
  Clock clock_;
  Host* host_ = nullptr;
  std::uint64_t life_ = 0;  // how many hosts have been stopped
  std::uint64_t told_ = 0;  // hash of the CALLs that it executed since the run is steered
  bool held_ = false;
  std::uint64_t effects_ = 0;
  std::uint64_t die_at_ = ~0ull;
  std::shared_ptr<HeldDesk> desk_;  // of this life
  std::uint64_t last_held_ = 0;
  std::map<std::uint64_t, Held> holding_;
  std::vector<Drain> drains_;
  std::vector<Nanos> threads_;  // when each is free
  std::uint64_t device_bytes_ = 0;
  const std::byte* placed_ = nullptr;  // the region that lies in the device
  std::vector<std::uint64_t> device_;
};

// A verb that a memory node may execute now, in a run that is steered (Network::steer).
struct Waiting {
  std::size_t client = 0;
  std::size_t node = 0;
  std::uint64_t lane = 0, chain = 0;  // as counted: the same in every run that was steered the same way
  std::size_t verb = 0;               // of the chain
  Op op;
  // The words that have yet to execute; one for an atomic or a CALL. A part of them may execute before the rest.
  std::uint64_t first = 0, last = 0;
  bool torn = false;   // a part has executed
  bool ends = false;   // the chain's answer follows it
  Ref<Flight> flight;  // the network's
  // Not a verb: the memory node is about to fence the client's session. What of it has not executed by then never does.
  std::function<void()> fence;
};

// Keeps something for ever, reachable and never destroyed: what a crashed client owned.
void bury(std::shared_ptr<void> what);

class Network {
 public:
  explicit Network(Options options);
  Network(const Network&) = delete;
  // Live clients have ended their lanes and destroyed what they took from their ports.
  ~Network();

  SimResponder& add_node(std::string endpoint);
  SimPort& add_client(Peer peer);
  SimPort& client(std::size_t index) { return *clients_[index]; }

  Nanos now() const { return now_; }
  Options& options() { return options_; }  // faults may be turned on and off during a run
  Trace& trace() { return trace_; }
  base::Random& random() { return random_; }

  // Runs the next event. False: there is none.
  bool step();
  // Steps until `done` holds. False: virtual time passed `limit`, or nothing is left to happen, or kMostSteps were not
  // enough.
  bool run_until(const std::function<bool()>& done, Nanos limit);
  // Steps until every verb that the client posted has executed or been dropped.
  bool drain(SimPort& client, Nanos limit);
  // An event outside clients and nodes: a fault, an observer.
  template <class What>
  void at(Nanos when, What&& what) {
    events_.push(std::max(when, now_), std::forward<What>(what));
  }

  // --- Steering. Somebody decides what happens next where the contract leaves it open, instead of chance: nothing
  // takes time but timers, verbs execute when told, and completions are delivered at once. Nothing may be in flight.
  void steer();
  // From here on chance decides again. Nothing waits.
  void let_go();
  // Runs all that follows by itself: deliveries, turns, timers that are due.
  void settle();
  // What may execute now, in the order in which it became possible. Valid until the next change.
  const std::vector<Waiting>& waiting() const { return waiting_; }
  // Executes words of one of them, from either end, and settles. `lose`: the chain's answer never comes.
  void execute(std::size_t which, std::uint64_t first, std::uint64_t last, bool lose = false);
  // Says whether a word that a waiting WRITE is to write differs from what is there.
  bool differs(std::size_t which, std::uint64_t word) const;
  // Lets time pass until then, or until the next event. False: there is none.
  bool pass_until(Nanos when);
  bool pass();
  // When the client's next timer fires.
  Nanos next_timer(std::size_t client) const;
  // Orders moments of a run: the time, or in a steered run, where little takes time, a count of what has happened.
  Nanos moment() const { return steered_ ? moment_ : now_; }
  // Hashes all that decides how a steered run goes on, as far as the network knows it: memory as verbs have changed it,
  // verbs under way, what each client and each memory node was told, the time.
  std::uint64_t fingerprint() const;

 private:
  friend class SimPort;
  friend class SimLane;
  friend class SimResponder;
  Nanos message_delay();
  Nanos execution_delay();
  Clock draw_clock(std::uint64_t machine) const;
  SimResponder* node(const std::string& endpoint);

  void arrive(const Ref<Flight>& flight);
  void advance(const Ref<Link>& link);
  void execute_whole(const Ref<Link>& link);
  void start_ready(const Ref<Link>& link);
  void begin_in_time(const Ref<Link>& link);
  void start(const Ref<Flight>& flight, std::size_t verb);
  void execute_words(const Ref<Flight>& flight, std::size_t verb, std::uint64_t begin, std::uint64_t end);
  void execute_atomic(const Ref<Flight>& flight, std::size_t verb);
  void execute_call(const Ref<Flight>& flight, std::size_t verb);
  void begin_service_call(const Ref<Flight>& flight, std::size_t verb);
  void execute_service_call(const Ref<Flight>& flight, std::size_t verb);
  void call_done(const Ref<Flight>& flight, std::size_t verb, std::vector<std::byte> reply);
  void call_refused(const Ref<Flight>& flight, std::size_t verb, Refusal why);
  void executed(const Ref<Flight>& flight, std::size_t verb);
  void reply(const Ref<Flight>& flight);
  void leave(const Ref<Flight>& flight, Picos leaves);
  void come(const Ref<Flight>& flight, Nanos when);
  void refuse(const Ref<Flight>& flight);
  void close(Link& link);
  void cut_tail(SimLane& lane);
  bool fence_waits(SimResponder& node, std::uint64_t session_id, const std::function<void()>& done);
  void changed(const Link& link, Remote at, std::uint64_t before, std::uint64_t after);
  bool is_overwritten(const Link& link, const std::byte* first, std::uint64_t words);

  Options options_;
  base::Random random_;
  Trace trace_;
  Nanos now_ = base::kMillisecond;
  FlightPool flights_;  // outlives all that holds one
  EventQueue events_;
  std::vector<std::unique_ptr<SimResponder>> nodes_;
  std::vector<std::unique_ptr<SimPort>> clients_;
  std::vector<Ref<Link>> links_;
  std::uint64_t lanes_opened_ = 0;
  std::unique_ptr<TimeModel> times_;  // none: delays by chance
  std::size_t unrung_ = 0;            // lanes with postings for which no doorbell has been rung

  // Words that atomics have just changed: what other lanes WRITE there until then is lost.
  struct Changing {
    const Link* lane = nullptr;
    const std::byte* word = nullptr;
    Nanos until = 0;
  };
  std::deque<Changing> changing_;  // by `until`

  bool steered_ = false;
  bool lose_next_ = false;
  Nanos moment_ = 0;
  std::vector<Waiting> waiting_;
  std::uint64_t memory_ = 0;  // hash of what verbs have changed since it is steered
};

}  // namespace farpool::fabric::sim
