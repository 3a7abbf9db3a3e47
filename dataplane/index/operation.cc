// SPDX-License-Identifier: Apache-2.0
#include "index/operation.h"

#include <algorithm>
#include <utility>

#include "layout/directory.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"

namespace farpool::index {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using fabric::Outcome;
using task::Task;

namespace {

const layout::OperationSlot& slot_in(base::Bytes image, std::uint64_t index) {
  return *reinterpret_cast<const layout::OperationSlot*>(image.data() + index * sizeof(layout::OperationSlot));
}

}  // namespace

void Chain::grow() {
  const std::size_t room = room_ == 0 ? kFew : fabric::kMaxChain;
  auto* const ops = static_cast<Op*>(task::allocate_frame(room * sizeof(Op)));
  std::uninitialized_copy_n(ops_, count_, ops);
  if (ops_ != nullptr) task::free_frame(ops_, room_ * sizeof(Op));
  ops_ = ops;
  room_ = room;
}

Task<Result<bool>> Table::split_ahead(std::uint64_t, std::uint64_t, Nanos, Cost&) { co_return false; }

Task<Status> Table::split(std::string_view, Nanos, Cost&) {
  co_return Status(Code::out_of_memory, "tables of this protocol are not split");
}
Task<Status> Table::idle(Nanos) { co_return Status(); }
Task<void> Table::maintain(Nanos) { co_return; }
Task<void> Table::release(Nanos) { co_return; }

Task<Result<Swept>> Table::sweep(Nanos deadline, Cost& cost) {
  if (repairer() == nullptr) co_return Swept();
  Result<session::Repairer::Swept> swept = co_await repairer()->sweep(deadline, cost);
  if (!swept.ok()) co_return swept.status();
  co_return Swept{std::move(*swept)};
}

Task<Result<layout::Superblock>> read_superblock(session::Session& session, Nanos deadline, Cost& cost) {
  fabric::Buffer page = session.port().buffer(layout::kPage);
  const Outcome outcome =
      co_await session::read_long(session, layout::kSuperblock, 0, page.first(layout::kPage), deadline, cost);
  if (outcome.fate != Fate::done) {
    const Status why = session.why();
    co_return Status(why.ok() ? Code::unavailable : why.code(), "the superblock could not be read: " + why.message());
  }
  Result<layout::Superblock> superblock = layout::parse_superblock(page.first(layout::kPage));
  if (!superblock.ok()) co_return superblock;
  if (superblock->incarnation != session.grant().node_incarnation) {
    co_return Status(Code::stale,
                     "the superblock is of another life of the memory node than the session: begin a new one");
  }
  // A memory node that executes the operations keeps a part of the heap to itself.
  const bool served = superblock->geometry.shape().served != nullptr;
  for (const auto& region : session.grant().lane.regions) {
    const std::uint64_t all = region.id < layout::kRegions ? superblock->geometry.region[region.id].bytes : 0;
    const bool part = served && region.id == layout::kHeap && region.bytes < all;
    if (region.id >= layout::kRegions || (region.bytes != all && !part)) {
      co_return Status(Code::corrupt, "the memory node granted region " + std::to_string(region.id) + " of " +
                                          std::to_string(region.bytes) + " bytes, its superblock says otherwise");
    }
  }
  co_return superblock;
}

Task<Result<Totals>> count_slots(session::Session& session, Nanos deadline, Cost& cost) {
  constexpr std::uint64_t kSlotsAtOnce = fabric::kMaxChainBytes / sizeof(layout::OperationSlot);
  const std::uint64_t slots = session.region_bytes(layout::kSlots) / sizeof(layout::OperationSlot);
  fabric::Buffer image = session.port().buffer(std::min(slots, kSlotsAtOnce) * sizeof(layout::OperationSlot));
  Totals totals;
  for (std::uint64_t first = 0; first < slots; first += kSlotsAtOnce) {
    const std::uint64_t count = std::min(kSlotsAtOnce, slots - first);
    const std::uint64_t bytes = count * sizeof(layout::OperationSlot);
    const Outcome outcome = co_await session::read_long(session, layout::kSlots, first * sizeof(layout::OperationSlot),
                                                        image.first(bytes), deadline, cost);
    if (outcome.fate != Fate::done) co_return gone(session, Code::unavailable, "the keys could not be counted");
    for (std::uint64_t i = 0; i < count; ++i) {
      // Reads one word each, so none is torn. A slot may remove keys that another has added, so single counters wrap.
      totals.keys += slot_in(image.span(), i).keys;
      totals.bytes += slot_in(image.span(), i).bytes;
    }
  }
  // The WRITE of a counter may be under way for an add and not for the later remove in another slot, or the other way
  // round.
  if (static_cast<std::int64_t>(totals.keys) < 0) totals.keys = 0;
  if (static_cast<std::int64_t>(totals.bytes) < 0) totals.bytes = 0;
  co_return totals;
}

Status map_is_old(std::uint64_t known_move) {
  return {Code::stale,
          "keys have moved between memory nodes since the shard map by which they were looked for, whose " +
              std::string("last move is ") + std::to_string(known_move) + "; nothing was done"};
}

Status moved_away() {
  return {Code::moved, "the key is not at this memory node, which its part of the hash space leaves; nothing was done"};
}

Task<Result<Movable::Standing>> move_standing(session::Session& session, std::uint64_t tables, Nanos deadline,
                                              Cost& cost) {
  fabric::Buffer words = session.port().buffer(16);
  Chain chain;
  chain.add(Op::read({layout::kDirectory, layout::move_offset(tables)}, words.first(8)));
  chain.add(Op::read({layout::kLeases, 8 * layout::kMoveLease}, words.span().subspan(8, 8)));
  const Outcome outcome = co_await session.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done) co_return gone(session, Code::unavailable, "how far a move is could not be read");
  co_return Movable::Standing{base::load<std::uint64_t>(words.data()), base::load<std::uint64_t>(words.data() + 8)};
}

Task<Status> finish_move(session::Session& session, std::uint64_t tables, std::uint64_t number, Nanos deadline,
                         Cost& cost) {
  fabric::Buffer word = session.port().buffer(8);
  base::store(word.data(), number);
  Chain chain;
  chain.add(Op::write({layout::kDirectory, layout::move_offset(tables)}, word.first(8)));
  const Outcome outcome = co_await session.post(chain.ops(), deadline, cost);
  if (outcome.fate == Fate::done) co_return Status();
  co_return gone(session, Code::unavailable, "that a move is finished could not be written down");
}

Status check_sizes(std::string_view key, std::size_t value_bytes) {
  if (key.size() > layout::kMaxKeyBytes) {
    return {Code::too_large, "a key of " + std::to_string(key.size()) + " bytes is too large: at most " +
                                 std::to_string(layout::kMaxKeyBytes) + " are possible"};
  }
  if (value_bytes > layout::kMaxValueBytes) {
    return {Code::too_large, "a value of " + std::to_string(value_bytes) + " bytes is too large: at most " +
                                 std::to_string(layout::kMaxValueBytes) + " are possible"};
  }
  return {};
}

Task<void> Backoff::wait(Nanos deadline) {
  // Waits by chance, after the first time, within a bound that doubles: from a hundred-thousandth of the failure
  // timeout, about a trip's time on any wire, to a hundredth. With less, throughput falls when hundreds of clients want
  // one key.
  if (++times_ <= 1) co_return;
  fabric::Port& port = session_.port();
  const Nanos timeout = session_.grant().failure_timeout;
  const Nanos unit = std::max<Nanos>(base::kMicrosecond, timeout / 100'000);
  const Nanos most = std::max(unit, std::min(unit << std::min(times_, 20u), timeout / 100));
  const Nanos now = port.now();
  const Nanos until = now + 1 + static_cast<Nanos>(port.random() % static_cast<std::uint64_t>(most));
  co_await port.sleep_until(std::max(now, std::min(until, deadline)));
}

}  // namespace farpool::index
