// SPDX-License-Identifier: Apache-2.0
// Small files that a process leaves to the next one.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace farpool::apps {

// Returns the whole file; nothing if it does not exist or cannot be read.
std::string read_file(const std::string& path);
// Replaces the file as a whole: a reader finds the old content or all of the new.
base::Status replace_file(const std::string& path, std::string_view contents);

}  // namespace farpool::apps
