// SPDX-License-Identifier: Apache-2.0
#include "sim/story.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "layout/calls.h"

namespace farpool::sim {
namespace {

using fabric::Fate;
using fabric::Verb;
using fabric::sim::ChainRecord;

std::string shorten(const std::string& value) { return value.size() > 16 ? value.substr(0, 12) + "..." : value; }

std::string verbs_of(const layout::Geometry& geometry, const ChainRecord& chain) {
  std::string text;
  for (const auto& verb : chain.verbs) {
    text += (text.empty() ? "" : "; ") + std::string(fabric::sim::name_of(verb.verb)) + " ";
    text += verb.verb == Verb::call ? "of the memory node, opcode " + std::to_string(verb.opcode)
                                    : name_place(geometry, verb.at, verb.bytes);
  }
  return text;
}

}  // namespace

void Story::add(const History& history) {
  for (const Call& call : history.calls()) {
    if (call.key.empty()) continue;  // it failed without effect
    const std::string name = std::string(name_of(call.kind)) + " " + call.key;
    say(call.asked, call.client, "asks " + name + (call.value.empty() ? "" : " = " + shorten(call.value)));
    if (!call.known) continue;
    say(call.answered, call.client,
        "is told " + name + ": " + (call.found ? shorten(*call.found) : std::string("nothing there")));
  }
}

void Story::add(const fabric::sim::Trace& trace, const layout::Geometry& geometry) {
  for (const ChainRecord& chain : trace.chains()) {
    if (chain.verbs.size() == 1 && chain.verbs[0].verb == Verb::call && chain.verbs[0].opcode == layout::kTick)
      continue;
    const std::string verbs = verbs_of(geometry, chain);
    say(chain.posted, chain.client,
        "posts " + verbs + (chain.ended == 0 ? ", and never learns what became of it" : ""));
    if (chain.ended == 0 || chain.fate == Fate::done) continue;
    say(chain.ended, chain.client,
        "learns that " + verbs + " may " +
            (chain.fate == Fate::refused ? "not be done any more" : "have been done, or not"));
  }
}

void Story::add(Nanos when, const std::string& who, const std::string& what) { lines_.push_back({when, who, what}); }

void Story::say(Nanos when, std::size_t client, std::string what) {
  lines_.push_back({when, "client " + std::to_string(client), std::move(what)});
}

std::string Story::tell(Nanos from, std::size_t most_lines) const {
  std::vector<const Line*> lines;
  for (const Line& line : lines_) {
    if (line.when >= from) lines.push_back(&line);
  }
  // Lines of one moment stand in the order in which they were added.
  std::sort(lines.begin(), lines.end(),
            [](const Line* a, const Line* b) { return a->when != b->when ? a->when < b->when : a < b; });
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines.size() > most_lines && i == most_lines / 2) {
      text += "  ... " + std::to_string(lines.size() - most_lines) + " lines ...\n";
      i += lines.size() - most_lines;
    }
    char head[32];
    std::snprintf(head, sizeof head, "  %10.3f us  ", static_cast<double>(lines[i]->when - from) * 1e-3);
    text += head + lines[i]->who + "  " + lines[i]->what + "\n";
  }
  return text;
}

std::string story(World& world, Nanos from) {
  Story all;
  all.add(world.history());
  all.add(world.network().trace(), world.geometry());
  return all.tell(from);
}

std::string commit() {
  const char* const named = std::getenv("FARPOOL_COMMIT");  // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
  return named == nullptr || *named == '\0' ? "unknown (FARPOOL_COMMIT is not set)" : named;
}

}  // namespace farpool::sim
