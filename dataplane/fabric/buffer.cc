// SPDX-License-Identifier: Apache-2.0
#include "fabric/buffer.h"

#include <bit>
#include <new>

#include "base/check.h"

namespace farpool::fabric {
namespace {
constexpr std::size_t kSmallest = 64;
constexpr std::align_val_t kAlignment{64};
}  // namespace

Buffer::~Buffer() {
  if (pool_ != nullptr) pool_->give_back(data_, bytes_);
}

std::size_t BufferPool::class_of(std::size_t bytes) {
  return static_cast<std::size_t>(std::bit_width(std::bit_ceil(bytes < kSmallest ? kSmallest : bytes)) - 1);
}

Buffer BufferPool::take(std::size_t bytes) {
  FARPOOL_CHECK(bytes > 0);
  const std::size_t index = class_of(bytes);
  FARPOOL_CHECK(index < free_.size());
  auto& list = free_[index];
  std::byte* data;
  if (list.empty()) {
    data = fresh(std::size_t{1} << index);
    list.reserve(list.capacity() + 1);  // so that giving back never allocates
  } else {
    data = list.back();
    list.pop_back();
  }
  ++taken_;
  return Buffer(this, data, bytes);
}

std::byte* BufferPool::fresh(std::size_t bytes) {
  if (source_ == nullptr) return static_cast<std::byte*>(::operator new(bytes, kAlignment));
  if (bytes >= source_->slab_bytes()) return source_->slab(bytes);
  if (slab_.size() < bytes) slab_ = {source_->slab(source_->slab_bytes()), source_->slab_bytes()};
  std::byte* data = slab_.data();
  slab_ = slab_.subspan(bytes);
  return data;
}

void BufferPool::give_back(std::byte* data, std::size_t bytes) noexcept {
  --taken_;
  free_[class_of(bytes)].push_back(data);
}

BufferPool::~BufferPool() {
  FARPOOL_CHECK(taken_ == 0);
  if (source_ != nullptr) return;
  for (auto& list : free_) {
    for (std::byte* data : list) ::operator delete(data, kAlignment);
  }
}

}  // namespace farpool::fabric
