// SPDX-License-Identifier: Apache-2.0
// What a box would have made of captured packets. Time is that of the capture: the same file and settings give the same
// packets and counts.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "swordbox/box.h"

namespace farpool::swordbox {

struct Replayed {
  Counts counts;
  std::uint64_t frames = 0;  // in the file
  std::uint64_t cut = 0;     // of them, without their end: left out
  std::uint64_t sent = 0;    // frames that left the box
};

// Gives a pcap file to a box that began long enough before. What leaves the box goes to `send`, with the time since 1970;
// so does what timers send until nothing is due any more. Frames whose time is earlier than that of one before them come
// at that one's time. Errors: corrupt (with what is wrong in the file), and what `send` returns.
base::Result<Replayed> replay(base::Bytes file, const Settings& settings,
                              const std::function<base::Status(base::Nanos time, base::Bytes frame)>& send);

}  // namespace farpool::swordbox
