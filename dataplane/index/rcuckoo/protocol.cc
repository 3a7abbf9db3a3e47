// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/protocol.h"

#include "farpool/v1alpha1/agent.pb.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/repair.h"
#include "index/rcuckoo/table.h"
#include "index/rcuckoo/verify.h"
#include "layout/extent.h"

namespace farpool::rcuckoo {
namespace {

template <class Message>
void write_shape(const Geometry& geometry, Message& message) {
  auto& shape = *message.mutable_rcuckoo();
  shape.set_entry_bytes(static_cast<std::uint32_t>(geometry.entry_bytes));
  shape.set_entries_per_row(static_cast<std::uint32_t>(geometry.entries_per_row));
  shape.set_rows_per_lock(static_cast<std::uint32_t>(geometry.rows_per_lock));
  shape.set_rows(geometry.rows);
}

class RCuckoo final : public index::Protocol {
 public:
  RCuckoo() : Protocol(layout::Protocol::rcuckoo) {}

  index::Needs needs() const override {
    return {.chain = fabric::kMaxChain,
            .verb_bytes = layout::extent_bytes(layout::kMaxKeyBytes, layout::kMaxValueBytes)};
  }

  void format(const Geometry& geometry, base::MutableBytes memory, const base::HashSecret&, std::uint64_t,
              const Progress&) const override {
    const layout::Span& at = geometry.at(layout::kTable);
    format_table(geometry, memory.subspan(at.offset, at.bytes));
  }

  index::Mended mend(const Geometry& geometry, base::MutableBytes memory, const Progress&) const override {
    ImageRepair repair = repair_image(geometry, memory);
    return {.operations = repair.slots,
            .what = "found " + std::to_string(repair.slots) + " operations half done and " +
                    std::to_string(repair.bits) + " locks taken: " + std::to_string(repair.finished) +
                    " operations finished, the others undone",
            .left = std::move(repair.quarantined)};
  }

  HalfDone half_done(const Geometry& geometry, base::Bytes memory) const override {
    return rcuckoo::half_done(geometry, memory);
  }

  Report verify(const Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
                const Verification& how) const override {
    return rcuckoo::verify(geometry, table, heap, seed, how);
  }

  std::optional<std::vector<std::uint64_t>> rows_of(const Geometry& geometry,
                                                    const layout::OperationSlot& slot) const override {
    return rcuckoo::rows_of(geometry, slot);
  }

  void describe(const Geometry& geometry, v1alpha1::MemoryNodeFacts& facts) const override {
    write_shape(geometry, facts);
  }
  void describe(const Geometry& geometry, v1alpha1::MemoryNodeEntry& entry) const override {
    write_shape(geometry, entry);
  }

  std::unique_ptr<index::Table> open(session::Session& session, const Geometry& geometry,
                                     std::uint32_t table_id) const override {
    return std::make_unique<Table>(session, geometry, table_id);
  }
};

}  // namespace

const index::Protocol& protocol() {
  static const RCuckoo rcuckoo;
  return rcuckoo;
}

}  // namespace farpool::rcuckoo
