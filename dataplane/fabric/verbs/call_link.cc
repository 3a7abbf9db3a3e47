// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/call_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "fabric/once.h"

namespace farpool::fabric::verbs {

using base::Result;
using base::Status;

namespace {

constexpr std::uint32_t kInlineBytes = 220;

}  // namespace

static_assert(CallLink::kReceiveStride >= kGlobalHeaderBytes + kMaxDataMessage);
static_assert(CallLink::kSendStride >= kMaxDataMessage);

Result<std::unique_ptr<CallLink>> CallLink::make(const Device& device, ibv_pd* domain, ibv_cq* completions,
                                                 CallForm form, Buffer memory, std::uint32_t key,
                                                 std::uint64_t random) {
  FARPOOL_CHECK(memory.size() >= kMemoryBytes);
  std::unique_ptr<CallLink> made(new CallLink(device, form, std::move(memory), key));
  made->wanted_ = {.form = form, .window = kMostDataCalls, .bytes = kMaxDataBytes};
  if (form == CallForm::connected) {
    auto pair = QueuePair::make(device, domain, completions,
                                {.sends = kSends, .receives = kReceives, .inline_bytes = kInlineBytes},
                                static_cast<std::uint32_t>(random), 1);
    if (!pair.ok()) return pair.status();
    made->pair_ = std::move(*pair);
    made->wanted_.queue_pair = made->pair_->end().queue_pair;
    made->wanted_.sequence = made->pair_->end().sequence;
  } else {
    // Keys with the highest bit are the operating system's.
    auto datagrams = Datagrams::make(device, domain, completions, kSends, kReceives, kInlineBytes,
                                     static_cast<std::uint32_t>(random >> 1) & 0x7fff'ffff);
    if (!datagrams.ok()) return datagrams.status();
    made->datagrams_ = std::move(*datagrams);
    made->wanted_.queue_pair = made->datagrams_->number();
    made->wanted_.sequence = made->datagrams_->key();
    made->wanted_.bytes = static_cast<std::uint32_t>(std::min(kMaxDataBytes, datagram_bytes(device) - kDataHeadBytes));
  }
  return made;
}

Status CallLink::connect(const CallEnd& node, const End& lane, rdma_cm_id* connection, std::uint8_t mtu,
                         Patience patience) {
  node_ = node;
  for (std::uint32_t line = node.window; line-- > 0;) free_.push_back(line);
  for (std::uint32_t slot = 0; slot < kReceives; ++slot) {
    if (!post_receive(slot)) return {base::Code::unavailable, device_.name() + ": a receive for an answer"};
  }
  if (form_ == CallForm::datagrams) {
    auto address = datagrams_->address_of(lane.gid);
    if (!address.ok()) return address.status();
    address_ = std::move(*address);
    return {};
  }
  const End peer{.queue_pair = node.queue_pair, .sequence = node.sequence, .mtu = mtu, .depth = 1, .gid = lane.gid};
  return connection != nullptr ? pair_->connect_beside(*connection, peer, mtu, 1, patience)
                               : pair_->connect(peer, mtu, 1, patience);
}

bool CallLink::post_receive(std::uint32_t slot) {
  ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(receive_at(slot)),
               .length = static_cast<std::uint32_t>(kGlobalHeaderBytes + kMaxDataMessage),
               .lkey = key_};
  ibv_recv_wr wr{.wr_id = kReceiveId | std::uint64_t{slot} << 8, .next = nullptr, .sg_list = &part, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  return ::ibv_post_recv(raw(), &wr, &bad) == 0;
}

void CallLink::stage(std::uint32_t line) {
  const std::uint32_t bytes = lines_[line].bytes;
  ibv_send_wr& wr = wrs_[staged_];
  wr = {};
  parts_[staged_] = {.addr = reinterpret_cast<std::uintptr_t>(send_at(line)), .length = bytes, .lkey = key_};
  wr.wr_id = kSendId | std::uint64_t{line} << 8;
  wr.sg_list = &parts_[staged_];
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  if (bytes <= (pair_ != nullptr ? pair_->inline_bytes() : datagrams_->inline_bytes())) {
    wr.send_flags |= IBV_SEND_INLINE;
  }
  if (datagrams_ != nullptr) {
    wr.wr.ud = {.ah = address_.get(), .remote_qpn = node_.queue_pair, .remote_qkey = node_.sequence};
  }
  if (staged_ > 0) wrs_[staged_ - 1].next = &wr;
  ++staged_;
  ++sends_;
  ++lines_[line].sends;
}

void CallLink::stage(Posting& posting, Nanos now) {
  const Op& op = posting.ops[0];
  const std::uint32_t number = free_.back();
  free_.pop_back();
  Line& line = lines_[number];
  line.posting = &posting;
  line.patience = kFirstPatience;
  line.again = form_ == CallForm::datagrams ? now + line.patience : base::kNever;
  line.bytes = static_cast<std::uint32_t>(kDataHeadBytes + op.local.size());
  put_head({send_at(number), kDataHeadBytes}, DataRequest{.cookie = node_.cookie,
                                                          .id = RequestId{number, ++line.number}.word(),
                                                          .opcode = op.opcode,
                                                          .room = static_cast<std::uint32_t>(op.reply.size()),
                                                          .body = op.local});
  if (!op.local.empty()) std::memcpy(send_at(number) + kDataHeadBytes, op.local.data(), op.local.size());
  stage(number);
}

bool CallLink::flush(bool& rang) {
  rang = staged_ > 0;
  if (!rang) return true;
  staged_ = 0;
  ibv_send_wr* bad = nullptr;
  return ::ibv_post_send(raw(), wrs_.data(), &bad) == 0;
}

void CallLink::take_sent(const ibv_wc& completion) {
  const auto number = static_cast<std::uint32_t>(completion.wr_id >> 8);
  Line& line = lines_[number];
  --sends_;
  --line.sends;
  if (form_ == CallForm::datagrams && done(line)) free_.push_back(number);
}

CallLink::Answer CallLink::take_received(const ibv_wc& completion) {
  const auto slot = static_cast<std::uint32_t>(completion.wr_id >> 8);
  const Answer broken{.kind = Answer::Kind::broken};
  const std::size_t before = form_ == CallForm::datagrams ? kGlobalHeaderBytes : 0;
  Answer taken;
  const auto answer = completion.byte_len < before
                          ? std::nullopt
                          : get_data_answer({receive_at(slot) + before, completion.byte_len - before});
  // A datagram may come from anybody, at any time: impossible ones are ignored.
  const RequestId id = RequestId::of(answer ? answer->id : 0);
  const bool expected = answer && answer->cookie == node_.cookie && id.line < node_.window &&
                        lines_[id.line].posting != nullptr && lines_[id.line].number == id.number &&
                        answer->body.size() <= lines_[id.line].posting->ops[0].reply.size();
  if (!expected && form_ == CallForm::connected) return broken;
  if (expected) {
    taken.posting = std::exchange(lines_[id.line].posting, nullptr);
    if (done(lines_[id.line])) free_.push_back(id.line);
    taken.kind = answer->refused ? Answer::Kind::refused : Answer::Kind::done;
    taken.why = answer->why;
    taken.bytes = static_cast<std::uint32_t>(answer->body.size());
    if (taken.bytes > 0) std::memcpy(taken.posting->ops[0].reply.data(), answer->body.data(), taken.bytes);
  }
  return post_receive(slot) ? taken : broken;
}

Nanos CallLink::send_again(Nanos now) {
  Nanos next = base::kNever;
  if (form_ == CallForm::connected) return next;
  for (std::uint32_t number = 0; number < node_.window; ++number) {
    Line& line = lines_[number];
    if (line.posting == nullptr) continue;
    if (line.again <= now) {
      line.patience = std::min(2 * line.patience, kLastPatience);
      line.again = now + line.patience;
      if (sends_ < kSends) stage(number);  // else as good as lost
    }
    next = std::min(next, line.again);
  }
  return next;
}

}  // namespace farpool::fabric::verbs
