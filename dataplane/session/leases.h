// SPDX-License-Identifier: Apache-2.0
// The leases of a memory node, as one client takes them: for work that a client after this one can finish, and that
// needs a holder that is one, and fenced before there is another. What a lease is of is said by its users
// (layout/lease.h, layout/directory.h).
//
// A holder renews its leases. One that stands still for the failure timeout is fenced like any client, and its lease
// stolen. A word tells clients apart, and not the tasks of one: of those, one at a time has a lease.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "base/result.h"
#include "fabric/cost.h"
#include "session/wait.h"
#include "task/task.h"

namespace farpool::session {

using base::Nanos;

class Session;

struct Lease {
  std::uint64_t index = 0;
  std::uint64_t word = 0;  // what the memory node has: layout::LeaseWord
  Nanos at = 0;            // when it was taken, or renewed
};

// Counts of one client's leases. Metrics have them among those of repair: marks_of in session/repair.h.
struct LeaseMarks {
  std::uint64_t complaints = 0;  // holders that the memory node was told of
  std::uint64_t stolen = 0;      // from holders that had ended
  std::uint64_t waits = 0;       // looks at a lease that another client held
};

class Leases {
 public:
  // Owned by the session.
  explicit Leases(Session& session);
  Leases(const Leases&) = delete;

  // Adds the lease to `held`, whose leases are renewed while this waits. Errors: timed_out, and the session's. From here
  // on until the lease is given back, no other task of this client gets it.
  task::Task<base::Status> take(std::uint64_t index, std::vector<Lease>& held, Nanos deadline, fabric::Cost& cost);
  // The same for a client that has other things to do. False: another task has it, or a holder that has not ended, as
  // far as is known; the memory node has been told, and ends one that still says the same when it is told again after
  // the failure timeout.
  task::Task<base::Result<bool>> attempt(std::uint64_t index, std::vector<Lease>& held, Nanos deadline,
                                         fabric::Cost& cost);
  // Returns whether another task of this client has attempted to take the lease in vain since this was asked last. A
  // task that takes a lease again and again leaves it alone for a while then.
  bool wanted(std::uint64_t index) { return wanted_.erase(index) > 0; }
  // Renews what is due: to be called as often as the holder does something that takes time. An error: a lease was lost,
  // and the session has ended.
  task::Task<base::Status> renew(std::vector<Lease>& held, Nanos deadline, fabric::Cost& cost);
  // Gives back all that were taken: to be called whatever came of the work.
  task::Task<void> give_back(const std::vector<Lease>& held, Nanos deadline, fabric::Cost& cost);
  // Gives back what clients hold that have ended.
  task::Task<base::Status> sweep(Nanos deadline, fabric::Cost& cost);

  const LeaseMarks& marks() const { return marks_; }

 private:
  task::Task<base::Result<bool>> contend(std::uint64_t index, bool waits, std::vector<Lease>& held, Nanos deadline,
                                         fabric::Cost& cost);
  task::Task<base::Result<bool>> contend_with_others(std::uint64_t index, bool waits, std::vector<Lease>& held,
                                                     Nanos deadline, fabric::Cost& cost);
  task::Task<base::Result<std::uint64_t>> ask(std::uint64_t index, std::uint64_t says, bool only_ask, Nanos deadline,
                                              fabric::Cost& cost);
  void put_down(std::uint64_t index);

  Session& session_;
  LeaseMarks marks_;
  std::set<std::uint64_t> in_hand_;  // leases that a task of this client has, or contends for
  WaitQueue put_down_;
  std::set<std::uint64_t> wanted_;  // of these, by tasks that did not wait
};

}  // namespace farpool::session
