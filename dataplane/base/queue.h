// SPDX-License-Identifier: Apache-2.0
// A first-in-first-out queue in one array, which grows and never shrinks: unlike std::deque, it allocates nothing in
// steady state. Single-threaded.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "base/check.h"

namespace farpool::base {

template <class T>
class Queue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& front() { return at(0); }
  const T& front() const { return at(0); }
  T& back() { return at(size_ - 1); }
  const T& back() const { return at(size_ - 1); }
  T& operator[](std::size_t i) { return at(i); }
  const T& operator[](std::size_t i) const { return at(i); }
  void push_back(T value) {
    if (size_ == places_.size()) grow();
    places_[place(size_)] = std::move(value);
    ++size_;
  }
  void pop_front() {
    front() = T();
    first_ = place(1);
    --size_;
  }
  void pop_back() {
    back() = T();
    --size_;
  }
  // Removes all for which `is_gone` holds; the others keep their order.
  template <class Predicate>
  void erase_if(const Predicate& is_gone) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      if (is_gone(std::as_const(at(i)))) continue;
      if (kept != i) at(kept) = std::move(at(i));
      ++kept;
    }
    while (size_ > kept) pop_back();
  }

 private:
  std::size_t place(std::size_t i) const { return (first_ + i) & (places_.size() - 1); }
  T& at(std::size_t i) {
    FARPOOL_CHECK(i < size_);
    return places_[place(i)];
  }
  const T& at(std::size_t i) const {
    FARPOOL_CHECK(i < size_);
    return places_[place(i)];
  }
  void grow() {
    std::vector<T> places(places_.empty() ? 16 : 2 * places_.size());
    for (std::size_t i = 0; i < size_; ++i) places[i] = std::move(places_[place(i)]);
    places_ = std::move(places);
    first_ = 0;
  }

  std::vector<T> places_;  // a power of two of them, or none
  std::size_t first_ = 0, size_ = 0;
};

}  // namespace farpool::base
