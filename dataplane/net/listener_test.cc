// SPDX-License-Identifier: Apache-2.0
// How connections begin, and how they do not.
#include "net/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/loop.h"
#include "net/one_loop_test.h"
#include "net/stream.h"
#include "net/throwaway_ca.h"

namespace farpool::net {
namespace {

namespace fs = std::filesystem;
using base::Code;
using testing::HasSubstr;
using testing::StartsWith;

// Keeps all that comes, until its peer closes.
struct Ear final : StreamHandler {
  explicit Ear(std::unique_ptr<Stream> connected) : stream(std::move(connected)) { stream->start(*this); }
  void on_input() noexcept override {
    got += base::text_of(stream->input());
    stream->consume(stream->input().size());
  }
  void on_closed(const base::Status& status) noexcept override { why = status; }
  std::unique_ptr<Stream> stream;
  std::string got;
  std::optional<base::Status> why;
};

// A listener and its peers, on one loop.
class ListenerTest : public OneLoop, public testing::Test {
 protected:
  ListenerTest() {
    directory_ = (fs::temp_directory_path() / "farpool-listener-XXXXXX").string();
    EXPECT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  ~ListenerTest() override {
    ears.clear();
    accepted.clear();
    listener.reset();
    turns(2);
    fs::remove_all(directory_);
  }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  base::Status listen(ListenOptions options) {
    auto opened = Listener::open(loop, std::move(options),
                                 [this](std::unique_ptr<Stream> stream) { accepted.push_back(std::move(stream)); });
    if (!opened.ok()) return opened.status();
    listener = std::move(*opened);
    return {};
  }
  void must_listen(ListenOptions options) {
    const base::Status status = listen(std::move(options));
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // Returns why there is no connection; ok: an ear has it.
  base::Status dial(const std::string& address, std::shared_ptr<Tls> tls = nullptr, Nanos patience = kPatience) {
    std::optional<base::Status> became;
    connect(loop, address, std::move(tls), Loop::now() + patience, [&](auto stream) {
      EXPECT_FALSE(became) << "told twice";
      became = stream.status();
      if (stream.ok()) ears.push_back(std::make_unique<Ear>(std::move(*stream)));
    });
    EXPECT_TRUE(until([&] { return became.has_value(); }));
    turns(5);
    return *became;
  }
  base::Status dial() { return dial(listener->address()); }
  bool wait_for_accepted(std::size_t count) {
    return until([&] { return accepted.size() >= count; });
  }

  ThrowawayCa ca;
  std::unique_ptr<Listener> listener;
  std::vector<std::unique_ptr<Stream>> accepted;
  std::vector<std::unique_ptr<Ear>> ears;

 private:
  std::string directory_;
};

// A socket of the test's own, which closes with it.
struct RawSocket {
  explicit RawSocket(int family) : number(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) { EXPECT_GE(number, 0); }
  RawSocket(const RawSocket&) = delete;
  ~RawSocket() { ::close(number); }
  const int number;
};

sockaddr_un local_address(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}
bool bind_to(const RawSocket& socket, const std::string& path) {
  const sockaddr_un address = local_address(path);
  return ::bind(socket.number, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}
sockaddr_in tcp_address(const std::string& address) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  return at;
}
bool connect_to(const RawSocket& socket, const std::string& address) {
  const sockaddr_in at = tcp_address(address);
  return ::connect(socket.number, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
}

int next_descriptor() {
  const int next = ::dup(STDERR_FILENO);
  ::close(next);
  return next;
}

TEST_F(ListenerTest, AnAddressInUseIsAnErrorThatNamesIt) {
  must_listen({.address = "127.0.0.1:0"});
  const std::string address = listener->address();
  const base::Status taken = listen({.address = address});
  EXPECT_EQ(taken.code(), Code::unavailable);
  EXPECT_THAT(taken.message(), HasSubstr("listening on " + address));
  EXPECT_EQ(listen({.address = "nonsense"}).code(), Code::invalid_argument);
  const base::Status nowhere = listen({.address = "no.such.host.invalid:0"});
  EXPECT_EQ(nowhere.code(), Code::invalid_argument);
  EXPECT_THAT(nowhere.message(), HasSubstr("no.such.host.invalid"));
  EXPECT_EQ(listen({.address = "192.0.2.1:0"}).code(), Code::unavailable) << "of no machine";
  EXPECT_EQ(listen({.address = "unix:/nowhere/s"}).code(), Code::unavailable);
}

// The connections of the process before may still be in TIME_WAIT.
TEST_F(ListenerTest, AnAddressCanBeUsedAgainAtOnce) {
  must_listen({.address = "127.0.0.1:0"});
  const std::string address = listener->address();
  ASSERT_TRUE(dial().ok());
  ASSERT_TRUE(wait_for_accepted(1));
  accepted.clear();
  ASSERT_TRUE(until([&] { return ears[0]->why.has_value(); }));
  ears.clear();
  listener.reset();
  must_listen({.address = address});
  EXPECT_EQ(listener->address(), address);
  EXPECT_TRUE(dial().ok());
}

TEST_F(ListenerTest, ALocalListenerTakesThePlaceOfADeadOneAlone) {
  {
    const RawSocket dead(AF_UNIX);
    ASSERT_TRUE(bind_to(dead, path("s")));
  }
  must_listen({.address = "unix:" + path("s"), .unix_mode = 0600});
  struct stat about {};
  ASSERT_EQ(::stat(path("s").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_EQ(listener->address(), "unix:" + path("s"));
  const base::Status taken = listen({.address = "unix:" + path("s")});
  EXPECT_EQ(taken.code(), Code::unavailable);
  EXPECT_THAT(taken.message(), HasSubstr("another process listens there"));
  EXPECT_TRUE(dial().ok()) << "its socket was removed";
  std::ofstream(path("file")) << "no socket";
  const base::Status file = listen({.address = "unix:" + path("file")});
  EXPECT_EQ(file.code(), Code::invalid_argument);
  EXPECT_THAT(file.message(), HasSubstr("a file that is no socket"));
  EXPECT_TRUE(fs::exists(path("file")));
  const base::Status tls = listen(
      {.address = "unix:" + path("t"), .tls = *Tls::load(ca.issue("farpool://pool/node/n0"), Tls::Kind::mutual)});
  EXPECT_EQ(tls.code(), Code::invalid_argument);
  EXPECT_THAT(tls.message(), HasSubstr("TLS is not spoken on a Unix socket"));
  listener.reset();
  EXPECT_FALSE(fs::exists(path("s"))) << "it was left behind";
}

TEST_F(ListenerTest, NamesAreResolved) {
  must_listen({.address = "localhost:0"});
  const std::string port = listener->address().substr(listener->address().rfind(':'));
  EXPECT_TRUE(dial("localhost" + port).ok());
  const base::Status unknown = dial("no.such.host.invalid" + port);
  EXPECT_EQ(unknown.code(), Code::unavailable);
  EXPECT_THAT(unknown.message(), StartsWith("connecting to no.such.host.invalid" + port + ": "));
}

// The peers are more than there is room for, and more than are refused at once: each leaves its place to the next.
TEST_F(ListenerTest, PeersThatAreTooManyHearWhy) {
  const std::string full = "-full\r\n";
  const auto tls = *Tls::load(ca.issue("farpool://pool/node/n0"), Tls::Kind::mutual);
  for (const bool secured : {false, true}) {
    for (const std::string& address : {std::string("127.0.0.1:0"), "unix:" + path("s")}) {
      if (secured && address.starts_with("unix:")) continue;
      const auto with = secured ? tls : nullptr;
      must_listen({.address = address, .tls = with, .max_connections = 1, .when_full = full});
      ASSERT_TRUE(dial(listener->address(), with).ok());
      ASSERT_TRUE(wait_for_accepted(1));
      for (std::uint64_t refused = 1; refused <= kRefusalsAtOnce + 2; ++refused) {
        ASSERT_TRUE(dial(listener->address(), with).ok());
        ASSERT_TRUE(until([&] { return ears.back()->why.has_value(); }));
        EXPECT_EQ(ears.back()->got, full) << address;
        EXPECT_EQ(listener->stats().refused_full, refused);
      }
      EXPECT_EQ(listener->stats().accepted, 1u);
      EXPECT_EQ(listener->stats().open, 1u);
      EXPECT_EQ(listener->stats().failed_handshakes, 0u);
      ears.clear();
      accepted.clear();
      listener.reset();
      turns(2);
    }
  }
}

// These peers are silent, and their places among the peers that hear why end with them.
TEST_F(ListenerTest, OnlySoManyPeersAreToldAtOnceThatTheyAreTooMany) {
  const auto tls = *Tls::load(ca.issue("farpool://pool/node/n0"), Tls::Kind::mutual);
  must_listen({.address = "127.0.0.1:0", .tls = tls, .max_connections = 0, .when_full = "-full\r\n"});
  std::vector<std::unique_ptr<RawSocket>> peers;
  for (std::size_t i = 0; i <= kRefusalsAtOnce; ++i) {
    ASSERT_TRUE(connect_to(*peers.emplace_back(std::make_unique<RawSocket>(AF_INET)), listener->address()));
  }
  const auto hears = [](const RawSocket& peer) {
    char byte = 0;
    return ::recv(peer.number, &byte, 1, MSG_DONTWAIT);
  };
  ssize_t last = -1;
  ASSERT_TRUE(until([&] { return (last = hears(*peers.back())) >= 0; }));
  EXPECT_EQ(last, 0) << "it shall not hear text where it waits for TLS";
  EXPECT_EQ(hears(*peers.front()), -1) << "it may still shake hands";
  peers.clear();
  bool heard = false;
  for (const Nanos end = Loop::now() + kPatience; !heard && Loop::now() < end;) {
    if (!dial(listener->address(), tls).ok()) continue;
    ASSERT_TRUE(until([&] { return ears.back()->why.has_value(); }));
    heard = ears.back()->got == "-full\r\n";
  }
  EXPECT_TRUE(heard);
}

TEST_F(ListenerTest, AListenerThatEndsTakesPeersThatShakeHandsIfItShall) {
  const auto tls = *Tls::load(ca.issue("farpool://pool/node/n0"), Tls::Kind::mutual);
  for (const bool takes : {true, false}) {
    must_listen({.address = "127.0.0.1:0", .tls = tls, .take_waiting = takes});
    std::optional<base::Status> connected;
    connect(loop, listener->address(), tls, Loop::now() + kPatience, [&](auto stream) { connected = stream.status(); });
    ASSERT_TRUE(until([&] { return listener->stats().accepted == 1; }));
    ASSERT_TRUE(accepted.empty());
    listener.reset();
    ASSERT_TRUE(until([&] { return connected.has_value(); }));
    turns(20);
    EXPECT_EQ(accepted.size(), takes ? 1u : 0u);
    accepted.clear();
  }
}

TEST_F(ListenerTest, APeerThatHasEndedItsHalfGetsWhatWasWritten) {
  constexpr std::size_t kMuch = 16 << 20;
  must_listen({.address = "127.0.0.1:0"});
  const RawSocket peer(AF_INET);
  ASSERT_TRUE(connect_to(peer, listener->address()));
  ASSERT_TRUE(wait_for_accepted(1));
  Ear ear(std::move(accepted[0]));
  loop.post([&] {
    ear.stream->write(std::string(kMuch, 'x'));
    ear.stream->finish();
  });
  turns(2);
  ASSERT_EQ(::shutdown(peer.number, SHUT_WR), 0);
  turns(20);
  std::size_t got = 0;
  std::vector<char> some(1 << 20);
  ASSERT_TRUE(until([&] {
    const ssize_t more = ::recv(peer.number, some.data(), some.size(), MSG_DONTWAIT);
    got += more > 0 ? static_cast<std::size_t>(more) : 0;
    return more == 0 || (more < 0 && errno != EAGAIN);
  }));
  EXPECT_EQ(got, kMuch);
}

TEST_F(ListenerTest, ConnectionsOfSeveralListenersCountTogether) {
  const auto open = std::make_shared<std::atomic<std::uint64_t>>(1);
  must_listen({.address = "127.0.0.1:0", .max_connections = 2, .open = open});
  ASSERT_TRUE(dial().ok());
  ASSERT_TRUE(wait_for_accepted(1));
  EXPECT_EQ(open->load(), 2u);
  ASSERT_TRUE(dial().ok());
  ASSERT_TRUE(until([&] { return listener->stats().refused_full == 1; }));
  EXPECT_TRUE(until([&] { return ears[1]->why.has_value(); }));
  accepted.clear();
  EXPECT_EQ(open->load(), 1u);
  listener.reset();
  turns(5);
  EXPECT_EQ(open.use_count(), 1) << "what has ended goes on";
}

// Their peers believe that they are connected.
TEST_F(ListenerTest, AListenerThatEndsTakesWaitingConnectionsIfItShall) {
  for (const bool takes : {true, false}) {
    must_listen({.address = "127.0.0.1:0", .take_waiting = takes});
    std::array<std::unique_ptr<RawSocket>, 3> peers;
    for (auto& peer : peers) {
      peer = std::make_unique<RawSocket>(AF_INET);
      ASSERT_TRUE(connect_to(*peer, listener->address()));
    }
    const std::string address = listener->address();
    listener.reset();
    turns(5);
    EXPECT_EQ(accepted.size(), takes ? 3u : 0u);
    EXPECT_FALSE(connect_to(RawSocket(AF_INET), address)) << "it still listens";
    accepted.clear();
  }
}

TEST_F(ListenerTest, ConnectionsGoToTheLoopThatIsChosen) {
  Loop other;
  must_listen({.address = "127.0.0.1:0", .place = [&other]() -> Loop& { return other; }});
  ASSERT_TRUE(dial().ok());
  ASSERT_TRUE(until([&] { return listener->stats().accepted == 1; }));
  EXPECT_TRUE(accepted.empty()) << "its loop has not run";
  other.post([&other] { other.stop(); });
  other.run();
  ASSERT_EQ(accepted.size(), 1u);
  EXPECT_EQ(&accepted[0]->loop(), &other);
  accepted.clear();
}

TEST_F(ListenerTest, OneSideAloneMayShowACertificate) {
  const auto server = *Tls::load(ca.issue(""), Tls::Kind::server);
  must_listen({.address = "127.0.0.1:0", .tls = server});
  ASSERT_TRUE(dial(listener->address(), *Tls::load(ca.issue(""), Tls::Kind::server)).ok());
  ASSERT_TRUE(wait_for_accepted(1));
  EXPECT_FALSE(accepted[0]->peer().authenticated);
  EXPECT_FALSE(ears[0]->stream->peer().authenticated);
  // Who wants a name does not take a certificate without one.
  const auto mutual = *Tls::load(ca.issue("farpool://pool/client/c0"), Tls::Kind::mutual);
  const base::Status nameless = dial(listener->address(), mutual);
  EXPECT_EQ(nameless.code(), Code::forbidden);
  EXPECT_THAT(nameless.message(), HasSubstr("must carry exactly one URI name"));
}

TEST_F(ListenerTest, PeersThatGoOrHaveNoNameAreNotAccepted) {
  for (const auto kind : {Tls::Kind::server, Tls::Kind::mutual}) {
    must_listen({.address = "127.0.0.1:0", .tls = *Tls::load(ca.issue("farpool://pool/node/n0"), kind)});
    {
      const RawSocket peer(AF_INET);
      ASSERT_TRUE(connect_to(peer, listener->address()));
      ASSERT_TRUE(until([&] { return listener->stats().accepted == 1; }));
    }
    ASSERT_TRUE(until([&] { return listener->stats().failed_handshakes + accepted.size() > 0; }));
    ASSERT_TRUE(accepted.empty());
  }
  (void)dial(listener->address(), *Tls::load(ca.issue(""), Tls::Kind::server));
  ASSERT_TRUE(until([&] { return listener->stats().failed_handshakes == 2; }));
  EXPECT_TRUE(accepted.empty());
  EXPECT_EQ(listener->stats().open, 0u);
}

// A deadline that has passed leaves nothing behind.
TEST_F(ListenerTest, ADialHasADeadline) {
  const RawSocket silent(AF_UNIX), busy(AF_INET), first(AF_INET);
  ASSERT_TRUE(bind_to(silent, path("silent")));
  ASSERT_EQ(::listen(silent.number, 8), 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  ASSERT_EQ(::bind(busy.number, reinterpret_cast<sockaddr*>(&at), length), 0);
  ASSERT_EQ(::listen(busy.number, 0), 0);
  ASSERT_EQ(::getsockname(busy.number, reinterpret_cast<sockaddr*>(&at), &length), 0);
  const std::string full = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  ASSERT_TRUE(connect_to(first, full));  // its queue has room for one
  std::map<std::string, int> next;
  for (int round = 0; round < 3; ++round) {
    for (const std::string& address : {"shm:" + path("silent"), full}) {
      const base::Status late = dial(address, nullptr, 50 * base::kMillisecond);
      EXPECT_EQ(late.code(), Code::timed_out) << address;
      EXPECT_THAT(late.message(), HasSubstr(address));
      turns(5);
      // The first dial opens what the loop keeps.
      if (round == 0) next[address] = next_descriptor();
      EXPECT_EQ(next_descriptor(), next[address]) << address;
    }
  }
}

// Only root can pose as another user here.
TEST_F(ListenerTest, RingsAreTakenFromNoOtherUser) {
  fs::permissions(path(""), fs::perms::all);
  for (const uid_t user : {::geteuid(), uid_t{65532}}) {
    if (user != ::geteuid() && ::geteuid() != 0) continue;
    const RawSocket socket(AF_UNIX);
    const std::string at = path("of-" + std::to_string(user));
    std::thread([&] {
      // Changes this thread alone; the C library's own function would change all.
      ASSERT_EQ(::syscall(SYS_setresuid, -1, user, -1), 0);
      ASSERT_TRUE(bind_to(socket, at));
      ASSERT_EQ(::listen(socket.number, 1), 0);
    }).join();
    const base::Status refused = dial("shm:" + at, nullptr, 50 * base::kMillisecond);
    EXPECT_EQ(refused.code(), user == ::geteuid() ? Code::timed_out : Code::forbidden) << refused.message();
  }
}

}  // namespace
}  // namespace farpool::net
