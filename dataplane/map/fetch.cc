// SPDX-License-Identifier: Apache-2.0
#include "map/fetch.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "session/handshake.h"
#include "task/scope.h"

namespace farpool::map {
namespace {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;

constexpr std::size_t kSideBySide = 8;

struct Search {
  std::string pool_uid;
  std::uint64_t at_least = 0;
  Trust& trust;
  std::optional<Map> best;
  std::uint64_t newest_seen = 0;
  std::vector<std::string> complaints;  // of each endpoint; empty: none
  Code worst = Code::unavailable;
  bool slow = false;  // somebody had not answered when the time was over

  // Returns them in the order of the endpoints: the same trouble has the same text, whichever memory node answers first.
  std::string text() const {
    std::string text;
    for (const std::string& one : complaints) {
      if (one.empty() || text.size() > 1024) continue;
      if (!text.empty()) text.append("; ");
      text.append(one);
    }
    return text;
  }
};

Result<Map> judge(Search& search, const std::string& endpoint, std::string_view bytes) {
  Result<v1alpha1::SessionReply> reply = session::parse_reply(bytes);
  if (!reply.ok()) return reply.status();
  // A node that is stopped or follows another epoch still shows its map.
  if (Status refused = session::status_of(*reply, endpoint); !refused.ok() && !reply->has_map()) return refused;
  Result<Map> map = Map::from(std::move(*reply->mutable_map()));
  if (!map.ok()) return Status(Code::corrupt, endpoint + ": " + map.status().message());
  if (map->pool_uid() != search.pool_uid) return Status(Code::forbidden, endpoint + " has the map of another pool");
  if (Status status = check_signature(map->message(), search.trust.key); !status.ok()) {
    ++search.trust.forged;
    return Status(status.code(), endpoint + ": " + status.message());
  }
  return map;
}

task::Task<void> ask(fabric::Port& port, Search& search, std::string endpoint, std::string& complaint, Nanos deadline) {
  v1alpha1::SessionRequest request = session::begin_request(search.pool_uid);
  request.mutable_read_map();
  Result<std::string> bytes = co_await port.exchange(endpoint, request.SerializeAsString(), deadline);
  Result<Map> map = bytes.ok() ? judge(search, endpoint, *bytes) : Result<Map>(bytes.status());
  if (!map.ok()) {
    if (map.code() == Code::forbidden) search.worst = Code::forbidden;
    if (map.code() == Code::timed_out) search.slow = true;
    complaint = map.status().message();
    co_return;
  }
  search.newest_seen = std::max(search.newest_seen, map->epoch());
  if (map->epoch() < search.at_least) {
    complaint = endpoint + " has epoch " + std::to_string(map->epoch());
  } else if (!search.best || map->epoch() > search.best->epoch()) {
    search.best = std::move(*map);
  }
}

}  // namespace

task::Task<Result<Map>> fetch(fabric::Port& port, std::vector<std::string> endpoints, std::string pool_uid,
                              std::uint64_t at_least, Nanos deadline, Trust& trust) {
  Search search{.pool_uid = std::move(pool_uid), .at_least = at_least, .trust = trust, .best = {}, .complaints = {}};
  // A second for each handful, and then, where nobody has the map and somebody was only slow, all the time that is
  // left.
  for (const bool patient : {false, true}) {
    search.complaints.assign(endpoints.size(), "");
    search.slow = false;
    for (std::size_t from = 0; from < endpoints.size() && !search.best; from += kSideBySide) {
      const auto handfuls = static_cast<Nanos>((endpoints.size() - from + kSideBySide - 1) / kSideBySide);
      const Nanos left = deadline - port.now();
      const Nanos until = port.now() + (patient ? left / handfuls : std::min(left, base::kSecond));
      task::Scope scope;
      for (std::size_t i = from; i < std::min(endpoints.size(), from + kSideBySide); ++i) {
        scope.spawn(ask(port, search, endpoints[i], search.complaints[i], until));
      }
      co_await scope.join();
    }
    if (search.best || !search.slow || port.now() >= deadline) break;
  }
  if (search.best) co_return std::move(*search.best);
  if (endpoints.empty()) co_return Status(Code::invalid_argument, "no memory node is known to read the shard map from");
  if (search.newest_seen > 0) {
    co_return Status(Code::stale, "no memory node has epoch " + std::to_string(at_least) +
                                      " of the shard map yet: " + search.text());
  }
  co_return Status(search.worst, "the shard map could not be read from any memory node: " + search.text());
}

}  // namespace farpool::map
