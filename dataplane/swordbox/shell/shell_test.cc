// SPDX-License-Identifier: Apache-2.0
#include "swordbox/shell/shell.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <set>

#include "net/one_loop_test.h"
#include "roce/pcap.h"
#include "swordbox/shell/veth_test.h"

namespace farpool::swordbox {
namespace {

using testing::HasSubstr;

constexpr roce::Address kClient = roce::ipv4(10, 9, 0, 1), kServer = roce::ipv4(10, 9, 0, 2);
constexpr std::uint32_t kClientPair = 0x11, kServerPair = 0x22;
constexpr std::uint64_t kLock = 0x1000;

// Has 64 bytes of payload, and a type that no protocol of the kernel has.
Bytes plain_frame(std::uint8_t mark, std::size_t payload = 64) {
  Bytes frame(14 + payload, std::byte{mark});
  frame[0] = frame[6] = std::byte{2};
  frame[12] = std::byte{0x88};
  frame[13] = std::byte{0xb5};
  return frame;
}

class ShellTest : public testing::Test, public net::OneLoop {
 protected:
  Shell::Options options() {
    Shell::Options made{
        .clients = "c1", .servers = "s1", .log = [this](bool, const std::string& line) { said += line + "\n"; }};
    made.box.ranges = {{kServer, kLock, 4096}};
    // A packet is stale after a quarter of it: long for a busy machine, and short for the start of a box.
    made.box.longest_life = 400 * base::kMillisecond;
    made.box.silence = base::kSecond;
    return made;
  }
  void start(Shell::Options with) {
    auto started = Shell::start(loop, std::move(with));
    ASSERT_TRUE(started.ok()) << started.status().message();
    shell = std::move(*started);
  }
  std::string refused(Shell::Options with) {
    const auto started = Shell::start(loop, std::move(with));
    return started.ok() ? "" : started.status().message();
  }
  // Sends it until the other end has it, as it may be dropped where the machine is slow. Returns what came.
  std::optional<roce::Packet> through(End& to, const std::function<void()>& send,
                                      const std::function<bool(const roce::Packet&)>& wanted) {
    base::Nanos sent = 0;
    std::optional<roce::Packet> found;
    until([&] {
      if (net::Loop::now() - sent > 200 * base::kMillisecond) {
        send();
        sent = net::Loop::now();
      }
      for (Bytes frame = to.take(); !found && !frame.empty(); frame = to.take()) {
        roce::Packet packet;
        kept = frame;
        if (roce::parse(kept, packet) == roce::Refusal::none && wanted(packet)) found = packet;
      }
      return found.has_value();
    });
    return found;
  }
  roce::Packet request(roce::Opcode opcode, std::uint32_t psn) const {
    roce::Packet packet;
    packet.ip.from = kClient;
    packet.ip.to = kServer;
    packet.bth.opcode = opcode;
    packet.bth.queue_pair = kServerPair;
    packet.bth.psn = psn;
    packet.bth.ack_request = true;
    packet.atomic = {.address = kLock, .key = 7, .swap_or_add = 1, .compare = 0};
    return packet;
  }
  roce::Packet response(roce::Opcode opcode, std::uint32_t psn) const {
    roce::Packet packet;
    packet.ip.from = kServer;
    packet.ip.to = kClient;
    packet.bth.opcode = opcode;
    packet.bth.queue_pair = kClientPair;
    packet.bth.psn = psn;
    packet.aeth = {.syndrome = roce::kAckWithoutCredits, .msn = psn + 1};
    return packet;
  }
  std::optional<roce::Packet> to_server(const roce::Packet& packet) {
    return through(
        server, [&] { client.send(packet); }, [&](const roce::Packet& got) { return got.bth.psn == packet.bth.psn; });
  }
  std::optional<roce::Packet> to_client(const roce::Packet& packet) {
    return through(
        client, [&] { server.send(packet); }, [&](const roce::Packet& got) { return got.bth.psn == packet.bth.psn; });
  }
  // Lets the box follow the connection and learn the lock: PSNs 0 and 1 are used.
  void learn() {
    ASSERT_TRUE(to_server(request(roce::Opcode::send_only, 0)));
    const base::Nanos adopted = net::Loop::now();
    until([&] { return net::Loop::now() - adopted > 500 * base::kMillisecond; });  // an older ACK proves nothing
    ASSERT_TRUE(to_client(response(roce::Opcode::acknowledge, 0)));
    const auto atomic = to_server(request(roce::Opcode::compare_swap, 1));
    ASSERT_TRUE(atomic);
    ASSERT_EQ(atomic->bth.opcode, roce::Opcode::compare_swap);
    ASSERT_TRUE(to_client(response(roce::Opcode::atomic_acknowledge, 1)));
  }
  bool passes(End& from, End& to, std::uint8_t mark) {
    const Bytes frame = plain_frame(mark);
    base::Nanos sent = 0;
    bool found = false;
    return until([&] {
      if (net::Loop::now() - sent > 100 * base::kMillisecond) {
        from.send(frame);
        sent = net::Loop::now();
      }
      for (Bytes got = to.take(); !got.empty(); got = to.take()) {
        found = found || got == frame;
      }
      return found;
    });
  }
  bool reaches(const std::function<bool(const Shell::Snapshot&)>& wanted) {
    return until([&] { return wanted(shell->snapshot()); });
  }

  Cables cables;
  End client{"c0"}, server{"s0"};
  Bytes kept;  // what the last packet points into
  std::string said;
  std::unique_ptr<Shell> shell;
};

TEST_F(ShellTest, FramesThatAreNoRocePassUnchangedAndInOrder) {
  start(options());
  std::vector<Bytes> sent;
  for (std::uint8_t i = 1; i <= 100; ++i) {
    Bytes frame = plain_frame(i, 46 + 14 * i);  // up to the MTU
    if (i % 3 == 0) {                           // in a VLAN
      const Bytes tag = {std::byte{0x81}, std::byte{0}, std::byte{0x20}, std::byte{i}};
      frame.insert(frame.begin() + 12, tag.begin(), tag.end());
    }
    sent.push_back(frame);
  }
  for (auto [from, to] : {std::pair(&client, &server), std::pair(&server, &client)}) {
    for (const Bytes& frame : sent) from->send(frame);
    std::vector<Bytes> got;
    until([&] {
      for (Bytes frame = to->take(); !frame.empty(); frame = to->take()) got.push_back(frame);
      return got.size() >= sent.size();
    });
    EXPECT_EQ(got, sent);
  }
  EXPECT_TRUE(reaches([](const auto& now) { return now.shell.other_frames == 200 && now.links[1].sent == 100; }));
  EXPECT_EQ(client.take(), Bytes()) << "a frame came back";
}

TEST_F(ShellTest, AnAtomicBecomesAWriteAndItsAckAnAtomicAck) {
  start(options());
  ASSERT_NO_FATAL_FAILURE(learn());
  const auto write = to_server(request(roce::Opcode::compare_swap, 2));
  ASSERT_TRUE(write);
  EXPECT_EQ(write->bth.opcode, roce::Opcode::write_only);
  EXPECT_EQ(write->reth.length, 0u) << "a CAS that fails writes nothing";
  EXPECT_TRUE(roce::sums_hold(kept, *write));
  const auto answer = to_client(response(roce::Opcode::acknowledge, 2));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->bth.opcode, roce::Opcode::atomic_acknowledge);
  EXPECT_EQ(answer->prior, 1u);
  EXPECT_TRUE(reaches([](const auto& now) { return now.box.failures_replaced == 1 && now.box.answered >= 1; }));
}

TEST_F(ShellTest, AServersNameOnTheClientsSideIsNotBelieved) {
  start(options());
  ASSERT_NO_FATAL_FAILURE(learn());
  ASSERT_TRUE(to_server(request(roce::Opcode::compare_swap, 2)));
  // Somebody acknowledges in the name of the server: it passes to the other side as any frame does.
  const roce::Packet forged = response(roce::Opcode::acknowledge, 2);
  ASSERT_TRUE(through(
      server, [&] { client.send(forged); }, [](const roce::Packet& got) { return got.ip.from == kServer; }));
  ASSERT_TRUE(reaches([](const auto& now) { return now.shell.wrong_side >= 1; }));
  EXPECT_EQ(client.take(), Bytes()) << "the box has answered for a server that did not";
  EXPECT_EQ(shell->snapshot().box.answered, 0u);
  // The server itself is believed.
  EXPECT_TRUE(to_client(response(roce::Opcode::acknowledge, 2)));
}

TEST_F(ShellTest, PacketsThatHaveWaitedTooLongAreDroppedAndOthersAreNot) {
  Shell::Options hasty = options();
  hasty.box.longest_life = 4;  // nanoseconds
  start(std::move(hasty));
  client.send(request(roce::Opcode::send_only, 0));
  server.send(response(roce::Opcode::acknowledge, 0));
  EXPECT_TRUE(reaches([](const auto& now) { return now.shell.dropped_stale == 2; }));
  EXPECT_TRUE(passes(client, server, 3)) << "no box relies on its time";
}

TEST_F(ShellTest, AChecksumThatIsLeftToANicIsMadeBeforeTheBoxLooks) {
  start(options());
  roce::Packet packet = request(roce::Opcode::send_only, 0);
  packet.udp.checksum = 1;  // there is one
  Bytes frame = frame_of(packet);
  const Bytes whole = frame;
  // The sum of the pseudo-header alone, as kernels leave it.
  constexpr std::size_t kUdp = 34;
  std::uint32_t sum = 17 + static_cast<std::uint32_t>(frame.size() - kUdp);
  for (const std::size_t at : {26u, 28u, 30u, 32u}) {
    sum += std::to_integer<std::uint32_t>(frame[at]) << 8 | std::to_integer<std::uint32_t>(frame[at + 1]);
  }
  sum = (sum & 0xffff) + (sum >> 16);
  frame[kUdp + 6] = static_cast<std::byte>(sum >> 8);
  frame[kUdp + 7] = static_cast<std::byte>(sum);
  const Offload offload{.flags = Offload::kNeedsSum, .sum_start = kUdp, .sum_offset = 6};
  ASSERT_TRUE(through(
      server, [&] { client.send(frame, offload); }, [](const auto&) { return true; }));
  EXPECT_EQ(kept, whole);
  EXPECT_EQ(shell->snapshot().box.dropped_bad_sum, 0u);
}

TEST_F(ShellTest, AnInterfaceGoesDownAndComesBack) {
  start(options());
  ASSERT_TRUE(passes(client, server, 1));
  ASSERT_TRUE(does("ip link set s1 down"));
  EXPECT_TRUE(reaches([](const auto& now) { return now.trouble == "interface s1 is down"; }));
  client.send(plain_frame(2));
  EXPECT_TRUE(reaches([](const auto& now) { return now.links[1].dropped_down == 1; }));
  ASSERT_TRUE(does("ip link set s1 up"));
  EXPECT_TRUE(passes(client, server, 3));
  EXPECT_TRUE(passes(server, client, 4));
  EXPECT_TRUE(reaches([](const auto& now) { return now.trouble.empty() && now.shell.interface_losses == 1; }));
  EXPECT_THAT(said, HasSubstr("interface s1 is down\n"));
  EXPECT_THAT(said, HasSubstr("interface s1 passes frames again\n"));
}

TEST_F(ShellTest, AnInterfaceIsReplacedByOneOfItsName) {
  start(options());
  ASSERT_TRUE(passes(client, server, 1));
  ASSERT_TRUE(does("ip link delete s1"));
  EXPECT_TRUE(reaches([](const auto& now) { return now.trouble == "interface s1 is gone"; }));
  Cables::plug("s");
  End again("s0");
  EXPECT_TRUE(passes(client, again, 2));
  EXPECT_TRUE(passes(again, client, 3));
  EXPECT_TRUE(reaches([](const auto& now) { return now.trouble.empty(); }));
}

TEST_F(ShellTest, FramesLongerThanTheOtherInterfaceTakesAreCounted) {
  start(options());
  ASSERT_TRUE(does("ip link set s1 mtu 700"));
  EXPECT_TRUE(reaches([](const auto& now) { return now.trouble.find("s1 one of 700") != std::string::npos; }));
  client.send(plain_frame(1, 1000));
  EXPECT_TRUE(reaches([](const auto& now) { return now.links[1].dropped_long == 1; }));
  EXPECT_TRUE(passes(client, server, 2));
}

TEST_F(ShellTest, WhatCannotWorkIsRefusedAtTheStart) {
  Shell::Options wrong = options();
  wrong.servers = "nowhere";
  EXPECT_THAT(refused(std::move(wrong)), HasSubstr("there is no interface \"nowhere\""));
  wrong = options();
  wrong.servers = "a name that is too long for an interface";
  EXPECT_THAT(refused(std::move(wrong)), HasSubstr("there is no interface"));
  wrong = options();
  wrong.clients = "lo";
  wrong.servers = "lo";
  EXPECT_THAT(refused(std::move(wrong)), HasSubstr("same interface, lo"));
  wrong = options();
  wrong.clients = "lo";
  EXPECT_THAT(refused(std::move(wrong)), HasSubstr("interface lo is no Ethernet interface"));
  ASSERT_TRUE(does("ip link set c1 mtu 9000"));
  EXPECT_THAT(refused(options()), HasSubstr("interface c1 has an MTU of 9000, and s1 one of 1500"));
}

TEST_F(ShellTest, AConnectionIsCapturedBeforeAndAfter) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("capture-" + std::to_string(::getpid()))).string();
  auto capture = Capture::start({.path = path,
                                 .client = kClient,
                                 .server = kServer,
                                 .client_queue_pair = kClientPair,
                                 .server_queue_pair = kServerPair,
                                 .most_bytes = 1 << 20,
                                 .epoch = 1000 * base::kSecond,
                                 .log = [](bool, const std::string&) {}});
  ASSERT_TRUE(capture.ok()) << capture.status().message();
  Shell::Options with = options();
  with.capture = std::move(*capture);
  start(std::move(with));
  ASSERT_NO_FATAL_FAILURE(learn());
  ASSERT_TRUE(to_server(request(roce::Opcode::compare_swap, 2)));
  ASSERT_TRUE(to_client(response(roce::Opcode::acknowledge, 2)));
  roce::Packet other = request(roce::Opcode::send_only, 9);
  other.bth.queue_pair = kServerPair + 1;
  ASSERT_TRUE(to_server(other));
  shell.reset();
  const auto opcodes = [&](const std::string& which) {
    std::ifstream stream(path + which, std::ios::binary);
    const std::string file(std::istreambuf_iterator<char>(stream), {});
    std::filesystem::remove(path + which);
    std::set<std::pair<std::uint32_t, roce::Opcode>> all;
    auto reader = roce::PcapReader::open(base::bytes_of(std::string_view(file)));
    EXPECT_TRUE(reader.ok()) << reader.status().message();
    for (auto frame = reader->next(); frame.ok() && *frame; frame = reader->next()) {
      roce::Packet packet;
      EXPECT_EQ(roce::parse((*frame)->bytes, packet), roce::Refusal::none);
      EXPECT_GE((*frame)->time, 1000 * base::kSecond);
      all.emplace(packet.bth.psn, packet.bth.opcode);
    }
    return all;
  };
  using roce::Opcode;
  using testing::Pair;
  using testing::UnorderedElementsAre;
  EXPECT_THAT(opcodes(".before.pcap"),
              UnorderedElementsAre(Pair(0, Opcode::send_only), Pair(0, Opcode::acknowledge),
                                   Pair(1, Opcode::compare_swap), Pair(1, Opcode::atomic_acknowledge),
                                   Pair(2, Opcode::compare_swap), Pair(2, Opcode::acknowledge)));
  EXPECT_THAT(opcodes(".after.pcap"),
              UnorderedElementsAre(Pair(0, Opcode::send_only), Pair(0, Opcode::acknowledge),
                                   Pair(1, Opcode::compare_swap), Pair(1, Opcode::atomic_acknowledge),
                                   Pair(2, Opcode::write_only), Pair(2, Opcode::atomic_acknowledge)));
}

// ---- the kernel's own TCP through the box, with the segments and sums that it leaves to NICs

constexpr std::size_t kMuch = 8u << 20;

// Runs in a child with a namespace of its own. Returns its exit status.
int talk(int ready, const std::string& interface, const std::string& address, bool sends) {
  if (::unshare(CLONE_NEWNET) != 0 || ::write(ready, "x", 1) != 1) return 10;
  while (!does("ip link show " + interface + " >/dev/null 2>&1")) ::usleep(1000);
  if (!does("ip addr add " + address + "/24 dev " + interface + " && ip link set " + interface + " up")) return 11;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(7777);
  ::inet_pton(AF_INET, "10.9.0.2", &at.sin_addr);
  std::string data(kMuch, '\0');
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  if (sends) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 31 >> 3);
    while (::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) {
      ::close(fd);
      fd = ::socket(AF_INET, SOCK_STREAM, 0);
    }
    for (std::size_t sent = 0; sent < data.size();) {
      const ssize_t count = ::send(fd, data.data() + sent, data.size() - sent, 0);
      if (count <= 0) return 12;
      sent += static_cast<std::size_t>(count);
    }
    char end;
    return ::shutdown(fd, SHUT_WR) == 0 && ::read(fd, &end, 1) == 0 ? 0 : 13;
  }
  if (::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || ::listen(fd, 1) != 0) return 14;
  const int peer = ::accept(fd, nullptr, nullptr);
  for (std::size_t got = 0; got < data.size();) {
    const ssize_t count = ::read(peer, data.data() + got, data.size() - got);
    if (count <= 0) return 15;
    got += static_cast<std::size_t>(count);
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (data[i] != static_cast<char>(i * 31 >> 3)) return 16;
  }
  return 0;
}

TEST_F(ShellTest, TcpPassesThoughItsSegmentsAndSumsAreLeftToANic) {
  std::vector<pid_t> children;
  for (const auto& [interface, address, sends] :
       {std::tuple("c0", "10.9.0.1", true), std::tuple("s0", "10.9.0.2", false)}) {
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe(pipe.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(talk(pipe[1], interface, address, sends));
    char done;
    ASSERT_EQ(::read(pipe[0], &done, 1), 1);
    ASSERT_TRUE(does("ip link set " + std::string(interface) + " netns " + std::to_string(child)));
    children.push_back(child);
    for (const int fd : pipe) ::close(fd);
  }
  start(options());
  for (const pid_t child : children) {
    int status = -1;
    bool ended = false;
    EXPECT_TRUE(until([&] { return ended = ended || ::waitpid(child, &status, WNOHANG) == child; }));
    EXPECT_EQ(status, 0) << "exit status " << WEXITSTATUS(status);
    if (!ended) ::kill(child, SIGKILL);
  }
  ASSERT_TRUE(reaches([](const auto& now) { return now.links[0].received > 0; }));
  EXPECT_LT(shell->snapshot().links[0].received, kMuch / 1448) << "no frame was longer than the MTU: nothing is shown";
}

}  // namespace
}  // namespace farpool::swordbox
