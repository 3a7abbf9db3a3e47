// SPDX-License-Identifier: Apache-2.0
#include "node/memory_node.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"
#include "map/shard_map.h"
#include "protocols/protocols.h"

namespace farpool::node {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr base::Nanos kHousekeeping = base::kSecond;

// Returns the request or reply of a CALL if the bytes are exactly one.
template <class T>
bool read_request(base::Bytes bytes, T& request) {
  if (bytes.size() != sizeof(T)) return false;
  request = base::load<T>(bytes.data());
  return true;
}
template <class T>
std::optional<std::size_t> write_reply(base::MutableBytes bytes, const T& reply) {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  base::store(bytes.data(), reply);
  return sizeof(T);
}
// Asks only if the answer has room in the reply: what a client does not learn of must not have happened.
template <class Request, class Ask>
std::optional<std::size_t> answered(base::Bytes request, base::MutableBytes reply, const Ask& ask) {
  Request asked;
  using Answer = typename decltype(ask(asked))::value_type;
  if (!read_request(request, asked) || reply.size() < sizeof(Answer)) return std::nullopt;
  const std::optional<Answer> answer = ask(asked);
  return answer ? write_reply(reply, *answer) : std::nullopt;
}

}  // namespace

Result<std::unique_ptr<MemoryNode>> MemoryNode::create(Options options, base::MutableBytes memory,
                                                       fabric::Responder& responder) {
  layout::GeometryRequest request = options.geometry;
  request.memory_bytes = memory.size();
  Result<layout::Geometry> geometry = layout::plan_geometry(request);
  if (!geometry.ok()) return geometry.status();
  const index::Protocol& protocol = protocols::of(geometry->protocol);
  if (Status status = index::check_wire(protocol.name(), protocol.needs(), responder.caps()); !status.ok()) {
    return status;
  }
  if (Status status = protocol.check(*geometry); !status.ok()) return status;
  if (!std::has_single_bit(options.initial_tables) || options.initial_tables > geometry->tables) {
    return Status(Code::invalid_argument, std::to_string(options.initial_tables) +
                                              " initial tables are not possible: use a power of two up to " +
                                              std::to_string(geometry->tables) + ", as many as there are tables");
  }
  FARPOOL_CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % layout::kPage == 0);
  std::unique_ptr<MemoryNode> node(new MemoryNode(std::move(options), memory, *geometry, responder));
  if (layout::read_private_page(node->private_page()).written) {
    if (Status status = node->take_up(); !status.ok()) return status;
  } else {
    node->format();
  }
  if (Status status = node->place_locks(); !status.ok()) return status;
  if (Status status = node->begin_to_execute(); !status.ok()) return status;
  node->begin_life();
  node->serve_sessions();
  return node;
}

MemoryNode::MemoryNode(Options options, base::MutableBytes memory, const layout::Geometry& geometry,
                       fabric::Responder& responder)
    : options_(std::move(options)),
      memory_(memory),
      geometry_(geometry),
      protocol_(protocols::of(geometry.protocol)),
      responder_(responder),
      segments_(geometry, memory, options_.lease),
      maps_(options_.pool_uid, options_.map_key, options_.kept_map) {
  while (incarnation_ == 0) incarnation_ = responder_.random();
  if (maps_.knows_kept() || options_.kept_map.empty()) return;
  log(true,
      "the shard map that an earlier process has kept is left alone: it is damaged, of another pool, or not signed by "
      "this pool's operator");
}

void MemoryNode::serve_sessions() {
  session::Registry::Config config;
  config.pool_uid = options_.pool_uid;
  config.node_incarnation = incarnation_;
  config.lease = options_.lease;
  config.failure_timeout = options_.failure_timeout;
  config.era_patience = 3 * options_.lease;
  config.max_sessions = static_cast<std::uint32_t>(geometry_.max_sessions);
  config.max_lanes = options_.max_lanes;
  config.slots_per_session = static_cast<std::uint32_t>(geometry_.slots_per_session);
  config.opens_per_second = options_.opens_per_second;
  config.require_authentication = options_.require_authentication;
  config.check_names = options_.map_key != nullptr;
  config.table_seed = record_.table_seed;
  config.service = executor_->side ? &executor_->side->service() : options_.service;
  config.eras = executor_->side ? &executor_->eras : nullptr;
  config.wall = options_.wall;
  config.places = places_;
  std::vector<session::RegionSpan> regions;
  for (std::uint32_t id = 0; id < layout::kRegions; ++id) {
    const auto which = static_cast<layout::RegionId>(id);
    const layout::Span reached = protocol_.reachable(geometry_, which);
    regions.push_back({id, memory_.data() + reached.offset, reached.bytes,
                       which == layout::kSuperblock || geometry_.shape().served != nullptr});
  }
  session::SessionObserver& observer = *this;
  registry_ = std::make_unique<session::Registry>(std::move(config), std::move(regions), responder_, observer);
  // Counts before any request arrives: it is known by now what was taken up, and the operator plans from these numbers.
  count_keys();
  count_quarantined();
  refresh_facts();
}

MemoryNode::~MemoryNode() = default;

std::byte* MemoryNode::slot_at(std::uint64_t index) const {
  return region(layout::kSlots) + index * sizeof(layout::OperationSlot);
}

Maps::Memory MemoryNode::remembered() const {
  return {.epoch = record_.epoch, .pool_secret = record_.pool_secret, .move_finished = move_finished()};
}

std::optional<MemoryNode::Published> MemoryNode::refusal(const v1alpha1::ShardMap& map,
                                                         const base::HashSecret& pool_secret) const {
  const Maps::Memory memory = remembered();
  std::optional<Maps::Refusal> refused = maps_.refusal(map, pool_secret, memory, entry());
  if (!refused) return std::nullopt;
  log(true, "refused epoch " + std::to_string(map.epoch()) + ": " + refused->why);
  return Published{refused->verdict, maps_.epoch(memory), std::move(refused->why)};
}

void MemoryNode::keep(const v1alpha1::ShardMap& map) {
  if (options_.keep_map) options_.keep_map(map::deterministic_bytes(map));
}

MemoryNode::Published MemoryNode::prepare(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret) {
  if (std::optional<Published> refused = refusal(map, pool_secret)) return *refused;
  if (map.epoch() == maps_.newest().epoch()) return {Verdict::adopted, map.epoch(), ""};
  keep(map);
  maps_.hold(map);
  log(false, "is prepared for epoch " + std::to_string(map.epoch()));
  refresh_facts();
  return {Verdict::adopted, map.epoch(), ""};
}

MemoryNode::Published MemoryNode::publish(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret) {
  if (std::optional<Published> refused = refusal(map, pool_secret)) return *refused;
  if (map.epoch() == maps_.followed().epoch()) return {Verdict::adopted, map.epoch(), ""};
  // Keeps the map first: so no later process remembers an epoch without its map.
  if (map.epoch() != maps_.newest().epoch()) keep(map);
  maps_.follow(map);
  record_.epoch = map.epoch();
  record_.pool_secret = pool_secret;
  const v1alpha1::MemoryNodeEntry* listed = entry_of(maps_.followed(), incarnation_);
  if (listed != nullptr) record_.unnamed = false;
  layout::write_private_page(private_page(), record_);
  serving_ = listed != nullptr && listed->state() == v1alpha1::MemoryNodeEntry::STATE_SERVING;
  if (serving_) {
    why_not_.clear();
    registry_->serve(maps_.followed(), record_.pool_secret);
  } else if (listed != nullptr) {
    why_not_ =
        "epoch " + std::to_string(map.epoch()) +
        " has stopped it: an earlier life of this memory node lost its memory and the pool's data policy is Store; "
        "accept the loss to have it serve again";
    registry_->refuse(&maps_.followed(), why_not_);
  } else {
    why_not_ = "epoch " + std::to_string(map.epoch()) + " does not contain this life of memory node " + options_.name;
    registry_->refuse(&maps_.followed(), why_not_);
  }
  log(!serving_, "follows epoch " + std::to_string(map.epoch()) + (serving_ ? ": serving" : ": " + why_not_));
  refresh_facts();
  return {Verdict::adopted, map.epoch(), ""};
}

MemoryNode::Published MemoryNode::stand_alone(std::uint64_t at_least) {
  v1alpha1::ShardMap map;
  map.set_pool_uid(options_.pool_uid);
  map.set_epoch(std::max(maps_.epoch(remembered()) + 1, at_least));
  map.set_move(maps_.move(remembered()));
  *map.add_nodes() = entry();
  map.add_tables();  // table 0 on node 0
  map.add_directory(0);
  return publish(map,
                 record_.epoch != 0 ? record_.pool_secret : base::HashSecret{responder_.random(), responder_.random()});
}

void MemoryNode::fence(const std::vector<std::uint64_t>& processes, std::function<void(v1alpha1::FenceResponse)> done) {
  registry_->fence_processes(processes, [this, processes, done = std::move(done)](std::uint32_t sessions) {
    v1alpha1::FenceResponse response;
    response.set_sessions(sessions);
    for (const v1alpha1::DeadClient& left : dead()) {
      if (std::find(processes.begin(), processes.end(), left.process()) != processes.end()) *response.add_left() = left;
    }
    done(std::move(response));
  });
}

void MemoryNode::on_exchange(const fabric::Peer& peer, std::string request, std::function<void(std::string)> reply) {
  registry_->on_exchange(peer, request, std::move(reply));
}

std::optional<fabric::LaneRights> MemoryNode::on_open_lane(const std::array<std::byte, 16>& token) {
  return registry_->on_open_lane(token);
}

std::vector<std::array<std::byte, 16>> MemoryNode::unspent_tokens() const { return registry_->unspent_tokens(); }

std::optional<std::size_t> MemoryNode::on_call(std::uint64_t session_id, std::uint32_t opcode, base::Bytes request,
                                               base::MutableBytes reply) {
  if (!registry_->live(session_id)) return std::nullopt;
  ++calls_;
  const bool of_segments =
      opcode == layout::kAllocateSegments || opcode == layout::kReturnSegments || opcode == layout::kAdoptSegment;
  if (of_segments && geometry_.shape().served != nullptr) return std::nullopt;  // there are none
  switch (opcode) {
    case layout::kTick: {
      layout::TickRequest tick;
      if (!read_request(request, tick)) return std::nullopt;
      std::optional<layout::TickReply> told = registry_->tick(session_id, tick);
      if (!told) return std::nullopt;
      told->pressure = static_cast<std::uint64_t>(segments_.pressure(responder_.now()));
      told->hurry = layout::Hurry::with(told->hurry, segments_.cleared(responder_.now()));
      told->dead_segments = segments_.ledger().counts().dead;
      told->deaths = segments_.ledger().deaths();
      return write_reply(reply, *told);
    }
    case layout::kAllocateSegments: {
      layout::AllocateSegmentsRequest wanted;
      if (!read_request(request, wanted) || reply.size() < sizeof(layout::AllocateSegmentsReply)) return std::nullopt;
      if (!segments_.is_possible(wanted)) return std::nullopt;
      return write_reply(reply, segments_.grant(caller(session_id), wanted, moment()));
    }
    case layout::kReturnSegments: {
      layout::ReturnSegmentsRequest returned;
      if (!read_request(request, returned) || reply.size() < sizeof(layout::ReturnSegmentsReply)) return std::nullopt;
      const layout::ReturnSegmentsReply told = segments_.take_back(caller(session_id), returned, registry_->era());
      if (told.status == 0) arm();
      return write_reply(reply, told);
    }
    case layout::kAdoptSegment: {
      layout::AdoptSegmentRequest wanted;
      if (!read_request(request, wanted) || reply.size() < sizeof(layout::AdoptSegmentReply)) return std::nullopt;
      return write_reply(reply, segments_.bequeath(caller(session_id), wanted));
    }
    case layout::kReadMap:
      return maps_.read(reply);
    case layout::kFence:
      return answered<layout::FenceRequest>(request, reply,
                                            [this](const auto& asked) { return registry_->fence(asked); });
    case layout::kSwapLease:
      return answered<layout::SwapLeaseRequest>(
          request, reply, [&](const auto& asked) { return registry_->swap_lease(session_id, asked); });
    default:
      return std::nullopt;
  }
}

void MemoryNode::on_opened(std::uint64_t session_id, std::uint64_t, const std::string& client_name) {
  log(false, "opened session " + std::to_string(session_id) + " of client '" + client_name + "'");
  arm();
  refresh_facts();
}

void MemoryNode::on_ended(const Ended& ended) {
  const std::string session = std::to_string(ended.session_id);
  std::string line = (ended.clean ? "closed session " : "fenced session ") + session + " of client '" +
                     ended.client_name + "': " + ended.why;
  if (ended.holds) line += "; its operation slots say that it left an operation half done, and stay as they are";
  log(!ended.clean || ended.holds, line);
  // Blocks that it had unlinked and not freed yet are lost now.
  if (!ended.clean) segments_.ledger().doubt();
  const std::uint64_t buried = segments_.ledger().bury(ended.session_id);
  if (buried > 0) {
    left_.push_back({.session = ended.session_id, .process = ended.client_process, .name = ended.client_name});
    log(false, std::to_string(buried) + " heap segments of session " + session +
                   " are of the dead: other clients take them over");
  }
  refresh_facts();
}

void MemoryNode::log(bool warning, const std::string& line) const {
  if (options_.log) options_.log(warning, line);
}

void MemoryNode::arm() {
  if (armed_) return;
  armed_ = true;
  responder_.after(kHousekeeping, [this, here = std::weak_ptr<bool>(here_)] {
    if (here.expired()) return;
    armed_ = false;
    keep_house();
  });
}

void MemoryNode::keep_house() {
  segments_.settle(moment());
  count_keys();
  count_quarantined();
  refresh_facts();
  if (registry_->sessions() > 0 || segments_.ledger().counts().resting > 0) arm();
}

}  // namespace farpool::node
