// SPDX-License-Identifier: Apache-2.0
// What stories of golden traces (index/contract/stage_test.h) say of RACE: keys by the groups they lie in, slots,
// headers, and the steps of splits and moves.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "directory/directory.h"
#include "index/contract/stage_test.h"
#include "index/race/layout.h"
#include "index/race/locate.h"
#include "layout/lease.h"

namespace farpool::race {

class StageTeller final : public index::contract::Teller {
 public:
  using Words = index::contract::Words;
  using Stage = index::contract::Stage;

  // One table; or many small ones, that are split, on a wire on which all takes the same time: then verbs that are
  // posted side by side are one trip in the trace, too.
  sim::WorldOptions options(std::uint64_t tables) const override {
    sim::WorldOptions options;
    options.wire.keep_chains = true;
    options.wire.tear = false;
    options.wire.straggle = 0;
    options.geometry = {.memory_bytes = 32 << 20,
                        .table_percent = 3,
                        .max_sessions = 4,
                        .slots_per_session = 4,
                        .protocol = layout::Protocol::race,
                        .tables = tables};
    if (tables == 1) return options;
    options.wire.min_delay = options.wire.max_delay = base::kMicrosecond;
    options.wire.spread = 0;
    options.geometry.memory_bytes = 2560 << 10;
    options.geometry.table_percent = 1;
    return options;
  }
  std::vector<int> warm(std::uint64_t tables) const override {
    return tables == 1 ? std::vector{1, 30, 60, 100, 20000} : std::vector{1};
  }
  void enter(sim::World& world) override { world_ = &world; }
  bool by_time() const override { return tables() > 1; }

  // Keys that were named by where they lie, see arrange().
  std::string key_of(const std::string& name) override { return key(name); }
  std::string name_of_key(const std::string& key) const override {
    for (const auto& [name, of] : keys_) {
      if (of == key) return name;
    }
    return key;
  }

  //  key k 1 3 01 [leaves|stays]   a key of this name lies in groups 1 and 3; its directory hash ends in 01
  //  key k 1 3 01 like l           its slots might be l's, as far as print and places go
  //  stand k                       its slot is tentative, as if its inserter had died before it committed
  //  twin k                        a slot of another key with the same print lies in a bucket of the key
  //  directory                     what it says
  std::optional<std::string> arrange(Stage& stage, sim::Client& client, const Words& words) override {
    if (words[0] == "directory") return tell_directory();
    if (words[0] == "stand") {
      const auto [offset, slot] = find(words.at(1));
      world_->run(client, cas(&client, offset, slot.word(), slot.as(Slot::State::tentative).word()));
      return "= its slot is tentative\n";
    }
    if (words[0] == "twin") return twin(stage, client, words.at(1));
    if (words[0] != "key") return {};
    for (std::uint64_t i = 0; !fits(words, i); ++i) {
    }
    return "";
  }

  //  told       the directory says that a table is being split, and its lease has been given back
  //  closed k   a header of the key's first group does not cover the key any more
  //  moving k   so is the key's slot; leaving k, tentative k as well
  //  half k     the key's first group is open in the middle alone
  //  opened k   it is open
  //  shut k     it has the number of a move
  //  clearing   all groups have been moved
  bool reached(const Words& step) override {
    const std::string& what = step[0];
    bool told = false, clearing = false;
    for (std::uint64_t table = 0; table < tables(); ++table) {
      const auto phase = layout::SplitWord::phase(view().split(table));
      told |= phase != layout::SplitWord::none;
      clearing |= phase == layout::SplitWord::clearing;
    }
    if (what == "clearing") return clearing;
    if (what == "told") {
      const auto lease =
          base::load<std::uint64_t>(world_->region(layout::kLeases).data() + 8 * layout::kDirectoryLease);
      return told && !layout::LeaseWord::held(lease);
    }
    const std::string& name = step.at(1);
    if (what == "moving" || what == "leaving" || what == "tentative") {
      const auto found = look_for(name);
      const Slot slot = found ? found->second : Slot();
      return what == "moving" ? slot.moving() : what == "leaving" ? slot.leaving() : slot.tentative();
    }
    const auto [from, to] = tables_of(name);
    const Place place = places_of(name)[0];
    const std::uint64_t main = 2 * place.side;
    if (what == "closed") {
      return from != to && !HeaderWord::covers(header(from, place.group, main), directory::hash_of(hash_of(name)));
    }
    if (what == "shut") return HeaderWord::Move::get(header(from, place.group, main)) != 0;
    const bool middle = HeaderWord::open(header(to, place.group, kOpenedFirst));
    const bool side = HeaderWord::open(header(to, place.group, main));
    if (what == "half") return middle && !side;
    EXPECT_EQ(what, "opened");
    return from != to && side && HeaderWord::open(header(to, place.group, 2 - main));
  }

  std::uint64_t position(std::uint64_t number) const override { return number << layout::most_depth(tables()); }
  std::string tell_position(std::uint64_t position) const override {
    const std::uint64_t bits = layout::most_depth(tables()), group = position >> bits;
    std::uint64_t hash = 0, known = 0;
    for (std::uint64_t i = 0; i < bits; ++i) {
      if ((position >> (bits - 1 - i) & 1) == 0) continue;
      hash |= 1ull << i;
      known = i + 1;
    }
    return "group " + std::to_string(group) + (known == 0 ? "" : " from .." + binary(hash, known) + " on");
  }

  // Which of the two a device has changes nothing in what is traced.
  const char* name_of(fabric::Verb verb) const override {
    return fabric::sim::name_of(verb == fabric::Verb::masked_cas ? fabric::Verb::cas : verb);
  }
  std::string describe(const fabric::sim::VerbRecord& verb) const override {
    using fabric::Verb;
    if (verb.verb == Verb::fetch_add) return verb.at.region == layout::kTable ? "set once more" : "free";
    if (verb.verb == Verb::call) return "ends it, if it stands still";
    if (verb.verb == Verb::read || verb.verb == Verb::write) return std::to_string(verb.bytes) + " B";
    if (verb.at.region == layout::kLeases) {
      const bool before = layout::LeaseWord::held(verb.compare), after = layout::LeaseWord::held(verb.swap);
      const bool same = layout::LeaseWord::Session::get(verb.compare) == layout::LeaseWord::Session::get(verb.swap);
      return !after ? "to free" : !before ? "to held" : same ? "to held still" : "stolen";
    }
    if (verb.at.offset % kBucketBytes == 0) {
      const std::uint64_t depth = HeaderWord::Depth::get(verb.swap), move = HeaderWord::Move::get(verb.swap);
      return (depth == 0 ? "to all keys" : "to keys .." + binary(HeaderWord::Suffix::get(verb.swap), depth)) +
             (move == 0 ? "" : ", move " + std::to_string(move));
    }
    const Slot to(verb.swap);
    return to.empty()       ? "to empty"
           : to.tentative() ? "to tentative"
           : to.moving()    ? "to moving"
           : to.leaving()   ? "to leaving"
                            : "to committed";
  }
  std::optional<std::pair<std::uint64_t, std::string>> row_of(const fabric::sim::VerbRecord& verb) const override {
    if (tables() == 1 || verb.at.region != layout::kTable || verb.at.offset >= world_->geometry().mark_offset(0)) {
      return {};
    }
    const std::uint64_t row = verb.at.offset / kGroupBytes;
    return std::pair(row % groups(),
                     std::to_string(row / groups()) + "/" + std::to_string(verb.at.offset % kGroupBytes));
  }

 private:
  std::uint64_t tables() const { return world_->geometry().tables; }
  std::uint64_t groups() const { return world_->geometry().rows_per_table(); }
  directory::View view() const { return {world_->region(layout::kDirectory), tables()}; }
  std::string key(const std::string& name) const { return keys_.contains(name) ? keys_.at(name) : name; }
  std::uint64_t hash_of(const std::string& name) const {
    return base::keyed_hash(world_->pool_secret(), base::bytes_of(key(name)));
  }
  std::uint64_t table_hash(const std::string& name) const {
    return base::keyed_hash(world_->table_seed(), base::bytes_of(key(name)));
  }
  Places places_of(const std::string& name) const { return locate(table_hash(name), groups()); }
  // The table that has the key, or from which a split takes it, and the new one.
  std::pair<std::uint64_t, std::uint64_t> tables_of(const std::string& name) const {
    const directory::Route route = *directory::route(view(), directory::hash_of(hash_of(name)));
    return {route.old.value_or(route.table), route.table};
  }
  std::uint64_t header(std::uint64_t table, std::uint64_t group, std::uint64_t bucket) const {
    const std::uint64_t offset = (table * groups() + group) * kGroupBytes + bucket * kBucketBytes;
    return base::load<std::uint64_t>(world_->region(layout::kTable).data() + offset);
  }
  // Returns the place and the slot of a key, in the oldest table that has it.
  std::optional<std::pair<std::uint64_t, Slot>> look_for(const std::string& name) const {
    for (std::uint64_t table = 0; table < tables(); ++table) {
      for (Place place : places_of(name)) {
        place.group += table * groups();
        for (std::uint64_t i = 0; i < kCombinedSlots; ++i) {
          const Slot slot(base::load<std::uint64_t>(world_->region(layout::kTable).data() + place.slot_offset(i)));
          if (!slot.empty() && slot.print() == print_of(table_hash(name))) return std::pair(place.slot_offset(i), slot);
        }
      }
    }
    return std::nullopt;
  }
  std::pair<std::uint64_t, Slot> find(const std::string& name) const {
    const auto found = look_for(name);
    if (found) return *found;
    ADD_FAILURE() << name << " is in no slot";
    return {};
  }

  // Tries the i-th key for a name, and says whether it lies as the words of `key` ask.
  bool fits(const Words& words, std::uint64_t i) {
    const std::string& name = words.at(1);
    keys_[name] = i == 0 ? name : name + std::to_string(i);
    const Places places = places_of(name);
    const std::string& suffix = words.at(4);
    if (places[0].group != std::stoull(words[2]) || places[1].group != std::stoull(words[3])) return false;
    if (directory::low_bits(directory::hash_of(hash_of(name)), suffix.size()) != std::stoull(suffix, nullptr, 2)) {
      return false;
    }
    if (words.size() > 6) {
      return places == places_of(words[6]) && print_of(table_hash(name)) == print_of(table_hash(words[6]));
    }
    const bool leaves = (hash_of(name) & 1) == 0;
    return words.size() <= 5 || leaves == (words[5] == "leaves");
  }
  std::string twin(Stage& stage, sim::Client& client, const std::string& name) {
    (void)stage.run("put stranger s");
    const Slot stranger = find("stranger").second;
    const Slot twin = Slot::of(print_of(table_hash(name)), stranger.block(), 64, Slot::State::committed);
    world_->run(client, cas(&client, places_of(name)[1].slot_offset(kCombinedSlots - 1), 0, twin.word()));
    return "= another key of the same print lies beside it\n";
  }
  static task::Task<void> cas(sim::Client* client, std::uint64_t offset, std::uint64_t compare, std::uint64_t swap) {
    fabric::Cost cost;
    std::uint64_t before = 0;
    const std::array chain{fabric::Op::cas({layout::kTable, offset}, before, compare, swap)};
    (void)co_await client->session().post(chain, client->port().now() + base::kSecond, cost);
    EXPECT_EQ(before, compare);
  }

  static std::string binary(std::uint64_t bits, std::uint64_t count) {
    std::string text;
    for (std::uint64_t i = count; i > 0; --i) text += (bits >> (i - 1) & 1) != 0 ? '1' : '0';
    return text;
  }
  std::string tell_directory() const {
    std::string text = "= depth " + std::to_string(view().depth()) + ";";
    for (std::uint64_t i = 0; i < 1ull << view().depth(); ++i) {
      const std::uint64_t entry = view().entry(i);
      text += " " + binary(i, view().depth()) + ": table " + std::to_string(layout::EntryWord::Table::get(entry)) +
              ", " + std::to_string(layout::EntryWord::Depth::get(entry)) + " bits" +
              (layout::EntryWord::Splitting::get(entry) != 0 ? ", splitting;" : ";");
    }
    text.back() = '\n';
    return text;
  }

  sim::World* world_ = nullptr;
  std::map<std::string, std::string> keys_;
};

}  // namespace farpool::race
