// SPDX-License-Identifier: Apache-2.0
// Contiguous bytes: appended at the tail, consumed at the head.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "base/bytes.h"

namespace farpool::net::detail {

class ByteQueue {
 public:
  std::size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  base::MutableBytes bytes() const { return {data_.get() + begin_, size()}; }

  // Returns room at the tail; the bytes in the queue may move.
  base::MutableBytes room(std::size_t bytes) {
    if (capacity_ - end_ < bytes) {
      if (begin_ >= size() && capacity_ - size() >= bytes) {  // moving less than is free keeps appending linear
        std::memmove(data_.get(), data_.get() + begin_, size());
      } else {
        std::size_t capacity = std::max(capacity_ * 2, kSmallest);
        while (capacity < size() + bytes) capacity *= 2;
        auto data = std::make_unique_for_overwrite<std::byte[]>(capacity);
        if (!empty()) std::memcpy(data.get(), data_.get() + begin_, size());
        data_ = std::move(data);
        capacity_ = capacity;
      }
      end_ -= begin_;
      begin_ = 0;
    }
    return {data_.get() + end_, capacity_ - end_};
  }
  void commit(std::size_t bytes) { end_ += bytes; }
  void take_back(std::size_t bytes) { end_ -= bytes; }  // of what was committed last
  // Never moves the tail, because a read into room() may be under way.
  void consume(std::size_t bytes) { begin_ += bytes; }
  // Starts over at the front, and gives memory back after a burst. No read or write may be under way.
  void rewind() {
    if (!empty()) return;
    begin_ = end_ = 0;
    if (capacity_ > kKeep) {
      data_.reset();
      capacity_ = 0;
    }
  }
  void clear() {
    begin_ = end_;
    rewind();
  }

 private:
  static constexpr std::size_t kSmallest = 4096;
  static constexpr std::size_t kKeep = 256 * 1024;
  std::unique_ptr<std::byte[]> data_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace farpool::net::detail
