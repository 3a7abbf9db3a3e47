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
    : state_(std::make_unique<State>(session, heap, geometry, table_id)) {}
Table::~Table() = default;

const layout::Geometry& Table::geometry() const { return state_->geometry; }
const Marks& Table::marks() const { return state_->marks; }

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

void Suspicion::blocked(std::uint64_t offset, std::uint64_t mask) {
  if (offset == offset_ && (mask & mask_) != 0) {
    mask_ &= mask;
    return;
  }
  offset_ = offset;
  mask_ = mask;
  since_ = state_.now();
  looked_at_ = 0;
  first_.clear();
}

Task<Status> Suspicion::look(Nanos deadline, Cost& cost, std::vector<Claim>& into) {
  ++state_.marks.suspicions;
  into.clear();
  const std::uint64_t bytes = state_.geometry.at(layout::kSlots).bytes;
  fabric::Buffer image = state_.port().buffer(bytes);
  const Outcome outcome = co_await read_region(state_.session, layout::kSlots, image.first(bytes), deadline, cost);
  if (outcome.fate != Fate::done) co_return state_.gone(Code::unavailable, "the operation slots could not be read");
  for (std::uint64_t i = 0; i < bytes / sizeof(layout::OperationSlot); ++i) {
    const layout::OperationSlot& slot = slot_in(image.span(), i);
    if (slot.claims() && slot.covers(offset_, mask_)) into.push_back({i, slot.holder, slot.sequence});
  }
  co_return Status();
}

Status Suspicion::accuse(Code code, const std::vector<Claim>& again, Nanos stood) const {
  std::string names;
  for (const Claim& now : again) {
    for (const Claim& before : first_) {
      if (before.slot != now.slot || before.holder != now.holder || before.sequence != now.sequence) continue;
      char incarnation[24];
      std::snprintf(incarnation, sizeof incarnation, "%016llx", static_cast<unsigned long long>(now.holder));
      names += std::string(names.empty() ? "" : ", ") + "client incarnation " + incarnation + " (session place " +
               std::to_string(now.slot / state_.geometry.slots_per_session) + ", operation slot " +
               std::to_string(now.slot) + ", sequence " + std::to_string(now.sequence) + ")";
    }
  }
  const std::string where = "lock word " + std::to_string(offset_ / 8) + " of table " + std::to_string(state_.table_id);
  const std::string how_long = " for " + std::to_string(stood / base::kMillisecond) + " ms";
  if (names.empty()) {
    return {code, where + " has been taken" + how_long + " and no operation slot names a holder that stands still"};
  }
  return {code, where + " has been held" + how_long + " by " + names + ", which has not moved since"};
}

Task<Status> Suspicion::judge(Nanos deadline, Cost& cost) {
  if (!active()) co_return Status();
  const Nanos timeout = state_.failure_timeout();
  const Nanos now = state_.now();
  const bool ends = now + timeout / 64 >= deadline;
  if (looked_at_ == 0) {
    // Contention is over long before an eighth of the timeout.
    if (now - since_ < timeout / 8) co_return Status();
    looked_at_ = now;
    co_return co_await look(deadline, cost, first_);
  }
  if (now - looked_at_ < timeout && !ends) co_return Status();
  std::vector<Claim> again;
  if (Status status = co_await look(deadline, cost, again); !status.ok()) co_return status;
  bool stands = first_.empty() && again.empty();
  for (const Claim& one : again) {
    for (const Claim& before : first_) {
      stands |= before.slot == one.slot && before.holder == one.holder && before.sequence == one.sequence;
    }
  }
  const Nanos stood = now - looked_at_;
  if (stands && stood >= timeout) {
    Status status = accuse(Code::locked, again, now - since_);
    state_.accusation = {{offset_, mask_}, now, status.message()};
    co_return status;
  }
  if (ends) co_return accuse(Code::timed_out, again, now - since_);
  // Held again and again by others who live: that is contention, and the deadline bounds it.
  looked_at_ = now;
  first_ = std::move(again);
  co_return Status();
}

}  // namespace farpool::rcuckoo
