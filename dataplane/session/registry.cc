// SPDX-License-Identifier: Apache-2.0
#include "session/registry.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fabric/words.h"
#include "layout/lease.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"
#include "session/handshake.h"

namespace farpool::session {

using layout::OperationSlot;
using v1alpha1::SessionReply;

namespace {

// Says whether a certificate of that name speaks for a client: for itself, a pod of its Deployment, or a thread.
bool under(std::string_view certificate, std::string_view client) {
  return client.starts_with(certificate) && (client.size() == certificate.size() || client[certificate.size()] == '-' ||
                                             client[certificate.size()] == '/');
}

// A process names its threads behind a slash.
std::string_view process_of(std::string_view client) { return client.substr(0, client.find('/')); }

}  // namespace

Registry::Registry(Config config, std::vector<RegionSpan> regions, fabric::Responder& responder,
                   SessionObserver& observer)
    : config_(std::move(config)),
      regions_(std::move(regions)),
      responder_(responder),
      observer_(observer),
      era_since_(responder.now()),
      permits_{static_cast<double>(config_.opens_per_second), responder.now()} {
  tell_eras();
  FARPOOL_CHECK(config_.node_incarnation != 0 && config_.max_sessions > 0 && config_.slots_per_session > 0);
  for (const RegionSpan& region : regions_) {
    FARPOOL_CHECK(region.id != layout::kSlots || region.bytes >= std::uint64_t{config_.max_sessions} *
                                                                     config_.slots_per_session * sizeof(OperationSlot));
  }
  for (; next_group_ < std::min(config_.places, config_.max_sessions); ++next_group_) {
    if (busy_slots(next_group_) == 0) {
      free_groups_.insert(next_group_);
    } else {
      dead_.push_back({.group = next_group_, .name = "of an earlier life of this memory node"});
    }
  }
}

Registry::~Registry() = default;

// Returns the interval of ticks. Eras advance with ticks, and freed memory waits for eras: ticks come often enough that
// little memory waits, and seldom enough to cost the CPU little.
Nanos Registry::tick_interval() const {
  return std::clamp(config_.lease / 20, base::kMillisecond, 250 * base::kMillisecond);
}

void Registry::serve(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret) {
  map_ = map;
  pool_secret_ = pool_secret;
  serving_ = true;
  not_serving_why_.clear();
}

void Registry::refuse(const v1alpha1::ShardMap* map, std::string why) {
  if (map != nullptr) map_ = *map;
  serving_ = false;
  not_serving_why_ = std::move(why);
  std::vector<std::uint64_t> ids;
  for (const auto& [id, entry] : sessions_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());  // the same order in every run
  for (const std::uint64_t id : ids) {
    if (auto found = sessions_.find(id); found != sessions_.end()) cut(found->second, false, not_serving_why_);
  }
}

SessionReply Registry::refusal(SessionReply::Code code, std::string message) const {
  SessionReply reply;
  reply.set_code(code);
  reply.set_message(std::move(message));
  return reply;
}

// Says which role may ask for what. The code that carries out a request checks everything else about it.
SessionReply Registry::admit(const fabric::Peer& peer, const v1alpha1::SessionRequest& request) const {
  if (request.pool_uid() != config_.pool_uid) {
    return refusal(SessionReply::CODE_WRONG_POOL, "this memory node belongs to another pool than the request names");
  }
  if (!peer.authenticated) {
    if (!config_.require_authentication) return refusal(SessionReply::CODE_OK, "");
    return refusal(SessionReply::CODE_FORBIDDEN,
                   "the peer presented no certificate: this session port wants one of the pool");
  }
  if (peer.pool_uid != config_.pool_uid) {
    return refusal(SessionReply::CODE_WRONG_POOL, "the certificate is of another pool");
  }
  // Other roles may only read the map.
  if (peer.role == "client" || (request.has_read_map() && (peer.role == "operator" || peer.role == "node"))) {
    return refusal(SessionReply::CODE_OK, "");
  }
  return refusal(SessionReply::CODE_FORBIDDEN,
                 "a certificate of role '" + peer.role.substr(0, 32) + "' may not do this");
}

void Registry::on_exchange(const fabric::Peer& peer, std::string_view bytes, std::function<void(std::string)> reply) {
  base::Result<v1alpha1::SessionRequest> request = parse_request(bytes);
  if (!request.ok()) {
    ++counters_.refused;
    reply(refusal(SessionReply::CODE_BAD_REQUEST, request.status().message()).SerializeAsString());
    return;
  }
  SessionReply answer = admit(peer, *request);
  if (answer.code() == SessionReply::CODE_OK) {
    if (request->has_close()) return close(peer, request->close(), std::move(reply));
    if (request->has_open()) {
      answer = open(peer, request->open(), agreed_version(*request));
    } else if (map_.epoch() == 0) {
      answer = refusal(SessionReply::CODE_NOT_SERVING, not_serving_why_);
    } else {
      *answer.mutable_map() = map_;
    }
  }
  if (answer.code() != SessionReply::CODE_OK) ++counters_.refused;
  reply(answer.SerializeAsString());
}

std::uint32_t Registry::opens_per_second(const fabric::Peer& peer) const {
  return peer.sessions != 0 ? std::min(peer.sessions, config_.opens_per_second) : config_.opens_per_second;
}

// Peers with a bound have permits of their own, so that no other peer waits for theirs.
bool Registry::take_open_permit(const fabric::Peer& peer) {
  const Nanos now = responder_.now();
  const double rate = opens_per_second(peer);
  Permits& permits =
      peer.sessions != 0 ? bounded_permits_.try_emplace(peer.name, Permits{rate, now}).first->second : permits_;
  permits.left = std::min(rate, permits.left + static_cast<double>(now - permits.at) * 1e-9 * rate);
  permits.at = now;
  if (permits.left < 1) return false;
  permits.left -= 1;
  return true;
}

bool Registry::over_quota(const fabric::Peer& peer, std::uint32_t lanes) const {
  if (peer.sessions == 0) return false;
  std::uint64_t used = lanes;
  for (const auto& [id, entry] : sessions_) used += entry.owner == peer.name ? entry.lanes : 0;
  for (const Dead& dead : dead_) used += dead.owner == peer.name ? 1 : 0;
  return used > peer.sessions;
}

std::optional<std::uint32_t> Registry::take_group() {
  if (!free_groups_.empty()) {
    const std::uint32_t group = *free_groups_.begin();
    free_groups_.erase(free_groups_.begin());
    return group;
  }
  if (next_group_ < config_.max_sessions) return next_group_++;
  return std::nullopt;
}

std::optional<SessionReply> Registry::may_not_open(const fabric::Peer& peer,
                                                   const v1alpha1::OpenSession& request) const {
  if (config_.check_names && peer.authenticated && !under(peer.name, request.client_name())) {
    return refusal(SessionReply::CODE_FORBIDDEN, "the certificate of client " + peer.name +
                                                     " speaks for no client of another name than its own, or one that "
                                                     "begins with that and - or /");
  }
  if (config_.check_names && request.client_process() != 0) {
    for (const auto& [id, entry] : sessions_) {
      if (entry.process != request.client_process() ||
          (entry.owner == peer.name && process_of(entry.name) == process_of(request.client_name()))) {
        continue;
      }
      return refusal(SessionReply::CODE_FORBIDDEN, "another client has sessions here as this process");
    }
  }
  if (!serving_) {
    SessionReply reply = refusal(SessionReply::CODE_NOT_SERVING, not_serving_why_);
    if (map_.epoch() != 0) *reply.mutable_map() = map_;
    return reply;
  }
  if (request.epoch() != map_.epoch()) {
    SessionReply reply =
        refusal(SessionReply::CODE_STALE_EPOCH, "the client follows epoch " + std::to_string(request.epoch()) +
                                                    ", this memory node epoch " + std::to_string(map_.epoch()));
    *reply.mutable_map() = map_;
    return reply;
  }
  if (request.node_incarnation() != config_.node_incarnation) {
    SessionReply reply = refusal(SessionReply::CODE_WRONG_INCARNATION,
                                 "this memory node lives another life than the client asks for: read the map again");
    *reply.mutable_map() = map_;
    return reply;
  }
  if (request.client_process() != 0 && ended_processes_.known.contains(request.client_process())) {
    return refusal(SessionReply::CODE_PROCESS_FENCED,
                   "the operator has had this process fenced, and what it left repaired");
  }
  if (ended_.known.contains(request.client_incarnation())) {
    return refusal(SessionReply::CODE_FENCED, "this client incarnation has ended here: begin a new one");
  }
  if (by_incarnation_.contains(request.client_incarnation())) {
    return refusal(SessionReply::CODE_BAD_REQUEST, "this client incarnation has a session here already");
  }
  return std::nullopt;
}

// The client lost its lane and came back: no verb of its earlier session may still be on its way.
void Registry::cut_previous(const fabric::Peer& peer, const v1alpha1::OpenSession& request) {
  if (const auto previous = by_incarnation_.find(request.previous_incarnation());
      request.previous_incarnation() != 0 && previous != by_incarnation_.end()) {
    Entry& before = sessions_.at(previous->second);
    if (before.name == request.client_name() && before.process == request.client_process() &&
        before.owner == peer.name && before.token == request.previous_token()) {
      cut(before, false, "its client has begun a new incarnation");
    }
  }
}

SessionReply Registry::open(const fabric::Peer& peer, const v1alpha1::OpenSession& request, std::uint32_t version) {
  if (std::optional<SessionReply> refused = may_not_open(peer, request)) return *std::move(refused);
  cut_previous(peer, request);
  if (over_quota(peer, request.lanes())) reclaim();
  if (over_quota(peer, request.lanes())) {
    ++counters_.over_quota;
    return refusal(SessionReply::CODE_OVER_QUOTA,
                   "clients with a certificate of the name " + peer.name + " have all of the " +
                       std::to_string(peer.sessions) +
                       " sessions that they may have at a memory node: end some of them, or ask the pool's owner to "
                       "raise maxSidecars of their namespace in spec.sidecars.namespaces");
  }
  if (!take_open_permit(peer)) {
    return refusal(SessionReply::CODE_TOO_MANY_SESSIONS,
                   "more than " + std::to_string(opens_per_second(peer)) +
                       " sessions a second are being opened: try again in a second");
  }
  if (lanes_ + request.lanes() > config_.max_lanes) {
    return refusal(SessionReply::CODE_TOO_MANY_SESSIONS,
                   "all " + std::to_string(config_.max_lanes) +
                       " lanes are granted: close sessions, or restart the memory node with more "
                       "--max-lanes, which its memory does not depend on");
  }
  std::optional<std::uint32_t> group = take_group();
  if (!group) {
    reclaim();
    group = take_group();
  }
  if (!group) {
    return refusal(SessionReply::CODE_TOO_MANY_SESSIONS,
                   "all " + std::to_string(config_.max_sessions) + " sessions are taken (" +
                       std::to_string(dead_.size()) +
                       " of them by dead clients that left operations half done): run fewer clients or workers. A "
                       "memory node has as many sessions as its memory was formatted for; one with more begins empty");
  }
  return grant_session(peer, request, *group, version);
}

SessionReply Registry::grant_session(const fabric::Peer& peer, const v1alpha1::OpenSession& request,
                                     std::uint32_t group, std::uint32_t version) {
  Entry entry;
  entry.older = version < kProtocolVersion;
  entry.id = next_id_++;
  entry.incarnation = request.client_incarnation();
  entry.process = request.client_process();
  entry.name = request.client_name();
  entry.owner = peer.name;
  entry.group = group;
  entry.lanes = request.lanes();
  entry.lease_end = responder_.now() + config_.lease;
  entry.era = era_;

  SessionReply reply;
  reply.set_code(SessionReply::CODE_OK);
  reply.set_protocol_version(version);
  *reply.mutable_map() = map_;
  v1alpha1::SessionGrant& grant = *reply.mutable_grant();
  grant.set_session_id(entry.id);
  grant.set_node_incarnation(config_.node_incarnation);
  grant.set_lease_ms(static_cast<std::uint32_t>(config_.lease / base::kMillisecond));
  grant.set_tick_ms(static_cast<std::uint32_t>(tick_interval() / base::kMillisecond));
  grant.set_failure_timeout_ms(static_cast<std::uint32_t>(config_.failure_timeout / base::kMillisecond));
  grant.set_slots(config_.slots_per_session);
  grant.set_slots_offset(std::uint64_t{group} * config_.slots_per_session * sizeof(OperationSlot));
  grant.set_pool_secret(secret_bytes(pool_secret_));
  grant.set_table_seed(secret_bytes(config_.table_seed));
  grant.set_era(era_);
  grant.set_max_operations_in_flight(config_.slots_per_session);
  grant.set_calls(config_.service != nullptr);
  for (const RegionSpan& region : regions_) {
    std::uint64_t key = 0;
    while (key == 0) key = responder_.random();
    entry.keys.push_back(key);
    v1alpha1::RegionGrant& to = *grant.add_regions();
    to.set_region(region.id);
    to.set_bytes(region.bytes);
    to.set_key(key);
    to.set_read_only(region.read_only);
  }
  for (std::uint32_t i = 0; i < request.lanes(); ++i) {
    std::array<std::byte, 16> token;
    base::store(token.data(), responder_.random());
    base::store(token.data() + 8, responder_.random());
    tokens_[token] = {entry.id, responder_.now() + config_.lease};
    grant.add_lane_tokens(std::string(base::text_of(token)));
    if (i == 0) entry.token = grant.lane_tokens(0);
  }

  lanes_ += entry.lanes;
  older_ += entry.older ? 1 : 0;
  by_incarnation_[request.client_incarnation()] = entry.id;
  std::erase(closed_, entry.process);
  ++counters_.opened;
  const std::uint64_t id = entry.id;
  const std::string name = entry.name;
  sessions_.emplace(id, std::move(entry));
  tell_eras();
  arm();
  observer_.on_opened(id, request.client_incarnation(), name);
  return reply;
}

std::vector<std::array<std::byte, 16>> Registry::unspent_tokens() const {
  std::vector<std::array<std::byte, 16>> tokens;
  tokens.reserve(tokens_.size());
  for (const auto& [token, grant] : tokens_) tokens.push_back(token);
  return tokens;
}

std::optional<fabric::LaneRights> Registry::on_open_lane(const std::array<std::byte, 16>& token) {
  const auto found = tokens_.find(token);
  if (found == tokens_.end()) return std::nullopt;
  const Token spent = found->second;
  tokens_.erase(found);
  const auto session = sessions_.find(spent.session_id);
  if (responder_.now() >= spent.expires || session == sessions_.end() || session->second.fencing) return std::nullopt;
  fabric::LaneRights rights{.session_id = spent.session_id, .regions = {}, .service = config_.service};
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    rights.regions.push_back({.id = regions_[i].id,
                              .key = session->second.keys[i],
                              .base = regions_[i].base,
                              .bytes = regions_[i].bytes,
                              .read_only = regions_[i].read_only});
  }
  return rights;
}

std::optional<layout::TickReply> Registry::tick(std::uint64_t session_id, const layout::TickRequest& request) {
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end() || found->second.fencing) return std::nullopt;
  Entry& entry = found->second;
  if (request.era > era_) return std::nullopt;  // it claims to have seen an era that never was
  entry.lease_end = responder_.now() + config_.lease;
  if (request.era > entry.era) {
    entry.era = request.era;
    --lagging_;
    if (lagging_ == 0) advance_era();
    tell_eras();
  } else if (lagging_ == 0) {
    advance_era();
  }
  const Nanos now = responder_.now();
  if (request.hurry != 0) hurry_until_ = now + 2 * tick_interval();
  if (request.forget != 0) ++forgets_;
  // A session that knows the pool's time is one of a client that keeps it, and not of a tool.
  if (!live(reclaimer_) && request.clock != 0) reclaimer_ = session_id;
  const std::uint64_t wall = config_.wall ? config_.wall() : static_cast<std::uint64_t>(now);
  return layout::TickReply{.era = era_,
                           .safe_era = safe_era(),
                           .epoch = map_.epoch(),
                           .hurry = now < hurry_until_ ? 1u : 0u,
                           .places = next_group_,
                           .dead = dead_.size(),
                           .forgets = forgets_,
                           .clock = clock_.read(wall, now, request.clock),
                           .reclaims = session_id == reclaimer_ ? 1u : 0u};
}

// Starts the next era when every session has published this one; all lag until they have published the new one.
void Registry::advance_era() {
  ++era_;
  era_since_ = responder_.now();
  lagging_ = sessions_.size();
  tell_eras();
}

void Registry::tell_eras() {
  if (config_.eras == nullptr) return;
  config_.eras->now.store(era_, std::memory_order_release);
  config_.eras->safe.store(safe_era(), std::memory_order_release);
}

bool Registry::live(std::uint64_t session_id) const {
  const auto found = sessions_.find(session_id);
  return found != sessions_.end() && !found->second.fencing;
}

std::uint64_t Registry::incarnation_of(std::uint64_t session_id) const {
  const auto found = sessions_.find(session_id);
  return found != sessions_.end() && !found->second.fencing ? found->second.incarnation : 0;
}

void Registry::close(const fabric::Peer& peer, const v1alpha1::CloseSession& request,
                     std::function<void(std::string)> reply) {
  const auto found = sessions_.find(request.session_id());
  // Session ids are counted, and incarnations are in operation slots: every client can know another's.
  if (found == sessions_.end() || found->second.incarnation != request.client_incarnation() ||
      found->second.owner != peer.name || found->second.token != request.token()) {
    ++counters_.refused;
    reply(refusal(SessionReply::CODE_BAD_REQUEST, "this client incarnation has no such session here")
              .SerializeAsString());
    return;
  }
  found->second.goodbyes.push_back(std::move(reply));
  cut(found->second, true, "closed by the client");
}

void Registry::cut(Entry& entry, bool clean, std::string why) {
  if (entry.fencing) return;
  entry.fencing = true;
  entry.clean = clean;
  entry.why = std::move(why);
  const std::uint64_t id = entry.id;
  std::erase_if(tokens_, [id](const auto& token) { return token.second.session_id == id; });
  responder_.fence(id, [this, id, here = std::weak_ptr<bool>(here_)] {
    if (!here.expired()) fenced(id);
  });
}

std::byte* Registry::region(std::uint32_t id, std::uint64_t& bytes) const {
  for (const RegionSpan& region : regions_) {
    if (region.id != id) continue;
    bytes = region.bytes;
    return region.base;
  }
  bytes = 0;
  return nullptr;
}

// Counts slots that are not idle. When no verb of a session can execute any more, only repairers change its words.
std::uint32_t Registry::busy_slots(std::uint32_t group) const {
  std::uint64_t bytes = 0;
  std::byte* slots = region(layout::kSlots, bytes);
  std::uint32_t busy = 0;
  for (std::uint32_t i = 0; slots != nullptr && i < config_.slots_per_session; ++i) {
    const std::uint64_t index = std::uint64_t{group} * config_.slots_per_session + i;
    std::uint64_t holder = 0;
    fabric::read_words(slots + index * sizeof(OperationSlot) + layout::kSlotHolder.offset,
                       base::mutable_bytes_of(holder));
    busy += holder != 0 ? 1 : 0;
  }
  return busy;
}

void Registry::reclaim() {
  std::erase_if(dead_, [this](const Dead& dead) {
    if (busy_slots(dead.group) > 0) return false;
    free_groups_.insert(dead.group);
    return true;
  });
}

void Registry::Memory::remember(std::uint64_t one, std::size_t most) {
  if (!known.insert(one).second) return;
  if (order.size() < most) {
    order.push_back(one);
    return;
  }
  known.erase(std::exchange(order[next], one));
  next = (next + 1) % order.size();
}

std::optional<layout::FenceReply> Registry::fence(const layout::FenceRequest& request) {
  using layout::FenceReply;
  const bool of_lease = request.of == layout::FenceRequest::kLease;
  std::uint64_t bytes = 0;
  std::byte* words = region(of_lease ? layout::kLeases : layout::kSlots, bytes);
  const std::uint64_t size = of_lease ? 8 : sizeof(OperationSlot);
  if (request.of > layout::FenceRequest::kLease || words == nullptr || request.index >= bytes / size) {
    return std::nullopt;
  }
  words += request.index * size;
  const auto answer = [this](std::uint64_t status) { return FenceReply{.status = status, .places = next_group_}; };

  auto session = sessions_.end();
  std::uint64_t holder = request.holder, says = 0;
  if (of_lease) {
    fabric::read_words(words, base::mutable_bytes_of(says));
    if (says != request.says) return answer(FenceReply::kMoved);
    session = std::find_if(sessions_.begin(), sessions_.end(), [says](const auto& one) {
      return layout::LeaseWord::Session::put(one.first) == layout::LeaseWord::Session::put(says);
    });
  } else {
    if (const auto at = by_incarnation_.find(holder); at != by_incarnation_.end()) session = sessions_.find(at->second);
    fabric::read_words(words + layout::kSlotHolder.offset, base::mutable_bytes_of(holder));
    fabric::read_words(words + layout::kSlotHolder.offset + 8, base::mutable_bytes_of(says));
  }
  if (session == sessions_.end()) return answer(FenceReply::kEnded);
  if (session->second.fencing) return answer(FenceReply::kEnding);
  if (request.ask != 0) return answer(FenceReply::kNoted);
  const std::pair key{request.of, request.index};
  if (holder != request.holder || says != request.says) {
    complaints_.erase(key);
    return answer(FenceReply::kMoved);
  }
  const Nanos now = responder_.now();
  Complaint& complaint = complaints_.try_emplace(key, Complaint{says, now}).first->second;
  if (complaint.says != says) complaint = {says, now};
  if (now - complaint.since < config_.failure_timeout) return answer(FenceReply::kNoted);
  complaints_.erase(key);
  const std::uint64_t id = session->first;
  cut(session->second, false,
      (of_lease ? "repair lease " : "operation slot ") + std::to_string(request.index) +
          " of it stood still for the failure timeout and others waited for it");
  return answer(sessions_.contains(id) ? FenceReply::kEnding : FenceReply::kEnded);
}

std::optional<layout::SwapLeaseReply> Registry::swap_lease(std::uint64_t session_id,
                                                           const layout::SwapLeaseRequest& request) {
  using layout::LeaseWord;
  const RegionSpan* leases = own_leases();
  if (leases == nullptr || request.index >= leases->bytes / 8) return std::nullopt;
  std::byte* at = leases->base + request.index * 8;
  std::uint64_t says = 0;
  fabric::read_words(at, base::mutable_bytes_of(says));
  if (says != request.says) return layout::SwapLeaseReply{.before = says};
  const bool held = LeaseWord::held(says);
  const bool own = LeaseWord::Session::get(says) == LeaseWord::Session::get(session_id);
  const bool can_be =
      request.word == LeaseWord::held_by(says, session_id) || (held && request.word == LeaseWord::released(says));
  if ((held && !own) || !can_be) return std::nullopt;
  fabric::write_words(at, base::bytes_of(request.word));
  return layout::SwapLeaseReply{.before = says};
}

const RegionSpan* Registry::own_leases() const {
  const auto leases = std::find_if(regions_.begin(), regions_.end(), [](const RegionSpan& region) {
    return region.id == layout::kLeases && region.read_only;
  });
  return leases != regions_.end() ? &*leases : nullptr;
}

// No CALL of the session executes any more.
void Registry::release_leases(std::uint64_t session_id) {
  using layout::LeaseWord;
  const RegionSpan* leases = own_leases();
  for (std::uint64_t at = 0; leases != nullptr && at < leases->bytes; at += 8) {
    std::uint64_t says = 0;
    fabric::read_words(leases->base + at, base::mutable_bytes_of(says));
    if (!LeaseWord::held(says) || LeaseWord::Session::get(says) != LeaseWord::Session::get(session_id)) continue;
    fabric::write_words(leases->base + at, base::bytes_of(LeaseWord::released(says)));
  }
}

void Registry::fence_processes(const std::vector<std::uint64_t>& processes,
                               std::function<void(std::uint32_t sessions)> done) {
  const std::set<std::uint64_t> named(processes.begin(), processes.end());
  Farewell farewell;
  for (const std::uint64_t process : named) {
    if (process != 0) ended_processes_.remember(process, config_.remembered_incarnations);
  }
  for (const auto& [id, entry] : sessions_) {
    if (entry.process != 0 && named.contains(entry.process)) farewell.sessions.insert(id);
  }
  farewell.count = static_cast<std::uint32_t>(farewell.sessions.size());
  if (farewell.sessions.empty()) return done(0);
  farewell.done = std::move(done);
  const std::set<std::uint64_t> ids = farewell.sessions;
  farewells_.push_back(std::move(farewell));
  for (const std::uint64_t id : ids) {
    if (const auto found = sessions_.find(id); found != sessions_.end()) {
      cut(found->second, false, "the operator says that its process is gone");
    }
  }
}

void Registry::fenced(std::uint64_t session_id) {
  const auto found = sessions_.find(session_id);
  FARPOOL_CHECK(found != sessions_.end());
  const Entry entry = std::move(found->second);
  sessions_.erase(found);
  by_incarnation_.erase(entry.incarnation);
  ended_.remember(entry.incarnation, config_.remembered_incarnations);
  remember_end(entry);
  older_ -= entry.older ? 1 : 0;
  lanes_ -= entry.lanes;
  if (entry.era < era_) --lagging_;
  if (lagging_ == 0) advance_era();
  tell_eras();

  release_leases(session_id);
  // Slots that name what was held stay until they are repaired; idle slots serve the next session.
  const bool holds = busy_slots(entry.group) > 0;
  if (holds) {
    dead_.push_back({.group = entry.group,
                     .incarnation = entry.incarnation,
                     .process = entry.process,
                     .name = entry.name,
                     .owner = entry.owner});
  } else {
    free_groups_.insert(entry.group);
  }
  ++(entry.clean ? counters_.closed : counters_.fenced);
  SessionReply reply;
  reply.set_code(SessionReply::CODE_OK);
  for (const auto& goodbye : entry.goodbyes) goodbye(reply.SerializeAsString());
  observer_.on_ended({.session_id = entry.id,
                      .client_incarnation = entry.incarnation,
                      .client_process = entry.process,
                      .client_name = entry.name,
                      .clean = entry.clean,
                      .holds = holds,
                      .why = entry.why});
  std::vector<Farewell> over;
  std::erase_if(farewells_, [&](Farewell& farewell) {
    farewell.sessions.erase(session_id);
    if (!farewell.sessions.empty()) return false;
    over.push_back(std::move(farewell));
    return true;
  });
  for (const Farewell& farewell : over) farewell.done(farewell.count);
}

// Notes whether a process closed the last of its sessions. If another one was fenced before, that says nothing about
// the end of the process: its client came back.
void Registry::remember_end(const Entry& entry) {
  if (entry.process == 0) return;
  std::erase(closed_, entry.process);
  const bool others = std::any_of(sessions_.begin(), sessions_.end(),
                                  [&entry](const auto& one) { return one.second.process == entry.process; });
  if (!entry.clean || others) return;
  closed_.push_back(entry.process);
  if (closed_.size() > config_.remembered_closed) closed_.pop_front();
}

void Registry::arm() {
  if (armed_) return;
  armed_ = true;
  responder_.after(std::max(config_.lease / 8, base::kMillisecond), [this, here = std::weak_ptr<bool>(here_)] {
    if (here.expired()) return;
    armed_ = false;
    sweep();
  });
}

void Registry::sweep() {
  const Nanos now = responder_.now();
  std::erase_if(tokens_, [now](const auto& token) { return now >= token.second.expires; });
  std::vector<std::uint64_t> ids;
  for (const auto& [id, entry] : sessions_) {
    if (!entry.fencing && (now >= entry.lease_end || (entry.era < era_ && now - era_since_ > config_.era_patience))) {
      ids.push_back(id);
    }
  }
  std::sort(ids.begin(), ids.end());
  for (const std::uint64_t id : ids) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) continue;
    Entry& entry = found->second;
    cut(entry, false,
        now >= entry.lease_end ? "its lease ran out without a tick" : "its operations held an era back for too long");
  }
  std::erase_if(complaints_, [&](const auto& one) { return now - one.second.since > 4 * config_.failure_timeout; });
  reclaim();
  if (!sessions_.empty()) arm();
}

}  // namespace farpool::session
