// SPDX-License-Identifier: Apache-2.0
// A client's copy of the directory. It is a hint and may be out of date: a client that it leads astray finds out from
// the rows that it reads, and refreshes it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "directory/directory.h"
#include "fabric/cost.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::directory {

class Cache {
 public:
  // Begins with what was true of every directory once: table 0 has all keys. So a pool that has never grown is used
  // without a look at its directory.
  Cache(session::Session& session, std::uint64_t tables);

  // Table 0, where the copy says nothing.
  Route route_of(std::uint64_t hash) const { return route(view(), hash).value_or(Route{}); }
  View view() const { return {image_, tables_}; }
  base::Nanos refreshed() const { return refreshed_; }
  // One READ, or two if the directory has become deeper.
  task::Task<base::Status> refresh(base::Nanos deadline, fabric::Cost& cost);

 private:
  session::Session& session_;
  const std::uint64_t tables_;
  std::vector<std::byte> image_;  // depth and entries
  base::Nanos refreshed_ = 0;
};

}  // namespace farpool::directory
