// SPDX-License-Identifier: Apache-2.0
// The agent: what the operator may ask of a data-plane process, over gRPC with mutual TLS
// (api/proto/farpool/v1alpha1/agent.proto).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "farpool/v1alpha1/agent.pb.h"
#include "net/tls.h"

namespace farpool::control {

// What an agent speaks for. gRPC's threads call it: implementations hand over to their own threads.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual v1alpha1::Facts facts() const = 0;

  enum class Verdict {
    adopted,      // or held already, byte for byte
    older_epoch,  // than the one held
    conflicting,  // the epoch is held with different content
    invalid,      // the map or secret is impossible
    unsupported,  // this process takes no maps
    unavailable,  // shutting down, or no answer in time
  };
  struct Published {
    Verdict verdict = Verdict::unavailable;
    std::uint64_t epoch = 0;  // held afterwards
    std::string message;      // why not, for people
  };
  // May block, for seconds at most.
  virtual Published publish(const v1alpha1::PublishMapRequest& request) = 0;
  // Memory nodes: ends all sessions of the processes, and returns when nothing of them can execute any more. May block,
  // for seconds at most. Errors: invalid_argument (not a memory node), unavailable.
  virtual base::Result<v1alpha1::FenceResponse> fence(const v1alpha1::FenceRequest& request) = 0;
  // Compute shards: repairs what ended clients left on every memory node. Blocks until `deadline` at most. Errors:
  // invalid_argument (not a compute shard), unavailable.
  virtual base::Result<v1alpha1::RepairResponse> repair(const v1alpha1::RepairRequest& request,
                                                        std::chrono::steady_clock::time_point deadline) = 0;
};
inline constexpr int kMaxProcesses = 256;  // in one request

class Agent {
 public:
  struct Options {
    std::string listen;    // host:port; port 0 takes a free one
    std::string pool_uid;  // requests for another pool are refused
    net::TlsFiles tls;     // re-read when they change; all empty: plaintext, for local use only
    // A client that pings more often loses its connection.
    std::chrono::milliseconds shortest_ping_interval = std::chrono::seconds(5);
  };
  // Serves until destroyed; the subject outlives the agent. Errors: unavailable (the port), invalid_argument (address,
  // files).
  static base::Result<std::unique_ptr<Agent>> start(Options options, Subject& subject);
  ~Agent();

  const std::string& address() const;  // with the port that was bound
  // Tells the watchers that the facts may have changed. Any thread, cheap.
  void changed();

 private:
  struct State;
  explicit Agent(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace farpool::control
