// SPDX-License-Identifier: Apache-2.0
// CALLs of real threads, for tests.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "index/outback/service.h"

namespace farpool::outback {

class ThreadCall final : public fabric::Call {
 public:
  class AnswerDesk final : public fabric::Desk {
   public:
    void settle(std::uint64_t, std::uint64_t call, std::optional<base::Bytes> reply) noexcept override {
      auto* at = reinterpret_cast<ThreadCall*>(call);
      if (reply) std::copy(reply->begin(), reply->end(), at->reply.begin());
      at->bytes_.store(reply ? reply->size() : ~0ull, std::memory_order_release);
    }
  };
  ThreadCall(std::uint64_t session, base::Bytes asked, base::MutableBytes room, std::shared_ptr<AnswerDesk> desk)
      : Call(session, kCall, asked, room, fabric::Hand()), desk_(std::move(desk)) {}
  fabric::Ticket hold() override {
    return fabric::Ticket(desk_, 0, reinterpret_cast<std::uint64_t>(this), reply.size());
  }
  std::size_t carry_out(NodeService& service) {
    const fabric::Served served = service.serve(*this);
    if (served.kind() == fabric::Served::Kind::done) return served.bytes();
    while (bytes_.load(std::memory_order_acquire) == 0) std::this_thread::yield();
    return bytes_.load();
  }

 private:
  std::shared_ptr<AnswerDesk> desk_;
  std::atomic<std::size_t> bytes_{0};
};

}  // namespace farpool::outback
