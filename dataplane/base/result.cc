// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

namespace farpool::base {

std::string_view name_of(Code code) {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalid_argument:
      return "invalid argument";
    case Code::too_large:
      return "too large";
    case Code::out_of_memory:
      return "out of memory";
    case Code::timed_out:
      return "timed out";
    case Code::locked:
      return "locked";
    case Code::unavailable:
      return "unavailable";
    case Code::stale:
      return "stale";
    case Code::moved:
      return "moved";
    case Code::forbidden:
      return "forbidden";
    case Code::fenced:
      return "fenced";
    case Code::unknown_outcome:
      return "unknown outcome";
    case Code::corrupt:
      return "corrupt";
    case Code::internal:
      return "internal";
  }
  return "internal";
}

}  // namespace farpool::base
