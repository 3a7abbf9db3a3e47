// SPDX-License-Identifier: Apache-2.0
#include "sim/survey.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "directory/directory.h"
#include "layout/lease.h"
#include "node/audit.h"
#include "sim/dialect.h"

namespace farpool::sim {
namespace {

using layout::Geometry;
using layout::OperationSlot;

class Surveyor {
 public:
  explicit Surveyor(const World& world) : world_(world), g_(world.geometry()), dialect_(dialect_of(g_.protocol)) {
    for (const auto& client : world.clients()) {
      if (client->crashed()) dead_.insert(client->incarnation());
    }
  }
  Survey run() {
    const auto visit = [this](const index::Sighting& at) {
      found_.keys[std::string(at.key)].push_back({at.row, at.slot, std::string(at.value)});
      if (g_.marks() == 0) return;
      const std::uint64_t mark = g_.mark_of(at.row % g_.rows_per_table());
      const auto word = base::load<std::uint64_t>(world_.region(layout::kTable).data() + g_.mark_offset(mark));
      if (!layout::MarkWord::is_set(word)) unmarked_.insert(at.row);
    };
    const auto segment = [this](const node::FoundSegment& found, const node::Audit&) { count_blocks(found); };
    const node::Audit audit = node::audit_regions(g_, world_.memory(), world_.table_seed(), world_.pool_secret(),
                                                  {.visit = visit, .segment = segment});
    for (const node::Finding& finding : audit.findings) {
      if (node::kind_of(finding.wrong).damage) wrong(finding.what);
      if (finding.wrong == node::Wrong::counters_off && !dialect_.explains_counters(audit.keys_off, ended()))
        wrong(finding.what);
    }
    // The audit counts half-done operations as done. The client that finishes one sets the mark.
    for (const std::uint64_t row : unmarked_) {
      if (audit.half_done.rows.contains(row)) continue;
      wrong("row " + std::to_string(row) + " has an entry, and its mark says that it has none");
    }
    found_.tentative = audit.count(node::Wrong::insert_half_done);
    if (found_.tentative > 0 && ended() == 0) wrong("slots are tentative, and no client has ended");
    found_.set_lock_bits = audit.lock_bits;
    found_.barriers = audit.barriers;
    found_.leases = audit.leases.size();
    const directory::View directory(world_.region(layout::kDirectory), g_.tables);
    for (std::uint64_t table = 0; table < g_.tables; ++table) found_.splits += directory.split(table) != 0 ? 1 : 0;
    look_at_slots(audit);
    look_at_leases(audit);
    if (audit.table.torn_rows > 0 || !audit.half_done.rows.empty()) found_.torn_rows = dialect_.torn_rows(world_);
    look_at_owners();
    return std::move(found_);
  }

 private:
  void wrong(std::string what) { found_.wrong.push_back(std::move(what)); }

  std::uint64_t ended() const {
    return static_cast<std::uint64_t>(
        std::count_if(world_.clients().begin(), world_.clients().end(),
                      [](const auto& client) { return client->crashed() || client->ended(); }));
  }

  bool of_the_dead(std::uint64_t slot) const {
    for (const auto& client : world_.clients()) {
      const std::uint64_t first = client->slots_offset() / sizeof(OperationSlot);
      if (client->crashed() && slot >= first && slot < first + g_.slots_per_session) return true;
    }
    return false;
  }

  void look_at_slots(const node::Audit& audit) {
    for (const index::HalfDone::Slot& slot : audit.half_done.slots) {
      const std::string name = "operation slot " + std::to_string(slot.index);
      if (!of_the_dead(slot.index) || !dead_.contains(slot.says.holder)) {
        wrong(name + " says something, and its holder is not dead");
        continue;
      }
      ++found_.slots_of_the_dead;
      const bool claims = std::any_of(slot.says.lock_word.begin(), slot.says.lock_word.end(),
                                      [](const layout::HeldLocks& held) { return held.mask != 0; });
      if (slot.says.claims() && !claims) wrong(name + " claims nothing");
    }
  }

  void look_at_leases(const node::Audit& audit) {
    for (const std::uint64_t word : audit.leases) {
      const bool of_the_dead =
          std::any_of(world_.clients().begin(), world_.clients().end(), [word](const auto& client) {
            return client->crashed() && client->session_id() == layout::LeaseWord::Session::get(word);
          });
      if (!of_the_dead) wrong("a repair lease is held, and its holder is not dead");
    }
  }

  void count_blocks(const node::FoundSegment& found) {
    using Kind = node::FoundSegment::Kind;
    if (found.kind != Kind::owned && found.kind != Kind::orphan) return;
    std::uint64_t others = found.shape.blocks;
    for (std::uint64_t word = 0; word < found.shape.bitmap_words; ++word) {
      others -= static_cast<std::uint64_t>(std::popcount(found.in_use[word] | found.marked[word]));
    }
    with_owner_[found.owner] += others;
  }

  void look_at_owners() {
    for (const auto& [owner, blocks] : with_owner_) {
      const Client* client = owner_of(owner);
      if (client != nullptr && (client->crashed() || client->ended())) continue;  // with the dead
      std::uint64_t kept = 0;
      if (client != nullptr && client->connected()) {
        const heap::Heap::Usage usage = const_cast<Client*>(client)->heap()->usage();
        kept = usage.blocks_free + usage.blocks_limbo;
      }
      if (blocks < kept) wrong("a client holds more free blocks than its segments have");
      found_.blocks_lost += blocks > kept ? blocks - kept : 0;
    }
    // Allows a few for each life that ended between clearing its slots and freeing what its operations had replaced.
    constexpr std::uint64_t kFreesOnTheirWay = 16;
    if (found_.blocks_lost > found_.slots_of_the_dead + kFreesOnTheirWay * ended()) {
      wrong(std::to_string(found_.blocks_lost) + " blocks are neither reachable, nor free, nor with an owner");
    }
  }
  const Client* owner_of(std::uint64_t session_id) const {
    for (const auto& client : world_.clients()) {
      if (session_id != 0 && client->session_id() == session_id) return client.get();
    }
    return nullptr;
  }

  const World& world_;
  const Geometry& g_;
  const Dialect& dialect_;
  std::set<std::uint64_t> dead_;
  std::set<std::uint64_t> unmarked_;                   // rows with entries
  std::map<std::uint64_t, std::uint64_t> with_owner_;  // session -> blocks that are neither in use nor marked free
  Survey found_;
};

}  // namespace

std::vector<std::string> Survey::unrepaired() const {
  std::vector<std::string> left;
  const auto none = [&left](std::uint64_t count, const char* what) {
    if (count > 0) left.push_back(std::to_string(count) + " " + what + " left by the dead");
  };
  none(set_lock_bits, "locks");
  none(barriers, "barriers");
  none(leases, "repair leases");
  none(slots_of_the_dead, "operation slots");
  none(splits, "splits");
  none(torn_rows.size(), "torn rows");
  for (const auto& [key, places] : keys) {
    if (places.size() > 1) left.push_back("a key lies in " + std::to_string(places.size()) + " places");
  }
  return left;
}

std::string Survey::report() const {
  std::string text;
  for (const std::string& what : wrong) text += what + "\n";
  return text;
}

Survey survey(const World& world) { return Surveyor(world).run(); }

}  // namespace farpool::sim
