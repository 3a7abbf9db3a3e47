// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/port.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fabric/verbs/data_call.h"
#include "fabric/verbs/datagrams.h"
#include "fabric/verbs/lane.h"

namespace farpool::fabric::verbs {

using base::Code;
using base::Result;
using base::Status;

Result<std::unique_ptr<VerbsPort>> VerbsPort::open(net::Loop& loop, std::shared_ptr<net::Tls> tls,
                                                   std::shared_ptr<Device> device, PortOptions options) {
  auto memory = std::make_unique<Memory>();
  memory->device = std::move(device);
  auto domain = make_protection_domain(*memory->device);
  if (!domain.ok()) return domain.status();
  memory->domain = std::move(*domain);
  auto arena = Arena::make(memory->domain.get());
  if (!arena.ok()) return arena.status();
  memory->arena = std::move(*arena);
  auto events = make_completion_events(*memory->device);
  if (!events.ok()) return events.status();
  memory->events = std::move(*events);
  if (memory->device->options().connection_manager) {
    auto manager = ConnectionManager::open(*memory->device);
    if (manager.ok()) memory->manager = std::move(*manager);
  }
  return std::unique_ptr<VerbsPort>(new VerbsPort(loop, std::move(tls), std::move(memory), std::move(options)));
}

VerbsPort::VerbsPort(net::Loop& loop, std::shared_ptr<net::Tls> tls, std::unique_ptr<Memory> memory,
                     PortOptions options)
    : LoopPort(loop, std::move(tls), memory->arena.get()),
      memory_(std::move(memory)),
      options_(std::move(options)),
      watch_(std::make_unique<net::Watch>(loop, memory_->events->fd, [this] { take_events(); })),
      events_watch_(std::make_unique<net::Watch>(loop, memory_->device->events_descriptor(),
                                                 [this] {
                                                   for (const std::string& line : memory_->device->take_events()) {
                                                     if (options_.log) options_.log(line);
                                                   }
                                                 })),
      self_(std::make_shared<VerbsPort*>(this)) {
  if (memory_->manager != nullptr) {
    manager_watch_ =
        std::make_unique<net::Watch>(loop, memory_->manager->descriptor(), [this] { memory_->manager->take_events(); });
  }
  loop_.add(*this);
}

VerbsPort::~VerbsPort() {
  FARPOOL_CHECK(first_completed_ == nullptr && lanes_.empty());
  *self_ = nullptr;
  loop_.remove(*this);
}

Caps wire_caps(const Device& device, CallForm calls) {
  return {.max_chain = kMaxChain,
          .max_verb_bytes = kMaxVerbBytes,
          .calls_in_flight = kMostDataCalls,
          .call_bytes = calls == CallForm::connected ? kMaxDataBytes
                                                     : std::min(kMaxDataBytes, datagram_bytes(device) - kDataHeadBytes),
          .retry_time = kShortestFailureTimeout};
}

Caps VerbsPort::caps() const { return wire_caps(*memory_->device, options_.calls); }

task::Task<Result<std::unique_ptr<Lane>>> VerbsPort::open_lane(LaneGrant grant, Nanos deadline) {
  auto lane = std::make_unique<VerbsLane>(*this);
  const auto request = lane->prepare(grant);
  if (!request.ok()) co_return request.status();
  auto begun = co_await begin_lane(session_port::Greeting::attach, grant, put(*request), deadline);
  if (!begun.ok()) co_return begun.status();
  const auto reply = get_reply(base::bytes_of(begun->answer));
  if (!reply) co_return Status(Code::unavailable, grant.endpoint + " does not speak as a verbs memory node");
  const Status ready = co_await lane->begin(grant, *request, *reply, std::move(begun->stream), deadline);
  if (!ready.ok()) co_return ready;
  if (Status status = co_await lane->try_masked_cas(deadline); !status.ok()) co_return status;
  std::unique_ptr<Lane> opened = std::move(lane);
  co_return std::move(opened);
}

void VerbsPort::ring_soon(VerbsLane& lane) {
  if (!std::exchange(lane.to_ring_, true)) to_ring_.push_back(&lane);
  loop_.at_turn_end(*this);
}

void VerbsPort::forget(VerbsLane& lane) {
  std::erase(to_ring_, &lane);
  std::replace(turning_.begin(), turning_.end(), &lane, static_cast<VerbsLane*>(nullptr));
}

void VerbsPort::broke(std::uint64_t lane, const std::string& why) {
  const auto found =
      std::find_if(lanes_.begin(), lanes_.end(), [lane](const auto* each) { return each->number_ == lane; });
  if (found != lanes_.end()) (*found)->broke(why);
}

void VerbsPort::complete(Posting& posting) {
  posting.next = nullptr;
  (last_completed_ != nullptr ? last_completed_->next : first_completed_) = &posting;
  last_completed_ = &posting;
  loop_.at_turn_end(*this);
}

// Only what has completed by now. A waiter may destroy its lane.
void VerbsPort::resume_completed() {
  last_completed_ = nullptr;
  for (Posting* posting = std::exchange(first_completed_, nullptr); posting != nullptr;) {
    Posting* next = posting->next;
    --static_cast<VerbsLane&>(posting->lane).pending_;
    posting->waiter.resume();  // the posting may be gone
    posting = next;
  }
}

void VerbsPort::take_events() {
  ibv_cq* completions = nullptr;
  void* context = nullptr;
  while (::ibv_get_cq_event(memory_->events.get(), &completions, &context) == 0) {
    ::ibv_ack_cq_events(completions, 1);  // of a lane that is open: its queue takes its events along
    static_cast<VerbsLane*>(context)->armed_ = false;
  }
}

bool VerbsPort::take_completions() {
  bool any = false;
  for (std::size_t i = 0; i < lanes_.size();) {
    VerbsLane* lane = lanes_[i];
    if (lane->busy()) any |= lane->poll();
    if (i < lanes_.size() && lanes_[i] == lane) ++i;  // else it has ended
  }
  return any;
}

bool VerbsPort::poll() noexcept {
  if (!take_completions()) return false;
  on_turn_end();  // now: what has completed is what is waited for
  return true;
}

// What came before a queue was armed wakes nobody.
bool VerbsPort::may_sleep() noexcept {
  bool armed = false;
  for (std::size_t i = 0; i < lanes_.size();) {
    VerbsLane* lane = lanes_[i];
    if (lane->busy() && !lane->armed()) armed |= lane->arm();
    if (i < lanes_.size() && lanes_[i] == lane) ++i;
  }
  return !(armed && take_completions());
}

void VerbsPort::on_turn_end() noexcept {
  resume_completed();
  std::swap(turning_, to_ring_);
  for (VerbsLane* lane : turning_) {
    if (lane != nullptr) lane->ring();
  }
  turning_.clear();
}

}  // namespace farpool::fabric::verbs
