// SPDX-License-Identifier: Apache-2.0
#include "roce/pcap.h"

#include <string>

namespace farpool::roce {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr std::uint32_t kMicroseconds = 0xa1b2c3d4, kNanoseconds = 0xa1b23c4d;
constexpr std::uint32_t kEthernetLink = 1;

std::uint32_t read(base::Bytes file, std::size_t at, bool swapped) {
  const auto value = base::load<std::uint32_t>(file.data() + at);
  return swapped ? __builtin_bswap32(value) : value;
}

}  // namespace

Result<PcapReader> PcapReader::open(base::Bytes file) {
  if (file.size() < kPcapHeaderBytes) {
    return Status(Code::corrupt, "a file of " + std::to_string(file.size()) + " bytes is no pcap file");
  }
  for (const bool swapped : {false, true}) {
    const std::uint32_t magic = read(file, 0, swapped);
    if (magic != kMicroseconds && magic != kNanoseconds) continue;
    // Its upper bits say whether frames end with a check sequence.
    const std::uint32_t link = read(file, 20, swapped) & 0xfffffff;
    if (link != kEthernetLink) {
      return Status(Code::corrupt, "the file's link type is " + std::to_string(link) +
                                       "; only captures of Ethernet interfaces, type 1, are read");
    }
    return PcapReader(file, swapped, magic == kNanoseconds);
  }
  return Status(Code::corrupt,
                "the file does not begin as a pcap file does; pcapng has to be converted: editcap -F pcap");
}

std::uint32_t PcapReader::number(std::size_t at) const { return read(file_, at, swapped_); }

Result<std::optional<CapturedFrame>> PcapReader::next() {
  const std::size_t left = file_.size() - at_, at = at_;
  if (left == 0) return std::optional<CapturedFrame>();
  const auto damage = [&](const std::string& what) {
    at_ = file_.size();
    return Status(Code::corrupt, "frame at byte " + std::to_string(at) + ": " + what);
  };
  if (left < kPcapFrameBytes) return damage("the file ends in its header");
  const std::uint32_t fraction = number(at + 4), captured = number(at + 8), length = number(at + 12);
  if (captured > kLongestCaptured || captured > length) {
    return damage("it has " + std::to_string(captured) + " bytes of " + std::to_string(length));
  }
  if (captured > left - kPcapFrameBytes) return damage("the file ends in it");
  if (fraction >= (nanoseconds_ ? 1'000'000'000u : 1'000'000u)) {
    return damage("a second does not have " + std::to_string(fraction) + " parts");
  }
  at_ += kPcapFrameBytes + captured;
  return std::optional(CapturedFrame{.time = number(at) * base::kSecond + fraction * (nanoseconds_ ? 1 : 1000),
                                     .bytes = file_.subspan(at + kPcapFrameBytes, captured),
                                     .whole = captured == length});
}

std::array<std::byte, kPcapHeaderBytes> pcap_header() {
  std::array<std::byte, kPcapHeaderBytes> header{};
  base::store(header.data(), kNanoseconds);
  base::store<std::uint16_t>(header.data() + 4, 2);  // version 2.4
  base::store<std::uint16_t>(header.data() + 6, 4);
  base::store(header.data() + 16, kLongestCaptured);
  base::store(header.data() + 20, kEthernetLink);
  return header;
}

std::array<std::byte, kPcapFrameBytes> pcap_frame_header(base::Nanos time, std::size_t bytes) {
  std::array<std::byte, kPcapFrameBytes> header{};
  base::store(header.data(), static_cast<std::uint32_t>(time / base::kSecond));
  base::store(header.data() + 4, static_cast<std::uint32_t>(time % base::kSecond));
  base::store(header.data() + 8, static_cast<std::uint32_t>(bytes));
  base::store(header.data() + 12, static_cast<std::uint32_t>(bytes));
  return header;
}

}  // namespace farpool::roce
