// SPDX-License-Identifier: Apache-2.0
// Lookups of a table by clients that do not own it, over their own sessions: one-sided, without a word to the owner. A
// replica of the prints, as old as it may be, says where to look first. What is in the vault decides, so that an old
// replica costs a trip and never gives a wrong answer.
//
// Belongs to the thread of its session's port.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "fabric/cost.h"
#include "index/cuckooduo/finger_index.h"
#include "index/cuckooduo/site.h"
#include "index/cuckooduo/slot.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::cuckooduo {

class Replica {
 public:
  // The session outlives it. The site passes check_site. It knows no prints yet: it learns them as it looks keys up.
  // `on_trouble` is called while what a dead owner may have left is in a lookup's way, again and again.
  Replica(session::Session& session, const Site& site, std::function<void()> on_trouble = {});

  // Returns the value of the key. It may use the memory of `room`. It has the errors of index::Table; timed_out as well
  // where a slot of the key's stays torn, because the owner has died and there is no other yet. `version` gets that of
  // the pair, if there is one.
  task::Task<base::Result<std::optional<std::string>>> lookup(std::string_view key, base::Nanos deadline,
                                                              fabric::Cost& cost, std::string room = {},
                                                              std::uint64_t* version = nullptr);

  const FingerIndex& prints() const { return prints_; }
  struct Counts {
    std::uint64_t at_once = 0;  // lookups that found the key where the replica said
    std::uint64_t misled = 0;   // that did not
    std::uint64_t changed = 0;  // pairs of readings that were not equal
    std::uint64_t torn = 0;     // readings with a torn slot
  };
  const Counts& counts() const { return counts_; }

 private:
  class Lookup;

  session::Session& session_;
  const Site site_;
  const std::function<void()> on_trouble_;
  FingerIndex prints_;
  Counts counts_;
};

}  // namespace farpool::cuckooduo
