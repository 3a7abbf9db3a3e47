// SPDX-License-Identifier: Apache-2.0
#include "client/pool.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "client/mover.h"
#include "layout/lease.h"
#include "layout/word.h"
#include "map/fetch.h"
#include "protocols/protocols.h"
#include "session/session.h"

namespace farpool::client {

using base::Code;
using base::Result;
using base::Status;
using task::Task;

namespace {

constexpr Nanos kFirstBackoff = 50 * base::kMillisecond;
constexpr Nanos kLongestBackoff = 2 * base::kSecond;
// How often the map is read although nothing says that it has changed.
constexpr Nanos kMapInterval = 15 * base::kSecond;
// How often a link looks at its session.
constexpr Nanos kLook = 100 * base::kMillisecond;

// A cursor of a scan. Clients may hold it as a double, which is exact below 2^53: a cursor never has more bits. Tables
// that keys leave are gone through before the others, and all is gone through again after another move has begun: so a
// key that moves meanwhile is met where it was or where it came.
struct Cursor {
  using Position = layout::Field<0, index::kPositionBits>;  // in the table: no protocol has more
  // Id of the table in the map. The operator gives the lowest one that is free to each of at most 256 memory nodes; a
  // scan refuses a map by hand that has higher ones.
  using Table = layout::Field<35, 10>;
  using Pass = layout::Field<45, 1>;
  // The number of the pool's last move, modulo 127: no scan pauses for 127 moves. 0 stands for no move, so that of all
  // cursors only that of the beginning is 0.
  using Move = layout::Field<46, 7>;
  static constexpr std::uint64_t mark(std::uint64_t move) { return 1 + move % Move::kMax; }
};
static_assert(index::kPositionBits == 35, "the next field begins behind the position");
enum Pass : std::uint64_t { kDeparted, kOthers };
constexpr std::uint64_t cursor_of(std::uint64_t move, Pass pass, std::uint64_t table, std::uint64_t position) {
  return Cursor::Move::put(Cursor::mark(move)) | Cursor::Pass::put(pass) | Cursor::Table::put(table) |
         Cursor::Position::put(position);
}
static_assert(cursor_of(Cursor::Move::kMax - 1, kOthers, Cursor::Table::kMax, Cursor::Position::kMax) ==
                  (1ull << 53) - 1,
              "every cursor is a double");
Status no_cursor_for(std::uint64_t table) {
  return {Code::internal, "table " + std::to_string(table) +
                              " cannot be scanned: a cursor has room for table numbers up to " +
                              std::to_string(Cursor::Table::kMax)};
}
// A step asks a table for no fewer keys: with what it reads beside them, more cost little. Where it finds hardly any it
// asks for more and more. It is over when it has as many keys as were asked for, or so many bytes of them, or has asked
// so many times.
constexpr std::uint64_t kFewestKeys = 64, kManyKeys = 4096;
constexpr std::size_t kMostStepBytes = 1 << 20;
constexpr int kMostPages = 32;

}  // namespace

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::get:
      return "get";
    case Operation::put:
      return "put";
    case Operation::erase:
      return "erase";
    case Operation::modify:
      return "modify";
    case Operation::count:
      return "count";
    case Operation::scan:
      return "scan";
  }
  return "unknown";
}

struct Pool::Bond {
  std::unique_ptr<session::Session> session;
  std::unique_ptr<index::Table> table;
  std::size_t uses = 0;  // operations under way
  // The last move of keys that is known to be finished at the node, and when to look again.
  std::uint64_t moved = 0;
  Nanos move_due = 0;
  std::uint64_t move_lease = 0;  // as it was when another client was at it
  std::string move_trouble;
  // As many tables as the node is known to have in use of those that the map asks for, and when to look again.
  std::uint64_t split_into = 0;
  Nanos split_due = 0;
  std::string split_trouble;
  fabric::Cost repair_cost;  // of what no operation waited for
};

struct Pool::Link {
  std::string name;
  std::string endpoint;
  std::uint64_t incarnation = 0;
  std::uint32_t table = 0;
  bool stopped = false;  // by the map
  bool retired = false;  // no longer in the map
  bool kept = false;     // its keep() runs, and refers to it
  index::Move move;      // of keys between memory nodes, as the map has it
  std::unique_ptr<Bond> bond;
  // The session before, if it did not end by a goodbye: its incarnation, and its first lane token.
  std::uint64_t previous = 0;
  std::array<std::byte, 16> previous_token{};
  Status trouble{Code::unavailable, "no session has been opened yet"};

  bool wanted() const { return !stopped && !retired; }
  // Keys are to move away, and this client does not know that all have.
  bool leaving() const { return !retired && !move.leaving.empty() && (bond == nullptr || bond->moved < move.number); }
};

class Pool::Borrowed {
 public:
  Borrowed(Pool& pool, Bond& bond) : pool_(&pool), bond_(&bond) { ++bond_->uses; }
  Borrowed(Borrowed&& other) noexcept : pool_(other.pool_), bond_(std::exchange(other.bond_, nullptr)) {}
  Borrowed& operator=(Borrowed&&) = delete;
  ~Borrowed() {
    if (bond_ == nullptr || --bond_->uses > 0) return;
    if (pool_->closing_ || !bond_->session->alive()) pool_->links_due_.wake_all();
  }
  session::Session& session() const { return *bond_->session; }
  index::Table& table() const { return *bond_->table; }
  bool alive() const { return bond_->session->alive(); }

 private:
  Pool* pool_;
  Bond* bond_;
};

class Pool::Account {
 public:
  Account(Pool& pool, Operation operation)
      : deadline(pool.port_.now() + pool.options_.operation_deadline),
        pool_(pool),
        begun_(pool.port_.now()),
        counters_(pool.counters_.operations[static_cast<std::size_t>(operation)]) {}

  void retry() { counters_.retries.add(); }
  Status late() {
    close(Code::timed_out);
    return {Code::timed_out, "other operations of this client on the same key took until the deadline"};
  }
  void close(Code code) {
    counters_.outcomes[static_cast<std::size_t>(code)].add();
    counters_.trips.add(cost.trips);
    counters_.chains.add(cost.chains);
    counters_.messages.add(cost.messages);
    counters_.bytes.add(cost.bytes);
    counters_.latencies.record(pool_.port_.now() - begun_);
  }

  const Nanos deadline;
  fabric::Cost cost;
  // Epochs of the attempt under way, and of one whose key had left the node that its part leaves: as long as that epoch
  // is followed, it is at the next.
  std::uint64_t routed_in = 0, left_in = 0;

 private:
  Pool& pool_;
  const Nanos begun_;
  PoolCounters::PerOperation& counters_;
};

Pool::Pool(fabric::Port& port, Options options)
    : port_(port), options_(std::move(options)), gates_(port), changed_(port), refresh_(port), links_due_(port) {}

Pool::~Pool() { FARPOOL_CHECK(scope_.running() == 0); }

void Pool::start() {
  FARPOOL_CHECK(!started_);
  started_ = true;
  scope_.spawn(follow_map());
}

void Pool::set_bootstrap(std::vector<std::string> endpoints) {
  if (endpoints == options_.bootstrap) return;
  options_.bootstrap = std::move(endpoints);
  if (!map_) refresh_.wake_all();
}

Task<void> Pool::close(Nanos deadline) {
  closing_ = true;
  close_deadline_ = deadline;
  changed_.wake_all();
  refresh_.wake_all();
  links_due_.wake_all();
  co_await scope_.join();
}

std::uint64_t Pool::epoch() const { return map_ ? map_->epoch() : 0; }

PoolState Pool::state() const {
  PoolState state;
  if (!map_) {
    state.message = map_trouble_;
    return state;
  }
  state.epoch = map_->epoch();
  std::size_t serving = 0;
  for (const Link* link : link_of_node_) {
    if (link == nullptr) continue;
    const bool open = link->bond != nullptr;
    state.nodes.push_back({link->name, link->endpoint, link->incarnation, link->stopped, open,
                           open ? "" : link->trouble.message(), link->leaving()});
    if (link->stopped) continue;
    ++serving;
    if (!open && state.message.empty()) state.message = why_not(link).message();
  }
  if (serving == 0) state.message = "epoch " + std::to_string(state.epoch) + " has no memory node that serves";
  state.ready = state.message.empty();
  return state;
}

// Operations

Pool::Link* Pool::route(std::string_view key, Account& account) const {
  if (!map_ || !pool_secret_) return nullptr;
  const std::uint64_t hash = map::directory_hash(*pool_secret_, base::bytes_of(key));
  account.routed_in = epoch();
  const v1alpha1::TableEntry* source = account.left_in == epoch() ? nullptr : map_->source_of(hash);
  return link_of_node_[(source != nullptr ? *source : map_->table_of(hash)).node()];
}

Status Pool::why_not(const Link* link) const {
  if (closing_) return {Code::unavailable, "this client of the pool is closing"};
  if (!map_) return {Code::unavailable, map_trouble_};
  if (link == nullptr) {
    // Any session would do. What keeps the first one from opening is as good an answer as any.
    std::string text = "no session with any memory node of epoch " + std::to_string(map_->epoch()) + " could be opened";
    for (const Link* one : link_of_node_) {
      if (one == nullptr || one->stopped) continue;
      text += "; memory node " + one->name + " at " + one->endpoint + ": " + one->trouble.message();
      break;
    }
    return {Code::unavailable, std::move(text)};
  }
  if (link->stopped) {
    return {Code::unavailable, "memory node " + link->name +
                                   " has lost its memory and is stopped by the pool's data policy: a person decides"};
  }
  return {Code::unavailable, "memory node " + link->name + " at " + link->endpoint + ": " + link->trouble.message()};
}

Task<Result<Pool::Borrowed>> Pool::borrow(std::string_view key, Account& account) {
  co_return co_await borrow_by([&] { return route(key, account); }, account.deadline);
}

Task<Result<Pool::Borrowed>> Pool::borrow(std::size_t node, Nanos deadline) {
  co_return co_await borrow_by([&] { return node < link_of_node_.size() ? link_of_node_[node] : nullptr; }, deadline);
}

Task<Result<Pool::Borrowed>> Pool::borrow_by(const std::function<Link*()>& which, Nanos deadline) {
  for (;;) {
    Link* link = which();
    if (link != nullptr && link->bond != nullptr && link->bond->session->alive() && !closing_) {
      co_return Borrowed(*this, *link->bond);
    }
    // A stopped node stays so until a person has acted: nothing to wait for.
    if (closing_ || (link != nullptr && link->stopped) || port_.now() >= deadline) co_return why_not(link);
    if (link != nullptr && link->bond != nullptr) links_due_.wake_all();
    (void)co_await changed_.wait(deadline);
  }
}

Task<bool> Pool::again(const Status& status, const Borrowed& used, Account& account) {
  if (status.code() == Code::moved) {
    account.left_in = account.routed_in;
    co_return true;  // to the node where it is, which a deadline does not forbid
  }
  if (status.code() != Code::unavailable && status.code() != Code::stale) co_return false;
  account.left_in = 0;
  if (closing_ || port_.now() >= account.deadline) co_return false;
  account.retry();
  if (used.alive()) {
    if (status.code() == Code::stale) {
      wanted_epoch_ = std::max(wanted_epoch_, account.routed_in + 1);
      refresh_.wake_all();
    }
    // Refused although the session lives: whatever it is takes a moment.
    co_await port_.sleep_until(std::min(account.deadline, port_.now() + jittered(kFirstBackoff)));
  } else {
    links_due_.wake_all();
  }
  co_return true;
}

Task<Result<std::optional<std::string>>> Pool::get(std::string_view key) {
  Account account(*this, Operation::get);
  for (;;) {
    Result<Borrowed> bond = co_await borrow(key, account);
    if (!bond.ok()) {
      account.close(bond.code());
      co_return bond.status();
    }
    Result<std::optional<std::string>> value = co_await bond->table().lookup(key, account.deadline, account.cost);
    if (!value.ok()) {
      const bool retry = co_await again(value.status(), *bond, account);
      if (retry) continue;
    }
    account.close(value.code());
    co_return value;
  }
}

Task<Status> Pool::put(std::string_view key, std::string_view value) {
  Account account(*this, Operation::put);
  const Gates::Pass pass = co_await gates_.enter(key, account.deadline);
  if (!pass) co_return account.late();
  for (;;) {
    Result<Borrowed> bond = co_await borrow(key, account);
    if (!bond.ok()) {
      account.close(bond.code());
      co_return bond.status();
    }
    const Result<bool> existed = co_await bond->table().put(key, value, account.deadline, account.cost);
    if (!existed.ok()) {
      const bool retry = co_await again(existed.status(), *bond, account);
      if (retry) continue;
    }
    account.close(existed.code());
    co_return existed.status();
  }
}

Task<Result<bool>> Pool::erase(std::string_view key) {
  Account account(*this, Operation::erase);
  const Gates::Pass pass = co_await gates_.enter(key, account.deadline);
  if (!pass) co_return account.late();
  for (;;) {
    Result<Borrowed> bond = co_await borrow(key, account);
    if (!bond.ok()) {
      account.close(bond.code());
      co_return bond.status();
    }
    const Result<bool> existed = co_await bond->table().remove(key, account.deadline, account.cost);
    if (!existed.ok()) {
      const bool retry = co_await again(existed.status(), *bond, account);
      if (retry) continue;
    }
    account.close(existed.code());
    co_return existed;
  }
}

Task<Status> Pool::modify(std::string_view key, Editor& editor) {
  Account account(*this, Operation::modify);
  const Gates::Pass pass = co_await gates_.enter(key, account.deadline);
  if (!pass) co_return account.late();
  for (;;) {
    Result<Borrowed> bond = co_await borrow(key, account);
    if (!bond.ok()) {
      account.close(bond.code());
      co_return bond.status();
    }
    const Result<bool> existed = co_await bond->table().modify(key, editor, account.deadline, account.cost);
    if (!existed.ok()) {
      const bool retry = co_await again(existed.status(), *bond, account);
      if (retry) continue;
    }
    account.close(existed.code());
    co_return existed.status();
  }
}

Task<void> Pool::get_into(std::string_view key, Result<std::optional<std::string>>& into) { into = co_await get(key); }

Task<Result<std::vector<std::optional<std::string>>>> Pool::multi_get(std::vector<std::string_view> keys) {
  std::vector<Result<std::optional<std::string>>> results(
      keys.size(), Result<std::optional<std::string>>(std::optional<std::string>()));
  task::Scope scope;
  for (std::size_t i = 0; i < keys.size(); ++i) scope.spawn(get_into(keys[i], results[i]));
  co_await scope.join();
  std::vector<std::optional<std::string>> values;
  values.reserve(keys.size());
  for (Result<std::optional<std::string>>& result : results) {
    if (!result.ok()) co_return result.status();
    values.push_back(std::move(*result));
  }
  co_return values;
}

Task<Result<std::uint64_t>> Pool::count() {
  Account account(*this, Operation::count);
  Status failure;
  std::uint64_t keys = 0;
  // Another epoch may have other nodes: then all are counted again.
  for (bool whole = false; failure.ok() && !whole;) {
    const std::uint64_t begun_in = epoch();
    keys = 0;
    whole = true;
    for (std::size_t node = 0; whole && failure.ok() && node < std::max<std::size_t>(1, link_of_node_.size()); ++node) {
      if (map_ && node < link_of_node_.size() && link_of_node_[node] == nullptr) continue;  // serves no table
      Result<Borrowed> bond = co_await borrow(node, account.deadline);
      if (!bond.ok()) {
        failure = bond.status();
        break;
      }
      const auto totals = co_await bond->table().count(account.deadline, account.cost);
      if (totals.ok()) {
        keys += totals->keys;
        whole = epoch() == begun_in;
      } else {
        whole = false;
        const bool retry = co_await again(totals.status(), *bond, account);
        if (!retry) failure = totals.status();
      }
    }
  }
  account.close(failure.code());
  if (!failure.ok()) co_return failure;
  co_return keys;
}

bool Pool::keys_leave(const v1alpha1::TableEntry& table) const {
  return !link_of_node_[table.node()]->move.leaving.empty();
}

const v1alpha1::TableEntry* Pool::table_from(std::uint64_t id, bool left) const {
  for (const v1alpha1::TableEntry& table : map_->message().tables()) {
    if (table.id() >= id && keys_leave(table) == left) return &table;
  }
  return nullptr;
}

Task<Status> Pool::follow(Nanos deadline) {
  while (!map_) {
    if (closing_ || port_.now() >= deadline) co_return why_not(nullptr);
    (void)co_await changed_.wait(deadline);
  }
  co_return Status();
}

Task<Result<Page>> Pool::scan_from(std::uint64_t cursor, std::uint64_t count, Account& account) {
  Page step{.keys = {}, .next = cursor};
  std::size_t bytes = 0;
  for (int pages = 0; pages < kMostPages && step.keys.size() < count && bytes < kMostStepBytes; ++pages) {
    if (Status status = co_await follow(account.deadline); !status.ok()) co_return status;
    account.routed_in = epoch();
    const std::uint64_t move = map_->message().move();
    // A number that no cursor of this move can be begins anew.
    if (step.next > cursor_of(move, kOthers, Cursor::Table::kMax, Cursor::Position::kMax) ||
        Cursor::Move::get(step.next) != Cursor::mark(move)) {
      step.next = 0;
    }
    Pass pass = Cursor::Pass::get(step.next) == kOthers ? kOthers : kDeparted;
    std::uint64_t from = Cursor::Table::get(step.next);
    std::uint64_t position = Cursor::Position::get(step.next);
    const v1alpha1::TableEntry* entry = table_from(from, pass == kDeparted);
    if (entry == nullptr && pass == kDeparted) {
      pass = kOthers;
      from = position = 0;
      entry = table_from(from, false);
    }
    if (entry == nullptr) {
      step.next = 0;
      break;
    }
    const std::uint64_t id = entry->id();
    if (id != from) position = 0;
    Result<Borrowed> bond = co_await borrow(entry->node(), account.deadline);
    if (!bond.ok()) co_return bond.status();
    if (id > Cursor::Table::kMax) co_return no_cursor_for(id);
    const std::uint64_t wanted =
        std::max(count - step.keys.size(), std::min(kManyKeys, kFewestKeys << std::min(pages, 8)));
    Result<Page> page = co_await bond->table().scan(position, wanted, account.deadline, account.cost);
    if (!page.ok()) {
      const bool retry = co_await again(page.status(), *bond, account);
      if (!retry) co_return page.status();
      --pages;
      continue;
    }
    for (std::string& key : page->keys) {
      bytes += key.size();
      step.keys.push_back(std::move(key));
    }
    step.next = cursor_of(move, pass, id, page->next);
    // Under another move this page may lack what has left for a table that was gone through.
    if (page->next != 0 || map_->message().move() != move) continue;
    if (const v1alpha1::TableEntry* following = table_from(id + 1, pass == kDeparted)) {
      if (following->id() > Cursor::Table::kMax) co_return no_cursor_for(following->id());
      step.next = cursor_of(move, pass, following->id(), 0);
    } else if (pass == kDeparted) {
      step.next = cursor_of(move, kOthers, 0, 0);
    } else {
      step.next = 0;
      break;
    }
  }
  co_return step;
}

Task<Result<Page>> Pool::scan(std::uint64_t cursor, std::uint64_t count) {
  Account account(*this, Operation::scan);
  Result<Page> page = co_await scan_from(cursor, std::max<std::uint64_t>(count, 1), account);
  account.close(page.code());
  co_return page;
}

// From some position on, and once around.
Task<Result<std::optional<std::string>>> Pool::look_for_any(Account& account) {
  if (Status status = co_await follow(account.deadline); !status.ok()) co_return status;
  const auto tables = static_cast<std::uint64_t>(map_->message().tables_size());
  if (tables == 0) co_return why_not(nullptr);
  const v1alpha1::TableEntry& table = map_->message().tables(static_cast<int>(port_.random() % tables));
  // The map may be another one behind a co_await.
  std::uint64_t begin = cursor_of(map_->message().move(), keys_leave(table) ? kDeparted : kOthers,
                                  std::min(std::uint64_t{table.id()}, Cursor::Table::kMax), 0);
  {
    const Result<Borrowed> bond = co_await borrow(table.node(), account.deadline);
    if (!bond.ok()) co_return bond.status();
    begin |= Cursor::Position::put(port_.random() % bond->table().positions() & Cursor::Position::kMax);
  }
  int ends = 0;
  bool counted = false;
  for (std::uint64_t cursor = begin; ends == 0 || (ends == 1 && cursor < begin);) {
    const Result<Page> page = co_await scan_from(cursor, 1, account);
    if (!page.ok()) co_return page.status();
    if (!page->keys.empty()) co_return page->keys[port_.random() % page->keys.size()];
    // Much may have been deleted: what is counted tells sooner than rows that there is nothing.
    if (!counted) {
      counted = true;
      const Result<std::uint64_t> keys = co_await count();
      if (keys.ok() && *keys == 0) co_return std::nullopt;
    }
    if (page->next <= cursor) ++ends;
    cursor = page->next;
  }
  co_return std::nullopt;
}

Task<Result<std::optional<std::string>>> Pool::any_key() {
  Account account(*this, Operation::scan);
  Result<std::optional<std::string>> key = co_await look_for_any(account);
  account.close(key.code());
  co_return key;
}

Task<std::vector<Pool::Repair>> Pool::repair(Nanos deadline) {
  std::vector<Repair> repairs;
  while (link_of_node_.empty() && !closing_ && port_.now() < deadline) (void)co_await changed_.wait(deadline);
  if (link_of_node_.empty()) repairs.push_back({.trouble = why_not(nullptr).message()});
  for (std::size_t node = 0; node < link_of_node_.size(); ++node) {
    if (link_of_node_[node] == nullptr) continue;  // serves no table
    Repair repair;
    repair.node = link_of_node_[node]->name;
    Result<Borrowed> bond = co_await borrow(node, deadline);
    Status status = bond.status();
    if (bond.ok()) {
      fabric::Cost nobodys;
      const auto swept = co_await bond->table().sweep(deadline, nobodys);
      status = swept.status();
      if (swept.ok()) {
        repair.slots_repaired = swept->repaired;
        repair.slots_left = swept->left;
        repair.trouble = swept->trouble;
      }
    }
    if (!status.ok()) repair.trouble = status.message();
    repairs.push_back(std::move(repair));
  }
  co_return repairs;
}

// Following the pool

Nanos Pool::jittered(Nanos bound) {
  return bound / 2 + static_cast<Nanos>(port_.random() % static_cast<std::uint64_t>(bound));
}

void Pool::log(bool warning, const std::string& line) const {
  if (options_.log) options_.log(warning, line);
}

void Pool::changed() {
  changed_.wake_all();
  if (options_.on_change) options_.on_change(state());
}

Task<void> Pool::follow_map() {
  Nanos backoff = kFirstBackoff;
  while (!closing_) {
    std::vector<std::string> endpoints;
    for (const Link* link : link_of_node_) {
      if (link != nullptr) endpoints.push_back(link->endpoint);
    }
    for (const std::string& endpoint : options_.bootstrap) {
      if (std::find(endpoints.begin(), endpoints.end(), endpoint) == endpoints.end()) endpoints.push_back(endpoint);
    }
    map::Trust trust{.key = options_.map_key.get()};
    Result<map::Map> fetched = co_await map::fetch(port_, endpoints, options_.pool_uid,
                                                   std::max(epoch(), wanted_epoch_), port_.now() + patience(), trust);
    counters_.map_fetches.add();
    if (fetched.code() == Code::stale && wanted_epoch_ > epoch() + 1 && !closing_) {
      // A memory node has told of an epoch that none can show. It may lie: what there is until then counts.
      Result<map::Map> older = co_await map::fetch(port_, std::move(endpoints), options_.pool_uid, epoch() + 1,
                                                   port_.now() + patience(), trust);
      counters_.map_fetches.add();
      if (older.ok()) fetched = std::move(older);
    }
    counters_.forged_maps.add(trust.forged);
    if (closing_) break;
    const bool newer = fetched.ok() && (!map_ || fetched->epoch() > epoch());
    if (newer) {
      adopt(std::move(*fetched));
      map_trouble_.clear();
    } else if (!fetched.ok()) {
      counters_.failed_map_fetches.add();
      if (map_trouble_ != fetched.status().message()) {
        map_trouble_ = fetched.status().message();
        log(true, map_trouble_);
        changed();
      }
    } else {
      map_trouble_.clear();
    }
    const bool whole = map_ && fetched.ok() && state().ready;
    backoff = newer ? kFirstBackoff : std::min(2 * backoff, kLongestBackoff);
    if (whole) {
      backoff = kFirstBackoff;
      (void)co_await refresh_.wait(port_.now() + jittered(kMapInterval));
    } else {
      // Even when somebody asks for it, the map is not read more often than this.
      co_await port_.sleep_for(kFirstBackoff / 2);
      if (!closing_) (void)co_await refresh_.wait(port_.now() + jittered(backoff));
    }
  }
}

void Pool::adopt(map::Map map) {
  log(false, "follows epoch " + std::to_string(map.epoch()) + " of the shard map with " +
                 std::to_string(map.message().nodes_size()) + " memory nodes and " +
                 std::to_string(map.message().tables_size()) + " tables");
  const v1alpha1::ShardMap& message = map.message();
  std::erase_if(links_, [](const std::unique_ptr<Link>& link) { return link->retired && !link->kept; });
  for (const auto& link : links_) link->retired = true;
  link_of_node_.assign(static_cast<std::size_t>(message.nodes_size()), nullptr);
  for (const v1alpha1::TableEntry& table : message.tables()) {
    const v1alpha1::MemoryNodeEntry& node = map.node_of(table);
    const auto same = [&node, &table](const std::unique_ptr<Link>& link) {
      return link->name == node.name() && link->incarnation == node.incarnation() &&
             link->endpoint == node.endpoint() && link->table == table.id();
    };
    auto found = std::find_if(links_.begin(), links_.end(), same);
    if (found == links_.end()) {
      links_.push_back(std::make_unique<Link>());
      found = std::prev(links_.end());
      (*found)->name = node.name();
      (*found)->endpoint = node.endpoint();
      (*found)->incarnation = node.incarnation();
      (*found)->table = table.id();
    }
    Link& link = **found;
    link.retired = false;
    link.stopped = node.state() != v1alpha1::MemoryNodeEntry::STATE_SERVING;
    link_of_node_[table.node()] = &link;
  }
  map_ = std::move(map);
  for (const auto& link : links_) {
    link->move = move_of(*link);
    if (link->bond == nullptr) continue;
    if (index::Movable* movable = link->bond->table->movable()) movable->follow(link->move);
    // Other clients should know by then.
    link->bond->move_due = port_.now() + jittered(link->bond->session->grant().tick);
    link->bond->split_due = link->bond->move_due;
  }
  counters_.epoch.set(map_->epoch());
  for (const auto& link : links_) {
    if (!link->wanted() || link->kept) continue;
    link->kept = true;
    scope_.spawn(keep(*link));
  }
  links_due_.wake_all();
  changed();
}

// Holds a session with a node for as long as it is wanted.
Task<void> Pool::keep(Link& link) {
  Nanos backoff = kFirstBackoff;
  while (!closing_ && link.wanted()) {
    Result<std::unique_ptr<Bond>> bond = co_await bind(link);
    if (bond.ok()) {
      backoff = kFirstBackoff;
      link.bond = std::move(*bond);
      link.trouble = {};
      counters_.sessions.add();
      counters_.sessions_opened.add();
      log(false, "opened session " + std::to_string(link.bond->session->grant().session_id) + " with memory node " +
                     link.name + " at " + link.endpoint);
      changed();
      co_await watch(link, *link.bond);
      std::unique_ptr<Bond> parting = std::move(link.bond);
      if (!parting->session->alive()) {
        counters_.sessions_lost.add();
        link.trouble = parting->session->why();
        link.previous = parting->session->grant().client_incarnation;
        link.previous_token = parting->session->grant().lane.token;
        log(true, "lost the session with memory node " + link.name + ": " + link.trouble.message());
        refresh_.wake_all();
      }
      counters_.sessions.subtract();
      changed();
      co_await part(std::move(parting));
    } else {
      counters_.failed_opens.add();
      if (link.trouble.message() != bond.status().message()) {
        link.trouble = bond.status();
        log(true, "no session with memory node " + link.name + " at " + link.endpoint + ": " + link.trouble.message());
        changed();
      }
      // The node may have begun another life, or follow another epoch.
      refresh_.wake_all();
      co_await pause(link, port_.now() + jittered(backoff));
      backoff = std::min(2 * backoff, kLongestBackoff);
    }
  }
  link.kept = false;
}

Task<Result<std::unique_ptr<Pool::Bond>>> Pool::bind(Link& link) {
  const Nanos deadline = port_.now() + patience();
  Result<std::unique_ptr<session::Session>> session =
      co_await session::Session::open(port_, {.endpoint = link.endpoint,
                                              .pool_uid = options_.pool_uid,
                                              .client_name = options_.client_name,
                                              .epoch = epoch(),
                                              .node_incarnation = link.incarnation,
                                              .client_process = options_.process,
                                              .previous_incarnation = link.previous,
                                              .previous_token = link.previous_token,
                                              .node_name = options_.map_key != nullptr ? link.name : "",
                                              .deadline = deadline});
  if (!session.ok()) co_return session.status();
  auto bond = std::make_unique<Bond>();
  bond->session = std::move(*session);
  failure_timeout_ = std::max(failure_timeout_, bond->session->grant().failure_timeout);
  const base::HashSecret secret = bond->session->grant().pool_secret;
  fabric::Cost cost;
  Result<layout::Superblock> superblock = co_await index::read_superblock(*bond->session, deadline, cost);
  Status status = superblock.status();
  // With one table no key is looked for elsewhere: its node may have begun anew, with a secret of its own.
  if (status.ok() && pool_secret_ && *pool_secret_ != secret && map_->message().tables_size() > 1) {
    status = {
        Code::corrupt,
        "the node grants another hash secret than the pool's other nodes: keys would be looked for in the wrong place"};
  }
  if (!status.ok()) {
    bond->session->end(status);
    co_await bond->session->close(deadline);
    co_return status;
  }
  const index::Protocol& protocol = protocols::of(superblock->geometry.protocol);
  if (status = index::check_wire(protocol.name(), protocol.needs(), port_.caps()); !status.ok()) {
    co_await bond->session->close(deadline);
    co_return status;
  }
  pool_secret_ = secret;
  bond->table = protocol.open(*bond->session, superblock->geometry, link.table);
  if (index::Movable* movable = bond->table->movable()) movable->follow(link.move);
  co_return bond;
}

// Until the session has ended, or is not wanted any more.
Task<void> Pool::watch(Link& link, Bond& bond) {
  const Nanos tick = bond.session->grant().tick;
  const Nanos timeout = bond.session->grant().failure_timeout;
  Nanos maintained = port_.now();
  Nanos repair_due = 0;  // 0: nobody is known to have died
  // Where tables are split, a client that dies may leave a split and no operation slot that says so; so may an earlier
  // life of the memory node.
  const bool splits = bond.table->geometry().tables > 1;
  std::optional<std::uint64_t> deaths;  // up to which nothing is left
  while (bond.session->alive() && !closing_ && link.wanted()) {
    (void)co_await links_due_.wait(port_.now() + std::min(tick, kLook));
    if (bond.session->epoch() > epoch() && bond.session->epoch() > wanted_epoch_) {
      wanted_epoch_ = bond.session->epoch();
      refresh_.wake_all();
    }
    if (!bond.session->alive() || closing_) continue;
    if (!moving_ && link.leaving() && port_.now() >= bond.move_due) {
      moving_ = true;
      scope_.spawn(move_away(link, bond));
    }
    if (port_.now() < maintained + tick) continue;
    co_await bond.table->maintain(port_.now() + tick);
    maintained = port_.now();
    co_await split_ahead(link, bond);
    if (const Status trouble = bond.table->split_trouble(); trouble.message() != bond.split_trouble) {
      bond.split_trouble = trouble.message();
      if (!trouble.ok() && bond.session->alive()) {
        log(true, "a split of a table of memory node " + link.name + " does not go on here: " + bond.split_trouble);
      }
    }
    // What nobody is blocked on is repaired too, by the first client that comes.
    if (bond.session->dead() == 0 && (!splits || deaths == bond.session->deaths())) {
      repair_due = 0;
    } else if (repair_due == 0) {
      repair_due = port_.now() + jittered(2 * timeout);
    } else if (port_.now() >= repair_due) {
      const std::uint64_t deaths_before = bond.session->deaths();
      const auto swept = co_await bond.table->sweep(port_.now() + timeout, bond.repair_cost);
      if (swept.ok() && swept->repaired > 0) {
        log(false, "repaired " + std::to_string(swept->repaired) +
                       " operation slots that ended clients had left on memory node " + link.name);
      }
      if (swept.ok() && swept->splits > 0) {
        log(false, "finished " + std::to_string(swept->splits) +
                       " splits of tables that nobody went on with on memory node " + link.name);
      }
      if (swept.ok() && swept->splitting == 0) deaths = deaths_before;
      if (swept.ok() && !swept->trouble.empty()) {
        log(true, std::string(swept->left > 0 ? "operation slots of ended clients" : "splits of tables") +
                      " are left on memory node " + link.name + ": " + swept->trouble);
      }
      repair_due = port_.now() + jittered(8 * timeout);
    }
    publish_marks();
  }
}

// Each client splits one table after the other, whichever it comes upon, until all have been. A split belongs to the
// holder of a lease, so that clients that choose the same one do no harm.
Task<void> Pool::split_ahead(const Link& link, Bond& bond) {
  const std::uint64_t tables = map_->message().least_tables();
  if (tables <= bond.split_into || port_.now() < bond.split_due) co_return;
  const Nanos timeout = bond.session->grant().failure_timeout;
  const std::uint64_t depth = static_cast<std::uint64_t>(std::bit_width(tables)) - 1;
  const Result<bool> more =
      co_await bond.table->split_ahead(depth, port_.random(), port_.now() + timeout, bond.repair_cost);
  if (more.ok() ? !*more : more.code() == Code::out_of_memory) bond.split_into = tables;
  if (!more.ok() && bond.session->alive()) {
    log(true, "the tables of memory node " + link.name + " are not all split ahead into " + std::to_string(tables) +
                  ": " + more.status().message());
  }
  bond.split_due = port_.now() + jittered(more.ok() ? bond.session->grant().tick : timeout);
}

// What the map says of the pool's latest move, to the table of one of its nodes.
index::Move Pool::move_of(const Link& link) const {
  const v1alpha1::ShardMap& message = map_->message();
  index::Move move{.number = message.move(), .depth = message.directory_depth(), .leaving = {}};
  for (const v1alpha1::Departure& departure : message.departures()) {
    if (departure.from() != link.table) continue;
    move.leaving.resize(std::size_t{1} << move.depth);
    move.leaving[departure.part()] = true;
  }
  return move;
}

// Everybody tries, and one at a time comes to do it: if it dies over it, the next one follows.
Task<void> Pool::move_away(Link& link, Bond& bond) {
  const std::uint64_t number = link.move.number;
  Status status;
  {
    const Borrowed kept(*this, bond);
    const std::uint64_t before = bond.table->marks().moved_away;
    status = co_await try_to_move(link, bond, number);
    const std::uint64_t keys = bond.table->marks().moved_away - before;
    if (keys > 0) {
      log(false, "moved " + std::to_string(keys) + " keys away from memory node " + link.name + " in move " +
                     std::to_string(number));
    }
    if (status.ok()) {
      bond.moved = number;
    } else if (bond.move_trouble != status.message() && status.code() != Code::stale && !closing_) {
      bond.move_trouble = status.message();
      log(true, "move " + std::to_string(number) + " of keys away from memory node " + link.name +
                    " is not finished: " + bond.move_trouble);
    }
    // A target that is full will hardly have room at once.
    const Nanos timeout = bond.session->grant().failure_timeout;
    bond.move_due = port_.now() + jittered(status.code() == Code::out_of_memory ? 16 * timeout : timeout);
  }
  moving_ = false;
  if (status.ok()) changed();
}

Task<Status> Pool::try_to_move(Link& link, Bond& bond, std::uint64_t number) {
  const Nanos deadline = port_.now() + options_.connect_deadline;
  const Result<index::Movable::Standing> standing = co_await bond.table->movable()->standing();
  if (!standing.ok() || standing->finished >= number) co_return standing.status();
  const bool others = layout::LeaseWord::held(standing->lease);
  if (others && standing->lease != std::exchange(bond.move_lease, standing->lease)) {
    co_return Status(Code::stale, "another client is at it");
  }
  std::vector<Borrowed> borrowed;
  std::vector<Mover::End> targets;
  const map::Map map = *map_;
  // In the order of nodes: movers of several sources take the leases of the same targets.
  std::set<std::uint32_t> nodes;
  for (const v1alpha1::Departure& departure : map.message().departures()) {
    if (departure.from() != link.table) continue;
    nodes.insert(map.table(map.message().directory(static_cast<int>(departure.part())))->node());
  }
  std::map<std::uint32_t, std::size_t> of_node;
  for (const std::uint32_t node : nodes) {
    Result<Borrowed> target = co_await borrow(node, deadline);
    if (!target.ok()) co_return target.status();
    if (epoch() != map.epoch()) co_return Status(Code::stale, "another map has come");
    borrowed.push_back(std::move(*target));
    of_node[node] = targets.size();
    targets.push_back({&borrowed.back().session(), &borrowed.back().table()});
  }
  const auto target_of = [&](std::string_view key) {
    return of_node.at(map.table_of(map::directory_hash(*pool_secret_, base::bytes_of(key))).node());
  };
  const auto go_on = [&]() -> Status {
    const bool same = !closing_ && link.move.number == number && link.leaving();
    if (!same) return {Code::unavailable, "this client is closing, or follows another map by now"};
    if (!bond.session->alive()) return bond.session->why();
    for (const Borrowed& target : borrowed) {
      if (!target.alive()) return target.session().why();
    }
    return {};
  };
  if (Status status = go_on(); !status.ok()) co_return status;
  Mover mover({bond.session.get(), bond.table.get()}, targets, target_of, go_on);
  Status status = co_await mover.run(number);
  if (!mover.begun() && status.code() == Code::timed_out) co_return Status(Code::stale, status.message());
  co_return status;
}

Task<void> Pool::part(std::unique_ptr<Bond> bond) {
  // No operation finds the bond any more; those that have it end by their deadlines, at once if the session has ended.
  while (bond->uses > 0) {
    if (port_.now() >= close_deadline_) bond->session->end({Code::unavailable, "this client of the pool has closed"});
    (void)co_await links_due_.wait(port_.now() + kLook);
  }
  const Nanos deadline = std::min(close_deadline_, port_.now() + patience());
  if (bond->session->alive()) co_await bond->table->release(deadline);
  co_await bond->session->close(deadline);
  marks_of_the_past_ += bond->table->marks();
  repairs_of_the_past_ += session::marks_of(*bond->session, bond->table->repairer());
  bond->table.reset();
  bond->session.reset();
}

Task<void> Pool::pause(const Link& link, Nanos until) {
  while (!closing_ && link.wanted() && port_.now() < until) (void)co_await links_due_.wait(until);
}

void Pool::publish_marks() {
  index::Marks marks = marks_of_the_past_;
  session::RepairMarks repairs = repairs_of_the_past_;
  for (const auto& link : links_) {
    if (link->bond == nullptr) continue;
    marks += link->bond->table->marks();
    repairs += session::marks_of(*link->bond->session, link->bond->table->repairer());
  }
  counters_.index.set(marks);
  counters_.repair.set(repairs);
}

}  // namespace farpool::client
