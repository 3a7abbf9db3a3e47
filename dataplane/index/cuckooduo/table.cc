// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "index/cuckooduo/inbox.h"
#include "index/cuckooduo/outbox.h"
#include "index/cuckooduo/protocol.h"
#include "index/cuckooduo/replica.h"
#include "index/cuckooduo/scan.h"
#include "index/operation.h"
#include "index/tally.h"
#include "layout/directory.h"
#include "layout/lease.h"
#include "layout/regions.h"
#include "session/trips.h"
#include "session/wait.h"

namespace farpool::cuckooduo {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using index::Edit;
using index::Editor;
using layout::KvOp;
using layout::KvStatus;
using task::Task;

namespace {

// The vault of a memory node is read within a minute on the slowest wire. What hangs for longer ends the session first.
constexpr Nanos kLongestRebuild = 600 * base::kSecond;

}  // namespace

struct Table::State final : session::Repairable {
  State(session::Session& of, const layout::Geometry& geometry)
      : session(of),
        geometry(geometry),
        site(site_of(geometry, of.grant().table_seed)),
        heap(of, geometry.at(layout::kHeap).bytes, geometry.segment_bytes),
        tally(of),
        owner(of, heap, site),
        inbox(of, owner),
        outbox(of, site, [this] { stand(); }),
        on_trouble([this] { stand(); }),
        replica(of, site, on_trouble),
        repairer(of, *this),
        changed(of.port()) {
    owner.count_with(tally);
  }

  // Makes this client a candidate for the table, unless it is one or owns it. A candidate becomes the owner if nobody
  // else has the lease, or its holder is dead.
  void stand();
  Task<void> hold();

  // Carries the change out if this client owns the table, and asks the owner for it otherwise. Returns whether the key
  // existed. stale: the pair has another version.
  Task<Result<bool>> change(KvOp op, std::string_view key, std::string_view value, std::uint64_t version,
                            Nanos deadline, Cost& cost);
  // Waits a while for what change() needs an owner for. An error: there will be none.
  Task<Status> await_owner(Nanos deadline);
  Task<Result<bool>> modify(std::string_view key, Editor& editor, Nanos deadline, Cost& cost);
  // Makes one attempt by a client that does not own the table. Nothing: another client has changed the key meanwhile.
  Task<Result<std::optional<bool>>> edit(std::string_view key, Editor& editor, Nanos deadline, Cost& cost);
  // Says why the key and value cannot go to the owner, wherever it is.
  Status check_room(std::string_view key, std::size_t value_bytes) const;
  // Returns false if the owner has given the table back meanwhile: nothing was done.
  bool final_answer(const Status& status) const { return status.code() != Code::unavailable || !session.alive(); }

  // Operations of this protocol claim and plan nothing in operation slots.
  Task<Result<std::optional<std::string>>> finish(const layout::OperationSlot&, Nanos, Cost&) override {
    co_return std::optional<std::string>("a plan, and operations of CuckooDuo make none");
  }
  // Returns whether an owner has ended without a goodbye, and nobody else owns the table.
  Task<Result<bool>> is_orphan(Nanos deadline, Cost& cost);

  Nanos now() const { return session.port().now(); }
  Nanos failure_timeout() const { return session.grant().failure_timeout; }

  session::Session& session;
  const layout::Geometry geometry;
  const Site site;
  heap::Heap heap;
  index::Tally tally;
  Owner owner;
  Inbox inbox;
  Outbox outbox;
  const std::function<void()> on_trouble;
  Replica replica;
  session::Repairer repairer;
  index::Marks marks;
  std::uint64_t restless_scans = 0, stale_extents = 0;
  bool standing = false;       // it owns the table, or tries to
  bool heard = false;          // of another owner, since this client began to try
  bool leaving = false;        // it says goodbye
  Status trouble;              // of the last try
  session::WaitQueue changed;  // for `standing`, `leaving`, and the beginning of an ownership
};

Table::Table(session::Session& session, const layout::Geometry& geometry)
    : state_(std::make_unique<State>(session, geometry)) {}
Table::~Table() = default;

// --- Ownership

void Table::State::stand() {
  if (standing || leaving || session.leaving() || !session.alive()) return;
  standing = true;
  session.background().spawn(hold());
}

Task<void> Table::State::hold() {
  // A holder of the lease that has died is fenced within two failure timeouts. Each try is short: this client may leave
  // meanwhile, or hear from an owner.
  const Nanos give_up = now() + 2 * failure_timeout();
  const auto hopeful = [&] { return session.alive() && !leaving && !session.leaving() && !heard && now() < give_up; };
  heard = false;
  do {
    trouble = co_await owner.take(now() + kLongestRebuild, now() + failure_timeout() / 16);
  } while (trouble.code() == Code::timed_out && hopeful());
  if (trouble.ok()) {
    if (owner.owns()) inbox.open();
    changed.wake_all();
    while (session.alive() && !leaving && !session.leaving()) {
      (void)co_await changed.wait(now() + failure_timeout() / 16);
    }
    co_await inbox.close(now() + failure_timeout());
    co_await owner.give_back(now() + failure_timeout());
  }
  standing = false;
  changed.wake_all();
}

Task<Status> Table::State::await_owner(Nanos deadline) {
  const Status before = standing ? Status() : trouble;
  stand();
  if (before.code() == Code::corrupt) co_return before;
  (void)co_await changed.wait(std::min(deadline, now() + failure_timeout() / 32));
  co_return Status();
}

Task<Result<bool>> Table::State::is_orphan(Nanos deadline, Cost& cost) {
  const fabric::Buffer words = session.port().buffer(16);
  const std::uint64_t named = layout::record_offset(site.tables, site.table) + layout::kRecordOwner;
  const std::array chain{Op::read({layout::kLeases, layout::table_lease(site.table) * 8}, words.span().first(8)),
                         Op::read({layout::kDirectory, named}, words.span().subspan(8, 8))};
  const fabric::Outcome outcome = co_await session.post(chain, deadline, cost);
  if (outcome.fate != Fate::done) {
    co_return index::gone(session, Code::unavailable, "it could not be read who owns the table");
  }
  co_return !layout::LeaseWord::held(base::load<std::uint64_t>(words.data())) &&
      base::load<std::uint64_t>(words.data() + 8) != 0;
}

// --- Changes

Status Table::State::check_room(std::string_view key, std::size_t value_bytes) const {
  if (Status status = index::check_sizes(key, value_bytes); !status.ok()) return status;
  const std::uint64_t bytes = kTurnReplyHead + kHandedHead + layout::kv_request_bytes(key.size(), value_bytes);
  const std::uint64_t longest = session.port().caps().call_bytes;
  if (bytes <= longest) return {};
  return {Code::too_large, "a request to the table's owner would have " + std::to_string(bytes) +
                               " bytes, and this wire carries " + std::to_string(longest) + "; nothing was done"};
}

Task<Result<bool>> Table::State::change(KvOp op, std::string_view key, std::string_view value, std::uint64_t version,
                                        Nanos deadline, Cost& cost) {
  if (Status status = check_room(key, value.size()); !status.ok()) co_return status;
  for (;;) {
    if (!session.alive()) co_return index::gone(session, Code::unavailable, "nothing was done");
    if (now() >= deadline) {
      co_return Status(Code::timed_out,
                       "the deadline passed before the table had an owner; nothing was done" +
                           (trouble.ok() ? std::string() : ". The last try to own it failed: " + trouble.message()));
    }
    if (owner.owns()) {
      Wish wish = wish_of(op, value);
      wish.if_version = version;
      Result<bool> existed = co_await owner.change(key, wish, deadline, cost);
      if (final_answer(existed.status())) co_return existed;
      continue;
    }
    const Result<Outbox::Asked> asked = co_await outbox.ask(op, key, value, version, deadline, cost);
    if (!asked.ok()) co_return asked.status();
    heard = heard || asked->status == KvStatus::done || asked->status == KvStatus::version;
    if (asked->status == KvStatus::done) co_return asked->existed;
    if (asked->status == KvStatus::version) {
      co_return Status(Code::stale, "the key's pair has another version; nothing was changed");
    }
    if (asked->status == KvStatus::busy) {
      co_await session::breathe(session, deadline);
    } else if (Status status = co_await await_owner(deadline); !status.ok()) {
      co_return status;
    }
  }
}

Task<Result<bool>> Table::State::modify(std::string_view key, Editor& editor, Nanos deadline, Cost& cost) {
  if (Status status = index::check_sizes(key, 0); !status.ok()) co_return status;
  for (;;) {
    if (now() >= deadline) {
      co_return Status(Code::timed_out, "the deadline passed while other clients changed the key; nothing was done");
    }
    if (owner.owns()) {
      Result<bool> existed = co_await owner.change(key, {.name = "a modify", .editor = &editor}, deadline, cost);
      if (final_answer(existed.status())) co_return existed;
      continue;
    }
    const Result<std::optional<bool>> existed = co_await edit(key, editor, deadline, cost);
    if (!existed.ok()) co_return existed.status();
    if (*existed) co_return **existed;
  }
}

Task<Result<std::optional<bool>>> Table::State::edit(std::string_view key, Editor& editor, Nanos deadline, Cost& cost) {
  std::uint64_t version = 0;
  const Result<std::optional<std::string>> found = co_await replica.lookup(key, deadline, cost, {}, &version);
  if (!found.ok()) co_return found.status();
  const bool exists = found->has_value();
  std::optional<std::string_view> value;
  if (exists) value = editor.wants_value() ? std::string_view(**found) : std::string_view();
  const Edit edit = editor.edit(value);
  if (edit.kind == Edit::Kind::keep || (edit.kind == Edit::Kind::erase && !exists)) co_return exists;
  const KvOp op = edit.kind == Edit::Kind::erase ? KvOp::remove : (exists ? KvOp::update : KvOp::insert);
  const Result<bool> existed = co_await change(op, key, edit.value, exists ? version : 0, deadline, cost);
  if (existed.code() == Code::stale || (existed.ok() && *existed != exists)) co_return std::optional<bool>();
  if (!existed.ok()) co_return existed.status();
  co_return exists;
}

Task<Result<bool>> Table::insert(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  Result<bool> existed = co_await state_->change(KvOp::insert, key, value, 0, deadline, cost);
  if (existed.ok()) existed = !*existed;
  co_return existed;
}
Task<Result<bool>> Table::update(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return state_->change(KvOp::update, key, value, 0, deadline, cost);
}
Task<Result<bool>> Table::remove(std::string_view key, Nanos deadline, Cost& cost) {
  return state_->change(KvOp::remove, key, {}, 0, deadline, cost);
}
Task<Result<bool>> Table::put(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return state_->change(KvOp::put, key, value, 0, deadline, cost);
}
Task<Result<bool>> Table::modify(std::string_view key, Editor& editor, Nanos deadline, Cost& cost) {
  return state_->modify(key, editor, deadline, cost);
}

// --- What changes nothing

Task<Result<std::optional<std::string>>> Table::lookup(std::string_view key, Nanos deadline, Cost& cost,
                                                       std::string room) {
  if (state_->owner.owns()) {
    Result<std::optional<std::string>> found = co_await state_->owner.lookup(key, deadline, cost);
    if (state_->final_answer(found.status())) co_return found;
  }
  co_return co_await state_->replica.lookup(key, deadline, cost, std::move(room));
}

Task<Result<index::Totals>> Table::count(Nanos deadline, Cost& cost) {
  if (Status status = co_await state_->tally.settle(deadline); !status.ok()) co_return status;
  co_return co_await index::count_slots(state_->session, deadline, cost);
}

Task<Result<index::Page>> Table::scan(std::uint64_t position, std::uint64_t count, Nanos deadline, Cost& cost) {
  return cuckooduo::scan({.session = state_->session,
                          .site = state_->site,
                          .on_trouble = state_->on_trouble,
                          .restless = state_->restless_scans,
                          .stale = state_->stale_extents},
                         position, count, deadline, cost);
}
std::uint64_t Table::positions() const { return state_->site.shape.buckets; }

const layout::Geometry& Table::geometry() const { return state_->geometry; }
const index::Marks& Table::marks() const {
  state_->marks.displaced = state_->owner.counts().moved;
  state_->marks.torn_rows = state_->replica.counts().torn;
  state_->marks.changed_misses = state_->replica.counts().changed;
  state_->marks.restless_scans = state_->restless_scans;
  state_->marks.stale_extents = state_->stale_extents;
  return state_->marks;
}

// --- Housekeeping

// Ends what dead clients left, and takes a table over whose owner is dead: what that one had begun is finished then.
Task<Result<index::Swept>> Table::sweep(Nanos deadline, Cost& cost) {
  Result<index::Swept> swept = co_await index::Table::sweep(deadline, cost);
  if (!swept.ok()) co_return swept;
  const Result<bool> orphan = co_await state_->is_orphan(deadline, cost);
  if (!orphan.ok()) co_return orphan.status();
  if (!*orphan) co_return swept;
  state_->stand();
  while (state_->standing && !state_->owner.owns() && state_->now() < deadline) {
    (void)co_await state_->changed.wait(deadline);
  }
  if (state_->owner.owns()) {
    ++swept->repaired;
  } else if (!state_->trouble.ok()) {
    ++swept->left;
    swept->trouble = state_->trouble.message();
  }
  co_return swept;
}

// Only the owner uses the heap.
Task<void> Table::maintain(Nanos deadline) {
  if (state_->owner.owns()) co_await state_->heap.maintain(deadline);
}

Task<void> Table::release(Nanos deadline) {
  state_->leaving = true;
  state_->changed.wake_all();
  while (state_->standing) (void)co_await state_->changed.wait(state_->now() + state_->failure_timeout());
  if (state_->session.alive()) co_await state_->heap.release(deadline);
}

heap::Heap* Table::heap() { return &state_->heap; }
session::Repairer* Table::repairer() { return &state_->repairer; }
bool Table::owns() const { return state_->owner.owns(); }

}  // namespace farpool::cuckooduo
