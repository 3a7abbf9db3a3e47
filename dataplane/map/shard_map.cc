// SPDX-License-Identifier: Apache-2.0
#include "map/shard_map.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <unordered_set>

#include "layout/directory.h"

namespace farpool::map {
namespace {

using base::Code;
using base::Status;
using v1alpha1::MemoryNodeEntry;
using v1alpha1::ShardMap;

constexpr std::size_t kMaxNameBytes = 253;
constexpr std::size_t kSignatureBytes = 64;
constexpr std::string_view kSigned = "farpool.dev/shard-map/v1\n";  // no signature of anything else passes for a map's

Status invalid(std::string why) { return {Code::invalid_argument, "the shard map cannot be: " + std::move(why)}; }

bool plain(std::string_view text) {
  return !text.empty() && text.size() <= kMaxNameBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

Status check_endpoint(const MemoryNodeEntry& node) {
  const std::string_view endpoint = node.endpoint();
  const std::size_t colon = endpoint.rfind(':');
  bool good = plain(endpoint) && colon != std::string_view::npos && colon > 0 && colon + 1 < endpoint.size() &&
              endpoint.size() - colon <= 6;
  unsigned port = 0;
  for (std::size_t i = colon + 1; good && i < endpoint.size(); ++i) {
    good = endpoint[i] >= '0' && endpoint[i] <= '9';
    port = port * 10 + static_cast<unsigned>(endpoint[i] - '0');
  }
  if (!good || port == 0 || port > 65535) return invalid("the endpoint of node " + node.name() + " is not host:port");
  return {};
}

// Checks that the entry has the shape of a table, of whichever protocol, and that no figure of it is 0. The memory node,
// which made the table, compares the shape with its own; nobody else reads it.
Status check_table(const MemoryNodeEntry& node) {
  const google::protobuf::OneofDescriptor* const shapes = MemoryNodeEntry::descriptor()->FindOneofByName("shape");
  const google::protobuf::FieldDescriptor* const held = node.GetReflection()->GetOneofFieldDescriptor(node, shapes);
  if (held == nullptr)
    return invalid("node " + node.name() + " has no table geometry of a protocol that is known here");
  const google::protobuf::Message& shape = node.GetReflection()->GetMessage(node, held);
  for (int i = 0; i < shape.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const figure = shape.GetDescriptor()->field(i);
    if (shape.GetReflection()->HasField(shape, figure)) continue;
    return invalid("node " + node.name() + " has an impossible table geometry: " + std::string(figure->name()) +
                   " is 0");
  }
  return {};
}

Status check_node(const MemoryNodeEntry& node) {
  if (!plain(node.name())) return invalid("a node's name is empty, too long or not printable");
  if (Status status = check_endpoint(node); !status.ok()) return status;
  if (node.incarnation() == 0) return invalid("node " + node.name() + " has incarnation 0");
  if (node.state() != MemoryNodeEntry::STATE_SERVING && node.state() != MemoryNodeEntry::STATE_STOPPED) {
    return invalid("node " + node.name() + " is neither serving nor stopped");
  }
  if (Status status = check_table(node); !status.ok()) return status;
  if (!node.has_lock_region()) return {};
  const auto& locks = node.lock_region();
  if (locks.bytes() == 0 || locks.bytes() % 8 != 0 || locks.locks() == 0 || locks.locks() > locks.bytes() * 8 ||
      locks.rows_per_lock() == 0) {
    return invalid("node " + node.name() + " has an impossible lock region");
  }
  return {};
}

// No node both gives and takes: so a client that looks for a key looks at two nodes at most.
Status check_departures(const ShardMap& map) {
  if (map.move() > layout::kMostMoves) return invalid("move " + std::to_string(map.move()) + " is one too many");
  if (map.departures_size() > 0 && map.move() == 0) return invalid("parts depart in no move");
  std::unordered_map<std::uint32_t, std::uint32_t> nodes;  // of tables
  for (const auto& table : map.tables()) nodes.emplace(table.id(), table.node());
  std::unordered_set<std::uint32_t> giving, taking;
  for (int i = 0; i < map.departures_size(); ++i) {
    const auto& departure = map.departures(i);
    const std::string part = "part " + std::to_string(departure.part());
    if (i > 0 && map.departures(i - 1).part() >= departure.part()) {
      return invalid("departures are not sorted by part, each once: " + part);
    }
    if (departure.part() >= static_cast<std::uint32_t>(map.directory_size())) {
      return invalid(part + " departs, and the directory has " + std::to_string(map.directory_size()) + " parts");
    }
    const auto from = nodes.find(departure.from());
    if (from == nodes.end()) {
      return invalid(part + " departs from table " + std::to_string(departure.from()) + ", which is not in the map");
    }
    giving.insert(from->second);
    taking.insert(nodes.at(map.directory(static_cast<int>(departure.part()))));
  }
  for (const std::uint32_t node : giving) {
    if (taking.contains(node)) return invalid("parts move from and to node number " + std::to_string(node));
  }
  return {};
}

}  // namespace

base::Status validate(const ShardMap& map) {
  if (!plain(map.pool_uid())) return invalid("pool_uid is empty, too long or not printable");
  if (map.epoch() == 0) return invalid("epoch is 0");
  if (map.nodes_size() > kMaxNodes) return invalid(std::to_string(map.nodes_size()) + " nodes are too many");
  if (map.tables_size() > kMaxTables) return invalid(std::to_string(map.tables_size()) + " tables are too many");

  std::unordered_set<std::uint64_t> incarnations;
  for (int i = 0; i < map.nodes_size(); ++i) {
    const MemoryNodeEntry& node = map.nodes(i);
    if (Status status = check_node(node); !status.ok()) return status;
    if (i > 0 && map.nodes(i - 1).name() >= node.name()) {
      return invalid("nodes are not sorted by name, each once: " + map.nodes(i - 1).name() + " before " + node.name());
    }
    if (!incarnations.insert(node.incarnation()).second) {
      return invalid("node " + node.name() + " has the incarnation of another node");
    }
  }
  std::unordered_set<std::uint32_t> tables;
  for (int i = 0; i < map.tables_size(); ++i) {
    const auto& table = map.tables(i);
    if (i > 0 && map.tables(i - 1).id() >= table.id()) {
      return invalid("tables are not sorted by id, each once: " + std::to_string(map.tables(i - 1).id()) + " before " +
                     std::to_string(table.id()));
    }
    if (table.node() >= static_cast<std::uint32_t>(map.nodes_size())) {
      return invalid("table " + std::to_string(table.id()) + " lies on node number " + std::to_string(table.node()) +
                     " of " + std::to_string(map.nodes_size()));
    }
    tables.insert(table.id());
  }
  if (map.directory_depth() > kMaxDirectoryDepth) {
    return invalid("directory depth " + std::to_string(map.directory_depth()) + " is beyond " +
                   std::to_string(kMaxDirectoryDepth));
  }
  // A pool that has no node yet has no table, and its directory has no entry.
  const std::uint64_t wanted = tables.empty() ? 0 : 1ull << map.directory_depth();
  if (static_cast<std::uint64_t>(map.directory_size()) != wanted) {
    return invalid("the directory has " + std::to_string(map.directory_size()) + " entries, at depth " +
                   std::to_string(map.directory_depth()) + " it needs " + std::to_string(wanted));
  }
  for (int i = 0; i < map.directory_size(); ++i) {
    if (!tables.contains(map.directory(i))) {
      return invalid("directory entry " + std::to_string(i) + " names table " + std::to_string(map.directory(i)) +
                     ", which is not in the map");
    }
  }
  if (map.least_tables() != 0 &&
      (!std::has_single_bit(map.least_tables()) || map.least_tables() > layout::kMostTables)) {
    return invalid("tables cannot be split into " + std::to_string(map.least_tables()));
  }
  if (!map.signature().empty() && map.signature().size() != kSignatureBytes) {
    return invalid("its signature has " + std::to_string(map.signature().size()) + " bytes");
  }
  return check_departures(map);
}

std::string signed_text(ShardMap map) {
  map.clear_signature();
  return std::string(kSigned) + deterministic_bytes(map);
}

base::Status check_signature(const ShardMap& map, const base::SignatureCheck* key) {
  if (key == nullptr || key->holds(signed_text(map), map.signature())) return {};
  return {Code::forbidden,
          "the shard map of epoch " + std::to_string(map.epoch()) +
              (map.signature().empty() ? " is not signed" : " bears a signature that is not the operator's") +
              ": this pool's operator has not made it"};
}

base::Result<Map> Map::parse(std::string_view bytes) {
  if (bytes.size() > kMaxMapBytes) return invalid("it has " + std::to_string(bytes.size()) + " bytes");
  ShardMap message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return invalid("it does not parse");
  return from(std::move(message));
}

base::Result<Map> Map::from(ShardMap message) {
  if (Status status = validate(message); !status.ok()) return status;
  return Map(std::make_shared<const ShardMap>(std::move(message)));
}

const v1alpha1::TableEntry& Map::table_of(std::uint64_t directory_hash) const {
  FARPOOL_CHECK(message_->directory_size() > 0);
  const std::uint64_t entry = directory_hash & ((1ull << message_->directory_depth()) - 1);
  return *table(message_->directory(static_cast<int>(entry)));
}

const v1alpha1::TableEntry* Map::source_of(std::uint64_t directory_hash) const {
  const auto& departures = message_->departures();
  if (departures.empty()) return nullptr;
  const auto part = static_cast<std::uint32_t>(directory_hash & ((1ull << message_->directory_depth()) - 1));
  const auto found =
      std::lower_bound(departures.begin(), departures.end(), part,
                       [](const auto& departure, std::uint32_t wanted) { return departure.part() < wanted; });
  return found != departures.end() && found->part() == part ? table(found->from()) : nullptr;
}

const v1alpha1::TableEntry* Map::table(std::uint32_t id) const {
  const auto& tables = message_->tables();
  const auto found = std::lower_bound(tables.begin(), tables.end(), id,
                                      [](const auto& table, std::uint32_t wanted) { return table.id() < wanted; });
  return found != tables.end() && found->id() == id ? &*found : nullptr;
}

const MemoryNodeEntry* Map::node(std::string_view name) const {
  const auto& nodes = message_->nodes();
  const auto found = std::lower_bound(nodes.begin(), nodes.end(), name,
                                      [](const auto& node, std::string_view wanted) { return node.name() < wanted; });
  return found != nodes.end() && found->name() == name ? &*found : nullptr;
}

std::string deterministic_bytes(const ShardMap& map) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    FARPOOL_CHECK(map.SerializeToCodedStream(&coded));
  }
  return bytes;
}

std::string Map::bytes() const { return deterministic_bytes(*message_); }

}  // namespace farpool::map
