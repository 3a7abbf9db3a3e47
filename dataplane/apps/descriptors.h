// SPDX-License-Identifier: Apache-2.0
// How many files this process may open, and how many of them clients may use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace farpool::apps {

// Raises the soft limit of open files to the hard one, and returns how many may be open now. Container runtimes start
// processes with a soft limit of 1024, for programs that still call select().
std::uint64_t raise_descriptor_limit();

// Returns how many clients may be connected at once: as many as wanted, or as many as `limit` leaves beside `kept`
// descriptors. Errors: invalid_argument, if that is none.
base::Result<std::size_t> fitting_connections(std::size_t wanted, std::uint64_t limit, std::uint64_t kept);

}  // namespace farpool::apps
