// SPDX-License-Identifier: Apache-2.0
#include "task/task.h"

#include <array>
#include <cstdlib>
#include <new>

namespace farpool::task {
namespace {

constexpr std::size_t kStep = 128;     // size classes are multiples of this
constexpr std::size_t kClasses = 128;  // up to 16 KiB
// Frames kept per class and thread: so many, and of small classes more. An operation has several frames of one class, and
// hundreds of operations are under way.
constexpr std::size_t kKeep = 1024;
constexpr std::size_t kKeepBytes = 4 << 20;

struct FreeFrame {
  FreeFrame* next;
};

// Needs no construction and no destruction, so that each access is a few instructions.
struct Pool {
  std::array<FreeFrame*, kClasses> free;
  std::array<std::size_t, kClasses> count;
};
constinit thread_local Pool pool{};

// Gives the frames of a thread's pool back when the thread ends.
struct Emptier {
  bool needed = false;
  ~Emptier() {
    for (FreeFrame*& head : pool.free) {
      while (head != nullptr) {
        FreeFrame* next = head->next;
        ::operator delete(head);
        head = next;
      }
    }
  }
};
thread_local Emptier emptier;

void* new_frame(std::size_t bytes) {
  emptier.needed = true;  // makes it, with the thread's first frame
  return ::operator new(bytes);
}

// Under the address sanitizer each frame's life is its own.
#if defined(__has_feature)
#define FARPOOL_UNDER(sanitizer) __has_feature(sanitizer)
#else
#define FARPOOL_UNDER(sanitizer) 0
#endif
constexpr bool kPoolFrames = !FARPOOL_UNDER(address_sanitizer);
#undef FARPOOL_UNDER

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
  return new_frame(index * kStep);
}

void free_frame(void* frame, std::size_t bytes) noexcept {
  const std::size_t index = (bytes + kStep - 1) / kStep;
  if (!kPoolFrames) return std::free(frame);
  if (index >= kClasses || (pool.count[index] >= kKeep && pool.count[index] * index * kStep >= kKeepBytes)) {
    ::operator delete(frame);
    return;
  }
  auto* head = static_cast<FreeFrame*>(frame);
  head->next = pool.free[index];
  pool.free[index] = head;
  ++pool.count[index];
}

}  // namespace farpool::task
