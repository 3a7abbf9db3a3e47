// SPDX-License-Identifier: Apache-2.0
#include "fabric/tcp/responder.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fabric/fabric.h"
#include "fabric/tcp/frame.h"
#include "fabric/tcp/nic.h"
#include "net/listener.h"
#include "net/proof.h"
#include "net/stream.h"

namespace farpool::fabric::tcp {
namespace {

// What the control thread knows of a lane; shared with the executor that runs it.
struct LaneRecord {
  std::uint64_t session_id = 0;
  std::uint64_t attached = 0;  // as another wire knows it; 0: a lane of this one
  bool cut = false;            // control thread only: fenced, or gone
};

// Written by one executor, read by any thread.
struct Counters {
  using Counter = std::atomic<std::uint64_t>;
  Counter lanes{0}, ring_lanes{0}, chains{0}, bytes_in{0}, bytes_out{0}, held{0}, refusals{0}, malformed{0};
  std::array<Counter, 6> verbs{};
};
void add(Counters::Counter& counter, std::uint64_t amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace

class Connection;
struct Executor;

// Where an executor's held CALLs are answered, from any thread. Tickets may outlive the executor: they find it closed.
class ExecutorDesk final : public Desk {
 public:
  explicit ExecutorDesk(Executor& executor) : executor_(&executor) {}
  void settle(std::uint64_t lane, std::uint64_t call, std::optional<base::Bytes> reply) noexcept override;
  void close() {
    std::lock_guard lock(mutex_);
    executor_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Executor* executor_;
};

// One thread and its connections. What waits in the loop may hold connections, so the loop goes before what they use.
struct Executor {
  Counters counters;
  ChainView chain;  // being executed
  std::uint64_t last_connection = 0;
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections;
  std::unordered_map<std::uint64_t, std::unordered_set<Connection*>> lanes;  // that may execute, by session
  // CALLs that services hold: by number, which lane's each is; by session, how many.
  struct Held {
    std::uint64_t session_id = 0;
    std::uint64_t connection = 0;
    std::uint64_t chain = 0;
  };
  std::uint64_t last_held = 0;
  std::unordered_map<std::uint64_t, Held> held;
  struct HeldOf {
    Service* service = nullptr;
    std::size_t count = 0;
    std::vector<std::function<void()>> drained;  // fences that wait for the last one
  };
  std::unordered_map<std::uint64_t, HeldOf> held_of;
  std::shared_ptr<ExecutorDesk> desk = std::make_shared<ExecutorDesk>(*this);
  net::Loop loop;
  std::thread thread;

  Executor() = default;
  Executor(const Executor&) = delete;
  ~Executor() { desk->close(); }

  Connection* find(std::uint64_t connection) {
    const auto found = connections.find(connection);
    return found == connections.end() ? nullptr : found->second.get();
  }
  Ticket hold(std::uint64_t session_id, Service& service, std::uint64_t connection, std::uint64_t chain,
              std::size_t room) {
    held.emplace(++last_held, Held{session_id, connection, chain});
    HeldOf& of = held_of[session_id];
    of.service = &service;
    ++of.count;
    add(counters.held, 1);
    return {desk, 0, last_held, room};
  }
  void settled(std::uint64_t number, const std::optional<std::string>& reply);
  // No lane of the session executes any more. Calls `then` once nothing is held for it.
  void drain(std::uint64_t session_id, std::function<void()> then) {
    const auto of = held_of.find(session_id);
    if (of == held_of.end()) return then();
    of->second.drained.push_back(std::move(then));
    of->second.service->release(session_id);
  }
};

void ExecutorDesk::settle(std::uint64_t, std::uint64_t number, std::optional<base::Bytes> reply) noexcept {
  std::optional<std::string> copy;
  if (reply) copy.emplace(base::text_of(*reply));
  std::lock_guard lock(mutex_);
  if (executor_ == nullptr) return;
  executor_->loop.post([&executor = *executor_, number, copy = std::move(copy)] { executor.settled(number, copy); });
}

struct TcpResponder::State : std::enable_shared_from_this<State> {
  State(net::Loop& control, ResponderOptions options) : control(control), options(std::move(options)) {}

  net::Loop& control;
  const ResponderOptions options;
  Host* host = nullptr;  // control thread only; none once the responder is gone
  LaneMaker* other = nullptr;
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

  base::Result<std::unique_ptr<net::Listener>> listen(const std::string& address, bool rings);
  void came(Executor& executor, std::unique_ptr<net::Stream> stream, bool rings);
  // On the control thread, for a connection of the executor, which may be gone when the answer comes.
  struct From {
    Executor& executor;
    std::uint64_t connection;
  };
  void asked(From from, const Peer& peer, std::string request);
  void token_named(From from, const net::Proof& name, const net::Nonce& theirs);
  void lane_wanted(From from, const std::array<std::byte, kTokenBytes>& token, bool attach, const std::string& request);
  void lane_made(From from, std::shared_ptr<LaneRecord> record, LaneRights rights, std::string said);
  struct Call {
    std::shared_ptr<LaneRecord> record;
    std::uint64_t chain;
    std::uint32_t opcode;
    std::size_t room;
    std::string request;
  };
  void called(From from, const Call& call);
  void lane_gone(const std::shared_ptr<LaneRecord>& record);
};

// One connection, from greeting to end, on its executor's thread.
class Connection final : public net::StreamHandler {
 public:
  Connection(TcpResponder::State& node, Executor& executor, std::uint64_t id, std::unique_ptr<net::Stream> stream,
             bool rings)
      : node_(node),
        executor_(executor),
        id_(id),
        rings_(rings),
        stream_(std::move(stream)),
        alarm_(executor.loop, [this] { die(); }) {
    alarm_.set(net::Loop::now() + node_.options.handshake_deadline);
    stream_->need(kHeaderBytes);
    stream_->start(*this);
  }
  ~Connection() {
    if (record_) count_lane(~0ull);
  }

  void on_input() noexcept override {
    switch (phase_) {
      case Phase::greeting:
      case Phase::proving:
        greet();
        break;
      case Phase::lane:
        serve();
        break;
      case Phase::waiting:
      case Phase::attached:
      case Phase::ended:
        malformed();
        break;  // nothing may come here
    }
  }
  void on_sent() noexcept override {
    if (phase_ == Phase::lane && !away_) {
      stream_->resume_reading();
      serve();
    }
  }
  void on_closed(const base::Status&) noexcept override { die(); }

  // From the control thread, by way of the executor's loop.
  void answer(base::Bytes body) {
    welcome(Welcome::accepted, body);
    phase_ = Phase::ended;
    stream_->finish();
  }
  // A lane of another wire says all it has to say elsewhere: its connection is silent until it ends.
  void begin_lane(std::shared_ptr<LaneRecord> record, LaneRights rights, base::Bytes said) {
    record_ = std::move(record);
    regions_ = std::move(rights.regions);
    service_ = rights.service;
    executor_.lanes[record_->session_id].insert(this);
    count_lane(1);
    alarm_.cancel();
    welcome(Welcome::accepted, said);
    phase_ = record_->attached != 0 ? Phase::attached : Phase::lane;
    stream_->need(phase_ == Phase::attached ? 1 : kHeaderBytes);
    stream_->resume_reading();
    if (phase_ == Phase::lane) serve();
  }
  // Proves that this is the memory node that gave the token, and waits for the client's own proof.
  void challenge(const std::array<std::byte, kTokenBytes>& token, const net::Nonce& theirs) {
    const net::Nonce ours = net::draw_nonce();
    std::string body(base::text_of(net::prove(token, kProofOfNode, theirs, ours)));
    body += base::text_of(ours);
    token_ = token;
    proof_ = net::prove(token, kProofOfClient, theirs, ours);
    welcome(Welcome::accepted, base::bytes_of(body));
    phase_ = Phase::proving;
    stream_->need(kHeaderBytes);
    stream_->resume_reading();
  }
  void refuse_lane(base::Bytes why) {
    add(executor_.counters.refusals, 1);
    welcome(Welcome::refused, why);
    phase_ = Phase::ended;
    stream_->finish();
  }
  void call_answered(std::uint64_t id, std::optional<std::string> reply) {
    away_ = false;
    if (!reply) return refuse(id);
    send(id, *reply);
    stream_->resume_reading();
    serve();
  }
  // From a service that held the CALL.
  void held_answered(std::uint64_t id, const std::optional<std::string>& reply) {
    --held_;
    if (phase_ != Phase::lane) return;
    if (!reply) return die();
    send(id, *reply);
  }
  // Nothing of this connection executes from here on.
  void die() {
    if (std::exchange(dead_, true)) return;
    retire();
    stream_->close({});
    if (record_) {
      node_.control.post([state = node_.shared_from_this(), record = record_] { state->lane_gone(record); });
    }
    // Destroyed at a later turn: the caller of this still uses it.
    const auto self = executor_.connections.find(id_);
    auto dead = std::make_shared<std::unique_ptr<Connection>>(std::move(self->second));
    executor_.connections.erase(self);
    executor_.loop.post([dead] { dead->reset(); });
  }

 private:
  enum class Phase { greeting, waiting, proving, lane, attached, ended };

  void retire() {
    if (phase_ == Phase::lane || phase_ == Phase::attached) {
      const auto lanes = executor_.lanes.find(record_->session_id);
      lanes->second.erase(this);
      if (lanes->second.empty()) executor_.lanes.erase(lanes);
    }
    phase_ = Phase::ended;
  }

  void count_lane(std::uint64_t amount) {
    add(executor_.counters.lanes, amount);
    if (rings_) add(executor_.counters.ring_lanes, amount);
  }

  void malformed() {
    add(executor_.counters.malformed, 1);
    die();
  }

  void greet() {
    const base::MutableBytes input = stream_->input();
    const auto envelope = get_envelope(input, kMaxRequestBytes);
    // A client shows no certificate on a Unix socket. What counts there is that it knows a token, which was given to a
    // client that has shown one.
    const auto is = [&](Greeting kind) { return envelope && envelope->kind == static_cast<std::uint32_t>(kind); };
    const bool exchange = !rings_ && is(Greeting::exchange);
    const bool lane = is(Greeting::lane) && envelope->length == kTokenBytes && rings_ == (phase_ == Phase::proving);
    const bool attach = !rings_ && is(Greeting::attach) && envelope->length >= kTokenBytes;
    const bool proof = rings_ && phase_ == Phase::greeting && is(Greeting::proof) && envelope->length == kProofBytes;
    if (!exchange && !lane && !attach && !proof) return malformed();
    const std::size_t length = kHeaderBytes + envelope->length;
    if (input.size() < length) return stream_->need(length);
    const base::Bytes body = input.subspan(kHeaderBytes, envelope->length);
    phase_ = Phase::waiting;
    const net::Identity& who = stream_->peer();
    auto state = node_.shared_from_this();
    const TcpResponder::State::From from{executor_, id_};
    if (exchange) {
      Peer peer{.pool_uid = who.pool_uid, .role = who.role, .name = who.name, .authenticated = who.authenticated};
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
      std::array<std::byte, kTokenBytes> token;
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
    put_envelope(stream_->reserve(kHeaderBytes),
                 {.kind = static_cast<std::uint32_t>(verdict), .length = static_cast<std::uint32_t>(body.size())});
    stream_->write(body);
  }

  // Executes what has come in, until something is missing, a CALL is away, or the peer does not take its replies.
  void serve() {
    while (phase_ == Phase::lane && !away_) {
      if (stream_->unsent() > node_.options.max_unsent) return stream_->pause_reading();
      const base::MutableBytes input = stream_->input();
      if (input.size() < kHeaderBytes) return stream_->need(kHeaderBytes);
      const std::size_t length = frame_length(input);
      if (length == 0) return malformed();
      if (input.size() < length) return stream_->need(length);
      ChainView& chain = executor_.chain;
      if (!get_chain(input.first(length), chain) || chain.id != ++last_id_) return malformed();
      add(executor_.counters.chains, 1);
      add(executor_.counters.bytes_in, length);
      if (!permitted(chain, regions_)) {
        const bool call = chain.count == 1 && chain.verbs[0].verb == Verb::call;
        return refuse(chain.id, call && too_long(chain.verbs[0]) ? Refusal::too_long : Refusal::none);
      }
      for (std::size_t i = 0; i < chain.count; ++i) {
        add(executor_.counters.verbs[static_cast<std::size_t>(chain.verbs[i].verb)], 1);
      }
      if (chain.verbs[0].verb == Verb::call && chain.verbs[0].region >= kFirstServiceOpcode) {
        if (const Refusal why = serve_call(chain); why != Refusal::none) return refuse(chain.id, why);
      } else if (chain.verbs[0].verb == Verb::call) {
        call(chain);
      } else {
        const std::size_t reply = reply_length(chain);
        execute(chain, regions_, stream_->reserve(reply));
        add(executor_.counters.bytes_out, reply);
      }
      stream_->consume(length);
    }
  }

  // One of the session's service, executed here and now. Anything but `none` refuses it.
  Refusal serve_call(const ChainView& chain) {
    if (service_ == nullptr) return Refusal::no_service;
    if (held_ == kCallsInFlight) return Refusal::too_many;
    const VerbView& verb = chain.verbs[0];
    const std::size_t most = call_reply_length(verb.offset);
    const base::MutableBytes out = stream_->reserve(most);
    ServedCall call(*this, verb, chain.id, out.subspan(kCallReplyHeaderBytes, verb.offset));
    const Served served = service_->serve(call);
    FARPOOL_CHECK(call.taken() == (served.kind() == Served::Kind::held) && served.bytes() <= verb.offset);
    if (served.kind() != Served::Kind::done) {
      stream_->take_back(most);
      return served.kind() == Served::Kind::held ? Refusal::none : served.why();
    }
    const std::size_t length = call_reply_length(served.bytes());
    put_call_reply(out.first(length), chain.id, served.bytes());
    stream_->take_back(most - length);
    add(executor_.counters.bytes_out, length);
    return Refusal::none;
  }
  class ServedCall final : public Call {
   public:
    ServedCall(Connection& connection, const VerbView& verb, std::uint64_t chain, base::MutableBytes reply)
        : Call(connection.record_->session_id, verb.region, verb.data, reply, Hand()),
          connection_(connection),
          chain_(chain) {}
    Ticket hold() override {
      FARPOOL_CHECK(!std::exchange(taken_, true));
      ++connection_.held_;
      return connection_.executor_.hold(session_id, *connection_.service_, connection_.id_, chain_, reply.size());
    }
    bool taken() const { return taken_; }

   private:
    Connection& connection_;
    const std::uint64_t chain_;
    bool taken_ = false;
  };
  void send(std::uint64_t id, const std::string& reply) {
    const std::size_t length = call_reply_length(reply.size());
    const base::MutableBytes out = stream_->reserve(length);
    if (!reply.empty()) std::memcpy(out.data() + kCallReplyHeaderBytes, reply.data(), reply.size());
    put_call_reply(out, id, reply.size());
    add(executor_.counters.bytes_out, length);
  }

  void call(const ChainView& chain) {
    const VerbView& verb = chain.verbs[0];
    away_ = true;
    stream_->pause_reading();
    node_.control.post([state = node_.shared_from_this(), from = TcpResponder::State::From{executor_, id_},
                        call = TcpResponder::State::Call{.record = record_,
                                                         .chain = chain.id,
                                                         .opcode = verb.region,
                                                         .room = verb.offset,
                                                         .request = std::string(base::text_of(verb.data))}] {
      state->called(from, call);
    });
  }

  // The lane ends: its peer learns why, and nothing more of it executes.
  void refuse(std::uint64_t id, Refusal why = Refusal::none) {
    add(executor_.counters.refusals, 1);
    put_reply_header(stream_->reserve(kHeaderBytes), {.length = kHeaderBytes, .refused = true, .why = why, .id = id});
    retire();
    stream_->finish();
  }

  TcpResponder::State& node_;
  Executor& executor_;
  const std::uint64_t id_;
  const bool rings_;
  std::unique_ptr<net::Stream> stream_;
  net::Alarm alarm_;
  Phase phase_ = Phase::greeting;
  std::array<std::byte, kTokenBytes> token_{};  // of a lane over rings, until its client has proved to know it
  net::Proof proof_{};
  std::shared_ptr<LaneRecord> record_;
  std::vector<RegionRight> regions_;
  Service* service_ = nullptr;
  std::uint64_t last_id_ = 0;
  std::uint32_t held_ = 0;  // CALLs that the service answers later
  bool away_ = false;       // a CALL is with the control thread
  bool dead_ = false;
};

void Executor::settled(std::uint64_t number, const std::optional<std::string>& reply) {
  const auto found = held.find(number);
  const Held call = found->second;
  held.erase(found);
  add(counters.held, ~0ull);
  if (Connection* connection = find(call.connection)) connection->held_answered(call.chain, reply);
  const auto of = held_of.find(call.session_id);
  if (--of->second.count > 0) return;
  const auto drained = std::move(of->second.drained);
  held_of.erase(of);
  for (const auto& then : drained) then();
}

void TcpResponder::State::came(Executor& executor, std::unique_ptr<net::Stream> stream, bool rings) {
  const std::uint64_t id = ++executor.last_connection;
  executor.connections.emplace(id, std::make_unique<Connection>(*this, executor, id, std::move(stream), rings));
}

base::Result<std::unique_ptr<net::Listener>> TcpResponder::State::listen(const std::string& where, bool over_rings) {
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

void TcpResponder::State::asked(From from, const Peer& peer, std::string request) {
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

// There are few that are not spent: each lives for one lease at most.
void TcpResponder::State::token_named(From from, const net::Proof& name, const net::Nonce& theirs) {
  if (host == nullptr) return;
  std::optional<std::array<std::byte, kTokenBytes>> found;
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

void TcpResponder::State::lane_wanted(From from, const std::array<std::byte, kTokenBytes>& token, bool attach,
                                      const std::string& request) {
  if (host == nullptr) return;
  const auto refuse = [from](std::string why) {
    from.executor.loop.post([from, why = std::move(why)] {
      if (Connection* connection = from.executor.find(from.connection)) connection->refuse_lane(base::bytes_of(why));
    });
  };
  if (attach != (other != nullptr)) {
    return refuse(attach ? "this memory node serves the tcp wire; ask for --wire tcp"
                         : "this memory node serves the verbs wire; ask for --wire verbs");
  }
  std::optional<LaneRights> rights = host->on_open_lane(token);
  if (rights && sessions[rights->session_id].size() >= options.max_lanes_per_session) rights.reset();
  if (!rights) return refuse({});
  auto record = std::make_shared<LaneRecord>();
  record->session_id = rights->session_id;
  sessions[rights->session_id].push_back(record);
  if (!attach) return lane_made(from, std::move(record), std::move(*rights), {});
  record->attached = ++last_attached;
  other->attach(record->attached, *rights, base::bytes_of(request),
                [self = weak_from_this(), from, record, refuse](base::Result<std::string> said) {
                  const auto state = self.lock();
                  if (!state || state->host == nullptr) return;
                  if (said.ok() && !record->cut) return state->lane_made(from, record, {}, std::move(*said));
                  if (!said.ok()) record->attached = 0;  // there is no lane to end
                  state->lane_gone(record);
                  refuse(said.ok() ? "its session is fenced" : said.status().message());
                });
}

// A fence that comes from here on is posted behind this, so the executor knows the lane when it is to cut it.
void TcpResponder::State::lane_made(From from, std::shared_ptr<LaneRecord> record, LaneRights rights,
                                    std::string said) {
  from.executor.loop.post([state = shared_from_this(), from, record = std::move(record), rights = std::move(rights),
                           said = std::move(said)] {
    if (Connection* connection = from.executor.find(from.connection)) {
      connection->begin_lane(record, rights, base::bytes_of(said));
    } else {
      state->control.post([state, record] { state->lane_gone(record); });
    }
  });
}

void TcpResponder::State::called(From from, const Call& call) {
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
  from.executor.loop.post([from, chain = call.chain, reply = std::move(reply)] {
    if (Connection* connection = from.executor.find(from.connection)) connection->call_answered(chain, reply);
  });
}

void TcpResponder::State::lane_gone(const std::shared_ptr<LaneRecord>& record) {
  record->cut = true;
  if (record->attached != 0 && host != nullptr) other->detach(record->attached);
  const auto session = sessions.find(record->session_id);
  if (session == sessions.end()) return;
  std::erase(session->second, record);
  if (session->second.empty()) sessions.erase(session);
}

TcpResponder::TcpResponder(net::Loop& control, ResponderOptions options)
    : state_(std::make_shared<State>(control, std::move(options))) {
  FARPOOL_CHECK(state_->options.executors > 0);
}

TcpResponder::~TcpResponder() {
  state_->host = nullptr;
  state_->listener.reset();
  state_->rings.reset();
  state_->alarms.clear();
  for (const auto& executor : state_->executors) executor->loop.stop();
  for (const auto& executor : state_->executors) executor->thread.join();
  for (const auto& executor : state_->executors) executor->connections.clear();
  // What is still posted to the executors holds the state, and goes with their loops.
  state_->executors.clear();
}

base::Status TcpResponder::serve(Host& host, LaneMaker* other) {
  FARPOOL_CHECK(state_->host == nullptr);
  State& state = *state_;
  for (std::size_t i = 0; i < state.options.executors; ++i) state.executors.push_back(std::make_unique<Executor>());
  for (const auto& executor : state.executors) executor->loop.set_spin(state.options.spin);
  auto listener = state.listen(state.options.listen, false);
  if (!listener.ok()) {
    state.executors.clear();
    return listener.status();
  }
  state.host = &host;
  state.other = other;
  state.listener = std::move(*listener);
  state.address = state.listener->address();
  for (const auto& executor : state.executors) executor->thread = std::thread([&loop = executor->loop] { loop.run(); });
  return {};
}

base::Status TcpResponder::serve_rings(const std::string& address) {
  FARPOOL_CHECK(state_->host != nullptr && state_->rings == nullptr && state_->other == nullptr);
  net::remove_left_over(address);
  auto rings = state_->listen(address, true);
  if (!rings.ok()) return rings.status();
  state_->rings = std::move(*rings);
  return {};
}

const std::string& TcpResponder::address() const { return state_->address; }

ResponderStats TcpResponder::stats() const {
  ResponderStats sum;
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
    sum.chains += get(counters.chains);
    for (std::size_t i = 0; i < sum.verbs.size(); ++i) sum.verbs[i] += get(counters.verbs[i]);
    sum.bytes_in += get(counters.bytes_in);
    sum.bytes_out += get(counters.bytes_out);
    sum.held += get(counters.held);
    sum.refusals += get(counters.refusals);
    sum.malformed += get(counters.malformed);
  }
  return sum;
}

void TcpResponder::fence(std::uint64_t session_id, std::function<void()> done) {
  State& state = *state_;
  state.fences.fetch_add(1, std::memory_order_relaxed);
  if (state.other != nullptr) state.other->fence(session_id);
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
      executor.drain(session_id, [self, left, done] {
        self->control.post([self, left, done] {
          if (--*left == 0 && self->host != nullptr) done();
        });
      });
    });
  }
}

void TcpResponder::after(base::Nanos delay, std::function<void()> what) {
  auto& alarms = state_->alarms;
  const auto place = alarms.emplace(alarms.end());
  *place = std::make_unique<net::Alarm>(state_->control, [&alarms, place, what = std::move(what)] {
    const auto run = what;
    alarms.erase(place);
    run();
  });
  (*place)->set(now() + std::max<base::Nanos>(delay, 0));
}

std::uint64_t TcpResponder::random() {
  std::uint64_t word = 0;
  FARPOOL_CHECK(::getrandom(&word, sizeof word, 0) == sizeof word);
  return word;
}

}  // namespace farpool::fabric::tcp
