// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/device_memory.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

namespace farpool::fabric::verbs {

using base::Code;
using base::Result;
using base::Status;

std::uint64_t device_memory_of(ibv_context* context) {
  ibv_device_attr_ex limits{};
  return ::ibv_query_device_ex(context, nullptr, &limits) == 0 ? limits.max_dm_size : 0;
}

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::make(ibv_pd* domain, base::Bytes words) {
  constexpr std::uint32_t kAlignment = 3;  // of atomics: two to this
  constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                               IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED;
  const std::string name = ::ibv_get_device_name(domain->context->device);
  const std::uint64_t most = device_memory_of(domain->context);
  if (most == 0) return Status(Code::unavailable, name + " has no memory of its own to lend");
  const std::string wanted = std::to_string(words.size()) + " bytes of the memory of " + name + " itself";
  if (words.size() > most) {
    return Status(Code::unavailable, wanted + ": it has " + std::to_string(most) +
                                         "; fewer locks take less (more rows per lock, a smaller table)");
  }
  std::unique_ptr<DeviceMemory> made(new DeviceMemory);
  made->bytes_ = words.size();
  ibv_alloc_dm_attr asked{.length = words.size(), .log_align_req = kAlignment, .comp_mask = 0};
  errno = 0;
  made->memory_.reset(::ibv_alloc_dm(domain->context, &asked));
  if (made->memory_ == nullptr) {
    return Status(Code::unavailable,
                  failure(wanted, errno).message() + "; all processes share " + std::to_string(most) + " bytes of it");
  }
  // What the processor wrote may still be on its way; once it can be read, it is there.
  std::vector<std::byte> seen(words.size());
  int error = ::ibv_memcpy_to_dm(made->memory_.get(), 0, words.data(), words.size());
  if (error == 0) error = ::ibv_memcpy_from_dm(seen.data(), made->memory_.get(), 0, seen.size());
  if (error != 0) return failure(wanted + ", to be filled", error);
  if (!std::equal(seen.begin(), seen.end(), words.begin())) {
    return Status(Code::unavailable, wanted + " do not hold what was written to them: report it to the NIC's vendor");
  }
  made->registration_.reset(::ibv_reg_dm_mr(domain, made->memory_.get(), 0, words.size(), kAccess));
  if (made->registration_ == nullptr) return failure(wanted + ", to be registered", errno);
  return made;
}

}  // namespace farpool::fabric::verbs
