// SPDX-License-Identifier: Apache-2.0
// For any bytes of a memory: its account ends, reads nothing outside of it, and adds up. A memory node that takes it up
// leaves nothing half done, keeps every key if nothing was damaged, and frees nothing of which it knows too little. The
// input chooses a good image, of RCuckoo, of a moment in the life of RACE tables or of Outback, and edits it. It may make checksums
// right again, because otherwise no edit would get past them.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fabric/sim/network.h"
#include "node/audit.h"
#include "node/image_test.h"
#include "node/memory_node.h"
#include "node/outback_images_test.h"
#include "node/race_images_test.h"

namespace {

using namespace farpool;

// What the input edits.
struct Start {
  layout::PrivateRecord record;
  layout::GeometryRequest request;
  const char* pool = "";
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> slots;  // of RACE, that are taken: offsets in the tables
  bool race() const { return record.geometry.protocol == layout::Protocol::race; }
  bool outback() const { return record.geometry.protocol == layout::Protocol::outback; }
};

std::vector<Start> make_starts() {
  std::vector<Start> starts;
  node::TestImage image;
  image.plan(2, "new", "v");
  image.claim(3, {4, 9});
  const base::MutableBytes bytes = image.bytes();
  starts.push_back({.record = image.record(),
                    .request = node::TestImage::kGeometry,
                    .pool = node::TestImage::kPool,
                    .bytes = {bytes.begin(), bytes.end()}});
  for (node::RaceImage& moment : node::RaceLife::images()) {
    Start start{.request = node::RaceLife::kGeometry, .pool = node::RaceLife::kPool, .bytes = std::move(moment.bytes)};
    start.record = layout::read_private_page(base::Bytes(start.bytes).last(layout::kPage)).record.value();
    FARPOOL_CHECK(start.record.pool == layout::pool_tag(start.pool));
    const layout::Span& tables = start.record.geometry.at(layout::kTable);
    for (std::uint64_t at = 0; at < start.record.geometry.mark_offset(0); at += 8) {
      const auto word = base::load<std::uint64_t>(&start.bytes[tables.offset + at]);
      if (at % node::RaceLife::kBucketBytes != 0 && word != 0) start.slots.push_back(at);
    }
    starts.push_back(std::move(start));
  }
  for (std::vector<std::byte>& bytes : node::outback_images()) {
    Start start{.request = node::kOutbackImage, .pool = node::RaceLife::kPool, .bytes = std::move(bytes)};
    start.record = layout::read_private_page(base::Bytes(start.bytes).last(layout::kPage)).record.value();
    starts.push_back(std::move(start));
  }
  return starts;
}

const std::vector<Start>& starts() {
  static const std::vector<Start> all = make_starts();
  return all;
}

class Editor {
 public:
  Editor(const Start& start, base::MutableBytes all) : start_(start), g_(start.record.geometry), all_(all) {}

  void edit(std::uint8_t what, std::uint64_t where, std::uint64_t value) {
    switch (what % kEdits) {
      case kWord:
        return base::store(&all_[where % (all_.size() / 8) * 8], value);
      case kWordOfRegion: {
        const base::MutableBytes bytes = region(static_cast<layout::RegionId>(value % layout::kRegions));
        return base::store(&bytes[where % (bytes.size() / 8) * 8], value / layout::kRegions);
      }
      case kBit:
        all_[where % all_.size()] ^= std::byte{1} << (value % 8);
        return;
      case kSealRow:
        return start_.race() || start_.outback() ? void() : seal_row(where % g_.rows);
      case kSealClaim:
        return slot(where).seal_claim();
      case kSealPlan:
        return slot(where).seal_plan();
      case kGeometry: {
        layout::PrivateRecord record = start_.record;
        auto* words = reinterpret_cast<std::uint64_t*>(&record.geometry);
        words[1 + where % (sizeof record.geometry / 8 - 1)] = value;  // all but the size of the memory
        return layout::write_private_page(all_.last(layout::kPage), record);
      }
      case kHeader: {
        const std::array<std::uint64_t, 4> header{value % 3, where % 64, value / 3 % 16, 0};
        if (start_.outback()) return;
        std::memcpy(&region(layout::kHeap)[where % g_.segments * g_.segment_bytes], header.data(), sizeof header);
        return;
      }
      case kLease:
        return base::store(&region(layout::kLeases)[where % layout::kLeaseWords * 8],
                           layout::LeaseWord::held_by(value, value >> 32));
      case kDirectory:
        return directory_word(where, value);
      case kOtherMoment:
        return other_moment(where, value);
      case kOutbackWord:
      case kOutbackBlock:
        return start_.outback()
                   ? node::edit_outback(region(layout::kHeap), what % kEdits == kOutbackBlock, where, value)
                   : void();
      default:
        if (!start_.race() || start_.slots.empty()) return;
        if (what % kEdits == kSlot) return race_slot(where, value);
        if (what % kEdits == kBucket) return bucket(where, value);
        return extent(where, value);
    }
  }

 private:
  enum Edit : std::uint8_t {
    kWord,
    kWordOfRegion,
    kBit,
    kSealRow,
    kSealClaim,
    kSealPlan,
    kGeometry,
    kHeader,
    kLease,
    kDirectory,
    kOtherMoment,
    // Of Outback.
    kOutbackWord,
    kOutbackBlock,
    // Of RACE.
    kSlot,
    kBucket,
    kExtent,
    kEdits
  };

  base::MutableBytes region(layout::RegionId id) const { return all_.subspan(g_.at(id).offset, g_.at(id).bytes); }
  layout::OperationSlot& slot(std::uint64_t where) const {
    const std::uint64_t slots = g_.max_sessions * g_.slots_per_session;
    return reinterpret_cast<layout::OperationSlot*>(region(layout::kSlots).data())[where % slots];
  }
  void seal_row(std::uint64_t number) const {
    const base::MutableBytes row = region(layout::kTable).subspan(number * g_.row_bytes(), g_.row_bytes());
    base::store(row.data() + row.size() - 8, base::crc64(row.first(row.size() - 8), number));
  }
  static std::uint64_t with(std::uint64_t word, int shift, int bits, std::uint64_t value) {
    const std::uint64_t mask = ((1ull << bits) - 1) << shift;
    return (word & ~mask) | (value << shift & mask);
  }
  static std::uint64_t load(const std::byte& at) { return base::load<std::uint64_t>(&at); }

  void directory_word(std::uint64_t where, std::uint64_t value) const {
    const base::MutableBytes words = region(layout::kDirectory);
    const std::uint64_t count = words.size() / 8, rest = value / 4;
    std::byte& at = words[where % count * 8];
    switch (value % 4) {
      case 0:
        return base::store(&at, rest);
      case 1:
        return base::store(&at, load(words[rest % count * 8]));
      case 2:
        return base::store(&at, load(at) ^ 1ull << rest % 64);
      default:  // of the fields that begin in the middle of a word
        return base::store(&at, load(at) + (1ull << (rest % 2 * 32)) * (rest / 2 % 16));
    }
  }
  // Copies words of another moment of the same life, which some clients have seen and others have not.
  void other_moment(std::uint64_t where, std::uint64_t value) const {
    if (!start_.race()) return;
    static const auto moments = static_cast<std::uint64_t>(std::ranges::count_if(starts(), &Start::race));
    const std::vector<std::byte>& other = starts()[1 + value % moments].bytes;  // behind the image of RCuckoo
    const std::uint64_t kind = value >> 8 & 3, rest = value >> 16;
    layout::Span span{.offset = where % (all_.size() / 8) * 8, .bytes = 8};
    const layout::Span& tables = g_.at(layout::kTable);
    if (kind == 1) span = {tables.offset + where % g_.rows * g_.row_bytes(), g_.row_bytes()};
    if (kind == 2) span = {tables.offset + where % g_.tables * (tables.bytes / g_.tables), tables.bytes / g_.tables};
    if (kind == 3) span = g_.at(static_cast<layout::RegionId>(rest % layout::kRegions));
    std::memcpy(&all_[span.offset], &other[span.offset], span.bytes);
  }

  std::byte& taken(std::uint64_t which) const {
    return region(layout::kTable)[start_.slots[which % start_.slots.size()]];
  }
  void race_slot(std::uint64_t where, std::uint64_t value) const {
    const std::uint64_t bucket_words = node::RaceLife::kBucketBytes / 8;
    const std::uint64_t any = where / 2 % (g_.mark_offset(0) / 8);
    std::byte& at = where % 2 == 0            ? taken(where / 2)
                    : any % bucket_words == 0 ? region(layout::kTable)[(any + 1) * 8]
                                              : region(layout::kTable)[any * 8];
    const std::uint64_t word = load(at), rest = value / 8;
    switch (value % 8) {
      case 0:
        return base::store(&at, rest);
      case 1:
        return base::store(&at, with(word, 46, 2, rest));
      case 2:
        return base::store(&at, with(word, 56, 8, rest));
      case 3:
        return base::store(&at, with(word, 48, 8, rest));
      case 4:
        return base::store(&at, with(word, 0, 46, load(taken(rest))));
      case 5:
        return base::store(&at, load(taken(rest)));
      case 6:
        base::store(&at, load(taken(rest)));
        return base::store(&taken(rest), word);
      default:
        return base::store(&at, std::uint64_t{0});
    }
  }
  void bucket(std::uint64_t where, std::uint64_t value) const {
    const base::MutableBytes tables = region(layout::kTable).first(g_.mark_offset(0));
    const std::uint64_t size = node::RaceLife::kBucketBytes, count = tables.size() / size, rest = value / 6;
    std::byte& at = tables[where % count * size];
    switch (value % 6) {
      case 0:
        return base::store(&at, rest);
      case 1:
        return base::store(&at, with(load(at), 0, 8, rest));
      case 2:
        return base::store(&at, with(load(at), 8, 32, rest));
      case 3:
        return base::store(&at, with(load(at), 41, 23, rest));
      case 4:
        return base::store(&at, std::uint64_t{0});
      default:
        return base::store(&at, load(tables[rest % count * size]));
    }
  }
  // Edits its lengths, or its key under a right checksum: another key in the place of this one.
  void extent(std::uint64_t where, std::uint64_t value) const {
    const base::MutableBytes heap = region(layout::kHeap);
    const std::uint64_t units = with(load(taken(where)), 46, 18, 0), rest = value / 4;
    if (units >= heap.size() / layout::kBlockUnit) return;
    const base::MutableBytes block = heap.subspan(layout::block_offset(units));
    std::uint64_t lengths = load(block[0]);
    if (value % 4 == 0) lengths = with(lengths, 0, 32, rest);
    if (value % 4 == 1) lengths = with(lengths, 32, 32, rest);
    if (value % 4 != 3) base::store(block.data(), lengths);
    if (value % 4 == 2) return;
    const std::uint64_t key = layout::ExtentLengths::key(lengths), bytes = layout::ExtentLengths::value(lengths);
    const std::uint64_t size = layout::extent_bytes(key, bytes);
    if (size > block.size() || key > layout::kMaxKeyBytes || bytes > layout::kMaxValueBytes) return;
    std::vector<std::byte> pair(block.begin() + layout::kExtentHeader,
                                block.begin() + static_cast<std::ptrdiff_t>(layout::kExtentHeader + key + bytes));
    if (value % 4 == 3 && key > 0) pair[rest / 256 % key] ^= std::byte{static_cast<std::uint8_t>(rest)};
    layout::write_extent(block.first(size), units, base::Bytes(pair).first(key), base::Bytes(pair).subspan(key));
  }

  const Start& start_;
  const layout::Geometry& g_;
  const base::MutableBytes all_;
};

// What a memory node keeps for the pool: the sums, the keys and values, and the segments.
struct Kept {
  std::uint64_t keys = 0, sum = 0;
  std::map<std::uint64_t, node::FoundSegment> segments;
  bool same(const Kept& other) const { return keys == other.keys && sum == other.sum; }
};

// Checks that a free block was free or in use before.
void check_nothing_freed(const Kept& before, const Kept& after) {
  for (const auto& [first, was] : before.segments) {
    const auto now = after.segments.find(first);
    if (was.marked.empty() || now == after.segments.end()) continue;
    for (std::uint64_t word = 0; word < was.marked.size(); ++word) {
      const bool gone = now->second.kind == node::FoundSegment::Kind::free;
      if (!gone && word >= now->second.marked.size()) break;  // damaged
      const std::uint64_t free = gone ? layout::blocks_of_word(was.shape, word) : now->second.marked[word];
      FARPOOL_CHECK((free & ~was.marked[word] & ~was.in_use[word]) == 0);
    }
  }
}

base::Result<node::MemoryAudit> audit(base::Bytes memory, Kept& kept) {
  const auto inside = [memory](std::string_view bytes) {
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
    return begin >= memory.data() && bytes.size() <= static_cast<std::size_t>(memory.data() + memory.size() - begin);
  };
  const auto visit = [&](const index::Sighting& at) {
    // Values in place may lie in rows as they will be.
    if (at.block_bytes != 0) FARPOOL_CHECK(inside(at.key) && inside(at.value));
    ++kept.keys;
    kept.sum += base::mix(base::keyed_hash({1, 2}, base::bytes_of(at.key))) *
                (base::keyed_hash({3, 4}, base::bytes_of(at.value)) | 1);
  };
  const auto segment = [&kept](const node::FoundSegment& at, const node::Audit&) { kept.segments[at.first] = at; };
  auto found = node::audit_memory(memory, {.visit = visit, .segment = segment});
  if (!found.ok()) {
    FARPOOL_CHECK(!found.status().message().empty());
    return found;
  }
  const node::Audit& audit = found->audit;
  FARPOOL_CHECK(kept.keys == audit.table.keys);
  const auto sum = std::accumulate(audit.bytes_of_use.begin(), audit.bytes_of_use.end(), std::uint64_t{0});
  FARPOOL_CHECK(sum == memory.size());
  for (const node::Finding& finding : audit.findings) {
    FARPOOL_CHECK(finding.offset < memory.size() && !finding.what.empty());
  }
  FARPOOL_CHECK(audit.findings.size() <= node::kWrongs * node::Audit::kMostFindings);
  return found;
}

// Says whether a memory node that takes the memory up mends all that is found, except splits: clients continue those.
bool mended(const node::Audit& audit) {
  for (std::size_t i = 0; i < node::kWrongs; ++i) {
    const auto wrong = static_cast<node::Wrong>(i);
    if (audit.of_kind[i] != 0 && !node::kind_of(wrong).mended && wrong != node::Wrong::split_half_done) return false;
  }
  return true;
}

// Returns a page-aligned memory, as memory nodes have it.
base::MutableBytes memory_of(std::size_t bytes) {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static std::unique_ptr<std::byte, Free> memory;
  static std::size_t size = 0;
  if (size != bytes) {
    memory.reset(static_cast<std::byte*>(std::aligned_alloc(layout::kPage, bytes)));
    size = bytes;
  }
  return {memory.get(), bytes};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kEditBytes = 13;  // what, where, value
  const Start& start = starts()[size == 0 ? 0 : data[0] % starts().size()];
  const base::MutableBytes memory = memory_of(start.bytes.size());
  std::copy(start.bytes.begin(), start.bytes.end(), memory.begin());
  Editor editor(start, memory);
  const bool edited = size > kEditBytes;
  for (data += size == 0 ? 0 : 1, size -= size == 0 ? 0 : 1; size >= kEditBytes;
       data += kEditBytes, size -= kEditBytes) {
    std::uint32_t where = 0;
    std::uint64_t value = 0;
    std::memcpy(&where, data + 1, sizeof where);
    std::memcpy(&value, data + 5, sizeof value);
    editor.edit(data[0], where, value);
  }
  Kept kept;
  const auto before = audit(memory, kept);
  FARPOOL_CHECK(edited || (before.ok() && before->audit.damage() == 0));

  fabric::sim::Network network{fabric::sim::Options{}};
  std::size_t logged = 0;
  const auto taken_up =
      node::MemoryNode::create({.name = "memory-0",
                                .pool_uid = start.pool,
                                .endpoint = "node-0:7400",
                                .version = "test",
                                .geometry = start.request,
                                .log = [&logged](bool, const std::string& line) { logged += line.size(); }},
                               memory, network.add_node("node-0:7400"));
  if (!taken_up.ok()) {
    FARPOOL_CHECK(!taken_up.status().message().empty());
    // A memory node refuses it only if it is another pool's or cut otherwise.
    FARPOOL_CHECK(!before.ok() || !mended(before->audit) || before->record.geometry != start.record.geometry ||
                  before->record.pool != start.record.pool);
    return 0;
  }
  Kept left;
  const auto after = audit(memory, left);
  FARPOOL_CHECK(after.ok());
  const node::Audit& audit = after->audit;
  for (const node::Wrong wrong :
       {node::Wrong::operation_half_done, node::Wrong::insert_half_done, node::Wrong::lease_held}) {
    FARPOOL_CHECK(audit.count(wrong) == 0);
  }
  if (!audit.reach_known()) check_nothing_freed(kept, left);
  if (!before.ok() || !mended(before->audit)) return 0;
  for (std::size_t i = 0; i < node::kWrongs; ++i) {
    FARPOOL_CHECK(audit.of_kind[i] == 0 || static_cast<node::Wrong>(i) == node::Wrong::split_half_done);
  }
  FARPOOL_CHECK(left.same(kept));
  return 0;
}
