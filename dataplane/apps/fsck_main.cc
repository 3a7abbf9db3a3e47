// SPDX-License-Identifier: Apache-2.0
// farpool-fsck: an account of every byte of a memory node's file.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "node/audit.h"
#include "node/memory.h"

namespace farpool::apps {
namespace {

using node::Audit;
using node::Finding;
using node::kind_of;
using node::Use;
using node::Wrong;
// Keys keep the order in which they are written.
using Json = nlohmann::ordered_json;

constexpr int kClean = 0, kDamaged = 1, kUnreadable = 2;
constexpr std::uint64_t kLongImage = 256ull << 20;
constexpr auto kProgress = std::chrono::seconds(1);

std::string hex(std::uint64_t word) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(word));
  return text.data();
}

const char* verdict_of(const Audit& audit) {
  return audit.damage() > 0 ? "damaged" : audit.explained() > 0 ? "unfinished" : "clean";
}

Json json_of(const Finding& finding) {
  const node::WrongKind& kind = kind_of(finding.wrong);
  Json json{{"kind", kind.name},
            {"severity", kind.damage ? "damage" : "explained"},
            {"region", finding.region},
            {"offset", finding.offset}};
  const auto number = [&json](const char* name, const std::optional<std::uint64_t>& value) {
    if (value) json[name] = *value;
  };
  number("row", finding.row);
  number("entry", finding.entry);
  number("segment", finding.segment);
  number("operationSlot", finding.operation_slot);
  number("lockWord", finding.lock_word);
  json["what"] = finding.what;
  json["remedy"] = kind.remedy;
  json["mendedByRestart"] = kind.mended;
  return json;
}

Json json_of(const std::string& path, const node::MemoryAudit& memory) {
  const Audit& audit = memory.audit;
  const layout::Geometry& g = memory.record.geometry;
  Json bytes = Json::object(), kinds = Json::object(), findings = Json::array();
  for (std::size_t i = 0; i < node::kUses; ++i)
    bytes[std::string(name_of(static_cast<Use>(i)))] = audit.bytes_of_use[i];
  for (std::size_t i = 0; i < node::kWrongs; ++i) {
    if (audit.of_kind[i] > 0) kinds[std::string(kind_of(static_cast<Wrong>(i)).name)] = audit.of_kind[i];
  }
  for (const Finding& finding : audit.findings) findings.push_back(json_of(finding));
  return {{"version", 1},
          {"image", path},
          {"verdict", verdict_of(audit)},
          {"memory",
           {{"bytes", g.memory_bytes},
            {"incarnation", hex(memory.record.incarnation)},
            {"pool", hex(memory.record.pool)},
            {"epoch", memory.record.epoch},
            {"lives", memory.record.lives},
            {"rows", g.rows},
            {"entriesPerRow", g.entries_per_row},
            {"entryBytes", g.entry_bytes},
            {"locks", g.lock_bits},
            {"operationSlots", g.max_sessions * g.slots_per_session},
            {"segments", g.segments},
            {"segmentBytes", g.segment_bytes}}},
          {"table",
           {{"keys", audit.table.keys},
            {"keyValueBytes", audit.table.bytes},
            {"extents", audit.table.extents},
            {"state", audit.table.state}}},
          {"segments",
           {{"free", audit.segments_free},
            {"owned", audit.segments_owned},
            {"orphaned", audit.segments_orphaned},
            {"damaged", audit.segments_damaged}}},
          {"underWay",
           {{"operations", audit.half_done.slots.size()},
            {"locks", audit.lock_bits},
            {"barriers", audit.barriers},
            {"repairLeases", audit.leases.size()}}},
          {"bytes", bytes},
          {"damage", audit.damage()},
          {"explained", audit.explained()},
          {"kinds", kinds},
          {"findings", findings}};
}

void print_kind(const Audit& audit, Wrong wrong) {
  constexpr std::uint64_t kShown = 10;
  const node::WrongKind& kind = kind_of(wrong);
  std::printf(
      "\n%s: %llu (%s)\n  %s\n", std::string(kind.name).c_str(), static_cast<unsigned long long>(audit.count(wrong)),
      kind.damage ? (kind.mended ? "damage; a restart mends it" : "damage") : "explained by work that was under way",
      std::string(kind.remedy).c_str());
  std::uint64_t shown = 0;
  for (const Finding& finding : audit.findings) {
    if (finding.wrong != wrong) continue;
    if (++shown > kShown) {
      std::printf("    and others; --json names %zu of each kind\n", Audit::kMostFindings);
      break;
    }
    std::printf("    at %#llx, %s: %s\n", static_cast<unsigned long long>(finding.offset),
                std::string(finding.region).c_str(), finding.what.c_str());
  }
}

void print(const std::string& path, const node::MemoryAudit& memory) {
  const Audit& audit = memory.audit;
  const layout::Geometry& g = memory.record.geometry;
  std::printf("%s: %llu bytes, incarnation %s, epoch %llu, life %llu of this memory\n", path.c_str(),
              static_cast<unsigned long long>(g.memory_bytes), hex(memory.record.incarnation).c_str(),
              static_cast<unsigned long long>(memory.record.epoch),
              static_cast<unsigned long long>(memory.record.lives));
  std::printf("%llu keys in %llu rows, %llu of them in the heap; %llu operations under way\n",
              static_cast<unsigned long long>(audit.table.keys), static_cast<unsigned long long>(audit.table.rows),
              static_cast<unsigned long long>(audit.table.extents),
              static_cast<unsigned long long>(audit.half_done.slots.size()));
  if (!audit.table.state.empty()) std::printf("%s\n", audit.table.state.c_str());
  std::printf("\n");
  for (std::size_t i = 0; i < node::kUses; ++i) {
    const std::uint64_t bytes = audit.bytes_of_use[i];
    std::printf("  %-20s %16llu %6.2f %%\n", std::string(name_of(static_cast<Use>(i))).c_str(),
                static_cast<unsigned long long>(bytes),
                100.0 * static_cast<double>(bytes) / static_cast<double>(g.memory_bytes));
  }
  for (const bool damage : {true, false}) {
    for (std::size_t i = 0; i < node::kWrongs; ++i) {
      const auto wrong = static_cast<Wrong>(i);
      if (audit.count(wrong) > 0 && kind_of(wrong).damage == damage) print_kind(audit, wrong);
    }
  }
  std::printf("\n%s: %s\n", path.c_str(),
              audit.damage() > 0      ? "damaged"
              : audit.explained() > 0 ? "clean; what was under way will be finished by the next memory node over it"
                                      : "clean");
}

int run(const std::string& path, bool as_json) {
  const auto unreadable = [&](const base::Status& status) {
    const std::string why = status.code() == base::Code::corrupt ? path + ": " + status.message() : status.message();
    if (as_json) {
      std::cout << Json{{"version", 1}, {"image", path}, {"verdict", "unreadable"}, {"why", why}}.dump(2) << "\n";
    }
    std::cerr << "farpool-fsck: " << why << "\n";
    return kUnreadable;
  };
  const auto image = node::MemoryImage::open(path);
  if (!image.ok()) return unreadable(image.status());

  node::Auditing how;
  const bool watched = ::isatty(STDERR_FILENO) == 1 && image->span().size() >= kLongImage;
  auto told = std::chrono::steady_clock::now();
  if (watched) {
    how.progress = [&told](std::uint64_t done, std::uint64_t of) {
      const auto now = std::chrono::steady_clock::now();
      if (now - told < kProgress) return;
      told = now;
      std::fprintf(stderr, "\r%3.0f %% looked at", 100.0 * static_cast<double>(done) / static_cast<double>(of));
    };
  }
  const auto memory = node::audit_memory(image->span(), how);
  if (watched) std::fprintf(stderr, "\r                \r");
  if (!memory.ok()) return unreadable(memory.status());
  if (as_json) {
    std::cout << json_of(path, *memory).dump(2) << "\n";
  } else {
    print(path, *memory);
  }
  return memory->audit.damage() > 0 ? kDamaged : kClean;
}

}  // namespace
}  // namespace farpool::apps

int main(int argc, char** argv) {
  std::string path;
  bool as_json = false;
  CLI::App app(
      "Accounts for every byte of the file that a memory node keeps under --memory-path, NAME.memory, or of a copy of "
      "it.\n"
      "The node must have ended, by whatever death; the file is only read. What operations that were cut short "
      "explain,\n"
      "and the next memory node over the file finishes, is no damage.\n"
      "Exit status: 0 clean, 1 damage was found, 2 the file could not be read.",
      "farpool-fsck");
  app.add_option("file", path, "the memory")->required();
  app.add_flag("--json", as_json, "for programs");
  app.set_version_flag("--version", std::string("farpool " FARPOOL_VERSION));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : farpool::apps::kUnreadable;
  }
  return farpool::apps::run(path, as_json);
}
