// SPDX-License-Identifier: Apache-2.0
// Memory that verbs may read and write. A NIC needs it registered, so it comes from the port, in slabs that are kept.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace farpool::fabric {

class BufferPool;

// Owns a span of registered memory; returns it to its pool when destroyed. Contents are unspecified when taken.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  base::MutableBytes span() const { return {data_, bytes_}; }
  base::MutableBytes first(std::size_t bytes) const { return span().first(bytes); }

 private:
  friend class BufferPool;
  Buffer(BufferPool* pool, std::byte* data, std::size_t bytes) : pool_(pool), data_(data), bytes_(bytes) {}
  BufferPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Where registered memory comes from. A slab stays until the source ends, which is after the last buffer.
class SlabSource {
 public:
  virtual ~SlabSource() = default;
  virtual std::size_t slab_bytes() const = 0;  // a power of two: the usual size of a request
  // Returns memory that is 64-byte aligned; `bytes` is a multiple of slab_bytes(). A source without memory ends the
  // process and says why.
  virtual std::byte* slab(std::size_t bytes) = 0;
};

// Free lists by power-of-two size. One thread. Buffers must not outlive the pool.
class BufferPool {
 public:
  // Without a source it uses ordinary memory.
  explicit BufferPool(SlabSource* source = nullptr) : source_(source) {}
  BufferPool(const BufferPool&) = delete;
  ~BufferPool();
  Buffer take(std::size_t bytes);

 private:
  friend class Buffer;
  void give_back(std::byte* data, std::size_t bytes) noexcept;
  static std::size_t class_of(std::size_t bytes);
  std::byte* fresh(std::size_t bytes);
  SlabSource* source_;
  base::MutableBytes slab_;  // of the source, not yet cut
  std::array<std::vector<std::byte*>, 40> free_;
  std::size_t taken_ = 0;
};

}  // namespace farpool::fabric
