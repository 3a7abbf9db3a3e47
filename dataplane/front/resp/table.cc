// SPDX-License-Identifier: Apache-2.0
#include "front/resp/table.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "front/resp/bit_specs.h"
#include "front/resp/connection_specs.h"
#include "front/resp/generic_specs.h"
#include "front/resp/hash_specs.h"
#include "front/resp/key_specs.h"
#include "front/resp/server_specs.h"
#include "front/resp/shard_specs.h"
#include "front/resp/string_specs.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

// Puts parts of the table together, sorted by name.
template <std::size_t... sizes>
constexpr auto joined(const std::array<CommandSpec, sizes>&... parts) {
  std::array<CommandSpec, (sizes + ...)> all;
  auto end = all.begin();
  ((end = std::copy(parts.begin(), parts.end(), end)), ...);
  std::sort(all.begin(), all.end(), [](const CommandSpec& a, const CommandSpec& b) { return a.name < b.name; });
  return all;
}
constexpr std::array kCommands = joined(kConnectionCommands, kShardCommands, kGenericCommands, kKeyCommands,
                                        kStringCommands, kBitCommands, kHashCommands, kServerCommands);

// Every entry of the table in the order of its number.
const std::vector<const CommandSpec*>& numbered() {
  static const std::vector<const CommandSpec*> all = [] {
    std::vector<const CommandSpec*> entries;
    for (const CommandSpec& spec : kCommands) entries.push_back(&spec);
    for (const CommandSpec& spec : kCommands) {
      for (const CommandSpec& sub : spec.subcommands) entries.push_back(&sub);
    }
    FARPOOL_CHECK(entries.size() <= kMaxCommands);
    return entries;
  }();
  return all;
}

const CommandSpec* find_in(std::span<const CommandSpec> table, std::string_view name) {
  const auto found =
      std::lower_bound(table.begin(), table.end(), name, [](const CommandSpec& spec, std::string_view wanted) {
        const std::string_view own = spec.short_name();
        return std::lexicographical_compare(own.begin(), own.end(), wanted.begin(), wanted.end(),
                                            [](char a, char b) { return lower(a) < lower(b); });
      });
  return found != table.end() && same_word(found->short_name(), name) ? &*found : nullptr;
}

// Where each command of the table stands, by a hash of its name: one behind the next where hashes are equal.
class Places {
 public:
  constexpr Places() {
    static_assert(kCommands.size() * 2 < kPlaces && kCommands.size() < 255);
    for (std::size_t i = 0; i < kCommands.size(); ++i) {
      std::size_t place = hash(kCommands[i].name);
      while (numbers_[place] != 0) place = (place + 1) % kPlaces;
      numbers_[place] = static_cast<std::uint8_t>(i + 1);
    }
  }
  const CommandSpec* find(std::string_view name) const {
    for (std::size_t place = hash(name); numbers_[place] != 0; place = (place + 1) % kPlaces) {
      const CommandSpec& spec = kCommands[numbers_[place] - 1u];
      if (same_word(spec.name, name)) return &spec;
    }
    return nullptr;
  }

 private:
  static constexpr std::size_t kPlaces = 256;
  static constexpr std::size_t kLongest = 16;  // what comes behind is not hashed
  static constexpr std::size_t hash(std::string_view name) {
    std::size_t hash = name.size();
    for (const char c : name.substr(0, kLongest)) hash = hash * 31 + static_cast<unsigned char>(lower(c));
    return hash % kPlaces;
  }

  std::array<std::uint8_t, kPlaces> numbers_{};  // in the table, from 1 on
};
constexpr Places kPlacesOfCommands;

}  // namespace

std::span<const CommandSpec> commands() { return kCommands; }
const CommandSpec* find_command(std::string_view name) { return kPlacesOfCommands.find(name); }
const CommandSpec* find_subcommand(const CommandSpec& parent, std::string_view name) {
  return find_in(parent.subcommands, name);
}

std::size_t number_of(const CommandSpec& spec) {
  if (&spec >= kCommands.data() && &spec < kCommands.data() + kCommands.size()) {
    return static_cast<std::size_t>(&spec - kCommands.data());
  }
  const auto& all = numbered();
  return static_cast<std::size_t>(std::find(all.begin(), all.end(), &spec) - all.begin());
}

const CommandSpec* command_at(std::size_t number) { return number < numbered().size() ? numbered()[number] : nullptr; }

}  // namespace farpool::front::resp
