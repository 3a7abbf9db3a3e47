// SPDX-License-Identifier: Apache-2.0
// Bytes of a wire format that a file spells out for people, for tests that hold code to them.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace farpool::base {

// Reads testdata/NAME of the room that the test runs in: eight bytes a line, in hexadecimal, each line with what it is.
// Lines that begin with # are comments.
inline std::vector<std::byte> annotated(const std::string& name) {
  std::ifstream file("testdata/" + name);
  EXPECT_TRUE(file) << "testdata/" << name << " cannot be read: run the test from its room's directory";
  std::vector<std::byte> bytes;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    for (int i = 0; i < 8; ++i) {
      std::string hex;
      words >> hex;
      bytes.push_back(static_cast<std::byte>(std::stoi(hex, nullptr, 16)));
    }
  }
  return bytes;
}

}  // namespace farpool::base
