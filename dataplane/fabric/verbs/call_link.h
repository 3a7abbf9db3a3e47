// SPDX-License-Identifier: Apache-2.0
// The client's side of a lane's CALLs for data: a queue pair beside the lane's, with a receive for each CALL that may
// be in flight, and a buffer of its own for each request. Completions go to the lane's queue.
//
// Datagrams may get lost, or arrive more than once. A request without an answer is sent again, first after
// kFirstPatience, then after twice as long each time; answers that no request waits for are ignored. An answer may be
// here before the device has read the request for the last time: until then, the line takes no other request.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "fabric/fabric.h"
#include "fabric/verbs/arena.h"
#include "fabric/verbs/data_call.h"
#include "fabric/verbs/datagrams.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/handshake.h"
#include "fabric/verbs/queue_pair.h"

namespace farpool::fabric::verbs {

class CallLink {
 public:
  static constexpr std::uint64_t kSendId = 3, kReceiveId = 4;  // of work requests, in the low byte
  static constexpr std::uint32_t kSends = 2 * kMostDataCalls, kReceives = 2 * kMostDataCalls;
  static constexpr Nanos kFirstPatience = 10 * base::kMillisecond, kLastPatience = base::kSecond;

  // Makes a link; `memory` has kMemoryBytes, under `key`.
  static base::Result<std::unique_ptr<CallLink>> make(const Device& device, ibv_pd* domain, ibv_cq* completions,
                                                      CallForm form, Buffer memory, std::uint32_t key,
                                                      std::uint64_t random);
  static constexpr std::size_t kReceiveStride = 4224, kSendStride = 4160;
  static constexpr std::size_t kMemoryBytes = kReceives * kReceiveStride + kMostDataCalls * kSendStride;

  // Returns what the memory node learns of it.
  const CallEnd& wanted() const { return wanted_; }
  // Makes it ready for CALLs: to the memory node's end, which is within what was wanted, on the path to the lane's.
  // `connection`: the lane's, if there is one.
  base::Status connect(const CallEnd& node, const End& lane, rdma_cm_id* connection, std::uint8_t mtu,
                       Patience patience);

  ibv_qp* raw() const { return pair_ != nullptr ? pair_->raw() : datagrams_->raw(); }
  std::uint64_t call_bytes() const { return node_.bytes; }
  std::size_t out() const { return node_.window - free_.size(); }
  bool room() const { return !free_.empty() && sends_ < kSends; }
  // Adds the CALL to what flush() sends. The caller has checked that there is room.
  void stage(Posting& posting, Nanos now);
  // Sends what was staged. Returns false if the lane must end. `rang` says whether there was anything.
  bool flush(bool& rang);

  void take_sent(const ibv_wc& completion);
  struct Answer {
    enum class Kind : std::uint8_t { none, done, refused, broken };
    Kind kind = Kind::none;
    Posting* posting = nullptr;
    Refusal why = Refusal::none;
    std::uint32_t bytes = 0;
  };
  Answer take_received(const ibv_wc& completion);
  // Sends again what has waited for too long, and returns when to look next.
  Nanos send_again(Nanos now);

 private:
  struct Line {
    Posting* posting = nullptr;
    std::uint64_t number = 0;
    std::uint32_t bytes = 0;  // of the message
    std::uint32_t sends = 0;  // of it that are not reported
    Nanos patience = 0, again = 0;
  };
  CallLink(const Device& device, CallForm form, Buffer memory, std::uint32_t key)
      : device_(device), form_(form), memory_(std::move(memory)), key_(key) {}
  std::byte* receive_at(std::uint32_t slot) const { return memory_.data() + slot * kReceiveStride; }
  std::byte* send_at(std::uint32_t line) const {
    return memory_.data() + kReceives * kReceiveStride + line * kSendStride;
  }
  bool post_receive(std::uint32_t slot);
  // Says whether a line is free. A connected device no longer reads a request that was answered, or sends what its peer
  // drops.
  bool done(const Line& line) const {
    return line.posting == nullptr && (form_ == CallForm::connected || line.sends == 0);
  }
  void stage(std::uint32_t line);

  const Device& device_;
  const CallForm form_;
  const Buffer memory_;  // outlives the queue pair
  const std::uint32_t key_;
  CallEnd wanted_, node_;
  std::unique_ptr<QueuePair> pair_;  // of one form
  std::unique_ptr<Datagrams> datagrams_;
  Address address_;
  std::array<Line, kMostDataCalls> lines_;
  std::vector<std::uint32_t> free_;  // lines
  std::array<ibv_send_wr, kSends> wrs_;
  std::array<ibv_sge, kSends> parts_;
  std::uint32_t staged_ = 0;
  std::uint32_t sends_ = 0;  // not reported
};

}  // namespace farpool::fabric::verbs
