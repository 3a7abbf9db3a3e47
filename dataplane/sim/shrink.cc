// SPDX-License-Identifier: Apache-2.0
#include "sim/shrink.h"

#include <algorithm>
#include <charconv>

#include "sim/story.h"

namespace farpool::sim {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint64_t kSalts =
    3;  // tried for every part, because whatever is left out changes all that is drawn later

class Shrinker {
 public:
  Shrinker(const std::function<bool(const Selection&)>& fails, std::size_t elements, const ShrinkBudget& budget)
      : fails_(fails), budget_(budget), until_(Clock::now() + budget.time) {
    part_.kept.assign(elements, true);
  }

  // Removes stretches that are not needed, then smaller ones, down to single elements, until none can go.
  Selection run(std::uint64_t& runs) {
    std::size_t stretch = std::max<std::size_t>(1, part_.kept.size() / 2);
    while (going()) {
      const bool smaller = pass(stretch);
      if (stretch == 1 && !smaller) break;
      if (!smaller) stretch = std::max<std::size_t>(1, stretch / 2);
    }
    runs = runs_;
    return part_;
  }

 private:
  bool going() const { return runs_ < budget_.runs && Clock::now() < until_; }

  // Tries to leave out each stretch of what is kept, the last one first. Returns whether one went.
  bool pass(std::size_t stretch) {
    bool any = false;
    const std::vector<std::size_t> kept = kept_elements();
    for (std::size_t end = kept.size(); end > 0 && going();) {
      const std::size_t begin = end > stretch ? end - stretch : 0;
      Selection without = part_;
      for (std::size_t i = begin; i < end; ++i) without.kept[kept[i]] = false;
      any = still_fails(without) || any;
      end = begin;
    }
    return any;
  }

  bool still_fails(Selection part) {
    const std::uint64_t first = part_.salt;
    for (std::uint64_t i = 0; i < kSalts && going(); ++i) {
      part.salt = (first + i) % kSalts;
      ++runs_;
      if (!fails_(part)) continue;
      part_ = part;
      return true;
    }
    return false;
  }

  std::vector<std::size_t> kept_elements() const {
    std::vector<std::size_t> kept;
    for (std::size_t i = 0; i < part_.kept.size(); ++i) {
      if (part_.kept[i]) kept.push_back(i);
    }
    return kept;
  }

  const std::function<bool(const Selection&)>& fails_;
  const ShrinkBudget budget_;
  const Clock::time_point until_;
  Selection part_;
  std::uint64_t runs_ = 0;
};

}  // namespace

Selection shrink(std::size_t elements, const std::function<bool(const Selection&)>& fails, const ShrinkBudget& budget,
                 std::uint64_t& runs) {
  return Shrinker(fails, elements, budget).run(runs);
}

std::string describe(const Selection& part) {
  if (part.kept.empty() && part.salt == 0) return "all";
  std::string text;
  for (std::size_t i = 0; i < part.kept.size(); ++i) {
    if (!part.kept[i]) continue;
    std::size_t last = i;
    while (last + 1 < part.kept.size() && part.kept[last + 1]) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(i) + (last > i ? "-" + std::to_string(last) : "");
    i = last;
  }
  if (text.empty()) text = part.kept.empty() ? "all" : "none";
  return part.salt == 0 ? text : text + "/" + std::to_string(part.salt);
}

std::optional<Selection> parse_selection(const std::string& text) {
  constexpr std::size_t kMost = 100'000;
  Selection part;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](std::size_t& into) {
    const auto read = std::from_chars(at, end, into);
    at = read.ptr;
    return read.ec == std::errc() && into < kMost;
  };
  const auto skip = [&](char letter) {
    const bool there = at != end && *at == letter;
    at += there ? 1 : 0;
    return there;
  };
  if (text.starts_with("all")) {
    at += 3;
  } else if (text.starts_with("none")) {
    at += 4;
    part.kept.assign(1, false);
  } else {
    do {
      std::size_t first = 0, last = 0;
      if (!number(first)) return std::nullopt;
      last = first;
      if (skip('-') && (!number(last) || last < first)) return std::nullopt;
      if (part.kept.size() <= last) part.kept.resize(last + 1, false);
      std::fill(part.kept.begin() + static_cast<std::ptrdiff_t>(first),
                part.kept.begin() + static_cast<std::ptrdiff_t>(last) + 1, true);
    } while (skip(','));
  }
  if (skip('/') && !number(part.salt)) return std::nullopt;
  if (at != end) return std::nullopt;
  return part;
}

std::string explain(const std::string& driver, std::uint64_t seed, const ShrinkBudget& budget,
                    const std::function<Told(const Selection&, bool tells)>& run) {
  const std::size_t elements = run({}, false).elements;
  std::uint64_t runs = 0;
  const Selection part = shrink(
      elements, [&run](const Selection& one) { return !run(one, false).wrong.empty(); }, budget, runs);
  const Told told = run(part, true);
  const auto left = std::count(part.kept.begin(), part.kept.end(), true);
  std::string text = "seed " + std::to_string(seed) + ", commit " + commit() + ": " + told.setting + "\n";
  text += std::to_string(left) + " of its " + std::to_string(elements) + " calls and faults are enough (" +
          std::to_string(runs) + " runs tried):\n" + told.story;
  for (const std::string& what : told.wrong) text += "  wrong: " + what + "\n";
  return text + "replay: simulate " + driver + "--seed " + std::to_string(seed) + " --only " + describe(part) + "\n";
}

}  // namespace farpool::sim
