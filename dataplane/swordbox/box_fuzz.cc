// SPDX-License-Identifier: Apache-2.0
// Whatever frames come, in whatever order and at whatever time: the box never crashes, and never sends towards a client
// or a server what it cannot have got from the other. Each frame of the input begins with two bytes: how it is made, and
// how much later it comes. Most have right checksums, so that they get far.
#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"
#include "swordbox/box.h"

namespace farpool::swordbox {
namespace {

constexpr roce::Address kServer = roce::ipv4(10, 0, 0, 1);
constexpr roce::Address kClient = roce::ipv4(10, 0, 0, 2);

class Watch : public Sink {
 public:
  void send(base::Bytes frame) override {
    ++sent;
    if (raw) return;
    roce::Packet packet;
    FARPOOL_CHECK(roce::parse(frame, packet) == roce::Refusal::none && roce::sums_hold(frame, packet));
  }
  bool raw = false;
  std::uint64_t sent = 0;
};

roce::Packet make(const std::uint8_t* data) {
  static constexpr roce::Opcode kOpcodes[] = {
      roce::Opcode::compare_swap,        roce::Opcode::fetch_add,          roce::Opcode::masked_compare_swap,
      roce::Opcode::write_only,          roce::Opcode::write_first,        roce::Opcode::read_request,
      roce::Opcode::send_only,           roce::Opcode::acknowledge,        roce::Opcode::atomic_acknowledge,
      roce::Opcode::read_response_first, roce::Opcode::read_response_only, roce::Opcode::atomic_write};
  static constexpr std::array<std::byte, 8> kWord = {};
  roce::Packet packet;
  packet.bth.opcode = kOpcodes[data[0] % std::size(kOpcodes)];
  const bool response = roce::is_response(packet.bth.opcode);
  packet.ip.from = response ? kServer : kClient;
  packet.ip.to = response ? kClient : kServer;
  packet.bth.queue_pair = 2 + data[1] % 4;
  packet.bth.psn = (0xfffff8u + data[2] % 32) & 0xffffff;
  packet.atomic = {
      .address = 0x1000u + 8u * (data[3] % 4), .key = 1, .swap_or_add = data[4] % 3u, .compare = data[5] % 3u};
  packet.reth = {.address = packet.atomic.address, .key = 1, .length = data[4] % 2 ? 8u : 5000u};
  packet.aeth = {.syndrome = data[3], .msn = data[4]};
  packet.prior = data[5] % 3;
  const unsigned headers = roce::headers_of(packet.bth.opcode);
  if (headers == roce::has_reth && packet.bth.opcode != roce::Opcode::read_request) packet.payload = kWord;
  return packet;
}

}  // namespace
}  // namespace farpool::swordbox

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace farpool;
  using namespace farpool::swordbox;
  Settings settings;
  settings.ranges = {{kServer, 0x1000, 24}};
  settings.connections = settings.words = 3;
  settings.entries = settings.held = 2;
  base::Nanos now = 0;
  Watch watch;
  Box box(settings, now);
  for (std::size_t at = 0; at + 8 <= size; at += 8) {
    const std::uint8_t how = data[at], later = data[at + 1];
    now += base::Nanos{later} * later * later * base::kMicrosecond;
    if (how % 8 == 0) box.on_time(now, watch);
    if (how % 16 == 1) {
      box.introduce(kClient, 2 + data[at + 2] % 4u, kServer, 2 + data[at + 3] % 4u, 0xfffff8, 1024, now);
    }
    std::array<std::byte, 128> frame = {};
    std::size_t bytes = roce::build_sealed(make(data + at + 2), frame);
    watch.raw = how % 4 == 3;  // a damaged one: it passes as it is, or is dropped
    if (watch.raw) frame[data[at + 2] % bytes] ^= std::byte{data[at + 3]};
    if (how % 16 == 7) bytes = data[at + 2] % bytes;
    box.on_packet(base::Bytes(frame).first(bytes), now, watch);
  }
  watch.raw = false;
  for (int i = 0; i < 1000 && box.next_time() != base::kNever; ++i)
    box.on_time(now = std::max(now, box.next_time()), watch);
  FARPOOL_CHECK(box.next_time() == base::kNever);
  return 0;
}
