// SPDX-License-Identifier: Apache-2.0
#include "swordbox/shell/shell.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "roce/packet.h"

namespace farpool::swordbox {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr std::array kSides = {Side::clients, Side::servers};
constexpr std::size_t at(Side side) { return static_cast<std::size_t>(side); }

// A packet spends at most this share of its longest life in the box before the box sees it, and again behind it.
constexpr base::Nanos kShare = 4;

std::string unequal(const Link& a, const Link& b) {
  if (a.mtu() == b.mtu()) return {};
  return "interface " + a.interface() + " has an MTU of " + std::to_string(a.mtu()) + ", and " + b.interface() +
         " one of " + std::to_string(b.mtu()) + ": longer frames would be lost; give them the same";
}

}  // namespace

Result<std::unique_ptr<Shell>> Shell::start(net::Loop& loop, Options options) {
  if (options.clients == options.servers) {
    return Status(Code::invalid_argument, "clients and servers are on the same interface, " + options.clients +
                                              ": the box has to stand between two");
  }
  auto clients = Link::open(options.clients);
  if (!clients.ok()) return clients.status();
  auto servers = Link::open(options.servers);
  if (!servers.ok()) return servers.status();
  if (std::string why = unequal(**clients, **servers); !why.empty()) return Status(Code::invalid_argument, why);
  return std::unique_ptr<Shell>(new Shell(loop, std::move(options), std::move(*clients), std::move(*servers)));
}

Shell::Shell(net::Loop& loop, Options options, std::unique_ptr<Link> clients, std::unique_ptr<Link> servers)
    : loop_(loop),
      log_(std::move(options.log)),
      capture_(std::move(options.capture)),
      again_(options.box.again),
      patience_(options.box.longest_life / kShare),
      box_(std::move(options.box), net::Loop::now()),
      links_{std::move(clients), std::move(servers)},
      alarm_(loop, [this] { on_alarm(); }),
      beat_(loop, [this] { beat(); }) {
  for (const Side side : kSides) watch(side);
  beat();
}

void Shell::watch(Side side) {
  watches_[at(side)] = std::make_unique<net::Watch>(loop_, link(side).descriptor(), [this] { pump(); });
}

// Takes what is there on both sides, in turns, so that neither starves the other. Timers wait for no more than kRounds.
void Shell::pump() {
  constexpr int kRounds = 16;
  for (int i = 0; i < kRounds; ++i) {
    const bool clients = pump(Side::clients), servers = pump(Side::servers);
    if (!clients && !servers) return arm();
  }
  arm();
  if (std::exchange(posted_, true)) return;
  loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    posted_ = false;
    pump();
  });
}

// Returns false if there was nothing.
bool Shell::pump(Side side) {
  const std::size_t taken = link(side).receive(batch_);
  if (taken == 0) return false;
  now_ = net::Loop::now();
  for (Frame& frame : batch_.frames()) handle(side, frame);
  flush();
  return true;
}

void Shell::handle(Side side, Frame& frame) {
  roce::Packet packet;
  const bool is_roce = roce::parse(frame.bytes, packet) == roce::Refusal::none;
  const Box::Way way = is_roce ? box_.way_of(packet) : Box::Way::elsewhere;
  if (way == Box::Way::elsewhere) {
    ++counts_.other_frames;
    return pass(opposite(side), frame);
  }
  // A sender on the clients' side that uses a server's address cannot tell the box what memory holds.
  if (way != (side == Side::clients ? Box::Way::to_server : Box::Way::from_server)) {
    ++counts_.wrong_side;
    return pass(opposite(side), frame);
  }
  if (is_several(frame.offload)) {
    ++counts_.dropped_several;
    return;
  }
  if (frame.waited > patience_) {
    ++counts_.dropped_stale;
    return;
  }
  finish_checksum(frame);
  if (roce::parse(frame.bytes, packet) != roce::Refusal::none) return;  // its checksum's place was in the headers
  if (capture_ != nullptr) capture_->before(packet, frame.bytes, now_);
  arrived_ = &frame;
  box_.on_packet(frame.bytes, packet, now_, *this);
  arrived_ = nullptr;
}

// Passes a frame that the box does not look at.
void Shell::pass(Side to, const Frame& frame) {
  Outbox& outbox = outboxes_[at(to)];
  if (outbox.full()) flush();
  outbox.borrow(frame.bytes, frame.offload, false);
}

// Takes what the box sends: the frame that has arrived, which goes on, or one that it has made or held.
void Shell::send(base::Bytes frame) {
  roce::Packet packet;
  FARPOOL_CHECK(roce::parse(frame, packet) == roce::Refusal::none);
  const Side to = box_.way_of(packet) == Box::Way::to_server ? Side::servers : Side::clients;
  if (capture_ != nullptr) capture_->after(packet, frame, now_);
  Outbox& outbox = outboxes_[at(to)];
  if (outbox.full()) flush();
  if (arrived_ != nullptr && frame.data() == arrived_->bytes.data()) {
    outbox.borrow(frame, arrived_->offload, true);
  } else {
    outbox.copy(frame);
  }
}

void Shell::flush() {
  // Anyone may have kept this thread from its processor since the box decided.
  const bool late = net::Loop::now() - now_ > patience_;
  for (const Side side : kSides) {
    Outbox& outbox = outboxes_[at(side)];
    if (outbox.empty()) continue;
    if (late) counts_.dropped_late += outbox.drop_bound();
    link(side).send(outbox);
  }
}

void Shell::on_alarm() {
  armed_ = false;
  pump();  // responses that are there already are news for the timers
  now_ = net::Loop::now();
  box_.on_time(now_, *this);
  flush();
  arm();
}

// Sets the alarm, unless it is set. What comes later is due no earlier than `again_` after it: so nothing waits longer
// than that for its time, and the box does not search for it with every packet.
void Shell::arm() {
  if (armed_) return;
  const base::Nanos next = box_.next_time();
  if (next == base::kNever) return;
  armed_ = true;
  alarm_.set(std::min(next, net::Loop::now() + again_));
}

// Looks after the interfaces, and says how things are.
void Shell::beat() {
  for (const Side side : kSides) look_after(side);
  Snapshot fresh{.box = box_.counts(),
                 .shell = counts_,
                 .links = {link(Side::clients).counts(), link(Side::servers).counts()},
                 .turned = net::Loop::now()};
  for (const std::string& trouble : troubles_) {
    if (!trouble.empty()) fresh.trouble += (fresh.trouble.empty() ? "" : "; ") + trouble;
  }
  if (fresh.trouble.empty()) fresh.trouble = unequal(link(Side::clients), link(Side::servers));
  {
    const std::lock_guard lock(mutex_);
    snapshot_ = std::move(fresh);
  }
  beat_.set(net::Loop::now() + kBeat);
}

// Takes up an interface that has come back under its name. One that was down needs nothing.
void Shell::look_after(Side side) {
  Link& own = link(side);
  if (own.gone()) {
    watches_[at(side)].reset();  // before its descriptor is another one
    if (own.reopen().ok()) pump();
    watch(side);
  }
  std::string trouble = own.trouble();
  std::string& former = troubles_[at(side)];
  if (trouble == former) return;
  if (former.empty()) ++counts_.interface_losses;
  log_(!trouble.empty(), trouble.empty() ? "interface " + own.interface() + " passes frames again" : trouble);
  former = std::move(trouble);
}

Shell::Snapshot Shell::snapshot() const {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

}  // namespace farpool::swordbox
