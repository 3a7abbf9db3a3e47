// SPDX-License-Identifier: Apache-2.0
// How far the start of a memory node has come.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace farpool::node {

// Receives the step, and how many bytes of how many are done. Called often, on the thread that starts the node.
using Progress = std::function<void(std::string_view step, std::uint64_t done, std::uint64_t of)>;

}  // namespace farpool::node
