// SPDX-License-Identifier: Apache-2.0
// Scans of a table, by any client: one-sided, without a word to the owner.
//
// A position is a bucket of the first array. A page has the keys of some of these buckets, wherever they lie: there, in
// one of the stretches of the second array (locate.h), or in the stash. The owner may move them from one array to the
// other and back meanwhile, so a page reads all of these places again and again, and tells of all that it meets, until
// two buckets that may have the same key have been equal in two successive readings. Every WRITE of a pair gives its
// slot another version, so both were so at one moment: what stays had one of its places, or the stash.
// Pairs of the stash never leave it, so that its slots need not be equal, but only whole in the last reading.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "fabric/cost.h"
#include "index/cuckooduo/site.h"
#include "index/page.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::cuckooduo {

struct Scanning {
  session::Session& session;
  const Site& site;
  // Called while what a dead owner may have left is in the way, again and again.
  const std::function<void()>& on_trouble;
  // Count pairs of readings that did not suffice, and readings with extents that had gone.
  std::uint64_t& restless;
  std::uint64_t& stale;
};

// Returns the keys of some buckets from `position` on, of about as many as `count` keys have. It has the errors of
// index::Table.
task::Task<base::Result<index::Page>> scan(Scanning scanning, std::uint64_t position, std::uint64_t count,
                                           base::Nanos deadline, fabric::Cost& cost);

}  // namespace farpool::cuckooduo
