// SPDX-License-Identifier: Apache-2.0
// Marks on rare branches, so that a test can demand that they were reached:   FARPOOL_MARK(second_search);
// A mark costs one increment of a thread's own counter. Names are one name space; a test names the marks that it
// demands.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

namespace farpool::base {

class Mark {
 public:
  explicit Mark(const char* name) : name_(name), next_(first()) { first() = this; }
  Mark(const Mark&) = delete;
  ~Mark() {
    for (Mark** at = &first(); *at != nullptr; at = &(*at)->next_) {
      if (*at == this) {
        *at = next_;
        return;
      }
    }
  }
  void hit() { ++hits_; }

  // How often each mark that this thread ever reached was reached.
  static std::map<std::string, std::uint64_t> of_this_thread() {
    std::map<std::string, std::uint64_t> hits;
    for (const Mark* mark = first(); mark != nullptr; mark = mark->next_) hits[mark->name_] += mark->hits_;
    return hits;
  }
  static std::uint64_t hits(std::string_view name) {
    std::uint64_t sum = 0;
    for (const Mark* mark = first(); mark != nullptr; mark = mark->next_) sum += name == mark->name_ ? mark->hits_ : 0;
    return sum;
  }

 private:
  static Mark*& first() {
    thread_local Mark* head = nullptr;
    return head;
  }
  const char* name_;
  std::uint64_t hits_ = 0;
  Mark* next_;
};

}  // namespace farpool::base

#define FARPOOL_MARK(name)                               \
  do {                                                   \
    thread_local ::farpool::base::Mark mark_here(#name); \
    mark_here.hit();                                     \
  } while (false)
