// SPDX-License-Identifier: Apache-2.0
// What is to happen in a simulated run, by time, and of the same time in the order in which it was asked for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/time.h"

namespace farpool::fabric::sim {

using base::Nanos;

// The heap is of small entries that name their events; an event stays where it was put until it has happened. Small
// functions take no memory of their own.
class EventQueue {
 public:
  EventQueue() = default;
  EventQueue(const EventQueue&) = delete;
  ~EventQueue() {
    for (const Entry& entry : heap_) event(entry.place()).end();
  }

  bool empty() const { return heap_.empty(); }
  Nanos next() const { return static_cast<Nanos>(heap_.front().when); }  // not of an empty one

  template <class What>
  void push(Nanos when, What&& what) {
    if constexpr (sizeof(std::decay_t<What>) > kRoom) {
      push(when, std::function<void()>(std::forward<What>(what)));
    } else {
      if (free_.empty()) add_events();
      const std::uint32_t place = free_.back();
      free_.pop_back();
      event(place).begin(std::forward<What>(what));
      rise({.when = static_cast<std::uint64_t>(when), .order_and_place = (++order_ << kPlaceBits) + place});
    }
  }
  // The next event happens. Likewise.
  void run() {
    const std::uint32_t place = heap_.front().place();
    sink();
    event(place).run();
    free_.push_back(place);
  }

 private:
  static constexpr std::size_t kRoom = 56;
  static constexpr int kPlaceBits = 20;  // of order_and_place: there is order for as many events as any run has
  static constexpr std::uint32_t kEach = 64;

  class Event {
   public:
    template <class What>
    void begin(What&& what) {
      using Held = std::decay_t<What>;
      static_assert(sizeof(Held) <= kRoom && alignof(Held) <= alignof(std::uint64_t));
      new (room_) Held(std::forward<What>(what));
      act_ = [](std::byte* room, bool run) {
        Held* held = std::launder(reinterpret_cast<Held*>(room));
        if (run) (*held)();
        held->~Held();
      };
    }
    void run() { act_(room_, true); }
    void end() { act_(room_, false); }

   private:
    void (*act_)(std::byte* room, bool run) = nullptr;
    alignas(std::uint64_t) std::byte room_[kRoom];
  };

  struct Entry {
    std::uint64_t when;
    std::uint64_t order_and_place;
    std::uint32_t place() const { return static_cast<std::uint32_t>(order_and_place & ((1u << kPlaceBits) - 1)); }
    // One comparison without a branch: which of two events is the earlier nobody can foretell.
    unsigned __int128 key() const { return static_cast<unsigned __int128>(when) << 64 | order_and_place; }
  };

  Event& event(std::uint32_t place) { return (*events_[place / kEach])[place % kEach]; }
  void add_events() {
    const auto first = static_cast<std::uint32_t>(events_.size()) * kEach;
    FARPOOL_CHECK(first + kEach <= 1u << kPlaceBits);
    events_.push_back(std::make_unique<std::array<Event, kEach>>());
    for (std::uint32_t i = kEach; i-- > 0;) free_.push_back(first + i);
  }
  void rise(Entry entry) {
    std::size_t slot = heap_.size();
    heap_.push_back(entry);
    for (; slot > 0; slot = (slot - 1) / 2) {
      const Entry& parent = heap_[(slot - 1) / 2];
      if (parent.key() < entry.key()) break;
      heap_[slot] = parent;
    }
    heap_[slot] = entry;
  }
  // Takes the first one away.
  void sink() {
    const Entry last = heap_.back();
    heap_.pop_back();
    const std::size_t size = heap_.size();
    if (size == 0) return;
    Entry* const heap = heap_.data();
    std::size_t slot = 0;
    for (std::size_t child = 1; child < size; child = 2 * slot + 1) {
      if (child + 1 < size) child += heap[child + 1].key() < heap[child].key() ? 1 : 0;
      if (last.key() < heap[child].key()) break;
      heap[slot] = heap[child];
      slot = child;
    }
    heap[slot] = last;
  }

  std::uint64_t order_ = 0;
  std::vector<Entry> heap_;
  std::vector<std::unique_ptr<std::array<Event, kEach>>> events_;
  std::vector<std::uint32_t> free_;
};

}  // namespace farpool::fabric::sim
