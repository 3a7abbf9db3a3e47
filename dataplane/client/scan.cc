// SPDX-License-Identifier: Apache-2.0
// Scans: which table comes next, and where in it a scan continues.
#include <algorithm>
#include <utility>

#include "client/cursor.h"
#include "client/links.h"

namespace farpool::client {

using base::Code;
using base::Result;
using base::Status;
using task::Task;

namespace {

Status no_cursor_for(std::uint64_t table) {
  return {Code::internal, "table " + std::to_string(table) +
                              " cannot be scanned: a cursor has room for table numbers up to " +
                              std::to_string(Cursor::Table::kMax)};
}

// A step of a scan asks for at least kFewestKeys, which come with rows that are read anyway, and for up to kManyKeys
// where it finds few. It ends when it has the requested keys, or kMostStepBytes of them, or has asked kMostPages times.
constexpr std::uint64_t kFewestKeys = 64, kManyKeys = 4096;
constexpr std::size_t kMostStepBytes = 1 << 20;
constexpr int kMostPages = 32;

}  // namespace

bool Pool::keys_leave(const v1alpha1::TableEntry& table) const {
  return !link_of_node_[table.node()]->move.leaving.empty();
}

const v1alpha1::TableEntry* Pool::table_from(std::uint64_t id, bool left) const {
  for (const v1alpha1::TableEntry& table : map_->message().tables()) {
    if (table.id() >= id && keys_leave(table) == left) return &table;
  }
  return nullptr;
}

const v1alpha1::TableEntry* Pool::table_at(ScanPlace& place) const {
  const v1alpha1::TableEntry* entry = table_from(place.table, place.pass == kDeparted);
  if (entry == nullptr && place.pass == kDeparted) {
    place = {.pass = kOthers};
    entry = table_from(0, false);
  }
  if (entry != nullptr && entry->id() != place.table) place = {.pass = place.pass, .table = entry->id()};
  return entry;
}

Task<Status> Pool::follow(Nanos deadline) {
  while (!map_) {
    if (closing_ || port_.now() >= deadline) co_return why_not(nullptr);
    (void)co_await changed_.wait(deadline);
  }
  co_return Status();
}

Task<Result<Page>> Pool::scan_from(std::uint64_t cursor, std::uint64_t count, Keys keys, Account& account) {
  Page step{.keys = {}, .next = cursor, .expiries = {}};
  std::size_t bytes = 0;
  for (int pages = 0; pages < kMostPages && step.keys.size() < count && bytes < kMostStepBytes; ++pages) {
    if (Status status = co_await follow(account.deadline); !status.ok()) co_return status;
    account.routed_in = epoch();
    const std::uint64_t move = map_->message().move();
    ScanPlace at = ScanPlace::of(step.next, move);
    const v1alpha1::TableEntry* entry = table_at(at);
    if (entry == nullptr) {
      step.next = 0;
      break;
    }
    Result<Borrowed> bond = co_await borrow(entry->node(), account.deadline);
    if (!bond.ok()) co_return bond.status();
    if (at.table > Cursor::Table::kMax) co_return no_cursor_for(at.table);
    const std::uint64_t wanted =
        std::max(count - step.keys.size(), std::min(kManyKeys, kFewestKeys << std::min(pages, 8)));
    Result<Page> page = co_await bond->table().scan(at.position, wanted, account.deadline, account.cost);
    if (!page.ok()) {
      const bool retry = co_await again(page.status(), *bond, account);
      if (!retry) co_return page.status();
      --pages;
      continue;
    }
    const Millis now = clock();
    auto expiry = page->expiries.begin();
    for (std::size_t i = 0; i < page->keys.size(); ++i) {
      const bool expires = expiry != page->expiries.end() && expiry->key == i;
      if (expires && (expiry++)->at < now && keys == Keys::live) continue;
      bytes += page->keys[i].size();
      step.keys.push_back(std::move(page->keys[i]));
    }
    at.position = page->next;
    step.next = at.cursor(move);
    // Under another move, this page may lack keys that have left for a table that was read before.
    if (page->next != 0 || map_->message().move() != move) continue;
    if (const v1alpha1::TableEntry* following = table_from(at.table + 1, at.pass == kDeparted)) {
      if (following->id() > Cursor::Table::kMax) co_return no_cursor_for(following->id());
      step.next = cursor_of(move, at.pass, following->id(), 0);
    } else if (at.pass == kDeparted) {
      step.next = cursor_of(move, kOthers, 0, 0);
    } else {
      step.next = 0;
      break;
    }
  }
  co_return step;
}

Task<Result<Page>> Pool::scan(std::uint64_t cursor, std::uint64_t count, Keys keys) {
  Account account(*this, Operation::scan);
  Result<Page> page = co_await scan_from(cursor, std::max<std::uint64_t>(count, 1), keys, account);
  account.close(page.code());
  co_return page;
}

// Looks from some position on, and once around.
Task<Result<std::optional<std::string>>> Pool::look_for_any(Account& account) {
  if (Status status = co_await follow(account.deadline); !status.ok()) co_return status;
  const auto tables = static_cast<std::uint64_t>(map_->message().tables_size());
  if (tables == 0) co_return why_not(nullptr);
  const v1alpha1::TableEntry& table = map_->message().tables(static_cast<int>(port_.random() % tables));
  // The map may change during a co_await.
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
    const Result<Page> page = co_await scan_from(cursor, 1, Keys::live, account);
    if (!page.ok()) co_return page.status();
    if (!page->keys.empty()) co_return page->keys[port_.random() % page->keys.size()];
    // Much may have been deleted: a count tells sooner than rows that the pool is empty.
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

}  // namespace farpool::client
