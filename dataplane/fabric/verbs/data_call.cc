// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/data_call.h"

#include "base/check.h"

namespace farpool::fabric::verbs {
namespace {

struct Head {
  std::uint64_t cookie = 0;
  std::uint64_t id = 0;
  std::uint32_t what = 0;    // opcode; outcome
  std::uint32_t detail = 0;  // room; why
  std::uint32_t bytes = 0;
  std::uint32_t zero = 0;
};
static_assert(sizeof(Head) == kDataHeadBytes && base::wire_safe<Head>);

std::optional<Head> get_head(base::Bytes message) {
  if (message.size() < kDataHeadBytes) return std::nullopt;
  const auto head = base::load<Head>(message.data());
  if (head.zero != 0 || head.bytes != message.size() - kDataHeadBytes) return std::nullopt;
  return head;
}

void put(base::MutableBytes into, const Head& head) {
  FARPOOL_CHECK(into.size() >= kDataHeadBytes);
  base::store(into.data(), head);
}

}  // namespace

void put_head(base::MutableBytes into, const DataRequest& request) {
  put(into, {.cookie = request.cookie,
             .id = request.id,
             .what = request.opcode,
             .detail = request.room,
             .bytes = static_cast<std::uint32_t>(request.body.size())});
}

void put_head(base::MutableBytes into, const DataAnswer& answer) {
  put(into, {.cookie = answer.cookie,
             .id = answer.id,
             .what = answer.refused ? 1u : 0u,
             .detail = static_cast<std::uint32_t>(answer.why),
             .bytes = static_cast<std::uint32_t>(answer.body.size())});
}

std::optional<DataRequest> get_data_request(base::Bytes message) {
  const auto head = get_head(message);
  if (!head || head->what < kFirstServiceOpcode) return std::nullopt;
  return DataRequest{.cookie = head->cookie,
                     .id = head->id,
                     .opcode = head->what,
                     .room = head->detail,
                     .body = message.subspan(kDataHeadBytes)};
}

std::optional<DataAnswer> get_data_answer(base::Bytes message) {
  const auto head = get_head(message);
  if (!head || head->what > 1) return std::nullopt;
  const bool refused = head->what == 1;
  if (refused ? head->bytes != 0 || head->detail > static_cast<std::uint32_t>(kLastRefusal) : head->detail != 0) {
    return std::nullopt;
  }
  return DataAnswer{.cookie = head->cookie,
                    .id = head->id,
                    .refused = refused,
                    .why = static_cast<Refusal>(head->detail),
                    .body = message.subspan(kDataHeadBytes)};
}

}  // namespace farpool::fabric::verbs
