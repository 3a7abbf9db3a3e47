// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/events.h"

#include <utility>

namespace farpool::fabric::verbs {

std::unique_ptr<DeviceEvents::Subscription> DeviceEvents::subscribe(Elements elements, Told told) {
  auto subscription = std::make_unique<Subscription>(*this);
  subscription->elements_ = elements;
  subscription->told_ = std::move(told);
  const std::lock_guard lock(mutex_);
  subscription->place_ = subscribed_.insert(subscribed_.end(), subscription.get());
  return subscription;
}

DeviceEvents::Subscription::~Subscription() {
  const std::lock_guard lock(events_.mutex_);
  events_.subscribed_.erase(place_);
}

std::vector<std::string> DeviceEvents::take(ibv_context* context) {
  std::vector<std::string> lines;
  ibv_async_event event{};
  while (::ibv_get_async_event(context, &event) == 0) {
    if (auto line = tell(event)) lines.push_back(std::move(*line));
    ::ibv_ack_async_event(&event);  // or its element could not be destroyed
  }
  return lines;
}

std::optional<std::string> DeviceEvents::tell(const ibv_async_event& event) {
  const std::lock_guard lock(mutex_);
  const auto all = [this](const std::string& why, const auto& concerns) {
    for (Subscription* each : subscribed_) {
      if (concerns(each->elements_)) each->told_(why);
    }
  };
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      all("its completion queue has overrun", [&](const Elements& of) { return of.completions == event.element.cq; });
      return std::nullopt;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      all(std::string("its queue pair is in error: ") + ::ibv_event_type_str(event.event_type),
          [&](const Elements& of) { return of.pair == event.element.qp; });
      return std::nullopt;
    case IBV_EVENT_SRQ_ERR:
      all("its receive queue is in error", [&](const Elements& of) { return of.receives == event.element.srq; });
      return std::nullopt;
    case IBV_EVENT_DEVICE_FATAL:
      all("its device has failed, or was taken away", [](const Elements&) { return true; });
      return "has failed, or was taken away";
    case IBV_EVENT_PORT_ERR:
      port_down_ = true;
      return "has lost its link on port " + std::to_string(event.element.port_num) + ": is the cable in?";
    case IBV_EVENT_PORT_ACTIVE:
      if (!std::exchange(port_down_, false)) return std::nullopt;
      return "has its link on port " + std::to_string(event.element.port_num) + " again";
    default:
      return std::nullopt;
  }
}

}  // namespace farpool::fabric::verbs
