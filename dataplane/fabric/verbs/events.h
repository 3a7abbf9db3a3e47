// SPDX-License-Identifier: Apache-2.0
// Events that a device reports by itself, and not as the end of a request: a queue that has overrun, a queue pair in
// error, a port that went down. Often nothing else reports these: requests in an overrun queue never end.
#pragma once

#include <infiniband/verbs.h>

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace farpool::fabric::verbs {

// The events of one device. Any thread: the thread that takes an event hands it to its owner.
class DeviceEvents {
 public:
  // The objects whose events the subscriber wants, besides the device itself; null: none.
  struct Elements {
    const ibv_cq* completions = nullptr;
    const ibv_qp* pair = nullptr;
    const ibv_srq* receives = nullptr;
  };
  // Says, for people, what has happened to them. Called on the thread that took the event; the function may only post
  // it on.
  using Told = std::function<void(const std::string& why)>;
  class Subscription {
   public:
    explicit Subscription(DeviceEvents& events) : events_(events) {}
    Subscription(const Subscription&) = delete;
    ~Subscription();  // nothing is told from here on; before the elements go

   private:
    friend class DeviceEvents;
    DeviceEvents& events_;
    Elements elements_;
    Told told_;
    std::list<Subscription*>::iterator place_;
  };
  std::unique_ptr<Subscription> subscribe(Elements elements, Told told);

  // Takes the present events without waiting, because the context's descriptor does not block. Returns what concerns
  // the whole device, for the log.
  std::vector<std::string> take(ibv_context* context);
  std::optional<std::string> tell(const ibv_async_event& event);

 private:
  std::mutex mutex_;
  std::list<Subscription*> subscribed_;
  bool port_down_ = false;
};

}  // namespace farpool::fabric::verbs
