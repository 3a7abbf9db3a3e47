// SPDX-License-Identifier: Apache-2.0
// Checks over an image of the memory what must hold of a RACE table's bytes when nobody changes them. Pure; takes any
// bytes.
#pragma once

#include <cstdint>
#include <functional>

#include "base/bytes.h"
#include "base/hash.h"
#include "index/image.h"
#include "layout/geometry.h"

namespace farpool::race {

// Formats empty tables, as many as the directory is formatted with, in zeroed memory.
void format_tables(const layout::Geometry& geometry, base::MutableBytes tables, std::uint64_t in_use,
                   const std::function<void(std::uint64_t groups)>& progress = {});

// Checks that every header covers the keys of its table in `how.directory`, or in what a split makes of it. Every slot
// is empty or well formed, lies in a bucket of its key and has its print; its extent is whole and of its length; no key
// is committed twice, and no block lies in two slots. A tentative slot's block is reached, its key is not visited.
// Copies and leftovers of a split that is under way are neither reached nor visited.
index::Report verify(const layout::Geometry& geometry, base::Bytes table, base::Bytes heap,
                     const base::HashSecret& seed, const index::Verification& how = {});

// Removes every tentative slot, and leases of dead repairers, from a memory whose clients have all ended. Locks and
// claims, which this protocol does not have, are damage, and go too. Returns how many inserts were undone. If it is cut
// short after any word, another call does the rest. Splits stay: clients continue them.
std::uint64_t repair_image(const layout::Geometry& geometry, base::MutableBytes memory,
                           const std::function<void(std::uint64_t groups)>& progress = {});

}  // namespace farpool::race
