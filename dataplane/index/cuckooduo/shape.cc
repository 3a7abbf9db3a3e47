// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/shape.h"

#include <string>

#include "index/cuckooduo/slot.h"

namespace farpool::cuckooduo {

using base::Code;
using base::Status;

namespace {

Status impossible(const std::string& what, std::uint64_t is, const std::string& may_be) {
  return {Code::invalid_argument,
          "a CuckooDuo table cannot have " + std::to_string(is) + " " + what + ": choose " + may_be};
}

std::string range(std::uint64_t least, std::uint64_t most) {
  return std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

Status Shape::check() const {
  if (buckets < 1 || buckets > kMostBuckets) return impossible("buckets in an array", buckets, range(1, kMostBuckets));
  if (slots < 1 || slots > kMostSlots) return impossible("slots in a bucket", slots, range(1, kMostSlots));
  if (second >= slots)
    return impossible("slots with second prints in a bucket", second, "fewer than " + std::to_string(slots));
  if (print_bits < 4 || print_bits > kMostPrintBits)
    return impossible("bits in a print", print_bits, range(4, kMostPrintBits));
  if (path > kMostPath) return impossible("moves in a path", path, range(0, kMostPath));
  if (slot_bytes < kLeastSlotBytes || slot_bytes > kMostSlotBytes || slot_bytes % 8 != 0) {
    return impossible("bytes in a slot", slot_bytes, "a multiple of 8 from " + range(kLeastSlotBytes, kMostSlotBytes));
  }
  if (stash > kMostStash) return impossible("slots in the stash", stash, range(0, kMostStash));
  if (spares < 1 || spares > stash)
    return impossible("spare slots in the stash", spares, range(1, stash) + ", as the stash is long");
  return Status::Ok();
}

}  // namespace farpool::cuckooduo
