// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/protocol.h"

#include <algorithm>
#include <string>
#include <utility>

#include "farpool/v1alpha1/agent.pb.h"
#include "index/claims.h"
#include "index/cuckooduo/outbox.h"
#include "index/cuckooduo/relay.h"
#include "index/cuckooduo/table.h"
#include "index/cuckooduo/verify.h"
#include "layout/directory.h"
#include "layout/extent.h"
#include "layout/private_page.h"

namespace farpool::cuckooduo {
namespace {

using layout::Geometry;

// Rows for stash and records: a sixteenth of all each, but not more than they need.
constexpr std::uint64_t kMostStashSlots = 64, kMostRequests = 256;
constexpr std::uint64_t kFewestRows = 8;
// Requests of a client that a lane has to have room for beside what Outbox::kOtherCalls says.
constexpr std::uint32_t kRequests = 4;

base::MutableBytes part_of(base::MutableBytes memory, const layout::Span& span) {
  return memory.subspan(span.offset, span.bytes);
}

class Side final : public index::NodeSide {
 public:
  Side(const Geometry& geometry, base::MutableBytes memory, const Site& site)
      : relay_({.table = site.table,
                .lease = memory.data() + geometry.at(layout::kLeases).offset + 8 * layout::table_lease(site.table),
                .records = part_of(memory, geometry.at(layout::kTable))
                               .subspan(site.record(0).offset, site.records * Record::kBytes)}) {}
  fabric::Service& service() override { return relay_; }
  std::optional<Numbers> numbers() const override { return std::nullopt; }

 private:
  Relay relay_;
};

class CuckooDuo final : public index::Protocol {
 public:
  explicit CuckooDuo(layout::Protocol number) : Protocol(number) {}

  index::Needs needs() const override {
    return {.chain = fabric::kMaxChain,
            .verb_bytes = layout::extent_bytes(layout::kMaxKeyBytes, layout::kMaxValueBytes),
            .calls_in_flight = Outbox::kOtherCalls + kRequests,
            .call_bytes = kLongestTurn};
  }

  base::Status check(const Geometry& geometry) const override {
    if (geometry.tables == 1 && geometry.rows >= kFewestRows) {
      return check_site(site_of(geometry, {}), geometry.at(layout::kTable).bytes);
    }
    return {base::Code::invalid_argument, "a CuckooDuo memory has one table of " + std::to_string(kFewestRows) +
                                              " rows or more, not " + std::to_string(geometry.tables) +
                                              " of together " + std::to_string(geometry.rows) +
                                              ": give it more memory, or a larger percentage for the table"};
  }

  // Zeros are an empty vault.
  void format(const Geometry&, base::MutableBytes, const base::HashSecret&, std::uint64_t,
              const Progress&) const override {}

  index::Mended mend(const Geometry& geometry, base::MutableBytes memory, const Progress&) const override {
    index::Mended mended;
    const auto page = layout::read_private_page(memory.subspan(geometry.private_page(), layout::kPage));
    index::free_claims(geometry, memory);
    base::store(memory.data() + geometry.at(layout::kDirectory).offset + layout::record_offset(geometry.tables, 0) +
                    layout::kRecordOwner,
                std::uint64_t{0});
    if (!page.record) {
      mended.left.push_back("the vault, because the private page does not say what its keys are hashed with");
      return mended;
    }
    const auto slots =
        cuckooduo::mend(site_of(geometry, page.record->table_seed), part_of(memory, geometry.at(layout::kTable)),
                        part_of(memory, geometry.at(layout::kHeap)));
    if (!slots.ok()) {
      mended.left.push_back(slots.status().message());
      return mended;
    }
    mended.operations = *slots;
    mended.what = "found " + std::to_string(*slots) + " slots of changes that had not ended, and set them right";
    return mended;
  }

  index::Report verify(const Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
                       const index::Verification& how) const override {
    index::Report report = cuckooduo::verify(site_of(geometry, seed), table, heap, how);
    report.rows = geometry.rows;
    return report;
  }

  // There is no message of its own yet.
  void describe(const Geometry& geometry, v1alpha1::MemoryNodeFacts& facts) const override {
    facts.mutable_race()->set_groups(geometry.rows);
  }
  void describe(const Geometry& geometry, v1alpha1::MemoryNodeEntry& entry) const override {
    entry.mutable_race()->set_groups(geometry.rows);
  }

  base::Result<std::unique_ptr<index::NodeSide>> serve(const Geometry& geometry, base::MutableBytes memory,
                                                       const base::HashSecret& seed,
                                                       const session::EraWords&) const override {
    return std::unique_ptr<index::NodeSide>(std::make_unique<Side>(geometry, memory, site_of(geometry, seed)));
  }

  std::unique_ptr<index::Table> open(session::Session& session, const Geometry& geometry,
                                     std::uint32_t) const override {
    return std::make_unique<Table>(session, geometry);
  }
};

}  // namespace

Site site_of(const Geometry& geometry, const base::HashSecret& seed) {
  const std::uint64_t row_bytes = geometry.row_bytes(), part = std::max<std::uint64_t>(geometry.rows / 16, 1);
  const std::uint64_t stash_rows = std::min(part, kMostStashSlots / geometry.entries_per_row);
  const std::uint64_t record_rows =
      std::min(part, base::round_up(kMostRequests * Record::kBytes, row_bytes) / row_bytes);
  Site site;
  site.shape.slots = static_cast<std::uint32_t>(geometry.entries_per_row);
  site.shape.slot_bytes = static_cast<std::uint32_t>(geometry.entry_bytes);
  site.shape.second = site.shape.slots / 4;
  site.shape.buckets = static_cast<std::uint32_t>((geometry.rows - stash_rows - record_rows) / 2);
  site.shape.stash = static_cast<std::uint32_t>(stash_rows * geometry.entries_per_row);
  site.shape.spares = std::max(site.shape.stash / 4, 1u);
  site.records = static_cast<std::uint32_t>(std::min(record_rows * row_bytes / Record::kBytes, kMostRequests));
  site.secret = seed;
  site.salt = base::keyed_hash(seed, base::bytes_of(std::string_view("displacement of buckets")));
  site.tables = geometry.tables;
  return site;
}

std::unique_ptr<index::Protocol> make_protocol(layout::Protocol number) { return std::make_unique<CuckooDuo>(number); }

}  // namespace farpool::cuckooduo
