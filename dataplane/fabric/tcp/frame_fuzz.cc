// SPDX-License-Identifier: Apache-2.0
// For any bytes that a client sends as chains, or a memory node as replies: nothing outside the regions is touched, and
// what is read comes from what was sent.
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "fabric/tcp/frame.h"
#include "fabric/tcp/nic.h"

namespace farpool::fabric::tcp {
namespace {

constexpr std::size_t kWords = 64, kGuards = 8;
constexpr std::uint64_t kGuard = 0xfeedfacecafebeef;

void run_chain(base::Bytes input) {
  static ChainView view;
  alignas(8) std::array<std::uint64_t, kWords + 2 * kGuards> memory;
  memory.fill(kGuard);
  auto* base = reinterpret_cast<std::byte*>(memory.data() + kGuards);
  std::memset(base, 0, kWords * 8);
  // Region 0 under key 0, which a fuzzer hits by itself, and a region that it has to find.
  const std::array<RegionRight, 3> rights{
      RegionRight{.id = 0, .key = 0, .base = base, .bytes = kWords * 8},
      RegionRight{.id = 1, .key = 0x0101010101010101, .base = base, .bytes = 64},
      RegionRight{.id = 2, .key = 0, .base = base - kGuards * 8, .bytes = kGuards * 8, .read_only = true}};
  if (!get_chain(input, view)) return;
  FARPOOL_CHECK(view.count >= 1 && view.count <= kMaxChain);
  for (std::size_t i = 0; i < view.count; ++i) {
    const base::Bytes data = view.verbs[i].data;
    FARPOOL_CHECK(data.empty() ||
                  (data.data() >= input.data() && data.data() + data.size() <= input.data() + input.size()));
  }
  if (!permitted(view, rights)) return;
  if (view.verbs[0].verb == Verb::call) {
    FARPOOL_CHECK(view.count == 1 && !too_long(view.verbs[0]));
    FARPOOL_CHECK(call_reply_length(view.verbs[0].offset) <= kMaxFrameBytes);
    return;
  }
  std::vector<std::byte> reply(reply_length(view));
  execute(view, rights, reply);
  FARPOOL_CHECK(frame_length(reply) == reply.size());
  FARPOOL_CHECK(get_reply_header(reply).has_value());
  for (std::size_t i = 0; i < kGuards; ++i) {
    FARPOOL_CHECK(memory[i] == kGuard && memory[memory.size() - 1 - i] == kGuard);
  }
}

void run_reply(base::Bytes input) {
  const auto header = get_reply_header(input);
  if (!header || header->refused || input.size() < kHeaderBytes) return;
  std::array<std::byte, 64> local{};
  std::uint64_t old = 0;
  std::uint32_t bytes = 0;
  const std::array chain{Op::read({0, 0}, local), Op::cas({0, 0}, old, 0, 1), Op::write({0, 0}, local)};
  (void)take_reply(input, chain, bytes);
  const std::array call{Op::call(1, {}, local)};
  if (take_reply(input, call, bytes)) FARPOOL_CHECK(bytes <= local.size());
}

}  // namespace
}  // namespace farpool::fabric::tcp

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace tcp = farpool::fabric::tcp;
  const farpool::base::Bytes input = std::as_bytes(std::span(data, size));
  if (size >= tcp::kHeaderBytes) {
    const std::size_t length = tcp::frame_length(input);
    FARPOOL_CHECK(length == 0 || (length >= tcp::kHeaderBytes && length <= tcp::kMaxFrameBytes));
  }
  tcp::run_chain(input);
  tcp::run_reply(input);
  // Runs once more with a right length, so that most inputs get beyond the header.
  std::vector<std::byte> honest(input.begin(), input.end());
  if (honest.size() >= tcp::kHeaderBytes) {
    const auto length = static_cast<std::uint32_t>(honest.size());
    std::memcpy(honest.data(), &length, sizeof length);
    tcp::run_chain(honest);
    tcp::run_reply(honest);
  }
  return 0;
}
