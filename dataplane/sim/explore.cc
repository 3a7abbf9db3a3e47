// SPDX-License-Identifier: Apache-2.0
#include "sim/explore.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "sim/last_words.h"

namespace farpool::sim {
namespace {

using fabric::Verb;
using fabric::sim::Network;
using fabric::sim::Waiting;

constexpr Nanos kShort = 3 * base::kSecond;        // a sleep that may end while others could go on
constexpr Nanos kPatience = 1000 * base::kSecond;  // of virtual time, for one run
constexpr std::uint64_t kMostDecisions = 100'000;  // of one run
constexpr std::uint64_t kMostPasses = 200'000;     // of time, likewise
constexpr std::uint64_t kMostNaps = 256;           // of a client that wakes, asks, and finds nothing changed
constexpr std::uint64_t kMostReplays = 300;        // to make a failure's tape short
constexpr std::size_t kMostCuts = 6;               // of one verb
constexpr std::size_t kNobody = ~std::size_t{0};
constexpr std::size_t kEnough = ~std::size_t{0};  // instead of a choice: the rest need not be seen

bool reads_only(const Waiting& one) { return !one.fence && one.op.verb == Verb::read; }

// The words of a memory node that a verb touches. A CALL touches the memory node as a whole; and so does a READ where
// CALLs change what it sees (`served`).
struct Words {
  std::size_t region = 0;
  std::uint64_t first = 0, last = 0;
};
Words words_of(const Waiting& one, std::uint64_t first, std::uint64_t last, bool served) {
  constexpr std::size_t kRegions = 64, kOfTheNode = kRegions - 1;
  if (one.op.verb == Verb::call || one.fence || (served && one.op.verb == Verb::read))
    return {one.node * kRegions + kOfTheNode, 0, 1};
  const std::uint64_t at = one.op.at.offset / 8;
  return {one.node * kRegions + one.op.at.region, at + first, at + last};
}

bool conflict(const Waiting& a, const Waiting& b, bool served) {
  if ((a.fence || b.fence) && a.client == b.client) return true;
  const Words x = words_of(a, a.first, a.last, served), y = words_of(b, b.first, b.last, served);
  return x.region == y.region && x.first < y.last && y.first < x.last && !(reads_only(a) && reads_only(b));
}

// Records which client has touched which word, in all runs.
class Knowledge {
 public:
  explicit Knowledge(bool served) : served_(served) {}
  void touch(const Network& network, std::size_t which, std::uint64_t first, std::uint64_t last) {
    const Waiting& one = network.waiting()[which];
    const Words words = words_of(one, first, last, served_);
    if (regions_.size() <= words.region) regions_.resize(words.region + 1);
    auto& region = regions_[words.region];
    if (region.size() < words.last) region.resize(words.last);
    const auto bit = static_cast<std::uint16_t>(1u << one.client);
    for (std::uint64_t i = words.first; i < words.last; ++i) {
      Access& access = region[i];
      const Access before = access;
      (reads_only(one) ? access.readers : access.writers) |= bit;
      const bool changes = one.op.verb != Verb::write || network.differs(which, first + i - words.first);
      if (!reads_only(one) && changes) access.changers |= bit;
      grown_ = grown_ || degree(access) > degree(before);
    }
  }
  // Says whether another client touches that word of the verb in a way that does not commute.
  bool contended(const Waiting& one, std::uint64_t word) const {
    const Words words = words_of(one, word, word + 1, served_);
    if (words.region >= regions_.size() || words.first >= regions_[words.region].size()) return false;
    const Access& access = regions_[words.region][words.first];
    const auto others = static_cast<std::uint16_t>(~(1u << one.client));
    if (reads_only(one)) return (access.changers & others) != 0;
    return (access.writers & others) != 0 || (access.readers & others) != 0;
  }
  bool contended(const Waiting& one) const {
    for (std::uint64_t word = one.first; word < one.last; ++word) {
      if (contended(one, word)) return true;
    }
    return false;
  }
  // Says whether a word became contended since this was last asked.
  bool has_grown() { return std::exchange(grown_, false); }

 private:
  struct Access {
    std::uint16_t readers = 0, writers = 0;
    std::uint16_t changers = 0;  // writers that once changed its value
  };
  static unsigned degree(const Access& access) {
    const auto all = static_cast<std::uint16_t>(access.readers | access.writers);
    const bool several = (all & (all - 1)) != 0;
    return several ? (access.writers != 0 ? 1 : 0) + (access.changers != 0 ? 1 : 0) : 0;
  }
  bool served_;
  std::vector<std::vector<Access>> regions_;
  bool grown_ = false;
};

struct Move {
  enum class Kind : std::uint8_t { verb, part, lose, begin, wake, crash, stall } kind = Kind::verb;
  std::size_t client = 0;
  std::size_t which = 0;  // of the waiting verbs
  std::uint64_t first = 0, last = 0;
  unsigned cost = 0;                 // preemptions
  std::vector<std::uint64_t> sleep;  // verbs of the client that wait until another has acted
};

std::uint64_t identity(const Waiting& one) { return (one.lane << 40) + (one.chain << 8) + one.verb; }

// Identifies a move in every run that came the same way.
struct Deed {
  Move::Kind kind = Move::Kind::verb;
  std::size_t client = 0;
  std::uint64_t identity = 0, first = 0, last = 0;
  friend bool operator==(const Deed&, const Deed&) = default;
};

// One run. Without knowledge, everything is decided and nothing is bounded: for replays.
class Run {
 public:
  Run(const SmallWorld& world, const Knowledge* knowledge, Knowledge* learns, std::string* story = nullptr)
      : bounds_(world.bounds),
        served_(world.served),
        scene_(world.make()),
        knowledge_(knowledge),
        learns_(learns),
        story_(story),
        network_(scene_->network()) {
    network_.steer();
    end_ = network_.now() + kPatience;
    preemptions_ = bounds_.preemptions;
    losses_ = bounds_.losses;
    crashes_ = bounds_.crashes;
    stalls_ = bounds_.stalls;
    crashed_.resize(scene_->clients());
    stalled_.resize(scene_->clients());
    lost_.resize(scene_->clients());
    follow();
  }

  // Calls `choose` at every decision with the possible moves, and returns what is wrong in the end.
  template <class Choose>
  std::vector<std::string> go(Choose&& choose) {
    for (std::uint64_t decisions = 0, passes = 0;;) {
      std::vector<Move> all = moves();
      if (all.empty()) {
        if (!objection_.empty()) return {objection_};
        if (over()) return scene_->judge();
        if (!asleep_.empty() || yields_) {  // nobody else may go on any more
          asleep_.clear();
          yields_ = false;
          continue;
        }
        if (thaw()) continue;
        if (network_.now() > end_ || ++passes > kMostPasses || !network_.pass()) {
          return {"an operation does not come to an end"};
        }
        fresh_ = false;
        follow();
        continue;
      }
      std::size_t chosen = 0;
      if (all.size() > 1) {
        if (++decisions > kMostDecisions) return {"an operation does not come to an end"};
        chosen = choose(*this, all);
        if (chosen == kEnough) return objection_.empty() ? std::vector<std::string>() : std::vector{objection_};
      }
      make(all[chosen]);
    }
  }

  unsigned preemptions() const { return preemptions_; }
  std::uint64_t state() const {
    std::uint64_t hash = base::mix(network_.fingerprint() ^ base::mix(scene_->fingerprint()));
    hash = base::mix(hash ^ current_) + (yields_ ? 1 : 0) + (fresh_ ? 2 : 0) + 4 * losses_ + 64 * crashes_;
    hash = base::mix(hash) + stalls_;
    for (const bool stalled : stalled_) hash = 2 * hash + (stalled ? 1 : 0);
    std::uint64_t sum = 0;
    for (const std::uint64_t one : asleep_) sum += base::mix(one + 1);
    for (const Waiting& one : network_.waiting()) {
      if (one.torn || one.fence) sum += base::mix(base::mix(identity(one)) + (one.first << 32) + one.last);
    }
    return base::mix(hash ^ sum);
  }
  Deed deed(const Move& move) const {
    Deed deed{.kind = move.kind, .client = move.client};
    if (move.kind == Move::Kind::verb || move.kind == Move::Kind::part || move.kind == Move::Kind::lose) {
      deed.identity = identity(network_.waiting()[move.which]);
      deed.first = move.first;
      deed.last = move.last;
    }
    return deed;
  }
  const std::vector<Deed>& deeds() const { return deeds_; }

 private:
  bool visible(const Waiting& one) const {
    if (one.fence) return !crashed_[one.client] || has_verbs(one.client, true);
    if (knowledge_ == nullptr || one.torn || knowledge_->contended(one)) return true;
    return (crashes_ > 0 || stalls_ > 0 || stalled_[one.client]) && !reads_only(one) && mortal(one.client);
  }
  bool mortal(std::size_t client) const {
    return std::find(bounds_.mortal.begin(), bounds_.mortal.end(), client) != bounds_.mortal.end();
  }
  bool may_be_lost(const Waiting& one) const {
    return losses_ > 0 && one.ends && (bounds_.mortal.empty() || mortal(one.client));
  }
  bool begins(std::size_t client) const { return !crashed_[client] && scene_->may_begin(client); }
  bool has_verbs(std::size_t client, bool beside_fences = false) const {
    return std::any_of(network_.waiting().begin(), network_.waiting().end(),
                       [&](const Waiting& one) { return one.client == client && !(beside_fences && one.fence); });
  }
  bool has_fence(std::size_t client) const {
    return std::any_of(network_.waiting().begin(), network_.waiting().end(),
                       [client](const Waiting& one) { return one.client == client && one.fence; });
  }
  bool has_few(std::size_t client) const {
    const auto own = [client](const Waiting& one) { return one.client == client && !one.fence; };
    return knowledge_ == nullptr || static_cast<std::size_t>(std::count_if(
                                        network_.waiting().begin(), network_.waiting().end(), own)) <= bounds_.few;
  }
  bool enabled(std::size_t client) const {
    if (stalled_[client]) return has_fence(client);
    return begins(client) || has_verbs(client);
  }
  // Lets a stalled client continue when no other client has anything under way.
  bool thaw() {
    bool any = false;
    for (std::size_t client = 0; client < scene_->clients(); ++client) {
      if (stalled_[client]) {
        any = true;
      } else if (!crashed_[client] && (scene_->busy(client) || scene_->may_begin(client))) {
        return false;
      }
    }
    for (std::size_t client = 0; any && client < scene_->clients(); ++client) go_on(client);
    return any;
  }
  void go_on(std::size_t client) {
    if (!stalled_[client]) return;
    tell(client, "goes on");
    stalled_[client] = false;
    scene_->resume(client);
    network_.settle();
    follow();
  }
  bool over() const {
    for (std::size_t client = 0; client < scene_->clients(); ++client) {
      if (!crashed_[client] && (scene_->busy(client) || scene_->may_begin(client))) return false;
    }
    return network_.waiting().empty();
  }

  std::vector<Move> moves() const {
    std::vector<Move> all;
    const bool goes_on = current_ != kNobody && enabled(current_);
    if (goes_on && !yields_) add(current_, 0, all);
    if (fresh_ && knowledge_ != nullptr && !all.empty()) return all;
    const unsigned cost = goes_on ? 1 : 0;
    if (cost == 0 || (may(cost) && has_few(current_))) {
      for (std::size_t client = 0; client < scene_->clients(); ++client) {
        if (client != current_ && enabled(client)) add(client, cost, all);
      }
    }
    if (all.empty()) return all;
    if (may(1) && (current_ == kNobody || has_few(current_))) {
      for (std::size_t client = 0; client < scene_->clients(); ++client) {
        if (!crashed_[client] && !stalled_[client] && !lost_[client] && scene_->busy(client) && !enabled(client) &&
            sleeps_briefly(client)) {
          all.push_back({.kind = Move::Kind::wake, .client = client, .cost = 1});
        }
      }
    }
    if (crashes_ > 0 && current_ != kNobody && mortal(current_) && !crashed_[current_] && scene_->busy(current_)) {
      all.push_back({.kind = Move::Kind::crash, .client = current_});
    }
    if (stalls_ > 0 && current_ != kNobody && mortal(current_) && !crashed_[current_] && !stalled_[current_] &&
        scene_->busy(current_) && !has_fence(current_) && has_few(current_)) {
      all.push_back({.kind = Move::Kind::stall, .client = current_});
    }
    return all;
  }
  bool may(unsigned cost) const { return knowledge_ == nullptr || preemptions_ >= cost; }
  bool sleeps_briefly(std::size_t client) const {
    const Nanos when = network_.next_timer(client);
    return when != base::kNever && when - network_.now() <= kShort;
  }

  void add(std::size_t client, unsigned cost, std::vector<Move>& all) const {
    const auto& waiting = network_.waiting();
    // Another client may continue after this move, at the price of one more preemption.
    bool others = false;
    for (std::size_t other = 0; other < scene_->clients(); ++other) others |= other != client && enabled(other);
    const bool interrupts = others && may(cost + 1) && has_few(client);
    std::vector<std::size_t> before;
    const auto asleep = [&] {
      std::vector<std::uint64_t> sleep;
      for (const std::size_t one : before) sleep.push_back(identity(waiting[one]));
      return sleep;
    };
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      const Waiting& one = waiting[i];
      if (one.client != client || (client == current_ && asleep_.contains(identity(one)))) continue;
      const bool matters = std::any_of(before.begin(), before.end(),
                                       [&](std::size_t earlier) { return conflict(waiting[earlier], one, served_); });
      if (before.empty() || matters || interrupts) {
        const std::vector<std::uint64_t> sleep =
            knowledge_ == nullptr || matters ? std::vector<std::uint64_t>() : asleep();
        all.push_back(
            {.client = client, .which = i, .first = one.first, .last = one.last, .cost = cost, .sleep = sleep});
        if (interrupts && !one.torn && !one.fence) add_parts(i, all);
        if (may_be_lost(one)) {
          all.push_back(all.back());
          all.back().kind = Move::Kind::lose;
          all.back().first = one.first;
          all.back().last = one.last;
        }
      }
      before.push_back(i);
    }
    if (begins(client) && (before.empty() || interrupts)) {
      all.push_back({.kind = Move::Kind::begin,
                     .client = client,
                     .cost = cost,
                     .sleep = knowledge_ == nullptr ? std::vector<std::uint64_t>() : asleep()});
    }
  }

  // Adds the verb's first or last words alone, but only if other clients touch something on both sides of the cut.
  void add_parts(std::size_t which, std::vector<Move>& all) const {
    const Waiting& one = network_.waiting()[which];
    if (one.op.verb != Verb::read && one.op.verb != Verb::write) return;
    std::vector<std::uint64_t> cuts;
    bool any = false;
    for (std::uint64_t word = one.first; word < one.last; ++word) {
      if (knowledge_ != nullptr &&
          (!knowledge_->contended(one, word) || (one.op.verb == Verb::write && !network_.differs(which, word)))) {
        continue;
      }
      if (any) cuts.push_back(word);
      any = true;
    }
    const Move whole = all.back();
    const std::size_t step = knowledge_ == nullptr ? 1 : (cuts.size() + kMostCuts - 1) / kMostCuts;
    for (std::size_t i = 0; i < cuts.size(); i += step) {
      for (const bool front : {true, false}) {
        Move part = whole;
        part.kind = Move::Kind::part;
        (front ? part.last : part.first) = cuts[i];
        all.push_back(part);
      }
    }
  }

  void make(const Move& move) {
    deeds_.push_back(deed(move));
    if (move.client != current_) {
      asleep_.clear();
      yields_ = false;
    }
    preemptions_ -= std::min(preemptions_, move.cost);
    current_ = move.client;
    fresh_ = false;
    asleep_.insert(move.sleep.begin(), move.sleep.end());
    std::uint64_t naps = 0;
    switch (move.kind) {
      case Move::Kind::begin:
        tell(move.client, "begins " + scene_->next_name(move.client));
        fresh_ = true;
        scene_->begin(move.client);
        network_.settle();
        break;
      case Move::Kind::wake:
        tell(move.client, "wakes");
        fresh_ = true;
        for (const Nanos last = network_.now() + kShort; network_.now() < last && !enabled(move.client);) {
          if (!scene_->busy(move.client) || ++naps > kMostNaps || !network_.pass()) break;
          follow();
        }
        break;
      case Move::Kind::crash:
        tell(move.client, "dies");
        --crashes_;
        crashed_[move.client] = true;
        scene_->crash(move.client);
        network_.settle();
        current_ = kNobody;
        break;
      case Move::Kind::stall:
        tell(move.client, "stops, with all that it has under way");
        --stalls_;
        stalled_[move.client] = true;
        scene_->stop(move.client);
        network_.settle();
        current_ = kNobody;
        break;
      default:
        yields_ = move.kind == Move::Kind::part && knowledge_ != nullptr;
        if (move.kind == Move::Kind::lose) {
          --losses_;
          lost_[move.client] = true;
        }
        execute(move.which, move.first, move.last, move.kind == Move::Kind::lose);
        break;
    }
    follow();
  }

  void execute(std::size_t which, std::uint64_t first, std::uint64_t last, bool lose) {
    const Waiting& one = network_.waiting()[which];
    const std::size_t client = one.client;
    if (one.fence) {
      tell(client, "is fenced");
      network_.execute(which, 0, 1);
      return go_on(client);
    }
    if (learns_ != nullptr) learns_->touch(network_, which, first, last);
    if (story_ != nullptr) {
      std::string line = fabric::sim::name_of(one.op.verb);
      line.resize(6, ' ');
      if (one.op.verb == Verb::call) {
        line += "of the memory node, opcode " + std::to_string(one.op.opcode);
      } else {
        line += scene_->place(one.op.at, one.op.local.size());
      }
      if (last - first < one.op.local.size() / 8 && one.op.verb != Verb::call) {
        line += ", words " + std::to_string(first) + ".." + std::to_string(last - 1) + " of " +
                std::to_string(one.op.local.size() / 8);
      }
      if (lose) line += ", and the answer is lost";
      tell(client, line);
    }
    for (const Waiting& other : network_.waiting()) {
      if (other.client == client || !conflict(one, other, served_) || !objection_.empty()) continue;
      objection_ = scene_->objection(one, other);
      if (!objection_.empty()) tell(client, objection_);
    }
    const bool busy = scene_->busy(client);
    network_.execute(which, first, last, lose);
    if (busy && !scene_->busy(client) && !crashed_[client]) tell(client, "ends its operation");
  }

  // Executes verbs whose later execution no other client could notice.
  void follow() {
    for (bool again = true; again;) {
      again = false;
      const auto& waiting = network_.waiting();
      for (std::size_t i = 0; i < waiting.size(); ++i) {
        const Waiting& one = waiting[i];
        if (stalled_[one.client] && !has_fence(one.client)) continue;
        const bool upkeep = !one.fence && scene_->at_once(one);
        if (!upkeep && (visible(one) || asleep_.contains(identity(one)) || may_be_lost(one))) continue;
        if (!upkeep) deeds_.push_back({Move::Kind::verb, one.client, identity(one), one.first, one.last});
        execute(i, one.first, one.last, false);
        again = true;
        break;
      }
    }
  }

  void tell(std::size_t client, const std::string& what) {
    if (story_ != nullptr) *story_ += "  client " + std::to_string(client) + "  " + what + "\n";
  }

  const Bounds bounds_;
  const bool served_;
  const std::unique_ptr<Scene> scene_;
  const Knowledge* const knowledge_;  // the same for all runs of a pass
  Knowledge* const learns_;
  std::string* const story_;
  Network& network_;
  Nanos end_ = 0;
  unsigned preemptions_ = 0, losses_ = 0, crashes_ = 0, stalls_ = 0;
  std::size_t current_ = kNobody;
  bool yields_ = false;  // the current client's verb is torn: another client is next
  bool fresh_ = false;   // the current client has been switched to, and has done nothing yet
  std::set<std::uint64_t> asleep_;
  std::vector<bool> crashed_, stalled_;
  std::vector<bool> lost_;  // waits for an answer that never comes: nothing wakes it before it gives up
  std::vector<Deed> deeds_;
  std::string objection_;  // the first
};

// The search: goes one decision deeper after the other, and back to the last one that has another way.
class Search {
 public:
  Search(const SmallWorld& world, std::uint64_t most) : world_(world), most_(most), knowledge_(world.served) {}

  Explored run() {
    // Few preemptions first: they show at little cost which client touches what, and failures need few.
    for (unsigned preemptions = 0; preemptions <= world_.bounds.preemptions; ++preemptions) {
      if (preemptions > 1 && preemptions < world_.bounds.preemptions) continue;
      SmallWorld bounded = world_;
      bounded.bounds.preemptions = preemptions;
      for (bool again = true; again;) {
        const Knowledge before = knowledge_;
        switch (pass(bounded, before)) {
          case Pass::stopped:
            return std::move(found_);
          case Pass::learned:
            break;
          case Pass::whole:
            again = false;
        }
      }
    }
    return std::move(found_);
  }

 private:
  struct Node {
    std::size_t chosen = 0, ways = 0;
  };

  enum class Pass : std::uint8_t {
    whole,
    learned,  // more is contended than was known: what was skipped may have mattered
    stopped,  // something is wrong, or there were too many runs
  };
  Pass pass(const SmallWorld& world, const Knowledge& before) {
    path_.clear();
    reached_.clear();
    found_.states = 0;
    do {
      if (found_.runs++ >= most_) {
        found_.whole = false;
        return Pass::stopped;
      }
      if (!once(world, before)) return Pass::stopped;
      if (knowledge_.has_grown()) return Pass::learned;
    } while (next());
    return Pass::whole;
  }

  bool once(const SmallWorld& world, const Knowledge& before) {
    Run run(world, &before, &knowledge_);
    std::size_t depth = 0;
    bool known = false;  // the rest was explored from elsewhere
    std::vector<std::string> wrong = run.go([&](const Run& at, const std::vector<Move>& moves) -> std::size_t {
      if (depth < path_.size()) {
        FARPOOL_CHECK(path_[depth].ways == moves.size());  // the same tape gives the same run
        return path_[depth++].chosen;
      }
      auto [entry, added] = reached_.try_emplace(at.state(), at.preemptions());
      found_.states += added ? 1 : 0;
      if (!added && entry->second >= at.preemptions()) {
        known = true;
        return kEnough;
      }
      entry->second = at.preemptions();
      path_.push_back({0, moves.size()});
      ++depth;
      found_.deepest = std::max<std::uint64_t>(found_.deepest, depth);
      return 0;
    });
    found_.judged += known ? 0 : 1;
    if (wrong.empty()) return true;
    found_.failure.emplace();
    found_.failure->wrong = std::move(wrong);
    explain(run.deeds());
    return false;
  }

  bool next() {
    while (!path_.empty() && path_.back().chosen + 1 == path_.back().ways) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().chosen;
    return true;
  }

  // Makes the failing run a tape that needs no knowledge of other runs, as short as leaving decisions out makes it.
  void explain(const std::vector<Deed>& deeds) {
    Tape tape;
    std::size_t at = 0;
    {
      Run run(world_, nullptr, nullptr);
      std::uint64_t decision = 0;
      run.go([&](const Run& now, const std::vector<Move>& moves) -> std::size_t {
        const std::uint64_t number = decision++;
        while (at < deeds.size()) {
          for (std::size_t i = 0; i < moves.size(); ++i) {
            if (now.deed(moves[i]) != deeds[at]) continue;
            ++at;
            if (i != 0) tape[number] = i;
            return i;
          }
          ++at;  // it was no decision
        }
        return 0;
      });
    }
    Replayed best = replay(world_, tape);
    std::uint64_t replays = 0;
    for (bool shorter = !best.wrong.empty(); shorter;) {
      shorter = false;
      for (auto one = tape.rbegin(); one != tape.rend() && replays < kMostReplays; ++one, ++replays) {
        Tape without = tape;
        without.erase(one->first);
        Replayed tried = replay(world_, without);
        if (tried.wrong.empty()) continue;
        best = std::move(tried);
        tape = std::move(without);
        shorter = true;
        break;
      }
    }
    found_.failure->tape = std::move(tape);
    if (!best.wrong.empty()) found_.failure->wrong = std::move(best.wrong);
    found_.failure->story = std::move(best.story);
  }

  const SmallWorld& world_;
  const std::uint64_t most_;
  Knowledge knowledge_;
  std::vector<Node> path_;
  std::unordered_map<std::uint64_t, unsigned> reached_;  // state -> preemptions that were left
  Explored found_;
};

}  // namespace

std::string describe(const Tape& tape) {
  std::string text;
  for (const auto& [decision, way] : tape) {
    text += (text.empty() ? "" : ",") + std::to_string(decision) + ":" + std::to_string(way);
  }
  return text.empty() ? "-" : text;
}

std::optional<Tape> parse_tape(const std::string& text) {
  Tape tape;
  if (text == "-") return tape;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    std::uint64_t decision = 0, way = 0;
    auto read = std::from_chars(at, end, decision);
    if (read.ec != std::errc() || read.ptr == end || *read.ptr != ':') return std::nullopt;
    read = std::from_chars(read.ptr + 1, end, way);
    if (read.ec != std::errc() || !tape.emplace(decision, way).second) return std::nullopt;
    if (read.ptr == end) return tape;
    if (*read.ptr != ',') return std::nullopt;
    at = read.ptr + 1;
  }
}

Replayed replay(const SmallWorld& world, const Tape& tape) {
  const LastWords words("--world " + world.name + " --tape " + describe(tape));
  Replayed replayed;
  Run run(world, nullptr, nullptr, &replayed.story);
  replayed.wrong = run.go([&](const Run&, const std::vector<Move>& moves) -> std::size_t {
    const auto found = tape.find(replayed.decisions++);
    return found == tape.end() ? 0 : std::min<std::size_t>(found->second, moves.size() - 1);
  });
  return replayed;
}

Explored explore(const SmallWorld& world, std::uint64_t most) {
  const LastWords words("--world " + world.name);
  return Search(world, most).run();
}

}  // namespace farpool::sim
