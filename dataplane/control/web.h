// SPDX-License-Identifier: Apache-2.0
// What a data-plane process shows over plain HTTP, all from local state: /metrics for Prometheus, /healthz and /readyz
// for the kubelet.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace prometheus {
class Collectable;
}

namespace farpool::control {

class Web {
 public:
  // Returns why not; empty: all is well. Called on threads of the web server, so it must not wait for anything remote.
  using Probe = std::function<std::string()>;

  struct Options {
    std::string listen;  // host:port; port 0 takes a free one
    // Asked at every scrape, on the web server's threads.
    std::vector<std::shared_ptr<prometheus::Collectable>> metrics;
    Probe alive;  // false restarts the container: only what a restart cures
    Probe ready;  // false takes the pod out of its Service
  };
  // Starts serving. Errors: unavailable (it cannot listen on the address).
  static base::Result<std::unique_ptr<Web>> start(Options options);
  ~Web();

  const std::string& address() const;  // with the port that was bound

 private:
  struct State;
  explicit Web(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace farpool::control
