// SPDX-License-Identifier: Apache-2.0
// heap::References::rewrite(), by any protocol's change.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fabric/cost.h"
#include "index/edit.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::index {

using Modify = std::function<task::Task<base::Result<bool>>(std::string_view key, Editor& editor)>;

// Reads the keys of the extents in these blocks, and replaces each key's value by itself. A block that is not in use
// may hold any bytes: the key that they seem to name is absent, or is rewritten for nothing.
task::Task<base::Status> rewrite(session::Session& session, const std::vector<std::uint64_t>& units,
                                 std::uint64_t block_bytes, const Modify& modify, base::Nanos deadline,
                                 fabric::Cost& cost);

}  // namespace farpool::index
