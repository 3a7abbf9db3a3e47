// SPDX-License-Identifier: Apache-2.0
// RESP over sockets. A worker holds the connections of one thread; a front listens and deals connections to workers in
// turn.
//
// A client that sends commands and does not take the replies would hold memory that others need, or wait for ever to
// send the next command while it is not read. So its connection is closed, with a line in the log: see the patience in
// Settings. A client that takes them keeps its connection, however slow its line.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "front/resp/conversation.h"
#include "front/resp/counters.h"
#include "net/listener.h"
#include "net/loop.h"
#include "net/stream.h"
#include "net/tls.h"

namespace farpool::front::resp {

// All of it, but counters(), belongs to the loop's thread, or to the thread that has the worker while its loop does not
// run.
class Worker {
 public:
  // Loop, kv and settings outlive the worker.
  Worker(net::Loop& loop, client::Kv& kv, const Settings& settings);
  ~Worker();  // idle() must hold
  Worker(const Worker&) = delete;

  net::Loop& loop() { return loop_; }
  Service& service() { return service_; }
  const Counters& counters() const { return counters_; }
  // Sets the passwords of which connections give one from now on. Authenticated connections stay so.
  void set_passwords(Passwords passwords) { service_.passwords = std::move(passwords); }

  void adopt(std::unique_ptr<net::Stream> stream, std::string local);
  // Closes every connection when it has come to rest: what has arrived is run and answered. Calls `drained` once no
  // connection is left, never inline.
  void drain(std::function<void()> drained);
  // Reads nothing more: every connection answers what it has read and closes.
  void hush();
  // Closes what is left at once. Commands that run on the pool still end there; `drained` is called then.
  void cut();
  bool idle() const { return connections_.empty(); }

 private:
  class Connection;
  void forget(Connection* connection);
  // Looks soon after whether clients take their replies, and again as long as some do not.
  void watch();
  void look();

  net::Loop& loop_;
  Counters counters_;
  Service service_;
  std::unordered_set<Connection*> connections_;
  std::function<void()> drained_;
  bool draining_ = false;
  bool hushed_ = false;
  bool gone_ = false;  // `drained` has been called, or will be
  bool watching_ = false;
  net::Alarm watch_;
};

struct FrontOptions {
  std::vector<std::string> listen;  // host:port, or unix:/path
  std::shared_ptr<net::Tls> tls;    // of the TCP listeners; none: plain
  int unix_mode = 0660;             // of the sockets
};

class Front {
 public:
  // Accepts on `loop`, for all workers.
  static base::Result<std::unique_ptr<Front>> open(net::Loop& loop, FrontOptions options, const Settings& settings,
                                                   std::vector<Worker*> workers);
  // On the loop's thread, or when it does not run. Stops accepting; connections live on.
  ~Front();

  std::vector<std::string> addresses() const;
  net::Listener::Stats stats() const;  // any thread

 private:
  Front() = default;
  std::vector<std::unique_ptr<net::Listener>> listeners_;
  std::vector<Worker*> workers_;
  std::size_t turn_ = 0;
};

}  // namespace farpool::front::resp
