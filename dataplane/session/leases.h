// SPDX-License-Identifier: Apache-2.0
// The leases of a memory node, as one client takes them. A lease protects work that has one holder at a time and that
// the next holder can finish: the memory node fences a holder before there is another one. The users of a lease say
// what it protects (layout/lease.h, layout/directory.h).
//
// A holder renews its leases. A holder that stands still for the failure timeout is fenced like any client, and another
// client steals its lease. A word tells clients apart, but not the tasks of a client: one task at a time has a lease.
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
  std::uint64_t word = 0;  // in the memory node: layout::LeaseWord
  Nanos at = 0;            // when it was taken, or renewed
};

// Counts of one client's leases. Metrics have them among those of repair: marks_of in session/repair.h.
struct LeaseMarks {
  std::uint64_t complaints = 0;  // holders that were reported to the memory node
  std::uint64_t stolen = 0;      // from holders that had ended
  std::uint64_t waits = 0;       // looks at a lease that another client held
};

class Leases {
 public:
  // The session owns it.
  explicit Leases(Session& session);
  Leases(const Leases&) = delete;

  // Takes the lease and adds it to `held`; renews the leases in `held` while it waits. Until the lease is given back,
  // no other task of this client gets it. Errors: timed_out, and the session's.
  task::Task<base::Status> take(std::uint64_t index, std::vector<Lease>& held, Nanos deadline, fabric::Cost& cost);
  // Does the same for a client that has other things to do. Returns false if another task has the lease, or a holder
  // that may still live. It reports that holder to the memory node, which ends it if the word is still the same when it
  // is reported again after the failure timeout.
  task::Task<base::Result<bool>> attempt(std::uint64_t index, std::vector<Lease>& held, Nanos deadline,
                                         fabric::Cost& cost);
  // Says whether another task of this client has tried in vain to take the lease since the last call. If so, a task
  // that takes the lease again and again should leave it alone for a while.
  bool wanted(std::uint64_t index) { return wanted_.erase(index) > 0; }
  // Renews leases that are due. The holder calls it whenever it does something that takes time. After an error a lease
  // is lost and the session has ended.
  task::Task<base::Status> renew(std::vector<Lease>& held, Nanos deadline, fabric::Cost& cost);
  // Gives back all leases that were taken. The holder calls it whether or not the work succeeded.
  task::Task<void> give_back(const std::vector<Lease>& held, Nanos deadline, fabric::Cost& cost);
  // Gives back leases of clients that have ended.
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
  std::set<std::uint64_t> wanted_;  // by tasks that did not wait
};

}  // namespace farpool::session
