// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/call_server.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fabric/once.h"
#include "fabric/service.h"
#include "fabric/session_port/held_calls.h"
#include "fabric/verbs/data_call.h"
#include "fabric/verbs/datagrams.h"
#include "fabric/verbs/inbox.h"
#include "net/loop.h"

namespace farpool::fabric::verbs {

using base::Code;
using base::Result;
using base::Status;

namespace {

constexpr std::uint32_t kMostLinks = 256;
constexpr std::uint32_t kWindow = kMostDataCalls;
constexpr std::uint32_t kSends = 2 * kWindow;  // of a connected link
// The queue pair for datagrams has so much room. An answer without room is lost, as datagrams may be.
constexpr std::uint32_t kDatagramSends = 512, kDatagramReceives = 1024;
constexpr std::uint32_t kInlineBytes = 220;
constexpr std::size_t kReceiveStride = 4224, kSendStride = 4160;
static_assert(kReceiveStride >= kGlobalHeaderBytes + kMaxDataMessage && kSendStride >= kMaxDataMessage);
constexpr std::size_t kReceivesBytes = kWindow * kReceiveStride;
// A link has one answer for each line, and a refusal.
constexpr std::size_t kAnswersBytes = (kWindow + 1) * kSendStride;

// The kind of a completion, in the low byte; a receive has its place above it.
constexpr std::uint64_t kShared = 1, kDatagram = 2, kAnswer = 3, kRefusal = 4, kSentDatagram = 5;

// Memory that the device knows.
struct Block {
  std::unique_ptr<std::byte, Unmap> memory;
  Registration registration;

  static Result<Block> make(ibv_pd* domain, std::size_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return failure("memory for CALLs", ENOMEM);
    // A child of this process has no use for it, and must not make the device's pages copies.
    ::madvise(memory, bytes, MADV_DONTFORK);
    Block block{.memory = {static_cast<std::byte*>(memory), Unmap{bytes}}, .registration = {}};
    auto registration = register_memory(domain, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (!registration.ok()) return registration.status();
    block.registration = std::move(*registration);
    return block;
  }
};

}  // namespace

// Everything that is not marked as the control thread's belongs to the server's thread once the link is open.
class CallServer::Link {
 public:
  struct Line {
    std::uint64_t number = 0;
    bool runs = false;
    std::uint32_t answer = 0;  // bytes of the message that answers the last CALL; 0: none yet
    std::uint32_t sends = 0;   // of it that are not reported
  };
  Wanted wanted;
  CallEnd said;
  std::unique_ptr<QueuePair> pair;  // connected
  Address address;                  // datagrams
  std::optional<Block> answers;
  bool published = false;  // control thread

  std::array<Line, kWindow> lines;
  std::uint32_t sends = 0;            // not reported
  std::deque<std::uint32_t> waiting;  // lines whose answers find no room
  bool refused = false;               // executes nothing more
  std::uint64_t refused_id = 0;
  bool closed = false;
  bool connected() const { return wanted.client.form == CallForm::connected; }
  base::MutableBytes answer_at(std::uint32_t line) const {
    return {answers->memory.get() + line * kSendStride, kMaxDataMessage};
  }
};

struct CallServer::State final : net::Poller {
  State(std::shared_ptr<Device> opened, ibv_pd* protection, Ended told)
      : device(std::move(opened)), domain(protection), ended(std::move(told)) {}

  const std::shared_ptr<Device> device;
  ibv_pd* const domain;
  const Ended ended;
  std::atomic<std::uint64_t> links{0}, calls{0}, holds{0}, repeated{0}, ignored{0};

  // Destroyed from the bottom up: functions that wait in the loop may hold links.
  CompletionEvents events;
  Completions completions;
  std::uint32_t most_links = 0;
  Owned<ibv_srq, ibv_destroy_srq> receives;  // that connected links share
  std::vector<Block> receive_blocks;         // under the mutex: one for each connected link that there ever was at once
  std::vector<Block> free_answers;           // under the mutex
  // Made once a link wants datagrams: under the mutex, and read by a thread that has held it since.
  Block datagram_memory;
  std::unique_ptr<Datagrams> datagrams;
  std::uint32_t datagram_sends = 0;
  std::atomic<bool> datagrams_failed{false};
  struct Sent {
    std::shared_ptr<Link> link;  // whose memory and address they name
    std::uint32_t line = 0;
  };
  // Datagrams that are not reported, in order: from `first_sent` on, around the end.
  std::array<Sent, kDatagramSends> sent;
  std::uint32_t first_sent = 0;

  // The open links. Only the server's thread removes links, so what it has found stays. It takes the mutex for each
  // message, and finds it free: the control thread takes it only when a lane begins.
  mutable std::mutex mutex;
  std::unordered_map<std::uint32_t, std::shared_ptr<Link>> by_pair;
  std::unordered_map<std::uint64_t, std::shared_ptr<Link>> by_cookie;
  std::size_t connected_links = 0;  // control thread: admitted, and not closed
  std::size_t datagram_links = 0;

  struct Held {
    std::shared_ptr<Link> link;
    std::uint32_t line = 0;
  };
  session_port::HeldCalls<Held> held{[this](std::function<void()> what) { loop.post(std::move(what)); },
                                     [this](const Held& call, const auto& reply) { answer_held(call, reply); }};

  std::vector<ibv_wc> arrived;  // of these so many have been taken
  std::size_t taken = 0;
  bool armed = false;
  net::Loop loop;
  std::unique_ptr<net::Watch> watch;
  std::thread thread;

  // ---- the control thread

  Status begin(Nanos spin) {
    auto channel = make_completion_events(*device);
    if (!channel.ok()) return channel.status();
    events = std::move(*channel);
    const ibv_device_attr& limits = device->limits();
    constexpr std::uint32_t kOfLink = kWindow + kSends, kOfDatagrams = kDatagramSends + kDatagramReceives;
    const auto limit = [](int most) { return static_cast<std::uint32_t>(std::max(most, 1)); };
    if (limit(limits.max_cqe) < kOfDatagrams + kOfLink || limit(limits.max_srq_wr) < kWindow) {
      return {Code::unavailable, device->name() + " has queues that are too short for CALLs"};
    }
    most_links =
        std::min({kMostLinks, limit(limits.max_srq_wr) / kWindow, (limit(limits.max_cqe) - kOfDatagrams) / kOfLink});
    completions.reset(::ibv_create_cq(device->context(), static_cast<int>(most_links * kOfLink + kOfDatagrams), nullptr,
                                      events.get(), 0));
    if (completions == nullptr) return failure(device->name() + ": a completion queue for CALLs", errno);
    ibv_srq_init_attr shared{};
    shared.attr = {.max_wr = most_links * kWindow, .max_sge = 1, .srq_limit = 0};
    receives.reset(::ibv_create_srq(domain, &shared));
    if (receives == nullptr) return failure(device->name() + ": a shared queue of receives for CALLs", errno);
    loop.set_spin(spin);
    loop.add(*this);
    watch = std::make_unique<net::Watch>(loop, events->fd, [this] { take_events(); });
    thread = std::thread([this] { loop.run(); });
    return {};
  }

  Result<std::shared_ptr<Link>> admit(const Wanted& wanted) {
    auto link = std::make_shared<Link>();
    link->wanted = wanted;
    std::size_t& count = link->connected() ? connected_links : datagram_links;
    if (count == most_links) {
      return Status(Code::unavailable, "there are " + std::to_string(count) +
                                           " lanes with CALLs for data already, and " + device->name() +
                                           " or this memory node lets no more be");
    }
    if (Status status = give_answers(*link); !status.ok()) return status;
    link->said = {.form = wanted.client.form,
                  .window = std::min(kWindow, wanted.client.window),
                  .bytes = std::min(static_cast<std::uint32_t>(kMaxDataBytes), wanted.client.bytes),
                  .cookie = wanted.cookie};
    Status status = link->connected() ? make_pair(*link) : make_address(*link);
    if (!status.ok()) {
      take_answers_back(*link);
      return status;
    }
    ++count;
    return link;
  }

  Status make_pair(Link& link) {
    // A link that ended has left its receives posted, for the next one.
    if (receive_blocks.size() < connected_links + 1) {
      auto block = Block::make(domain, kReceivesBytes);
      if (!block.ok()) return block.status();
      std::uint64_t number = 0;
      {
        std::lock_guard lock(mutex);
        number = receive_blocks.size();
        receive_blocks.push_back(std::move(*block));
      }
      for (std::uint32_t i = 0; i < kWindow; ++i) {
        if (!post_shared(number * kWindow + i)) return {Code::unavailable, device->name() + ": a receive for CALLs"};
      }
    }
    auto pair = QueuePair::make(*device, domain, completions.get(),
                                {.sends = kSends, .inline_bytes = kInlineBytes, .shared_receives = receives.get()},
                                link.wanted.sequence, 1);
    if (!pair.ok()) return pair.status();
    link.pair = std::move(*pair);
    link.said.queue_pair = link.pair->end().queue_pair;
    link.said.sequence = link.pair->end().sequence;
    return {};
  }

  Status make_address(Link& link) {
    if (datagrams_failed) {
      return {Code::unavailable, device->name() + " sends no datagrams any more: restart the memory node"};
    }
    if (datagrams == nullptr) {
      auto memory = Block::make(domain, kDatagramReceives * kReceiveStride);
      if (!memory.ok()) return memory.status();
      auto made = Datagrams::make(*device, domain, completions.get(), kDatagramSends, kDatagramReceives, kInlineBytes,
                                  link.wanted.sequence & 0x7fff'ffff);
      if (!made.ok()) return made.status();
      {
        std::lock_guard lock(mutex);
        datagram_memory = std::move(*memory);
        datagrams = std::move(*made);
      }
      for (std::uint32_t i = 0; i < kDatagramReceives; ++i) {
        if (!post_datagram_receive(i)) return {Code::unavailable, device->name() + ": a receive for datagrams"};
      }
    }
    auto address = datagrams->address_of(link.wanted.lane_of_client.gid);
    if (!address.ok()) return address.status();
    link.address = std::move(*address);
    link.said.queue_pair = datagrams->number();
    link.said.sequence = datagrams->key();
    link.said.bytes =
        std::min<std::uint32_t>(link.said.bytes, static_cast<std::uint32_t>(datagram_bytes(*device) - kDataHeadBytes));
    return {};
  }

  Status open(const std::shared_ptr<Link>& link, rdma_cm_id* connection, std::uint8_t mtu, Patience patience) {
    if (link->connected()) {
      const End peer{.queue_pair = link->wanted.client.queue_pair,
                     .sequence = link->wanted.client.sequence,
                     .mtu = mtu,
                     .depth = 1,
                     .gid = link->wanted.lane_of_client.gid};
      Status status = connection != nullptr ? link->pair->connect_beside(*connection, peer, mtu, 1, patience)
                                            : link->pair->connect(peer, mtu, 1, patience);
      if (!status.ok()) return status;
    }
    std::lock_guard lock(mutex);
    link->published = true;
    if (link->connected()) {
      by_pair[link->said.queue_pair] = link;
    } else {
      by_cookie[link->said.cookie] = link;
    }
    links.fetch_add(1, std::memory_order_relaxed);
    return {};
  }

  void close(std::shared_ptr<Link> link) {
    --(link->connected() ? connected_links : datagram_links);
    loop.post([this, link = std::move(link)] { end(*link); });
  }

  Status give_answers(Link& link) {
    {
      std::lock_guard lock(mutex);
      if (!free_answers.empty()) {
        link.answers = std::move(free_answers.back());
        free_answers.pop_back();
        return {};
      }
    }
    auto block = Block::make(domain, kAnswersBytes);
    if (!block.ok()) return block.status();
    link.answers = std::move(*block);
    return {};
  }
  void take_answers_back(Link& link) {
    std::lock_guard lock(mutex);
    free_answers.push_back(std::move(*std::exchange(link.answers, std::nullopt)));
  }

  // ---- receives; any thread

  struct Receive {
    std::byte* at = nullptr;
    std::uint32_t key = 0;
  };
  Receive shared_receive(std::uint64_t place) const {
    std::lock_guard lock(mutex);
    const Block& block = receive_blocks[place / kWindow];
    return {block.memory.get() + place % kWindow * kReceiveStride, block.registration->lkey};
  }
  bool post_shared(std::uint64_t place) {
    const Receive receive = shared_receive(place);
    ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(receive.at), .length = kMaxDataMessage, .lkey = receive.key};
    ibv_recv_wr wr{.wr_id = kShared | place << 8, .next = nullptr, .sg_list = &part, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    return ::ibv_post_srq_recv(receives.get(), &wr, &bad) == 0;
  }
  std::byte* datagram_at(std::uint64_t place) const {
    std::lock_guard lock(mutex);
    return datagram_memory.memory.get() + place * kReceiveStride;
  }
  bool post_datagram_receive(std::uint64_t place) {
    ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(datagram_at(place)),
                 .length = kGlobalHeaderBytes + kMaxDataMessage,
                 .lkey = datagram_memory.registration->lkey};
    ibv_recv_wr wr{.wr_id = kDatagram | place << 8, .next = nullptr, .sg_list = &part, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    return ::ibv_post_recv(datagrams->raw(), &wr, &bad) == 0;
  }

  // ---- the server's thread, from here on

  void take_events() {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    unsigned count = 0;
    while (::ibv_get_cq_event(events.get(), &queue, &context) == 0) ++count;
    if (count > 0) ::ibv_ack_cq_events(completions.get(), count);
    armed = false;
  }

  void collect() {
    std::array<ibv_wc, 32> came;
    for (;;) {
      const int count = ::ibv_poll_cq(completions.get(), static_cast<int>(came.size()), came.data());
      if (count <= 0) return;
      arrived.insert(arrived.end(), came.begin(), came.begin() + count);
    }
  }
  bool poll() noexcept override {
    collect();
    return take_arrived();
  }
  bool take_arrived() {
    const bool any = !arrived.empty();
    while (taken < arrived.size()) {
      const ibv_wc done = arrived[taken++];
      take(done);
    }
    arrived.clear();
    taken = 0;
    return any;
  }
  // A completion that came before the queue was armed wakes no thread.
  bool may_sleep() noexcept override {
    if (armed) return true;
    if (::ibv_req_notify_cq(completions.get(), 0) != 0) return false;
    armed = true;
    collect();
    return arrived.empty();
  }

  std::shared_ptr<Link> find_pair(std::uint32_t number) const {
    std::lock_guard lock(mutex);
    const auto found = by_pair.find(number);
    return found == by_pair.end() ? nullptr : found->second;
  }
  std::shared_ptr<Link> find_cookie(std::uint64_t cookie) const {
    std::lock_guard lock(mutex);
    const auto found = by_cookie.find(cookie);
    return found == by_cookie.end() ? nullptr : found->second;
  }

  void take(const ibv_wc& done) {
    const std::uint64_t place = done.wr_id >> 8;
    switch (done.wr_id & 0xff) {
      case kShared:
        return take_shared(done, place);
      case kDatagram:
        return take_datagram(done, place);
      case kSentDatagram:
        return datagram_left(done.status);
      default:
        return answer_left(done);
    }
  }

  void take_shared(const ibv_wc& done, std::uint64_t place) {
    const std::shared_ptr<Link> link = find_pair(done.qp_num);
    Reply reply;
    if (link != nullptr && done.status == IBV_WC_SUCCESS) {
      reply = serve(link, {shared_receive(place).at, done.byte_len});
    } else if (link != nullptr) {
      give_up(*link, ::ibv_wc_status_str(done.status));
    }
    // Posts it before the answer leaves, because the next CALL may follow at once.
    if (!post_shared(place) && link != nullptr) give_up(*link, "a receive for CALLs cannot be posted again");
    if (link != nullptr) reply_to(link, reply);
  }
  void take_datagram(const ibv_wc& done, std::uint64_t place) {
    std::shared_ptr<Link> link;
    Reply reply;
    if (done.status == IBV_WC_SUCCESS && done.byte_len >= kGlobalHeaderBytes + kDataHeadBytes) {
      const base::Bytes message{datagram_at(place) + kGlobalHeaderBytes, done.byte_len - kGlobalHeaderBytes};
      if (const auto request = get_data_request(message)) link = find_cookie(request->cookie);
      if (link != nullptr) reply = serve(link, message);
    }
    if (link == nullptr) ignored.fetch_add(1, std::memory_order_relaxed);
    post_datagram_receive(place);
    if (link != nullptr) reply_to(link, reply);
  }

  void answer_left(const ibv_wc& done) {
    const std::shared_ptr<Link> link = find_pair(done.qp_num);
    if (link == nullptr) return;
    --link->sends;
    if (done.status != IBV_WC_SUCCESS) return give_up(*link, ::ibv_wc_status_str(done.status));
    if ((done.wr_id & 0xff) == kRefusal) return give_up(*link, "");  // its client knows
    if (link->waiting.empty()) return;
    const std::uint32_t line = link->waiting.front();
    link->waiting.pop_front();
    send(link, line, link->lines[line].answer);
  }
  void datagram_left(ibv_wc_status status) {
    const Sent one = std::move(sent[first_sent]);
    first_sent = (first_sent + 1) % kDatagramSends;
    --datagram_sends;
    --one.link->sends;
    if (one.line < kWindow) --one.link->lines[one.line].sends;
    if (one.link->closed) release(*one.link);
    if (status == IBV_WC_SUCCESS || datagrams_failed.exchange(true)) return;
    std::vector<std::shared_ptr<Link>> all;
    {
      std::lock_guard lock(mutex);
      for (const auto& [cookie, link] : by_cookie) all.push_back(link);
    }
    for (const auto& link : all) give_up(*link, std::string("datagrams: ") + ::ibv_wc_status_str(status));
  }

  // The control thread ends the lane.
  void give_up(Link& link, const std::string& why) {
    link.refused = true;
    if (!link.closed) ended(link.wanted.lane, why);
  }

  void end(Link& link) {
    if (link.pair != nullptr) link.pair->stop();
    link.closed = true;
    if (link.published) {
      std::lock_guard lock(mutex);
      if (link.connected()) {
        by_pair.erase(link.said.queue_pair);
      } else {
        by_cookie.erase(link.said.cookie);
      }
      links.fetch_sub(1, std::memory_order_relaxed);
    }
    if (link.pair != nullptr) {
      // Otherwise the rest of its receives would be lost to all links.
      collect();
      take_arrived();
      link.sends = 0;
      destroy(std::move(link.pair));
    }
    release(link);
  }
  // What it has reported until now belongs to no link. The next queue pair may have its number, but is not open before
  // the mutex is free.
  void destroy(std::unique_ptr<QueuePair> pair) {
    constexpr std::uint32_t kNobody = 0;  // no connection's number
    const std::uint32_t number = pair->end().queue_pair;
    std::lock_guard lock(mutex);
    pair.reset();
    collect();
    for (ibv_wc& done : arrived) {
      if (done.qp_num == number) done.qp_num = kNobody;
    }
  }
  // Releases what its messages name, once all of them have left.
  void release(Link& link) {
    if (link.sends > 0) return;
    take_answers_back(link);
    link.address.reset();
  }

  // ---- CALLs

  // What to send: nothing, if it has no bytes.
  struct Reply {
    std::uint32_t line = 0;
    std::uint32_t bytes = 0;
  };

  class ServedCall final : public Call {
   public:
    ServedCall(State& server, const std::shared_ptr<Link>& link, std::uint32_t line, const DataRequest& request)
        : Call(link->wanted.session_id, request.opcode, request.body,
               link->answer_at(line).subspan(kDataHeadBytes, request.room), Hand()),
          server_(server),
          link_(link),
          line_(line) {}
    Ticket hold() override {
      FARPOOL_CHECK(!std::exchange(taken_, true));
      return server_.hold(link_, line_, reply.size());
    }
    bool taken() const { return taken_; }

   private:
    State& server_;
    const std::shared_ptr<Link>& link_;
    const std::uint32_t line_;
    bool taken_ = false;
  };

  Reply serve(const std::shared_ptr<Link>& shared, base::Bytes message) {
    Link& link = *shared;
    const auto request = get_data_request(message);
    const bool connected = link.connected();
    if (link.refused) {
      // The refusal may have been lost.
      if (connected || !request || request->id != link.refused_id) return {};
      repeated.fetch_add(1, std::memory_order_relaxed);
      return {.line = kWindow, .bytes = kDataHeadBytes};
    }
    if (!request || request->cookie != link.said.cookie) return refuse(link, 0, Refusal::malformed);
    const RequestId id = RequestId::of(request->id);
    if (id.line >= link.said.window) return refuse(link, request->id, Refusal::too_many);
    Link::Line& line = link.lines[id.line];
    if (id.number <= line.number) {
      if (connected) return refuse(link, request->id, line.runs ? Refusal::too_many : Refusal::malformed);
      repeated.fetch_add(1, std::memory_order_relaxed);
      if (id.number < line.number || line.runs) return {};
      return {.line = id.line, .bytes = line.answer};
    }
    if (line.runs) return refuse(link, request->id, Refusal::too_many);
    // An unsent answer would be overwritten by another; the client sends again.
    if (line.sends > 0) return {};
    if (request->body.size() > link.said.bytes || request->room > link.said.bytes) {
      return refuse(link, request->id, Refusal::too_long);
    }
    line.number = id.number;
    line.runs = true;
    line.answer = 0;
    calls.fetch_add(1, std::memory_order_relaxed);
    ServedCall call(*this, shared, id.line, *request);
    const Served served = link.wanted.service->serve(call);
    FARPOOL_CHECK(call.taken() == (served.kind() == Served::Kind::held) && served.bytes() <= request->room);
    if (served.kind() == Served::Kind::held) return {};
    line.runs = false;
    if (served.kind() == Served::Kind::refused) return refuse(link, request->id, served.why());
    return answer(link, id.line, served.bytes());
  }

  // The reply is behind the head already.
  Reply answer(Link& link, std::uint32_t number, std::size_t bytes) {
    Link::Line& line = link.lines[number];
    const base::MutableBytes message = link.answer_at(number);
    put_head(message, DataAnswer{.cookie = link.said.cookie,
                                 .id = RequestId{number, line.number}.word(),
                                 .body = message.subspan(kDataHeadBytes, bytes)});
    line.answer = static_cast<std::uint32_t>(kDataHeadBytes + bytes);
    return {.line = number, .bytes = line.answer};
  }
  // Refuses a CALL: nothing of the link executes any more.
  Reply refuse(Link& link, std::uint64_t id, Refusal why) {
    link.refused = true;
    link.refused_id = id;
    put_head(link.answer_at(kWindow), DataAnswer{.cookie = link.said.cookie, .id = id, .refused = true, .why = why});
    return {.line = kWindow, .bytes = kDataHeadBytes};
  }

  void reply_to(const std::shared_ptr<Link>& link, Reply reply) {
    if (reply.bytes == 0 || link->closed) return;
    if (!link->connected() || link->sends < kSends) return send(link, reply.line, reply.bytes);
    if (reply.line == kWindow) return give_up(*link, "a CALL was refused, and its client takes no answers");
    link->waiting.push_back(reply.line);
  }

  void send(const std::shared_ptr<Link>& shared, std::uint32_t line, std::uint32_t bytes) {
    Link& link = *shared;
    const bool connected = link.connected();
    if (!connected && datagram_sends == kDatagramSends) return;  // as good as lost
    ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(link.answer_at(line).data()),
                 .length = bytes,
                 .lkey = link.answers->registration->lkey};
    ibv_send_wr wr{};
    wr.wr_id = !connected ? kSentDatagram : line == kWindow ? kRefusal : kAnswer;
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (bytes <= (connected ? link.pair->inline_bytes() : datagrams->inline_bytes())) wr.send_flags |= IBV_SEND_INLINE;
    if (!connected) {
      wr.wr.ud = {.ah = link.address.get(),
                  .remote_qpn = link.wanted.client.queue_pair,
                  .remote_qkey = link.wanted.client.sequence};
    }
    ibv_send_wr* bad = nullptr;
    if (::ibv_post_send(connected ? link.pair->raw() : datagrams->raw(), &wr, &bad) != 0) {
      return give_up(link, "an answer cannot be sent");
    }
    ++link.sends;
    if (connected) return;
    sent[(first_sent + datagram_sends++) % kDatagramSends] = {.link = shared, .line = line};
    if (line < kWindow) ++link.lines[line].sends;
  }

  // ---- CALLs that are held

  Ticket hold(const std::shared_ptr<Link>& link, std::uint32_t line, std::size_t room) {
    holds.fetch_add(1, std::memory_order_relaxed);
    return held.hold(link->wanted.session_id, *link->wanted.service, {link, line}, room);
  }
  void answer_held(const Held& call, const std::optional<std::string>& reply) {
    holds.fetch_sub(1, std::memory_order_relaxed);
    Link& link = *call.link;
    if (link.closed || link.refused) return;
    link.lines[call.line].runs = false;
    if (!reply) return give_up(link, "its service has given back a CALL without an answer");
    if (!reply->empty()) std::memcpy(link.answer_at(call.line).data() + kDataHeadBytes, reply->data(), reply->size());
    reply_to(call.link, answer(link, call.line, reply->size()));
  }
};

Result<std::unique_ptr<CallServer>> CallServer::make(std::shared_ptr<Device> device, ibv_pd* domain, Nanos spin,
                                                     Ended ended) {
  auto state = std::make_unique<State>(std::move(device), domain, std::move(ended));
  if (Status status = state->begin(spin); !status.ok()) return status;
  return std::unique_ptr<CallServer>(new CallServer(std::move(state)));
}

CallServer::CallServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

CallServer::~CallServer() {
  state_->loop.stop();
  state_->thread.join();
  state_->held.close();
}

Result<std::shared_ptr<CallServer::Link>> CallServer::admit(const Wanted& wanted) { return state_->admit(wanted); }
const CallEnd& CallServer::said(const Link& link) { return link.said; }
Status CallServer::open(const std::shared_ptr<Link>& link, rdma_cm_id* connection, std::uint8_t mtu,
                        Patience patience) {
  return state_->open(link, connection, mtu, patience);
}
void CallServer::close(std::shared_ptr<Link> link) { state_->close(std::move(link)); }
void CallServer::drain(std::uint64_t session_id, std::function<void()> then) {
  state_->loop.post([&state = *state_, session_id, then = std::move(then)] { state.held.drain(session_id, then); });
}

CallStats CallServer::stats() const {
  const auto get = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  return {.links = get(state_->links),
          .calls = get(state_->calls),
          .held = get(state_->holds),
          .repeated = get(state_->repeated),
          .ignored = get(state_->ignored)};
}

}  // namespace farpool::fabric::verbs
