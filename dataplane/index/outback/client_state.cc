// SPDX-License-Identifier: Apache-2.0
#include "index/outback/client_state.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "fabric/once.h"
#include "index/operation.h"

namespace farpool::outback {

using base::Code;
using base::Nanos;
using base::Result;
using fabric::Cost;
using fabric::Fate;
using task::Task;

namespace {

constexpr std::size_t kScanRoom = 16 * 1024;
constexpr std::size_t kMostRead = 512 * 1024;  // in one READ
constexpr Nanos kShortPause = 200 * base::kMicrosecond;
constexpr Nanos kLongPause = 20 * base::kMillisecond;  // while a locator is being built
constexpr int kMostDamaged = 10;                       // times that a locator is read that is not whole

base::Status late(const std::string& what) { return {Code::timed_out, what + " did not end in time"}; }
base::Status lost_read(const Connection& connection) {
  return {Code::unavailable, "a READ of the memory node ended with the connection: " + connection.why().message()};
}

}  // namespace

Line::~Line() {
  if (state_ == nullptr) return;
  state_->free_lines.push_back(index_);
  state_->line_free.wake_one();
}

std::uint64_t Line::next() { return fabric::RequestId{index_, ++state_->numbers[index_]}.word(); }

class Table::State::Turn {
 public:
  explicit Turn(State& state) : state_(&state) { state.turn_taken_ = true; }
  Turn(Turn&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Turn& operator=(Turn&&) = delete;
  ~Turn() {
    if (state_ == nullptr) return;
    state_->turn_taken_ = false;
    state_->turn_free_.wake_one();
  }

 private:
  State* state_;
};

Table::State::State(Connections& all_connections, Options all_options)
    : connections(all_connections),
      port(all_connections.port()),
      options(std::move(all_options)),
      line_free(port),
      turn_free_(port) {
  while (token_ == 0) token_ = port.random();
}

Task<Result<Table::State::Turn>> Table::State::take_turn(Nanos deadline) {
  while (turn_taken_) {
    if (!co_await turn_free_.wait(deadline) && turn_taken_) {
      co_return late("another operation's connection to the memory node");
    }
  }
  co_return Turn(*this);
}

Task<void> Table::State::pause(Nanos deadline, int times) {
  const Nanos longest = std::min(kShortPause << std::min(times, 10), kLongPause);
  const Nanos length = 1 + static_cast<Nanos>(port.random() % static_cast<std::uint64_t>(longest));
  co_await port.sleep_until(std::min(deadline, port.now() + length));
}

base::Status Table::State::refusal(Status status) {
  Code code = Code::internal;
  if (status == Status::long_key || status == Status::long_value) code = Code::too_large;
  if (status == Status::damaged) code = Code::corrupt;
  if (status == Status::no_client || status == Status::no_lease) code = Code::unavailable;
  return {code, std::string("the memory node refuses a request: ") + text_of(status)};
}

base::Status Table::State::elsewhere(const Way& way, const Reply& reply) {
  if ((reply.flags & Reply::kOldMap) != 0) return index::map_is_old(way.move);
  if (way.leaves && (reply.flags & Reply::kClosed) != 0) return index::moved_away();
  return {};
}

// --- connection, locator, lines

Task<base::Status> Table::State::connect(Nanos deadline) {
  const Result<Turn> turn = co_await take_turn(deadline);
  if (!turn.ok()) co_return turn.status();
  if (alive()) co_return base::Status();
  Result<std::shared_ptr<Connection>> another = co_await connections.connect(deadline);
  if (!another.ok()) co_return another.status();
  if (connection) ++marks.reconnections;
  connection = std::move(*another);
  ++connects_;
  co_return base::Status();
}

Task<base::Status> Table::State::ready(Nanos deadline, Cost& cost) {
  while (!alive() || !locator) {
    if (port.now() >= deadline) co_return late("the connection to a memory node");
    base::Status status;
    if (!alive()) {
      status = co_await connect(deadline);
    } else {
      status = co_await renew(0, deadline, cost);
    }
    if (!status.ok()) co_return status;
  }
  co_return base::Status();
}

Task<base::Status> Table::State::read(std::uint32_t region, std::uint64_t offset, base::MutableBytes into,
                                      Nanos deadline, Cost& cost) {
  const std::shared_ptr<Connection> held = connection;
  const std::size_t most = std::min<std::uint64_t>(kMostRead, port.caps().max_verb_bytes);
  fabric::Buffer buffer = port.buffer(std::min(most, into.size()));
  for (std::size_t at = 0; at < into.size();) {
    const std::size_t bytes = std::min(most, into.size() - at);
    const std::array ops{fabric::Op::read({region, offset + at}, buffer.first(bytes))};
    const fabric::Outcome outcome = co_await held->post(ops, patience(deadline, port.now()), cost);
    if (outcome.fate != Fate::done) {
      co_return lost_read(*held);
    }
    std::copy_n(buffer.data(), bytes, into.data() + at);
    at += bytes;
  }
  co_return base::Status();
}

// Reads the headers of both places in one trip. corrupt: none of them is one.
Task<Result<Table::State::Place>> Table::State::newest_place(Nanos deadline, Cost& cost) {
  const std::shared_ptr<Connection> held = connection;
  std::vector<Place> places{{.region = options.locator_region, .room = held->region_bytes(options.locator_region)}};
  if (options.second_locator_at) {
    const std::uint64_t all = held->region_bytes(options.blocks_region), at = *options.second_locator_at;
    places.push_back({.region = options.blocks_region, .offset = at, .room = all - std::min(at, all)});
  }
  fabric::Buffer buffer = port.buffer(places.size() * LocatorHeader::kBytes);
  index::Chain chain;
  for (std::size_t i = 0; i < places.size(); ++i) {
    chain.add(fabric::Op::read({places[i].region, places[i].offset},
                               buffer.span().subspan(i * LocatorHeader::kBytes, LocatorHeader::kBytes)));
  }
  const fabric::Outcome outcome = co_await held->post(chain.ops(), patience(deadline, port.now()), cost);
  if (outcome.fate != Fate::done) co_return lost_read(*held);
  std::optional<Place> newest;
  base::Status wrong;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const base::Bytes bytes = buffer.span().subspan(i * LocatorHeader::kBytes, LocatorHeader::kBytes);
    const auto header = LocatorHeader::parse(bytes);
    if (!header.ok() && wrong.ok()) wrong = header.status();
    if (!header.ok() || (newest && header->generation <= newest->header.generation)) continue;
    newest = places[i];
    newest->header = *header;
    std::memcpy(newest->words.data(), bytes.data(), bytes.size());
  }
  if (!newest) co_return wrong;
  co_return *newest;
}

// Reads header, arrays, and header again. False: there is no newer one yet. corrupt: it is not whole, perhaps because it
// is being written.
Task<Result<bool>> Table::State::fetch(std::uint64_t generation, Nanos deadline, Cost& cost) {
  const Result<Place> place = co_await newest_place(deadline, cost);
  if (!place.ok()) co_return place.status();
  const LocatorHeader& header = place->header;
  if (header.generation == generation) co_return false;
  if (header.bytes() > place->room) {
    co_return base::Status(Code::corrupt, "a locator of " + std::to_string(header.bytes()) +
                                              " bytes is said to lie in a region of " + std::to_string(place->room));
  }
  std::vector<std::uint64_t> all(header.bytes() / 8);
  std::array<std::uint64_t, LocatorHeader::kWords> again{};
  const auto bytes = std::as_writable_bytes(std::span(all));
  base::Status status = co_await read(place->region, place->offset, bytes, deadline, cost);
  if (status.ok()) {
    status = co_await read(place->region, place->offset, std::as_writable_bytes(std::span(again)), deadline, cost);
  }
  if (!status.ok()) co_return status;
  if (again != place->words) co_return base::Status(Code::corrupt, "a locator has changed while it was read");
  Result<Locator> parsed = Locator::parse(std::move(all));
  if (!parsed.ok()) co_return parsed.status();
  locator = std::make_shared<Locator>(std::move(*parsed));
  if (options.shelf) options.shelf->put(locator);
  ++marks.locators_read;
  co_return true;
}

Task<base::Status> Table::State::renew(std::uint64_t generation, Nanos deadline, Cost& cost) {
  int damaged = 0;
  for (int times = 0;; ++times) {
    if (!alive()) {
      if (base::Status status = co_await connect(deadline); !status.ok()) co_return status;
    }
    {
      const Result<Turn> turn = co_await take_turn(deadline);
      if (!turn.ok()) co_return turn.status();
      if (locator && locator->header().generation != generation) co_return base::Status();
      // Another thread has perhaps read it.
      const std::shared_ptr<Locator> shared = options.shelf ? options.shelf->get() : nullptr;
      if (shared && shared->header().generation > generation) {
        locator = shared;
        co_return base::Status();
      }
      const Result<bool> fetched = co_await fetch(generation, deadline, cost);
      if (fetched.ok() && *fetched) co_return base::Status();
      const bool late_now = port.now() >= deadline;
      if (fetched.ok() && late_now) co_return late("the publication of a new locator");
      damaged += fetched.code() == Code::corrupt ? 1 : 0;
      if (!fetched.ok() && (late_now || damaged == kMostDamaged)) co_return fetched.status();
    }
    co_await pause(deadline, times);
  }
}

Task<base::Status> Table::State::attach(Nanos deadline, Cost& cost) {
  for (;;) {
    if (base::Status status = co_await ready(deadline, cost); !status.ok()) co_return status;
    if (attached_ == connects_) co_return base::Status();
    {
      const Result<Turn> turn = co_await take_turn(deadline);
      if (!turn.ok()) co_return turn.status();
      if (attached_ == connects_ && alive()) co_return base::Status();
      const std::uint64_t on = connects_;
      const Result<Reply> reply = co_await post({.op = Op::attach, .argument = token_}, deadline, cost);
      if (!reply.ok() && alive()) co_return reply.status();
      if (reply.ok() && is_refusal(reply->status)) co_return refusal(reply->status);
      if (reply.ok() && reply->status == Status::done) {
        if ((reply->flags & Reply::kFresh) != 0) ++life_;
        client_ = static_cast<std::uint16_t>(reply->number);
        attached_ = on;
        ++marks.lines_taken;
        const std::uint64_t lines = std::min<std::uint64_t>(reply->version, fabric::RequestId::kMostLines);
        for (auto line = static_cast<std::uint32_t>(numbers.size()); line < lines; ++line) {
          numbers.push_back(0);
          free_lines.push_back(line);
        }
        line_free.wake_all();
        continue;
      }
    }
    if (port.now() >= deadline) co_return late("the request for this client's lines");
    co_await pause(deadline);
  }
}

Task<void> Table::State::detach(Nanos deadline, Cost& cost) {
  if (!alive() || attached_ != connects_) co_return;
  (void)co_await post({.op = Op::detach, .client = client_}, deadline, cost);
  attached_ = 0;
}

std::optional<Line> Table::State::free_line() {
  if (!is_attached() || free_lines.empty()) return std::nullopt;
  const std::uint32_t line = free_lines.back();
  free_lines.pop_back();
  return Line(*this, line);
}

// --- asking

Result<fabric::Op> Table::State::call_of(const Request& request, fabric::Buffer& bytes, fabric::Buffer& room) {
  const std::uint64_t most = port.caps().call_bytes;
  const std::size_t length = layout::kv_request_bytes(request.key.size(), request.value.size());
  if (length > most) {
    return base::Status(Code::too_large, "a request of " + std::to_string(length) + " bytes, where this wire carries " +
                                             std::to_string(most));
  }
  if (bytes.size() < length) bytes = port.buffer(length);
  const std::size_t wanted = std::min<std::uint64_t>(request.op == Op::scan ? kScanRoom : kReplyRoom, most);
  if (room.size() < wanted) room = port.buffer(wanted);
  std::size_t written = 0;
  if (const Status status = put_kv_request(request, bytes.first(length), written); status != Status::done) {
    return refusal(status);
  }
  return fabric::Op::call(options.opcode, bytes.first(written), room.first(wanted));
}

base::Status Table::State::judge(const Connection& on, const fabric::Outcome& outcome, base::Bytes room, Reply& reply) {
  if (outcome.fate != Fate::done) {
    const std::string why =
        outcome.why == fabric::Refusal::none ? on.why().message() : std::string(fabric::text_of(outcome.why));
    return {Code::unavailable, "a request ended with the connection to the memory node: " + why};
  }
  if (outcome.reply_bytes > room.size() || !get_reply(room.first(outcome.reply_bytes), reply)) {
    return {Code::corrupt, "the memory node replied with bytes that are no reply"};
  }
  return {};
}

Task<Result<Reply>> Table::State::post(Request request, Nanos deadline, Cost& cost) {
  fabric::Buffer bytes, room;
  const Result<fabric::Op> call = call_of(request, bytes, room);
  if (!call.ok()) co_return call.status();
  const std::shared_ptr<Connection> held = connection;
  const std::array ops{*call};
  const fabric::Outcome outcome = co_await held->post(ops, patience(deadline, port.now()), cost);
  Reply reply;
  if (base::Status status = judge(*held, outcome, call->reply, reply); !status.ok()) co_return status;
  co_return reply;
}

void Table::State::learn(const Request& request, const Reply& reply, std::uint8_t by_seed) {
  // Mostly: then nothing of the locator is looked at again, which is out of the caches by now.
  if (seed_of(reply.hint).value == by_seed) return;
  if (request.op > Op::add_float || !locator || reply.generation != locator->header().generation ||
      request.generation != reply.generation || is_refusal(reply.status) || reply.status == Status::stale ||
      reply.status == Status::running || reply.status == Status::forgotten) {
    return;
  }
  if (locator->learn(static_cast<std::uint32_t>(request.place), seed_of(reply.hint))) ++marks.seeds_learned;
}

Task<Result<Reply>> Table::State::ask(Request request, fabric::Buffer& bytes, fabric::Buffer& room, Nanos deadline,
                                      Cost& cost, std::uint8_t by_seed) {
  const bool change = changes(request.op);
  bool perhaps = false;  // the change may have taken effect
  std::uint64_t asked_in = 0;
  base::Status trouble;
  int without = 0;  // times that there was no connection
  const auto unknown = [](const base::Status& why) {
    return base::Status(Code::unknown_outcome,
                        "a change may have taken effect, and its outcome is lost: " + why.message());
  };
  for (;;) {
    base::Status status;
    if (change && !is_attached()) status = co_await attach(deadline, cost);
    if (!change && !is_ready()) status = co_await ready(deadline, cost);
    const Nanos now = port.now();
    if (status.ok() && now >= deadline) status = trouble.ok() ? late("a request to a memory node") : trouble;
    const bool none_now = status.code() == Code::unavailable && perhaps && now < deadline;
    if (!status.ok() && !none_now) co_return perhaps ? unknown(status) : status;
    if (none_now) {
      co_await pause(deadline, without);
      ++without;
      continue;
    }
    if (perhaps && asked_in != life_) {
      co_return unknown({Code::unavailable, "the memory node has forgotten this client's requests"});
    }
    asked_in = life_;
    request.client = change ? client_ : std::uint16_t{0};
    marks.asked_again += perhaps ? 1 : 0;
    const std::uint64_t on = connects_;
    const Result<fabric::Op> call = call_of(request, bytes, room);
    if (!call.ok()) co_return call.status();
    const std::shared_ptr<Connection> held = connection;
    const std::array ops{*call};
    const fabric::Outcome outcome = co_await held->post(ops, patience(deadline, now), cost);
    Reply reply;
    status = judge(*held, outcome, call->reply, reply);
    if (outcome.fate != Fate::done) {
      if (alive()) co_return status;
      trouble = std::move(status);
      if (change && outcome.fate == Fate::maybe && !perhaps) {
        perhaps = true;
        deadline = std::max(deadline, port.now() + options.patience);
      }
      if (connects_ > on + 1) co_await pause(deadline);
      continue;
    }
    if (!status.ok()) co_return change ? unknown(status) : status;
    switch (reply.status) {
      case Status::running:
        perhaps = change;
        co_await pause(deadline);
        continue;
      case Status::not_attached:
        if (attached_ == on) attached_ = 0;
        co_await pause(deadline);
        continue;
      case Status::forgotten:
        co_return unknown({Code::unavailable, text_of(reply.status)});
      case Status::stale:  // the memory node looks at the line first, so the change has not taken effect
        ++marks.stale_answers;
        break;
      default:
        break;
    }
    learn(request, reply, by_seed);
    co_return reply;
  }
}

// --- blocks that had no room

std::optional<std::uint64_t> Table::State::place_of(std::uint64_t address, std::uint64_t bytes) const {
  const std::uint64_t room = connection->region_bytes(options.blocks_region);
  const std::uint64_t place = address - options.blocks_at;
  const bool within = address >= options.blocks_at && bytes <= room && place <= room - bytes;
  return within && address % kBlockAlign == 0 ? std::optional(place) : std::nullopt;
}

Task<Result<std::optional<BlockView>>> Table::State::read_elsewhere(const Reply& reply, fabric::Buffer& block,
                                                                    Nanos deadline, Cost& cost) {
  const std::uint64_t bytes = block_bytes(reply.key_bytes, reply.value_bytes);
  const std::optional<std::uint64_t> place = place_of(reply.number, bytes);
  if (!place) {
    co_return base::Status(Code::corrupt, "the memory node named a block of " + std::to_string(bytes) +
                                              " bytes that lies outside of its region");
  }
  block = port.buffer(bytes);
  base::Status status = co_await read(options.blocks_region, *place, block.first(bytes), deadline, cost);
  if (!status.ok()) co_return status;
  ++marks.long_blocks;
  co_return read_block(block.first(bytes), reply.number);
}

Task<Result<std::optional<std::string>>> Table::State::read_key(ScanKey key, Nanos deadline, Cost& cost) {
  std::array<std::uint64_t, kBlockHeader / 8> head{};
  const std::optional<std::uint64_t> place = place_of(key.address, sizeof head);
  if (!place) {
    co_return base::Status(Code::corrupt, "the memory node named a block that lies outside of its region");
  }
  base::Status status =
      co_await read(options.blocks_region, *place, std::as_writable_bytes(std::span(head)), deadline, cost);
  if (!status.ok()) co_return status;
  Reply named{.number = key.address};
  named.key_bytes = static_cast<std::uint32_t>(head[0]);
  named.value_bytes = static_cast<std::uint32_t>(head[0] >> 32);
  if (named.key_bytes != key.key_bytes || named.value_bytes > layout::kMaxValueBytes) co_return std::nullopt;
  fabric::Buffer block;
  const auto view = co_await read_elsewhere(named, block, deadline, cost);
  if (!view.ok()) co_return view.status();
  if (!*view) co_return std::nullopt;
  co_return std::optional(std::string(base::text_of((*view)->key)));
}

}  // namespace farpool::outback
