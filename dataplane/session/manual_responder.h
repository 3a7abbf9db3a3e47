// SPDX-License-Identifier: Apache-2.0
// A responder for unit tests of a memory node's state machines: it has no lanes; tests move its time and end its
// fences.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/host.h"

namespace farpool::session {

class ManualResponder final : public fabric::Responder {
 public:
  explicit ManualResponder(std::uint64_t seed = 1) : random_(seed) {}

  fabric::Caps caps() const override { return {}; }
  void fence(std::uint64_t session_id, std::function<void()> done) override {
    fences.emplace_back(session_id, std::move(done));
  }
  void after(base::Nanos delay, std::function<void()> what) override { timers_.emplace(now_ + delay, std::move(what)); }
  base::Nanos now() const override { return now_; }
  std::uint64_t random() override { return random_.next(); }

  void advance(base::Nanos by) {
    const base::Nanos until = now_ + by;
    while (!timers_.empty() && timers_.begin()->first <= until) {
      auto timer = timers_.extract(timers_.begin());
      now_ = timer.key();
      timer.mapped()();
    }
    now_ = until;
  }
  // Completes the fences under way; returns their sessions.
  std::vector<std::uint64_t> finish_fences() {
    std::vector<std::uint64_t> done;
    for (auto& [session, callback] : std::exchange(fences, {})) {
      done.push_back(session);
      callback();
    }
    return done;
  }
  std::size_t timers() const { return timers_.size(); }

  std::vector<std::pair<std::uint64_t, std::function<void()>>> fences;

 private:
  base::Nanos now_ = base::kSecond;
  base::Random random_;
  std::multimap<base::Nanos, std::function<void()>> timers_;
};

}  // namespace farpool::session
