// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/table.h"

#include <algorithm>

#include "index/rcuckoo/state.h"

namespace farpool::rcuckoo {
namespace {

constexpr std::uint64_t kReadChunk = 256 * 1024;

// Fills `into` from the start of a region, in one chain.
Task<Outcome> read_region(session::Session& session, layout::RegionId region, base::MutableBytes into, Nanos deadline,
                          Cost& cost) {
  Outcome outcome{.fate = Fate::done};
  for (std::uint64_t at = 0; at < into.size() && outcome.fate == Fate::done;) {
    Chain chain;
    for (std::size_t i = 0; i < fabric::kMaxChain && at < into.size(); ++i) {
      const std::uint64_t bytes = std::min<std::uint64_t>(kReadChunk, into.size() - at);
      chain.add(Op::read({region, at}, into.subspan(at, bytes)));
      at += bytes;
    }
    outcome = co_await session.post(chain.ops(), deadline, cost);
  }
  co_return outcome;
}

const layout::OperationSlot& slot_in(base::Bytes image, std::uint64_t index) {
  return *reinterpret_cast<const layout::OperationSlot*>(image.data() + index * sizeof(layout::OperationSlot));
}

}  // namespace

Task<Result<layout::Superblock>> read_superblock(session::Session& session, Nanos deadline, Cost& cost) {
  fabric::Buffer page = session.port().buffer(layout::kPage);
  const Outcome outcome = co_await read_region(session, layout::kSuperblock, page.first(layout::kPage), deadline, cost);
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
  for (const auto& region : session.grant().lane.regions) {
    if (region.id >= layout::kRegions || region.bytes != superblock->geometry.region[region.id].bytes) {
      co_return Status(Code::corrupt, "the memory node granted region " + std::to_string(region.id) + " of " +
                                          std::to_string(region.bytes) + " bytes, its superblock says otherwise");
    }
  }
  co_return superblock;
}

Table::Table(session::Session& session, heap::Heap& heap, const layout::Geometry& geometry, std::uint32_t table_id)
    : state_(std::make_unique<State>(session, heap, geometry, table_id)) {
  heap.set_references(*state_);
}
Table::~Table() = default;

const layout::Geometry& Table::geometry() const { return state_->geometry; }
const Marks& Table::marks() const { return state_->marks; }
session::Repairer& Table::repairer() { return state_->repairer; }

Task<Result<Table::Totals>> Table::count(Nanos deadline, Cost& cost) {
  State& state = *state_;
  const std::uint64_t bytes = state.geometry.at(layout::kSlots).bytes;
  fabric::Buffer image = state.port().buffer(bytes);
  const Outcome outcome = co_await read_region(state.session, layout::kSlots, image.first(bytes), deadline, cost);
  if (outcome.fate != Fate::done) co_return state.gone(Code::unavailable, "the keys could not be counted");
  Totals totals;
  for (std::uint64_t i = 0; i < bytes / sizeof(layout::OperationSlot); ++i) {
    // One word each, so never torn; a slot takes keys away that another has added, so single counters wrap.
    totals.keys += slot_in(image.span(), i).keys;
    totals.bytes += slot_in(image.span(), i).bytes;
  }
  // A WRITE of a counter may be under way for an add and not for the remove that followed it elsewhere, or the other
  // way round.
  if (static_cast<std::int64_t>(totals.keys) < 0) totals.keys = 0;
  if (static_cast<std::int64_t>(totals.bytes) < 0) totals.bytes = 0;
  co_return totals;
}

Status Table::State::gone(Code otherwise, const std::string& what) {
  const Status why = session.why();
  return {why.ok() || otherwise == Code::unknown_outcome ? otherwise : why.code(),
          what + (why.ok() ? std::string() : ": " + why.message())};
}

Status Table::State::check_sizes(std::string_view key, std::size_t value_bytes) {
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
  // Twice at once, then by chance within a bound that doubles: from a hundred-thousandth of the failure timeout, about
  // a trip's time on any wire, to a five-hundredth.
  if (++times_ <= 2) co_return;
  const Nanos unit = std::max<Nanos>(base::kMicrosecond, state_.failure_timeout() / 100'000);
  const Nanos most = std::max(unit, std::min(unit << std::min(times_, 20u), state_.failure_timeout() / 500));
  const Nanos now = state_.now();
  const Nanos until = now + 1 + static_cast<Nanos>(state_.port().random() % static_cast<std::uint64_t>(most));
  co_await state_.port().sleep_until(std::max(now, std::min(until, deadline)));
}

Task<Status> TornRow::wait(std::uint64_t row, std::uint64_t checksum, Nanos deadline, Cost& cost) {
  const Nanos timeout = state_.failure_timeout();
  if (since_ == 0 || row != row_ || checksum != checksum_) {
    since_ = state_.now();
    row_ = row;
    checksum_ = checksum;
    was_free_ = false;
  }
  if (state_.now() - since_ >= timeout / 16) {
    // Read before, torn, and after its lock was free, and still the same: nobody is writing it. Once is not enough, for
    // it may have been finished between the two.
    if (was_free_) {
      co_return Status(Code::corrupt, state_.name_row(row) +
                                          " or an extent of it is damaged: it does not match its "
                                          "checksum, and nobody holds its lock");
    }
    const LockBit bit = lock_bit(state_.geometry, lock_of(state_.geometry, row));
    fabric::Buffer word = state_.port().buffer(8);
    Chain chain;
    chain.add(Op::read({layout::kLocks, bit.offset}, word.first(8)));
    const Outcome outcome = co_await state_.session.post(chain.ops(), deadline, cost);
    if (outcome.fate != Fate::done) co_return state_.gone(Code::unavailable, "a lock word could not be read");
    const std::uint64_t taken = base::load<std::uint64_t>(word.data()) & bit.mask;
    if (taken != 0) {
      suspicion_.blocked(bit.offset, taken);
      const Result<bool> dead = co_await suspicion_.judge(deadline, cost);
      Status status = dead.status();
      if (status.ok() && *dead) status = co_await suspicion_.repair(deadline, cost);
      if (!status.ok()) {
        co_return Status(status.code(), state_.name_row(row) + " stays half written: " + status.message());
      }
    } else {
      suspicion_.came_free(bit.offset);
      was_free_ = state_.now() - since_ >= timeout;
    }
  }
  co_await backoff_.wait(deadline);
  co_return Status();
}

}  // namespace farpool::rcuckoo
