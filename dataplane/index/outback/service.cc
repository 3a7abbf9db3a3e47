// SPDX-License-Identifier: Apache-2.0
#include "index/outback/service.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/marks.h"

namespace farpool::outback {

using fabric::Served;

NodeService::NodeService(NodeTable& table) : table_(table), waiting_(table.zones()) {}

NodeService::~NodeService() {
  for (auto& waiting : waiting_) {
    for (Held* held = waiting.load(); held != nullptr;) delete std::exchange(held, held->next);
  }
}

Served NodeService::serve(fabric::Call& call) noexcept {
  if (call.opcode != kCall) return Served::refused(fabric::Refusal::unknown_opcode);
  if (call.reply.size() < kKvReplyHead) return Served::refused(fabric::Refusal::malformed);
  Request request;
  if (const Status status = get_kv_request(call.request, request); status != Status::done) {
    return Served::done(put_kv_reply(Reply{.status = status, .generation = table_.stage().generation}, call.reply));
  }
  const auto zone = table_.zone_of(request);
  if (!zone) return Served::done(table_.run(request, call.session_id, call.hand, call.reply));
  if (table_.zone(*zone).try_lock()) {
    const std::size_t bytes = table_.run(request, call.session_id, call.hand, call.reply);
    const bool grows = table_.is_turn(request, *zone);
    leave(*zone);
    if (grows) table_.grow(request, call.hand, *this);
    return Served::done(bytes);
  }
  held_.fetch_add(1, std::memory_order_relaxed);
  FARPOOL_MARK(outback_call_held);
  // The thread that answers it owns it from here on.
  Held* const held = std::make_unique<Held>(Held{.session = call.session_id,
                                                 .hand = call.hand,
                                                 .request = {call.request.begin(), call.request.end()},
                                                 .ticket = call.hold()})
                         .release();
  auto& waiting = waiting_[*zone];
  held->next = waiting.load(std::memory_order_relaxed);
  while (!waiting.compare_exchange_weak(held->next, held, std::memory_order_seq_cst)) {
  }
  // The other thread may have left before it could see this CALL.
  if (table_.zone(*zone).try_lock()) leave(*zone);
  return Served::held();
}

void NodeService::answer(Held* held, std::uint64_t zone) {
  Request request;
  FARPOOL_CHECK(get_kv_request(held->request, request) == Status::done);
  // No reply is longer than the longest block, or than a step of a scan.
  std::vector<std::byte> reply(
      std::min(held->ticket.room(), layout::kv_reply_bytes(layout::kMaxKeyBytes, layout::kMaxValueBytes)));
  const std::size_t bytes = table_.run(request, held->session, held->hand, reply);
  table_.owe(request, zone);
  held->ticket.answer(base::Bytes(reply).first(bytes));
  delete held;
}

void NodeService::leave(std::uint64_t zone) {
  auto& waiting = waiting_[zone];
  for (;;) {
    Held* latest = waiting.exchange(nullptr, std::memory_order_seq_cst);
    Held* first = nullptr;
    while (latest != nullptr) first = std::exchange(latest, std::exchange(latest->next, first));
    while (first != nullptr) answer(std::exchange(first, first->next), zone);
    table_.zone(zone).unlock();
    if (waiting.load(std::memory_order_seq_cst) == nullptr || !table_.zone(zone).try_lock()) return;
  }
}

void NodeService::release(std::uint64_t session_id) noexcept { table_.forget_session(session_id); }

}  // namespace farpool::outback
