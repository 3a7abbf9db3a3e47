// SPDX-License-Identifier: Apache-2.0
// Any bytes as a shard map: either a map whose every lookup stays within it, or a reason.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "map/shard_map.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto map = farpool::map::Map::parse({reinterpret_cast<const char*>(data), size});
  if (!map.ok()) {
    FARPOOL_CHECK(!map.status().message().empty());
    return 0;
  }
  FARPOOL_CHECK(map->epoch() != 0);
  // What was signed does not depend on the signature, and survives another trip.
  farpool::v1alpha1::ShardMap forged = map->message();
  forged.set_signature(std::string(64, 'x'));
  farpool::v1alpha1::ShardMap read;
  FARPOOL_CHECK(read.ParseFromString(forged.SerializeAsString()));
  FARPOOL_CHECK(farpool::map::signed_text(read) == farpool::map::signed_text(map->message()));
  if (map->message().directory_size() > 0) {
    for (std::uint64_t hash : {0ull, 1ull, ~0ull, 0x123456789abcdefull}) {
      (void)map->node_of(map->table_of(hash)).name();
    }
  }
  for (const auto& node : map->message().nodes()) FARPOOL_CHECK(map->node(node.name()) == &node);
  const auto again = farpool::map::Map::parse(map->bytes());
  FARPOOL_CHECK(again.ok() && again->bytes() == map->bytes());
  return 0;
}
