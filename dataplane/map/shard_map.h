// SPDX-License-Identifier: Apache-2.0
// The shard map as the data plane holds it: checked once, then only read. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/result.h"
#include "base/signature.h"
#include "farpool/v1alpha1/shard_map.pb.h"

namespace farpool::map {

inline constexpr int kMaxNodes = 4096;
inline constexpr int kMaxTables = 1 << 16;
inline constexpr std::uint32_t kMaxDirectoryDepth = 20;
inline constexpr std::size_t kMaxMapBytes = 4 << 20;

// Says whether a map hangs together. invalid_argument says which part does not, and why.
base::Status validate(const v1alpha1::ShardMap& map);

// Fails with forbidden if the pool's operator has not signed a map. Without a key every map passes.
base::Status check_signature(const v1alpha1::ShardMap& map, const base::SignatureCheck* key);
// Returns what the operator signs: the map without its signature, as both sides serialize it.
std::string signed_text(v1alpha1::ShardMap map);

// Which part of the directory hash decides: its low bits.
inline std::uint64_t directory_hash(const base::HashSecret& pool_secret, base::Bytes key) {
  return base::keyed_hash(pool_secret, key);
}

// A valid map. Copies share the content.
class Map {
 public:
  static base::Result<Map> parse(std::string_view bytes);
  static base::Result<Map> from(v1alpha1::ShardMap message);

  std::uint64_t epoch() const { return message_->epoch(); }
  const std::string& pool_uid() const { return message_->pool_uid(); }
  const v1alpha1::ShardMap& message() const { return *message_; }

  // The table that serves a directory hash.
  const v1alpha1::TableEntry& table_of(std::uint64_t directory_hash) const;
  // The table that its part comes from, where the key may still be, or nullptr: it is not on its way.
  const v1alpha1::TableEntry* source_of(std::uint64_t directory_hash) const;
  const v1alpha1::MemoryNodeEntry& node_of(const v1alpha1::TableEntry& table) const {
    return message_->nodes(static_cast<int>(table.node()));
  }
  // The table of that id or nullptr.
  const v1alpha1::TableEntry* table(std::uint32_t id) const;
  // The node of that name or nullptr.
  const v1alpha1::MemoryNodeEntry* node(std::string_view name) const;

  // The same bytes for the same map, everywhere.
  std::string bytes() const;

 private:
  explicit Map(std::shared_ptr<const v1alpha1::ShardMap> message) : message_(std::move(message)) {}
  std::shared_ptr<const v1alpha1::ShardMap> message_;
};

std::string deterministic_bytes(const v1alpha1::ShardMap& map);

}  // namespace farpool::map
