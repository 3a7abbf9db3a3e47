// SPDX-License-Identifier: Apache-2.0
// Whatever bytes a memory holds, its account comes to an end, reads nothing outside, and adds up; and a memory node
// that takes it up leaves nothing half done. The input edits a good image; checksums are made good again where it says
// so, or nothing behind them would be reached.
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include "node/audit.h"
#include "node/image_test.h"

namespace {

using namespace farpool;

enum Edit : std::uint8_t { kWord, kWordOfRegion, kBit, kSealRow, kSealClaim, kSealPlan, kGeometry, kHeader, kEdits };

void edit(node::TestImage& image, std::uint8_t what, std::uint64_t where, std::uint64_t value) {
  const layout::Geometry& g = image.geometry();
  const base::MutableBytes all = image.bytes();
  const std::uint64_t slots = g.max_sessions * g.slots_per_session;
  switch (what % kEdits) {
    case kWord:
      return base::store(&all[where % (all.size() / 8) * 8], value);
    case kWordOfRegion: {
      const base::MutableBytes region = image.region(static_cast<layout::RegionId>(value % layout::kRegions));
      return base::store(&region[where % (region.size() / 8) * 8], value / layout::kRegions);
    }
    case kBit:
      all[where % all.size()] ^= std::byte{1} << (value % 8);
      return;
    case kSealRow:
      return image.seal(where % g.rows);
    case kSealClaim:
      return image.slot(where % slots).seal_claim();
    case kSealPlan:
      return image.slot(where % slots).seal_plan();
    case kGeometry: {
      layout::PrivateRecord record = image.record();
      auto* words = reinterpret_cast<std::uint64_t*>(&record.geometry);
      words[1 + where % (sizeof record.geometry / 8 - 1)] = value;  // all but the size of the memory
      layout::write_private_page(all.last(layout::kPage), record);
      return;
    }
    default: {
      std::array<std::uint64_t, 4> header{value % 3, where % 64, value / 3 % 16, 0};
      std::memcpy(&image.header(where % g.segments), header.data(), sizeof header);
    }
  }
}

void check(const base::Result<node::MemoryAudit>& memory, std::uint64_t bytes) {
  if (!memory.ok()) {
    FARPOOL_CHECK(!memory.status().message().empty());
    return;
  }
  const node::Audit& audit = memory->audit;
  FARPOOL_CHECK(std::accumulate(audit.bytes_of_use.begin(), audit.bytes_of_use.end(), std::uint64_t{0}) == bytes);
  for (const node::Finding& finding : audit.findings) FARPOOL_CHECK(finding.offset < bytes && !finding.what.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const node::TestImage kGood = [] {
    node::TestImage image;
    image.plan(2, "new", "v");
    image.claim(3, {4, 9});
    return image;
  }();
  constexpr std::size_t kEditBytes = 13;  // what, where, value
  node::TestImage image = kGood;
  for (; size >= kEditBytes; data += kEditBytes, size -= kEditBytes) {
    std::uint32_t where = 0;
    std::uint64_t value = 0;
    std::memcpy(&where, data + 1, sizeof where);
    std::memcpy(&value, data + 5, sizeof value);
    edit(image, data[0], where, value);
  }
  const auto memory = node::audit_memory(image.bytes());
  check(memory, image.bytes().size());
  if (!memory.ok()) return 0;
  (void)rcuckoo::repair_image(memory->record.geometry, image.bytes());
  const auto after = node::audit_memory(image.bytes());
  if (!after.ok()) return 0;
  check(after, image.bytes().size());
  FARPOOL_CHECK(after->audit.count(node::Wrong::operation_half_done) == 0);
  FARPOOL_CHECK(after->audit.count(node::Wrong::lease_held) == 0);
  return 0;
}
