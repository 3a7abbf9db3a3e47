// SPDX-License-Identifier: Apache-2.0
// The memory that CALLs of all lanes share on a memory node. It is registered when the node starts to serve, and does
// not grow with lanes: it has a small receive and a small reply for each possible lane, and a few rooms for large
// CALLs.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "fabric/fabric.h"
#include "fabric/verbs/call.h"
#include "fabric/verbs/device.h"

namespace farpool::fabric::verbs {

// Unmaps memory when its owner is destroyed.
struct Unmap {
  std::size_t bytes = 0;
  void operator()(std::byte* memory) const;
};

class Inbox {
 public:
  // Makes an inbox with posted receives. The domain outlives the inbox; queue pairs that use its queue do not.
  static base::Result<std::unique_ptr<Inbox>> make(const Device& device, ibv_pd* domain, std::uint32_t lanes);

  ibv_srq* queue() const { return queue_.get(); }
  std::uint32_t lanes() const { return lanes_; }

  // Posts a receive, which is named by a number below lanes(); its request has the same number.
  base::Status post(std::uint32_t receive);
  base::Bytes received(std::uint32_t receive, std::size_t bytes) const { return {receive_at(receive), bytes}; }
  // Returns the room for a reply; replies have numbers of their own, below lanes().
  base::MutableBytes reply(std::uint32_t number) { return {replies_at(number), kReceiveBytes}; }

  // Holds one CALL at a time: its request, if it was fetched, and its reply behind a head.
  class Room {
   public:
    base::MutableBytes request() const { return {memory_, kMaxCallBytes}; }
    base::MutableBytes reply() const { return {memory_ + kMaxCallBytes, kAnswerHeadBytes + kMaxCallBytes}; }

   private:
    friend class Inbox;
    explicit Room(std::byte* memory) : memory_(memory) {}
    std::byte* memory_;
  };
  static constexpr std::size_t kRooms = 16;
  Room* take_room();  // null: all are taken
  void give_back(Room* room) { free_.push_back(room); }

  // Returns the key of all of this memory, which is one registration.
  std::uint32_t key() const { return registration_->lkey; }

 private:
  static constexpr std::size_t kRoomBytes = 2 * kMaxCallBytes + 64;
  static_assert(kRoomBytes >= 2 * kMaxCallBytes + kAnswerHeadBytes);

  Inbox(std::uint32_t lanes, std::size_t bytes);
  std::byte* receive_at(std::uint32_t receive) const { return memory_.get() + receive * kReceiveBytes; }
  std::byte* replies_at(std::uint32_t number) const { return receive_at(lanes_ + number); }

  const std::uint32_t lanes_;
  std::unique_ptr<std::byte, Unmap> memory_;
  std::vector<Room> rooms_;
  std::vector<Room*> free_;
  // Destroyed from the bottom up.
  Registration registration_;
  Owned<ibv_srq, ibv_destroy_srq> queue_;
};

}  // namespace farpool::fabric::verbs
