// SPDX-License-Identifier: Apache-2.0
#include "roce/pcap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace farpool::roce {
namespace {

using testing::HasSubstr;

using File = std::vector<std::byte>;

template <class Part>
void append(File& file, const Part& part) {
  file.insert(file.end(), part.begin(), part.end());
}

File file_of(const std::vector<std::pair<base::Nanos, std::string>>& frames) {
  File file;
  append(file, pcap_header());
  for (const auto& [time, bytes] : frames) {
    append(file, pcap_frame_header(time, bytes.size()));
    append(file, base::bytes_of(std::string_view(bytes)));
  }
  return file;
}

// Reads "time:bytes" of each frame, and the error at the end if there is one.
std::vector<std::string> read(const File& file) {
  std::vector<std::string> all;
  auto reader = PcapReader::open(file);
  if (!reader.ok()) return {reader.status().message()};
  for (;;) {
    auto frame = reader->next();
    if (!frame.ok()) all.push_back(frame.status().message());
    if (!frame.ok() || !*frame) return all;
    all.push_back(std::to_string((*frame)->time) + ((*frame)->whole ? ":" : ":cut:") +
                  std::string(base::text_of((*frame)->bytes)));
  }
}

void swap(File& file, std::size_t at, std::size_t bytes) {
  std::reverse(file.begin() + static_cast<std::ptrdiff_t>(at), file.begin() + static_cast<std::ptrdiff_t>(at + bytes));
}

TEST(Pcap, WhatIsWrittenIsRead) {
  const File file = file_of({{1'000'000'001, "one"}, {base::Nanos{4'000'000'000} * base::kSecond, ""}, {7, "three"}});
  EXPECT_EQ(read(file), (std::vector<std::string>{"1000000001:one", "4000000000000000000:", "7:three"}));
}

TEST(Pcap, FilesOfOtherProgramsAreRead) {
  File file = file_of({{base::kSecond + 5, "one"}, {6, "two"}});
  base::store<std::uint32_t>(file.data(), 0xa1b2c3d4);
  EXPECT_EQ(read(file), (std::vector<std::string>{"1000005000:one", "6000:two"})) << "microseconds";
  base::store<std::uint32_t>(file.data() + kPcapHeaderBytes + 12, 9);
  EXPECT_EQ(read(file)[0], "1000005000:cut:one");
  for (const std::size_t at : {0u, 8u, 12u, 16u, 20u, 24u, 28u, 32u, 36u, 43u, 47u, 51u, 55u}) swap(file, at, 4);
  EXPECT_EQ(read(file), (std::vector<std::string>{"1000005000:cut:one", "6000:two"})) << "big-endian";
}

TEST(Pcap, DamageIsToldWithItsPlaceAndEndsTheFile) {
  const File whole = file_of({{5, "one"}, {6, "two"}});
  const auto damaged = [&](std::size_t at, std::uint32_t value) {
    File file = whole;
    base::store(file.data() + at, value);
    return read(file);
  };
  EXPECT_THAT(damaged(0, 0x0a0d0d0a)[0], HasSubstr("editcap -F pcap"));
  EXPECT_THAT(damaged(20, 113)[0], HasSubstr("link type is 113"));
  EXPECT_EQ(damaged(20, 0x10000001).size(), 2u) << "upper bits of the link type tell of check sequences";
  EXPECT_THAT(read(File(whole.begin(), whole.begin() + 23))[0], HasSubstr("a file of 23 bytes"));
  EXPECT_THAT(read(File(whole.begin(), whole.end() - 1)),
              testing::ElementsAre("5:one", "frame at byte 43: the file ends in it"));
  EXPECT_THAT(read(File(whole.begin(), whole.begin() + 58))[1], HasSubstr("byte 43: the file ends in its header"));
  EXPECT_THAT(damaged(32, 4)[0], HasSubstr("byte 24: it has 4 bytes of 3"));
  EXPECT_THAT(damaged(28, 1'000'000'000)[0], HasSubstr("a second does not have 1000000000 parts"));
  EXPECT_EQ(damaged(28, 999'999'999)[0], "999999999:one");
  File large = whole;
  base::store(large.data() + 32, kLongestCaptured + 1);
  base::store(large.data() + 36, kLongestCaptured + 1);
  EXPECT_THAT(read(large)[0], HasSubstr("bytes of"));
}

}  // namespace
}  // namespace farpool::roce
