// SPDX-License-Identifier: Apache-2.0
// In the place of protocols/protocols.cc: as much of the protocol as a memory node asks before clients come. Owners
// work on its table region directly.
#include <array>

#include "farpool/v1alpha1/agent.pb.h"
#include "index/protocol.h"
#include "layout/directory.h"
#include "protocols/cuckooduo/list_test.h"
#include "protocols/protocols.h"

namespace farpool::cuckooduo {

Served& served() {
  static Served served;
  return served;
}

}  // namespace farpool::cuckooduo

namespace farpool::protocols {
namespace {

class Side final : public index::NodeSide {
 public:
  Side(const layout::Geometry& geometry, base::MutableBytes memory)
      : relay_({.table = 0,
                .lease = memory.data() + geometry.at(layout::kLeases).offset + 8 * layout::table_lease(0),
                .records = records(geometry, memory)}) {
    cuckooduo::served().relay = &relay_;
  }
  fabric::Service& service() override { return relay_; }
  std::optional<Numbers> numbers() const override { return std::nullopt; }

 private:
  static base::Bytes records(const layout::Geometry& geometry, base::MutableBytes memory) {
    const cuckooduo::Site& site = cuckooduo::served().site;
    const layout::Span& table = geometry.at(layout::kTable);
    if (site.bytes() > table.bytes) return {};  // no owner takes such a table
    return memory.subspan(table.offset + site.record(0).offset, site.records * cuckooduo::Record::kBytes);
  }
  cuckooduo::Relay relay_;
};

class Vaults final : public index::Protocol {
 public:
  Vaults() : Protocol(layout::Protocol{}) {}

  index::Needs needs() const override { return {.chain = fabric::kMaxChain}; }
  // Zeros are an empty vault.
  void format(const layout::Geometry&, base::MutableBytes, const base::HashSecret&, std::uint64_t,
              const Progress&) const override {}
  // An owner mends.
  index::Mended mend(const layout::Geometry&, base::MutableBytes, const Progress&) const override { return {}; }
  index::Report verify(const layout::Geometry& geometry, base::Bytes, base::Bytes heap, const base::HashSecret&,
                       const index::Verification&) const override {
    index::Report report(heap.size());
    report.rows = geometry.rows;
    return report;
  }
  // There is no message of its own yet.
  void describe(const layout::Geometry& geometry, v1alpha1::MemoryNodeFacts& facts) const override {
    facts.mutable_race()->set_groups(geometry.rows);
  }
  void describe(const layout::Geometry& geometry, v1alpha1::MemoryNodeEntry& entry) const override {
    entry.mutable_race()->set_groups(geometry.rows);
  }
  base::Result<std::unique_ptr<index::NodeSide>> serve(const layout::Geometry& geometry, base::MutableBytes memory,
                                                       const base::HashSecret&,
                                                       const session::EraWords&) const override {
    return std::unique_ptr<index::NodeSide>(std::make_unique<Side>(geometry, memory));
  }
  std::unique_ptr<index::Table> open(session::Session&, const layout::Geometry&, std::uint32_t) const override {
    return nullptr;
  }
};

}  // namespace

std::span<const index::Protocol* const> all() {
  static const Vaults vaults;
  static const std::array<const index::Protocol*, 1> kAll{&vaults};
  return kAll;
}

}  // namespace farpool::protocols
