// SPDX-License-Identifier: Apache-2.0
#include "sim/history.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/hash.h"

namespace farpool::sim {
namespace {

struct State {
  std::optional<std::string> value;
  bool expires = false;
};

// Applies the call to the state. Returns false if its answer contradicts the state.
bool apply(const Call& call, State& state) {
  const bool there = state.value.has_value();
  const bool told_there = call.found.has_value();
  switch (call.kind) {
    case Call::Kind::get:
      return !call.known || call.found == state.value;
    case Call::Kind::look:
      return !call.known || told_there == there;
    case Call::Kind::put:
      state = {call.value, call.expires};
      return true;
    case Call::Kind::insert:
      if (!there) state = {call.value, false};
      return !call.known || told_there == there;
    case Call::Kind::update:
      if (there) state.value = call.value;
      return !call.known || told_there == there;
    case Call::Kind::remove:
      state = {};
      return !call.known || told_there == there;
    case Call::Kind::add: {
      const std::string sum = std::to_string((there ? std::stoll(*state.value) : 0) + 1);
      state.value = sum;
      return !call.known || call.found == sum;
    }
  }
  return false;
}

// Wing and Gong's search: any call that was asked before every pending one was answered may be next. It remembers what
// it tried as the set of calls that took effect and the state that they left. Between two calls the pool may evict the
// key.
class Search {
 public:
  Search(const std::vector<Call>& calls, const Evicts& evicts)
      : calls_(calls), evicts_(evicts), taken_(calls.size(), false) {
    for (const Call& call : calls) must_ += call.known ? 1 : 0;
  }
  bool run() { return step({}, 0); }

 private:
  bool step(const State& state, std::size_t explained) {
    if (explained == must_) return true;
    if (!tried_.insert(fingerprint(state)).second) return false;
    Nanos first_answer = std::numeric_limits<Nanos>::max();
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (!taken_[i] && calls_[i].known) first_answer = std::min(first_answer, calls_[i].answered);
    }
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (taken_[i] || calls_[i].asked > first_answer || too_late(calls_[i])) continue;
      State next = state;
      if (!apply(calls_[i], next)) continue;
      taken_[i] = true;
      if (step(next, explained + (calls_[i].known ? 1 : 0))) return true;
      taken_[i] = false;
    }
    return may_go(state) && step({}, explained);
  }

  bool may_go(const State& state) const {
    if (!state.value || evicts_.which == Evicts::Which::none) return false;
    return (state.expires || evicts_.which == Evicts::Which::all) && !taken_after(evicts_.until);
  }
  bool taken_after(Nanos time) const {
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (taken_[i] && calls_[i].asked > time) return true;
    }
    return false;
  }

  // Says whether a call with an unknown outcome can only have happened before one that has already taken effect.
  bool too_late(const Call& call) const {
    return !call.known && call.answered != std::numeric_limits<Nanos>::max() && taken_after(call.answered);
  }

  std::uint64_t fingerprint(const State& state) const {
    std::uint64_t hash = state.value ? base::mix(std::hash<std::string>{}(*state.value) | 1) + state.expires : 0;
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      if (taken_[i]) hash ^= base::mix(base::mix(i + 1) + 0x5bd1e995);
    }
    return hash;
  }

  const std::vector<Call>& calls_;
  const Evicts evicts_;
  std::vector<bool> taken_;
  std::size_t must_ = 0;
  std::unordered_set<std::uint64_t> tried_;
};

std::string shorten(const std::string& text) {
  return text.size() <= 24 ? text : text.substr(0, 20) + "…" + std::to_string(text.size());
}

}  // namespace

const char* name_of(Call::Kind kind) {
  switch (kind) {
    case Call::Kind::get:
      return "get";
    case Call::Kind::put:
      return "put";
    case Call::Kind::insert:
      return "insert";
    case Call::Kind::update:
      return "update";
    case Call::Kind::remove:
      return "remove";
    case Call::Kind::add:
      return "add";
    case Call::Kind::look:
      return "scan";
  }
  return "?";
}

bool linearizable(const std::vector<Call>& calls, const Evicts& evicts) { return Search(calls, evicts).run(); }

std::string describe(const std::vector<Call>& calls) {
  std::ostringstream text;
  for (const Call& call : calls) {
    text << "  client " << call.client << "  " << call.asked << "..";
    if (call.answered != std::numeric_limits<Nanos>::max()) {
      text << call.answered;
    } else {
      text << "?";
    }
    text << "  " << name_of(call.kind) << " " << shorten(call.value) << (call.expires ? " (expires)" : "");
    if (!call.known) {
      text << " -> unknown";
    } else if (call.kind != Call::Kind::put) {
      text << " -> " << (call.found ? shorten(*call.found) : "absent");
    }
    text << "\n";
  }
  return text.str();
}

std::size_t History::ask(Call call) {
  calls_.push_back(std::move(call));
  forgotten_.push_back(false);
  calls_.back().known = false;  // until it is answered
  return calls_.size() - 1;
}

void History::answer(std::size_t call, Nanos now, std::optional<std::string> found) {
  FARPOOL_CHECK(now >= calls_[call].asked);
  calls_[call].known = true;
  calls_[call].answered = now;
  calls_[call].found = std::move(found);
}

std::vector<Call> History::of(const std::string& key) const {
  std::vector<Call> found;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    if (!forgotten_[i] && calls_[i].key == key) found.push_back(calls_[i]);
  }
  return found;
}

std::vector<std::string> History::keys() const {
  std::set<std::string> keys;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    if (!forgotten_[i]) keys.insert(calls_[i].key);
  }
  return {keys.begin(), keys.end()};
}

std::optional<std::string> History::judge(const Evicts& evicts) const {
  for (const std::string& key : keys()) {
    const std::vector<Call> calls = of(key);
    if (!linearizable(calls, evicts))
      return "no order of these calls on key " + shorten(key) + " explains the answers:\n" + describe(calls);
  }
  return std::nullopt;
}

}  // namespace farpool::sim
