// SPDX-License-Identifier: Apache-2.0
#include "index/tally.h"

#include <array>
#include <span>
#include <utility>

#include "layout/operation_slot.h"
#include "layout/regions.h"

namespace farpool::index {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Op;
using task::Task;

void Tally::add(std::int64_t keys, std::int64_t bytes, Cost& cost) {
  if (keys == 0 && bytes == 0) return;
  keys_ += static_cast<std::uint64_t>(keys);
  bytes_ += static_cast<std::uint64_t>(bytes);
  if (!std::exchange(pending_, true)) {
    std::uint64_t counters[layout::kSlotCounters.bytes / 8] = {};
    cost.charge_background(std::array{Op::write({layout::kSlots, 0}, std::as_writable_bytes(std::span(counters)))});
  }
  if (!flushing_) {
    flushing_ = true;
    session_.background().spawn(flush());
  }
}

Task<void> Tally::flush() {
  const auto soon = [this] { return session_.port().now() + session_.grant().failure_timeout; };
  if (!slot_) {
    Result<session::Slot> slot = co_await session_.take_slot(soon());
    if (slot.ok()) slot_.emplace(std::move(*slot));
  }
  while (slot_ && pending_ && session_.alive()) {
    layout::OperationSlot& said = slot_->words();
    said.keys_after = said.keys + std::exchange(keys_, 0);
    said.bytes_after = said.bytes + std::exchange(bytes_, 0);
    pending_ = false;
    Cost charged_already;
    const std::array chain{slot_->settle()};
    (void)co_await session_.post(chain, soon(), charged_already);
  }
  flushing_ = false;
  flushed_.wake_all();
}

Task<Status> Tally::settle(Nanos deadline) {
  while (flushing_) {
    if (session_.port().now() >= deadline) {
      co_return Status(Code::timed_out, "the keys of this client were not counted in time");
    }
    (void)co_await flushed_.wait(deadline);
  }
  co_return Status();
}

}  // namespace farpool::index
