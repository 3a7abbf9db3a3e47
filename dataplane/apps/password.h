// SPDX-License-Identifier: Apache-2.0
// The passwords of RESP, from files that may change while the shard serves.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "front/resp/conversation.h"
#include "net/loop.h"

namespace farpool::apps {

// What the files say.
struct PasswordFiles {
  std::string password = {};
  // The content of FILE.also; nothing: there is no such file. One that is empty says that no second password counts.
  std::optional<std::string> also = {};

  // Returns the passwords of a shard that has not seen others before.
  front::resp::Passwords passwords() const { return {.password = password, .also = also.value_or("")}; }
  bool operator==(const PasswordFiles&) const = default;
};

// Returns the content of the file at `path`, and of the file at `path`.also if there is one, each without the line end
// after it; no password if there is no path. Files that change again and again while they are read are an error.
base::Result<PasswordFiles> read_passwords(const std::string& path);

// Returns what a shard begins with. An empty file is an error, unless it is allowed: a file that was not filled in must
// not open the pool to everybody.
base::Result<PasswordFiles> first_passwords(const std::string& path, bool may_be_empty);

// Returns the numbers by which an agent says which passwords count: none if the shard asks for no password. Each is the
// first 8 bytes, big-endian, of the SHA-256 of the pool's uid, a zero byte and the password. The first is that of FILE.
std::vector<std::uint64_t> fingerprints(std::string_view pool_uid, const front::resp::Passwords& passwords);

// For how long a password counts after another has taken its place: longer than kubelets take to bring the new one to all
// shards of a pool, and to the applications.
constexpr base::Nanos kPasswordOverlap = 10 * 60 * base::kSecond;

// Reads the files again every second, on the loop's thread. A file that cannot be read, or that has become empty, leaves
// the passwords unchanged: a half-written file must not open the pool to everybody. When the password changes and there
// is no FILE.also, the one before counts for the overlap, because other shards and applications learn of it later.
class PasswordWatch {
 public:
  // `changed` gets new passwords; `trouble` gets each new reason why the files were not accepted.
  PasswordWatch(net::Loop& loop, std::string path, PasswordFiles files,
                std::function<void(const front::resp::Passwords&)> changed,
                std::function<void(const std::string&)> trouble, base::Nanos overlap = kPasswordOverlap);

 private:
  void look();
  // Returns why what was read is not accepted; nothing: it is.
  std::string refuses(const base::Result<PasswordFiles>& read) const;

  const std::string path_;
  PasswordFiles files_;
  front::resp::Passwords passwords_;
  std::string former_;  // the password before this one, while it counts
  base::Nanos former_ends_ = 0;
  std::string told_;
  const std::function<void(const front::resp::Passwords&)> changed_;
  const std::function<void(const std::string&)> trouble_;
  const base::Nanos overlap_;
  net::Alarm alarm_;
};

}  // namespace farpool::apps
