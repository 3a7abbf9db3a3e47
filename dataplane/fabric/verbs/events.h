// SPDX-License-Identifier: Apache-2.0
// What a device tells of by itself, and not as the end of a request: a queue that has overrun, a queue pair in error, a
// port that went down. Nothing else may tell of these: requests in a queue that has overrun never end.
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

// The events of one device. Any thread: the one that takes an event hands it to its owner.
class DeviceEvents {
 public:
  // What somebody wants to hear of, besides the device itself; null: nothing.
  struct Elements {
    const ibv_cq* completions = nullptr;
    const ibv_qp* pair = nullptr;
    const ibv_srq* receives = nullptr;
  };
  // What has happened to them, for people. On the thread that took the event, which may only post it on.
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

  // Takes what there is, without waiting: the context's descriptor does not block. What concerns the whole device is
  // returned, for the log.
  std::vector<std::string> take(ibv_context* context);
  std::optional<std::string> tell(const ibv_async_event& event);

 private:
  std::mutex mutex_;
  std::list<Subscription*> subscribed_;
  bool port_down_ = false;
};

}  // namespace farpool::fabric::verbs
