// SPDX-License-Identifier: Apache-2.0
// What must hold of a RACE table's bytes when nobody changes it, checked over an image of the memory. Pure; any bytes
// may be given.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/hash.h"
#include "index/image.h"
#include "layout/geometry.h"

namespace farpool::race {

// Every slot is empty or well formed, lies in a bucket of its key and has its print; its extent is whole and of its
// length; no key is committed twice, and no block lies in two slots. Tentative slots are no defects: their number is
// `unfinished`, their blocks are reached, and they are not visited.
index::Report verify(const layout::Geometry& geometry, base::Bytes table, base::Bytes heap,
                     const base::HashSecret& seed, const index::Verification& how = {});

// Takes every tentative slot away, in a memory whose clients have all ended. Returns how many there were.
std::uint64_t drop_tentative(const layout::Geometry& geometry, base::MutableBytes table);

}  // namespace farpool::race
