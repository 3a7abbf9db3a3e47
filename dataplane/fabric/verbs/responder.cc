// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/responder.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <iterator>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fabric/fabric.h"
#include "fabric/verbs/call.h"
#include "fabric/verbs/inbox.h"
#include "fabric/verbs/manager.h"
#include "fabric/verbs/port.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/regions.h"

namespace farpool::fabric::verbs {
namespace {

using base::Code;
using base::Status;

constexpr std::uint8_t kMostOutstanding = 16;  // READs and atomics of one lane
// A CALL may take a READ and a SEND, and those of the CALL before may not be acknowledged yet.
constexpr std::uint32_t kSends = 6;

// The kind of a completion: a receive is its number alone.
enum Request : std::uint64_t { kAnswer = 1ull << 32, kFetch = 2ull << 32, kBind = 3ull << 32 };
constexpr std::uint64_t kKind = ~0ull << 32;

}  // namespace

class VerbsResponder::Lanes final : public session_port::AttachedWire,
                                    private net::TurnHook,
                                    private ConnectionManager::Listener {
 public:
  Lanes(net::Loop& control, std::shared_ptr<Device> device, Log log, const session_port::Options& options)
      : control_(control),
        device_(std::move(device)),
        log_(std::move(log)),
        most_(options.max_connections),
        spin_(options.spin),
        regions_(device_, log_),
        servers_(options.executors) {}
  ~Lanes() override {
    for (auto lane = lanes_.begin(); lane != lanes_.end();) {
      lane = end(lane, {Code::unavailable, "the memory node ends"});
    }
  }

  const Device& device() const { return *device_; }
  std::string_view name() const override { return "verbs"; }

  Regions& regions() { return regions_; }

  Status begin(Host& host, std::function<std::uint64_t()> random) {
    if (Status status = regions_.open(); !status.ok()) return status;
    auto events = make_completion_events(*device_);
    if (!events.ok()) return events.status();
    events_ = std::move(*events);
    const ibv_device_attr& limits = device_->limits();
    // The queue of completions can never hold more than its length.
    const auto lanes =
        static_cast<std::uint32_t>(std::min({most_, static_cast<std::size_t>(std::max(limits.max_srq_wr, 1)),
                                             static_cast<std::size_t>(std::max(limits.max_cqe, 1)) / (1 + kSends)}));
    auto inbox = Inbox::make(*device_, regions_.domain(), lanes);
    if (!inbox.ok()) return inbox.status();
    inbox_ = std::move(*inbox);
    for (std::uint32_t reply = 0; reply < lanes; ++reply) free_replies_.push_back(reply);
    completions_.reset(
        ::ibv_create_cq(device_->context(), static_cast<int>(lanes * (1 + kSends)), nullptr, events_.get(), 0));
    if (completions_ == nullptr) return failure(device_->name() + ": a completion queue", errno);
    if (const int error = ::ibv_req_notify_cq(completions_.get(), 0)) {
      return failure(device_->name() + ": completion events", error);
    }
    subscription_ = device_->events().subscribe({.completions = completions_.get(), .receives = inbox_->queue()},
                                                tell([this](const std::string& why) { fail(why); }));
    events_watch_ = std::make_unique<net::Watch>(control_, device_->events_descriptor(), [this] {
      for (const std::string& line : device_->take_events()) log_(line);
    });
    if (device_->largest_window() == 0) {
      regions_.say_without_windows(device_->options().memory_windows ? "has no memory windows of type 2B"
                                                                     : "is to do without memory windows");
    }
    if (device_->options().connection_manager) {
      if (Status status = have_manager(); !status.ok()) {
        log_(status.message() + ": queue pairs are told of each other on the session port instead");
      }
    }
    host_ = &host;
    random_ = std::move(random);
    watch_ = std::make_unique<net::Watch>(control_, events_->fd, [this] { take_events(); });
    return {};
  }

  void attach(std::uint64_t id, const LaneRights& rights, base::Bytes bytes, Answer answer) override {
    auto lane = std::make_unique<Lane>();
    lane->id = id;
    lane->session_id = rights.session_id;
    if (Status status = make(*lane, rights, bytes); !status.ok()) {
      release(*lane);
      return answer(std::move(status));
    }
    lane->events = device_->events().subscribe({.pair = lane->pair->raw()}, tell([this, id](const std::string& why) {
                                                 if (lanes_.contains(id)) broke(id, why);
                                               }));
    lane->begun = std::move(answer);
    Lane& made = *lane;
    by_number_[made.pair->end().queue_pair] = &made;
    lanes_.emplace(id, std::move(lane));
    count_.store(lanes_.size(), std::memory_order_relaxed);
    if (made.claim) return answer_client(made);  // which is to claim it, by its connection manager
    if (!bind_next(made)) end_broken(id);
  }

  void detach(std::uint64_t id) override {
    if (const auto lane = lanes_.find(id); lane != lanes_.end()) end(lane, {Code::unavailable, "its connection ended"});
  }

  void fence(std::uint64_t session_id) override {
    for (auto lane = lanes_.begin(); lane != lanes_.end();) {
      lane = lane->second->session_id == session_id ? end(lane, {Code::forbidden, "its session is fenced"})
                                                    : std::next(lane);
    }
  }

  // Called when the session's lanes have ended. Calls `done` on the control thread once none of its CALLs for data
  // executes, and its service holds none.
  void drain(std::uint64_t session_id, std::function<void()> done) {
    auto left = std::make_shared<std::size_t>(1);
    const auto one_less = [left, done = std::move(done)] {
      if (--*left == 0) done();
    };
    for (const auto& server : servers_) {
      if (server == nullptr) continue;
      ++*left;
      server->drain(session_id, [&control = control_, alive = std::weak_ptr(alive_), one_less] {
        control.post([alive, one_less] {
          if (!alive.expired()) one_less();
        });
      });
    }
    one_less();
  }

  VerbsStats stats() const {
    const auto get = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
    return {.lanes = get(count_),
            .managed = get(managed_),
            .calls = get(calls_),
            .waits = get(waits_),
            .broken = get(broken_),
            .windows = get(windows_),
            .lanes_without_windows = get(without_windows_),
            .data = data_stats()};
  }

 private:
  // A window, and where in the reply its key stands.
  struct Window {
    Regions::Window window;
    std::size_t place = 0;
  };
  struct Lane {
    std::uint64_t id = 0;
    std::uint64_t session_id = 0;
    std::optional<Regions::TrialWord> trial;
    std::optional<std::uint32_t> reply;  // the number of its own in the inbox
    std::optional<Claim> claim;          // that a connection of the client's is to bring; none: not, or no more
    Connection connection;
    std::unique_ptr<QueuePair> pair;
    std::vector<Window> windows;  // go first: a device may hold on to a queue pair that has some
    std::unique_ptr<DeviceEvents::Subscription> events;
    CallServer* server = nullptr;  // of its CALLs for data
    std::shared_ptr<CallServer::Link> link;

    // Until it is open.
    Answer begun;  // to be called yet
    End client;
    AttachReply said;
    std::size_t bound = 0;  // of its windows
    bool open = false;
    bool without_windows = false;  // a key at least is good on other lanes, too

    // The CALL that is out.
    enum class Call : std::uint8_t { none, waits, fetches, executes };
    Call call = Call::none;
    CallHead head;
    std::optional<std::uint32_t> receive;  // held until its request is not needed any more
    Inbox::Room* room = nullptr;           // held until the reply has arrived
    bool refused = false;                  // ends when the reply has left
  };
  struct Arrival {
    std::uint64_t lane = 0;
    std::uint64_t request = 0;
    ibv_wc_status status = IBV_WC_SUCCESS;
    std::uint32_t bytes = 0;
  };

  using Place = std::unordered_map<std::uint64_t, std::unique_ptr<Lane>>::iterator;
  // Ends a lane: no verb of its peer executes once this has returned.
  Place end(Place place, Status why) {
    Lane& lane = *place->second;
    lane.events.reset();
    if (lane.link != nullptr) lane.server->close(std::exchange(lane.link, nullptr));
    lane.pair->stop();
    if (lane.open) {
      managed_.fetch_sub(lane.connection != nullptr ? 1 : 0, std::memory_order_relaxed);
      windows_.fetch_sub(lane.windows.size(), std::memory_order_relaxed);
      without_windows_.fetch_sub(lane.without_windows ? 1 : 0, std::memory_order_relaxed);
    }
    // Finds what it received by its number now; later those receives would be lost to all lanes.
    collect();
    by_number_.erase(lane.pair->end().queue_pair);
    lane.windows.clear();
    lane.pair.reset();
    lane.connection.reset();
    collect();
    if (lane.begun) std::exchange(lane.begun, nullptr)(std::move(why));
    // A CALL at work may fence its own session: its memory stays until it returns.
    if (lane.call == Lane::Call::executes) {
      executing_ = std::move(place->second);
    } else {
      release(lane);
    }
    const Place next = lanes_.erase(place);
    count_.store(lanes_.size(), std::memory_order_relaxed);
    return next;
  }

  // Releases what it holds of the shared resources.
  void release(Lane& lane) {
    if (lane.link != nullptr) lane.server->close(std::exchange(lane.link, nullptr));
    if (lane.receive) post(*std::exchange(lane.receive, std::nullopt));
    if (lane.reply) free_replies_.push_back(*std::exchange(lane.reply, std::nullopt));
    if (lane.call == Lane::Call::waits) std::erase(waiting_, &lane);
    lane.call = Lane::Call::none;
    give_back_room(lane);
  }
  void give_back_room(Lane& lane) {
    if (lane.room == nullptr) return;
    inbox_->give_back(std::exchange(lane.room, nullptr));
    if (!waiting_.empty()) control_.at_turn_end(*this);
  }
  // Posts a receive. If that fails, one lane has none, and the device no longer works.
  void post(std::uint32_t receive) {
    if (Status status = inbox_->post(receive); !status.ok()) log_(status.message());
  }

  static std::uint8_t least(std::uint8_t wanted, int limit) {
    return static_cast<std::uint8_t>(std::clamp<int>(limit, 1, wanted));
  }

  // Posts a function to the control thread; it runs if this still exists then.
  DeviceEvents::Told tell(std::function<void(const std::string&)> what) {
    return [&control = control_, alive = std::weak_ptr(alive_), what = std::move(what)](const std::string& why) {
      control.post([alive, what, why] {
        if (!alive.expired()) what(why);
      });
    };
  }

  // Ends every lane when what they share no longer works. Another process may have more luck.
  void fail(const std::string& why) {
    failed_ = {Code::unavailable,
               "the memory node serves no lanes any more, restart it: " + device_->name() + ": " + why};
    log_(failed_.message());
    for (auto lane = lanes_.begin(); lane != lanes_.end();) lane = end(lane, failed_);
  }

  Status have_manager() {
    auto manager = ConnectionManager::open(*device_);
    if (!manager.ok()) return manager.status();
    auto listening = (*manager)->listen(*this, manager_port_);
    if (!listening.ok()) return listening.status();
    manager_ = std::move(*manager);
    listening_ = std::move(*listening);
    manager_watch_ =
        std::make_unique<net::Watch>(control_, manager_->descriptor(), [this] { manager_->take_events(); });
    return {};
  }

  // ---- the beginning of a lane

  Status make(Lane& lane, const LaneRights& rights, base::Bytes bytes) {
    if (!failed_.ok()) return failed_;
    const auto request = get_request(bytes);
    if (!request) return {Code::invalid_argument, "what the client says of its queue pair cannot be"};
    if (free_replies_.empty()) {
      return {Code::unavailable, "there are " + std::to_string(inbox_->lanes()) + " lanes already, and " +
                                     device_->name() + " or --max-lanes lets no more be"};
    }
    lane.reply = free_replies_.back();
    free_replies_.pop_back();
    const std::uint8_t depth =
        least(std::min(request->client.depth, kMostOutstanding), device_->limits().max_qp_rd_atom);
    auto pair = QueuePair::make(*device_, regions_.domain(), completions_.get(),
                                {.sends = kSends,
                                 .access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
                                 .shared_receives = inbox_->queue()},
                                static_cast<std::uint32_t>(random_()), depth);
    if (!pair.ok()) return pair.status();
    lane.pair = std::move(*pair);
    for (const auto& key : request->keys) {
      if (Status status = grant(lane, rights, key); !status.ok()) return status;
    }
    AttachReply& said = lane.said;
    said.node = lane.pair->end();
    said.node.mtu = std::min(said.node.mtu, request->client.mtu);
    said.node.depth = depth;
    said.nonce = request->nonce;
    said.patience = patience_within(device_->options().failure_timeout);
    lane.client = request->client;
    if (request->calls && rights.service != nullptr) {
      if (Status status = admit_calls(lane, *rights.service, *request->calls); !status.ok()) return status;
    }
    if (request->managed && manager_ != nullptr) {
      said.manager_port = manager_port_;
      lane.claim = Claim{.queue_pair = said.node.queue_pair, .nonce = request->nonce};
      return {};
    }
    if (Status status = lane.pair->connect(request->client, said.node.mtu, depth, said.patience); !status.ok()) {
      return status;
    }
    return open_calls(lane);
  }

  Status admit_calls(Lane& lane, Service& service, const CallEnd& client) {
    std::unique_ptr<CallServer>& server = servers_[next_server_++ % servers_.size()];
    if (server == nullptr) {
      auto made = CallServer::make(device_, regions_.domain(), spin_, end_of_calls());
      if (!made.ok()) return made.status();
      std::lock_guard lock(servers_mutex_);
      server = std::move(*made);
    }
    auto link = server->admit({.lane = lane.id,
                               .session_id = lane.session_id,
                               .service = &service,
                               .client = client,
                               .lane_of_client = lane.client,
                               .sequence = static_cast<std::uint32_t>(random_()),
                               .cookie = random_()});
    if (!link.ok()) return link.status();
    lane.server = server.get();
    lane.link = std::move(*link);
    lane.said.calls = CallServer::said(*lane.link);
    return {};
  }
  Status open_calls(Lane& lane) {
    if (lane.link == nullptr) return {};
    return lane.server->open(lane.link, lane.connection.get(), lane.said.node.mtu, lane.said.patience);
  }
  // Called on the server's thread: the lane ends on the control thread, if this still exists then.
  CallServer::Ended end_of_calls() {
    return [this, &control = control_, alive = std::weak_ptr(alive_)](std::uint64_t lane, const std::string& why) {
      control.post([this, alive, lane, why] {
        if (alive.expired() || !lanes_.contains(lane)) return;
        why.empty() ? end_broken(lane) : broke(lane, why);
      });
    };
  }
  CallStats data_stats() const {
    CallStats sum;
    std::lock_guard lock(servers_mutex_);
    for (const auto& server : servers_) {
      if (server != nullptr) sum += server->stats();
    }
    return sum;
  }

  void answer_client(Lane& lane) { std::exchange(lane.begun, nullptr)(put(lane.said)); }

  // A connection becomes a lane's if it brings what the session port told its client, and comes from the queue pair
  // that the client named there: once, and only while the session port's own connection is open. All others are
  // refused.
  void on_connection_event(const ConnectionEvent& event) override {
    if (event.type != RDMA_CM_EVENT_CONNECT_REQUEST) return;  // the session port tells of the end of what there is
    Connection connection(event.id);
    const auto found = event.claim ? by_number_.find(event.claim->queue_pair) : by_number_.end();
    Lane* lane = found != by_number_.end() ? found->second : nullptr;
    if (lane == nullptr || !lane->claim || lane->claim->nonce != event.claim->nonce ||
        lane->client.queue_pair != event.peer_queue_pair) {
      ::rdma_reject(event.id, nullptr, 0);
      return;
    }
    lane->claim.reset();
    lane->connection = std::move(connection);
    Status status = lane->pair->connect(*lane->connection, lane->client, lane->said.node.mtu, lane->said.node.depth,
                                        lane->said.patience);
    if (status.ok()) status = open_calls(*lane);
    if (!status.ok()) log_(status.message());
    if (!status.ok() || !bind_next(*lane)) end_broken(lane->id);
  }

  Status grant(Lane& lane, const LaneRights& rights, const AttachRequest::Key& key) {
    if (key.region == kTrialWord) return make_trial_word(lane);
    const auto right = std::find_if(rights.regions.begin(), rights.regions.end(),
                                    [&key](const RegionRight& each) { return each.id == key.region; });
    if (right == rights.regions.end() || right->key != key.key) {
      return {Code::forbidden, "region " + std::to_string(key.region) + " is not granted under that key"};
    }
    auto granted = regions_.grant(*right, random_);
    if (!granted.ok()) return granted.status();
    if (granted->window) lane.windows.push_back({std::move(*granted->window), lane.said.places.size()});
    lane.without_windows |= granted->on_other_lanes;
    lane.said.places.push_back(granted->place);
    return {};
  }

  Status make_trial_word(Lane& lane) {
    if (lane.trial) return {Code::invalid_argument, "the client asks for two words to try on"};
    auto made = regions_.make_trial_word(random_);
    if (!made.ok()) return made.status();
    lane.said.places.push_back(made->place);
    lane.trial = std::move(*made);
    return {};
  }

  // Binds windows one after the other; its client may use the lane when all are bound. Returns false if the lane must
  // end.
  bool bind_next(Lane& lane) {
    if (lane.bound == lane.windows.size()) return open(lane);
    const Window& window = lane.windows[lane.bound];
    ibv_send_wr wr = window.window.binding(lane.said.places[window.place].key);
    wr.wr_id = kBind;
    wr.send_flags = IBV_SEND_SIGNALED;
    return post(lane, wr);
  }

  // Counts the lane before it tells the client, which looks at once.
  bool open(Lane& lane) {
    lane.open = true;
    managed_.fetch_add(lane.connection != nullptr ? 1 : 0, std::memory_order_relaxed);
    windows_.fetch_add(lane.windows.size(), std::memory_order_relaxed);
    without_windows_.fetch_add(lane.without_windows ? 1 : 0, std::memory_order_relaxed);
    if (lane.connection == nullptr) {
      answer_client(lane);
      return true;
    }
    rdma_conn_param answer{};
    answer.responder_resources = answer.initiator_depth = lane.said.node.depth;
    answer.rnr_retry_count = kReceiverNotReadyRetries;
    answer.srq = 1;
    answer.qp_num = lane.said.node.queue_pair;
    return ::rdma_accept(lane.connection.get(), &answer) == 0;
  }

  // ---- what came

  void take_events() {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    unsigned events = 0;
    while (::ibv_get_cq_event(events_.get(), &queue, &context) == 0) ++events;
    if (events > 0) ::ibv_ack_cq_events(completions_.get(), events);
    if (::ibv_req_notify_cq(completions_.get(), 0) != 0) log_(device_->name() + " tells of completions no more");
    for (collect(); !arrived_.empty(); collect()) {
      const Arrival arrival = arrived_.front();
      arrived_.pop_front();
      take(arrival);
    }
  }

  // Takes completions whose lanes are known. Some may be taken off the queue before their event, which still comes
  // then.
  void collect() {
    ibv_wc done{};
    while (::ibv_poll_cq(completions_.get(), 1, &done) > 0) {
      const auto lane = by_number_.find(done.qp_num);
      const Arrival arrival{.lane = lane == by_number_.end() ? 0 : lane->second->id,
                            .request = done.wr_id,
                            .status = done.status,
                            .bytes = done.status == IBV_WC_SUCCESS ? done.byte_len : 0};
      arrived_.push_back(arrival);
    }
  }

  void take(const Arrival& arrival) {
    const auto place = lanes_.find(arrival.lane);
    const bool receive = (arrival.request & kKind) == 0;
    if (place == lanes_.end()) {
      if (receive) post(static_cast<std::uint32_t>(arrival.request));
      return;
    }
    Lane& lane = *place->second;
    if (receive && lane.receive) {
      post(static_cast<std::uint32_t>(arrival.request));
      return broke(arrival.lane, "its client called while a CALL was out");
    }
    if (receive) lane.receive = static_cast<std::uint32_t>(arrival.request);
    if (arrival.status != IBV_WC_SUCCESS) {
      if ((arrival.request & kKind) == kBind) give_up_windows(arrival.status);
      return broke(arrival.lane, ::ibv_wc_status_str(arrival.status));
    }
    bool goes_on = false;
    if (receive) {
      goes_on = take_call(lane, arrival.bytes);
    } else if ((arrival.request & kKind) == kFetch) {
      goes_on = execute(lane, lane.room->request().first(lane.head.bytes));
    } else if ((arrival.request & kKind) == kBind) {
      ++lane.bound;
      goes_on = bind_next(lane);
    } else {
      goes_on = !lane.refused;
      if (lane.call == Lane::Call::none && arrival.request == answer_request(lane)) give_back_room(lane);
    }
    if (!goes_on) end_broken(arrival.lane);  // unless a CALL has fenced its own session
  }
  // Ends a lane that exists.
  void broke(std::uint64_t id, const std::string& why) {
    broken_.fetch_add(1, std::memory_order_relaxed);
    log_("a lane by " + device_->name() + " has ended: " + why);
    end_broken(id);
  }
  void end_broken(std::uint64_t id) {
    const auto lane = lanes_.find(id);
    if (lane != lanes_.end()) end(lane, {Code::unavailable, device_->name() + " broke the memory node's queue pair"});
  }
  // That queue pair has done nothing except bind. The client's next lane goes without windows.
  void give_up_windows(ibv_wc_status status) {
    device_->give_up_windows();
    regions_.say_without_windows(std::string("does not bind memory windows, ") + ::ibv_wc_status_str(status));
  }
  static std::uint64_t answer_request(const Lane& lane) { return kAnswer | (lane.head.number & ~kKind); }

  // ---- CALLs; false: the lane is to end

  bool take_call(Lane& lane, std::uint32_t bytes) {
    const base::Bytes message = inbox_->received(*lane.receive, bytes);
    if (bytes < kCallHeadBytes || lane.refused || !lane.open || lane.call != Lane::Call::none) return false;
    const auto head = base::load<CallHead>(message.data());
    const bool near = head.bytes <= kNearBytes;
    if (head.room > kMaxCallBytes || head.bytes > kMaxCallBytes || head.number != lane.head.number + 1 ||
        bytes != kCallHeadBytes + (near ? head.bytes : 0)) {
      return false;
    }
    lane.head = head;
    if (near && head.room <= kNearReplyBytes) return execute(lane, message.subspan(kCallHeadBytes));
    // Rooms come back: their holders wait only for devices, which give up in time.
    if (lane.room == nullptr) lane.room = inbox_->take_room();
    if (lane.room != nullptr) return start(lane);
    waits_.fetch_add(1, std::memory_order_relaxed);
    lane.call = Lane::Call::waits;
    waiting_.push_back(&lane);
    return true;
  }

  void on_turn_end() noexcept override {
    while (!waiting_.empty()) {
      Lane& lane = *waiting_.front();
      lane.room = inbox_->take_room();
      if (lane.room == nullptr) return;
      waiting_.pop_front();
      const std::uint64_t id = lane.id;
      if (!start(lane)) end_broken(id);
    }
  }

  // It has a room.
  bool start(Lane& lane) {
    if (lane.head.bytes <= kNearBytes) {
      return execute(lane, inbox_->received(*lane.receive, kReceiveBytes).subspan(kCallHeadBytes, lane.head.bytes));
    }
    lane.call = Lane::Call::fetches;
    const base::MutableBytes into = lane.room->request().first(lane.head.bytes);
    ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(into.data()),
                 .length = static_cast<std::uint32_t>(into.size()),
                 .lkey = inbox_->key()};
    ibv_send_wr wr{};
    wr.wr_id = kFetch;
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {.remote_addr = lane.head.address, .rkey = lane.head.key};
    return post(lane, wr);
  }

  bool execute(Lane& lane, base::Bytes request) {
    calls_.fetch_add(1, std::memory_order_relaxed);
    const base::MutableBytes reply = lane.room != nullptr ? lane.room->reply() : inbox_->reply(*lane.reply);
    const CallHead head = lane.head;
    lane.call = Lane::Call::executes;
    const auto length =
        host_->on_call(lane.session_id, head.opcode, request, reply.subspan(kAnswerHeadBytes, head.room));
    if (executing_ != nullptr) {  // its own session is fenced
      release(*executing_);
      executing_.reset();
      return true;
    }
    lane.call = Lane::Call::none;
    FARPOOL_CHECK(!length || *length <= head.room);
    AnswerHead answer{.refused = length ? 0u : 1u, .bytes = 0, .number = head.number};
    if (length) answer.bytes = static_cast<std::uint32_t>(*length);
    base::store(reply.data(), answer);
    lane.refused = !length;
    // Posts it before the reply leaves, because the next CALL may follow at once.
    if (Status status = inbox_->post(*std::exchange(lane.receive, std::nullopt)); !status.ok()) return false;
    ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(reply.data()),
                 .length = static_cast<std::uint32_t>(kAnswerHeadBytes + answer.bytes),
                 .lkey = inbox_->key()};
    ibv_send_wr wr{};
    wr.wr_id = answer_request(lane);
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    return post(lane, wr);
  }

  static bool post(Lane& lane, ibv_send_wr& wr) {
    ibv_send_wr* bad = nullptr;
    return ::ibv_post_send(lane.pair->raw(), &wr, &bad) == 0;
  }

  net::Loop& control_;
  const std::shared_ptr<Device> device_;
  const Log log_;
  const std::size_t most_;  // lanes
  const Nanos spin_;
  Host* host_ = nullptr;
  std::function<std::uint64_t()> random_;
  // Destroyed from the bottom up, after every lane.
  Regions regions_;
  CompletionEvents events_;
  Completions completions_;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<ConnectionManager> manager_;  // none: there are only connections that the session port tells of
  Connection listening_;
  std::uint16_t manager_port_ = 0;
  mutable std::mutex servers_mutex_;                  // the control thread alone makes some
  std::vector<std::unique_ptr<CallServer>> servers_;  // of CALLs for data; null: not needed yet
  std::size_t next_server_ = 0;
  std::unordered_map<std::uint64_t, std::unique_ptr<Lane>> lanes_;
  std::unordered_map<std::uint32_t, Lane*> by_number_;  // of their queue pairs
  std::vector<std::uint32_t> free_replies_;
  std::deque<Arrival> arrived_;
  std::deque<Lane*> waiting_;        // for a room
  std::unique_ptr<Lane> executing_;  // that has ended while its CALL is at work
  Status failed_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<DeviceEvents::Subscription> subscription_;
  std::unique_ptr<net::Watch> watch_, manager_watch_, events_watch_;
  std::atomic<std::uint64_t> count_{0}, managed_{0}, calls_{0}, waits_{0}, broken_{0}, windows_{0}, without_windows_{0};
};

VerbsResponder::VerbsResponder(net::Loop& control, session_port::Options options, std::shared_ptr<Device> device,
                               Log log)
    : lanes_(std::make_unique<Lanes>(
          control, std::move(device), log ? std::move(log) : [](const std::string&) {}, options)),
      session_port_(control, std::move(options)) {}

VerbsResponder::~VerbsResponder() = default;

Status VerbsResponder::serve(Host& host) {
  if (Status status = lanes_->begin(host, [this] { return session_port_.random(); }); !status.ok()) return status;
  return session_port_.serve(host, *lanes_);
}

// Returns the longest form: what a client with datagrams can send is up to its own wire.
Caps VerbsResponder::caps() const { return wire_caps(lanes_->device(), CallForm::connected); }

void VerbsResponder::fence(std::uint64_t session_id, std::function<void()> done) {
  session_port_.fence(session_id,
                      [lanes = lanes_.get(), session_id, done = std::move(done)] { lanes->drain(session_id, done); });
}

Status VerbsResponder::place_in_device(base::Bytes region) { return lanes_->regions().place_in_device(region); }

std::uint64_t VerbsResponder::address_in_packets(const std::byte* region) const {
  return lanes_->regions().begin_of(region);
}

VerbsStats VerbsResponder::stats() const { return lanes_->stats(); }

}  // namespace farpool::fabric::verbs
