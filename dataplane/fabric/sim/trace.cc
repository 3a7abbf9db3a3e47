// SPDX-License-Identifier: Apache-2.0
#include "fabric/sim/trace.h"

#include <cstdio>

namespace farpool::fabric::sim {
namespace {

std::string hex(std::uint64_t word) {
  char text[24];
  std::snprintf(text, sizeof text, "%llx", static_cast<unsigned long long>(word));
  return text;
}

}  // namespace

const char* name_of(Verb verb) {
  switch (verb) {
    case Verb::read:
      return "READ";
    case Verb::write:
      return "WRITE";
    case Verb::cas:
      return "CAS";
    case Verb::masked_cas:
      return "MCAS";
    case Verb::fetch_add:
      return "FAA";
    case Verb::call:
      return "CALL";
  }
  return "?";
}

std::size_t Trace::post(std::size_t client, std::uint64_t lane, Nanos now, std::span<const Op> ops) {
  note(client, lane, static_cast<std::uint64_t>(now));
  for (const Op& op : ops) note(static_cast<std::uint64_t>(op.verb), op.at.offset ^ op.at.region, op.local.size());
  ++posted_;
  if (!keep_) return 0;
  ChainRecord& chain = chains_.emplace_back(ChainRecord{.client = client, .lane = lane, .posted = now});
  for (const Op& op : ops) {
    chain.verbs.push_back(
        {.verb = op.verb,
         .fence = op.fence,
         .at = op.at,
         .bytes = op.local.size(),
         .compare = op.compare,
         .compare_mask = op.compare_mask,
         .swap = op.swap,
         .swap_mask = op.swap_mask,
         .opcode = op.opcode,
         .head = is_service_call(op) && op.local.size() >= 8 ? base::load<std::uint64_t>(op.local.data()) : 0});
  }
  return chains_.size();
}

void Trace::end(std::size_t chain, Nanos now, Fate fate) {
  note(0, static_cast<std::uint64_t>(now),
       static_cast<std::uint64_t>(fate));  // the same whether chains are kept or not
  if (chain == 0 || chain > chains_.size()) return;
  chains_[chain - 1].ended = now;
  chains_[chain - 1].fate = fate;
}

std::string Trace::format(const std::vector<ChainRecord>& chains, const Namer& name) {
  std::string text;
  std::size_t trip = 0;
  for (const ChainRecord& chain : chains) {
    ++trip;
    for (std::size_t i = 0; i < chain.verbs.size(); ++i) {
      const VerbRecord& verb = chain.verbs[i];
      char head[64];
      if (i == 0) {
        std::snprintf(head, sizeof head, "trip %-2zu  %-5s ", trip, name_of(verb.verb));
      } else {
        std::snprintf(head, sizeof head, "         %-5s ", name_of(verb.verb));
      }
      text += head;
      if (verb.verb == Verb::call) {
        text += "opcode " + std::to_string(verb.opcode);
      } else if (name) {
        text += name(verb.at, verb.bytes);
      } else {
        text += "region " + std::to_string(verb.at.region) + " +" + std::to_string(verb.at.offset);
      }
      switch (verb.verb) {
        case Verb::read:
        case Verb::write:
        case Verb::call:
          text += "  " + std::to_string(verb.bytes) + " B";
          break;
        case Verb::cas:
          text += "  " + hex(verb.compare) + " -> " + hex(verb.swap);
          break;
        case Verb::masked_cas:
          text += "  " + hex(verb.compare & verb.compare_mask) + "/" + hex(verb.compare_mask) + " -> " +
                  hex(verb.swap & verb.swap_mask) + "/" + hex(verb.swap_mask);
          break;
        case Verb::fetch_add:
          text += "  +" + std::to_string(static_cast<std::int64_t>(verb.swap));
          break;
      }
      if (verb.fence) text += "  fenced";
      text += '\n';
    }
    if (chain.ended != 0 && chain.fate != Fate::done)
      text += chain.fate == Fate::maybe ? "         = maybe\n" : "         = refused\n";
  }
  return text;
}

}  // namespace farpool::fabric::sim
