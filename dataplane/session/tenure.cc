// SPDX-License-Identifier: Apache-2.0
#include "session/tenure.h"

namespace farpool::session {

using base::Status;
using task::Task;

Task<Status> Tenure::take(std::uint64_t lease, Nanos deadline) {
  trouble_ = co_await session_.leases().take(lease, lease_, deadline, cost_);
  if (trouble_.ok()) scope_.spawn(renew());
  co_return trouble_;
}

Task<void> Tenure::renew() {
  const Nanos timeout = session_.grant().failure_timeout;
  while (!ending_ && trouble_.ok()) {
    (void)co_await over_.wait(session_.port().now() + timeout / 16);
    if (!ending_) trouble_ = co_await session_.leases().renew(lease_, session_.port().now() + timeout, cost_);
  }
}

Task<void> Tenure::give_back(Nanos deadline) {
  ending_ = true;
  over_.wake_all();
  co_await scope_.join();
  co_await session_.leases().give_back(lease_, deadline, cost_);
  lease_.clear();
}

}  // namespace farpool::session
