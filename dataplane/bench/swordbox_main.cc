// SPDX-License-Identifier: Apache-2.0
// Measures how many packets a core of SwordBox takes in a second, without any shell: clients contend for a lock, and the
// server acknowledges at once. Most CASes fail, as under contention.
//
//   swordbox_bench [CLIENTS [SECONDS]]
//   swordbox_bench bytes               how long packets are before and behind the box, instead
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "roce/psn.h"
#include "swordbox/box.h"

namespace farpool {
namespace {

constexpr roce::Address kServer = roce::ipv4(10, 0, 0, 1);
constexpr std::uint64_t kLock = 0x1000;

struct Taken : swordbox::Sink {
  void send(base::Bytes frame) override {
    ++packets;
    bytes += frame.size();
  }
  std::uint64_t packets = 0, bytes = 0;
};

struct Client {
  roce::Address address;
  std::uint32_t psn = 0;
  bool holds = false;
};

using Frame = std::vector<std::byte>;

Frame frame_of(const roce::Packet& packet) {
  Frame frame(256);
  frame.resize(roce::build_sealed(packet, frame));
  return frame;
}

roce::Packet request(const Client& client, std::uint32_t number, std::uint64_t compare, std::uint64_t swap) {
  roce::Packet packet;
  packet.ip.from = client.address;
  packet.ip.to = kServer;
  packet.bth.opcode = roce::Opcode::compare_swap;
  packet.bth.queue_pair = 0x100 + number;
  packet.bth.psn = client.psn;
  packet.atomic = {.address = kLock, .key = number, .swap_or_add = swap, .compare = compare};
  return packet;
}

roce::Packet acknowledgement(const Client& client, std::uint32_t number, bool atomic) {
  roce::Packet packet;
  packet.ip.from = kServer;
  packet.ip.to = client.address;
  packet.bth.opcode = atomic ? roce::Opcode::atomic_acknowledge : roce::Opcode::acknowledge;
  packet.bth.queue_pair = 0x8000 + number;
  packet.bth.psn = client.psn;
  packet.aeth = {.syndrome = roce::kAckWithoutCredits, .msn = client.psn};
  return packet;
}

// Makes packets for some rounds. In each, the holder gives the lock back, every client asks for it, and the first gets it.
std::vector<Frame> make_rounds(std::vector<Client>& clients, std::uint32_t rounds, bool& learned) {
  std::vector<Frame> frames;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    for (std::uint32_t i = 0; i < clients.size(); ++i) {
      Client& client = clients[i];
      for (const bool release : {false, true}) {
        if (release && i + 1 != clients.size()) break;
        Client& author = release ? clients[0] : client;
        const std::uint32_t number = release ? 0 : i;
        frames.push_back(frame_of(release ? request(author, 0, 1, 0) : request(author, number, 0, 1)));
        frames.push_back(frame_of(acknowledgement(author, number, !learned)));
        learned = true;
        author.psn = roce::psn_add(author.psn, 1);
      }
    }
  }
  return frames;
}

int run(std::uint32_t count, double seconds) {
  swordbox::Settings settings;
  settings.ranges = {{kServer, kLock, 4096}};
  swordbox::Box box(settings, 0);
  base::Nanos now = base::kSecond;
  std::vector<Client> clients(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    clients[i].address = roce::ipv4(10, 0, 1, static_cast<std::uint8_t>(i));
    box.introduce(clients[i].address, 0x8000 + i, kServer, 0x100 + i, 0, 1024, now);
  }
  Taken taken;
  std::uint64_t given = 0;
  double spent = 0;  // seconds of the processor, which others may want as well
  bool learned = false;
  while (spent < seconds) {
    const std::vector<Frame> frames = make_rounds(clients, 20'000 / count, learned);
    const std::clock_t begun = std::clock();
    for (const Frame& frame : frames) box.on_packet(frame, now += 300, taken);
    spent += static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
    given += frames.size();
  }
  FARPOOL_CHECK(taken.packets == given);
  const swordbox::Counts& counts = box.counts();
  std::printf(
      "%u clients: %.2f million packets a second on one core; %llu CASes became WRITEs of a value, %llu of nothing\n",
      count, static_cast<double>(given) / spent / 1e6, static_cast<unsigned long long>(counts.changes_replaced),
      static_cast<unsigned long long>(counts.failures_replaced));
  return 0;
}

const char* name_of(roce::Opcode opcode) {
  switch (opcode) {
    case roce::Opcode::compare_swap:
      return "CAS";
    case roce::Opcode::masked_compare_swap:
      return "masked CAS";
    case roce::Opcode::fetch_add:
      return "FAA";
    case roce::Opcode::write_only:
      return "WRITE";
    case roce::Opcode::acknowledge:
      return "ACK";
    case roce::Opcode::atomic_acknowledge:
      return "Atomic ACK";
    default:
      FARPOOL_CHECK(false);
  }
}

// What the box made of one packet.
struct Last : swordbox::Sink {
  void send(base::Bytes frame) override {
    bytes = frame.size();
    FARPOOL_CHECK(roce::parse(frame, packet) == roce::Refusal::none);
    opcode = packet.bth.opcode;
    payload = packet.payload.size();
  }
  std::size_t bytes = 0, payload = 0;
  roce::Opcode opcode = roce::Opcode::acknowledge;
  roce::Packet packet;
};

// Sends one operation and its acknowledgement through a box that knows the word, and prints a line of a table.
void print_bytes(swordbox::Box& box, Client& client, const char* what, const roce::Packet& operation, base::Nanos now) {
  Last there, back;
  const Frame sent = frame_of(operation), acknowledged = frame_of(acknowledgement(client, 0, false));
  box.on_packet(sent, now, there);
  box.on_packet(acknowledged, now, back);
  client.psn = roce::psn_add(client.psn, 1);
  std::printf("| %s that %s | %zu | %s of %zu bytes | %zu | %+d | %s | %zu | %s | %zu | %+d |\n",
              name_of(operation.bth.opcode), what, sent.size(), name_of(there.opcode), there.payload, there.bytes,
              static_cast<int>(there.bytes) - static_cast<int>(sent.size()), name_of(roce::Opcode::acknowledge),
              acknowledged.size(), name_of(back.opcode), back.bytes,
              static_cast<int>(back.bytes) - static_cast<int>(acknowledged.size()));
}

int print_table() {
  swordbox::Settings settings;
  settings.ranges = {{kServer, kLock, 4096}};
  settings.replace_fetch_add = true;
  swordbox::Box box(settings, 0);
  const base::Nanos now = base::kSecond;
  Client client{.address = roce::ipv4(10, 0, 1, 1)};
  box.introduce(client.address, 0x8000, kServer, 0x100, 0, 1024, now);
  // The first answer tells the box what the word is: 0.
  Last learned;
  box.on_packet(frame_of(request(client, 0, 7, 7)), now, learned);
  box.on_packet(frame_of(acknowledgement(client, 0, true)), now, learned);
  client.psn = 1;
  std::printf(
      "| the client sends | bytes | the server gets | bytes | more | it answers | bytes | the client gets | bytes | "
      "more "
      "|\n|---|---|---|---|---|---|---|---|---|---|\n");
  print_bytes(box, client, "changes the word", request(client, 0, 0, 1), now);
  print_bytes(box, client, "changes nothing", request(client, 0, 0, 1), now);
  roce::Packet masked = request(client, 0, 1, 2);
  masked.bth.opcode = roce::Opcode::masked_compare_swap;
  masked.atomic.compare_mask = 1;
  masked.atomic.swap_mask = 2;
  print_bytes(box, client, "changes the word", masked, now);
  roce::Packet add = request(client, 0, 0, 1);
  add.bth.opcode = roce::Opcode::fetch_add;
  print_bytes(box, client, "changes the word", add, now);
  return 0;
}

}  // namespace
}  // namespace farpool

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "bytes") return farpool::print_table();
  const long clients = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 16;
  const double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 3;
  if (clients < 1 || clients > 255 || seconds <= 0) {
    std::fprintf(stderr, "swordbox_bench: clients from 1 to 255, and more than 0 seconds\n");
    return 2;
  }
  return farpool::run(static_cast<std::uint32_t>(clients), seconds);
}
