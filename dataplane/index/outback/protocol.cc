// SPDX-License-Identifier: Apache-2.0
#include "index/outback/protocol.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "farpool/v1alpha1/agent.pb.h"
#include "index/outback/build.h"
#include "index/outback/connection.h"
#include "index/outback/node_table.h"
#include "index/outback/service.h"
#include "index/outback/table.h"
#include "index/outback/verify.h"
#include "layout/directory.h"
#include "layout/lease.h"

namespace farpool::outback {
namespace {

using layout::Geometry;

// A zone takes memory a chunk at a time, and the longest block needs a chunk.
constexpr std::uint64_t kHeapOfZone = 8 << 20;
constexpr std::uint64_t kMostZones = 16;
// A table begins with a 256th of the buckets that there is room for, in as many partitions as threads need, if these are
// not too small. A scan's position tells a table's locators apart: a quarter of what it can is left to doublings.
constexpr std::uint64_t kMostDoublings = 8, kPartitionsAtFirst = 16, kFewPartitionBuckets = 256;
// Request lines of a client: its changes under way at once. Lines take at most a 16th of the heap, where that is enough
// for a few.
constexpr std::uint64_t kMostLines = 256, kFewestLines = 16;
constexpr std::uint64_t kGenerations = 1ull << 39;  // that a memory may begin with: as many again come after each

base::MutableBytes part_of(base::MutableBytes memory, const layout::Span& span) {
  return memory.subspan(span.offset, span.bytes);
}

// Writes a locator of no key at all, by which every key goes where it says.
void write_locator(const Cut& cut, const Stage& stage, base::MutableBytes place) {
  const Locator locator = build(cut.shape(stage.level), stage.generation, cut.figures.salt, {}).locator;
  const auto words = std::as_bytes(locator.words());
  std::memcpy(place.data(), words.data(), words.size());
}

base::MutableBytes place_of(const Cut& cut, std::uint64_t place, base::MutableBytes table, base::MutableBytes heap) {
  return place == 0 ? table : heap.subspan(cut.locator, cut.locator_bytes);
}

// Writes a locator again that has been damaged. The first one of a table is known; in the place of any other, a locator
// of no key becomes the table's next one, and keys move to where it says. Returns what was done; nullptr: nothing.
const char* mend_locator(const Cut& cut, base::MutableBytes table, base::MutableBytes heap) {
  const auto stage = stage_of(cut, heap);
  if (!stage.ok() || check_locator(cut, *stage, place_of(cut, stage->place, table, heap)).ok()) return nullptr;
  Stage next = *stage;
  if (cut.growths(*stage) > 0) {
    // As the next process has it: the last one may have written a locator that was never the table's.
    next.generation = next_generation(stage->generation, base::load<std::uint64_t>(heap.data() + kLifeAt) + 1);
    next.moving = true;
    next.place = 1 - stage->place;
  }
  const base::MutableBytes place = place_of(cut, next.place, table, heap);
  if (cut.shape(next.level).words() * 8 > place.size()) return nullptr;
  write_locator(cut, next, place);
  base::store(heap.data() + kStageAt, next.word());
  return next == *stage ? "wrote it again" : "wrote another one, to which keys move";
}

// Says for people how far the table has grown.
std::string state_of(const Cut& cut, const Stage& stage) {
  return "the Outback table has " + std::to_string(cut.shape(stage.level).table_buckets()) + " of " +
         std::to_string(cut.bucket_count) + " buckets, after " + std::to_string(stage.level) + " of " +
         std::to_string(cut.figures.doublings) + " doublings and " + std::to_string(cut.growths(stage)) + " locators" +
         (stage.moving ? ", and keys are moving to where the last of these says" : "");
}

// What a memory node runs.
class Side final : public index::NodeSide, private Eras {
 public:
  explicit Side(const session::EraWords& eras) : eras_(eras) {}
  base::Status open(const Geometry& geometry, base::MutableBytes memory, const base::HashSecret& seed) {
    std::byte* const leases = memory.data() + geometry.at(layout::kLeases).offset;
    std::byte* const directory = memory.data() + geometry.at(layout::kDirectory).offset;
    const Settings settings{.secret = seed,
                            .eras = this,
                            .locator = part_of(memory, geometry.at(layout::kTable)),
                            .growth = {},
                            .move_lease = leases + 8 * layout::kMoveLease,
                            .move_finished = directory + layout::move_offset(geometry.tables)};
    auto table = NodeTable::open(part_of(memory, geometry.at(layout::kHeap)), settings, {});
    if (!table.ok()) return table.status();
    table_ = std::move(*table);
    service_ = std::make_unique<NodeService>(*table_);
    return {};
  }
  fabric::Service& service() override { return *service_; }
  std::optional<Numbers> numbers() const override {
    NodeTable::Totals totals = table_->totals();
    const Growth& growth = table_->growth();
    const Stage stage = table_->stage();
    totals.marks.locator_bytes = growth.locator_bytes();
    totals.marks.resize_stage = growth.building() ? 1ull : (stage.moving ? 2ull : 0ull);
    totals.marks.doublings = stage.level;
    totals.marks.doublings_left = table_->cut().figures.doublings - stage.level;
    totals.marks.locators_published = growth.figures().published;
    totals.marks.held_calls = service_->held();
    return Numbers{.keys = totals.keys,
                   .bytes = totals.bytes,
                   .heap = table_->cut().blocks_end() - table_->cut().blocks,
                   .live = totals.bytes + totals.keys * kBlockHeader,
                   .marks = totals.marks};
  }

 private:
  std::uint64_t now() const override { return eras_.now.load(std::memory_order_acquire); }
  std::uint64_t safe() const override { return eras_.safe.load(std::memory_order_acquire); }

  const session::EraWords& eras_;
  std::unique_ptr<NodeTable> table_;
  std::unique_ptr<NodeService> service_;
};

// The one session of a table that does not outlive it.
class OneSession final : public Connections {
 public:
  explicit OneSession(session::Session& session)
      : session_(session), connection_(std::make_shared<SessionConnection>(session)) {}
  fabric::Port& port() override { return session_.port(); }
  task::Task<base::Result<std::shared_ptr<Connection>>> connect(base::Nanos) override {
    if (!session_.alive()) co_return base::Status(base::Code::unavailable, session_.why().message());
    co_return connection_;
  }

 private:
  session::Session& session_;
  const std::shared_ptr<Connection> connection_;
};

// A session's lane, for as long as an operation holds it.
class Kept final : public Connection {
 public:
  explicit Kept(std::shared_ptr<session::Session> session) : session_(std::move(session)), connection_(*session_) {}
  bool alive() const override { return connection_.alive(); }
  base::Status why() const override { return connection_.why(); }
  task::Task<fabric::Outcome> post(std::span<const fabric::Op> ops, base::Nanos deadline, fabric::Cost& cost) override {
    return connection_.post(ops, deadline, cost);
  }
  std::uint64_t region_bytes(std::uint32_t region) const override { return connection_.region_bytes(region); }
  std::optional<session::EraPin> pin() override { return connection_.pin(); }

 private:
  const std::shared_ptr<session::Session> session_;
  SessionConnection connection_;
};

// One session after the other.
class ManySessions final : public Connections {
 public:
  explicit ManySessions(index::Sessions& sessions) : sessions_(sessions) {}
  fabric::Port& port() override { return sessions_.port(); }
  task::Task<base::Result<std::shared_ptr<Connection>>> connect(base::Nanos deadline) override {
    base::Result<std::shared_ptr<session::Session>> next = co_await sessions_.next(deadline);
    if (!next.ok()) co_return next.status();
    co_return std::make_shared<Kept>(std::move(*next));
  }

 private:
  index::Sessions& sessions_;
};

Table::Options options_of(const Geometry& geometry, const session::Grant& grant) {
  const base::HashSecret& seed = grant.table_seed;
  Table::Options options{.secret = seed,
                         .pool_secret = grant.pool_secret,
                         .locator_region = layout::kTable,
                         .blocks_region = layout::kHeap,
                         .geometry = geometry};
  // What clients reach of the heap begins with the locator's second place.
  if (const auto made = cut(figures_of(geometry, seed)); made.ok()) {
    options.blocks_at = made->locator;
    options.second_locator_at = 0;
  }
  return options;
}

class Outback final : public index::Protocol {
 public:
  Outback() : Protocol(layout::Protocol::outback) {}

  index::Needs needs() const override {
    return {.chain = 2, .verb_bytes = LocatorHeader::kBytes, .calls_in_flight = 1, .call_bytes = kReplyRoom};
  }

  base::Status check(const Geometry& geometry) const override { return cut(figures_of(geometry, {})).status(); }

  void format(const Geometry& geometry, base::MutableBytes memory, const base::HashSecret& seed, std::uint64_t,
              const Progress& progress) const override {
    const Figures figures = figures_of(geometry, seed);
    const auto made = outback::format(part_of(memory, geometry.at(layout::kHeap)), figures);
    FARPOOL_CHECK(made.ok());  // the geometry has been checked
    write_locator(*made, {.generation = figures.generation}, part_of(memory, geometry.at(layout::kTable)));
    if (progress) progress(geometry.rows);
  }

  index::Mended mend(const Geometry& geometry, base::MutableBytes memory, const Progress&) const override {
    const base::MutableBytes heap = part_of(memory, geometry.at(layout::kHeap));
    const base::MutableBytes table = part_of(memory, geometry.at(layout::kTable));
    // No client writes there: what these regions say is damage.
    for (const layout::RegionId id : {layout::kSlots, layout::kLeases, layout::kLocks}) {
      std::ranges::fill(part_of(memory, geometry.at(id)), std::byte{0});
    }
    index::Mended mended;
    const auto made = parse(heap);
    const auto finished = made.ok() ? finish_decided(*made, heap, {}) : made.status();
    if (!finished.ok()) {
      mended.left.push_back(finished.status().message());
      return mended;
    }
    mended.operations = *finished;
    mended.what = "found " + std::to_string(*finished) + " changes decided, and made them";
    if (const char* done = mend_locator(*made, table, heap); done != nullptr) {
      ++mended.operations;
      mended.what += std::string("; found the locator damaged, and ") + done;
    }
    return mended;
  }

  index::Report verify(const Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
                       const index::Verification& how) const override {
    using Kind = index::Defect::Kind;
    const auto made = parse(heap);
    if (!made.ok() || made->figures != figures_of(geometry, seed)) {
      index::Report report(heap.size());
      report.rows = report.torn_rows = geometry.rows;
      report.tell({Kind::torn, 0, 0, 0,
                   made.ok() ? "the superblock of the Outback table has other figures than the memory"
                             : made.status().message()});
      return report;
    }
    const auto visit = [&how](const Seen& seen) {
      if (!how.visit || seen.by == Seen::By::line) return;
      how.visit({.key = base::text_of(seen.block.key),
                 .value = base::text_of(seen.block.value),
                 .row = seen.bucket,
                 .slot = 0,
                 .block = seen.address,
                 .block_bytes = seen.bytes});
    };
    index::Report report = outback::verify(*made, heap, seed, {.visit = visit, .progress = how.progress});
    if (const auto stage = stage_of(*made, heap); stage.ok()) {
      report.state = state_of(*made, *stage);
      const base::Bytes place = stage->place == 0 ? table : heap.subspan(made->locator, made->locator_bytes);
      const base::Status locator = check_locator(*made, *stage, place);
      if (!locator.ok()) report.tell({Kind::impossible, 0, 0, 0, locator.message()});
    }
    return report;
  }

  base::Result<std::unique_ptr<index::NodeSide>> serve(const Geometry& geometry, base::MutableBytes memory,
                                                       const base::HashSecret& seed,
                                                       const session::EraWords& eras) const override {
    auto side = std::make_unique<Side>(eras);
    base::Status status = side->open(geometry, memory, seed);
    if (!status.ok()) return status;
    return std::unique_ptr<index::NodeSide>(std::move(side));
  }

  // The rest of the heap is the memory node's own: tokens, with which a client takes its lines over, and outcomes.
  layout::Span reachable(const Geometry& geometry, layout::RegionId id) const override {
    const layout::Span& all = geometry.at(id);
    const auto made = id == layout::kHeap ? cut(figures_of(geometry, {})) : base::Result<Cut>(Cut{});
    if (!made.ok()) return {all.offset, 0};
    return id == layout::kHeap ? layout::Span{all.offset + made->locator, made->blocks_end() - made->locator} : all;
  }

  void describe(const Geometry& geometry, v1alpha1::MemoryNodeFacts& facts) const override {
    facts.mutable_outback()->set_buckets(geometry.rows);
  }
  void describe(const Geometry& geometry, v1alpha1::MemoryNodeEntry& entry) const override {
    entry.mutable_outback()->set_buckets(geometry.rows);
  }

  std::unique_ptr<index::Table> open(session::Session& session, const Geometry& geometry,
                                     std::uint32_t) const override {
    return std::make_unique<Table>(std::make_unique<OneSession>(session), options_of(geometry, session.grant()));
  }
  std::unique_ptr<index::Table> open_lasting(index::Sessions& sessions, const session::Grant& grant,
                                             const Geometry& geometry, std::uint32_t) const override {
    return std::make_unique<Table>(std::make_unique<ManySessions>(sessions), options_of(geometry, grant));
  }
};

}  // namespace

const index::Protocol& protocol() {
  static const Outback outback;
  return outback;
}

Figures figures_of(const Geometry& geometry, const base::HashSecret& seed) {
  const std::uint64_t heap = geometry.at(layout::kHeap).bytes;
  const std::uint64_t clients = std::min<std::uint64_t>(geometry.max_sessions, 1 << 16);
  const std::uint64_t lines = heap / 16 / (std::max<std::uint64_t>(clients, 1) * kLineBytes);
  const std::uint64_t rows = std::max<std::uint64_t>(geometry.rows, 2);
  const std::uint64_t tags = (std::uint64_t{1} << index::kPositionBits) / rows;
  const std::uint64_t doublings =
      std::min({kMostDoublings, tags / 4, static_cast<std::uint64_t>(std::bit_width(rows) - 2)});
  const std::uint64_t at_first = rows >> doublings;
  const std::uint64_t fewest = (at_first + LocatorShape::kPartitionBuckets - 1) / LocatorShape::kPartitionBuckets;
  const std::uint64_t partitions = std::max(fewest, std::min(kPartitionsAtFirst, at_first / kFewPartitionBuckets));
  const std::uint64_t most_zones = std::clamp<std::uint64_t>(std::bit_floor(heap / kHeapOfZone), 1, kMostZones);
  const std::uint64_t zones = std::min(most_zones, partitions);
  const auto drawn = [&seed](std::string_view what) { return base::keyed_hash(seed, base::bytes_of(what)); };
  return {.memory_bytes = heap,
          .generation = 2 + drawn("generation") % kGenerations,
          .salt = drawn("salt"),
          .partitions = partitions,
          .partition_buckets = at_first / partitions,
          .zones = zones,
          .overflow = base::round_up(geometry.rows, zones),
          .clients = clients,
          .lines = std::clamp(std::bit_floor(lines), kFewestLines, kMostLines),
          .doublings = doublings};
}

}  // namespace farpool::outback
