// SPDX-License-Identifier: Apache-2.0
// CALLs for data that services hold on one thread of a wire: takes their answers from any thread, and knows when a
// session has none left. The wire decides what an answer does then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "fabric/service.h"

namespace farpool::fabric::session_port {

// `Where` is what the wire needs to find the CALL again. All of it is called on the wire's thread, except close().
template <class Where>
class HeldCalls {
 public:
  // Runs a function on the wire's thread, later, or never if that thread has ended. Called on any thread.
  using Post = std::function<void(std::function<void()>)>;
  // Sends an answer; nothing: the service has given the CALL back without one.
  using Answer = std::function<void(const Where&, const std::optional<std::string>& reply)>;

  HeldCalls(Post post, Answer answer)
      : answer_(std::move(answer)), desk_(std::make_shared<InDesk>(*this, std::move(post))) {}
  HeldCalls(const HeldCalls&) = delete;
  ~HeldCalls() { close(); }

  // Returns the ticket of a CALL that its service holds from now on.
  Ticket hold(std::uint64_t session_id, Service& service, Where where, std::size_t room) {
    held_.emplace(++last_, Held{session_id, std::move(where)});
    Session& session = sessions_[session_id];
    session.service = &service;
    ++session.count;
    return {desk_, 0, last_, room};
  }
  // Called when no lane of the session executes any more. Asks its service to give back what it holds, and calls `then`
  // once it holds nothing.
  void drain(std::uint64_t session_id, std::function<void()> then) {
    const auto session = sessions_.find(session_id);
    if (session == sessions_.end()) return then();
    session->second.drained.push_back(std::move(then));
    session->second.service->release(session_id);
  }
  // Takes no answers from here on. Tickets may outlive this.
  void close() { desk_->close(); }

 private:
  class InDesk final : public Desk {
   public:
    InDesk(HeldCalls& calls, Post post) : calls_(&calls), post_(std::move(post)) {}
    void settle(std::uint64_t, std::uint64_t number, std::optional<base::Bytes> reply) noexcept override {
      std::optional<std::string> copy;
      if (reply) copy.emplace(base::text_of(*reply));
      std::lock_guard lock(mutex_);
      if (calls_ == nullptr) return;
      post_([calls = calls_, number, copy = std::move(copy)] { calls->settled(number, copy); });
    }
    void close() {
      std::lock_guard lock(mutex_);
      calls_ = nullptr;
    }

   private:
    std::mutex mutex_;
    HeldCalls* calls_;
    const Post post_;
  };
  struct Held {
    std::uint64_t session_id = 0;
    Where where;
  };
  struct Session {
    Service* service = nullptr;
    std::size_t count = 0;
    std::vector<std::function<void()>> drained;  // fences that wait for the last one
  };

  void settled(std::uint64_t number, const std::optional<std::string>& reply) {
    const auto found = held_.find(number);
    const Held call = std::move(found->second);
    held_.erase(found);
    answer_(call.where, reply);
    const auto session = sessions_.find(call.session_id);
    if (--session->second.count > 0) return;
    const auto drained = std::move(session->second.drained);
    sessions_.erase(session);
    for (const auto& then : drained) then();
  }

  const Answer answer_;
  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, Held> held_;
  std::unordered_map<std::uint64_t, Session> sessions_;
  const std::shared_ptr<InDesk> desk_;
};

}  // namespace farpool::fabric::session_port
