// SPDX-License-Identifier: Apache-2.0
// Removes keys that have expired, so that their memory is used again although nobody asks for them. Each memory node
// chooses one session for it, and chooses another when that has ended. Two clients that do it at once, or a client that
// stands still in the middle, do no harm: a key is removed only if its value has expired by then (docs/adr/0038-expiry.md).
#include <algorithm>
#include <string>

#include "client/links.h"

namespace farpool::client {

using base::Result;
using task::Task;

namespace {

// A step looks at about so many keys. Then the client leaves the memory node alone for 19 times as long as it took.
constexpr std::uint64_t kKeysOfAStep = 256;
constexpr Nanos kStepsRests = 19;
constexpr Nanos kLeastRest = 5 * base::kMillisecond;
// The pauses between two passes through a table: where keys expire, and where none of the last pass does.
constexpr Nanos kRestOfAPass = base::kSecond;
constexpr Nanos kRestOfAnEmptyPass = 10 * base::kSecond;
constexpr Nanos kRestAfterAnError = base::kSecond;

}  // namespace

bool Pool::reclaims_at(const Link& link, const Bond& bond) const {
  return options_.reclaims && !closing_ && link.wanted() && bond.session->alive() && bond.session->reclaims();
}

// Looks at the keys from there on, and removes what has expired.
Task<Result<Page>> Pool::reclaim_page(Bond& bond, std::uint64_t position) {
  const Nanos deadline = port_.now() + patience();
  fabric::Cost cost;
  Result<Page> page = co_await bond.table->scan(position, kKeysOfAStep, deadline, cost);
  if (!page.ok()) co_return page;
  for (const Page::Expiry& expiry : page->expiries) {
    if (expiry.at >= clock()) continue;
    const std::string& key = page->keys[expiry.key];
    const Gates::Pass pass = gates_.enter_now(Gates::hash(key));
    if (!pass) continue;  // this client is changing it
    NamedEdit edit(NamedEdit::Name::expire, {});
    edit.set_now(clock());
    const Result<bool> done = co_await bond.table->modify(key, edit, deadline, cost);
    if (!done.ok()) co_return done.status();
    if (edit.outcome().existed) counters_.expired_keys.add();
  }
  co_return page;
}

Task<void> Pool::reclaim(Link& link, Bond& bond) {
  const Borrowed borrowed(*this, bond);
  std::uint64_t position = 0;
  bool expires = false;  // some key of this pass does
  while (reclaims_at(link, bond)) {
    const Nanos begun = port_.now();
    const Result<Page> page = co_await reclaim_page(bond, position);
    Nanos rest = std::max(kLeastRest, kStepsRests * (port_.now() - begun));
    if (!page.ok()) {
      rest = kRestAfterAnError;
    } else {
      position = page->next;
      expires = expires || !page->expiries.empty();
      if (position == 0) {
        rest = std::max(rest, expires ? kRestOfAPass : kRestOfAnEmptyPass);
        expires = false;
      }
    }
    const Nanos until = port_.now() + rest;
    while (reclaims_at(link, bond) && port_.now() < until) {
      (void)co_await links_due_.wait(std::min(until, port_.now() + kLook));
    }
  }
  link.reclaiming = false;
}

}  // namespace farpool::client
