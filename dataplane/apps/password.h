// SPDX-License-Identifier: Apache-2.0
// The password of RESP, from a file that may change while the shard serves.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "net/loop.h"

namespace farpool::apps {

// Returns the file's content without the line end after it; nothing if there is no path.
base::Result<std::string> read_password(const std::string& path);

// Returns the password that a shard begins with. An empty file is an error, unless it is allowed: a file that was not
// filled in must not open the pool to everybody.
base::Result<std::string> first_password(const std::string& path, bool may_be_empty);

// Reads the file again every second, on the loop's thread. A file that cannot be read, or that has become empty, leaves
// the password unchanged: a half-written file must not open the pool to everybody.
class PasswordWatch {
 public:
  // `changed` gets each new password; `trouble` gets each new reason why the file was not accepted.
  PasswordWatch(net::Loop& loop, std::string path, std::string password, std::function<void(std::string)> changed,
                std::function<void(const std::string&)> trouble);

 private:
  void look();

  const std::string path_;
  std::string password_;
  std::string told_;
  const std::function<void(std::string)> changed_;
  const std::function<void(const std::string&)> trouble_;
  net::Alarm alarm_;
};

}  // namespace farpool::apps
