// SPDX-License-Identifier: Apache-2.0
// Records clients' calls on single keys and their answers, and says whether one order of all of them explains the
// answers.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"

namespace farpool::sim {

using base::Nanos;

// One call on one key. Its effect lies somewhere between `asked` and `answered`. If its outcome is unknown, it has its
// effect there or none; if its answer never came, its effect may lie anywhere after `asked`. Calls that failed without
// effect are no part of a history.
struct Call {
  enum class Kind : std::uint8_t {
    get,     // found: the value
    put,     // sets
    insert,  // sets if absent; `found`: it was there already
    update,  // sets if present; `found` says that it was
    remove,  // `found` says that it was there
    add,     // adds one to a decimal number (absent: 0); found: the sum
    look,    // of a scan: `found` says that it was there at some moment, nothing that at some moment it was not
  };
  Kind kind = Kind::get;
  std::size_t client = 0;
  std::string key;
  std::string value;                 // what it sets
  std::optional<std::string> found;  // the answer; for insert, update, remove, look any text means "it was there"
  bool known = true;                 // false: the answer never came, or was `unknown_outcome`
  bool expires = false;              // of a put: its value expires, but not before the world ends
  Nanos asked = 0;
  Nanos answered = std::numeric_limits<Nanos>::max();
};

const char* name_of(Call::Kind kind);

// Which values a pool may lose by itself, at any moment before `until`: none, values that expire, or all.
struct Evicts {
  enum class Which : std::uint8_t { none, expiring, all } which = Which::none;
  Nanos until = std::numeric_limits<Nanos>::max();
};

class History {
 public:
  // Notes a call that begins; `answer` or `forget` ends it.
  std::size_t ask(Call call);
  void answer(std::size_t call, Nanos now, std::optional<std::string> found);
  void unknown(std::size_t call) { calls_[call].known = false; }
  // Notes that the call, if it had an effect, had it before `last`.
  void until(std::size_t call, Nanos last) { calls_[call].answered = last; }
  // Notes that the call failed without effect.
  void forget(std::size_t call) { calls_[call].key.clear(), forgotten_[call] = true; }

  std::size_t size() const { return calls_.size(); }
  // Returns the calls in the order in which they were asked; forgotten ones have no key.
  const std::vector<Call>& calls() const { return calls_; }
  std::vector<Call> of(const std::string& key) const;
  std::vector<std::string> keys() const;

  // Returns nothing if every key's calls are linearizable, otherwise what cannot be explained. Keys and values are
  // those of a simulation.
  std::optional<std::string> judge(const Evicts& evicts = {}) const;

 private:
  std::vector<Call> calls_;
  std::vector<bool> forgotten_;
};

// Says whether the calls, all of one key which was absent at first, are linearizable.
bool linearizable(const std::vector<Call>& calls, const Evicts& evicts = {});
std::string describe(const std::vector<Call>& calls);

}  // namespace farpool::sim
