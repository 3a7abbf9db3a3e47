// SPDX-License-Identifier: Apache-2.0
// For any bytes of an Outback memory: a look through it ends, reads nothing outside of it and says what is wrong; a
// process that takes it over refuses it, or serves every key that the look has seen. The input edits one of some good
// images, also with a change that is decided and not made, or of a table that grows, and makes checksums of blocks right
// again.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "index/outback/node_table.h"
#include "index/outback/verify.h"

namespace farpool::outback {
namespace {

constexpr base::HashSecret kSecret{1, 2};
constexpr Figures kFigures{.memory_bytes = 160 << 10,
                           .salt = 3,
                           .partitions = 1,
                           .partition_buckets = 3,
                           .zones = 1,
                           .overflow = 2,
                           .clients = 2,
                           .lines = 2,
                           .chunk_bytes = 32 << 10};

constexpr Figures kGrowing{.memory_bytes = 192 << 10,
                           .salt = 3,
                           .partitions = 2,
                           .partition_buckets = 3,
                           .zones = 2,
                           .overflow = 4,
                           .clients = 2,
                           .lines = 2,
                           .chunk_bytes = 32 << 10,
                           .doublings = 1};

// Returns the bucket that the locator gives a key; without one, the first of its two.
std::uint64_t bucket_of(base::Bytes key, base::Bytes memory, base::Bytes locator) {
  const Cut cut = parse(memory).value();
  const std::uint64_t hash = hash_of(kSecret, cut.figures.salt, key);
  if (locator.empty()) return Candidates::of(hash, cut.shape(0)).buckets[0];
  const std::uint64_t place = stage_of(cut, memory).value().place;
  const base::Bytes bytes = place == 0 ? locator : memory.subspan(cut.locator, cut.locator_bytes);
  return bucket_in(LocatorHeader::parse(bytes).value().shape, bytes, hash);
}

class Doors final : public Growth::Doors {
 public:
  explicit Doors(NodeTable& table) : table_(table) {}
  bool enter(std::uint64_t zone) override { return table_.zone(zone).try_lock(); }
  void leave(std::uint64_t zone) override { table_.zone(zone).unlock(); }

 private:
  NodeTable& table_;
};

// Ends a process after some words.
class Watch final : public fabric::Hand::Watch {
 public:
  bool may_write() noexcept override {
    if (left == 0) return false;
    --left;
    return true;
  }
  std::uint64_t left = ~0ull;
};

class Image {
 public:
  explicit Image(std::uint64_t last_words) : words_(kFigures.memory_bytes / 8) {
    FARPOOL_CHECK(format(bytes(), kFigures).ok());
    auto table = NodeTable::open(bytes(), {.secret = kSecret}, fabric::Hand(&watch_));
    FARPOOL_CHECK(table.ok());
    ask(**table, {.op = Op::attach, .argument = 5});
    for (int i = 0; i < 16; ++i) change(**table, Op::put, i, i % 5 == 0 ? 2500 : 20);
    change(**table, Op::take, 3, 0);
    change(**table, Op::take, 5, 0);
    watch_.left = last_words;
    change(**table, Op::swap, 1, 20);
    watch_.left = ~0ull;
  }
  // A table that grows: after some steps, the process dies after some words.
  Image(int steps, std::uint64_t last_words) : words_(kGrowing.memory_bytes / 8) {
    const auto cut = format(bytes(), kGrowing);
    FARPOOL_CHECK(cut.ok());
    const Locator first = build(cut->shape(0), kGrowing.generation, kGrowing.salt, {}).locator;
    place_.assign(first.words().begin(), first.words().end());
    place_.resize(cut->locator_bytes / 8);
    auto table =
        NodeTable::open(bytes(), {.secret = kSecret, .locator = locator(), .growth = {}}, fabric::Hand(&watch_));
    FARPOOL_CHECK(table.ok());
    ask(**table, {.op = Op::attach, .argument = 5});
    for (int i = 0; i < 30; ++i) change(**table, Op::put, i, i % 9 == 0 ? 2500 : 20);
    Doors doors(**table);
    for (int i = 0; i < steps + 5; ++i) {
      if (i == steps) watch_.left = last_words;
      (*table)->grow({.op = Op::find}, fabric::Hand(&watch_), doors);
      if (i == 0) (*table)->grow({.op = Op::put}, fabric::Hand(&watch_), doors);
    }
    watch_.left = ~0ull;
  }
  base::MutableBytes bytes() { return std::as_writable_bytes(std::span(words_)); }
  base::MutableBytes locator() { return std::as_writable_bytes(std::span(place_)); }

 private:
  void ask(NodeTable& table, const Request& request) {
    std::vector<std::byte> reply(4096);
    (void)table.run(request, 1, fabric::Hand(&watch_), reply);
  }
  void change(NodeTable& table, Op op, int number, std::size_t value_bytes) {
    const std::string key = "key" + std::to_string(number), value(value_bytes, 'v');
    ask(table, {.op = op,
                .place = bucket_of(base::bytes_of(std::string_view(key)), bytes(), locator()),
                .generation = table.stage().generation,
                .request_id = fabric::RequestId{static_cast<std::uint32_t>(++numbers_ % 2), numbers_}.word(),
                .key = base::bytes_of(std::string_view(key)),
                .value = base::bytes_of(std::string_view(value))});
  }
  Watch watch_;
  std::uint64_t numbers_ = 0;
  std::vector<std::uint64_t> words_, place_;  // the latter if the table grows
};

const std::vector<Image>& images() {
  static const std::vector<Image> all = [] {
    std::vector<Image> made;
    for (const std::uint64_t words : {~0ull, 2ull, 12ull, 20ull, 22ull}) made.emplace_back(words);
    for (const int steps : {1, 2, 3, 5, 8}) {
      for (const std::uint64_t words : {~0ull, 7ull, 20ull}) made.emplace_back(steps, words);
    }
    return made;
  }();
  return all;
}

void edit(const Cut& cut, base::MutableBytes memory, std::uint8_t what, std::uint32_t where, std::uint64_t value) {
  const auto word = [&](std::uint64_t begin, std::uint64_t end) {
    return memory.data() + begin + where % ((end - begin) / 8) * 8;
  };
  std::byte* slot = word(cut.buckets, cut.heads);
  const std::uint64_t address = SlotWord::Address::get(base::load<std::uint64_t>(slot));
  switch (what % 8) {
    case 0:
      return base::store(word(0, cut.seeds), value);
    case 1:
      return base::store(word(cut.seeds, cut.heads_end()), value);
    case 2:
      memory[where % memory.size()] ^= std::byte{1} << (value % 8);
      return;
    case 3:
      return base::store(word(cut.blocks, cut.blocks_end()), value);
    case 4:  // another slot's word
      return base::store(slot,
                         base::load<std::uint64_t>(memory.data() + cut.buckets + value % (cut.bucket_count * 4) * 8));
    case 5:
      return base::store(slot, base::load<std::uint64_t>(slot) ^ 1ull << value % 64);
    case 6: {  // a line's record
      std::byte* record = memory.data() + cut.lines + where % cut.line_count() * kLineBytes;
      return base::store(record + value % (kLineBytes / 8) * 8, value >> 8);
    }
    default: {  // a block's head, with a right checksum
      if (address < cut.blocks || address + kBlockHeader > cut.blocks_end() || address % 8 != 0) return;
      std::byte* at = memory.data() + address;
      base::store(at + value % 5 * 8, value >> 8);
      const auto view = view_block(cut, memory, address);
      if (view) base::store(at + kChecksumAt, block_checksum(address, view->head, view->key, view->value));
      return;
    }
  }
}

void look_and_serve(base::MutableBytes memory, base::MutableBytes locator) {
  const auto cut = parse(memory);
  std::map<std::string, std::string> keys;
  std::uint64_t defects = 0;
  if (cut.ok()) {
    const auto inside = [&](base::Bytes bytes) {
      FARPOOL_CHECK(std::accumulate(bytes.begin(), bytes.end(), 0u, [](unsigned sum, std::byte byte) {
                      return sum + static_cast<unsigned>(byte);
                    }) < ~0u);
    };
    const auto visit = [&](const Seen& seen) {
      inside(seen.block.key);
      inside(seen.block.value);
      if (seen.by != Seen::By::line) {
        keys.emplace(base::text_of(seen.block.key), base::text_of(seen.block.value));
      }
    };
    const index::Report report = verify(*cut, memory, kSecret, {.visit = visit, .progress = {}});
    defects = report.defect_count();
    for (const index::Defect& defect : report.defects) {
      FARPOOL_CHECK(!defect.what.empty() && defect.offset < memory.size());
    }
  }
  auto table = NodeTable::open(memory, {.secret = kSecret, .locator = locator, .growth = {}}, fabric::Hand());
  if (!table.ok()) {
    FARPOOL_CHECK(!table.status().message().empty());
    return;
  }
  FARPOOL_CHECK(cut.ok() && defects == 0 && (*table)->totals().keys == keys.size());
  std::vector<std::byte> reply(4096);
  for (const auto& [key, value] : keys) {
    const base::Bytes name = base::bytes_of(std::string_view(key));
    const Request find{.op = Op::find,
                       .place = bucket_of(name, memory, locator),
                       .generation = (*table)->stage().generation,
                       .key = name};
    (void)(*table)->run(find, 1, fabric::Hand(), reply);
    Request put = find;
    put.op = Op::put;
    put.request_id = fabric::RequestId{0, 1}.word();
    (void)(*table)->run(put, 1, fabric::Hand(), reply);
  }
  (void)(*table)->run({.op = Op::attach, .argument = 5}, 1, fabric::Hand(), reply);
  std::uint64_t number = 0;
  Doors doors(**table);
  for (const auto& [key, value] : keys) {
    const base::Bytes name = base::bytes_of(std::string_view(key));
    const Request take{.op = Op::take,
                       .place = bucket_of(name, memory, locator),
                       .generation = (*table)->stage().generation,
                       .request_id = fabric::RequestId{1, (1ull << 50) + ++number}.word(),
                       .key = name};
    (void)(*table)->run(take, 1, fabric::Hand(), reply);
    (*table)->grow(take, fabric::Hand(), doors);
  }
  FARPOOL_CHECK(verify(*cut, memory, kSecret).defect_count() == 0);
}

}  // namespace
}  // namespace farpool::outback

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace farpool::outback;
  constexpr std::size_t kEditBytes = 13;  // what, where, value
  const auto& all = images();
  auto image = all[size == 0 ? 0 : data[0] % all.size()];
  const farpool::base::MutableBytes memory = image.bytes();
  const auto cut = parse(memory);
  FARPOOL_CHECK(cut.ok());
  const bool edited = size > kEditBytes;
  if (!edited) FARPOOL_CHECK(verify(*cut, memory, kSecret).defect_count() == 0);
  for (data += size == 0 ? 0 : 1, size -= size == 0 ? 0 : 1; size >= kEditBytes;
       data += kEditBytes, size -= kEditBytes) {
    std::uint32_t where = 0;
    std::uint64_t value = 0;
    std::memcpy(&where, data + 1, sizeof where);
    std::memcpy(&value, data + 5, sizeof value);
    edit(*cut, memory, data[0], where, value);
  }
  look_and_serve(memory, image.locator());
  return 0;
}
