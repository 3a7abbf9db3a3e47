// SPDX-License-Identifier: Apache-2.0
#include "sim/world.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/marks.h"
#include "layout/directory.h"
#include "layout/lease.h"
#include "layout/operation_slot.h"
#include "node/memory_node.h"
#include "protocols/protocols.h"
#include "sim/dialect.h"

namespace farpool::sim {
namespace {

constexpr const char* kPool = "pool-of-the-simulation";

[[noreturn]] void stop(const std::string& what) {
  std::fprintf(stderr, "the simulation cannot go on: %s\n", what.c_str());
  std::abort();
}

fabric::Peer peer_named(const std::string& name) {
  return {.pool_uid = kPool, .role = "client", .name = name, .authenticated = true};
}

// Marks that a client was ended while it lived; its callers learn the outcome of their calls.
void mark_end(const base::Status& status) {
  if (status.ok()) {
    FARPOOL_MARK(sim_ended_while_alive_done);
  } else if (status.code() == base::Code::unknown_outcome) {
    FARPOOL_MARK(sim_ended_while_alive_unknown);
  } else {
    FARPOOL_MARK(sim_ended_while_alive_not_done);
  }
}

class AddOne final : public index::Editor {
 public:
  index::Edit edit(std::optional<std::string_view> value) override {
    sum = std::to_string((value ? std::stoll(std::string(*value)) : 0) + 1);
    return {.kind = index::Edit::Kind::put, .value = sum};
  }
  std::string sum;
};

}  // namespace

// Page-aligned and zeroed; untouched pages cost nothing, and most worlds touch few.
struct World::Memory {
  explicit Memory(std::uint64_t bytes)
      : data(static_cast<std::byte*>(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
        bytes(bytes) {
    FARPOOL_CHECK(data != MAP_FAILED);
  }
  ~Memory() { munmap(data, bytes); }
  Memory(const Memory&) = delete;
  std::byte* data;
  std::uint64_t bytes;
};

World::World(WorldOptions options)
    : options_(options),
      memory_(std::make_unique<Memory>(options.geometry.memory_bytes)),
      memory_span_(memory_->data, memory_->bytes),
      network_(options.wire),
      responder_(network_.add_node(endpoint_)) {
  if (options.device_locks) responder_.set_device_bytes(options.geometry.memory_bytes);
  serve();
  if (node_ == nullptr) stop("the memory could not be formatted");
}

void World::serve() {
  auto node = node::MemoryNode::create(
      {.name = "node-0",
       .pool_uid = kPool,
       .endpoint = endpoint_,
       .version = "simulated",
       .geometry = options_.geometry,
       .initial_tables = options_.initial_tables,
       .lease = options_.lease,
       .failure_timeout = options_.failure_timeout,
       .max_lanes = static_cast<std::uint32_t>(options_.geometry.max_sessions),
       .opens_per_second = 100000,
       .locks = options_.device_locks ? node::LockPlacement::device_required : node::LockPlacement::host},
      memory_span_, responder_);
  if (!node) {
    std::fprintf(stderr, "the memory cannot be taken up: %s\n", node.status().message().c_str());
    return;
  }
  node_ = std::move(*node);
  geometry_ = node_->geometry();
  const layout::Span& locks = geometry_.at(layout::kLocks);
  const base::Bytes first = memory_span_.subspan(locks.offset, locks.bytes);
  first_locks_.assign(first.begin(), first.end());
  responder_.serve(*node_);
  const auto published = node_->stand_alone();
  if (published.verdict != node::MemoryNode::Verdict::adopted) stop(published.message);
}

base::Bytes World::memory() const {
  const base::Bytes words = responder_.device_words();
  if (!words.empty())
    std::memcpy(memory_span_.data() + geometry_.at(layout::kLocks).offset, words.data(), words.size());
  return memory_span_;
}

bool World::restart(bool keeps_memory) {
  responder_.stop();
  node_.reset();
  if (options_.device_locks) {
    std::memcpy(memory_span_.data() + geometry_.at(layout::kLocks).offset, first_locks_.data(), first_locks_.size());
  }
  if (!keeps_memory) {
    memory_ = std::make_unique<Memory>(options_.geometry.memory_bytes);
    memory_span_ = {memory_->data, memory_->bytes};
    history_ = History();
    ++lost_;
  }
  serve();
  return node_ != nullptr;
}

World::~World() {
  network_.options().lose_reply = 0;
  network_.options().lose_exchange = 0;
  for (auto& client : clients_) {
    if (client->crashed()) {
      fabric::sim::bury(client->body_);
    } else if (!client->closed_) {
      disconnect(*client);
    }
  }
}

void World::revoke(Client& client) {
  if (client.connected()) responder_.fence(client.session_id(), [] {});
}

Client& World::add(const std::string& name) {
  clients_.push_back(std::make_unique<Client>());
  Client& client = *clients_.back();
  client.name_ = name;
  client.port_ = &network_.add_client(peer_named(name));
  return client;
}

Client& World::connect(const std::string& name) {
  Client& client = add(name);
  if (!run(client, open(client))) stop("client " + name + " did not connect in time");
  if (!client.connected()) stop("client " + name + " could not connect: " + client.body_->status.message());
  return client;
}

task::Task<void> World::open(Client& client) {
  Client::Body& body = *client.body_;
  fabric::Port& port = *client.port_;
  auto session = co_await session::Session::open(port, {.endpoint = endpoint_,
                                                        .pool_uid = kPool,
                                                        .client_name = client.name_,
                                                        .epoch = node_->facts().epoch(),
                                                        .node_incarnation = node_->incarnation(),
                                                        .deadline = port.now() + 10 * base::kSecond});
  if (!session) {
    body.status = session.status();
    co_return;
  }
  body.session = std::move(*session);
  fabric::Cost cost;
  const auto superblock = co_await index::read_superblock(*body.session, port.now() + 10 * base::kSecond, cost);
  if (!superblock) {
    body.status = superblock.status();
    co_return;
  }
  const index::Protocol& protocol = protocols::of(superblock->geometry.protocol);
  body.table = protocol.open(*body.session, superblock->geometry, options_.table_id);
  client.incarnation_ = body.session->grant().client_incarnation;
  client.slots_offset_ = body.session->grant().slots_offset;
  client.session_id_ = body.session->grant().session_id;
  table_seed_ = body.session->grant().table_seed;
  pool_secret_ = body.session->grant().pool_secret;
}

task::Task<void> World::close(Client& client) {
  Client::Body& body = *client.body_;
  const Nanos deadline = client.port_->now() + 10 * base::kSecond;
  if (body.table != nullptr && body.session->alive()) co_await body.table->release(deadline);
  if (body.session != nullptr) co_await body.session->close(deadline);
}

void World::disconnect(Client& client) {
  FARPOOL_CHECK(!client.crashed() && !client.closed_);
  client.ended_ = client.ended();
  if (!run(client, close(client))) stop("client " + client.name_ + " did not say goodbye in time");
  client.closed_ = true;
  client.body_->table.reset();
  client.body_->session.reset();
}

void World::spawn(Client& client, task::Task<void> task) { client.body_->scope.spawn(std::move(task)); }

bool World::settle(Client& client, Nanos within) {
  return run_until([&client] { return client.crashed() || client.body_->scope.running() == 0; }, within);
}

bool World::run(Client& client, task::Task<void> task, Nanos within) {
  spawn(client, std::move(task));
  return settle(client, within);
}

bool World::run_until(const std::function<bool()>& done, Nanos within) {
  return network_.run_until(done, network_.now() + within);
}

bool World::quiesce(Nanos within) {
  const Nanos next_turn = network_.now() + 1;  // a block's free is posted when the turn that unlinked it is over
  return run_until(
      [this, next_turn] {
        if (network_.now() < next_turn) return false;
        for (const auto& client : clients_) {
          if (client->crashed() || !client->connected()) continue;
          if (client->session().lane().pending() > 0) return false;
        }
        return true;
      },
      within);
}

task::Task<void> World::call(Client& client, Call call, Nanos patience) {
  index::Table& table = client.table();
  fabric::Port& port = *client.port_;
  const Nanos deadline = port.now() + patience;
  call.client = client.index();
  call.asked = network_.moment();
  const std::string &key = call.key, &value = call.value;
  const Call::Kind kind = call.kind;
  const std::size_t number = history_.ask(call);
  const std::uint64_t lost = lost_;
  const index::Marks before = table.marks();
  fabric::Cost cost;
  base::Status status;
  std::optional<std::string> found;
  const auto there = [](bool present) { return present ? std::optional<std::string>("there") : std::nullopt; };
  switch (kind) {
    case Call::Kind::get: {
      auto answer = co_await table.lookup(key, deadline, cost);
      status = answer.status();
      if (answer) found = *answer;
      break;
    }
    case Call::Kind::put: {
      const auto answer = co_await table.put(key, value, deadline, cost);
      status = answer.status();
      break;
    }
    case Call::Kind::insert: {
      const auto answer = co_await table.insert(key, value, deadline, cost);
      status = answer.status();
      if (answer) found = there(!*answer);
      break;
    }
    case Call::Kind::update: {
      const auto answer = co_await table.update(key, value, deadline, cost);
      status = answer.status();
      if (answer) found = there(*answer);
      break;
    }
    case Call::Kind::remove: {
      const auto answer = co_await table.remove(key, deadline, cost);
      status = answer.status();
      if (answer) found = there(*answer);
      break;
    }
    case Call::Kind::add: {
      AddOne editor;
      const auto answer = co_await table.modify(key, editor, deadline, cost);
      status = answer.status();
      if (answer) found = editor.sum;
      break;
    }
    case Call::Kind::look:
      base::check_failed("a call on one key", __FILE__, __LINE__);
  }
  const bool unknown = status.code() == base::Code::unknown_outcome;
  if (!client.session().alive()) mark_end(status);
  if (status.ok() && table.marks() == before) judge_trips(call, found, cost);
  if (!status.ok()) failures_.emplace_back(client.index(), status);
  if (lost != lost_) co_return;  // it was of a pool that is no more
  if (status.ok()) {
    history_.answer(number, network_.moment(), std::move(found));
  } else if (!unknown) {
    history_.forget(number);  // reads, and writes that did nothing
  }
}

task::Task<void> World::scan(Client& client, std::vector<std::string> keys, ScanRange range, Nanos patience) {
  fabric::Port& port = *client.port_;
  const Nanos deadline = port.now() + patience;
  const std::uint64_t lost = lost_;
  std::vector<std::size_t> numbers;
  for (const std::string& key : keys) {
    numbers.push_back(
        history_.ask({.kind = Call::Kind::look, .client = client.index(), .key = key, .asked = network_.moment()}));
  }
  std::set<std::string> told;
  base::Status status;
  fabric::Cost cost;
  for (std::uint64_t position = range.first; status.ok() && position < range.end;) {
    auto page = co_await client.table().scan(position, range.count, deadline, cost);
    status = page.status();
    if (!status.ok()) break;
    ++pages_;
    for (std::string& key : page->keys) told.insert(std::move(key));
    if (page->next == 0) break;
    if (page->next <= position) {
      status = {base::Code::internal,
                "a scan came from position " + std::to_string(position) + " to " + std::to_string(page->next)};
    }
    position = page->next;
    if (range.rest > 0) co_await port.sleep_for(range.rest);
  }
  if (!client.session().alive()) mark_end(status);
  if (!status.ok()) failures_.emplace_back(client.index(), status);
  if (lost != lost_) co_return;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!status.ok()) {
      history_.forget(numbers[i]);
      continue;
    }
    const bool there = told.erase(keys[i]) > 0;
    history_.answer(numbers[i], network_.moment(), there ? std::optional<std::string>("there") : std::nullopt);
  }
  if (!status.ok()) co_return;
  for (const std::string& key : told) {
    if (history_.of(key).empty()) strays_.push_back("a scan told of " + key + ", which nobody has ever written");
  }
}

void World::judge_trips(const Call& call, const std::optional<std::string>& found, const fabric::Cost& cost) {
  const auto budget = dialect_of(geometry().protocol).trips(geometry(), call, found);
  if (!budget) return;
  ++budgeted_;
  if (cost.trips <= *budget) return;
  over_budget_.push_back(std::string(name_of(call.kind)) + " took " + std::to_string(cost.trips) + " trips and not " +
                         std::to_string(*budget) + ", with nobody in its way");
}

namespace {

std::string name_in_directory(std::uint64_t tables, std::uint64_t offset, std::uint64_t bytes) {
  if (offset == 0) {
    return bytes == 8                                 ? "directory's depth"
           : bytes == layout::directory_bytes(tables) ? "directory"
                                                      : "directory's entries";
  }
  if (offset < layout::record_offset(tables, 0)) {
    return "entry " + std::to_string((offset - layout::entry_offset(0)) / 8);
  }
  if (offset == layout::move_offset(tables)) return "last move";
  const std::uint64_t within = (offset - layout::record_offset(tables, 0)) % layout::kRecordBytes;
  const std::string table = std::to_string((offset - layout::record_offset(tables, 0)) / layout::kRecordBytes);
  if (bytes != 8) return "record of table " + table;
  return (within == 0                         ? "home of table "
          : within == layout::kRecordSplit    ? "split of table "
          : within == layout::kRecordProgress ? "progress of table "
                                              : "owner of table ") +
         table;
}

}  // namespace

std::string name_place(const layout::Geometry& geometry, fabric::Remote at, std::uint64_t bytes) {
  const auto range = [](std::uint64_t first, std::uint64_t count, const std::string& one) {
    if (count <= 1) return one + " " + std::to_string(first);
    return one + "s " + std::to_string(first) + ".." + std::to_string(first + count - 1);
  };
  switch (at.region) {
    case layout::kSuperblock:
      return "superblock";
    case layout::kSlots:
      for (const auto& [part, name] :
           {std::pair{layout::kSlotCounters, "counters"}, std::pair{layout::kSlotClaim, "claim"},
            std::pair{layout::kSlotPlan, "plan"}, std::pair{layout::kSlotHolder, "holder"}}) {
        if (at.offset % sizeof(layout::OperationSlot) == part.offset && bytes == part.bytes) {
          return "slot " + std::to_string(at.offset / sizeof(layout::OperationSlot)) + " " + name;
        }
      }
      return range(at.offset / sizeof(layout::OperationSlot), bytes / sizeof(layout::OperationSlot), "slot");
    case layout::kLeases:
      if (geometry.shape().most_tables > 1 && bytes == 8) {
        const std::uint64_t lease = at.offset / 8;
        if (lease == layout::kDirectoryLease) return "directory's lease";
        return lease == layout::kMoveLease ? "lease for moves" : "lease of table " + std::to_string(lease - 1);
      }
      return range(at.offset / 8, bytes / 8, "lease");
    case layout::kLocks:
      return "lock word " + std::to_string(at.offset / 8);
    case layout::kTable:
      if (at.offset >= geometry.mark_offset(0))
        return range((at.offset - geometry.mark_offset(0)) / 8, bytes / 8, "mark");
      return dialect_of(geometry.protocol).name_row(geometry, at.offset, bytes);
    case layout::kDirectory:
      return name_in_directory(geometry.tables, at.offset, bytes);
    case layout::kHeap: {
      if (geometry.shape().served != nullptr) return "block +" + std::to_string(at.offset);
      const std::uint64_t within = at.offset % geometry.segment_bytes;
      const std::string segment = "segment " + std::to_string(at.offset / geometry.segment_bytes);
      return segment + (bytes == 0 ? " bitmap" : "") + " +" + std::to_string(within);
    }
    default:
      return "region " + std::to_string(at.region) + " +" + std::to_string(at.offset);
  }
}

}  // namespace farpool::sim
