// SPDX-License-Identifier: Apache-2.0
// Whatever file comes: each of its frames lies within it, and reading ends. What was read is written, and reads the same.
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "roce/pcap.h"

namespace {

using namespace farpool;

std::vector<roce::CapturedFrame> read(base::Bytes file) {
  std::vector<roce::CapturedFrame> frames;
  auto reader = roce::PcapReader::open(file);
  if (!reader.ok()) return frames;
  for (;;) {
    auto frame = reader->next();
    if (!frame.ok()) {
      FARPOOL_CHECK(!frame.status().message().empty());
      frame = reader->next();
      FARPOOL_CHECK(frame.ok() && !*frame);
      return frames;
    }
    if (!*frame) return frames;
    const base::Bytes bytes = (*frame)->bytes;
    FARPOOL_CHECK(bytes.data() >= file.data() && bytes.data() + bytes.size() <= file.data() + file.size());
    frames.push_back(**frame);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<roce::CapturedFrame> frames = read(std::as_bytes(std::span(data, size)));
  const auto header = roce::pcap_header();
  std::vector<std::byte> written(header.begin(), header.end());
  for (const roce::CapturedFrame& frame : frames) {
    const auto own = roce::pcap_frame_header(frame.time, frame.bytes.size());
    written.insert(written.end(), own.begin(), own.end());
    written.insert(written.end(), frame.bytes.begin(), frame.bytes.end());
  }
  const std::vector<roce::CapturedFrame> again = read(written);
  FARPOOL_CHECK(again.size() == frames.size());
  for (std::size_t i = 0; i < again.size(); ++i) {
    FARPOOL_CHECK(again[i].time == frames[i].time && again[i].whole);
    FARPOOL_CHECK(
        std::equal(again[i].bytes.begin(), again[i].bytes.end(), frames[i].bytes.begin(), frames[i].bytes.end()));
  }
  return 0;
}
