// SPDX-License-Identifier: Apache-2.0
#include "apps/password.h"

#include <fstream>
#include <iterator>
#include <utility>

namespace farpool::apps {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr base::Nanos kLook = base::kSecond;
constexpr std::uintmax_t kMaxPasswordBytes = 4096;

}  // namespace

Result<std::string> read_password(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::string password(kMaxPasswordBytes + 3, '\0');  // room for a line end, and one more to see that it is too long
  file.read(password.data(), static_cast<std::streamsize>(password.size()));
  if (!file.is_open() || file.bad()) {
    return Status(Code::invalid_argument, "--password-file " + path + " cannot be read");
  }
  password.resize(static_cast<std::size_t>(file.gcount()));
  while (!password.empty() && (password.back() == '\n' || password.back() == '\r')) password.pop_back();
  if (password.size() > kMaxPasswordBytes)
    return Status(Code::invalid_argument, "--password-file " + path + " is longer than 4096 bytes");
  return password;
}

Result<std::string> first_password(const std::string& path, bool may_be_empty) {
  Result<std::string> password = read_password(path);
  if (password.ok() && password->empty() && !path.empty() && !may_be_empty) {
    return Status(Code::invalid_argument,
                  "--password-file " + path +
                      " is empty: write the password into it. To serve without a password leave the flag out, or give "
                      "--allow-empty-password to serve without one until the file has one");
  }
  return password;
}

PasswordWatch::PasswordWatch(net::Loop& loop, std::string path, std::string password,
                             std::function<void(std::string)> changed, std::function<void(const std::string&)> trouble)
    : path_(std::move(path)),
      password_(std::move(password)),
      changed_(std::move(changed)),
      trouble_(std::move(trouble)),
      alarm_(loop, [this] { look(); }) {
  if (!path_.empty()) alarm_.set(net::Loop::now() + kLook);
}

void PasswordWatch::look() {
  alarm_.set(net::Loop::now() + kLook);
  auto read = read_password(path_);
  std::string trouble;
  if (!read.ok()) {
    trouble = read.status().message();
  } else if (read->empty() && !password_.empty()) {
    trouble = "--password-file " + path_ + " is empty; to serve without a password, start the shard without the flag";
  }
  if (trouble != told_) {
    told_ = trouble;
    if (!trouble.empty()) trouble_(trouble + "; the password stays as it was");
  }
  if (!trouble.empty() || *read == password_) return;
  password_ = *read;
  changed_(password_);
}

}  // namespace farpool::apps
