// SPDX-License-Identifier: Apache-2.0
#include "session/session.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "layout/calls.h"
#include "layout/regions.h"
#include "session/handshake.h"
#include "session/leases.h"
#include "session/wait.h"

namespace farpool::session {

using base::Code;
using base::Result;
using base::Status;
using fabric::Fate;
using fabric::Op;
using fabric::Outcome;
using layout::OperationSlot;

namespace {

// co_await Soon(port): goes on when everything that is running has suspended, and before the port's turn ends.
class Soon final : public fabric::Timer {
 public:
  explicit Soon(fabric::Port& port) : port_(port) {}
  Soon(const Soon&) = delete;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) noexcept {
    handle_ = handle;
    port_.fire_soon(*this);
  }
  void await_resume() const noexcept {}
  void fire() noexcept override { handle_.resume(); }

 private:
  fabric::Port& port_;
  std::coroutine_handle<> handle_;
};

}  // namespace

struct Session::State {
  State(fabric::Port& port, Options options, Grant grant, std::unique_ptr<fabric::Lane> lane, Nanos asked)
      : port(port),
        options(std::move(options)),
        grant(std::move(grant)),
        lane(std::move(lane)),
        era(this->grant.era),
        safe_era(0),
        epoch(this->options.epoch),
        published(this->grant.era),
        last_sent(asked),
        slots(port.buffer(this->grant.slots * sizeof(OperationSlot))),
        nothing(port.buffer(8)),
        claimed(this->grant.slots, false),
        to_clear(this->grant.slots, Clear::none),
        slot_free(port),
        tick_due(port),
        tick_done(port) {
    lease_from(asked);
    base::store(nothing.data(), std::uint64_t{0});
    for (std::uint32_t i = this->grant.slots; i > 0; --i) free_slots.push_back(i - 1);
    clears.reserve(this->grant.slots);
  }

  // The node counts the lease from the tick's arrival; the client counts from its sending, which is earlier by any
  // clock. The margin covers clocks that run at different speeds.
  void lease_from(Nanos sent) { lease_end = sent + grant.lease - grant.lease / 8; }

  bool alive() const { return !ended && lane->open() && port.now() < lease_end; }
  Status why() const;
  void end(Status status);

  std::uint64_t oldest_pin() const;
  void drop_pin(std::uint64_t at);

  OperationSlot& slot(std::uint32_t index) {
    return *reinterpret_cast<OperationSlot*>(slots.data() + index * sizeof(OperationSlot));
  }
  fabric::Remote slot_at(std::uint32_t index, layout::SlotPart part) const {
    return {layout::kSlots, grant.slots_offset + index * sizeof(OperationSlot) + part.offset};
  }
  Op write_of(std::uint32_t index, layout::SlotPart part) {
    return Op::write(slot_at(index, part), base::mutable_bytes_of(slot(index)).subspan(part.offset, part.bytes));
  }
  Op write_nothing(std::uint32_t index) const {
    return Op::write(slot_at(index, layout::kSlotHolder), nothing.first(8));
  }
  void clear_slot(std::uint32_t index, fabric::Cost* cost);
  task::Task<void> clear_slots();
  task::Task<Status> read_slots(Nanos deadline);

  task::Task<void> keep_ticking();
  task::Task<void> tick();

  fabric::Port& port;
  Options options;
  Grant grant;
  std::unique_ptr<fabric::Lane> lane;
  bool ended = false;
  bool leaving = false;  // and waits for background work
  bool closing = false;
  Status ended_why;
  Nanos lease_end = 0;

  std::uint64_t era;
  std::uint64_t safe_era;
  std::uint64_t epoch;
  // Pins by era. The node's era is at most one above what this session published, so live pins lie in two eras.
  std::array<std::uint32_t, 4> pins{};
  std::uint64_t published;

  Nanos last_sent;
  bool tick_wanted = false;
  Nanos hurry_until = 0;  // until then this session waits for an era
  bool node_hurries = false;
  bool ticking = false;
  std::uint64_t ticks = 0;
  layout::Pressure pressure = layout::Pressure::none;
  layout::Stretch cleared;
  std::uint64_t places = 0;
  std::uint64_t dead = 0;
  std::uint64_t dead_segments = 0;
  std::uint64_t deaths = 0;

  std::uint64_t forgets = 0;
  bool reclaims = false;
  bool forget_wanted = false;       // the next tick asks to forget
  bool forget_asked = false;        // the present tick asks
  std::uint64_t forgets_asked = 0;  // ticks of this session that asked and were answered
  std::uint64_t forgets_era = 0;    // of the node, at the latest of these ticks

  fabric::Buffer slots;
  std::vector<std::uint32_t> free_slots;
  std::size_t promised_slots = 0;  // free slots that woken waiters have not taken yet: newcomers leave them
  fabric::Buffer nothing;          // a zero
  std::vector<bool> claimed;       // written since the last clear
  // Operations do not wait for these: a slot is cleared before the turn ends, unless another operation claims it first
  // and so writes over all of it.
  enum class Clear : std::uint8_t { none, uncharged, charged };
  std::vector<Clear> to_clear;        // by slot
  std::vector<std::uint32_t> clears;  // the slots that clear_slots looks at; operations may have claimed some meanwhile
  bool clearing = false;              // clear_slots is about to look at them
  WaitQueue slot_free;
  WaitQueue tick_due;
  WaitQueue tick_done;

  task::Scope background;
  task::Scope ticker;
};

Status Session::State::why() const {
  if (ended) return ended_why;
  if (!lane->open())
    return {Code::unavailable, "the lane to memory node " + options.endpoint + " was cut: begin a new session"};
  if (port.now() >= lease_end) {
    return {Code::unavailable, "the lease at memory node " + options.endpoint +
                                   " may have run out before a tick was answered: begin a new session"};
  }
  return {};
}

void Session::State::end(Status status) {
  if (ended) return;
  ended = true;
  ended_why = std::move(status);
  lane->sever();
  slot_free.wake_all();
  tick_due.wake_all();
  tick_done.wake_all();
}

std::uint64_t Session::State::oldest_pin() const {
  for (std::uint64_t at = published; at < era; ++at) {
    if (pins[at % pins.size()] > 0) return at;
  }
  return era;
}

void Session::State::drop_pin(std::uint64_t at) {
  FARPOOL_CHECK(pins[at % pins.size()] > 0);
  --pins[at % pins.size()];
}

void Session::State::clear_slot(std::uint32_t index, fabric::Cost* cost) {
  slot(index).holder = 0;
  claimed[index] = false;
  if (!alive()) return;
  if (cost != nullptr) cost->charge_background(std::array{write_nothing(index)});
  to_clear[index] = cost == nullptr ? Clear::uncharged : Clear::charged;
  clears.push_back(index);
  if (!std::exchange(clearing, true)) background.spawn(clear_slots());
}

// Clears what operations of one turn have left behind, in one chain. An operation that takes such a slot in the same
// turn saves its message.
task::Task<void> Session::State::clear_slots() {
  co_await Soon(port);
  std::array<Op, fabric::kMaxChain> ops;
  const std::size_t most = std::min<std::size_t>(ops.size(), port.caps().max_chain);
  std::size_t count = 0;
  for (; count < most && !clears.empty(); clears.pop_back()) {
    const std::uint32_t index = clears.back();
    if (std::exchange(to_clear[index], Clear::none) != Clear::none) ops[count++] = write_nothing(index);
  }
  clearing = !clears.empty();
  if (clearing) background.spawn(clear_slots());
  if (count == 0 || !alive()) co_return;
  const Outcome outcome = co_await lane->post(std::span(ops).first(count), port.now() + grant.failure_timeout);
  if (outcome.fate != Fate::done) {
    end({Code::unavailable, "memory node " + options.endpoint + " did not confirm cleared operation slots"});
  }
}

task::Task<Status> Session::State::read_slots(Nanos deadline) {
  const std::array ops{Op::read(slot_at(0, {}), slots.first(grant.slots * sizeof(OperationSlot)))};
  const Outcome outcome = co_await lane->post(ops, deadline);
  if (outcome.fate != Fate::done) {
    co_return Status(Code::unavailable,
                     "memory node " + options.endpoint + " did not let the session read its operation slots");
  }
  for (std::uint32_t i = 0; i < grant.slots; ++i) {
    if (slot(i).holder != 0) {
      co_return Status(Code::corrupt, "memory node " + options.endpoint + " granted operation slot " +
                                          std::to_string(grant.slots_offset / sizeof(OperationSlot) + i) +
                                          " although it is not idle");
    }
  }
  co_return Status();
}

task::Task<void> Session::State::keep_ticking() {
  while (!closing && alive()) {
    // Ticks on request are spaced, too: eras advance when all sessions tick, not when one ticks often. A session soon
    // reports that it runs no operation of the era before: other sessions wait for that.
    const Nanos now = port.now(), soon = grant.tick / 256;
    const bool often = tick_wanted || node_hurries || now < hurry_until;
    const bool tells = often && oldest_pin() > published;
    const Nanos space = tells                                ? soon
                        : often                              ? grant.tick / 16
                        : pressure != layout::Pressure::none ? grant.tick / 4
                                                             : grant.tick;
    const Nanos due = last_sent + space;
    if (now < due) {
      (void)co_await tick_due.wait(often && era > published ? std::min(due, now + soon) : due);
      continue;
    }
    co_await tick();
  }
  if (!closing) end(why());
  tick_done.wake_all();
}

task::Task<void> Session::State::tick() {
  fabric::Buffer request = port.buffer(sizeof(layout::TickRequest));
  fabric::Buffer reply = port.buffer(sizeof(layout::TickReply));
  const Nanos sent = port.now();
  last_sent = sent;
  tick_wanted = false;
  ticking = true;
  published = oldest_pin();
  forget_asked = std::exchange(forget_wanted, false);
  base::store(request.data(),
              layout::TickRequest{.era = published,
                                  .hurry = sent < hurry_until ? 1u : 0u,
                                  .forget = forget_asked ? 1u : 0u,
                                  .clock = options.clock != nullptr ? options.clock->to_tell(sent) : 0});
  const std::array ops{
      Op::call(layout::kTick, request.first(sizeof(layout::TickRequest)), reply.first(sizeof(layout::TickReply)))};
  const Outcome outcome = co_await lane->post(ops, lease_end);
  ticking = false;
  ++ticks;
  if (outcome.fate != Fate::done) {
    end({Code::unavailable, outcome.fate == Fate::refused
                                ? "memory node " + options.endpoint + " has ended this session: begin a new one"
                                : "memory node " + options.endpoint + " did not answer a tick within the lease"});
    co_return;
  }
  const auto told = base::load<layout::TickReply>(reply.data());
  if (outcome.reply_bytes != sizeof told || told.era < era || told.era > published + 1 || told.safe_era > told.era ||
      told.safe_era < safe_era) {
    end({Code::corrupt, "memory node " + options.endpoint + " answered a tick with eras that cannot be"});
    co_return;
  }
  lease_from(sent);
  era = told.era;
  safe_era = told.safe_era;
  pressure = std::min(static_cast<layout::Pressure>(told.pressure), layout::Pressure::dry);
  dead_segments = told.dead_segments;
  deaths = told.deaths;
  node_hurries = told.hurry != 0;
  cleared = layout::Hurry::cleared(told.hurry);
  epoch = told.epoch;
  places = told.places;
  dead = told.dead;
  forgets = told.forgets;
  reclaims = told.reclaims != 0;
  if (options.clock != nullptr) options.clock->learn(grant.node_incarnation, told.clock, port.now(), grant.lease);
  if (std::exchange(forget_asked, false)) {
    ++forgets_asked;
    forgets_era = told.era;
  }
  tick_done.wake_all();
}

Slot::Slot(Slot&& other) noexcept : session_(std::exchange(other.session_, nullptr)), index_(other.index_) {}

Slot::~Slot() {
  if (session_ == nullptr) return;
  Session::State& state = *session_->state_;
  if (state.claimed[index_]) state.clear_slot(index_, nullptr);
  state.free_slots.push_back(index_);
  if (state.slot_free.empty()) return;
  ++state.promised_slots;
  state.slot_free.wake_one();
}

OperationSlot& Slot::words() { return session_->state_->slot(index_); }

Op Slot::claim(std::uint64_t word, fabric::Cost& cost) {
  Session::State& state = *session_->state_;
  OperationSlot& said = words();
  said.holder = state.grant.client_incarnation;
  said.sequence = layout::Sequence::of(said.number() + 1, word);
  said.seal_claim();
  state.claimed[index_] = true;
  if (std::exchange(state.to_clear[index_], Session::State::Clear::none) == Session::State::Clear::charged) {
    cost.take_back(std::array{state.write_nothing(index_)});
  }
  return state.write_of(index_, layout::kSlotClaim);
}

Op Slot::plan() {
  words().seal_plan();
  return session_->state_->write_of(index_, layout::kSlotPlan);
}

Op Slot::settle() {
  words().settle();
  return session_->state_->write_of(index_, layout::kSlotCounters);
}

void Slot::clear(fabric::Cost& cost) {
  if (session_->state_->claimed[index_]) session_->state_->clear_slot(index_, &cost);
}

EraPin::EraPin(EraPin&& other) noexcept : session_(std::exchange(other.session_, nullptr)), era_(other.era_) {}

EraPin::~EraPin() {
  if (session_ != nullptr) session_->state_->drop_pin(era_);
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)), leases_(std::make_unique<Leases>(*this)) {}

Leases& Session::leases() { return *leases_; }

Session::~Session() {
  FARPOOL_CHECK(state_->background.running() == 0 && state_->ticker.running() == 0 && state_->lane->pending() == 0);
}

task::Task<Result<std::unique_ptr<Session>>> Session::open(fabric::Port& port, Options options) {
  while (options.client_incarnation == 0) options.client_incarnation = port.random();
  v1alpha1::SessionRequest request = begin_request(options.pool_uid);
  request.mutable_open()->set_client_incarnation(options.client_incarnation);
  request.mutable_open()->set_epoch(options.epoch);
  request.mutable_open()->set_node_incarnation(options.node_incarnation);
  request.mutable_open()->set_lanes(1);
  request.mutable_open()->set_client_name(options.client_name);
  request.mutable_open()->set_client_process(options.client_process);
  if (options.previous_incarnation != 0) {
    request.mutable_open()->set_previous_incarnation(options.previous_incarnation);
    request.mutable_open()->set_previous_token(std::string(base::text_of(options.previous_token)));
  }

  const Nanos asked = port.now();
  Result<std::string> bytes =
      co_await port.exchange(options.endpoint, request.SerializeAsString(), options.deadline, options.node_name);
  if (!bytes.ok()) co_return bytes.status();
  Result<v1alpha1::SessionReply> reply = parse_reply(*bytes);
  if (!reply.ok()) co_return reply.status();
  if (Status refused = status_of(*reply, options.endpoint); !refused.ok()) co_return refused;
  Result<Grant> grant = parse_grant(*reply, options.endpoint, options.client_incarnation, options.node_incarnation);
  if (!grant.ok()) co_return grant.status();
  grant->lane.node_name = options.node_name;
  if (const Nanos retries = port.caps().retry_time; grant->failure_timeout < retries) {
    co_return Status(Code::invalid_argument,
                     options.endpoint + " takes clients for dead that stand still for " +
                         std::to_string(grant->failure_timeout / base::kMillisecond) +
                         " ms, but the wire takes up to " + std::to_string(retries / base::kMillisecond) +
                         " ms to send again what it lost: give the memory node a --failure-timeout of at least that");
  }

  // A session whose lane does not open is left to its lease: it holds nothing. Chains on the lane always get the pool's
  // failure timeout, because the wire may send lost packets again for so long.
  const Nanos deadline = std::max(options.deadline, port.now() + grant->failure_timeout);
  Result<std::unique_ptr<fabric::Lane>> lane = co_await port.open_lane(grant->lane, deadline);
  if (!lane.ok()) co_return lane.status();

  std::unique_ptr<Session> session(
      new Session(std::make_unique<State>(port, std::move(options), std::move(*grant), std::move(*lane), asked)));
  State& state = *session->state_;
  Status ready = co_await state.read_slots(deadline);
  if (ready.ok() && state.options.clock != nullptr) co_await state.tick();
  if (ready.ok() && !state.alive()) ready = state.why();
  if (!ready.ok()) {
    state.end(ready);
    co_await session->close(deadline);
    co_return ready;
  }
  state.ticker.spawn(state.keep_ticking());
  co_return session;
}

fabric::Port& Session::port() { return state_->port; }
fabric::Lane& Session::lane() { return *state_->lane; }
const Grant& Session::grant() const { return state_->grant; }
bool Session::alive() const { return state_->alive(); }
bool Session::leaving() const { return state_->leaving; }
Status Session::why() const { return state_->why(); }
void Session::end(Status why) { state_->end(std::move(why)); }
std::uint64_t Session::era() const { return state_->era; }
std::uint64_t Session::safe_era() const { return state_->safe_era; }
layout::Pressure Session::pressure() const { return state_->pressure; }
layout::Stretch Session::cleared() const { return state_->cleared; }
std::uint64_t Session::dead_segments() const { return state_->dead_segments; }
bool Session::reclaims() const { return state_->reclaims; }
std::uint64_t Session::deaths() const { return state_->deaths; }
std::uint64_t Session::epoch() const { return state_->epoch; }
std::uint64_t Session::forgets() const { return state_->forgets; }
std::uint64_t Session::places() const { return state_->places; }
std::uint64_t Session::dead() const { return state_->dead; }
std::uint64_t Session::region_bytes(std::uint32_t region) const {
  for (const auto& granted : state_->grant.lane.regions) {
    if (granted.id == region) return granted.bytes;
  }
  return 0;
}
bool Session::only_reads(std::uint32_t region) const { return (state_->grant.read_only >> region & 1) != 0; }
task::Scope& Session::background() { return state_->background; }

bool Session::Trip::await_ready() {
  State& state = *session_.state_;
  if (!state.alive()) {
    posting_.outcome.fate = fabric::Fate::refused;
    return true;
  }
  cost_.charge(posting_.ops);
  posting_.deadline = std::max(posting_.deadline, state.port.now() + state.grant.failure_timeout);
  return false;
}

Outcome Session::Trip::await_resume() {
  const Outcome outcome = posting_.await_resume();
  State& state = *session_.state_;
  // It never left, because the session had ended.
  if (!posting_.waiter) return outcome;
  if (outcome.fate == Fate::refused) {
    state.end({Code::stale,
               "memory node " + state.options.endpoint + " refused a verb: the session was cut, begin a new one"});
  } else if (outcome.fate == Fate::maybe) {
    state.end({Code::unavailable, "memory node " + state.options.endpoint +
                                      " did not confirm a chain: its effects are unknown, begin a new session"});
  }
  return outcome;
}

task::Task<Result<Slot>> Session::take_slot(Nanos deadline) {
  State& state = *state_;
  for (bool promised = false;;) {
    if (!state.alive()) co_return state.why();
    if (state.closing)
      co_return Status(Code::unavailable, "the session at memory node " + state.options.endpoint + " is closing");
    if (promised) --state.promised_slots;
    if (promised || state.free_slots.size() > state.promised_slots) break;
    if (state.port.now() >= deadline) {
      co_return Status(Code::timed_out, "all " + std::to_string(state.grant.slots) +
                                            " operation slots at memory node " + state.options.endpoint +
                                            " were in use until the deadline");
    }
    promised = co_await state.slot_free.wait(deadline);
  }
  const std::uint32_t index = state.free_slots.back();
  state.free_slots.pop_back();
  co_return Slot(this, index);
}

EraPin Session::pin() {
  State& state = *state_;
  ++state.pins[state.era % state.pins.size()];
  return EraPin(this, state.era);
}

void Session::hurry_eras() {
  State& state = *state_;
  const bool begun = state.port.now() >= state.hurry_until;
  state.hurry_until = state.port.now() + state.grant.tick;
  if (begun) state.tick_due.wake_all();
}

task::Task<void> Session::tick_now(Nanos deadline) {
  State& state = *state_;
  hurry_eras();
  // The tick under way may have been answered before the caller's reason arose.
  const std::uint64_t wanted = state.ticks + (state.ticking ? 2 : 1);
  while (state.alive() && !state.closing && state.ticks < wanted && state.port.now() < deadline) {
    state.tick_wanted = true;
    state.tick_due.wake_all();
    (void)co_await state.tick_done.wait(deadline);
  }
}

task::Task<Result<std::uint64_t>> Session::ask_to_forget(Nanos deadline) {
  State& state = *state_;
  // What the present tick asks may have been answered before the caller's reason arose.
  const std::uint64_t wanted = state.forgets_asked + (state.forget_asked ? 2 : 1);
  while (state.forgets_asked < wanted) {
    if (!state.alive()) co_return state.why();
    if (state.leaving || state.port.now() >= deadline) {
      co_return Status(Code::timed_out,
                       "memory node " + state.options.endpoint + " was not asked in time to have marks forgotten");
    }
    state.forget_wanted = true;
    (void)co_await state.tick_done.wait(deadline);
  }
  co_return state.forgets_era;
}

task::Task<void> Session::close(Nanos deadline) {
  State& state = *state_;
  state.leaving = true;
  co_await state.background.join();
  state.closing = true;
  state.tick_due.wake_all();
  state.slot_free.wake_all();
  co_await state.ticker.join();
  // Without a goodbye the lease runs out and the node fences the session: that is slower, and just as safe.
  v1alpha1::SessionRequest request = begin_request(state.options.pool_uid);
  request.mutable_close()->set_session_id(state.grant.session_id);
  request.mutable_close()->set_client_incarnation(state.grant.client_incarnation);
  request.mutable_close()->set_token(std::string(base::text_of(state.grant.lane.token)));
  if (state.alive()) {
    (void)co_await state.port.exchange(state.options.endpoint, request.SerializeAsString(), deadline,
                                       state.options.node_name);
  }
  state.end({Code::unavailable, "the session at memory node " + state.options.endpoint + " was closed"});
  co_await state.background.join();
  while (state.lane->pending() > 0) co_await state.port.sleep_for(100 * base::kMicrosecond);
}

task::Task<Outcome> read_long(Session& session, std::uint32_t region, std::uint64_t offset, base::MutableBytes into,
                              Nanos deadline, fabric::Cost& cost) {
  constexpr std::uint64_t kPiece = 256 * 1024;
  static_assert(fabric::kMaxChainBytes / kPiece <= fabric::kMaxChain);
  Outcome outcome{.fate = Fate::done};
  for (std::uint64_t at = 0; at < into.size() && outcome.fate == Fate::done;) {
    std::array<Op, fabric::kMaxChainBytes / kPiece> chain;
    std::size_t count = 0;
    for (; count < chain.size() && at < into.size(); ++count) {
      const std::uint64_t bytes = std::min(kPiece, into.size() - at);
      chain[count] = Op::read({region, offset + at}, into.subspan(at, bytes));
      at += bytes;
    }
    outcome = co_await session.post({chain.data(), count}, deadline, cost);
  }
  co_return outcome;
}

}  // namespace farpool::session
