// SPDX-License-Identifier: Apache-2.0
// A lease that is renewed while its holder works under it, however long one step of the work takes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "fabric/cost.h"
#include "session/leases.h"
#include "session/session.h"
#include "session/wait.h"
#include "task/scope.h"
#include "task/task.h"

namespace farpool::session {

class Tenure {
 public:
  // The session outlives it. The holder gives it back before it is destroyed, whether or not it was taken.
  explicit Tenure(Session& session) : session_(session), over_(session.port()) {}

  task::Task<base::Status> take(std::uint64_t lease, Nanos deadline);
  task::Task<void> give_back(Nanos deadline);
  // Returns an error if the lease was lost: the memory node has fenced this session for the lease's present holder.
  const base::Status& trouble() const { return trouble_; }

 private:
  task::Task<void> renew();

  Session& session_;
  fabric::Cost cost_;  // that no operation waited for
  std::vector<Lease> lease_;
  base::Status trouble_;
  bool ending_ = false;
  WaitQueue over_;
  task::Scope scope_;
};

}  // namespace farpool::session
