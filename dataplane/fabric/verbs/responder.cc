// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/responder.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fabric/fabric.h"
#include "fabric/verbs/call.h"
#include "fabric/verbs/device_memory.h"
#include "fabric/verbs/queue_pair.h"

namespace farpool::fabric::verbs {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr std::uint8_t kMostOutstanding = 16;  // READs and atomics of one lane
constexpr int kSends = 4;                      // the one before may not be acknowledged yet
constexpr std::size_t kMessageBytes = kCallHeadBytes + kMaxCallBytes;

// A region as the device knows it.
struct Exposed {
  std::uint64_t bytes = 0;
  std::uint32_t key = 0;
  std::uint64_t begin = 0;
  Registration registration;                    // of host memory
  std::unique_ptr<DeviceMemory> device_memory;  // or this
};

enum Request : std::uint64_t { kReceive = 1, kSend = 2 };

}  // namespace

class VerbsResponder::Lanes final : public tcp::LaneMaker {
 public:
  Lanes(net::Loop& control, std::shared_ptr<Device> device) : control_(control), device_(std::move(device)) {}

  Status place_in_device(base::Bytes region) {
    if (Status status = have_domain(); !status.ok()) return status;
    auto memory = DeviceMemory::make(domain_.get(), region);
    if (!memory.ok()) return memory.status();
    Exposed& exposed = exposed_[{region.data(), false}];
    exposed = {.bytes = region.size(), .key = (*memory)->key(), .device_memory = std::move(*memory)};
    return {};
  }

  Status begin(Host& host, std::function<std::uint64_t()> random) {
    if (Status status = have_domain(); !status.ok()) return status;
    auto events = make_completion_events(*device_);
    if (!events.ok()) return events.status();
    events_ = std::move(*events);
    host_ = &host;
    random_ = std::move(random);
    watch_ = std::make_unique<net::Watch>(control_, events_->fd, [this] { take_events(); });
    return {};
  }

  Result<std::string> attach(std::uint64_t id, const LaneRights& rights, base::Bytes bytes) override {
    const auto request = get_request(bytes);
    if (!request) return Status(Code::invalid_argument, "what the client says of its queue pair cannot be");
    AttachReply reply;
    auto lane = std::make_unique<Lane>();
    for (const auto& key : request->keys) {
      if (key.region == kTrialWord) {
        auto word = make_trial_word(*lane);
        if (!word.ok()) return word.status();
        reply.places.push_back(*word);
        continue;
      }
      const auto right = std::find_if(rights.regions.begin(), rights.regions.end(),
                                      [&key](const RegionRight& each) { return each.id == key.region; });
      if (right == rights.regions.end() || right->key != key.key) {
        return Status(Code::forbidden, "region " + std::to_string(key.region) + " is not granted under that key");
      }
      auto exposed = expose(*right);
      if (!exposed.ok()) return exposed.status();
      reply.places.push_back(
          {.region = key.region, .key = (*exposed)->key, .begin = (*exposed)->begin, .read_only = right->read_only});
    }
    lane->id = id;
    lane->session_id = rights.session_id;
    if (Status status = make(*lane, *request, reply); !status.ok()) return status;
    reply.node = lane->pair->end();
    reply.node.mtu = std::min(reply.node.mtu, request->client.mtu);
    reply.node.depth = depth_for(*request);
    reply.nonce = request->nonce;
    lanes_.emplace(id, std::move(lane));
    count_.store(lanes_.size(), std::memory_order_relaxed);
    return put(reply);
  }

  void detach(std::uint64_t id) override {
    if (const auto lane = lanes_.find(id); lane != lanes_.end()) end(lane);
  }

  void fence(std::uint64_t session_id) override {
    for (auto lane = lanes_.begin(); lane != lanes_.end();) {
      lane = lane->second->session_id == session_id ? end(lane) : std::next(lane);
    }
  }

  VerbsStats stats() const {
    return {.lanes = count_.load(std::memory_order_relaxed),
            .calls = calls_.load(std::memory_order_relaxed),
            .broken = broken_.load(std::memory_order_relaxed)};
  }

 private:
  // Destroyed from the bottom up: no queue pair uses what is above it any more.
  struct Lane {
    std::uint64_t id = 0;
    std::uint64_t session_id = 0;
    std::unique_ptr<std::byte[]> request = std::make_unique_for_overwrite<std::byte[]>(kMessageBytes);
    std::unique_ptr<std::byte[]> answer = std::make_unique_for_overwrite<std::byte[]>(kMessageBytes);
    std::unique_ptr<std::uint64_t> trial_word;
    Registration request_memory, answer_memory, trial_memory;
    Completions completions;
    std::unique_ptr<QueuePair> pair;
    bool refused = false;  // ends when the answer has left
  };

  using Place = std::unordered_map<std::uint64_t, std::unique_ptr<Lane>>::iterator;
  // No verb of its peer executes once this has returned. Its memory stays while a CALL of it may be at work.
  Place end(Place lane) {
    lane->second->pair.reset();
    if (taking_) ended_.push_back(std::move(lane->second));
    const Place next = lanes_.erase(lane);
    count_.store(lanes_.size(), std::memory_order_relaxed);
    return next;
  }

  static std::uint8_t least(std::uint8_t wanted, int limit) {
    return static_cast<std::uint8_t>(std::clamp<int>(limit, 1, wanted));
  }
  std::uint8_t depth_for(const AttachRequest& request) const {
    return least(std::min(request.client.depth, kMostOutstanding), device_->limits().max_qp_rd_atom);
  }

  Status have_domain() {
    if (domain_ != nullptr) return {};
    auto domain = make_protection_domain(*device_);
    if (!domain.ok()) return domain.status();
    domain_ = std::move(*domain);
    return {};
  }

  // Registered when a client first asks for it, and for good: what revokes rights is the end of queue pairs.
  Result<const Exposed*> expose(const RegionRight& right) {
    auto [place, fresh] = exposed_.try_emplace({right.base, right.read_only});
    Exposed& exposed = place->second;
    if (!fresh && exposed.bytes == right.bytes) return &exposed;
    FARPOOL_CHECK(exposed.device_memory == nullptr);  // what lies there is the whole region
    exposed.bytes = right.bytes;
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    if (!right.read_only) access |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    auto registration =
        register_memory_at_random(domain_.get(), right.base, right.bytes, access, random_(), exposed.begin);
    if (!registration.ok()) {
      exposed_.erase(place);
      return registration.status();
    }
    exposed.registration = std::move(*registration);
    exposed.key = exposed.registration->rkey;
    return &exposed;
  }

  Result<AttachReply::Place> make_trial_word(Lane& lane) {
    if (lane.trial_word != nullptr) return Status(Code::invalid_argument, "the client asks for two words to try on");
    lane.trial_word = std::make_unique<std::uint64_t>(MaskedCasTrial::kWord);
    AttachReply::Place place{.region = kTrialWord};
    auto made = register_memory_at_random(
        domain_.get(), lane.trial_word.get(), sizeof(std::uint64_t),
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC, random_(),
        place.begin);
    if (!made.ok()) return made.status();
    lane.trial_memory = std::move(*made);
    place.key = lane.trial_memory->rkey;
    return place;
  }

  Status make(Lane& lane, const AttachRequest& request, AttachReply& reply) {
    for (auto [memory, registration] :
         {std::pair{lane.request.get(), &lane.request_memory}, std::pair{lane.answer.get(), &lane.answer_memory}}) {
      auto made = register_memory(domain_.get(), memory, kMessageBytes, IBV_ACCESS_LOCAL_WRITE);
      if (!made.ok()) return made.status();
      *registration = std::move(*made);
    }
    lane.completions.reset(::ibv_create_cq(device_->context(), kSends + 1, &lane, events_.get(), 0));
    if (lane.completions == nullptr) return failure(device_->name() + ": a completion queue", errno);
    if (const int error = ::ibv_req_notify_cq(lane.completions.get(), 0)) {
      return failure(device_->name() + ": completion events", error);
    }
    auto pair = QueuePair::make(*device_, domain_.get(), lane.completions.get(),
                                {.sends = kSends,
                                 .receives = 1,
                                 .access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC},
                                static_cast<std::uint32_t>(random_()), depth_for(request));
    if (!pair.ok()) return pair.status();
    lane.pair = std::move(*pair);
    reply.patience = patience_within(device_->options().failure_timeout);
    if (Status status = post_receive(lane); !status.ok()) return status;
    return lane.pair->connect(request.client, std::min(request.client.mtu, lane.pair->end().mtu), depth_for(request),
                              reply.patience);
  }

  Status post_receive(Lane& lane) {
    ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(lane.request.get()),
                 .length = kMessageBytes,
                 .lkey = lane.request_memory->lkey};
    ibv_recv_wr receive{.wr_id = kReceive, .next = nullptr, .sg_list = &part, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    if (const int error = ::ibv_post_recv(lane.pair->raw(), &receive, &bad)) {
      return failure(device_->name() + ": a receive", error);
    }
    return {};
  }

  void take_events() {
    ibv_cq* completions = nullptr;
    void* context = nullptr;
    taking_ = true;
    while (::ibv_get_cq_event(events_.get(), &completions, &context) == 0) {
      ::ibv_ack_cq_events(completions, 1);  // of a lane that lives: its queue takes its events along
      auto& lane = *static_cast<Lane*>(context);
      if (!take_completions(lane)) detach(lane.id);
    }
    taking_ = false;
    ended_.clear();
  }

  // False: the lane is to end, if a CALL has not fenced its own session.
  bool take_completions(Lane& lane) {
    ibv_cq* queue = lane.completions.get();
    if (::ibv_req_notify_cq(queue, 0) != 0) return false;
    ibv_wc done{};
    for (int count = 0; (count = ::ibv_poll_cq(queue, 1, &done)) != 0;) {
      if (count < 0 || done.status != IBV_WC_SUCCESS) {
        broken_.fetch_add(1, std::memory_order_relaxed);
        return false;
      }
      if (done.wr_id == kReceive ? !take_call(lane, done.byte_len) : lane.refused) return false;
    }
    return true;
  }

  bool take_call(Lane& lane, std::uint32_t bytes) {
    if (lane.pair == nullptr || bytes < kCallHeadBytes || lane.refused) return false;
    const auto head = base::load<CallHead>(lane.request.get());
    if (head.room > kMaxCallBytes) return false;
    calls_.fetch_add(1, std::memory_order_relaxed);
    const base::Bytes request(lane.request.get() + kCallHeadBytes, bytes - kCallHeadBytes);
    const base::MutableBytes room(lane.answer.get() + kCallHeadBytes, head.room);
    const auto length = host_->on_call(lane.session_id, head.opcode, request, room);
    if (lane.pair == nullptr) return false;
    FARPOOL_CHECK(!length || *length <= head.room);
    AnswerHead answer{.refused = length ? 0u : 1u, .bytes = 0, .number = head.number};
    if (length) answer.bytes = static_cast<std::uint32_t>(*length);
    base::store(lane.answer.get(), answer);
    lane.refused = !length;
    // Before the answer leaves, since the next CALL may follow it at once.
    if (!post_receive(lane).ok()) return false;
    ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(lane.answer.get()),
                 .length = static_cast<std::uint32_t>(kCallHeadBytes + answer.bytes),
                 .lkey = lane.answer_memory->lkey};
    ibv_send_wr send{};
    send.wr_id = kSend;
    send.sg_list = &part;
    send.num_sge = 1;
    send.opcode = IBV_WR_SEND;
    send.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    return ::ibv_post_send(lane.pair->raw(), &send, &bad) == 0;
  }

  net::Loop& control_;
  const std::shared_ptr<Device> device_;
  Host* host_ = nullptr;
  std::function<std::uint64_t()> random_;
  ProtectionDomain domain_;
  CompletionEvents events_;
  std::map<std::pair<const std::byte*, bool>, Exposed> exposed_;  // by beginning, and whether it may only be read
  std::unordered_map<std::uint64_t, std::unique_ptr<Lane>> lanes_;
  bool taking_ = false;
  std::vector<std::unique_ptr<Lane>> ended_;  // while taking
  std::unique_ptr<net::Watch> watch_;
  std::atomic<std::uint64_t> count_{0}, calls_{0}, broken_{0};
};

VerbsResponder::VerbsResponder(net::Loop& control, tcp::ResponderOptions session_port, std::shared_ptr<Device> device)
    : lanes_(std::make_unique<Lanes>(control, std::move(device))), session_port_(control, std::move(session_port)) {}

VerbsResponder::~VerbsResponder() = default;

Status VerbsResponder::serve(Host& host) {
  if (Status status = lanes_->begin(host, [this] { return session_port_.random(); }); !status.ok()) return status;
  return session_port_.serve(host, lanes_.get());
}

Status VerbsResponder::place_in_device(base::Bytes region) { return lanes_->place_in_device(region); }

VerbsStats VerbsResponder::stats() const { return lanes_->stats(); }

}  // namespace farpool::fabric::verbs
