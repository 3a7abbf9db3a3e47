// SPDX-License-Identifier: Apache-2.0
#include "apps/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>

namespace farpool::apps {

std::uint64_t raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;  // what every system grants
  const rlimit raised{.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return limit.rlim_cur;
}

base::Result<std::size_t> fitting_connections(std::size_t wanted, std::uint64_t limit, std::uint64_t kept) {
  if (limit <= kept) {
    return base::Status(base::Code::invalid_argument,
                        "this process may open " + std::to_string(limit) + " files and needs " + std::to_string(kept) +
                            " beside those of clients: raise the hard limit (ulimit -H -n)");
  }
  return std::min<std::uint64_t>(wanted, limit - kept);
}

}  // namespace farpool::apps
