// SPDX-License-Identifier: Apache-2.0
#include "index/race/protocol.h"

#include "farpool/v1alpha1/agent.pb.h"
#include "index/race/table.h"
#include "index/race/verify.h"
#include "layout/extent.h"

namespace farpool::race {
namespace {

class Race final : public index::Protocol {
 public:
  Race() : Protocol(layout::Protocol::race) {}

  index::Needs needs() const override {
    return {.chain = fabric::kMaxChain,
            .verb_bytes = layout::extent_bytes(layout::kMaxKeyBytes, layout::kMaxValueBytes)};
  }

  void format(const layout::Geometry& geometry, base::MutableBytes memory, const base::HashSecret&,
              std::uint64_t initial_tables, const Progress& progress) const override {
    const layout::Span& at = geometry.at(layout::kTable);
    format_tables(geometry, memory.subspan(at.offset, at.bytes), initial_tables, progress);
  }

  index::Mended mend(const layout::Geometry& geometry, base::MutableBytes memory,
                     const Progress& progress) const override {
    const std::uint64_t undone = repair_image(geometry, memory, progress);
    return {.operations = undone,
            .what = "found " + std::to_string(undone) + " inserts half done, and undid them",
            .left = {}};
  }

  index::Report verify(const layout::Geometry& geometry, base::Bytes table, base::Bytes heap,
                       const base::HashSecret& seed, const index::Verification& how) const override {
    return race::verify(geometry, table, heap, seed, how);
  }

  void describe(const layout::Geometry& geometry, v1alpha1::MemoryNodeFacts& facts) const override {
    facts.mutable_race()->set_groups(geometry.rows);
  }
  void describe(const layout::Geometry& geometry, v1alpha1::MemoryNodeEntry& entry) const override {
    entry.mutable_race()->set_groups(geometry.rows);
  }

  std::unique_ptr<index::Table> open(session::Session& session, const layout::Geometry& geometry,
                                     std::uint32_t table_id) const override {
    return std::make_unique<Table>(session, geometry, table_id);
  }
};

}  // namespace

const index::Protocol& protocol() {
  static const Race race;
  return race;
}

}  // namespace farpool::race
