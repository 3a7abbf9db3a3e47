// SPDX-License-Identifier: Apache-2.0
// What one change of an owner works with. Internal to the room.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "fabric/buffer.h"
#include "index/cuckooduo/owner.h"
#include "index/cuckooduo/planner.h"
#include "index/cuckooduo/slot.h"

namespace farpool::cuckooduo {

// Its lists keep their room from one operation to the next, so that an operation allocates nothing.
struct Owner::Bench {
  struct Held {
    Place place = 0;
    base::Bytes bytes;  // of the slot, in one of the buffers
  };
  Planned change;
  std::vector<Place> places;            // that are being read
  std::vector<Held> held;               // slots that have been read
  std::vector<fabric::Buffer> buffers;  // of these, and of the extent of the key's pair

  // Returns a slot that has been read.
  Slot slot(Place place) const {
    for (const Held& one : held) {
      if (one.place == place) return read_slot(one.bytes, place);
    }
    return {};
  }
  void clear() {
    places.clear();
    held.clear();
    buffers.clear();
  }
};

// Counts an operation while it is under way.
class Owner::UnderWay {
 public:
  explicit UnderWay(Owner& owner) : owner_(owner) { ++owner_.under_way_; }
  UnderWay(const UnderWay&) = delete;
  ~UnderWay() {
    if (--owner_.under_way_ == 0) owner_.ended_.wake_all();
  }

 private:
  Owner& owner_;
};

}  // namespace farpool::cuckooduo
