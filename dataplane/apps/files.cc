// SPDX-License-Identifier: Apache-2.0
#include "apps/files.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace farpool::apps {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

base::Status replace_file(const std::string& path, std::string_view contents) {
  const std::string draft = path + ".new";
  std::ofstream file(draft, std::ios::binary | std::ios::trunc);
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(draft, path, error);
  if (file && !error) return {};
  return {base::Code::unavailable, path + " cannot be written" + (error ? ": " + error.message() : "")};
}

}  // namespace farpool::apps
