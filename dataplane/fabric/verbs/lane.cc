// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/lane.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "fabric/cost.h"

namespace farpool::fabric::verbs {

using base::Code;
using base::Result;
using base::Status;

namespace {

// Adds what the library's words leave open.
std::string_view meaning_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return ": the memory node, its NIC or the path to it is gone, or it has ended the lane";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return ": the memory node has no receive for a CALL";
    case IBV_WC_WR_FLUSH_ERR:
      return ": the queue pair was in error already";
    default:
      return "";
  }
}

}  // namespace

VerbsLane::VerbsLane(VerbsPort& port)
    : port_(port), number_(++port.last_lane_), memory_(port.buffer(8 * kDepth + kCallHeadBytes + kAnswerHeadBytes)) {
  memory_key_ = port_.memory_->arena->key_of(memory_.data());
}

VerbsLane::~VerbsLane() {
  FARPOOL_CHECK(pending_ == 0);
  end(false, nullptr);
  port_.forget(*this);
}

Result<AttachRequest> VerbsLane::prepare(const LaneGrant& grant) {
  const Device& device = *port_.memory_->device;
  endpoint_ = grant.endpoint;
  // Every request may report when the queue pair fails.
  const std::uint32_t of_calls = grant.calls ? CallLink::kSends + CallLink::kReceives : 0;
  completions_.reset(
      ::ibv_create_cq(device.context(), static_cast<int>(kDepth + 1 + of_calls), this, port_.memory_->events.get(), 0));
  if (completions_ == nullptr) return failure(device.name() + ": a completion queue", errno);
  const auto depth = static_cast<std::uint8_t>(std::clamp<int>(device.limits().max_qp_init_rd_atom, 1, kMostReads));
  native_ = device.masked_cas();
  auto pair = QueuePair::make(device, port_.memory_->domain.get(), completions_.get(),
                              {.sends = kDepth,
                               .receives = 1,
                               .send_parts = 2,
                               .receive_parts = 2,
                               .inline_bytes = kInlineBytes,
                               .access = IBV_ACCESS_REMOTE_READ,
                               .masked_cas = native_},
                              static_cast<std::uint32_t>(port_.random()), depth);
  if (!pair.ok()) return pair.status();
  pair_ = std::move(*pair);
  AttachRequest request{.client = pair_->end(),
                        .nonce = port_.random(),
                        .managed = port_.memory_->manager != nullptr && port_.unmanaged_.erase(endpoint_) == 0,
                        .keys = {}};
  for (const auto& region : grant.regions) request.keys.push_back({.region = region.id, .key = region.key});
  if (native_) request.keys.push_back({.region = kTrialWord});
  if (grant.calls) {
    Buffer memory = port_.buffer(CallLink::kMemoryBytes);
    const std::uint32_t key = port_.memory_->arena->key_of(memory.data());
    auto link = CallLink::make(device, port_.memory_->domain.get(), completions_.get(), port_.options_.calls,
                               std::move(memory), key, port_.random());
    if (!link.ok()) return link.status();
    link_ = std::move(*link);
    request.calls = link_->wanted();
  }
  return request;
}

bool VerbsLane::fits(const LaneGrant& grant, const AttachRequest& asked, const AttachReply& reply) const {
  return reply.nonce == asked.nonce && reply.node.depth <= asked.client.depth && reply.node.mtu <= asked.client.mtu &&
         (reply.manager_port == 0 || asked.managed) &&
         (!reply.calls || (asked.calls && reply.calls->form == asked.calls->form &&
                           reply.calls->window <= asked.calls->window && reply.calls->bytes <= asked.calls->bytes)) &&
         std::equal(reply.places.begin(), reply.places.end(), grant.regions.begin(), grant.regions.end(),
                    [](const auto& place, const auto& region) { return place.region == region.id; });
}

task::Task<Status> VerbsLane::begin(const LaneGrant& grant, const AttachRequest& asked, AttachReply reply,
                                    std::unique_ptr<net::Stream> stream, Nanos deadline) {
  if (native_ && !reply.places.empty() && reply.places.back().region == kTrialWord) {
    const AttachReply::Place& word = reply.places.back();
    regions_.push_back({.id = kTrialWord, .key = word.key, .bytes = 8, .begin = word.begin});
    reply.places.pop_back();
  }
  if (!fits(grant, asked, reply)) {
    co_return Status(Code::unavailable, endpoint_ + " answers another lane's beginning, or speaks another version");
  }
  for (std::size_t i = 0; i < reply.places.size(); ++i) {
    regions_.push_back({.id = reply.places[i].region,
                        .key = reply.places[i].key,
                        .bytes = grant.regions[i].bytes,
                        .begin = reply.places[i].begin,
                        .read_only = reply.places[i].read_only});
  }
  stream_ = std::move(stream);
  stream_->need(1);
  stream_->start(*this);
  if (reply.manager_port == 0) {
    Status status = pair_->connect(reply.node, reply.node.mtu, reply.node.depth, reply.patience);
    if (!status.ok()) co_return status;
  } else {
    Connecting connecting(port_, *port_.memory_->manager);
    connecting_ = &connecting;
    auto connection = co_await connecting.run(asked, reply, *pair_, deadline);
    connecting_ = nullptr;
    if (!connection.ok()) {
      port_.unmanaged_.insert(endpoint_);
      co_return Status(connection.code(), "lane to " + endpoint_ + " by " + port_.memory_->device->name() + ": " +
                                              connection.status().message());
    }
    connection_ = std::move(*connection);
  }
  if (!reply.calls) link_.reset();
  if (link_ != nullptr) {
    Status status = link_->connect(*reply.calls, reply.node, connection_.get(), reply.node.mtu, reply.patience);
    if (!status.ok()) co_return status;
  }
  const auto tell = [self = port_.self_, &loop = port_.loop_, number = number_](const std::string& why) {
    loop.post([self, number, why] {
      if (*self != nullptr) (*self)->broke(number, why);
    });
  };
  events_ = port_.memory_->device->events().subscribe({.completions = completions_.get(), .pair = pair_->raw()}, tell);
  if (link_ != nullptr) link_events_ = port_.memory_->device->events().subscribe({.pair = link_->raw()}, tell);
  open_ = true;
  port_.lanes_.push_back(this);
  co_return Status();
}

task::Task<Status> VerbsLane::try_masked_cas(Nanos deadline) {
  if (!native_) co_return Status();
  constexpr std::size_t kSteps = MaskedCasTrial::kSteps.size();
  MaskedCasTrial trial;
  Buffer seen = port_.buffer(8 * kSteps);
  std::array<Op, 2 * kSteps> chain;
  const Remote word{kTrialWord, 0};
  for (std::size_t i = 0; i < kSteps; ++i) {
    const MaskedCasTrial::Step& step = MaskedCasTrial::kSteps[i];
    chain[2 * i] =
        Op::masked_cas(word, trial.came[i], step.compare, step.compare_mask, step.swap, step.swap_mask).fenced();
    chain[2 * i + 1] = Op::read(word, seen.span().subspan(8 * i, 8)).fenced();
  }
  std::string wrong = "the memory node has no word to try its masked CAS on";
  if (region(kTrialWord) != nullptr) {
    const Outcome outcome = co_await post(chain, deadline);
    for (std::size_t i = 0; i < kSteps; ++i) trial.after[i] = base::load<std::uint64_t>(seen.data() + 8 * i);
    wrong = outcome.fate == Fate::done ? trial.judge() : "the trial of its masked CAS ended the lane";
  }
  if (wrong.empty()) co_return Status();
  native_ = false;
  Device& device = *port_.memory_->device;
  if (device.give_up_masked_cas() && port_.options_.log) {
    port_.options_.log(device.name() + " has no masked CAS to rely on, lanes send a CAS of a guessed word instead: " +
                       wrong + " (" + endpoint_ + ")");
  }
  if (open_) co_return Status();
  co_return Status(Code::unavailable, endpoint_ + ": " + wrong + "; the next lane does without");
}

// ---- what is asked

const VerbsLane::Region* VerbsLane::region(std::uint32_t id) const {
  for (const Region& each : regions_) {
    if (each.id == id) return &each;
  }
  return nullptr;
}

// Says whether the lane may send the verbs. It checks what the device would not refuse itself, or not in time. The
// device refuses the rest (keys, and regions as long as the memory node says), but does not check the key of an empty
// WRITE.
bool VerbsLane::permitted(std::span<const Op> ops) const {
  if (!is_chain(ops)) return false;
  for (const Op& op : ops) {
    if (is_service_call(op) && (link_ == nullptr || std::max(op.local.size(), op.reply.size()) > link_->call_bytes())) {
      return false;
    }
    if (op.verb == Verb::call) continue;
    const Region* at = region(op.at.region);
    const std::uint64_t bytes = op.verb == Verb::read || op.verb == Verb::write ? op.local.size() : 8;
    if (at == nullptr || op.at.offset % 8 != 0 || bytes % 8 != 0 || bytes > kMaxVerbBytes || op.at.offset > at->bytes ||
        bytes > at->bytes - op.at.offset) {
      return false;
    }
    if (bytes == 0 && op.verb == Verb::write && at->read_only) return false;
  }
  return true;
}

void VerbsLane::enqueue(Posting& posting) noexcept {
  ++pending_;
  posting.next = nullptr;
  posting.outcome = {};
  if (!open_) return finish(posting, refused_ ? Fate::refused : Fate::maybe);
  if (posting.deadline <= port_.now()) {
    sever();
    return finish(posting, Fate::maybe);
  }
  if (!permitted(posting.ops)) {
    const bool call = posting.ops.size() == 1 && is_service_call(posting.ops[0]);
    posting.outcome.why = why_no_chain(posting.ops);
    if (call && posting.outcome.why == Refusal::none) {
      posting.outcome.why = link_ == nullptr ? Refusal::no_service : Refusal::too_long;
    }
    end(true, nullptr);  // what has been sent may still execute
    return finish(posting, Fate::refused);
  }
  ++stats_.chains;
  stats_.messages += posting.ops.size();
  for (const Op& op : posting.ops) stats_.bytes += wire_bytes(op);
  posting.tag = 1;  // parts that are not done: the sending of all of it is one
  (newest_ != nullptr ? newest_->next : oldest_) = &posting;
  newest_ = &posting;
  if (next_ == nullptr) {
    next_ = &posting;
    next_op_ = 0;
  }
  if (posting.deadline < Timer::when) watch(posting.deadline);
  port_.ring_soon(*this);
}

// ---- sending

ibv_send_wr& VerbsLane::stage() {
  ibv_send_wr& wr = wrs_[staged_];
  wr = {};
  masks_[staged_].reset();
  wr.wr_id = kSendId;
  wr.sg_list = parts_[staged_].data();
  if (staged_ > 0) wrs_[staged_ - 1].next = &wr;
  ++staged_;
  ++in_flight_;
  ++slots_;
  return wr;
}

void VerbsLane::stage_verb(const Op& op) {
  if (op.verb == Verb::cas) return stage_atomic(op, op.compare, op.swap);
  if (op.verb == Verb::fetch_add) return stage_atomic(op, op.swap, 0);
  if (op.verb == Verb::masked_cas) {
    stage_atomic(op, op.compare, op.swap);
    masks_[staged_ - 1] = Masks{.compare = op.compare_mask, .swap = op.swap_mask};
    return;
  }
  const Region& at = *region(op.at.region);
  ibv_send_wr& wr = stage();
  if (!op.local.empty()) {
    wr.sg_list[0] = {.addr = reinterpret_cast<std::uintptr_t>(op.local.data()),
                     .length = static_cast<std::uint32_t>(op.local.size()),
                     .lkey = port_.memory_->arena->key_of(op.local.data())};
    wr.num_sge = 1;
  }
  wr.wr.rdma = {.remote_addr = at.begin + op.at.offset, .rkey = at.key};
  if (op.fence) wr.send_flags |= IBV_SEND_FENCE;
  if (op.verb == Verb::read) {
    wr.opcode = IBV_WR_RDMA_READ;
  } else {
    wr.opcode = IBV_WR_RDMA_WRITE;
    if (op.local.size() <= pair_->inline_bytes()) wr.send_flags |= IBV_SEND_INLINE;
  }
}

void VerbsLane::stage_atomic(const Op& op, std::uint64_t compare, std::uint64_t swap) {
  const Region& at = *region(op.at.region);
  const std::uint32_t slot = slots_ % kDepth;
  ibv_send_wr& wr = stage();
  wr.sg_list[0] = {.addr = reinterpret_cast<std::uintptr_t>(memory_.data() + 8 * std::size_t{slot}),
                   .length = 8,
                   .lkey = memory_key_};
  wr.num_sge = 1;
  wr.wr.atomic = {.remote_addr = at.begin + op.at.offset, .compare_add = compare, .swap = swap, .rkey = at.key};
  wr.opcode = op.verb == Verb::fetch_add ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
  if (op.fence) wr.send_flags |= IBV_SEND_FENCE;
}

// Lets what was staged since `burst.slot` report together.
void VerbsLane::close_burst(Burst burst) {
  burst.wrs = slots_ - burst.slot;
  wrs_[staged_ - 1].send_flags |= IBV_SEND_SIGNALED;
  bursts_.push(burst);
}

std::uint64_t& VerbsLane::guess_of(const Op& op) {
  Seen& seen = seen_[base::mix(op.at.offset + op.at.region) % seen_.size()];
  if (seen.region != op.at.region || seen.offset != op.at.offset) seen = {op.at.region, op.at.offset, 0};
  return seen.word;
}

void VerbsLane::stage_guess(Burst burst) {
  const Op& op = burst.posting->ops[burst.first];
  burst.slot = slots_;
  stage_atomic(op, burst.guess, (burst.guess & ~op.swap_mask) | (op.swap & op.swap_mask));
  close_burst(burst);
}

void VerbsLane::stage_repeats(Burst burst) {
  burst.slot = slots_;
  for (std::size_t i = burst.first; i < std::size_t{burst.first} + burst.count; ++i) {
    if (burst.posting->ops[i].verb == Verb::read) stage_verb(burst.posting->ops[i]);
  }
  close_burst(burst);
}

// Stages the next verbs, as far as they may go now. Returns true if there may be more to stage.
bool VerbsLane::stage_verbs() {
  Posting& posting = *next_;
  Burst burst{.posting = &posting, .first = static_cast<std::uint8_t>(next_op_), .slot = slots_};
  while (next_op_ < posting.ops.size() && in_flight_ < kDepth && !burst.guessed) {
    const Op& op = posting.ops[next_op_];
    if (op.fence && in_doubt()) break;
    if (op.verb == Verb::masked_cas && !native_) {
      burst.guess = (guess_of(op) & ~op.compare_mask) | (op.compare & op.compare_mask);
      burst.guessed = true;
      ++guesses_;
      stage_atomic(op, burst.guess, (burst.guess & ~op.swap_mask) | (op.swap & op.swap_mask));
    } else {
      burst.reads |= op.verb == Verb::read;
      stage_verb(op);
    }
    ++next_op_;
    ++burst.count;
  }
  if (burst.count == 0) return false;
  close_burst(burst);
  ++posting.tag;
  if (next_op_ < posting.ops.size()) return true;
  next_ = posting.next;
  next_op_ = 0;
  --posting.tag;  // all of it is sent; its bursts are still counted
  return true;
}

bool VerbsLane::stage_call() {
  Posting& posting = *next_;
  const Op& op = posting.ops[0];
  if (calling_ != nullptr || in_flight_ == kDepth || (op.fence && in_doubt())) return false;
  const Arena& arena = *port_.memory_->arena;
  std::array<ibv_sge, 2> room{};
  room[0] = {.addr = reinterpret_cast<std::uintptr_t>(answer_head()), .length = kAnswerHeadBytes, .lkey = memory_key_};
  ibv_recv_wr receive{.wr_id = kReceiveId, .next = nullptr, .sg_list = room.data(), .num_sge = 1};
  if (!op.reply.empty()) {
    room[1] = {.addr = reinterpret_cast<std::uintptr_t>(op.reply.data()),
               .length = static_cast<std::uint32_t>(op.reply.size()),
               .lkey = arena.key_of(op.reply.data())};
    receive.num_sge = 2;
  }
  ibv_recv_wr* bad = nullptr;
  if (::ibv_post_recv(pair_->raw(), &receive, &bad) != 0) {
    broke(IBV_WC_GENERAL_ERR, true);
    return false;
  }
  CallHead head{.opcode = op.opcode,
                .room = static_cast<std::uint32_t>(op.reply.size()),
                .number = ++calls_,
                .bytes = static_cast<std::uint32_t>(op.local.size())};
  const bool near = op.local.size() <= kNearBytes;
  if (!near) {
    if (Status status = show(op.local); !status.ok()) {
      broke(status.message());
      return false;
    }
    head.key = shown_memory_->rkey;
    head.address = shown_at_;
  }
  base::store(call_head(), head);
  Burst burst{.posting = &posting, .kind = Burst::Kind::call, .count = 1, .slot = slots_};
  ibv_send_wr& wr = stage();
  wr.opcode = IBV_WR_SEND;
  wr.sg_list[0] = {
      .addr = reinterpret_cast<std::uintptr_t>(call_head()), .length = kCallHeadBytes, .lkey = memory_key_};
  wr.num_sge = 1;
  if (near && !op.local.empty()) {
    wr.sg_list[1] = {.addr = reinterpret_cast<std::uintptr_t>(op.local.data()),
                     .length = static_cast<std::uint32_t>(op.local.size()),
                     .lkey = arena.key_of(op.local.data())};
    wr.num_sge = 2;
  }
  if (kCallHeadBytes + (near ? op.local.size() : 0) <= pair_->inline_bytes()) wr.send_flags |= IBV_SEND_INLINE;
  if (op.fence) wr.send_flags |= IBV_SEND_FENCE;
  close_burst(burst);
  calling_ = &posting;
  ++posting.tag;  // the burst; the answer stands for what enqueue counted
  next_ = posting.next;
  next_op_ = 0;
  return true;
}

// Sends it behind everything that was sent before: a report says that it has executed.
bool VerbsLane::stage_service_call() {
  if (!bursts_.empty() || in_doubt() || !link_->room()) return false;
  const Nanos now = port_.now();
  link_->stage(*next_, now);
  if (port_.options_.calls == CallForm::datagrams && now + CallLink::kFirstPatience < Timer::when) {
    watch(now + CallLink::kFirstPatience);
  }
  next_ = next_->next;
  next_op_ = 0;
  return true;
}

Status VerbsLane::show(base::Bytes request) {
  if (shown_ == nullptr) {
    auto memory = std::make_unique_for_overwrite<std::byte[]>(kMaxCallBytes);
    auto registration = register_memory_at_random(port_.memory_->domain.get(), memory.get(), kMaxCallBytes,
                                                  IBV_ACCESS_REMOTE_READ, port_.random(), shown_at_);
    if (!registration.ok()) return registration.status();
    shown_memory_ = std::move(*registration);
    shown_ = std::move(memory);
  }
  std::copy(request.begin(), request.end(), shown_.get());
  return {};
}

bool VerbsLane::stage_next() {
  const Op& op = next_->ops[0];
  if (op.verb != Verb::call) return stage_verbs();
  return is_service_call(op) ? stage_service_call() : stage_call();
}

void VerbsLane::ring() {
  to_ring_ = false;
  if (!open_) return;
  for (; !wrong_guesses_.empty() && in_flight_ < kDepth; wrong_guesses_.pop()) stage_guess(wrong_guesses_.front());
  if (wrong_guesses_.empty()) {
    for (; !stale_reads_.empty() && in_flight_ + stale_reads_.front().count <= kDepth; stale_reads_.pop()) {
      stage_repeats(stale_reads_.front());
    }
  }
  if (wrong_guesses_.empty() && stale_reads_.empty()) {
    while (open_ && next_ != nullptr && stage_next()) {
    }
  }
  if (!open_) return;
  bool rang = false;
  if (link_ != nullptr && !link_->flush(rang)) return broke(IBV_WC_GENERAL_ERR, true);
  if (rang) ++stats_.doorbells;
  if (staged_ == 0) return;
  const std::size_t count = std::exchange(staged_, 0);
  ++stats_.doorbells;
  if (pair_->post(std::span(wrs_).first(count), std::span(masks_).first(count)) != 0) broke(IBV_WC_GENERAL_ERR, false);
}

// ---- what came

bool VerbsLane::arm() {
  if (::ibv_req_notify_cq(completions_.get(), 0) != 0) {
    broke(IBV_WC_GENERAL_ERR, false);
    return false;
  }
  armed_ = true;
  return true;
}

bool VerbsLane::poll() {
  bool any = false;
  std::array<ibv_wc, 16> came;
  while (open_) {
    const int count = ::ibv_poll_cq(completions_.get(), static_cast<int>(came.size()), came.data());
    if (count < 0) broke(IBV_WC_GENERAL_ERR, false);
    if (count <= 0) break;
    any = true;
    for (int i = 0; i < count && open_; ++i) {
      const ibv_wc& each = came[static_cast<std::size_t>(i)];
      const std::uint64_t kind = each.wr_id & 0xff;
      if (each.status != IBV_WC_SUCCESS) {
        broke(each.status, kind != kSendId);
      } else if (kind == CallLink::kSendId || kind == CallLink::kReceiveId) {
        take_link(each);
      } else if (each.wr_id == kReceiveId) {
        take_answer(each.byte_len);
      } else {
        take_burst();
      }
    }
  }
  return any;
}

std::uint64_t VerbsLane::word_at(std::uint32_t slot) const {
  return base::load<std::uint64_t>(memory_.data() + 8 * std::size_t{slot % kDepth});
}

void VerbsLane::take_burst() {
  FARPOOL_CHECK(!bursts_.empty());
  const Burst burst = bursts_.front();
  bursts_.pop();
  in_flight_ -= burst.wrs;
  Posting& posting = *burst.posting;
  if (burst.kind == Burst::Kind::verbs) {
    for (std::uint32_t i = 0; i < burst.count; ++i) {
      const Op& op = posting.ops[std::size_t{burst.first} + i];
      if (op.old != nullptr && !(burst.guessed && i + 1 == burst.count)) *op.old = word_at(burst.slot + i);
    }
  }
  if (burst.guessed) take_guess(burst, word_at(burst.slot + burst.wrs - 1));
  if (burst.kind == Burst::Kind::again && burst.reads && !burst.repeat) --repeats_;
  if (burst.repeat) {
    stale_reads_.push(
        {.posting = &posting, .kind = Burst::Kind::again, .first = burst.first, .count = burst.count, .reads = true});
  } else if (!burst.guessed) {
    settle(posting);
  }
  if (next_ != nullptr || !wrong_guesses_.empty() || !stale_reads_.empty()) port_.ring_soon(*this);
}

// Judges a guess: it was right, or the word would not have matched, or the guess has to be made again.
void VerbsLane::take_guess(const Burst& burst, std::uint64_t seen) {
  Posting& posting = *burst.posting;
  const Op& op = posting.ops[std::size_t{burst.first} + burst.count - 1];
  const bool swapped = seen == burst.guess;
  guess_of(op) = swapped ? (seen & ~op.swap_mask) | (op.swap & op.swap_mask) : seen;
  if (swapped || (seen & op.compare_mask) != (op.compare & op.compare_mask)) {
    *op.old = seen;
    --guesses_;
    // The READs before it in its burst may have to go again; then it is settled with them.
    if (!burst.repeat) settle(posting);
    return;
  }
  if (posting.outcome.extra_trips < 0xff) ++posting.outcome.extra_trips;
  for (std::size_t i = 0; i < bursts_.size(); ++i) {
    Burst& behind = bursts_[i];
    if (!behind.reads || behind.repeat) continue;
    behind.repeat = true;
    if (behind.kind == Burst::Kind::verbs) ++repeats_;  // one that goes again is counted already
  }
  if (burst.repeat) ++posting.tag;  // its READs are a part of their own from here on
  wrong_guesses_.push({.posting = &posting,
                       .kind = Burst::Kind::again,
                       .first = static_cast<std::uint8_t>(burst.first + burst.count - 1),
                       .count = 1,
                       .guessed = true,
                       .guess = seen});
}

void VerbsLane::take_answer(std::uint32_t bytes) {
  if (calling_ == nullptr || bytes < kAnswerHeadBytes) return broke(IBV_WC_FATAL_ERR, true);
  Posting& posting = *calling_;
  const auto head = base::load<AnswerHead>(answer_head());
  if (head.number != calls_ || head.bytes != bytes - kAnswerHeadBytes) return broke(IBV_WC_FATAL_ERR, true);
  if (head.refused != 0) return end(true, &posting);
  posting.outcome.reply_bytes = head.bytes;
  settle(posting);
  if (next_ != nullptr) port_.ring_soon(*this);
}

void VerbsLane::take_link(const ibv_wc& done) {
  if ((done.wr_id & 0xff) == CallLink::kSendId) {
    link_->take_sent(done);
  } else {
    const CallLink::Answer answer = link_->take_received(done);
    if (answer.kind == CallLink::Answer::Kind::broken) return broke(IBV_WC_FATAL_ERR, true);
    if (answer.kind == CallLink::Answer::Kind::refused) {
      answer.posting->outcome.why = answer.why;
      return end(true, answer.posting);
    }
    if (answer.kind == CallLink::Answer::Kind::done) {
      answer.posting->outcome.reply_bytes = answer.bytes;
      settle(*answer.posting);
    }
  }
  if (next_ != nullptr) port_.ring_soon(*this);
}

void VerbsLane::settle(Posting& posting) {
  if (--posting.tag > 0) return;
  if (calling_ == &posting) calling_ = nullptr;
  unlink(posting);
  finish(posting, Fate::done);
}

// Requests report in order, so the oldest burst has failed.
void VerbsLane::broke(ibv_wc_status status, bool receive) {
  const bool refused =
      !receive && !bursts_.empty() && (status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR);
  say_ended(::ibv_wc_status_str(status) +
            std::string(refused ? ": the session is stale, or its rights do not reach so far" : meaning_of(status)));
  end(refused, refused ? bursts_.front().posting : nullptr);
}

void VerbsLane::broke(const std::string& why) {
  say_ended(why);
  end(false, nullptr);
}

void VerbsLane::say_ended(const std::string& why) const {
  if (!port_.options_.log) return;
  port_.options_.log("lane to " + endpoint_ + " by " + port_.memory_->device->name() + " has ended: " + why);
}

// ---- the end

// The queue pair goes first: from then on nothing touches the buffers of pending requests, and none of these is sent.
void VerbsLane::end(bool refused, Posting* refusal) {
  events_.reset();
  link_events_.reset();
  link_.reset();
  pair_.reset();
  connection_.reset();
  completions_.reset();
  if (!std::exchange(open_, false)) return;
  refused_ = refused;
  stream_.reset();
  port_.disarm(*this);
  std::erase(port_.lanes_, this);
  newest_ = next_ = calling_ = nullptr;
  while (!bursts_.empty()) bursts_.pop();
  staged_ = 0;
  for (Posting* posting = std::exchange(oldest_, nullptr); posting != nullptr;) {
    Posting* next = posting->next;
    finish(*posting, posting == refusal ? Fate::refused : Fate::maybe);
    posting = next;
  }
}

void VerbsLane::finish(Posting& posting, Fate fate) {
  posting.outcome.fate = fate;
  port_.complete(posting);
}

// Unlinks a posting; most are the oldest.
void VerbsLane::unlink(Posting& posting) {
  Posting* before = nullptr;
  for (Posting* each = oldest_; each != &posting; each = each->next) before = each;
  (before != nullptr ? before->next : oldest_) = posting.next;
  if (newest_ == &posting) newest_ = before;
}

void VerbsLane::watch(Nanos when) {
  port_.disarm(*this);
  Timer::when = when;
  if (when != base::kNever) port_.arm(*this);
}

void VerbsLane::fire() noexcept {
  Nanos earliest = base::kNever;
  for (const Posting* posting = oldest_; posting != nullptr; posting = posting->next) {
    earliest = std::min(earliest, posting->deadline);
  }
  const Nanos now = port_.now();
  if (earliest <= now) return sever();
  if (link_ != nullptr) {
    earliest = std::min(earliest, link_->send_again(now));
    bool rang = false;
    if (!link_->flush(rang)) return broke(IBV_WC_GENERAL_ERR, true);
    if (rang) ++stats_.doorbells;
  }
  Timer::when = base::kNever;
  watch(earliest);
}

// The memory node sends nothing more on the stream: it closes it when the lane is fenced.
void VerbsLane::on_input() noexcept { on_closed({}); }
void VerbsLane::on_closed(const base::Status&) noexcept {
  if (connecting_ == nullptr) return end(false, nullptr);
  connecting_->give_up({Code::unavailable, "the memory node has ended it before it began"});
}

}  // namespace farpool::fabric::verbs
