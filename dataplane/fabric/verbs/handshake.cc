// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/handshake.h"

#include <algorithm>
#include <cstring>

namespace farpool::fabric::verbs {
namespace {

constexpr std::uint32_t kMagic = 0x31767066;       // "fpv1"
constexpr std::uint32_t kClaimMagic = 0x31637066;  // "fpc1"
constexpr std::size_t kHeadBytes = 48;
constexpr std::size_t kRegionBytes = 24;
constexpr std::size_t kCallsBytes = 24;
constexpr std::uint32_t kMostCalls = 4096, kMostCallBytes = 1u << 20;
constexpr std::uint8_t kLargestMtu = 5;
constexpr std::uint8_t kLongestTimeout = 31;
constexpr std::uint8_t kMostRetries = 6;

struct Head {
  std::uint32_t magic = kMagic;
  std::uint32_t queue_pair = 0;
  std::uint32_t sequence = 0;
  std::uint8_t mtu = 0;
  std::uint8_t depth = 0;
  std::uint8_t timeout = 0;
  std::uint8_t retries = 0;
  Gid gid{};
  std::uint64_t nonce = 0;
  std::uint32_t regions = 0;
  std::uint16_t manager = 0;
  std::uint16_t calls = 0;
};
static_assert(sizeof(Head) == kHeadBytes && base::wire_safe<Head>);

struct Region {
  std::uint32_t id = 0;
  std::uint32_t device_key = 0;
  std::uint64_t word = 0;
  std::uint32_t read_only = 0;
  std::uint32_t zero = 0;
};
static_assert(sizeof(Region) == kRegionBytes && base::wire_safe<Region>);

struct Calls {
  std::uint32_t queue_pair = 0;
  std::uint32_t sequence = 0;
  std::uint32_t window = 0;
  std::uint32_t bytes = 0;
  std::uint64_t cookie = 0;
};
static_assert(sizeof(Calls) == kCallsBytes && base::wire_safe<Calls>);

Head head_of(const End& end, std::uint64_t nonce, std::size_t regions, const std::optional<CallEnd>& calls) {
  Head head;
  head.queue_pair = end.queue_pair;
  head.sequence = end.sequence;
  head.mtu = end.mtu;
  head.depth = end.depth;
  head.gid = end.gid;
  head.nonce = nonce;
  head.regions = static_cast<std::uint32_t>(regions);
  head.calls = calls ? static_cast<std::uint16_t>(calls->form) : 0;
  return head;
}
End end_of(const Head& head) {
  return {
      .queue_pair = head.queue_pair, .sequence = head.sequence, .mtu = head.mtu, .depth = head.depth, .gid = head.gid};
}

template <class T>
void append(std::string& to, const T& part) {
  to += base::text_of(base::bytes_of(part));
}

std::optional<Head> get_head(base::Bytes bytes) {
  if (bytes.size() < kHeadBytes) return std::nullopt;
  const auto head = base::load<Head>(bytes.data());
  if (head.magic != kMagic || head.regions > kMaxRegions) return std::nullopt;
  if (head.calls > static_cast<std::uint16_t>(CallForm::datagrams)) return std::nullopt;
  const std::size_t calls = head.calls != 0 ? kCallsBytes : 0;
  if (bytes.size() != kHeadBytes + kRegionBytes * head.regions + calls) return std::nullopt;
  if (head.queue_pair == 0 || head.queue_pair > kMask24 || head.sequence > kMask24) return std::nullopt;
  if (head.mtu == 0 || head.mtu > kLargestMtu || head.depth == 0) return std::nullopt;
  return head;
}
Region region_at(base::Bytes bytes, std::size_t index) {
  return base::load<Region>(bytes.data() + kHeadBytes + kRegionBytes * index);
}

void append_calls(std::string& to, const std::optional<CallEnd>& calls) {
  if (!calls) return;
  append(to, Calls{.queue_pair = calls->queue_pair,
                   .sequence = calls->sequence,
                   .window = calls->window,
                   .bytes = calls->bytes,
                   .cookie = calls->cookie});
}
// False: they cannot be. They stand at the end.
bool get_calls(base::Bytes bytes, const Head& head, std::optional<CallEnd>& into) {
  if (head.calls == 0) return true;
  const auto calls = base::load<Calls>(bytes.data() + bytes.size() - kCallsBytes);
  const auto form = static_cast<CallForm>(head.calls);
  if (calls.queue_pair == 0 || calls.queue_pair > kMask24) return false;
  if (form == CallForm::connected && calls.sequence > kMask24) return false;
  if (calls.window == 0 || calls.window > kMostCalls || calls.bytes > kMostCallBytes) return false;
  into = CallEnd{.form = form,
                 .queue_pair = calls.queue_pair,
                 .sequence = calls.sequence,
                 .window = calls.window,
                 .bytes = calls.bytes,
                 .cookie = calls.cookie};
  return true;
}

}  // namespace

Patience patience_within(base::Nanos failure_timeout) {
  // Seven waits of the chosen length, and a length is at least what a loaded host may take to answer at all.
  constexpr std::uint8_t kShortest = 8;
  Patience patience{.timeout = kShortest, .retries = kMostRetries};
  const auto total = [&patience](std::uint8_t timeout) {
    return (base::Nanos{4096} << timeout) * (patience.retries + 1);
  };
  while (patience.timeout < kLongestTimeout && total(patience.timeout + 1) <= failure_timeout / 2) ++patience.timeout;
  while (patience.retries > 1 && total(patience.timeout) > failure_timeout / 2) --patience.retries;
  return patience;
}

std::string put(const AttachRequest& request) {
  std::string bytes;
  Head head = head_of(request.client, request.nonce, request.keys.size(), request.calls);
  head.manager = request.managed ? 1 : 0;
  append(bytes, head);
  for (const auto& key : request.keys) append(bytes, Region{.id = key.region, .word = key.key});
  append_calls(bytes, request.calls);
  return bytes;
}

std::string put(const AttachReply& reply) {
  std::string bytes;
  Head head = head_of(reply.node, reply.nonce, reply.places.size(), reply.calls);
  head.timeout = reply.patience.timeout;
  head.retries = reply.patience.retries;
  head.manager = reply.manager_port;
  append(bytes, head);
  for (const auto& place : reply.places) {
    append(bytes,
           Region{.id = place.region, .device_key = place.key, .word = place.begin, .read_only = place.read_only});
  }
  append_calls(bytes, reply.calls);
  return bytes;
}

std::optional<AttachRequest> get_request(base::Bytes bytes) {
  const auto head = get_head(bytes);
  if (!head || head->timeout != 0 || head->retries != 0 || head->manager > 1) return std::nullopt;
  AttachRequest request{.client = end_of(*head), .nonce = head->nonce, .managed = head->manager == 1, .keys = {}};
  for (std::size_t i = 0; i < head->regions; ++i) {
    const Region region = region_at(bytes, i);
    if (region.device_key != 0 || region.read_only != 0 || region.zero != 0) return std::nullopt;
    request.keys.push_back({.region = region.id, .key = region.word});
  }
  if (!get_calls(bytes, *head, request.calls) || (request.calls && request.calls->cookie != 0)) return std::nullopt;
  return request;
}

std::optional<AttachReply> get_reply(base::Bytes bytes) {
  const auto head = get_head(bytes);
  if (!head || head->timeout == 0 || head->timeout > kLongestTimeout || head->retries > kMostRetries) {
    return std::nullopt;
  }
  AttachReply reply{.node = end_of(*head),
                    .patience = {.timeout = head->timeout, .retries = head->retries},
                    .nonce = head->nonce,
                    .manager_port = head->manager,
                    .places = {}};
  for (std::size_t i = 0; i < head->regions; ++i) {
    const Region region = region_at(bytes, i);
    if (region.read_only > 1 || region.zero != 0) return std::nullopt;
    reply.places.push_back(
        {.region = region.id, .key = region.device_key, .begin = region.word, .read_only = region.read_only != 0});
  }
  if (!get_calls(bytes, *head, reply.calls)) return std::nullopt;
  return reply;
}

std::array<std::byte, kClaimBytes> put(const Claim& claim) {
  std::array<std::byte, kClaimBytes> bytes;
  base::store(bytes.data(), kClaimMagic);
  base::store(bytes.data() + 4, claim.queue_pair);
  base::store(bytes.data() + 8, claim.nonce);
  return bytes;
}

std::optional<Claim> get_claim(base::Bytes bytes) {
  if (bytes.size() < kClaimBytes || base::load<std::uint32_t>(bytes.data()) != kClaimMagic) return std::nullopt;
  return Claim{.queue_pair = base::load<std::uint32_t>(bytes.data() + 4),
               .nonce = base::load<std::uint64_t>(bytes.data() + 8)};
}

}  // namespace farpool::fabric::verbs
