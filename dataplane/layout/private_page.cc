// SPDX-License-Identifier: Apache-2.0
#include "layout/private_page.h"

#include <array>
#include <atomic>

#include "base/check.h"
#include "base/crc64.h"
#include "layout/superblock.h"

namespace farpool::layout {
namespace {

constexpr std::size_t kCopies = 2;
constexpr std::size_t kStride = kPage / kCopies;
constexpr std::uint64_t kUnnamed = std::uint64_t{1} << 63;  // in `lives`

struct Image {
  std::uint64_t counter = 0;
  std::uint64_t magic = kMagic;
  std::uint64_t version = kVersion;
  std::uint64_t incarnation = 0;
  std::uint64_t pool = 0;
  std::uint64_t epoch = 0;
  std::uint64_t lives = 0;
  std::uint64_t seed_low = 0, seed_high = 0;
  std::uint64_t secret_low = 0, secret_high = 0;
  Geometry geometry;
  std::uint64_t checksum = 0;

  std::uint64_t sum() const { return base::crc64(base::bytes_of(*this).first(sizeof(Image) - 8)); }
};
static_assert(base::wire_safe<Image> && sizeof(Image) <= kStride);

Image image_at(base::Bytes page, std::size_t copy) { return base::load<Image>(page.data() + copy * kStride); }

// Says whether a program with another format wrote a whole record there. Its fields may be more or fewer, so that the
// checksum is looked for.
bool of_another_format(base::Bytes record) {
  if (base::load<std::uint64_t>(record.data() + 8) != kMagic) return false;
  if (base::load<std::uint64_t>(record.data() + 16) == kVersion) return false;
  for (std::size_t at = 24; at + 8 <= record.size(); at += 8) {
    if (base::load<std::uint64_t>(record.data() + at) == base::crc64(record.first(at))) return true;
  }
  return false;
}

bool whole(const Image& image) {
  return image.counter != 0 && image.checksum == image.sum() && image.magic == kMagic && image.version == kVersion &&
         image.incarnation != 0 && (image.lives & ~kUnnamed) != 0 && check_geometry(image.geometry).ok();
}

}  // namespace

PrivatePage read_private_page(base::Bytes page) {
  FARPOOL_CHECK(page.size() == kPage);
  PrivatePage found;
  std::uint64_t other = 0;  // the counter of the newest record of another format
  for (std::size_t copy = 0; copy < kCopies; ++copy) {
    const Image image = image_at(page, copy);
    if (image.counter == 0) continue;
    found.written = true;
    if (of_another_format(page.subspan(copy * kStride, kStride))) {
      if (image.counter < other) continue;
      other = image.counter;
      found.other_format = image.version;
    } else if (!whole(image)) {
      found.damaged = true;
    } else if (image.counter > found.counter) {
      found.counter = image.counter;
      found.record = PrivateRecord{.incarnation = image.incarnation,
                                   .pool = image.pool,
                                   .epoch = image.epoch,
                                   .lives = image.lives & ~kUnnamed,
                                   .unnamed = (image.lives & kUnnamed) != 0,
                                   .table_seed = {image.seed_low, image.seed_high},
                                   .pool_secret = {image.secret_low, image.secret_high},
                                   .geometry = image.geometry};
    }
  }
  // A program with another format may have changed everything since the record that can be read.
  if (other > found.counter) {
    found.counter = other;
    found.record.reset();
  } else {
    found.other_format = 0;
  }
  return found;
}

void write_private_page(base::MutableBytes page, const PrivateRecord& record) {
  FARPOOL_CHECK(page.size() == kPage && record.incarnation != 0 && record.lives != 0 && record.lives < kUnnamed);
  const PrivatePage before = read_private_page(page);
  const std::size_t newest = before.counter != 0 && image_at(page, 0).counter == before.counter ? 0 : 1;
  Image image{.counter = before.counter + 1,
              .incarnation = record.incarnation,
              .pool = record.pool,
              .epoch = record.epoch,
              .lives = record.lives | (record.unnamed ? kUnnamed : 0),
              .seed_low = record.table_seed.low,
              .seed_high = record.table_seed.high,
              .secret_low = record.pool_secret.low,
              .secret_high = record.pool_secret.high,
              .geometry = record.geometry};
  image.checksum = image.sum();
  std::byte* at = page.data() + (1 - newest) * kStride;
  // In this order, whatever the compiler would rather do: a kill leaves a prefix of these stores.
  const auto put = [at](std::size_t offset, std::uint64_t word) {
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at + offset)).store(word);
  };
  put(0, 0);
  for (std::size_t offset = 8; offset < sizeof image; offset += 8) {
    put(offset, base::load<std::uint64_t>(base::bytes_of(image).data() + offset));
  }
  put(0, image.counter);
}

}  // namespace farpool::layout
