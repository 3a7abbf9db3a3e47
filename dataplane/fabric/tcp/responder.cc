// SPDX-License-Identifier: Apache-2.0
#include "fabric/tcp/responder.h"

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fabric/fabric.h"
#include "fabric/session_port/held_calls.h"
#include "fabric/tcp/frame.h"
#include "fabric/tcp/nic.h"
#include "fabric/tcp/port.h"
#include "net/stream.h"

namespace farpool::fabric::tcp {
namespace {

// Written by one executor, read by any thread.
struct Counters {
  using Counter = std::atomic<std::uint64_t>;
  Counter chains{0}, bytes_in{0}, bytes_out{0}, held{0};
  std::array<Counter, 6> verbs{};
};
void add(Counters::Counter& counter, std::uint64_t amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace

class FrameLane;

// What one executor of the session port has for the lanes that it serves.
struct FrameExecutor {
  FrameExecutor(session_port::Server& server, std::size_t index, std::size_t max_unsent)
      : server(server), index(index), max_unsent(max_unsent) {}
  FrameExecutor(const FrameExecutor&) = delete;

  session_port::Server& server;
  const std::size_t index;
  const std::size_t max_unsent;
  Counters counters;
  ChainView chain;  // being executed
  std::uint64_t last_lane = 0;
  std::unordered_map<std::uint64_t, FrameLane*> lanes;
  // A CALL that a service holds: which lane's, and which chain.
  struct Held {
    std::uint64_t lane = 0;
    std::uint64_t chain = 0;
  };
  session_port::HeldCalls<Held> held{[this](std::function<void()> what) { server.post(index, std::move(what)); },
                                     [this](const Held& call, const auto& reply) { answer(call, reply); }};

  void answer(const Held& call, const std::optional<std::string>& reply);
};

// One lane of frames, on its executor's thread.
class FrameLane final : public session_port::StreamLane {
 public:
  FrameLane(session_port::LaneConnection& connection, FrameExecutor& executor, LaneRights rights)
      : connection_(connection),
        executor_(executor),
        id_(++executor.last_lane),
        session_id_(rights.session_id),
        regions_(std::move(rights.regions)),
        service_(rights.service),
        stream_(connection.stream()) {
    executor_.lanes.emplace(id_, this);
    stream_.start(*this);
    stream_.need(kHeaderBytes);
    stream_.resume_reading();
  }
  ~FrameLane() override { executor_.lanes.erase(id_); }

  void on_input() noexcept override { serve(); }
  void on_sent() noexcept override {
    if (connection_.executes() && !away_) {
      stream_.resume_reading();
      serve();
    }
  }
  void on_closed(const base::Status&) noexcept override { connection_.close(); }

  // Takes a reply from the host, by way of the executor's loop.
  void on_reply(std::uint64_t id, const std::optional<std::string>& reply) override {
    away_ = false;
    if (!reply) return refuse(id);
    send(id, *reply);
    stream_.resume_reading();
    serve();
  }
  // Takes a reply from a service that held the CALL.
  void held_answered(std::uint64_t id, const std::optional<std::string>& reply) {
    --held_;
    if (!connection_.executes()) return;
    if (!reply) return connection_.close();
    send(id, *reply);
  }

  // Executes what has arrived, until something is missing, a CALL is away, or the peer does not take its replies.
  void serve() {
    while (connection_.executes() && !away_) {
      if (stream_.unsent() > executor_.max_unsent) return stream_.pause_reading();
      const base::MutableBytes input = stream_.input();
      if (input.size() < kHeaderBytes) return stream_.need(kHeaderBytes);
      const std::size_t length = frame_length(input);
      if (length == 0) return connection_.malformed();
      if (input.size() < length) return stream_.need(length);
      ChainView& chain = executor_.chain;
      if (!get_chain(input.first(length), chain) || chain.id != ++last_id_) return connection_.malformed();
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
        execute(chain, regions_, stream_.reserve(reply));
        add(executor_.counters.bytes_out, reply);
      }
      stream_.consume(length);
    }
  }

 private:
  // Executes a CALL of the session's service, here and now. Any result but `none` refuses it.
  Refusal serve_call(const ChainView& chain) {
    if (service_ == nullptr) return Refusal::no_service;
    if (held_ == kCallsInFlight) return Refusal::too_many;
    const VerbView& verb = chain.verbs[0];
    const std::size_t most = call_reply_length(verb.offset);
    const base::MutableBytes out = stream_.reserve(most);
    ServedCall call(*this, verb, chain.id, out.subspan(kCallReplyHeaderBytes, verb.offset));
    const Served served = service_->serve(call);
    FARPOOL_CHECK(call.taken() == (served.kind() == Served::Kind::held) && served.bytes() <= verb.offset);
    if (served.kind() != Served::Kind::done) {
      stream_.take_back(most);
      return served.kind() == Served::Kind::held ? Refusal::none : served.why();
    }
    const std::size_t length = call_reply_length(served.bytes());
    put_call_reply(out.first(length), chain.id, served.bytes());
    stream_.take_back(most - length);
    add(executor_.counters.bytes_out, length);
    return Refusal::none;
  }
  class ServedCall final : public Call {
   public:
    ServedCall(FrameLane& lane, const VerbView& verb, std::uint64_t chain, base::MutableBytes reply)
        : Call(lane.session_id_, verb.region, verb.data, reply, Hand()), lane_(lane), chain_(chain) {}
    Ticket hold() override {
      FARPOOL_CHECK(!std::exchange(taken_, true));
      ++lane_.held_;
      add(lane_.executor_.counters.held, 1);
      return lane_.executor_.held.hold(session_id, *lane_.service_, {lane_.id_, chain_}, reply.size());
    }
    bool taken() const { return taken_; }

   private:
    FrameLane& lane_;
    const std::uint64_t chain_;
    bool taken_ = false;
  };
  void send(std::uint64_t id, const std::string& reply) {
    const std::size_t length = call_reply_length(reply.size());
    const base::MutableBytes out = stream_.reserve(length);
    if (!reply.empty()) std::memcpy(out.data() + kCallReplyHeaderBytes, reply.data(), reply.size());
    put_call_reply(out, id, reply.size());
    add(executor_.counters.bytes_out, length);
  }

  void call(const ChainView& chain) {
    const VerbView& verb = chain.verbs[0];
    away_ = true;
    stream_.pause_reading();
    connection_.call_host(chain.id, verb.region, std::string(base::text_of(verb.data)), verb.offset);
  }

  // Ends the lane: its peer learns why, and nothing more of it executes.
  void refuse(std::uint64_t id, Refusal why = Refusal::none) {
    put_reply_header(stream_.reserve(kHeaderBytes), {.length = kHeaderBytes, .refused = true, .why = why, .id = id});
    connection_.refuse();
  }

  session_port::LaneConnection& connection_;
  FrameExecutor& executor_;
  const std::uint64_t id_;
  const std::uint64_t session_id_;
  const std::vector<RegionRight> regions_;
  Service* const service_;
  net::Stream& stream_;
  std::uint64_t last_id_ = 0;
  std::uint32_t held_ = 0;  // CALLs that the service answers later
  bool away_ = false;       // a CALL is with the control thread
};

void FrameExecutor::answer(const Held& call, const std::optional<std::string>& reply) {
  add(counters.held, ~0ull);
  if (const auto lane = lanes.find(call.lane); lane != lanes.end()) lane->second->held_answered(call.chain, reply);
}

class TcpResponder::Lanes final : public session_port::StreamWire {
 public:
  Lanes(session_port::Server& server, std::size_t executors, std::size_t max_unsent) {
    for (std::size_t i = 0; i < executors; ++i) {
      executors_.push_back(std::make_unique<FrameExecutor>(server, i, max_unsent));
    }
  }

  std::string_view name() const override { return "tcp"; }
  std::unique_ptr<session_port::StreamLane> begin(session_port::LaneConnection& connection,
                                                  LaneRights rights) override {
    auto lane = std::make_unique<FrameLane>(connection, *executors_[connection.executor()], std::move(rights));
    lane->serve();
    return lane;
  }
  void drain(std::size_t executor, std::uint64_t session_id, std::function<void()> then) override {
    executors_[executor]->held.drain(session_id, std::move(then));
  }

  // From here on, answers of services go nowhere.
  void close() {
    for (const auto& executor : executors_) executor->held.close();
  }
  void add_to(ResponderStats& sum) const {
    const auto get = [](const Counters::Counter& counter) { return counter.load(std::memory_order_relaxed); };
    for (const auto& executor : executors_) {
      const Counters& counters = executor->counters;
      sum.chains += get(counters.chains);
      for (std::size_t i = 0; i < sum.verbs.size(); ++i) sum.verbs[i] += get(counters.verbs[i]);
      sum.bytes_in += get(counters.bytes_in);
      sum.bytes_out += get(counters.bytes_out);
      sum.held += get(counters.held);
    }
  }

 private:
  std::vector<std::unique_ptr<FrameExecutor>> executors_;
};

TcpResponder::TcpResponder(net::Loop& control, session_port::Options options, std::size_t max_unsent)
    : lanes_(std::make_unique<Lanes>(session_port_, options.executors, max_unsent)),
      session_port_(control, std::move(options)) {}

TcpResponder::~TcpResponder() { lanes_->close(); }

base::Status TcpResponder::serve(Host& host) { return session_port_.serve(host, *lanes_); }

ResponderStats TcpResponder::stats() const {
  ResponderStats sum{session_port_.stats()};
  lanes_->add_to(sum);
  return sum;
}

Caps TcpResponder::caps() const { return wire_caps(); }

}  // namespace farpool::fabric::tcp
