// SPDX-License-Identifier: Apache-2.0
#include "net/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace farpool::net::detail {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

base::Status failed(const char* doing) {
  return {base::Code::unavailable, std::string(doing) + " for rings: " + std::strerror(errno)};
}

base::Result<std::byte*> map(int descriptor, std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) return failed("mapping memory");
  return static_cast<std::byte*>(base);
}

}  // namespace

std::size_t RingProducer::room() {
  const std::uint64_t used = at_ - words_->head.load(std::memory_order_acquire);
  if (used > capacity_) broken_ = true;
  return broken_ ? 0 : capacity_ - used;
}

std::size_t RingProducer::write(base::Bytes from) {
  const std::size_t count = std::min(from.size(), room());
  if (count == 0) return 0;
  const std::size_t place = at_ & (capacity_ - 1);
  const std::size_t straight = std::min(count, capacity_ - place);
  std::memcpy(bytes_ + place, from.data(), straight);
  if (count > straight) std::memcpy(bytes_, from.data() + straight, count - straight);
  at_ += count;
  words_->tail.store(at_, std::memory_order_release);
  return count;
}

// The position is written before the look at the flag, and the sleeper writes its flag before it looks at the position:
// so one of the two sees the other.
bool RingProducer::must_ring() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return words_->consumer_sleeps.load(std::memory_order_relaxed) != 0 &&
         words_->consumer_sleeps.exchange(0, std::memory_order_relaxed) != 0;
}

bool RingProducer::may_sleep() {
  words_->producer_sleeps.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return room() == 0 && !broken_;
}

std::size_t RingConsumer::available() {
  const std::uint64_t there = words_->tail.load(std::memory_order_acquire) - at_;
  if (there > capacity_) broken_ = true;
  return broken_ ? 0 : there;
}

std::size_t RingConsumer::read(base::MutableBytes into) {
  const std::size_t count = std::min(into.size(), available());
  if (count == 0) return 0;
  const std::size_t place = at_ & (capacity_ - 1);
  const std::size_t straight = std::min(count, capacity_ - place);
  std::memcpy(into.data(), bytes_ + place, straight);
  if (count > straight) std::memcpy(into.data() + straight, bytes_, count - straight);
  at_ += count;
  words_->head.store(at_, std::memory_order_release);
  return count;
}

bool RingConsumer::must_ring() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return words_->producer_sleeps.load(std::memory_order_relaxed) != 0 &&
         words_->producer_sleeps.exchange(0, std::memory_order_relaxed) != 0;
}

bool RingConsumer::may_sleep() {
  words_->consumer_sleeps.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return available() == 0 && !broken_;
}

base::Result<RingMemory> RingMemory::create() {
  const int descriptor = ::memfd_create("farpool rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return failed("making memory");
  RingMemory memory(descriptor, nullptr);
  if (::ftruncate(descriptor, kBytes) != 0 || ::fcntl(descriptor, F_ADD_SEALS, kSeals) != 0)
    return failed("sizing memory");
  auto base = map(descriptor, kBytes);
  if (!base.ok()) return base.status();
  memory.base_ = *base;
  return memory;
}

base::Result<RingMemory> RingMemory::adopt(int descriptor) {
  RingMemory memory(descriptor, nullptr);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return failed("asking after memory");
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (status.st_size != static_cast<off_t>(kBytes) || seals < 0 || (seals & kSeals) != kSeals) {
    return base::Status(base::Code::corrupt, "the peer gave a descriptor that is no memory for rings of this version");
  }
  auto base = map(descriptor, kBytes);
  if (!base.ok()) return base.status();
  memory.base_ = *base;
  return memory;
}

RingMemory::RingMemory(RingMemory&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), base_(std::exchange(other.base_, nullptr)) {}

RingMemory::~RingMemory() {
  close_descriptor();
  if (base_ != nullptr) ::munmap(base_, kBytes);
}

void RingMemory::close_descriptor() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

}  // namespace farpool::net::detail
