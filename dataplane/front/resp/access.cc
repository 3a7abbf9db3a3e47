// SPDX-License-Identifier: Apache-2.0
#include "front/resp/access.h"

namespace farpool::front::resp {

using base::Result;
using base::Status;
using client::Type;
using client::Value;
using task::Task;

Task<bool> modify(Conversation& conversation, Request& request, client::Editor& editor) {
  const Status status = co_await conversation.kv().modify(request.command[1], editor);
  if (!status.ok()) pool_error(request, status, conversation.service().counters);
  co_return status.ok();
}

Task<Result<std::optional<Value>>> read(Conversation& conversation, Request& request, std::size_t word) {
  Result<std::optional<Value>> value = co_await conversation.kv().read(request.command[word]);
  if (value.ok()) {
    count_read(conversation, value->has_value());
  } else {
    pool_error(request, value.status(), conversation.service().counters);
  }
  co_return value;
}

void count_read(Conversation& conversation, bool found) {
  Counters& counters = conversation.service().counters;
  (found ? counters.hits : counters.misses).add();
}

void count_failed_read(Conversation& conversation, const Request& request) {
  if (request.reply.starts_with("-WRONGTYPE ")) count_read(conversation, true);
}

std::string_view name_of(Type type) {
  switch (type) {
    case Type::string:
      return "string";
    case Type::hash:
      return "hash";
  }
  return {};
}

}  // namespace farpool::front::resp
