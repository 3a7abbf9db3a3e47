// SPDX-License-Identifier: Apache-2.0
// The owner's end of the relay (relay.h): asks the memory node for requests of other clients, lets the owner carry them
// out, all at once, and brings the answers back. One turn of it waits at the memory node all the time.
//
// Belongs to the thread of its session's port.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "fabric/fabric.h"
#include "index/cuckooduo/message.h"
#include "index/cuckooduo/owner.h"
#include "session/session.h"
#include "session/wait.h"
#include "task/scope.h"
#include "task/task.h"

namespace farpool::cuckooduo {

class Inbox {
 public:
  // Session and owner outlive it, and its site has records.
  Inbox(session::Session& session, Owner& owner);
  // It is not open, or close() has ended.
  ~Inbox();

  // Takes requests from now on. The owner has been taken, and stays it until close() has ended.
  void open();
  // Takes no more requests, and answers the ones that it has. If that does not end in time it ends the session. Then the
  // next owner carries on.
  task::Task<void> close(base::Nanos deadline);

  struct Counts {
    std::uint64_t carried_out = 0;  // requests
    std::uint64_t known = 0;        // requests that the owner before had carried out
  };
  const Counts& counts() const { return counts_; }

 private:
  // What a request asks for, in the memory of its own task.
  struct Work {
    std::uint64_t ticket = 0;
    std::uint32_t record = 0;
    bool again = false;
    std::vector<std::byte> request;
  };
  struct Way {
    fabric::Buffer asked, told;
    bool busy = false;
  };

  void go_on();
  task::Task<void> turn(Way& way);
  task::Task<void> carry_out(Work work);
  base::Nanos now() const { return session_.port().now(); }

  session::Session& session_;
  Owner& owner_;
  bool open_ = false, closing_ = false;
  std::uint64_t term_ = 0;
  bool closed_ = false;      // the memory node knows
  bool lost_ = false;        // it takes no answers any more
  std::array<Way, 2> ways_;  // one waits, and one brings answers
  std::vector<Answer> answers_;
  session::WaitQueue ended_;
  task::Scope scope_;
  fabric::Cost cost_;  // that no operation of this client waits for
  Counts counts_;
};

}  // namespace farpool::cuckooduo
