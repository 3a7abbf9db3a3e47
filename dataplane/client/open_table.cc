// SPDX-License-Identifier: Apache-2.0
#include "client/open_table.h"

#include "base/check.h"
#include "index/race/table.h"
#include "index/rcuckoo/table.h"

namespace farpool::client {

std::unique_ptr<index::Table> open_table(session::Session& session, heap::Heap& heap, const layout::Geometry& geometry,
                                         std::uint32_t table_id) {
  switch (geometry.protocol) {  // parse_superblock has checked it
    case layout::Protocol::rcuckoo:
      return std::make_unique<rcuckoo::Table>(session, heap, geometry, table_id);
    case layout::Protocol::race:
      return std::make_unique<race::Table>(session, heap, geometry, table_id);
  }
  base::check_failed("a known index protocol", __FILE__, __LINE__);
}

}  // namespace farpool::client
