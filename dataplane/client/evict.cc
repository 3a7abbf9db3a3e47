// SPDX-License-Identifier: Apache-2.0
// Makes room at a memory node that is full (docs/adr/0043-eviction.md). A client that fills a full node owes it room:
// about the bytes that it adds, and more each time that a write finds none. One task for each memory node pays what is
// owed. It goes through the table from a place by chance on, a page at a time, and removes what has expired, and of the
// keys that the policy allows the tenth that goes first. Nobody coordinates clients: each key is removed by an edit that
// looks again, so two of them that choose one key, or one that stands still in the middle, do no harm.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "client/links.h"

namespace farpool::client {

using base::Result;
using task::Task;

namespace {

constexpr std::uint64_t kPage = 128;     // keys, about
constexpr std::size_t kSample = 64;      // keys that are compared, at least
constexpr std::size_t kChosen = 10;      // of so many keys that the policy allows, one goes
constexpr std::size_t kAtOnce = 8;       // keys that are removed at a time
constexpr std::uint64_t kOverhead = 48;  // of a key in a table and a heap, about
// A debt is paid when it is this large, unless a write waits for it.
constexpr std::int64_t kLeastDebt = 8 << 10;
// What a write that finds no room adds to the debt: parts of the heap, twice as much each time until one in a tick does.
constexpr std::uint64_t kFirstPart = 64, kLargestPart = 16;
constexpr Nanos kRests = 19;  // times as long as a turn through the table took that found nothing
// Pages that a client which evicts nothing looks at, for keys that have expired.
constexpr std::uint64_t kMostPages = 32;

}  // namespace

// A way through a table, from some position on and once around.
struct Pool::Turn {
  explicit Turn(std::uint64_t begin) : first(begin), position(begin), ended(begin == 0) {}
  const std::uint64_t first;
  std::uint64_t position, pages = 0;
  std::uint64_t stay = 0;  // keys that the policy does not allow
  bool ended;              // at the table's end, and goes on at its beginning
  bool over = false;
};

// Removes a key that has expired, or that the policy still allows.
class Pool::Eviction final : public Editor {
 public:
  explicit Eviction(Pool& pool) : pool_(pool) {}

  Edit edit(std::optional<std::string_view> kept) override {
    freed_ = 0;
    expired_ = false;
    if (!kept) return Edit::keep();
    const std::optional<Stored> stored = Stored::parse(*kept);
    expired_ = stored && stored->expired(pool_.clock());
    if (!expired_ && !pool_.policy_.allows(stored ? stored->expires : kNoExpiry)) return Edit::keep();
    freed_ = kept->size() + kOverhead;
    return Edit::erase();
  }
  std::uint64_t freed() const { return freed_; }  // bytes, about; 0: it changed nothing
  bool expired() const { return expired_; }

 private:
  Pool& pool_;
  std::uint64_t freed_ = 0;
  bool expired_ = false;
};

bool Pool::is_full(const Bond& bond) const {
  return bond.session->pressure() != layout::Pressure::none || port_.now() < bond.room.full_until;
}

void Pool::owe(Bond& bond, std::uint64_t bytes) {
  if (policy_.by() == EvictionPolicy::By::none || !is_full(bond)) return;
  bond.room.owed += static_cast<std::int64_t>(bytes + kOverhead);
  if (bond.room.owed >= kLeastDebt) pay(bond);
}

void Pool::pay(Bond& bond) {
  if (bond.room.paying || closing_ || port_.now() < bond.room.none_until) return;
  bond.room.paying = true;
  scope_.spawn(pay_debt(bond));
}

void Pool::make_room_ahead(Bond& bond) { owe(bond, heap_bytes(bond) / kFirstPart); }

std::uint64_t Pool::heap_bytes(const Bond& bond) { return bond.table->geometry().at(layout::kHeap).bytes; }

void Pool::raise_debt(Bond& bond, std::uint64_t bytes) {
  Room& room = bond.room;
  const Nanos now = port_.now();
  room.full_until = now + bond.session->grant().lease;
  if (room.paying ? room.owed > 0 : now < std::max(room.settled_at, room.none_until)) return;
  const std::uint64_t heap = heap_bytes(bond);
  const bool again = room.part > 0 && now < room.full_at + bond.session->grant().tick;
  room.part = again ? std::min(2 * room.part, heap / kLargestPart) : heap / kFirstPart;
  room.full_at = now;
  room.owed = std::max(room.owed, static_cast<std::int64_t>(std::max(room.part, 4 * (bytes + kOverhead))));
  pay(bond);
}

bool Pool::begin_to_make_room(Bond& bond, std::uint64_t bytes) {
  // Under a volatile policy there may be nothing left that may go.
  if (!policy_.allows(kNoExpiry)) return false;
  if (bytes > 0) raise_debt(bond, bytes);
  return true;
}

Task<bool> Pool::make_room(Bond& bond, std::uint64_t bytes, Nanos deadline) {
  Room& room = bond.room;
  if (port_.now() < room.none_until) co_return false;
  if (!room.paying && port_.now() < room.settled_at) {
    // What was removed is not free yet: operations that read it may still run.
    co_await port_.sleep_until(std::min(deadline, room.settled_at));
    co_return true;
  }
  const std::uint64_t before = room.removed + room.failed, turns = room.vain_turns;
  raise_debt(bond, bytes);
  while (room.paying && room.owed > 0 && room.vain_turns == turns && bond.session->alive() && port_.now() < deadline) {
    (void)co_await room.paid.wait(deadline);
  }
  // Where the session has ended, the caller finds another one, and tries again with that.
  co_return room.removed + room.failed != before || port_.now() < room.settled_at || !bond.session->alive();
}

Task<void> Pool::pay_debt(Bond& bond) {
  const Borrowed borrowed(*this, bond);
  Room& room = bond.room;
  const Nanos begun = port_.now();
  const std::uint64_t before = room.removed + room.failed;
  Turn turn(port_.random() % std::max<std::uint64_t>(bond.table->positions(), 1));
  while (room.owed > 0 && !turn.over && bond.session->alive() && !closing_) {
    const Result<Page> sample = co_await take_sample(bond, turn);
    if (!sample.ok()) {
      ++room.failed;
      break;
    }
    co_await remove_some(bond, *sample, turn);
    room.paid.wake_all();
  }
  if (turn.over) room.owed = 0;
  const Nanos now = port_.now(), tick = bond.session->grant().tick;
  if (room.removed + room.failed != before) {
    room.settled_at = now + tick / 4;
  } else if (turn.over && turn.stay == 0 && policy_.by() != EvictionPolicy::By::none) {
    // No key is in the way of a write. Clients have the memory that may have died or stand still: it comes free when
    // their leases end.
    room.settled_at = now + std::max(tick / 4, kRests * (now - begun));
  } else if (turn.over) {
    // Nothing may go: writes are refused meanwhile, without another turn for each.
    room.none_until = now + std::max(tick, kRests * (now - begun));
    ++room.vain_turns;
  }
  room.paying = false;
  room.paid.wake_all();
}

// Returns the keys of the next pages, at least kSample of them unless the turn ends.
Task<Result<Page>> Pool::take_sample(Bond& bond, Turn& turn) {
  Page sample;
  while (sample.keys.size() < kSample && !turn.over) {
    Result<Page> page = co_await bond.table->scan(turn.position, kPage, port_.now() + patience(), bond.room.cost);
    if (!page.ok()) co_return page;
    for (const Page::Expiry& expiry : page->expiries) {
      sample.expiries.push_back({.key = sample.keys.size() + expiry.key, .at = expiry.at});
    }
    std::ranges::move(page->keys, std::back_inserter(sample.keys));
    turn.position = page->next;
    const bool enough = policy_.by() == EvictionPolicy::By::none && ++turn.pages == kMostPages;
    // The last page before `first` may reach behind it, and even to the table's end.
    turn.over = enough || (turn.ended && (page->next == 0 || page->next >= turn.first));
    turn.ended = turn.ended || page->next == 0;
  }
  co_return sample;
}

// Those come first that should go first.
std::vector<const std::string*> Pool::choose(const Page& page, Turn& turn, std::size_t& most) {
  struct Candidate {
    const std::string* key;
    std::uint64_t rank;
  };
  std::vector<const std::string*> chosen;
  std::vector<Candidate> candidates;
  const Millis time = clock();
  auto expiry = page.expiries.begin();
  for (std::size_t i = 0; i < page.keys.size(); ++i) {
    const std::string& key = page.keys[i];
    const bool expires = expiry != page.expiries.end() && expiry->key == i;
    const Millis at = expires ? (expiry++)->at : kNoExpiry;
    if (expires && at < time) {
      chosen.push_back(&key);
    } else if (policy_.allows(at)) {
      const Accesses::Use use =
          policy_.watches() ? options_.accesses->use_of(hash_of(key), port_.now()) : Accesses::Use{};
      candidates.push_back({&key, rank(policy_.by(), use, at, port_.random())});
    } else {
      ++turn.stay;
    }
  }
  most = chosen.size() + (candidates.size() + kChosen - 1) / kChosen;
  std::ranges::sort(candidates, std::ranges::greater(), &Candidate::rank);
  for (const Candidate& each : candidates) chosen.push_back(each.key);
  return chosen;
}

Task<void> Pool::remove_some(Bond& bond, const Page& page, Turn& turn) {
  std::size_t most = 0;
  const std::vector<const std::string*> chosen = choose(page, turn, most);
  auto next = chosen.begin();
  while (most > 0 && next != chosen.end() && bond.room.owed > 0) {
    task::Scope scope;
    for (std::size_t n = 0; n < kAtOnce && most > 0 && next != chosen.end(); ++next) {
      Gates::Pass pass = gates_.enter_now(Gates::hash(**next));
      if (!pass) continue;  // this client is changing it: the next one goes in its place
      scope.spawn(remove_one(bond, **next, std::move(pass)));
      ++n;
      --most;
    }
    co_await scope.join();
  }
}

Task<void> Pool::remove_one(Bond& bond, const std::string& key, Gates::Pass) {
  Eviction eviction(*this);
  const Result<bool> done = co_await bond.table->modify(key, eviction, port_.now() + patience(), bond.room.cost);
  if (!done.ok()) ++bond.room.failed;
  if (!done.ok() || eviction.freed() == 0) co_return;
  (eviction.expired() ? counters_.expired_keys : counters_.evicted_keys).add();
  bond.room.owed -= static_cast<std::int64_t>(eviction.freed() + key.size());
  ++bond.room.removed;
}

}  // namespace farpool::client
