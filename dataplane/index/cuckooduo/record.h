// SPDX-License-Identifier: Apache-2.0
// What the memory has of a change that the owner carries out for another client, so that the next owner can tell whether
// it was carried out. Records lie behind the vault, one for each request that owners may have at once. Pure.
//
// OFFSET SIZE  record
//      0    8  ticket    of the request; 0: none
//      8    8  version   of the first pair that the change WRITEs; of a remove, of the pair that it removes
//     16    8  what      struct RecordWhat
//     24    8  checksum  CRC-64 of the words before, seeded with the record's number
//     32    8  done      the ticket, once everything of the change has landed
//
// The owner WRITEs the first four words ahead of the change, and the last one behind it, in one chain. Verbs of a lane
// are executed in order. So if `done` has not landed, nothing else has that the owner posted later, and the slots still
// say whether the change was carried out: its pair is whole in the vault, or the pair that it removes is not.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "layout/word.h"

namespace farpool::cuckooduo {

struct RecordWhat {
  using Pairs = layout::Field<0, 2>;  // that the change WRITEs of its own key, with versions in sequence; 0: it removes
  using Existed = layout::Field<2, 1>;
  using Zero = layout::Field<3, 61>;
  static_assert(layout::tiles_a_word<Pairs, Existed, Zero>);
};

struct Record {
  static constexpr std::uint64_t kBytes = 40, kDoneAt = 32;

  std::uint64_t ticket = 0;
  std::uint64_t version = 0;
  std::uint64_t pairs = 0;
  bool existed = false;  // the key, before
  bool done = false;

  // Says whether a whole slot with this version decides about the change: it is the change's own pair, or the one that
  // the change removes.
  bool decides(std::uint64_t slot_version) const { return slot_version - version < (pairs == 0 ? 1 : pairs); }
  friend bool operator==(const Record&, const Record&) = default;
};

// Returns nothing if there is no request in the record: it is torn, or none has used it.
std::optional<Record> read_record(base::Bytes bytes, std::uint32_t number);
// Fills kDoneAt bytes: what a change WRITEs ahead.
void put_record(base::MutableBytes into, std::uint32_t number, const Record& record);

}  // namespace farpool::cuckooduo
