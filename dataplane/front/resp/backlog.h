// SPDX-License-Identifier: Apache-2.0
// Replies that wait for their client. Short ones share blocks and long ones are kept as they are, so that it takes
// hardly more memory than it says.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

namespace farpool::front::resp {

class Backlog {
 public:
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Leaves `reply` with any content.
  void append(std::string& reply) {
    if (empty() && reply.size() >= kLong) blocks_.clear();  // the block that was kept
    size_ += reply.size();
    if (reply.size() >= kLong) {
      blocks_.push_back(std::move(reply));
    } else if (blocks_.empty() || blocks_.back().size() + reply.size() > kBlock) {
      blocks_.emplace_back(reply);
    } else {
      blocks_.back() += reply;
    }
  }
  // The bytes to be sent first, contiguous; not always all of them.
  std::string_view first() const {
    return blocks_.empty() ? std::string_view() : std::string_view(blocks_.front()).substr(begin_);
  }
  // Drops bytes of first().
  void consume(std::size_t bytes) {
    size_ -= bytes;
    begin_ += bytes;
    if (begin_ < blocks_.front().size()) return;
    begin_ = 0;
    if (blocks_.size() == 1 && blocks_.front().capacity() <= kBlock) {
      blocks_.front().clear();  // kept, so that nothing is allocated in steady state
    } else {
      blocks_.pop_front();
    }
  }
  void clear() {
    blocks_.clear();
    begin_ = size_ = 0;
  }

 private:
  static constexpr std::size_t kLong = 16 * 1024;
  static constexpr std::size_t kBlock = 64 * 1024;
  std::deque<std::string> blocks_;
  std::size_t begin_ = 0;  // in the first block
  std::size_t size_ = 0;
};

}  // namespace farpool::front::resp
