// SPDX-License-Identifier: Apache-2.0
#include "fabric/session_port/server.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <list>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fabric/session_port/greeting.h"
#include "net/listener.h"
#include "net/proof.h"

namespace farpool::fabric::session_port {
namespace {

// What the control thread knows of a lane; shared with the executor that runs it.
struct LaneRecord {
  std::uint64_t session_id = 0;
  std::uint64_t attached = 0;  // as an AttachedWire knows it; 0: the lane is its connection
  bool cut = false;            // control thread only: fenced, or gone
};

// Written by one executor, read by any thread.
struct Counters {
  using Counter = std::atomic<std::uint64_t>;
  Counter lanes{0}, ring_lanes{0}, refusals{0}, malformed{0};
};
void add(Counters::Counter& counter, std::uint64_t amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace

class Connection;

// One thread and its connections. Handlers that wait in the loop may hold connections, so the loop is destroyed before
// what they use.
struct Executor {
  explicit Executor(std::size_t index) : index(index) {}
  Executor(const Executor&) = delete;

  const std::size_t index;
  Counters counters;
  std::uint64_t last_connection = 0;
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections;
  std::unordered_map<std::uint64_t, std::unordered_set<Connection*>> lanes;  // that may execute, by session
  net::Loop loop;
  std::thread thread;

  Connection* find(std::uint64_t connection) {
    const auto found = connections.find(connection);
    return found == connections.end() ? nullptr : found->second.get();
  }
};

struct Server::State : std::enable_shared_from_this<State> {
  State(net::Loop& control, Options options) : control(control), options(std::move(options)) {}

  net::Loop& control;
  const Options options;
  Host* host = nullptr;            // control thread only; none once the server is gone
  StreamWire* streams = nullptr;   // one of the two, once it serves
  AttachedWire* others = nullptr;  // control thread only
  std::vector<std::unique_ptr<Executor>> executors;
  std::unique_ptr<net::Listener> listener;
  std::unique_ptr<net::Listener> rings;
  std::string address;
  std::size_t next_executor = 0;
  std::atomic<std::uint64_t> exchanges{0}, fences{0};

  // Control thread only.
  std::uint64_t last_attached = 0;
  std::unordered_map<std::uint64_t, std::vector<std::shared_ptr<LaneRecord>>> sessions;
  std::list<std::unique_ptr<net::Alarm>> alarms;

  base::Status serve(Host& host, StreamWire* streams, AttachedWire* others);
  base::Result<std::unique_ptr<net::Listener>> listen(const std::string& address, bool rings);
  void came(Executor& executor, std::unique_ptr<net::Stream> stream, bool rings);
  // Names a connection of an executor on the control thread; the connection may be gone when the answer comes.
  struct From {
    Executor& executor;
    std::uint64_t connection;
  };
  void asked(From from, const Peer& peer, std::string request);
  void token_named(From from, const net::Proof& name, const net::Nonce& theirs);
  void lane_wanted(From from, const Token& token, bool attach, const std::string& request);
  void lane_made(From from, std::shared_ptr<LaneRecord> record, LaneRights rights, std::string said);
  struct HostCall {
    std::shared_ptr<LaneRecord> record;
    std::uint64_t call;
    std::uint32_t opcode;
    std::size_t room;
    std::string request;
  };
  void called(From from, const HostCall& call);
  void lane_gone(const std::shared_ptr<LaneRecord>& record);
};

// One connection, from greeting to end, on its executor's thread.
class Connection final : public LaneConnection, private net::StreamHandler {
 public:
  Connection(Server::State& node, Executor& executor, std::uint64_t id, std::unique_ptr<net::Stream> stream, bool rings)
      : LaneConnection(executor.index, std::move(stream)),
        node_(node),
        home_(executor),
        id_(id),
        rings_(rings),
        alarm_(executor.loop, [this] { die(); }) {
    alarm_.set(net::Loop::now() + node_.options.handshake_deadline);
    stream_->need(kEnvelopeBytes);
    stream_->start(*this);
  }
  ~Connection() {
    if (record_) count_lane(~0ull);
  }

  // Takes an answer from the control thread, by way of the executor's loop.
  void answer(base::Bytes body) {
    welcome(Welcome::accepted, body);
    phase_ = Phase::ended;
    stream_->finish();
  }
  // Begins a lane. A lane with a connection of its own sends everything there: this one is silent until it ends.
  void begin_lane(std::shared_ptr<LaneRecord> record, LaneRights rights, base::Bytes said) {
    record_ = std::move(record);
    home_.lanes[record_->session_id].insert(this);
    executes_ = true;
    count_lane(1);
    alarm_.cancel();
    welcome(Welcome::accepted, said);
    phase_ = Phase::lane;
    if (record_->attached != 0) {
      stream_->need(1);
      stream_->resume_reading();
    } else {
      lane_ = node_.streams->begin(*this, std::move(rights));
    }
  }
  // Proves that this is the memory node that gave the token, and waits for the client's own proof.
  void challenge(const Token& token, const net::Nonce& theirs) {
    const net::Nonce ours = net::draw_nonce();
    std::string body(base::text_of(net::prove(token, kProofOfNode, theirs, ours)));
    body += base::text_of(ours);
    token_ = token;
    proof_ = net::prove(token, kProofOfClient, theirs, ours);
    welcome(Welcome::accepted, base::bytes_of(body));
    phase_ = Phase::proving;
    stream_->need(kEnvelopeBytes);
    stream_->resume_reading();
  }
  void refuse_lane(base::Bytes why) {
    welcome(Welcome::refused, why);
    end_refused();
  }
  void replied(std::uint64_t call, const std::optional<std::string>& reply) { lane_->on_reply(call, reply); }
  void call(std::uint64_t number, std::uint32_t opcode, std::string request, std::size_t room) {
    node_.control.post(
        [state = node_.shared_from_this(), from = Server::State::From{home_, id_},
         call = Server::State::HostCall{
             .record = record_, .call = number, .opcode = opcode, .room = room, .request = std::move(request)}] {
          state->called(from, call);
        });
  }
  void end_refused() {
    add(home_.counters.refusals, 1);
    retire();
    stream_->finish();
  }
  void end_malformed() {
    add(home_.counters.malformed, 1);
    die();
  }
  // From here on nothing of this connection executes.
  void die() {
    if (std::exchange(dead_, true)) return;
    retire();
    stream_->close({});
    if (record_) {
      node_.control.post([state = node_.shared_from_this(), record = record_] { state->lane_gone(record); });
    }
    // Destroyed at a later turn: the caller of this still uses it.
    const auto self = home_.connections.find(id_);
    auto dead = std::make_shared<std::unique_ptr<Connection>>(std::move(self->second));
    home_.connections.erase(self);
    home_.loop.post([dead] { dead->reset(); });
  }

 private:
  enum class Phase { greeting, waiting, proving, lane, ended };

  // Serves the stream until a lane has taken it over.
  void on_input() noexcept override {
    if (phase_ == Phase::greeting || phase_ == Phase::proving) return greet();
    end_malformed();  // nothing may come here
  }
  void on_closed(const base::Status&) noexcept override { die(); }

  void retire() {
    if (std::exchange(executes_, false)) {
      const auto lanes = home_.lanes.find(record_->session_id);
      lanes->second.erase(this);
      if (lanes->second.empty()) home_.lanes.erase(lanes);
    }
    phase_ = Phase::ended;
  }

  void count_lane(std::uint64_t amount) {
    add(home_.counters.lanes, amount);
    if (rings_) add(home_.counters.ring_lanes, amount);
  }

  void greet() {
    const base::MutableBytes input = stream_->input();
    const auto envelope = get_envelope(input, kMaxRequestBytes);
    // A client shows no certificate on a Unix socket. There it must know a token, which a client with a certificate has
    // got.
    const auto is = [&](Greeting kind) { return envelope && envelope->kind == static_cast<std::uint32_t>(kind); };
    const bool exchange = !rings_ && is(Greeting::exchange);
    const bool lane = is(Greeting::lane) && envelope->length == kTokenBytes && rings_ == (phase_ == Phase::proving);
    const bool attach = !rings_ && is(Greeting::attach) && envelope->length >= kTokenBytes;
    const bool proof = rings_ && phase_ == Phase::greeting && is(Greeting::proof) && envelope->length == kProofBytes;
    if (!exchange && !lane && !attach && !proof) return end_malformed();
    const std::size_t length = kEnvelopeBytes + envelope->length;
    if (input.size() < length) return stream_->need(length);
    const base::Bytes body = input.subspan(kEnvelopeBytes, envelope->length);
    phase_ = Phase::waiting;
    const net::Identity& who = stream_->peer();
    auto state = node_.shared_from_this();
    const Server::State::From from{home_, id_};
    if (exchange) {
      Peer peer{.pool_uid = who.pool_uid,
                .role = who.role,
                .name = who.name,
                .authenticated = who.authenticated,
                .sessions = who.sessions};
      node_.control.post(
          [state, from, peer, request = std::string(base::text_of(body))] { state->asked(from, peer, request); });
    } else if (node_.options.tls && !rings_ &&
               (who.role != net::kRoleClient || who.pool_uid != node_.options.tls->self().pool_uid)) {
      return refuse_lane({});
    } else if (proof) {
      net::Proof name;
      net::Nonce theirs;
      std::memcpy(name.data(), body.data(), name.size());
      std::memcpy(theirs.data(), body.data() + name.size(), theirs.size());
      stream_->pause_reading();
      node_.control.post([state, from, name, theirs] { state->token_named(from, name, theirs); });
    } else {
      Token token;
      std::memcpy(token.data(), body.data(), token.size());
      if (rings_) {
        if (!net::same_proof(body, proof_)) return refuse_lane({});
        token = token_;
      }
      stream_->pause_reading();
      node_.control.post([state, from, token, attach, request = std::string(base::text_of(body.subspan(kTokenBytes)))] {
        state->lane_wanted(from, token, attach, request);
      });
    }
    stream_->consume(length);
    stream_->need(1);
  }

  void welcome(Welcome verdict, base::Bytes body) {
    put_envelope(stream_->reserve(kEnvelopeBytes),
                 {.kind = static_cast<std::uint32_t>(verdict), .length = static_cast<std::uint32_t>(body.size())});
    stream_->write(body);
  }

  Server::State& node_;
  Executor& home_;
  const std::uint64_t id_;
  const bool rings_;
  net::Alarm alarm_;
  Phase phase_ = Phase::greeting;
  Token token_{};  // of a lane over rings, until its client has proved to know it
  net::Proof proof_{};
  std::shared_ptr<LaneRecord> record_;
  std::unique_ptr<StreamLane> lane_;  // that has taken the stream over
  bool dead_ = false;
};

void LaneConnection::call_host(std::uint64_t call, std::uint32_t opcode, std::string request, std::size_t room) {
  static_cast<Connection&>(*this).call(call, opcode, std::move(request), room);
}
void LaneConnection::refuse() { static_cast<Connection&>(*this).end_refused(); }
void LaneConnection::malformed() { static_cast<Connection&>(*this).end_malformed(); }
void LaneConnection::close() { static_cast<Connection&>(*this).die(); }

void Server::State::came(Executor& executor, std::unique_ptr<net::Stream> stream, bool over_rings) {
  const std::uint64_t id = ++executor.last_connection;
  executor.connections.emplace(id, std::make_unique<Connection>(*this, executor, id, std::move(stream), over_rings));
}

base::Result<std::unique_ptr<net::Listener>> Server::State::listen(const std::string& where, bool over_rings) {
  return net::Listener::open(
      control,
      {.address = where,
       .tls = over_rings ? nullptr : options.tls,
       .max_connections = options.max_connections,
       .when_full = {},
       .handshake_deadline = options.handshake_deadline,
       .place = [this]() -> net::Loop& { return executors[next_executor++ % executors.size()]->loop; }},
      [this, over_rings](std::unique_ptr<net::Stream> stream) {
        for (const auto& executor : executors) {
          if (&executor->loop == &stream->loop()) return came(*executor, std::move(stream), over_rings);
        }
      });
}

void Server::State::asked(From from, const Peer& peer, std::string request) {
  if (host == nullptr) return;
  exchanges.fetch_add(1, std::memory_order_relaxed);
  host->on_exchange(peer, std::move(request), [self = weak_from_this(), from](std::string reply) {
    const auto state = self.lock();
    if (!state || state->host == nullptr) return;
    from.executor.loop.post([from, reply = std::move(reply)] {
      if (Connection* connection = from.executor.find(from.connection)) connection->answer(base::bytes_of(reply));
    });
  });
}

// Few tokens are unspent: each lives for at most one lease.
void Server::State::token_named(From from, const net::Proof& name, const net::Nonce& theirs) {
  if (host == nullptr) return;
  std::optional<Token> found;
  for (const auto& token : host->unspent_tokens()) {
    if (net::same_proof(net::prove(token, kNameOfToken), name)) found = token;
  }
  from.executor.loop.post([from, found, theirs] {
    Connection* connection = from.executor.find(from.connection);
    if (connection == nullptr) return;
    if (found) {
      connection->challenge(*found, theirs);
    } else {
      connection->refuse_lane({});
    }
  });
}

void Server::State::lane_wanted(From from, const Token& token, bool attach, const std::string& request) {
  if (host == nullptr) return;
  const auto refuse = [from](std::string why) {
    from.executor.loop.post([from, why = std::move(why)] {
      if (Connection* connection = from.executor.find(from.connection)) connection->refuse_lane(base::bytes_of(why));
    });
  };
  if (attach != (others != nullptr)) {
    const std::string wire(others != nullptr ? others->name() : streams->name());
    return refuse("this memory node serves the " + wire + " wire; ask for --wire " + wire);
  }
  std::optional<LaneRights> rights = host->on_open_lane(token);
  if (rights && sessions[rights->session_id].size() >= options.max_lanes_per_session) rights.reset();
  if (!rights) return refuse({});
  auto record = std::make_shared<LaneRecord>();
  record->session_id = rights->session_id;
  sessions[rights->session_id].push_back(record);
  if (!attach) return lane_made(from, std::move(record), std::move(*rights), {});
  record->attached = ++last_attached;
  others->attach(record->attached, *rights, base::bytes_of(request),
                 [self = weak_from_this(), from, record, refuse](base::Result<std::string> said) {
                   const auto state = self.lock();
                   if (!state || state->host == nullptr) return;
                   if (said.ok() && !record->cut) return state->lane_made(from, record, {}, std::move(*said));
                   if (!said.ok()) record->attached = 0;  // there is no lane to end
                   state->lane_gone(record);
                   refuse(said.ok() ? "its session is fenced" : said.status().message());
                 });
}

// A fence that comes from here on is posted behind this, so the executor knows the lane when it has to cut it.
void Server::State::lane_made(From from, std::shared_ptr<LaneRecord> record, LaneRights rights, std::string said) {
  from.executor.loop.post([state = shared_from_this(), from, record = std::move(record), rights = std::move(rights),
                           said = std::move(said)] {
    if (Connection* connection = from.executor.find(from.connection)) {
      connection->begin_lane(record, rights, base::bytes_of(said));
    } else {
      state->control.post([state, record] { state->lane_gone(record); });
    }
  });
}

void Server::State::called(From from, const HostCall& call) {
  if (host == nullptr || call.record->cut) return;
  std::optional<std::string> reply(std::in_place, call.room, '\0');
  const auto length = host->on_call(call.record->session_id, call.opcode, base::bytes_of(call.request),
                                    std::as_writable_bytes(std::span(reply->data(), reply->size())));
  FARPOOL_CHECK(!length || *length <= call.room);
  if (length) {
    reply->resize(*length);
  } else {
    reply.reset();
  }
  if (host == nullptr) return;
  from.executor.loop.post([from, number = call.call, reply = std::move(reply)] {
    if (Connection* connection = from.executor.find(from.connection)) connection->replied(number, reply);
  });
}

void Server::State::lane_gone(const std::shared_ptr<LaneRecord>& record) {
  record->cut = true;
  if (record->attached != 0 && host != nullptr) others->detach(record->attached);
  const auto session = sessions.find(record->session_id);
  if (session == sessions.end()) return;
  std::erase(session->second, record);
  if (session->second.empty()) sessions.erase(session);
}

Server::Server(net::Loop& control, Options options) : state_(std::make_shared<State>(control, std::move(options))) {
  FARPOOL_CHECK(state_->options.executors > 0);
}

Server::~Server() {
  state_->host = nullptr;
  state_->listener.reset();
  state_->rings.reset();
  state_->alarms.clear();
  for (const auto& executor : state_->executors) executor->loop.stop();
  for (const auto& executor : state_->executors) executor->thread.join();
  for (const auto& executor : state_->executors) executor->connections.clear();
  // Functions that are still posted to the executors hold the state, and go with their loops.
  state_->executors.clear();
}

base::Status Server::serve(Host& host, StreamWire& wire) { return state_->serve(host, &wire, nullptr); }
base::Status Server::serve(Host& host, AttachedWire& wire) { return state_->serve(host, nullptr, &wire); }

base::Status Server::State::serve(Host& served, StreamWire* stream_wire, AttachedWire* attached_wire) {
  FARPOOL_CHECK(host == nullptr);
  for (std::size_t i = 0; i < options.executors; ++i) executors.push_back(std::make_unique<Executor>(i));
  for (const auto& executor : executors) executor->loop.set_spin(options.spin);
  auto opened = listen(options.listen, false);
  if (!opened.ok()) {
    executors.clear();
    return opened.status();
  }
  host = &served;
  streams = stream_wire;
  others = attached_wire;
  listener = std::move(*opened);
  address = listener->address();
  for (const auto& executor : executors) executor->thread = std::thread([&loop = executor->loop] { loop.run(); });
  return {};
}

base::Status Server::serve_rings(const std::string& address) {
  FARPOOL_CHECK(state_->host != nullptr && state_->rings == nullptr && state_->streams != nullptr);
  net::remove_left_over(address);
  auto rings = state_->listen(address, true);
  if (!rings.ok()) return rings.status();
  state_->rings = std::move(*rings);
  return {};
}

const std::string& Server::address() const { return state_->address; }

Stats Server::stats() const {
  Stats sum;
  sum.exchanges = state_->exchanges.load(std::memory_order_relaxed);
  sum.fences = state_->fences.load(std::memory_order_relaxed);
  for (const auto* each : {&state_->listener, &state_->rings}) {
    if (!*each) continue;
    const net::Listener::Stats listener = (*each)->stats();
    sum.connections += listener.open;
    sum.refused_connections += listener.refused_full;
    sum.failed_handshakes += listener.failed_handshakes;
  }
  const auto get = [](const Counters::Counter& counter) { return counter.load(std::memory_order_relaxed); };
  for (const auto& executor : state_->executors) {
    const Counters& counters = executor->counters;
    sum.lanes += get(counters.lanes);
    sum.ring_lanes += get(counters.ring_lanes);
    sum.refusals += get(counters.refusals);
    sum.malformed += get(counters.malformed);
  }
  return sum;
}

void Server::fence(std::uint64_t session_id, std::function<void()> done) {
  State& state = *state_;
  state.fences.fetch_add(1, std::memory_order_relaxed);
  if (state.others != nullptr) state.others->fence(session_id);
  if (const auto session = state.sessions.find(session_id); session != state.sessions.end()) {
    for (const auto& record : session->second) record->cut = true;  // a CALL that is on its way finds it
    state.sessions.erase(session);
  }
  if (state.executors.empty()) return state.control.post(std::move(done));  // it has not served yet
  auto left = std::make_shared<std::size_t>(state.executors.size());        // control thread only
  for (const auto& each : state.executors) {
    each->loop.post([self = state_, &executor = *each, session_id, left, done] {
      if (const auto found = executor.lanes.find(session_id); found != executor.lanes.end()) {
        const std::vector<Connection*> lanes(found->second.begin(), found->second.end());
        for (Connection* lane : lanes) lane->die();
      }
      const auto drained = [self, left, done] {
        self->control.post([self, left, done] {
          if (--*left == 0 && self->host != nullptr) done();
        });
      };
      if (self->streams == nullptr) return drained();
      self->streams->drain(executor.index, session_id, drained);
    });
  }
}

void Server::after(base::Nanos delay, std::function<void()> what) {
  auto& alarms = state_->alarms;
  const auto place = alarms.emplace(alarms.end());
  *place = std::make_unique<net::Alarm>(state_->control, [&alarms, place, what = std::move(what)] {
    const auto run = what;
    alarms.erase(place);
    run();
  });
  (*place)->set(net::Loop::now() + std::max<base::Nanos>(delay, 0));
}

std::uint64_t Server::random() {
  std::uint64_t word = 0;
  FARPOOL_CHECK(::getrandom(&word, sizeof word, 0) == sizeof word);
  return word;
}

void Server::post(std::size_t executor, std::function<void()> what) {
  state_->executors[executor]->loop.post(std::move(what));
}

}  // namespace farpool::fabric::session_port
