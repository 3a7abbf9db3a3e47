// SPDX-License-Identifier: Apache-2.0
// What commands on keys have in common. A call that fails has answered the request with the error.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "client/kv.h"
#include "front/resp/conversation.h"
#include "task/task.h"

namespace farpool::front::resp {

// Keys of one command that are worked on at once.
inline constexpr std::size_t kKeysAtOnce = 64;

// Edits the first key. Returns whether the operation took effect as the editor decided.
task::Task<bool> modify(Conversation& conversation, Request& request, client::Editor& editor);

// Reads the value of any type of the key that is that word of the command, and counts that.
task::Task<base::Result<std::optional<client::Value>>> read(Conversation& conversation, Request& request,
                                                            std::size_t word = 1);

// Counts as Redis does: what reads a key, and nothing that only writes one.
void count_read(Conversation& conversation, bool found);
// Counts a read that was answered with an error: if the value was of another type, the key was found.
void count_failed_read(Conversation& conversation, const Request& request);

// Returns the type's name, as TYPE says it; nothing for a type of a later version.
std::string_view name_of(client::Type type);

}  // namespace farpool::front::resp
