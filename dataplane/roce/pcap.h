// SPDX-License-Identifier: Apache-2.0
// Files of captured Ethernet frames in the classic pcap format. Files of either byte order, with microseconds or
// nanoseconds, are read; little-endian ones with nanoseconds are written.
//
//   file:   magic 4 | version 2, 2 | 8 bytes of zeros | longest frame 4 | kind of link 4, then frames
//   frame:  seconds 4 | fraction 4 | bytes in the file 4 | bytes on the wire 4 | bytes
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "base/result.h"
#include "base/time.h"

namespace farpool::roce {

inline constexpr std::size_t kPcapHeaderBytes = 24;
inline constexpr std::size_t kPcapFrameBytes = 16;
// Longer frames are damage. The longest that a link takes is a segment of 64 KiB with its headers.
inline constexpr std::uint32_t kLongestCaptured = 256 * 1024;

struct CapturedFrame {
  base::Nanos time = 0;  // since 1970
  base::Bytes bytes;     // points into the file
  bool whole = true;     // false: the capture has only its beginning
};

class PcapReader {
 public:
  // Errors: corrupt (it is no such file, or holds no Ethernet frames). The file outlives the reader.
  static base::Result<PcapReader> open(base::Bytes file);
  // Returns nothing at the end. Errors: corrupt, with the place; from then on there is nothing to read.
  base::Result<std::optional<CapturedFrame>> next();

 private:
  PcapReader(base::Bytes file, bool swapped, bool nanoseconds)
      : file_(file), at_(kPcapHeaderBytes), swapped_(swapped), nanoseconds_(nanoseconds) {}
  std::uint32_t number(std::size_t at) const;

  base::Bytes file_;
  std::size_t at_;
  bool swapped_, nanoseconds_;
};

std::array<std::byte, kPcapHeaderBytes> pcap_header();
// `time` is since 1970, and not before it.
std::array<std::byte, kPcapFrameBytes> pcap_frame_header(base::Nanos time, std::size_t bytes);

}  // namespace farpool::roce
