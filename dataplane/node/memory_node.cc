// SPDX-License-Identifier: Apache-2.0
#include "node/memory_node.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <set>
#include <utility>

#include "base/check.h"
#include "directory/directory.h"
#include "fabric/words.h"
#include "layout/directory.h"
#include "layout/extent.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"
#include "layout/segment.h"
#include "layout/superblock.h"
#include "map/shard_map.h"
#include "node/audit.h"
#include "protocols/protocols.h"

namespace farpool::node {
namespace {

using base::Code;
using base::Result;
using base::Status;
using layout::OperationSlot;

constexpr base::Nanos kHousekeeping = base::kSecond;
constexpr std::size_t kMaxDeadTold = 256;             // in the facts
constexpr base::Nanos kProgress = 5 * base::kSecond;  // between lines that say how far a verification has come
constexpr std::size_t kDefectsLogged = 20;
constexpr std::uint64_t kKeptForReplacements = 16;  // one such part of the segments

// A request or reply of a CALL, if the bytes are exactly one.
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

// Names the flags by which a memory node got one geometry and not the other, with what each of them was and is.
std::string differing_flags(const layout::Geometry& was, const layout::Geometry& is) {
  std::string flags;
  const auto compare = [&flags](const std::string& flag, const std::string& before, const std::string& now) {
    if (before != now) flags += (flags.empty() ? "" : ", ") + flag + " was " + before + " and is " + now;
  };
  const auto number = [&compare](const std::string& flag, std::uint64_t before, std::uint64_t now) {
    compare(flag, std::to_string(before), std::to_string(now));
  };
  compare("--protocol", std::string(was.shape().name), std::string(is.shape().name));
  number("--memory", was.memory_bytes, is.memory_bytes);
  if (was.protocol == is.protocol) {
    number("--entry-bytes", was.entry_bytes, is.entry_bytes);
    number("--entries-per-row", was.entries_per_row, is.entries_per_row);
    number("--rows-per-lock", was.rows_per_lock, is.rows_per_lock);
  }
  number("--tables", was.tables, is.tables);
  number("--max-sessions", was.max_sessions, is.max_sessions);
  // What is left follows from the others, but for the percentage, which the memory does not tell.
  if (flags.empty() && was.rows != is.rows) {
    flags = "--table-percent is another, as the table had " + std::to_string(was.rows) + " rows and would have " +
            std::to_string(is.rows);
  }
  if (flags.empty() && was != is) flags = "none that can be named: another version of the memory node formatted it";
  return flags;
}

// Whether two entries of a map say the same of the table and its locks: these are their parts that are messages.
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

// Whether a coarse counter moved by more than a percent of `scale`, or to or from nothing.
bool moved(std::uint64_t from, std::uint64_t to, std::uint64_t scale) {
  const std::uint64_t distance = from > to ? from - to : to - from;
  return distance * 100 > scale || (from == 0) != (to == 0);
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
      ledger_(geometry.segments),
      dirty_(geometry.segments, false) {
  while (incarnation_ == 0) incarnation_ = responder_.random();
  largest_class_ = layout::largest_class(geometry_.segment_bytes);
  if (!held_map_.ParseFromString(options_.kept_map) || !map::validate(held_map_).ok() ||
      held_map_.pool_uid() != options_.pool_uid || !map::check_signature(held_map_, options_.map_key.get()).ok()) {
    held_map_.Clear();
    if (options_.kept_map.empty()) return;
    log(true,
        "the shard map that an earlier process has kept is left alone: it is damaged, of another pool, or not signed "
        "by "
        "this pool's operator");
  }
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
  config.places = places_;
  std::vector<session::RegionSpan> regions;
  for (std::uint32_t id = 0; id < layout::kRegions; ++id) {
    const auto which = static_cast<layout::RegionId>(id);
    regions.push_back({id, region(which), geometry_.at(which).bytes, which == layout::kSuperblock});
  }
  session::SessionObserver& observer = *this;
  registry_ = std::make_unique<session::Registry>(std::move(config), std::move(regions), responder_, observer);
  // Before anybody can ask: what was taken up is known by now, and the operator plans from these numbers.
  count_keys();
  count_quarantined();
  refresh_facts();
}

MemoryNode::~MemoryNode() = default;

// Tells how far a step is that goes through the rows of the table.
std::function<void(std::uint64_t)> MemoryNode::rows_done(const char* step) const {
  if (!options_.progress) return {};
  return [this, step](std::uint64_t rows) {
    options_.progress(step, rows * geometry_.row_bytes(), geometry_.rows * geometry_.row_bytes());
  };
}

// The memory is zero: slots are idle, locks and leases free, no segment is handed out. What is not zero when empty is
// written here. The private page comes last: a half-formatted memory is never taken for a whole one.
void MemoryNode::format() {
  const auto progress = rows_done("formats its table");
  if (progress) progress(0);
  protocol_.format(geometry_, memory_, options_.initial_tables, progress);
  const layout::Span& entries = geometry_.at(layout::kDirectory);
  directory::format(memory_.subspan(entries.offset, entries.bytes), geometry_.tables, options_.initial_tables);
  record_ = {.pool = layout::pool_tag(options_.pool_uid),
             .unnamed = true,
             .table_seed = {responder_.random(), responder_.random()},
             .geometry = geometry_};
}

// The memory keeps the locks that this life begins with: the locks of what no crash explains. Locks that clients take in
// the NIC's memory end with the process, as every session does; the next life learns from the slots who held what.
Status MemoryNode::place_locks() {
  if (options_.locks == LockPlacement::host || !geometry_.shape().locks) return {};
  const layout::Span& at = geometry_.at(layout::kLocks);
  const Status placed = responder_.place_in_device(memory_.subspan(at.offset, at.bytes));
  locks_in_device_ = placed.ok();
  if (!placed.ok() && options_.locks == LockPlacement::device_required) {
    return {placed.code(), "its locks have to lie in the NIC's memory, and cannot: " + placed.message()};
  }
  log(!placed.ok(), placed.ok() ? "its locks, " + std::to_string(at.bytes) + " bytes, lie in the NIC's memory"
                                : "its locks lie in host memory, as the NIC's cannot take them: " + placed.message());
  return {};
}

// The superblock says what the private page says, and is written again from it in every life: one that is torn, because
// a process died just here, is no loss.
void MemoryNode::begin_life() {
  const auto superblock = layout::write_superblock(
      {.incarnation = incarnation_, .pool = layout::pool_tag(options_.pool_uid), .geometry = geometry_});
  record_.incarnation = incarnation_;
  ++record_.lives;
  std::memcpy(region(layout::kSuperblock), superblock.data(), superblock.size());
  layout::write_private_page(private_page(), record_);
}

Status MemoryNode::take_up() {
  const auto corrupt = [](std::string why) { return Status(Code::corrupt, std::move(why)); };
  const layout::PrivatePage page = layout::read_private_page(private_page());
  if (!page.record) return corrupt("neither record of its private page is whole, or another version wrote them");
  if (page.record->pool != layout::pool_tag(options_.pool_uid)) return corrupt("it is the memory of another pool");
  if (page.record->geometry != geometry_) {
    return {Code::invalid_argument, "the memory that it found was formatted with other flags: " +
                                        differing_flags(page.record->geometry, geometry_) +
                                        "; give the earlier flags again, or remove the memory to begin empty"};
  }
  const auto superblock = layout::parse_superblock(base::Bytes(memory_).first(layout::kPage));
  if (superblock.ok() && (superblock->pool != page.record->pool || superblock->geometry != geometry_)) {
    return corrupt("its superblock contradicts its private page");
  }
  record_ = *page.record;
  // Keys come into a memory through sessions, and sessions open where a map names this life. An earlier life that began
  // empty and was told maps of the life before alone has an epoch, and no keys.
  fresh_ = record_.unnamed;

  const index::Mended mended = protocol_.mend(geometry_, memory_, rows_done("repairs the table that it found"));
  repaired_ = mended.operations;
  log(repaired_ > 0, mended.what);
  for (const std::string& what : mended.left) log(true, "left as it is, with its locks: " + what);
  verify();
  return {};
}

// Reads everything, and makes the heap anew from it: what no entry points to is free, marked so, and any client that
// asks may have it. Where it cannot be told what is in use, nothing becomes free that was not.
void MemoryNode::verify() {
  const base::Nanos begun = responder_.now();
  base::Nanos told = begun;
  const auto rebuild = [this](const FoundSegment& found, const Audit& so_far) {
    using Kind = FoundSegment::Kind;
    if (found.kind == Kind::free) return;
    if (found.kind == Kind::damaged) return ledger_.set_aside(found.first, found.run);
    const bool known = so_far.reach_known();
    bool whole = true;
    for (std::uint64_t word = 0; word < found.shape.bitmap_words; ++word) {
      const std::uint64_t blocks = layout::blocks_of_word(found.shape, word);
      const std::uint64_t free = known ? blocks & ~found.in_use[word] : found.marked[word];
      whole = whole && free == blocks;
      base::store(segment(found.first) + sizeof(layout::SegmentHeader) + word * 8, free);
    }
    if (whole) return clear_headers(found.first, found.run);
    write_header(found.first, 0, 0, found.size_class, found.run);
    ledger_.restore_orphan(found.first, found.run, found.size_class);
  };
  const auto progress = [&](std::uint64_t done, std::uint64_t of) {
    if (options_.progress) options_.progress("looks through the memory that it found", done, of);
    if (responder_.now() - told < kProgress) return;
    told = responder_.now();
    log(false,
        "looks through the memory that it found: " + std::to_string(done) + " of " + std::to_string(of) + " bytes");
  };
  std::vector<bool> used(geometry_.marks(), false);
  const auto use = [&](const index::Sighting& sighting) {
    used[geometry_.mark_of(sighting.row % geometry_.rows_per_table())] = true;
  };
  const Audit audit = audit_regions(geometry_, memory_, record_.table_seed, record_.pool_secret,
                                    {.visit = use, .segment = rebuild, .progress = progress});
  // Marks of rows that have become empty go, where it is certain that they are: so scans are quick again.
  for (std::uint64_t mark = 0; mark < used.size(); ++mark) {
    if (!used[mark] && (!audit.reach_known() || audit.damage() > 0)) continue;
    base::store(region(layout::kTable) + geometry_.mark_offset(mark), std::uint64_t{used[mark] ? 1u : 0u});
  }
  dirty_.assign(geometry_.segments, true);
  settle_counters(audit.table.keys, audit.table.bytes);
  defects_ = audit.damage();
  verification_ = responder_.now() - begun;
  std::size_t logged = 0;
  for (const Finding& finding : audit.findings) {
    if (kind_of(finding.wrong).damage && logged++ < kDefectsLogged) log(true, finding.what);
  }
  log(defects_ > 0, "took up the memory of incarnation " + std::to_string(record_.incarnation) + ": " +
                        std::to_string(audit.table.keys) + " keys in " + std::to_string(audit.table.rows) + " rows, " +
                        std::to_string(audit.table.extents) + " of them in the heap, " + std::to_string(defects_) +
                        " defects");
}

// The slots' counters are net figures: only their sum means something. Nobody writes them now.
void MemoryNode::settle_counters(std::uint64_t keys, std::uint64_t bytes) {
  const std::uint64_t slots = geometry_.max_sessions * geometry_.slots_per_session;
  std::uint64_t idle = slots;
  for (std::uint64_t i = slots; i-- > 0;) {
    const auto slot = base::load<OperationSlot>(slot_at(i));
    keys -= slot.keys;
    bytes -= slot.bytes;
    if (slot.holder == 0) idle = i;
    const base::Bytes words = base::bytes_of(slot);
    if (places_ == 0 && std::any_of(words.begin(), words.end(), [](std::byte b) { return b != std::byte{0}; })) {
      places_ = static_cast<std::uint32_t>(i / geometry_.slots_per_session) + 1;
    }
  }
  if ((keys == 0 && bytes == 0) || idle == slots) return;
  log(true, "the operation slots counted " + std::to_string(static_cast<std::int64_t>(-keys)) + " keys and " +
                std::to_string(static_cast<std::int64_t>(-bytes)) + " bytes more than there are: set right");
  auto slot = base::load<OperationSlot>(slot_at(idle));
  slot.keys += keys;
  slot.bytes += bytes;
  base::store(slot_at(idle), slot);
  places_ = std::max(places_, static_cast<std::uint32_t>(idle / geometry_.slots_per_session) + 1);
}

std::byte* MemoryNode::slot_at(std::uint64_t index) const {
  return region(layout::kSlots) + index * sizeof(OperationSlot);
}

v1alpha1::MemoryNodeEntry MemoryNode::entry() const {
  v1alpha1::MemoryNodeEntry entry;
  entry.set_name(options_.name);
  entry.set_endpoint(options_.endpoint);
  entry.set_incarnation(incarnation_);
  entry.set_state(v1alpha1::MemoryNodeEntry::STATE_SERVING);
  entry.set_memory_bytes(geometry_.memory_bytes);
  protocol_.describe(geometry_, entry);
  if (!geometry_.shape().locks) return entry;
  auto& locks = *entry.mutable_lock_region();
  locks.set_placement(locks_in_device_ ? v1alpha1::LockRegion::PLACEMENT_DEVICE_MEMORY
                                       : v1alpha1::LockRegion::PLACEMENT_HOST_MEMORY);
  locks.set_bytes(geometry_.at(layout::kLocks).bytes);
  locks.set_locks(geometry_.lock_bits);
  locks.set_rows_per_lock(static_cast<std::uint32_t>(geometry_.rows_per_lock));
  return entry;
}

std::optional<MemoryNode::Published> MemoryNode::refusal(const v1alpha1::ShardMap& map,
                                                         const base::HashSecret& pool_secret) const {
  const auto refuse = [&](Verdict verdict, std::string why) {
    log(true, "refused epoch " + std::to_string(map.epoch()) + ": " + why);
    return Published{verdict, held_epoch(), std::move(why)};
  };
  if (Status status = map::validate(map); !status.ok()) return refuse(Verdict::invalid, status.message());
  if (map.pool_uid() != options_.pool_uid) return refuse(Verdict::invalid, "the shard map is of another pool");
  if (Status status = map::check_signature(map, options_.map_key.get()); !status.ok()) {
    return refuse(Verdict::invalid, status.message());
  }
  const auto backwards = [&] {
    return "this memory node " + what_is_held() + ", and is told epoch " + std::to_string(map.epoch()) + ", move " +
           std::to_string(map.move()) + ": keys lie where the later map says. " +
           (newest_map().epoch() == held_epoch()
                ? "Make the next epoch from the map in this node's facts, with its move"
                : "Restore the newest ShardMap, or have a memory node reachable that holds it, and make the next epoch "
                  "from that");
  };
  if (map.epoch() < held_epoch()) return refuse(Verdict::older_epoch, backwards());
  if (record_.epoch != 0 && pool_secret != record_.pool_secret) {
    return refuse(Verdict::conflicting, "the pool's hash secret is not the one of the epochs before");
  }
  if (map.epoch() == newest_map().epoch() && map::deterministic_bytes(map) != map::deterministic_bytes(newest_map())) {
    return refuse(Verdict::conflicting, "this memory node " + what_is_held() +
                                            ", and is told the same epoch with different content: make the next epoch");
  }
  if (map.move() < held_move()) return refuse(Verdict::conflicting, backwards());
  const v1alpha1::MemoryNodeEntry own = entry();
  const v1alpha1::MemoryNodeEntry* listed = own_entry(map);
  if (listed != nullptr && (listed->name() != own.name() || !same_shape(*listed, own))) {
    return refuse(Verdict::invalid,
                  "its entry for this incarnation has another name or geometry than this memory node formatted");
  }
  return std::nullopt;
}

const v1alpha1::MemoryNodeEntry* MemoryNode::own_entry(const v1alpha1::ShardMap& map) const {
  for (const auto& node : map.nodes()) {
    if (node.incarnation() == incarnation_) return &node;
  }
  return nullptr;
}

void MemoryNode::keep(const v1alpha1::ShardMap& map) {
  if (options_.keep_map) options_.keep_map(map::deterministic_bytes(map));
}

MemoryNode::Published MemoryNode::prepare(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret) {
  if (std::optional<Published> refused = refusal(map, pool_secret)) return *refused;
  if (map.epoch() == newest_map().epoch()) return {Verdict::adopted, map.epoch(), ""};
  keep(map);
  held_map_ = map;
  log(false, "is prepared for epoch " + std::to_string(map.epoch()));
  refresh_facts();
  return {Verdict::adopted, map.epoch(), ""};
}

MemoryNode::Published MemoryNode::publish(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret) {
  if (std::optional<Published> refused = refusal(map, pool_secret)) return *refused;
  if (map.epoch() == map_.epoch()) return {Verdict::adopted, map_.epoch(), ""};
  // First: no later process remembers an epoch without its map.
  if (map.epoch() != newest_map().epoch()) keep(map);
  map_ = map;
  map_bytes_ = map::deterministic_bytes(map);
  held_map_.Clear();
  record_.epoch = map.epoch();
  record_.pool_secret = pool_secret;
  const v1alpha1::MemoryNodeEntry* listed = own_entry(map_);
  if (listed != nullptr) record_.unnamed = false;
  layout::write_private_page(private_page(), record_);
  serving_ = listed != nullptr && listed->state() == v1alpha1::MemoryNodeEntry::STATE_SERVING;
  if (serving_) {
    why_not_.clear();
    registry_->serve(map_, record_.pool_secret);
  } else if (listed != nullptr) {
    why_not_ =
        "epoch " + std::to_string(map.epoch()) +
        " has stopped it: an earlier life of this memory node lost its memory and the pool's data policy is Store; "
        "accept the loss to have it serve again";
    registry_->refuse(&map_, why_not_);
  } else {
    why_not_ = "epoch " + std::to_string(map.epoch()) + " does not contain this life of memory node " + options_.name;
    registry_->refuse(&map_, why_not_);
  }
  log(!serving_, "follows epoch " + std::to_string(map.epoch()) + (serving_ ? ": serving" : ": " + why_not_));
  refresh_facts();
  return {Verdict::adopted, map_.epoch(), ""};
}

MemoryNode::Published MemoryNode::stand_alone(std::uint64_t at_least) {
  v1alpha1::ShardMap map;
  map.set_pool_uid(options_.pool_uid);
  map.set_epoch(std::max(held_epoch() + 1, at_least));
  map.set_move(held_move());
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

std::vector<v1alpha1::DeadClient> MemoryNode::dead() {
  std::vector<v1alpha1::DeadClient> processes;
  const auto entry_of = [&processes](std::uint64_t process, const std::string& name) -> v1alpha1::DeadClient& {
    for (v1alpha1::DeadClient& one : processes) {
      if (one.process() == process && (process != 0 || one.name() == name)) return one;
    }
    processes.emplace_back();
    processes.back().set_process(process);
    processes.back().set_name(name);
    return processes.back();
  };
  // A process names its threads behind a slash.
  const auto name_of = [](std::uint64_t process, const std::string& name) {
    return process == 0 ? name : name.substr(0, name.find('/'));
  };
  for (const session::Registry::Dead& dead : registry_->dead()) {
    v1alpha1::DeadClient& left = entry_of(dead.process, name_of(dead.process, dead.name));
    left.set_slots(left.slots() + registry_->busy_slots(dead.group));
  }
  std::erase_if(left_, [this](const Left& left) { return ledger_.left_by(left.session) == 0; });
  for (const Left& one : left_) {
    v1alpha1::DeadClient& left = entry_of(one.process, name_of(one.process, one.name));
    left.set_segments(left.segments() + static_cast<std::uint32_t>(ledger_.left_by(one.session)));
  }
  return processes;
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
  switch (opcode) {
    case layout::kTick: {
      layout::TickRequest tick;
      if (!read_request(request, tick)) return std::nullopt;
      std::optional<layout::TickReply> told = registry_->tick(session_id, tick);
      if (!told) return std::nullopt;
      told->pressure = static_cast<std::uint64_t>(pressure());
      told->dead_segments = ledger_.counts().dead;
      told->deaths = ledger_.deaths();
      return write_reply(reply, *told);
    }
    case layout::kAllocateSegments: {
      layout::AllocateSegmentsRequest wanted;
      if (!read_request(request, wanted) || reply.size() < sizeof(layout::AllocateSegmentsReply)) return std::nullopt;
      if (wanted.size_class != layout::kRun && (wanted.count != 1 || wanted.size_class > largest_class_))
        return std::nullopt;
      return write_reply(reply, allocate(session_id, wanted));
    }
    case layout::kReturnSegments: {
      layout::ReturnSegmentsRequest returned;
      if (!read_request(request, returned) || reply.size() < sizeof(layout::ReturnSegmentsReply)) return std::nullopt;
      return write_reply(reply, take_back(session_id, returned));
    }
    case layout::kAdoptSegment: {
      layout::AdoptSegmentRequest wanted;
      if (!read_request(request, wanted) || reply.size() < sizeof(layout::AdoptSegmentReply)) return std::nullopt;
      return write_reply(reply, bequeath(session_id, wanted));
    }
    case layout::kReadMap:
      return read_map(reply);
    case layout::kFence: {
      layout::FenceRequest wanted;
      if (!read_request(request, wanted)) return std::nullopt;
      const std::optional<layout::FenceReply> told = registry_->fence(wanted);
      if (!told) return std::nullopt;
      return write_reply(reply, *told);
    }
    default:
      return std::nullopt;
  }
}

// A word with the map's length, then the map, padded to a word; the length alone if the rest has no room.
std::optional<std::size_t> MemoryNode::read_map(base::MutableBytes reply) const {
  if (reply.size() < 8) return std::nullopt;
  base::store(reply.data(), std::uint64_t{map_bytes_.size()});
  const std::size_t padded = base::round_up(map_bytes_.size(), 8);
  if (reply.size() - 8 < padded) return 8;
  std::memset(reply.data() + 8, 0, padded);
  std::memcpy(reply.data() + 8, map_bytes_.data(), map_bytes_.size());
  return 8 + padded;
}

void MemoryNode::write_header(std::uint64_t first, std::uint64_t owner, std::uint64_t client_incarnation,
                              std::uint64_t size_class, std::uint64_t run) {
  const layout::SegmentHeader header{
      .owner = owner, .size_class = size_class, .run = run, .incarnation = client_incarnation};
  // The length goes first when it is taken away and comes last when it is given, whatever word a kill comes after: a
  // segment that has none is free.
  const auto put_run = [&] {
    fabric::word_at(segment(first) + offsetof(layout::SegmentHeader, run)).store(run, std::memory_order_release);
  };
  if (run == 0) put_run();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::size_t at = 0; at < sizeof header; at += 8) {
    if (at == offsetof(layout::SegmentHeader, run)) continue;
    fabric::word_at(segment(first) + at)
        .store(base::load<std::uint64_t>(base::bytes_of(header).data() + at), std::memory_order_release);
  }
  if (run != 0) put_run();
}

// Nobody frees a block of what has been given back whole.
void MemoryNode::mark_all_free(std::uint64_t first, std::uint64_t run) {
  const std::uint64_t size_class = ledger_.size_class_of(first);
  const layout::SegmentShape shape = layout::segment_shape(size_class, run * geometry_.segment_bytes);
  for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
    fabric::word_at(segment(first) + sizeof(layout::SegmentHeader) + word * 8)
        .store(layout::blocks_of_word(shape, word), std::memory_order_release);
  }
}

// Only once nobody reads it any more: within a run, a later segment's header is in the middle of a value. The first
// goes last, or what is left of the value would pass for headers after a kill.
void MemoryNode::clear_headers(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t index = first + count; index-- > first;) write_header(index, 0, 0, 0, 0);
}

void MemoryNode::zero_segments(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t index = first; index < first + count; ++index) {
    if (dirty_[index]) {
      std::byte* at = segment(index);
      for (std::uint64_t i = 0; i < geometry_.segment_bytes; i += 8)
        fabric::word_at(at + i).store(0, std::memory_order_relaxed);
    }
    dirty_[index] = true;
  }
}

// Only read, never written: freed blocks are marked by clients' atomics.
std::uint64_t MemoryNode::free_blocks(std::uint64_t first, std::uint64_t size_class) const {
  const layout::SegmentShape shape = layout::segment_shape(size_class, geometry_.segment_bytes);
  std::uint64_t count = 0;
  for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
    std::byte* at = segment(first) + sizeof(layout::SegmentHeader) + word * 8;
    count += static_cast<std::uint64_t>(std::popcount(fabric::word_at(at).load(std::memory_order_relaxed)));
  }
  return count;
}

// Orphans that have become empty rest, and what rests since before the safe era is free.
void MemoryNode::settle() {
  ledger_.rest_empty_orphans(registry_->era(), [this](std::uint64_t first, std::uint64_t size_class) {
    return free_blocks(first, size_class) == layout::segment_shape(size_class, geometry_.segment_bytes).blocks;
  });
  ledger_.settle(registry_->safe_era(),
                 [this](std::uint64_t first, std::uint64_t count) { clear_headers(first, count); });
}

layout::Pressure MemoryNode::pressure() const {
  const base::Nanos now = responder_.now();
  if (now < dry_until_) return layout::Pressure::dry;
  if (now < spent_until_) return layout::Pressure::spent;
  return now < scarce_until_ ? layout::Pressure::scarce : layout::Pressure::none;
}

layout::AllocateSegmentsReply MemoryNode::allocate(std::uint64_t session_id,
                                                   const layout::AllocateSegmentsRequest& request) {
  const std::uint64_t client_incarnation = registry_->incarnation_of(session_id);
  const bool run = request.size_class == layout::kRun;
  if (!run) {
    const auto adopted = ledger_.adopt(request.size_class, session_id,
                                       [&](std::uint64_t first) { return free_blocks(first, request.size_class) > 0; });
    if (adopted) {
      write_header(adopted->first, session_id, client_incarnation, request.size_class, 1);
      return {.status = 0, .first = adopted->first, .adopted = adopted->doubted ? 2u : 1u};
    }
  }
  const SegmentLedger::Counts& segments = ledger_.counts();
  const std::uint64_t kept = request.replaces != 0 ? 0 : geometry_.segments / kKeptForReplacements;
  const auto grant = [&]() -> std::optional<std::uint64_t> {
    if (segments.free < kept || segments.free - kept < request.count) return std::nullopt;
    return ledger_.grant(request.count, request.size_class, session_id);
  };
  std::optional<std::uint64_t> first = grant();
  if (!first) {
    settle();
    first = grant();
  }
  if (!first) {
    ++segment_refusals_;
    const std::uint64_t coming = segments.free + segments.resting;
    const bool soon = segments.resting > 0 && request.count > 0 && coming >= kept && coming - kept >= request.count;
    scarce_until_ = responder_.now() + options_.lease;
    if (request.replaces != 0 && !soon) {
      spent_until_ = scarce_until_;
      if (request.in_vain != 0) dry_until_ = scarce_until_;
    }
    return {.status = soon ? 2u : 1u};
  }
  zero_segments(*first, request.count);
  write_header(*first, session_id, client_incarnation, request.size_class, request.count);
  return {.status = 0, .first = *first};
}

layout::AdoptSegmentReply MemoryNode::bequeath(std::uint64_t session_id, const layout::AdoptSegmentRequest& request) {
  if (request.run == layout::AdoptSegmentRequest::kSparse) {
    const auto first = ledger_.adopt_sparse(
        request.size_class, session_id, geometry_.segment_bytes,
        [this](std::uint64_t one, std::uint64_t size_class) { return free_blocks(one, size_class); });
    if (!first) return {.status = 1};
    const std::uint64_t size_class = ledger_.size_class_of(*first);
    write_header(*first, session_id, registry_->incarnation_of(session_id), size_class, 1);
    return {.first = *first, .run = 1 | layout::AdoptSegmentReply::kOrphan, .size_class = size_class};
  }
  const auto segment = ledger_.inherit(request.size_class, request.run, session_id);
  if (!segment) return {.status = 1};
  write_header(segment->first, session_id, registry_->incarnation_of(session_id), segment->size_class, segment->run);
  return {.first = segment->first, .run = segment->run, .size_class = segment->size_class};
}

layout::ReturnSegmentsReply MemoryNode::take_back(std::uint64_t session_id,
                                                  const layout::ReturnSegmentsRequest& request) {
  const bool taken = request.orphan != 0
                         ? ledger_.orphan(request.first, request.count, session_id)
                         : ledger_.give_back(request.first, request.count, session_id, registry_->era());
  if (!taken) return {.status = 1};
  if (request.orphan == 0) mark_all_free(request.first, request.count);
  // Without an owner, but with a class: blocks in it live on, or an older era may still read them.
  write_header(request.first, 0, 0, ledger_.size_class_of(request.first), request.count);
  arm();
  return {.status = 0};
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
  // Blocks that it unlinked, and had not freed yet, are nobody's now.
  if (!ended.clean) ledger_.doubt();
  const std::uint64_t buried = ledger_.bury(ended.session_id);
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
  settle();
  count_keys();
  count_quarantined();
  refresh_facts();
  if (registry_->sessions() > 0 || ledger_.counts().resting > 0) arm();
}

// Clients count in their own slots what they added. A slot that is being written is counted as it was before.
void MemoryNode::count_keys() {
  slot_counts_.resize(std::uint64_t{registry_->groups_used()} * geometry_.slots_per_session);
  keys_ = bytes_ = 0;
  for (std::size_t i = 0; i < slot_counts_.size(); ++i) {
    std::array<std::uint64_t, 2> counters{};
    fabric::read_words(region(layout::kSlots) + i * sizeof(OperationSlot), base::mutable_bytes_of(counters));
    slot_counts_[i] = {counters[0], counters[1]};
    keys_ += slot_counts_[i].keys;
    bytes_ += slot_counts_[i].bytes;
  }
  // A key that one client added and another removed is counted in two slots, which are not read in one instant.
  if (static_cast<std::int64_t>(keys_) < 0) keys_ = 0;
  if (static_cast<std::int64_t>(bytes_) < 0) bytes_ = 0;
}

// Slots in quarantine are of the dead, whether a client's repair or a life's beginning put them there. A plan that is
// none of this table counts as one row.
void MemoryNode::count_quarantined() {
  std::set<std::uint64_t> rows;
  std::uint64_t unnamed = 0;
  for (const session::Registry::Dead& dead : registry_->dead()) {
    for (std::uint64_t i = 0; i < geometry_.slots_per_session; ++i) {
      OperationSlot slot;
      fabric::read_words(slot_at(dead.group * geometry_.slots_per_session + i), base::mutable_bytes_of(slot));
      if (slot.holder == 0 || !slot.quarantined()) continue;
      const auto named = protocol_.rows_of(geometry_, slot);
      if (named) rows.insert(named->begin(), named->end());
      unnamed += named ? 0 : 1;
    }
  }
  quarantined_rows_ = rows.size() + unnamed;
}

// As if all keys were alike. What else is handed out lies free in clients' hands.
std::uint64_t MemoryNode::heap_used() const {
  const std::uint64_t taken = (geometry_.segments - ledger_.counts().free) * geometry_.segment_bytes;
  if (keys_ == 0) return 0;
  const std::uint64_t each = layout::kExtentHeader + bytes_ / keys_;
  const std::uint64_t size_class = layout::size_class_for(each, geometry_.segment_bytes);
  return std::min(taken, keys_ * (size_class == layout::kRun ? each : layout::block_bytes(size_class)));
}

// Whichever client moves keys writes it over the wire (docs/adr/0012).
std::uint64_t MemoryNode::move_finished() const {
  std::uint64_t word = 0;
  fabric::read_words(region(layout::kDirectory) + layout::move_offset(geometry_.tables), base::mutable_bytes_of(word));
  return word;
}

// A memory that lost its map knows of the moves that keys have left it in.
std::uint64_t MemoryNode::held_move() const {
  const std::uint64_t finished = move_finished();
  return std::max(newest_map().move(), finished <= layout::kMostMoves ? finished : 0);
}

std::string MemoryNode::what_is_held() const {
  const std::string what = "epoch " + std::to_string(held_epoch()) + ", move " + std::to_string(held_move());
  if (newest_map().epoch() != held_epoch()) return "has lost its map, of " + what;
  return (held_map_.epoch() == 0 ? "follows " : "has kept a map with its memory, of ") + what;
}

// Clients write the directory, word by word.
std::uint64_t MemoryNode::even_tables() const {
  std::vector<std::byte> words(geometry_.at(layout::kDirectory).bytes);
  fabric::read_words(region(layout::kDirectory), words);
  return directory::even_tables(directory::View(words, geometry_.tables));
}

void MemoryNode::refresh_facts() {
  if (!registry_) return;  // told of while it is being made
  const SegmentLedger::Counts& segments = ledger_.counts();
  const std::uint64_t heap_bytes = geometry_.at(layout::kHeap).bytes;
  Stats stats;
  stats.incarnation = incarnation_;
  stats.epoch = map_.epoch();
  stats.era = registry_->era();
  stats.safe_era = registry_->safe_era();
  stats.sessions = registry_->sessions();
  stats.lanes = registry_->lanes();
  stats.sessions_opened = registry_->counters().opened;
  stats.sessions_closed = registry_->counters().closed;
  stats.sessions_fenced = registry_->counters().fenced;
  stats.handshakes_refused = registry_->counters().refused;
  stats.sessions_held_by_the_dead = registry_->held_by_the_dead();
  stats.keys = keys_;
  stats.bytes = bytes_;
  stats.entries = geometry_.entries();
  stats.segment_bytes = geometry_.segment_bytes;
  stats.calls = calls_;
  stats.segment_refusals = segment_refusals_;
  stats.segments = segments;
  stats.segments_by_class.clear();
  for (const auto& [size_class, counts] : ledger_.counts_by_class()) {
    const bool run = size_class == layout::kRun;
    stats.segments_by_class.push_back({run ? 0 : layout::block_bytes(size_class), counts});
  }
  stats.heap_bytes = heap_bytes;
  stats.heap_live = heap_used();
  stats.serving = serving_;
  stats.locks_in_device = locks_in_device_;
  stats.lives = record_.lives;
  stats.repaired = repaired_;
  stats.defects = defects_;
  stats.quarantined_rows = quarantined_rows_;
  stats.verification = verification_;

  v1alpha1::Facts facts;
  facts.set_pool_uid(options_.pool_uid);
  facts.set_role(v1alpha1::ROLE_MEMORY_NODE);
  facts.set_name(options_.name);
  facts.set_incarnation(incarnation_);
  facts.set_version(options_.version);
  facts.set_epoch(map_.epoch());
  facts.set_ready(serving_);
  facts.set_message(!why_not_.empty() || defects_ == 0
                        ? why_not_
                        : std::to_string(defects_) +
                              " defects were found in the memory that it took up; its log names them");
  auto& node = *facts.mutable_memory_node();
  const v1alpha1::MemoryNodeEntry own = entry();
  node.set_endpoint(own.endpoint());
  node.set_memory_bytes(own.memory_bytes());
  protocol_.describe(geometry_, node);
  if (own.has_lock_region()) *node.mutable_lock_region() = own.lock_region();
  if (geometry_.shape().most_tables > 1) node.set_even_tables(static_cast<std::uint32_t>(even_tables()));
  node.set_move_finished(move_finished());
  node.set_memory_fresh(fresh_);
  node.set_recorded_epoch(record_.epoch);
  if (newest_map().epoch() != 0) *node.mutable_map() = newest_map();
  node.set_heap_bytes(heap_bytes);
  const std::vector<v1alpha1::DeadClient> left = dead();
  node.set_dead_clients(left.size());
  node.set_quarantined_rows(quarantined_rows_);
  for (std::size_t i = 0; i < std::min<std::size_t>(left.size(), kMaxDeadTold); ++i) *node.add_dead() = left[i];
  node.mutable_closed()->Add(registry_->closed().begin(), registry_->closed().end());

  bool changed = false;
  {
    const std::scoped_lock lock(mutex_);
    const auto& before = facts_.memory_node();
    const auto coarse = [](std::uint64_t from, std::uint64_t to, std::uint64_t scale) {
      return moved(from, to, scale) ? to : from;
    };
    node.set_sessions(coarse(before.sessions(), stats.sessions, geometry_.max_sessions));
    // A percent of the keys, not of the room for them: long values fill a node with few of them, and these tell how far
    // a drain has come. Few keys go by tens, as each that comes or goes would be news.
    node.set_keys(coarse(before.keys(), keys_, std::max({before.keys(), keys_, std::uint64_t{1000}})));
    node.set_heap_bytes_used(coarse(before.heap_bytes_used(), heap_used(), heap_bytes));
    changed = facts.SerializeAsString() != facts_.SerializeAsString();
    facts_ = std::move(facts);
    stats_ = stats;
  }
  if (changed && options_.on_change) options_.on_change();
}

v1alpha1::Facts MemoryNode::facts() const {
  const std::scoped_lock lock(mutex_);
  return facts_;
}

MemoryNode::Stats MemoryNode::stats() const {
  const std::scoped_lock lock(mutex_);
  return stats_;
}

}  // namespace farpool::node
