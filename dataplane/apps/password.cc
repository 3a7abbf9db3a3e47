// SPDX-License-Identifier: Apache-2.0
#include "apps/password.h"

#include <openssl/evp.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace farpool::apps {
namespace {

using base::Code;
using base::Result;
using base::Status;
using front::resp::Passwords;

constexpr base::Nanos kLook = base::kSecond;
constexpr std::uintmax_t kMaxPasswordBytes = 4096;
constexpr const char* kAlso = ".also";
constexpr int kAttempts = 3;

// Returns the content of a file without the line end after it.
Result<std::string> read_file(const std::string& path) {
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

// Returns the second password; nothing if there is no file of it.
Result<std::optional<std::string>> read_also(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    if (!error) return std::optional<std::string>();
    return Status(Code::invalid_argument, "--password-file " + path + " cannot be read: " + error.message());
  }
  auto read = read_file(path);
  if (!read.ok()) return read.status();
  return std::optional<std::string>(std::move(*read));
}

std::uint64_t fingerprint(std::string_view pool_uid, std::string_view password) {
  const std::string text = std::string(pool_uid) + '\0' + std::string(password);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  FARPOOL_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr) == 1);
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sizeof(number); ++i) number = number << 8 | digest[i];
  return number;
}

}  // namespace

Result<PasswordFiles> read_passwords(const std::string& path) {
  if (path.empty()) return PasswordFiles{};
  // A volume changes both files at once. If it did so between two reads, one password of each version would be taken, and
  // one that applications use could be missing.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    auto also = read_also(path + kAlso);
    auto password = read_file(path);
    auto again = read_also(path + kAlso);
    if (!password.ok()) return password.status();
    if (!also.ok()) return also.status();
    if (!again.ok()) return again.status();
    if (*also == *again) return PasswordFiles{.password = std::move(*password), .also = std::move(*also)};
  }
  return Status(Code::unavailable, "--password-file " + path + kAlso + " changes again and again while it is read");
}

Result<PasswordFiles> first_passwords(const std::string& path, bool may_be_empty) {
  Result<PasswordFiles> files = read_passwords(path);
  if (files.ok() && files->password.empty() && !path.empty() && !may_be_empty) {
    return Status(Code::invalid_argument,
                  "--password-file " + path +
                      " is empty: write the password into it. To serve without a password leave the flag out, or give "
                      "--allow-empty-password to serve without one until the file has one");
  }
  return files;
}

std::vector<std::uint64_t> fingerprints(std::string_view pool_uid, const Passwords& passwords) {
  std::vector<std::uint64_t> numbers;
  if (!passwords.asked()) return numbers;
  numbers.push_back(fingerprint(pool_uid, passwords.password));
  if (!passwords.also.empty()) numbers.push_back(fingerprint(pool_uid, passwords.also));
  return numbers;
}

PasswordWatch::PasswordWatch(net::Loop& loop, std::string path, PasswordFiles files,
                             std::function<void(const Passwords&)> changed,
                             std::function<void(const std::string&)> trouble, base::Nanos overlap)
    : path_(std::move(path)),
      files_(std::move(files)),
      passwords_(files_.passwords()),
      changed_(std::move(changed)),
      trouble_(std::move(trouble)),
      overlap_(overlap),
      alarm_(loop, [this] { look(); }) {
  if (!path_.empty()) alarm_.set(net::Loop::now() + kLook);
}

std::string PasswordWatch::refuses(const Result<PasswordFiles>& read) const {
  if (!read.ok()) return read.status().message();
  if (!read->password.empty() || files_.password.empty()) return {};
  return "--password-file " + path_ + " is empty; to serve without a password, start the shard without the flag";
}

void PasswordWatch::look() {
  const base::Nanos now = net::Loop::now();
  alarm_.set(now + kLook);
  auto read = read_passwords(path_);
  const std::string trouble = refuses(read);
  if (trouble != told_) {
    told_ = trouble;
    if (!trouble.empty()) trouble_(trouble + "; the passwords stay as they were");
  }
  if (trouble.empty() && *read != files_) {
    if (read->password != files_.password) {
      former_ = files_.password;
      former_ends_ = now + overlap_;
    }
    files_ = std::move(*read);
  }
  // Where there is a second file, people have said which other password counts.
  if (files_.also || now >= former_ends_) former_.clear();
  Passwords passwords = files_.passwords();
  if (!former_.empty()) passwords.also = former_;
  if (passwords == passwords_) return;
  passwords_ = passwords;
  changed_(passwords_);
}

}  // namespace farpool::apps
