// SPDX-License-Identifier: Apache-2.0
#include "sim/story.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "layout/calls.h"

namespace farpool::sim {
namespace {

using fabric::Fate;
using fabric::Verb;
using fabric::sim::ChainRecord;

struct Line {
  Nanos when = 0;
  std::size_t client = 0;
  std::string text;
  std::size_t order = 0;  // of those of one moment
};

std::string shorten(const std::string& value) { return value.size() > 16 ? value.substr(0, 12) + "..." : value; }

std::string verbs_of(const World& world, const ChainRecord& chain) {
  std::string text;
  for (const auto& verb : chain.verbs) {
    text += (text.empty() ? "" : "; ") + std::string(fabric::sim::name_of(verb.verb)) + " ";
    text += verb.verb == Verb::call ? "of the memory node, opcode " + std::to_string(verb.opcode)
                                    : name_place(world.geometry(), verb.at, verb.bytes);
  }
  return text;
}

void add_chain(const World& world, const ChainRecord& chain, std::vector<Line>& lines) {
  if (chain.verbs.size() == 1 && chain.verbs[0].verb == Verb::call && chain.verbs[0].opcode == layout::kTick) return;
  lines.push_back({chain.posted, chain.client, "posts " + verbs_of(world, chain)});
  if (chain.ended == 0) {
    lines.back().text += ", and never learns what became of it";
  } else if (chain.fate != Fate::done) {
    lines.push_back({chain.ended, chain.client,
                     std::string("learns that ") + verbs_of(world, chain) + " may " +
                         (chain.fate == Fate::refused ? "not be done any more" : "have been done, or not")});
  }
}

void add_call(const Call& call, std::vector<Line>& lines) {
  if (call.key.empty()) return;  // it failed without effect
  const std::string name = std::string(name_of(call.kind)) + " " + call.key;
  lines.push_back({call.asked, call.client, "asks " + name + (call.value.empty() ? "" : " = " + shorten(call.value))});
  if (!call.known) return;
  lines.push_back({call.answered, call.client,
                   "is told " + name + ": " + (call.found ? shorten(*call.found) : std::string("nothing there"))});
}

}  // namespace

std::string story(World& world, Nanos from, std::size_t most_lines) {
  std::vector<Line> lines;
  for (const Call& call : world.history().calls()) add_call(call, lines);
  for (const ChainRecord& chain : world.network().trace().chains()) add_chain(world, chain, lines);
  std::erase_if(lines, [from](const Line& line) { return line.when < from; });
  for (std::size_t i = 0; i < lines.size(); ++i) lines[i].order = i;
  std::sort(lines.begin(), lines.end(),
            [](const Line& a, const Line& b) { return a.when != b.when ? a.when < b.when : a.order < b.order; });
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines.size() > most_lines && i == most_lines / 2) {
      text += "  ... " + std::to_string(lines.size() - most_lines) + " lines ...\n";
      i += lines.size() - most_lines;
    }
    char head[48];
    std::snprintf(head, sizeof head, "  %10.3f us  client %zu  ", static_cast<double>(lines[i].when - from) * 1e-3,
                  lines[i].client);
    text += head + lines[i].text + "\n";
  }
  return text;
}

std::string commit() {
  const char* const named = std::getenv("FARPOOL_COMMIT");  // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
  return named == nullptr || *named == '\0' ? "unknown (FARPOOL_COMMIT is not set)" : named;
}

}  // namespace farpool::sim
