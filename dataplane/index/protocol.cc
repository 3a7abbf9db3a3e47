// SPDX-License-Identifier: Apache-2.0
#include "index/protocol.h"

namespace farpool::index {

base::Status check_wire(std::string_view name, const Needs& needs, const fabric::Caps& caps) {
  std::string missing;
  const auto compare = [&missing](std::uint64_t needed, std::uint64_t has, const std::string& what) {
    if (needed <= has) return;
    missing += (missing.empty() ? "" : "; ") + what + " of at least " + std::to_string(needed) + " (it has " +
               (has == 0 ? "none" : std::to_string(has)) + ")";
  };
  compare(needs.chain, caps.max_chain, "chains");
  compare(needs.verb_bytes, caps.max_verb_bytes, "READs and WRITEs, in bytes,");
  compare(needs.calls_in_flight, caps.calls_in_flight, "CALLs for data in flight on a lane");
  compare(needs.call_bytes, caps.call_bytes, "CALLs for data, in bytes,");
  if (missing.empty()) return {};
  return {base::Code::invalid_argument, "this wire cannot serve the protocol " + std::string(name) + ", which needs " +
                                            missing + ": use another wire, or another protocol"};
}

}  // namespace farpool::index
