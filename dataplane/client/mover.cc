// SPDX-License-Identifier: Apache-2.0
#include "client/mover.h"

#include <algorithm>
#include <optional>

#include "index/edit.h"
#include "layout/lease.h"

namespace farpool::client {

using base::Nanos;
using base::Result;
using base::Status;
using task::Task;

Task<Status> Mover::run(std::uint64_t number) {
  std::vector<End> ends(1, source_);
  ends.insert(ends.end(), targets_.begin(), targets_.end());
  Status status;
  for (const End& end : ends) {
    tenures_.push_back(std::make_unique<session::Tenure>(*end.session));
    // Long enough to fence a holder that does not renew its lease.
    const Nanos patience = 2 * end.session->grant().failure_timeout;
    status = co_await tenures_.back()->take(layout::kMoveLease, end.session->port().now() + patience);
    if (!status.ok()) break;
  }
  begun_ = status.ok();
  if (begun_) status = co_await under_leases(number);
  for (std::size_t i = tenures_.size(); i > 0; --i) co_await tenures_[i - 1]->give_back(soon(ends[i - 1]));
  tenures_.clear();
  co_return status;
}

Task<Status> Mover::under_leases(std::uint64_t number) {
  index::Movable& source = *source_.table->movable();
  const Result<index::Movable::Standing> standing = co_await source.standing();
  if (!standing.ok() || standing->finished >= number) co_return standing.status();
  const auto go_on = [this] { return this->go_on(); };
  for (const End& target : targets_) {
    if (Status status = co_await target.table->movable()->close(nullptr, go_on); !status.ok()) co_return status;
  }
  if (Status status = co_await source.close(this, go_on); !status.ok()) co_return status;
  co_return co_await source.move_away(*this, go_on);
}

Status Mover::go_on() const {
  for (const auto& tenure : tenures_) {
    if (!tenure->trouble().ok()) return tenure->trouble();
  }
  return go_on_();
}

Task<Status> Mover::take_in(std::string_view key, std::string_view value) {
  const std::size_t which = target_of_(key);
  const End& target = targets_[which];
  const base::Nanos deadline = soon(target);
  for (;;) {
    if (Status status = go_on(); !status.ok()) co_return status;
    const Result<bool> added = co_await target.table->movable()->admit(key, value, deadline, cost_);
    if (added.code() != base::Code::out_of_memory || target.session->port().now() >= deadline) co_return added.status();
    const bool made = co_await make_room_(which, key.size() + value.size(), deadline);
    if (!made) co_return added.status();
  }
}

// Looks under the key's locks where there are locks, because that finishes first what a dead mover has begun to write
// there.
Task<Result<bool>> Mover::has(std::string_view key) {
  class Look final : public index::Editor {
   public:
    index::Edit edit(std::optional<std::string_view>) override { return index::Edit::keep(); }
    bool wants_value() const override { return false; }
  };
  const std::size_t which = target_of_(key);
  Look look;
  const Result<bool> has = co_await targets_[which].table->modify(key, look, soon(targets_[which]), cost_);
  if (!has.ok()) co_return has.status();
  if (const Status& trouble = tenures_[which + 1]->trouble(); !trouble.ok()) co_return trouble;
  co_return has;
}

}  // namespace farpool::client
