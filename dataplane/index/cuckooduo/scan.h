// SPDX-License-Identifier: Apache-2.0
// Scans of a table, by any client: one-sided, without a word to the owner.
//
// A position is a bucket of the first array. A page has the keys of some of these buckets, wherever they lie: there, in
// the second array as many buckets behind as one of the strides says (locate.h), or in the stash. The owner may move
// them from one to the other meanwhile, so a page reads all of these places until two readings are equal: every WRITE of
// a pair gives its slot another version, so all of it was so at one moment. Pairs of the stash never leave it, so that
// its slots need not be equal, but only whole.
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
  // Counts pairs of readings that were not equal, and readings of extents that had gone.
  std::uint64_t& restless;
  std::uint64_t& stale;
};

// Returns the keys of some buckets from `position` on, of about as many as `count` keys have. It has the errors of
// index::Table.
task::Task<base::Result<index::Page>> scan(Scanning scanning, std::uint64_t position, std::uint64_t count,
                                           base::Nanos deadline, fabric::Cost& cost);

}  // namespace farpool::cuckooduo
