// SPDX-License-Identifier: Apache-2.0
#include "index/outback/table.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "index/named_edit.h"
#include "index/operation.h"
#include "index/outback/client_state.h"
#include "index/outback/layout.h"
#include "index/outback/relocate.h"

namespace farpool::outback {

using base::Code;
using base::Nanos;
using base::Result;
using fabric::Cost;
using index::Edit;
using index::NamedEdit;
using task::Task;

void Shelf::lock() const {
  while (taken_.exchange(true, std::memory_order_acquire)) {
  }
}

std::shared_ptr<Locator> Shelf::get() const {
  lock();
  std::shared_ptr<Locator> locator = locator_;
  taken_.store(false, std::memory_order_release);
  return locator;
}

void Shelf::put(std::shared_ptr<Locator> locator) {
  lock();
  locator_.swap(locator);
  taken_.store(false, std::memory_order_release);
}

Table::Table(Connections& connections, Options options)
    : state_(std::make_unique<State>(connections, std::move(options))),
      movable_(std::make_unique<Relocation>(*this, *state_)) {}
Table::Table(std::unique_ptr<Connections> connections, Options options)
    : own_(std::move(connections)),
      state_(std::make_unique<State>(*own_, std::move(options))),
      movable_(std::make_unique<Relocation>(*this, *state_)) {}
Table::~Table() = default;

const layout::Geometry& Table::geometry() const { return state_->options.geometry; }
const index::Marks& Table::marks() const { return state_->marks; }
index::Movable* Table::movable() { return movable_.get(); }
const Locator* Table::locator() const { return state_->locator.get(); }
std::uint64_t Table::positions() const {
  if (state_->locator) {
    const LocatorShape& shape = state_->locator->header().shape;
    return shape.table_buckets() * shape.scan_tags();  // as many as the table has now
  }
  const std::uint64_t rows = std::max<std::uint64_t>(state_->options.geometry.rows, 1);
  return (1ull << index::kPositionBits) / rows * rows;
}

Task<base::Status> Table::open(Nanos deadline, Cost& cost) {
  if (base::Status status = co_await state_->ready(deadline, cost); !status.ok()) co_return status;
  co_return co_await state_->attach(deadline, cost);
}

// --- reading

namespace {

using Value = std::optional<std::string>;

// The answer for a key that the reply says is not here.
Result<Value> no_key(const Table::State::Way& way, const Reply& reply) {
  if (base::Status status = Table::State::elsewhere(way, reply); !status.ok()) return status;
  return Value();
}

base::Status late(const std::string& what) { return {Code::timed_out, what + " did not end in time"}; }

Value copied(std::string room, base::Bytes value) {
  room.assign(base::text_of(value));
  return room;
}

// Reads a key where the locator says it is, and if that does not tell, wherever it is in its bucket. The value may use
// the memory of `into`. Sets `version`, if it is not null, to that of a value that is there.
Task<Result<Value>> look(Table::State& state, std::string_view key, Nanos deadline, Cost& cost, std::string into = {},
                         std::uint64_t* version = nullptr) {
  if (base::Status status = index::check_sizes(key, 0); !status.ok()) co_return status;
  const Table::State::Way way = state.way_of(key);
  if (!state.is_ready()) {
    if (base::Status status = co_await state.ready(deadline, cost); !status.ok()) co_return status;
  }
  const Hold hold(state);
  const base::Bytes bytes = base::bytes_of(key);
  fabric::Buffer request, room;
  for (bool make_up = false;;) {
    const std::uint64_t generation = state.locator->header().generation;
    const std::uint64_t hash = hash_of(state.options.secret, state.locator->header().salt, bytes);
    const Spot spot = state.locator->find(hash);
    Request asked{.op = make_up ? Op::find : Op::get, .place = spot.bucket, .generation = generation, .move = way.move};
    if (make_up) {
      asked.key = bytes;
    } else {
      asked.argument = spot.slot;
    }
    const Result<Reply> reply = co_await state.ask(asked, request, room, deadline, cost, spot.seed);
    if (!reply.ok()) co_return reply.status();
    if (reply->status == Status::absent) co_return no_key(way, *reply);
    if (reply->status == Status::stale) {
      make_up = false;
      if (base::Status status = co_await state.renew(generation, deadline, cost); !status.ok()) co_return status;
      continue;
    }
    if (reply->status != Status::done) co_return state.refusal(reply->status);
    const bool elsewhere = (reply->flags & Reply::kElsewhere) != 0;
    const bool empty = (reply->flags & Reply::kEmpty) != 0;
    const bool may_be =
        make_up || (!empty && (elsewhere ? reply->key_bytes == bytes.size() : std::ranges::equal(reply->key, bytes)));
    if (may_be && !elsewhere) {
      if (version != nullptr) *version = reply->version;
      co_return copied(std::move(into), reply->value);
    }
    if (may_be) {
      fabric::Buffer block;
      const auto view = co_await state.read_elsewhere(*reply, block, deadline, cost);
      if (!view.ok()) co_return view.status();
      if (*view && std::ranges::equal((*view)->key, bytes)) {
        if (version != nullptr) *version = (*view)->head.version;
        co_return copied(std::move(into), (*view)->value);
      }
      if (state.port.now() >= deadline) co_return late("a lookup, whose value changes all the time,");
    }
    // The bucket has no such key if this was its slot under the newest seed, and nothing of it is in overflow.
    if (!make_up && !may_be && (reply->flags & kCached) == 0 &&
        slot_of(hash, seed_of(reply->hint).value) == spot.slot) {
      co_return no_key(way, *reply);
    }
    state.marks.make_ups += make_up ? 0 : 1;
    make_up = true;
  }
}

}  // namespace

Task<Result<std::optional<std::string>>> Table::lookup(std::string_view key, Nanos deadline, Cost& cost,
                                                       std::string room) {
  return look(*state_, key, deadline, cost, std::move(room));
}

// --- changing

namespace {

using Changed = Table::Changed;

// A change of one key.
struct Wish {
  Op op = Op::put;
  std::string_view key;
  std::string_view value;
  std::uint64_t argument = 0;
  std::uint64_t version = 0;  // that the entry must have; 0: any
  index::Millis now = 0;      // what has expired by then counts as absent; 0: nothing has
  bool by_mover = false;      // the key comes from another memory node
};

std::uint8_t flags_of(const Wish& wish, bool leaves) {
  const int condition = wish.version != 0 ? Request::kIfVersion : wish.now != 0 ? Request::kNow : 0;
  return static_cast<std::uint8_t>(condition | (leaves ? Request::kLeaves : 0) |
                                   (wish.by_mover ? Request::kByMover : 0));
}

// Returns the text of a change that replies with one.
Task<Result<Changed>> with_text(Table::State& state, const Reply& reply, Changed changed, Nanos deadline, Cost& cost) {
  if ((reply.flags & Reply::kElsewhere) == 0) {
    changed.text = base::text_of(reply.value);
    co_return changed;
  }
  changed.number = 0;  // it says where the text is
  // The line holds the block until its next request.
  fabric::Buffer block;
  const auto view = co_await state.read_elsewhere(reply, block, deadline, cost);
  if (!view.ok()) co_return view.status();
  if (!*view) co_return base::Status(Code::corrupt, "a block that the memory node holds for this client is not whole");
  changed.text = base::text_of((*view)->value);
  co_return changed;
}

// Answers with Changed, or with a bool alone: whether the change took place; of put, whether the key was there.
template <class Answer>
Task<Result<Answer>> carry_out(Table::State& state, Wish wish, Nanos deadline, Cost& cost) {
  if (base::Status status = index::check_sizes(wish.key, wish.value.size()); !status.ok()) co_return status;
  const Table::State::Way way = state.way_of(wish.key);
  std::optional<Line> line = state.free_line();
  while (!line) {
    if (!state.is_attached()) {
      if (base::Status status = co_await state.attach(deadline, cost); !status.ok()) co_return status;
    } else if (!co_await state.line_free.wait(deadline) && state.free_lines.empty()) {
      co_return late("the change of another key, whose request line this one waits for,");
    }
    if (std::optional<Line> next = state.free_line()) line.emplace(std::move(*next));
  }
  std::optional<Hold> hold;
  const base::Bytes key = base::bytes_of(wish.key);
  const std::uint8_t flags = flags_of(wish, way.leaves);
  fabric::Buffer request, room;
  for (int waits = 0;;) {
    hold.emplace(state);
    const std::uint64_t generation = state.locator->header().generation;
    const Spot spot = state.locator->find(hash_of(state.options.secret, state.locator->header().salt, key));
    const Request asked{.op = wish.op,
                        .flags = flags,
                        .place = spot.bucket,
                        .generation = generation,
                        .request_id = line->next(),
                        .version = wish.version != 0 ? wish.version : wish.now,
                        .argument = wish.argument,
                        .move = way.move,
                        .key = key,
                        .value = base::bytes_of(wish.value)};
    const Result<Reply> reply = co_await state.ask(asked, request, room, deadline, cost, spot.seed);
    if (!reply.ok()) co_return reply.status();
    if (is_refusal(reply->status) && reply->status != Status::other_kind) co_return state.refusal(reply->status);
    if (reply->status == Status::stale) {
      if (base::Status status = co_await state.renew(generation, deadline, cost); !status.ok()) co_return status;
      continue;
    }
    if (reply->status == Status::old_map) co_return index::map_is_old(way.move);
    if (reply->status == Status::moved) co_return index::moved_away();
    const bool leaving = reply->status == Status::leaving;
    if (leaving || reply->status == Status::full) {
      if (!leaving && (reply->flags & Reply::kWaits) == 0) {
        co_return base::Status(Code::out_of_memory,
                               "the memory node has no room for the key: delete keys, or add memory");
      }
      if (state.port.now() >= deadline) {
        co_return late(leaving ? "a change of a key that is on its way to another memory node"
                               : "a change, which waits for room,");
      }
      // No era would end while an operation that waits for its end held it.
      hold.reset();
      ++(leaving ? state.marks.move_waits : state.marks.room_waits);
      co_await state.pause(deadline, waits);
      ++waits;
      continue;
    }
    const bool existed = (reply->flags & Reply::kExisted) != 0;
    if constexpr (std::is_same_v<Answer, bool>) {
      co_return wish.op == Op::put ? existed : reply->status == Status::done;
    } else {
      Changed changed{.status = reply->status, .existed = existed, .number = static_cast<std::int64_t>(reply->number)};
      const bool has_text = wish.op == Op::swap || wish.op == Op::take || wish.op == Op::add_float;
      if (!has_text || reply->status != Status::done || (wish.op == Op::swap && !existed)) co_return changed;
      co_return co_await with_text(state, *reply, std::move(changed), deadline, cost);
    }
  }
}

}  // namespace

Task<Result<bool>> add_as_mover(Table::State& state, std::string_view key, std::string_view value, Nanos deadline,
                                Cost& cost) {
  return carry_out<bool>(state, {.op = Op::insert, .key = key, .value = value, .by_mover = true}, deadline, cost);
}

Task<Result<bool>> Table::insert(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return carry_out<bool>(*state_, {.op = Op::insert, .key = key, .value = value}, deadline, cost);
}
Task<Result<bool>> Table::update(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return carry_out<bool>(*state_, {.op = Op::update, .key = key, .value = value}, deadline, cost);
}
Task<Result<bool>> Table::remove(std::string_view key, Nanos deadline, Cost& cost) {
  return carry_out<bool>(*state_, {.op = Op::remove, .key = key}, deadline, cost);
}
Task<Result<bool>> Table::put(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return carry_out<bool>(*state_, {.op = Op::put, .key = key, .value = value}, deadline, cost);
}

Task<Result<Table::Changed>> Table::change(Op op, std::string_view key, std::string_view value, std::uint64_t argument,
                                           Nanos deadline, Cost& cost) {
  FARPOOL_CHECK(changes(op));
  return carry_out<Changed>(*state_, {.op = op, .key = key, .value = value, .argument = argument}, deadline, cost);
}

namespace {

Op op_of(NamedEdit::Name name) {
  using Name = NamedEdit::Name;
  switch (name) {
    case Name::insert:
      return Op::insert;
    case Name::update:
      return Op::update;
    case Name::swap:
      return Op::swap;
    case Name::take:
      return Op::take;
    case Name::remove:
    case Name::expire:
      return Op::remove;
    case Name::add:
      return Op::add;
    case Name::append:
      return Op::append;
    case Name::overlay:
      return Op::overlay;
    case Name::add_float:
      return Op::add_float;
  }
  return Op::put;
}

NamedEdit::Refusal refusal_of(Status status) {
  using Refusal = NamedEdit::Refusal;
  switch (status) {
    case Status::not_integer:
      return Refusal::not_integer;
    case Status::beyond_integer:
      return Refusal::beyond_integer;
    case Status::not_float:
      return Refusal::not_float;
    case Status::not_finite:
      return Refusal::not_finite;
    case Status::beyond_value:
      return Refusal::beyond_value;
    case Status::other_kind:
      return Refusal::other_kind;
    default:
      return Refusal::none;
  }
}

// The memory node carries the edit out.
Task<Result<bool>> modify_by_name(Table::State& state, std::string_view key, NamedEdit& edit, Nanos deadline,
                                  Cost& cost) {
  Wish wish{
      .op = op_of(edit.name()), .key = key, .value = edit.value(), .argument = edit.argument(), .now = edit.now()};
  std::string kept;
  if (wish.op == Op::insert || wish.op == Op::update || wish.op == Op::swap) {
    const index::Stored::Tail tail(edit.value(), edit.expires());
    if (!tail.empty()) {
      kept.reserve(edit.value().size() + tail.bytes().size());
      kept.append(edit.value()).append(tail.bytes());
      wish.value = kept;
    }
  }
  Result<Changed> changed = co_await carry_out<Changed>(state, wish, deadline, cost);
  if (!changed.ok()) co_return changed.status();
  edit.set_outcome({.existed = changed->existed,
                    .refusal = refusal_of(changed->status),
                    .number = changed->number,
                    .text = std::move(changed->text)});
  co_return changed->existed;
}

// A read, and a change on condition that nothing has changed since.
Task<Result<bool>> modify_by_editor(Table::State& state, std::string_view key, index::Editor& editor, Nanos deadline,
                                    Cost& cost) {
  for (;;) {
    std::uint64_t version = 0;
    const Result<Value> value = co_await look(state, key, deadline, cost, {}, &version);
    if (!value.ok()) co_return value.status();
    const bool there = value->has_value();
    const std::string_view shown = there && editor.wants_value() ? std::string_view(**value) : "";
    const Edit edit = editor.edit(there ? std::optional(shown) : std::nullopt);
    if (edit.kind == Edit::Kind::keep || (edit.kind == Edit::Kind::erase && !there)) co_return there;
    Wish wish{.op = Op::insert, .key = key};
    if (edit.kind == Edit::Kind::put) wish.value = edit.value;
    if (there) {
      wish.op = edit.kind == Edit::Kind::put ? Op::update : Op::remove;
      wish.version = version;
    }
    const Result<Changed> changed = co_await carry_out<Changed>(state, wish, deadline, cost);
    if (!changed.ok()) co_return changed.status();
    if (changed->status == Status::done) co_return there;
    if (state.port.now() >= deadline) co_return late("a modify, whose key changes all the time,");
  }
}

}  // namespace

Task<Result<bool>> Table::modify(std::string_view key, index::Editor& editor, Nanos deadline, Cost& cost) {
  if (NamedEdit* const named = editor.named()) return modify_by_name(*state_, key, *named, deadline, cost);
  return modify_by_editor(*state_, key, editor, deadline, cost);
}

// --- the rest

Task<Result<index::Totals>> Table::count(Nanos deadline, Cost& cost) {
  if (base::Status status = co_await state_->ready(deadline, cost); !status.ok()) co_return status;
  fabric::Buffer request, room;
  const Result<Reply> reply = co_await state_->ask({.op = Op::count}, request, room, deadline, cost);
  if (!reply.ok()) co_return reply.status();
  if (reply->status != Status::done) co_return state_->refusal(reply->status);
  co_return index::Totals{.keys = reply->number, .bytes = reply->version};
}

Task<Result<index::Page>> Table::scan(std::uint64_t position, std::uint64_t count, Nanos deadline, Cost& cost) {
  if (base::Status status = co_await state_->ready(deadline, cost); !status.ok()) co_return status;
  const Hold hold(*state_);
  fabric::Buffer request, room;
  for (;;) {
    index::Page page;
    const LocatorHeader& header = state_->locator->header();
    if (position >= header.shape.scan_end()) co_return page;
    const std::uint64_t generation = header.generation;
    // About three keys lie in a bucket.
    const Request asked{.op = Op::scan,
                        .place = position,
                        .generation = generation,
                        .argument = std::max<std::uint64_t>(1, count / 3),
                        .move = state_->move.number};
    const Result<Reply> reply = co_await state_->ask(asked, request, room, deadline, cost);
    if (!reply.ok()) co_return reply.status();
    if (reply->status == Status::stale) {
      if (base::Status status = co_await state_->renew(generation, deadline, cost); !status.ok()) co_return status;
      continue;
    }
    if (reply->status == Status::old_map) co_return index::map_is_old(asked.move);
    if (reply->status != Status::done) co_return state_->refusal(reply->status);
    page.next = reply->number;
    base::Bytes rest = reply->value;
    bool bad = false, again = false;
    for (ScanKey key; !again && next_scan_key(rest, key, bad);) {
      if (key.address == 0) {
        page.add(std::string(base::text_of(key.key)), key.expires);
        continue;
      }
      Result<std::optional<std::string>> named = co_await state_->read_key(key, deadline, cost);
      if (!named.ok()) co_return named.status();
      again = !*named;
      if (*named) page.add(std::move(**named), key.expires);
    }
    if (bad) co_return base::Status(Code::corrupt, "a memory node replied to a scan with bytes that are no keys");
    if (!again) co_return page;
    if (state_->port.now() >= deadline) co_return late("a scan, whose keys change all the time,");
  }
}

Task<void> Table::release(Nanos deadline) {
  Cost cost;
  co_await state_->detach(deadline, cost);
}

}  // namespace farpool::outback
