// SPDX-License-Identifier: Apache-2.0
#include "fabric/tcp/nic.h"

#include "base/check.h"
#include "fabric/words.h"

namespace farpool::fabric::tcp {
namespace {

const RegionRight* right_of(const VerbView& verb, Rights rights) {
  for (const RegionRight& each : rights) {
    if (each.id == verb.region) return each.key == verb.key ? &each : nullptr;
  }
  return nullptr;
}

bool within(const VerbView& verb, Rights rights) {
  const RegionRight* region = right_of(verb, rights);
  const std::uint64_t bytes = verb.verb == Verb::read || verb.verb == Verb::write ? verb.length : 8;
  // Subtractions cannot wrap here; additions could.
  return region != nullptr && (verb.verb == Verb::read || !region->read_only) && verb.offset % 8 == 0 &&
         bytes % 8 == 0 && bytes <= kMaxVerbBytes && verb.offset <= region->bytes &&
         bytes <= region->bytes - verb.offset;
}

}  // namespace

bool too_long(const VerbView& call) {
  const std::size_t most = longest_call(call.region);
  return call.length > most || call.offset > most;
}

bool permitted(const ChainView& chain, Rights rights) {
  if (chain.too_long) return false;
  for (std::size_t i = 0; i < chain.count; ++i) {
    const VerbView& verb = chain.verbs[i];
    if (verb.verb == Verb::call) {
      if (chain.count != 1 || too_long(verb)) return false;
    } else if (!within(verb, rights)) {
      return false;
    }
  }
  return reply_length(chain) <= kMaxFrameBytes;
}

void execute(const ChainView& chain, Rights rights, base::MutableBytes reply) {
  put_reply_header(reply, {.length = static_cast<std::uint32_t>(reply.size()), .refused = false, .id = chain.id});
  std::byte* into = reply.data() + kHeaderBytes;
  const auto put_word = [&into](std::uint64_t word) {
    base::store(into, word);
    into += 8;
  };
  for (std::size_t i = 0; i < chain.count; ++i) {
    const VerbView& verb = chain.verbs[i];
    std::byte* at = right_of(verb, rights)->base + verb.offset;
    switch (verb.verb) {
      case Verb::read:
        read_words(at, {into, verb.length});
        into += verb.length;
        break;
      case Verb::write:
        write_words(at, verb.data);
        break;
      case Verb::cas:
      case Verb::masked_cas:
        put_word(masked_cas_word(at, verb.compare, verb.compare_mask, verb.swap, verb.swap_mask));
        break;
      case Verb::fetch_add:
        put_word(fetch_add_word(at, verb.swap));
        break;
      case Verb::call:
        FARPOOL_CHECK(false);
    }
  }
  FARPOOL_CHECK(into == reply.data() + reply.size());
}

}  // namespace farpool::fabric::tcp
