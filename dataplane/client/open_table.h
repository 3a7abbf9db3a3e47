// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "heap/heap.h"
#include "index/table.h"
#include "layout/geometry.h"
#include "session/session.h"

namespace farpool::client {

// The table of a memory node, in the protocol that its geometry names. The only place that knows them all.
std::unique_ptr<index::Table> open_table(session::Session& session, heap::Heap& heap, const layout::Geometry& geometry,
                                         std::uint32_t table_id);

}  // namespace farpool::client
