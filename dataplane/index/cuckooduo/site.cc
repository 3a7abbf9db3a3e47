// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/site.h"

#include <string>

namespace farpool::cuckooduo {

using base::Code;
using base::Status;

Status check_site(const Site& site, std::uint64_t table_bytes) {
  if (const Status status = site.shape.check(); !status.ok()) return status;
  if (site.records > kMostRecords) {
    return {Code::invalid_argument,
            std::to_string(site.records) + " records are not possible: use at most " + std::to_string(kMostRecords)};
  }
  if (site.bytes() > table_bytes) {
    return {Code::invalid_argument, "a vault of " + std::to_string(site.bytes()) +
                                        " bytes does not fit the table region of " + std::to_string(table_bytes) +
                                        " bytes: choose fewer buckets"};
  }
  const std::uint64_t lookup_bytes = site.shape.lookup_bytes();
  if (lookup_bytes > fabric::kMaxChainBytes / 2) {
    return {Code::invalid_argument, "two buckets and the stash take " + std::to_string(lookup_bytes) +
                                        " bytes, and one trip reads " + std::to_string(fabric::kMaxChainBytes / 2) +
                                        " at most: choose smaller slots or a shorter stash"};
  }
  if (site.table >= site.tables) {
    return {Code::invalid_argument,
            "there is no table " + std::to_string(site.table) + " in a directory of " + std::to_string(site.tables)};
  }
  return {};
}

}  // namespace farpool::cuckooduo
