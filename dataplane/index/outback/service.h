// SPDX-License-Identifier: Apache-2.0
// Outback's CALLs on the memory node. Each is executed on the thread that has received it, under the lock of one zone of
// the table. A CALL that finds the lock taken is held: the thread that has the lock executes it before it goes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "fabric/service.h"
#include "index/outback/node_table.h"

namespace farpool::outback {

inline constexpr std::uint32_t kCall = fabric::kFirstServiceOpcode;

class NodeService final : public fabric::Service, private Growth::Doors {
 public:
  explicit NodeService(NodeTable& table);
  ~NodeService() override;

  fabric::Served serve(fabric::Call& call) noexcept override;
  void release(std::uint64_t session_id) noexcept override;
  // Executes what is held for a zone whose lock this thread has, and gives the lock back.
  void leave(std::uint64_t zone) override;
  // CALLs that had to be held so far.
  std::uint64_t held() const { return held_.load(std::memory_order_relaxed); }

 private:
  struct Held {
    Held* next = nullptr;
    std::uint64_t session = 0;
    fabric::Hand hand;
    std::vector<std::byte> request;
    fabric::Ticket ticket;
  };
  void answer(Held* held, std::uint64_t zone);
  bool enter(std::uint64_t zone) override { return table_.zone(zone).try_lock(); }

  NodeTable& table_;
  std::vector<std::atomic<Held*>> waiting_;  // by zone, the latest first
  std::atomic<std::uint64_t> held_{0};
};

}  // namespace farpool::outback
