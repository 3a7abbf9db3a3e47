// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace farpool::fabric::verbs {

base::Result<std::unique_ptr<Arena>> Arena::make(ibv_pd* domain) {
  void* begin = ::mmap(nullptr, kReachBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return failure("addresses for registered memory", errno);
  // A child of this process has no use for it, and must not make the device's pages copies.
  ::madvise(begin, kReachBytes, MADV_DONTFORK);
  return std::unique_ptr<Arena>(new Arena(domain, reinterpret_cast<std::uintptr_t>(begin)));
}

Arena::~Arena() {
  registrations_.clear();
  ::munmap(reinterpret_cast<void*>(begin_), kReachBytes);
}

std::byte* Arena::slab(std::size_t bytes) {
  const std::size_t taken = keys_.size() * kSlabBytes;
  void* slab = reinterpret_cast<void*>(begin_ + taken);
  base::Status status;
  if (bytes > kReachBytes - taken || ::mprotect(slab, bytes, PROT_READ | PROT_WRITE) != 0) {
    status = failure("memory for buffers", ENOMEM);
  } else if (auto registration = register_memory(domain_, slab, bytes, IBV_ACCESS_LOCAL_WRITE); !registration.ok()) {
    status = registration.status();
  } else {
    keys_.insert(keys_.end(), bytes / kSlabBytes, (*registration)->lkey);
    registrations_.push_back(std::move(*registration));
    return static_cast<std::byte*>(slab);
  }
  // As when ordinary memory has run out: the process cannot continue.
  std::fprintf(stderr, "%s, after %zu MiB of buffers\n", status.message().c_str(), taken >> 20);
  std::abort();
}

}  // namespace farpool::fabric::verbs
