// SPDX-License-Identifier: Apache-2.0
#include "client/pool.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "client/links.h"

namespace farpool::client {

using base::Code;
using base::Result;
using base::Status;
using task::Task;

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
  if (!map_) refresh();
}

Task<void> Pool::close(Nanos deadline) {
  closing_ = true;
  close_deadline_ = deadline;
  changed_.wake_all();
  refresh();
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

std::uint64_t Pool::hash_of(std::string_view key) const {
  return map::directory_hash(*pool_secret_, base::bytes_of(key));
}

void Pool::used(const Account& account) {
  if (policy_.watches()) options_.accesses->touch(account.hash, port_.now(), port_.random());
}

Pool::Link* Pool::route(std::string_view key, Account& account) const {
  if (!map_ || !pool_secret_) return nullptr;
  const std::uint64_t hash = hash_of(key);
  account.hash = hash;
  account.routed_in = epoch();
  const v1alpha1::TableEntry* source = account.left_in == epoch() ? nullptr : map_->source_of(hash);
  return link_of_node_[(source != nullptr ? *source : map_->table_of(hash)).node()];
}

Status Pool::why_not(const Link* link) const {
  if (closing_) return {Code::unavailable, "this client of the pool is closing"};
  if (!map_) return {Code::unavailable, map_trouble_};
  if (link == nullptr) {
    // Any session would do. The reason that keeps the first one from opening is as good an answer as any.
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

std::optional<Pool::Borrowed> Pool::borrow_now(std::string_view key, Account& account) {
  const Link* const link = route(key, account);
  if (link == nullptr || link->bond == nullptr || !link->bond->session->alive() || closing_) return std::nullopt;
  return Borrowed(*this, *link->bond);
}

Task<Status> Pool::borrow(std::string_view key, Account& account, std::optional<Borrowed>& into) {
  Result<Borrowed> borrowed = co_await borrow_by([&] { return route(key, account); }, account.deadline);
  if (borrowed.ok()) {
    into.emplace(std::move(*borrowed));
  } else {
    account.close(borrowed.code());
  }
  co_return borrowed.status();
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
    // A stopped node stays stopped until a person has acted: waiting is useless.
    if (closing_ || (link != nullptr && link->stopped) || port_.now() >= deadline) co_return why_not(link);
    if (link != nullptr && link->bond != nullptr) links_due_.wake_all();
    (void)co_await changed_.wait(deadline);
  }
}

Task<bool> Pool::again(const Status& status, const Borrowed& used, Account& account) {
  if (status.code() == Code::moved) {
    account.left_in = account.routed_in;
    co_return true;  // to the node that has the key; the deadline does not forbid that
  }
  if (status.code() != Code::unavailable && status.code() != Code::stale) co_return false;
  account.left_in = 0;
  if (closing_ || port_.now() >= account.deadline) co_return false;
  account.retry();
  if (used.alive()) {
    if (status.code() == Code::stale) {
      wanted_epoch_ = std::max(wanted_epoch_, account.routed_in + 1);
      refresh();
    }
    // The node refused although the session lives: the cause takes a moment to pass.
    co_await port_.sleep_until(std::min(account.deadline, port_.now() + jittered(kFirstBackoff)));
  } else {
    links_due_.wake_all();
  }
  co_return true;
}

Nanos Pool::jittered(Nanos bound) {
  return bound / 2 + static_cast<Nanos>(port_.random() % static_cast<std::uint64_t>(bound));
}

void Pool::log(bool warning, const std::string& line) const {
  if (options_.log) options_.log(warning, line);
}

void Pool::refresh() {
  refresh_due_ = true;
  refresh_.wake_all();
}

void Pool::changed() {
  changed_.wake_all();
  if (options_.on_change) options_.on_change(state());
}

}  // namespace farpool::client
