// SPDX-License-Identifier: Apache-2.0
#include "sim/swarm.h"

#include <algorithm>

#include "base/check.h"
#include "layout/lease.h"
#include "layout/segment.h"
#include "node/memory_node.h"
#include "protocols/protocols.h"
#include "sim/dialect.h"
#include "sim/housekeeping.h"
#include "sim/last_words.h"
#include "sim/story.h"
#include "sim/survey.h"
#include "sim/swarm_play.h"
#include "sim/swarm_storm.h"

namespace farpool::sim {
namespace {

// A client's name, in all of its lives.
struct Person {
  Client* now = nullptr;
};

struct Job {
  World& world;
  Person& person;
  Client* client;
  std::vector<Client*>& clients;
  std::vector<Call> calls;
  bool new_lives = false;
  Nanos thought = 0;
  std::size_t done = 0;
};

task::Task<void> enter(World& world, Client& client) {
  for (int tries = 0; tries < 50 && !client.connected(); ++tries) {
    co_await world.open(client);
    if (!client.connected()) co_await client.port().sleep_for(20 * base::kMillisecond);
  }
}

task::Task<void> work(Job job) {
  const Nanos give_up = job.client->port().now() + 10 * base::kSecond;
  while (!job.client->connected() && job.client->port().now() < give_up) {
    co_await job.client->port().sleep_for(100 * base::kMicrosecond);
  }
  if (!job.client->connected()) co_return;
  for (std::size_t& i = job.done; i < job.calls.size(); ++i) {
    if (job.new_lives && !job.client->session().alive()) {
      if (job.person.now == job.client) {
        job.person.now = &job.world.add(job.client->name() + "'");
        job.clients.push_back(job.person.now);
        job.world.spawn(*job.person.now, enter(job.world, *job.person.now));
      }
      job.client = job.person.now;
      World& world = job.world;
      Client& next = *job.client;
      world.spawn(next, work(job));
      co_return;
    }
    if (job.thought > 0) {
      const std::uint64_t most = static_cast<std::uint64_t>(job.thought);
      co_await job.client->port().sleep_for(static_cast<Nanos>(job.client->port().random() % most));
    }
    co_await job.world.call(*job.client, job.calls[i], 20 * base::kSecond);
  }
}

task::Task<void> do_all(World& world, Client& client, std::vector<Call> calls) {
  for (Call& call : calls) co_await world.call(client, std::move(call), 20 * base::kSecond);
}

task::Task<void> read_all(World& world, Client& client, const std::vector<std::string>& keys) {
  for (const std::string& key : keys)
    co_await world.call(client, {.kind = Call::Kind::get, .key = key}, 20 * base::kSecond);
}

task::Task<void> sweep(Client& client) {
  fabric::Cost cost;
  (void)co_await client.table().sweep(client.port().now() + base::kSecond, cost);
  co_await keep_house(client);
}

// Faults have ended: all that the dead left must go away, with a client there that is told of them, their memory
// included: segments of their own, and blocks in the segments of the living.
void clean_up(World& world, Client& cleaner, Verdict& verdict) {
  bool taken_over = false;  // a round ago: what was taken over has been looked through by now
  for (int times = 0; times < 8; ++times) {
    const Nanos lease_over = world.network().now() + 3 * base::kSecond;
    world.run_until([&] { return world.network().now() >= lease_over; });
    std::vector<Client*> others;
    for (const auto& client : world.clients()) {
      if (client.get() == &cleaner || client->crashed() || !client->connected() || !client->session().alive()) continue;
      world.spawn(*others.emplace_back(client.get()), keep_house(*client));
    }
    bool over = world.run(cleaner, sweep(cleaner));
    for (Client* other : others) over = world.settle(*other) && over;
    if (!over || !world.quiesce()) break;
    const Survey now = survey(world);
    if (taken_over && now.unrepaired().empty() && now.blocks_lost + now.tentative == 0) return;
    taken_over = world.node().stats().segments.dead == 0;
  }
  if (world.node().stats().segments.dead > 0) verdict.wrong.push_back("for ever: segments of the dead");
  const Survey left = survey(world);
  for (const std::string& what : left.unrepaired()) verdict.wrong.push_back("for ever: " + what);
  if (left.tentative > 0) verdict.wrong.push_back("for ever: " + std::to_string(left.tentative) + " tentative slots");
}

// `to_the_last`: no block may be lost. Not asked of worlds in which the memory node restarts or ends sessions that it
// goes on to count.
void look(const World& world, const char* when, bool to_the_last, Verdict& verdict) {
  const Survey found = survey(world);
  for (const std::string& what : found.wrong) verdict.wrong.push_back(std::string(when) + ": " + what);
  if (to_the_last && found.blocks_lost > 0) {
    verdict.wrong.push_back(std::string(when) + ": " + std::to_string(found.blocks_lost) + " blocks are lost");
  }
}

// Arguments of simulate that choose this driver.
std::string driver_of(const Take& take) {
  return flag_of(take.protocol) + (take.scans ? "--scans " : "") + (take.compactions ? "--compactions " : "") +
         (take.clearings ? "--clearings " : "");
}

// One world, from its draw to its verdict.
class Run {
 public:
  Run(std::uint64_t seed, const Take& take)
      : take_(take), setting_(draw_swarm_setting(seed, take)), world_(setting_.world), begun_(populate(seed)) {}
  Verdict judge() {
    if (play() && settle()) {
      tell_of_storm();
      read_back();
      judge_calls();
      leave();
    }
    return std::move(verdict_);
  }

 private:
  Nanos populate(std::uint64_t seed);
  bool play();
  bool settle();
  void tell_of_storm();
  void read_back();
  void judge_calls();
  void leave();
  // Where messages straggle for long, a slot may stand still for too long.
  bool slow() const { return setting_.world.wire.straggle_delay >= setting_.world.failure_timeout / 16; }

  const Take& take_;
  const SwarmSetting setting_;
  Verdict verdict_;
  Storm storm_;
  Haunt haunt_;
  World world_;
  std::vector<Client*> clients_;
  std::vector<std::string> keys_;
  SwarmPlay play_;
  std::vector<Person> persons_;
  std::vector<bool> sound_;  // a client without a fault is not fenced
  Client* reader_ = nullptr;
  const Nanos begun_;
};

// Connects the clients, and draws what they do. Returns when they can begin.
Nanos Run::populate(std::uint64_t seed) {
  verdict_.setting = describe(setting_);
  for (std::size_t i = 0; i < setting_.clients; ++i) clients_.push_back(&world_.connect("client-" + std::to_string(i)));
  const std::uint64_t border = layout::kLocksPerWord * world_.geometry().rows_per_lock;
  const bool at_border = setting_.border && border + setting_.window <= world_.geometry().rows;
  const std::uint64_t first = at_border ? border - setting_.window / 2 : 10;
  keys_ = crowd(world_, first, setting_.window, setting_.keys, "");
  const std::uint64_t in_a_row = clients_[0]->table().positions() / world_.geometry().rows_per_table();
  haunt_ = {.keys = keys_, .first = first * in_a_row, .end = (first + setting_.window) * in_a_row};
  if (!dialect_of(world_.geometry().protocol).scans_by_rows()) haunt_ = {.keys = keys_, .first = 0, .end = ~0ull};
  play_ = draw_swarm_play(setting_, keys_, seed);
  verdict_.elements = leave_out(play_, take_.part);
  return world_.network().now();
}

// Has the clients work, and faults strike them. Returns false if they cannot begin.
bool Run::play() {
  if (!play_.filling.empty() && !world_.run(*clients_[0], do_all(world_, *clients_[0], std::move(play_.filling)))) {
    verdict_.wrong.push_back("the rows could not be filled in time");
    return false;
  }
  persons_.resize(clients_.size());
  for (std::size_t i = 0; i < play_.work.size(); ++i) {
    Person& person = persons_[i / setting_.tasks];
    person.now = clients_[i / setting_.tasks];
    world_.spawn(*person.now, work({.world = world_,
                                    .person = person,
                                    .client = person.now,
                                    .clients = clients_,
                                    .calls = std::move(play_.work[i]),
                                    .new_lives = setting_.new_lives,
                                    .thought = setting_.thought}));
  }
  world_.network().options().lose_reply = play_.losses;
  sound_.assign(clients_.size(), !slow() && play_.losses == 0);
  for (const SwarmPlay::Fault& fault : play_.faults) {
    if (fault.kind == SwarmPlay::Fault::Kind::restart) sound_.assign(clients_.size(), false);
    const bool harmless = fault.kind == SwarmPlay::Fault::Kind::pause || fault.kind == SwarmPlay::Fault::Kind::split ||
                          fault.kind == SwarmPlay::Fault::Kind::scan ||
                          fault.kind == SwarmPlay::Fault::Kind::compaction ||
                          fault.kind == SwarmPlay::Fault::Kind::clearing;
    sound_[fault.client] = sound_[fault.client] && harmless;
    strike(world_, *clients_[fault.client], fault, haunt_, storm_);
  }
  return true;
}

// Waits until all have done what they do. Returns false if that does not come about.
bool Run::settle() {
  for (std::size_t i = 0; i < clients_.size(); ++i) {  // lives may begin meanwhile
    Client* client = clients_[i];
    if (setting_.zombies > 0) {
      // One that is stopped later than that goes on when nobody else has anything to do.
      world_.settle(*client, base::kSecond);
      client->port().pause_after(~0ull >> 1);
      storm_.wake(*client);
    }
    if (!world_.settle(*client)) {
      verdict_.wrong.push_back("client " + client->name() +
                               " did not come to an end within a minute of virtual time or " +
                               std::to_string(fabric::sim::kMostSteps) + " steps");
      if (take_.tells) verdict_.story = story(world_, begun_);
      for (Client* one : clients_) one->port().crash(fabric::sim::InFlight::cut);  // or nobody could say goodbye
      return false;
    }
  }
  storm_.over = true;
  if (!storm_.taken_up) {
    verdict_.wrong.push_back("the memory could not be taken up");
    return false;
  }
  return true;
}

void Run::tell_of_storm() {
  for (std::size_t i = 0; i < sound_.size(); ++i) {
    if (sound_[i] && clients_[i]->ended()) {
      verdict_.wrong.push_back("client " + clients_[i]->name() +
                               " was fenced, although nothing befell it: " + clients_[i]->session().why().message());
    }
  }
  verdict_.restarts = storm_.restarts;
  verdict_.losses = storm_.losses;
  verdict_.revocations = storm_.revocations;
  verdict_.new_lives = clients_.size() - setting_.clients;
  verdict_.zombies = storm_.zombies.size();
  for (const auto& [client, before] : storm_.zombies) verdict_.late_writes += client->port().effects() - before;
  if (verdict_.late_writes > 0)
    verdict_.wrong.push_back("what zombies wrote landed after their sessions had been ended");
  verdict_.scans = storm_.scans;
  verdict_.pages = world_.pages();
  for (const std::string& what : world_.strays()) verdict_.wrong.push_back(what);
  verdict_.budgeted = world_.budgeted();
  for (const std::string& what : world_.over_budget()) verdict_.wrong.push_back(what);
}

// Has another client read all keys, with no fault any more.
void Run::read_back() {
  world_.network().options().lose_reply = 0;
  for (Client* client : clients_) client->port().crash_after(~0ull >> 1, fabric::sim::InFlight::cut);
  reader_ = &world_.connect("reader");
  if (!world_.run(*reader_, read_all(world_, *reader_, keys_)))
    verdict_.wrong.push_back("the reader did not come to an end");
  if (take_.tells) verdict_.story = story(world_, begun_);
}

void Run::judge_calls() {
  if (const auto judged = world_.history().judge()) verdict_.wrong.push_back(*judged);
  for (const auto& [client, status] : world_.failures()) {
    ++verdict_.failures[std::string(base::name_of(status.code()))];
    // A few rows may be full, and fenced clients learn it. Nobody else is hindered by the dead.
    const bool fenced = status.code() == base::Code::unavailable || status.code() == base::Code::stale ||
                        status.code() == base::Code::unknown_outcome;
    // A completion that never comes holds up its client until the call's deadline.
    const bool held_up = status.code() == base::Code::timed_out && setting_.losses > 0;
    const bool faults = setting_.deaths + setting_.zombies + setting_.restarts + setting_.revocations > 0 ||
                        setting_.losses > 0 || slow();
    if (status.code() != base::Code::out_of_memory && !(fenced && faults) && !held_up) {
      verdict_.wrong.push_back("a call failed: " + status.message());
    }
  }
}

// Cleans up, and looks at what is left when all clients have gone.
void Run::leave() {
  if (!world_.quiesce()) verdict_.wrong.push_back("verbs are under way for ever");
  clean_up(world_, *reader_, verdict_);
  const bool to_the_last = setting_.restarts + setting_.revocations == 0;
  look(world_, "with all clients there", to_the_last, verdict_);
  for (Client* client : clients_) {
    if (!client->connected()) continue;
    if (client->heap() != nullptr) verdict_.emptied += client->heap()->usage().emptied;
    verdict_.marks += client->table().marks();
    verdict_.repairs += session::marks_of(client->session(), client->table().repairer());
    verdict_.effects += client->port().effects();
    if (!client->crashed()) world_.disconnect(*client);
  }
  verdict_.repairs += session::marks_of(reader_->session(), reader_->table().repairer());
  verdict_.marks += reader_->table().marks();
  world_.disconnect(*reader_);
  look(world_, "when all had gone", to_the_last, verdict_);
  verdict_.calls = world_.history().size();
  verdict_.trace_hash = world_.network().trace().hash();
}

}  // namespace

std::vector<std::string> crowd(const World& world, std::uint64_t first, std::uint64_t rows, std::size_t count,
                               const std::string& prefix) {
  const Dialect& dialect = dialect_of(world.geometry().protocol);
  FARPOOL_CHECK(rows >= 2 && first + rows <= world.geometry().rows_per_table());  // or there are no such keys
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; keys.size() < count; ++i) {
    std::string key = prefix + std::to_string(i);
    if (dialect.within(world, key, first, rows)) keys.push_back(std::move(key));
  }
  return keys;
}

Verdict run_swarm(std::uint64_t seed, const Take& take) {
  const LastWords words(driver_of(take) + "--seed " + std::to_string(seed) + " --only " + describe(take.part));
  return Run(seed, take).judge();
}

std::string explain(std::uint64_t seed, const ShrinkBudget& budget, const Take& take) {
  return explain(driver_of(take), seed, budget, [seed, take](const Selection& part, bool tells) -> Told {
    return run_swarm(seed, {.part = part,
                            .tells = tells,
                            .protocol = take.protocol,
                            .scans = take.scans,
                            .compactions = take.compactions,
                            .clearings = take.clearings});
  });
}

// Stale extents belong to no protocol: eras keep a block as long as a client that read its address may still follow it.
std::vector<std::string> never_reached(const index::Marks& marks, layout::Protocol protocol, bool scans) {
  const std::string_view owner = protocols::of(protocol).name();
  return base::never_counted(index::kMarks, marks, [&](const base::Count<index::Marks>& count) {
    return count.owner == owner && (scans || count.cause != base::Cause::scan) &&
           dialect_of(protocol).comes_to(count.value);
  });
}

// Waits for a lease are rare, and what is quarantined is a fault.
std::vector<std::string> never_reached(const session::RepairMarks& marks) {
  return base::never_counted(session::kRepairMarks, marks, [](const base::Count<session::RepairMarks>& count) {
    return count.value != &session::RepairMarks::lease_waits && count.value != &session::RepairMarks::quarantined;
  });
}

}  // namespace farpool::sim
