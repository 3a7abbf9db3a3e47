// SPDX-License-Identifier: Apache-2.0
#include "layout/superblock.h"

#include <algorithm>
#include <string>

#include "base/crc64.h"
#include "base/hash.h"

namespace farpool::layout {
namespace {

constexpr std::size_t kChecksumAt = kPage - 8;
constexpr std::size_t kGeometryAt = 32;
constexpr std::size_t kFieldsEnd = kGeometryAt + sizeof(Geometry);
static_assert(kFieldsEnd == 240);

base::Status corrupt(std::string why) {
  return {base::Code::corrupt, "superblock refused: " + std::move(why) + "; the memory must be formatted anew"};
}

}  // namespace

std::string unreadable_format(std::uint64_t version) {
  return "format " + std::to_string(version) + ", and this program reads format " + std::to_string(kVersion) +
         ": run a version of farpool that reads format " + std::to_string(version);
}

std::uint64_t pool_tag(std::string_view pool_uid) { return base::keyed_hash({}, base::bytes_of(pool_uid)); }

std::array<std::byte, kPage> write_superblock(const Superblock& superblock) {
  std::array<std::byte, kPage> page{};
  base::store(page.data(), kMagic);
  base::store(page.data() + 8, kVersion);
  base::store(page.data() + 16, superblock.incarnation);
  base::store(page.data() + 24, superblock.pool);
  base::store(page.data() + kGeometryAt, superblock.geometry);
  base::store(page.data() + kChecksumAt, base::crc64(base::Bytes(page).first(kChecksumAt)));
  return page;
}

base::Result<Superblock> parse_superblock(base::Bytes page) {
  if (page.size() != kPage) return corrupt(std::to_string(page.size()) + " bytes instead of " + std::to_string(kPage));
  if (base::load<std::uint64_t>(page.data()) != kMagic)
    return corrupt("this is not the memory of a farpool memory node");
  const auto version = base::load<std::uint64_t>(page.data() + 8);
  const bool whole = base::load<std::uint64_t>(page.data() + kChecksumAt) == base::crc64(page.first(kChecksumAt));
  // A whole page of another version is a fact to tell; a version word in a broken page means nothing.
  if (!whole) return corrupt("its checksum does not match its bytes");
  if (version != kVersion) {
    return base::Status(base::Code::corrupt, "superblock refused: it has " + unreadable_format(version));
  }
  Superblock superblock;
  superblock.incarnation = base::load<std::uint64_t>(page.data() + 16);
  superblock.pool = base::load<std::uint64_t>(page.data() + 24);
  superblock.geometry = base::load<Geometry>(page.data() + kGeometryAt);
  if (superblock.incarnation == 0) return corrupt("its incarnation is zero");
  const base::Bytes rest = page.subspan(kFieldsEnd, kChecksumAt - kFieldsEnd);
  if (std::any_of(rest.begin(), rest.end(), [](std::byte b) { return b != std::byte{0}; })) {
    return corrupt("bytes that must be zero are not");
  }
  if (base::Status status = check_geometry(superblock.geometry); !status.ok()) return corrupt(status.message());
  return superblock;
}

}  // namespace farpool::layout
