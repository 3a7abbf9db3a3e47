// SPDX-License-Identifier: Apache-2.0
#include "task/task.h"

#include <array>
#include <cstdlib>
#include <new>

namespace farpool::task {
namespace {

constexpr std::size_t kStep = 128;     // size classes are multiples of this
constexpr std::size_t kClasses = 128;  // up to 16 KiB
constexpr std::size_t kKeep = 1024;    // frames kept per class and thread

struct FreeFrame {
  FreeFrame* next;
};

struct Pool {
  std::array<FreeFrame*, kClasses> free{};
  std::array<std::size_t, kClasses> count{};
  ~Pool() {
    for (FreeFrame*& head : free) {
      while (head != nullptr) {
        FreeFrame* next = head->next;
        ::operator delete(head);
        head = next;
      }
    }
  }
};

// Under the address sanitizer each frame's life is its own.
#if defined(__has_feature)
#define FARPOOL_UNDER(sanitizer) __has_feature(sanitizer)
#else
#define FARPOOL_UNDER(sanitizer) 0
#endif
constexpr bool kPoolFrames = !FARPOOL_UNDER(address_sanitizer);
#undef FARPOOL_UNDER

thread_local Pool pool;

}  // namespace

void* allocate_frame(std::size_t bytes) {
  const std::size_t index = (bytes + kStep - 1) / kStep;
  if (!kPoolFrames) {
    void* const frame = std::malloc(bytes);
    FARPOOL_CHECK(frame != nullptr);
    return frame;
  }
  if (index >= kClasses) return ::operator new(bytes);
  if (FreeFrame* head = pool.free[index]; head != nullptr) {
    pool.free[index] = head->next;
    --pool.count[index];
    return head;
  }
  return ::operator new(index* kStep);
}

void free_frame(void* frame, std::size_t bytes) noexcept {
  const std::size_t index = (bytes + kStep - 1) / kStep;
  if (!kPoolFrames) return std::free(frame);
  if (index >= kClasses || pool.count[index] >= kKeep) {
    ::operator delete(frame);
    return;
  }
  auto* head = static_cast<FreeFrame*>(frame);
  head->next = pool.free[index];
  pool.free[index] = head;
  ++pool.count[index];
}

}  // namespace farpool::task
