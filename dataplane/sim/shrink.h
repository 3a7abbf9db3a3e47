// SPDX-License-Identifier: Apache-2.0
// Makes a wrong random run as small as it can be while it stays wrong.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace farpool::sim {

// Says which of a seed's elements run, and which are left out: calls, task by task, then faults.
struct Selection {
  std::vector<bool> kept;  // empty: everything
  std::uint64_t salt = 0;  // other delays
  bool has(std::size_t element) const { return kept.empty() || (element < kept.size() && kept[element]); }
};
// Writes `all`, `none`, or numbers as in `3,7-9`; `/2` behind it means salt 2.
std::string describe(const Selection& part);
std::optional<Selection> parse_selection(const std::string& text);

struct ShrinkBudget {
  std::uint64_t runs = 1500;
  std::chrono::milliseconds time{20'000};
};
// Returns the smallest part found that fails like the whole: it leaves elements out, and draws delays anew, until every
// remaining element is needed or the budget is spent.
Selection shrink(std::size_t elements, const std::function<bool(const Selection&)>& fails, const ShrinkBudget& budget,
                 std::uint64_t& runs);

// What is known of a run, whatever its driver.
struct Told {
  std::vector<std::string> wrong;  // empty: the run was right
  std::size_t elements = 0;        // that the seed drew
  std::string setting;             // what the seed drew, for people
  std::string story;               // line by line, for people, if it was asked for
};
// Returns, for a failing seed, what is wrong, the shrunk story, and the command that replays it; `driver` are the
// arguments of simulate that choose the driver, with a blank behind them.
std::string explain(const std::string& driver, std::uint64_t seed, const ShrinkBudget& budget,
                    const std::function<Told(const Selection&, bool tells)>& run);

}  // namespace farpool::sim
