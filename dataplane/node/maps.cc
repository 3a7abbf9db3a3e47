// SPDX-License-Identifier: Apache-2.0
#include "node/maps.h"

#include <google/protobuf/descriptor.h>

#include <cstring>
#include <utility>

#include "base/result.h"
#include "layout/directory.h"
#include "map/shard_map.h"

namespace farpool::node {
namespace {

using base::Status;

// Says whether two entries of a map agree on the table and its locks: their parts that are messages.
bool same_shape(const v1alpha1::MemoryNodeEntry& one, const v1alpha1::MemoryNodeEntry& other) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Descriptor& fields = *v1alpha1::MemoryNodeEntry::descriptor();
  const google::protobuf::Reflection& look = *v1alpha1::MemoryNodeEntry::GetReflection();
  for (int i = 0; i < fields.field_count(); ++i) {
    const FieldDescriptor* const field = fields.field(i);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (look.HasField(one, field) != look.HasField(other, field) ||
        look.GetMessage(one, field).SerializeAsString() != look.GetMessage(other, field).SerializeAsString()) {
      return false;
    }
  }
  return true;
}

}  // namespace

const v1alpha1::MemoryNodeEntry* entry_of(const v1alpha1::ShardMap& map, std::uint64_t incarnation) {
  for (const auto& node : map.nodes()) {
    if (node.incarnation() == incarnation) return &node;
  }
  return nullptr;
}

Maps::Maps(std::string pool_uid, std::shared_ptr<const base::SignatureCheck> key, const std::string& kept)
    : pool_uid_(std::move(pool_uid)), key_(std::move(key)) {
  if (!held_.ParseFromString(kept) || !map::validate(held_).ok() || held_.pool_uid() != pool_uid_ ||
      !map::check_signature(held_, key_.get()).ok()) {
    held_.Clear();
  }
}

void Maps::follow(const v1alpha1::ShardMap& map) {
  followed_ = map;
  bytes_ = map::deterministic_bytes(map);
  held_.Clear();
}

std::optional<Maps::Refusal> Maps::refusal(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret,
                                           const Memory& memory, const v1alpha1::MemoryNodeEntry& own) const {
  const auto refuse = [](Verdict verdict, std::string why) { return Refusal{verdict, std::move(why)}; };
  if (Status status = map::validate(map); !status.ok()) return refuse(Verdict::invalid, status.message());
  if (map.pool_uid() != pool_uid_) return refuse(Verdict::invalid, "the shard map is of another pool");
  if (Status status = map::check_signature(map, key_.get()); !status.ok()) {
    return refuse(Verdict::invalid, status.message());
  }
  const auto backwards = [&] {
    return "this memory node " + what_is_held(memory) + ", and receives epoch " + std::to_string(map.epoch()) +
           ", move " + std::to_string(map.move()) + ": keys lie where the later map says. " +
           (newest().epoch() == epoch(memory)
                ? "Make the next epoch from the map in this node's facts, with its move"
                : "Restore the newest ShardMap, or have a memory node reachable that holds it, and make the next epoch "
                  "from that");
  };
  if (map.epoch() < epoch(memory)) return refuse(Verdict::older_epoch, backwards());
  if (memory.epoch != 0 && pool_secret != memory.pool_secret) {
    return refuse(Verdict::conflicting, "the pool's hash secret is not the one of the epochs before");
  }
  if (map.epoch() == newest().epoch() && map::deterministic_bytes(map) != map::deterministic_bytes(newest())) {
    return refuse(Verdict::conflicting,
                  "this memory node " + what_is_held(memory) +
                      ", and receives the same epoch with different content: make the next epoch");
  }
  if (map.move() < move(memory)) return refuse(Verdict::conflicting, backwards());
  const v1alpha1::MemoryNodeEntry* listed = entry_of(map, own.incarnation());
  if (listed != nullptr && (listed->name() != own.name() || !same_shape(*listed, own))) {
    return refuse(Verdict::invalid,
                  "its entry for this incarnation has another name or geometry than this memory node formatted");
  }
  return std::nullopt;
}

// A memory that lost its map still knows the moves in which keys have left it.
std::uint64_t Maps::move(const Memory& memory) const {
  return std::max(newest().move(), memory.move_finished <= layout::kMostMoves ? memory.move_finished : 0);
}

std::string Maps::what_is_held(const Memory& memory) const {
  const std::string what = "epoch " + std::to_string(epoch(memory)) + ", move " + std::to_string(move(memory));
  if (newest().epoch() != epoch(memory)) return "has lost its map, of " + what;
  return (held_.epoch() == 0 ? "follows " : "has kept a map with its memory, of ") + what;
}

std::optional<std::size_t> Maps::read(base::MutableBytes reply) const {
  if (reply.size() < 8) return std::nullopt;
  base::store(reply.data(), std::uint64_t{bytes_.size()});
  const std::size_t padded = base::round_up(bytes_.size(), 8);
  if (reply.size() - 8 < padded) return 8;
  std::memset(reply.data() + 8, 0, padded);
  std::memcpy(reply.data() + 8, bytes_.data(), bytes_.size());
  return 8 + padded;
}

}  // namespace farpool::node
