// SPDX-License-Identifier: Apache-2.0
#include "layout/extent.h"

#include <cstring>

#include "base/check.h"
#include "base/crc64.h"
#include "layout/regions.h"

namespace farpool::layout {
namespace {

// The address is hashed first: whole bytes at another address are not an extent there.
std::uint64_t checksum_of(std::uint64_t units, std::uint64_t lengths, base::Bytes body) {
  const std::uint64_t prefix[2] = {units, lengths};
  return base::crc64(body, base::crc64(std::as_bytes(std::span(prefix))));
}

}  // namespace

void write_extent(base::MutableBytes into, std::uint64_t units, base::Bytes key, base::Bytes value) {
  FARPOOL_CHECK(into.size() == extent_bytes(key.size(), value.size()));
  FARPOOL_CHECK(key.size() <= kMaxKeyBytes && value.size() <= kMaxValueBytes);
  const std::uint64_t lengths = ExtentLengths::of(key.size(), value.size());
  std::byte* body = into.data() + kExtentHeader;
  if (!key.empty()) std::memcpy(body, key.data(), key.size());
  if (!value.empty()) std::memcpy(body + key.size(), value.data(), value.size());
  const std::size_t used = key.size() + value.size();
  std::memset(body + used, 0, into.size() - kExtentHeader - used);
  base::store(into.data(), lengths);
  base::store(into.data() + 8, checksum_of(units, lengths, base::Bytes(body, used)));
}

std::optional<ExtentView> read_extent(base::Bytes bytes, std::uint64_t units) {
  if (bytes.size() < kExtentHeader) return {};
  const auto lengths = base::load<std::uint64_t>(bytes.data());
  const std::uint64_t key_bytes = ExtentLengths::key(lengths);
  const std::uint64_t value_bytes = ExtentLengths::value(lengths);
  if (key_bytes > kMaxKeyBytes || value_bytes > kMaxValueBytes) return {};
  if (extent_bytes(key_bytes, value_bytes) > bytes.size()) return {};
  const base::Bytes body = bytes.subspan(kExtentHeader, key_bytes + value_bytes);
  if (base::load<std::uint64_t>(bytes.data() + 8) != checksum_of(units, lengths, body)) return {};
  return ExtentView{body.first(key_bytes), body.subspan(key_bytes)};
}

}  // namespace farpool::layout
