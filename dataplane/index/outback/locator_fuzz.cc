// SPDX-License-Identifier: Apache-2.0
// Serialised locators of other bytes. The input is a locator, or edits of one that was built, some with a checksum that
// matches. Whatever is not refused answers within its table's bounds.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/crc64.h"
#include "index/outback/build.h"
#include "index/outback/locator.h"

namespace outback = farpool::outback;

namespace {

void ask(std::vector<std::uint64_t> words) {
  auto locator = outback::Locator::parse(std::move(words));
  if (!locator.ok()) {
    FARPOOL_CHECK(!locator.status().message().empty());
    return;
  }
  const std::uint64_t buckets = locator->header().shape.table_buckets();
  FARPOOL_CHECK(locator->header().shape.check().ok() && locator->words().size() == locator->header().shape.words());
  for (std::uint64_t i = 0; i < 64; ++i) {
    const std::uint64_t hash = i == 0 ? ~0ull : farpool::base::mix(i - 1);
    const outback::Spot spot = locator->find(hash);
    FARPOOL_CHECK(spot.bucket < buckets && spot.slot == outback::slot_of(hash, spot.seed));
    locator->learn(spot.bucket, {static_cast<std::uint8_t>(i), static_cast<std::uint16_t>(i)});
    FARPOOL_CHECK(locator->find(hash).bucket == spot.bucket);
  }
}

std::vector<std::uint64_t> built() {
  std::vector<std::uint64_t> hashes(100);
  for (std::size_t i = 0; i < hashes.size(); ++i) hashes[i] = farpool::base::mix(i);
  const auto shape = outback::LocatorShape::of(30, hashes.size());
  const outback::Built made = outback::build(*shape, 1, 2, hashes);
  return {made.locator.words().begin(), made.locator.words().end()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<std::uint64_t> kBuilt = built();
  if (size == 0) return 0;
  const std::uint8_t how = *data++;
  --size;
  if (how % 4 == 0) {
    std::vector<std::uint64_t> words(size / 8);
    if (!words.empty()) std::memcpy(words.data(), data, words.size() * 8);
    ask(std::move(words));
    return 0;
  }
  std::vector<std::uint64_t> words = kBuilt;
  for (; size >= 9; data += 9, size -= 9) std::memcpy(&words[data[0] % words.size()], data + 1, 8);
  if (how % 4 == 1) words.resize(words.size() - how / 4 % words.size());
  if (how % 4 >= 2 && words.size() >= outback::LocatorHeader::kWords) {
    // The checksums that the arrays and the header would have in a table of one partition.
    constexpr std::size_t kFirst = outback::LocatorHeader::kWords;
    const std::size_t arrays = std::min<std::uint64_t>(1 + 2 * (words[6] & 0xffff), words.size() - kFirst);
    if (how % 4 == 3) words[8] = farpool::base::crc64(std::as_bytes(std::span(words).subspan(kFirst, arrays)));
    words[9] = farpool::base::crc64(std::as_bytes(std::span(words).first(9)));
  }
  ask(std::move(words));
  return 0;
}
