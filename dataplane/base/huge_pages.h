// SPDX-License-Identifier: Apache-2.0
// Pages that the kernel keeps apart, of one size above the ordinary: 2 MiB or 1 GiB on most machines.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace farpool::base {

// Private memory of huge pages, zero. All of them are taken at once: where a container's limit or the kernel's pool is
// too small, that is an error here and not a signal later. The caller unmaps.
Result<void*> map_huge_pages(std::uint64_t bytes, std::uint64_t page);

}  // namespace farpool::base
