// SPDX-License-Identifier: Apache-2.0
#include "index/outback/layout.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/crc64.h"

namespace farpool::outback {
namespace {

constexpr std::uint64_t kSuperblockBytes = 4096;
constexpr std::uint64_t kMost = 1ull << 40;  // of any figure: no sum below overflows

struct Superblock {
  std::uint64_t magic = 0;
  std::uint64_t version = 0;
  Figures figures;
  std::uint64_t checksum = 0;
};
static_assert(base::wire_safe<Superblock> && sizeof(Superblock) < kLifeAt);
static_assert(kMovesAt > kStageAt && kMovesAt + kMovesWords * 8 <= kSuperblockBytes);

base::Status invalid(std::string message) { return {base::Code::invalid_argument, std::move(message)}; }
base::Status corrupt(std::string message) { return {base::Code::corrupt, std::move(message)}; }

std::uint64_t checksum_of(const Superblock& block) {
  return base::crc64(base::bytes_of(block).first(sizeof(Superblock) - 8), kOutbackMagic);
}

base::Status check(const Figures& f) {
  for (const auto& [name, value] : {std::pair{"memory bytes", f.memory_bytes},
                                    {"generation", f.generation},
                                    {"partitions", f.partitions},
                                    {"buckets of a partition", f.partition_buckets},
                                    {"zones", f.zones},
                                    {"overflow keys", f.overflow},
                                    {"clients", f.clients},
                                    {"lines", f.lines},
                                    {"chunk bytes", f.chunk_bytes}}) {
    if (value == 0 || value > kMost) {
      return invalid(std::string(name) + " of an Outback table cannot be " + std::to_string(value) + ": use 1 or more");
    }
  }
  if (f.zones > 64) return invalid("an Outback table has at most 64 zones, not " + std::to_string(f.zones));
  if (f.partitions > 1ull << 31 || f.partition_buckets > LocatorShape::kPartitionBuckets || f.doublings > 20 ||
      (f.partitions * f.partition_buckets) << f.doublings > LocatorShape::kMostBuckets) {
    return invalid("an Outback table cannot have " + std::to_string(f.partitions) + " partitions of " +
                   std::to_string(f.partition_buckets) + " buckets, and room for " + std::to_string(f.doublings) +
                   " doublings");
  }
  if (f.zones > f.partitions) {
    return invalid("an Outback table of " + std::to_string(f.partitions) + " partitions cannot have " +
                   std::to_string(f.zones) + " zones: use a zone for each partition, or fewer");
  }
  if (f.overflow % f.zones != 0) {
    return invalid("an Outback table cannot be made for " + std::to_string(f.overflow) +
                   " keys in overflow: use a multiple of " + std::to_string(f.zones));
  }
  if (f.clients > 1 << 16 || f.lines > 1 << 12) {
    return invalid("an Outback table has at most 2^16 clients with 2^12 lines each");
  }
  if (f.chunk_bytes % kPageBytes != 0) {
    return invalid("a chunk of an Outback table cannot have " + std::to_string(f.chunk_bytes) +
                   " bytes: use a multiple of " + std::to_string(kPageBytes));
  }
  return {};
}

struct StageWord {
  using Generation = layout::Field<0, 48>;
  using Level = layout::Field<48, 6>;
  using Moving = layout::Field<54, 1>;
  using Doubled = layout::Field<55, 1>;
  using Place = layout::Field<56, 1>;
  using Check = layout::Field<57, 7>;
  static_assert(layout::tiles_a_word<Generation, Level, Moving, Doubled, Place, Check>);
  static std::uint64_t checked(std::uint64_t word) {
    word &= ~Check::kMask;
    return word | Check::put(base::mix(word) >> 57);
  }
};

}  // namespace

std::uint64_t Stage::word() const {
  return StageWord::checked(StageWord::Generation::put(generation) | StageWord::Level::put(level) |
                            StageWord::Moving::put(moving ? 1 : 0) | StageWord::Doubled::put(doubled ? 1 : 0) |
                            StageWord::Place::put(place));
}

std::optional<Stage> Stage::of(std::uint64_t word) {
  if (StageWord::checked(word) != word) return std::nullopt;
  return Stage{.generation = StageWord::Generation::get(word),
               .level = StageWord::Level::get(word),
               .moving = StageWord::Moving::get(word) != 0,
               .doubled = StageWord::Doubled::get(word) != 0,
               .place = StageWord::Place::get(word)};
}

base::Result<Cut> cut(const Figures& figures) {
  if (base::Status status = check(figures); !status.ok()) return status;
  Cut cut{.figures = figures};
  cut.bucket_count = (figures.partitions * figures.partition_buckets) << figures.doublings;
  LocatorShape longest = cut.shape(figures.doublings);
  longest.array_words = LocatorShape::array_words_for(longest.table_slots(), longest.partitions);
  cut.clients = kSuperblockBytes;
  cut.lines = cut.clients + figures.clients * 8;
  cut.seeds = cut.lines + cut.line_count() * kLineBytes;
  cut.buckets = base::round_up(cut.seeds + cut.seed_number(cut.bucket_count) / kSeedsPerWord * 8, kBucketBytes);
  cut.heads = cut.buckets + cut.bucket_count * kBucketBytes;
  cut.locator = base::round_up(cut.heads_end(), kSuperblockBytes);
  cut.locator_bytes = longest.words() * 8;
  cut.blocks = base::round_up(cut.locator + cut.locator_bytes, kPageBytes);
  if (cut.blocks + figures.zones * figures.chunk_bytes > figures.memory_bytes) {
    return invalid("an Outback table with these figures needs " +
                   std::to_string(cut.blocks + figures.zones * figures.chunk_bytes) + " bytes, and there are " +
                   std::to_string(figures.memory_bytes) + ": use fewer buckets, or smaller chunks");
  }
  cut.chunks = (figures.memory_bytes - cut.blocks) / figures.chunk_bytes;
  return cut;
}

base::Result<Cut> format(base::MutableBytes memory, const Figures& figures) {
  auto made = cut(figures);
  if (!made) return made;
  if (memory.size() < figures.memory_bytes) return invalid("there is less memory than the table's figures say");
  Superblock block{.magic = kOutbackMagic, .version = kOutbackVersion, .figures = figures};
  block.checksum = checksum_of(block);
  base::store(memory.data(), block);
  base::store(memory.data() + kStageAt, Stage{.generation = figures.generation}.word());
  return made;
}

base::Result<Cut> parse(base::Bytes memory) {
  if (memory.size() < kSuperblockBytes) return corrupt("the memory is shorter than the superblock of an Outback table");
  const auto block = base::load<Superblock>(memory.data());
  if (block.magic != kOutbackMagic) return corrupt("the first word is not that of an Outback table");
  if (block.version != kOutbackVersion) {
    return corrupt("the Outback table has version " + std::to_string(block.version) + ", and only version " +
                   std::to_string(kOutbackVersion) + " can be read");
  }
  if (block.checksum != checksum_of(block)) return corrupt("the superblock of the Outback table fails its checksum");
  auto made = cut(block.figures);
  if (!made) return corrupt("the superblock of the Outback table is impossible: " + made.status().message());
  if (memory.size() < block.figures.memory_bytes) {
    return corrupt("the memory has " + std::to_string(memory.size()) + " bytes, and the Outback table " +
                   std::to_string(block.figures.memory_bytes));
  }
  return made;
}

base::Result<Stage> stage_of(const Cut& cut, base::Bytes memory) {
  const auto stage = Stage::of(base::load<std::uint64_t>(memory.data() + kStageAt));
  if (!stage || stage->level > cut.figures.doublings || stage->generation < cut.figures.generation ||
      (stage->doubled && (!stage->moving || stage->level == 0))) {
    return corrupt("the stage of the Outback table cannot be");
  }
  return *stage;
}

std::uint64_t block_checksum(std::uint64_t address, const BlockHead& head, base::Bytes key, base::Bytes value) {
  const std::array<std::uint64_t, 4> first{address, head.lengths, head.version, head.bucket};
  return base::crc64(value, base::crc64(key, base::crc64(base::bytes_of(first))));
}

void write_block(base::MutableBytes into, std::uint64_t address, std::uint64_t bucket, std::uint64_t version,
                 std::uint64_t next, base::Bytes key, base::Bytes value) {
  BlockHead head{.lengths = lengths_of(key.size(), value.size()), .version = version, .bucket = bucket, .next = next};
  head.checksum = block_checksum(address, head, key, value);
  base::store(into.data(), head);
  std::byte* at = into.data() + kBlockHeader;
  at = std::copy(key.begin(), key.end(), at);
  at = std::copy(value.begin(), value.end(), at);
  std::fill(at, into.data() + into.size(), std::byte{0});
}

std::optional<BlockView> read_block(base::Bytes bytes, std::uint64_t address) {
  if (bytes.size() < kBlockHeader) return std::nullopt;
  BlockView view{.head = base::load<BlockHead>(bytes.data()), .key = {}, .value = {}};
  if (view.head.key_bytes() > layout::kMaxKeyBytes || view.head.value_bytes() > layout::kMaxValueBytes ||
      view.head.bytes() > bytes.size()) {
    return std::nullopt;
  }
  view.key = bytes.subspan(kBlockHeader, view.head.key_bytes());
  view.value = bytes.subspan(kBlockHeader + view.head.key_bytes(), view.head.value_bytes());
  if (!is_whole(view, address)) return std::nullopt;
  return view;
}

std::optional<BlockView> view_block(const Cut& cut, base::Bytes memory, std::uint64_t address) {
  if (address < cut.blocks || address % kBlockAlign != 0 || address > cut.blocks_end() - kBlockHeader) {
    return std::nullopt;
  }
  BlockView view{.head = base::load<BlockHead>(memory.data() + address), .key = {}, .value = {}};
  const std::uint64_t within = (address - cut.blocks) % cut.figures.chunk_bytes;
  if (view.head.key_bytes() > layout::kMaxKeyBytes || view.head.value_bytes() > layout::kMaxValueBytes ||
      within + view.head.bytes() > cut.figures.chunk_bytes) {
    return std::nullopt;
  }
  view.key = memory.subspan(address + kBlockHeader, view.head.key_bytes());
  view.value = memory.subspan(address + kBlockHeader + view.head.key_bytes(), view.head.value_bytes());
  return view;
}

bool is_whole(const BlockView& view, std::uint64_t address) {
  return view.head.checksum == block_checksum(address, view.head, view.key, view.value);
}

}  // namespace farpool::outback
