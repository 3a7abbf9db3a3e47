// SPDX-License-Identifier: Apache-2.0
// What a wire brings to the suite of index protocols (suite.h): a memory node with a formatted table, and clients of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/time.h"
#include "fabric/fabric.h"
#include "index/contract/samples.h"
#include "index/table.h"
#include "layout/geometry.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::index::contract {

// One client of the table: a port, a session and the table, on a thread of its own where the wire has threads.
class Member {
 public:
  virtual ~Member() = default;
  virtual fabric::Port& port() = 0;
  virtual session::Session& session() = 0;
  virtual Table& table() = 0;
  // False: it has crashed, and nobody may touch it any more.
  virtual bool lives() const { return true; }
};

// What only the simulated wire can do to clients.
class Faults {
 public:
  virtual ~Faults() = default;
  // The client dies as soon as `effects` more words of it have landed, and nothing of it lands afterwards.
  virtual void crash_after(Member& member, std::uint64_t effects) = 0;
  // Returns when the memory node has noticed that a client has died. False: it did not.
  virtual bool death_is_noticed() = 0;
  // Returns when all that the client has posted has executed, or never will.
  virtual void land(Member& member) = 0;
  // The chance that a chain executes and its completion never comes.
  virtual void lose_replies(double chance) = 0;
};

// A memory node with an empty table, and its clients, who say goodbye when it is destroyed.
class Bed {
 public:
  struct Job {
    Member* by;
    task::Task<void> task;
  };
  virtual ~Bed() = default;

  // Opens the table for another client. It stays as long as the bed.
  virtual Member& connect() = 0;
  // Runs each task on its client's thread. Returns when each has ended, or its client has crashed.
  virtual void run(std::vector<Job> jobs) = 0;
  // Orders what clients ask and what they are told. Any thread.
  virtual base::Nanos moment() = 0;
  // Returns when no client has anything posted: also what is cleared and freed behind an operation has arrived.
  virtual void quiesce() = 0;
  virtual const layout::Geometry& geometry() const = 0;
  // The bytes of the memory node, while nothing is posted.
  virtual base::Bytes memory() = 0;
  virtual Faults* faults() { return nullptr; }

  // A client owns the table, and holds its lease.
  bool owned = false;
  const std::vector<Member*>& members() const { return members_; }
  void run(Member& by, task::Task<void> task) {
    std::vector<Job> jobs;
    jobs.push_back({&by, std::move(task)});
    run(std::move(jobs));
  }

 protected:
  std::vector<Member*> members_;
};

// A wire: how it makes beds, and how many worlds of a kind are worth their time on it.
struct Ground {
  std::string name;
  int rounds = 1;
  bool simulated = false;  // what is rare happens for sure
  int portion = 1;         // long tests do one part in so many of what they do elsewhere
  std::function<std::unique_ptr<Bed>(const layout::GeometryRequest& table, std::uint64_t seed)> make;
};

// One protocol on one wire.
struct Setting {
  Sample sample;
  Ground ground;
};
inline void PrintTo(const Setting& setting, std::ostream* to) { *to << setting.sample.name << setting.ground.name; }

}  // namespace farpool::index::contract
