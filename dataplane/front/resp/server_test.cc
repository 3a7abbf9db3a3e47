// SPDX-License-Identifier: Apache-2.0
// Connections over real sockets: TCP, TLS, Unix; bounds, back pressure, and how they end.
#include "front/resp/server.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <stdlib.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "front/resp/memory_kv.h"
#include "front/resp/socket_client.h"
#include "net/throwaway_ca.h"

namespace farpool::front::resp {
namespace {

constexpr std::chrono::seconds kPatience{30};

// Waits for what another thread brings about.
bool eventually(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::string sets(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += encode({"SET", "k" + std::to_string(i), "v"});
  return bytes;
}
std::string times(int count, std::string_view text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// A client that speaks TLS, and can end its half of the connection with or without TLS's goodbye.
class TlsClient {
 public:
  explicit TlsClient(const std::string& where) : socket_(SocketClient::tcp(where)) {
    const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
    FARPOOL_CHECK(setsockopt(socket_.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    FARPOOL_CHECK(setsockopt(socket_.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0);
    FARPOOL_CHECK(ssl_ != nullptr && SSL_set_fd(ssl_.get(), socket_.descriptor()) == 1 && SSL_connect(ssl_.get()) == 1);
  }
  void send(std::string_view bytes) {
    FARPOOL_CHECK(SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) ==
                  static_cast<int>(bytes.size()));
  }
  void say_goodbye() { FARPOOL_CHECK(SSL_shutdown(ssl_.get()) == 0); }  // sends close_notify
  void half_close() { socket_.half_close(); }
  // All that comes until the other side says goodbye; "<cut>" at the end if it did not.
  std::string rest() {
    std::string all;
    std::array<char, 16384> piece;
    for (;;) {
      const int got = SSL_read(ssl_.get(), piece.data(), piece.size());
      if (got > 0) {
        all.append(piece.data(), static_cast<std::size_t>(got));
      } else {
        return SSL_get_error(ssl_.get(), got) == SSL_ERROR_ZERO_RETURN ? all : all + "<cut>";
      }
    }
  }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  SocketClient socket_;
  std::unique_ptr<SSL_CTX, Free> context_{SSL_CTX_new(TLS_client_method())};
  std::unique_ptr<SSL, Free> ssl_{SSL_new(context_.get())};
};

// Two workers with a pool of their own each, as if the pool were empty at first.
class ServerTest : public ::testing::Test {
 protected:
  struct Thread {
    net::Loop loop;
    MemoryKv kv;
    std::unique_ptr<Worker> worker;
    std::thread thread;
  };

  void start(std::vector<std::string> listen = {"127.0.0.1:0"}, std::shared_ptr<net::Tls> tls = nullptr) {
    std::vector<Worker*> workers;
    for (auto& thread : threads_) {
      thread.worker = std::make_unique<Worker>(thread.loop, thread.kv, settings_);
      thread.worker->service().budget = &budget_;
      thread.worker->service().warn = warn_;
      workers.push_back(thread.worker.get());
    }
    auto front =
        Front::open(threads_[0].loop, {.listen = std::move(listen), .tls = std::move(tls), .unix_mode = unix_mode_},
                    settings_, workers);
    ASSERT_TRUE(front.ok()) << front.status().message();
    front_ = std::move(*front);
    addresses_ = front_->addresses();
    for (auto& thread : threads_) thread.thread = std::thread([&thread] { thread.loop.run(); });
  }
  // Runs on the loop's thread and waits for it.
  static void on(Thread& thread, const std::function<void()>& what) {
    std::promise<void> done;
    thread.loop.post([&] {
      what();
      done.set_value();
    });
    ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  }
  // Lets one held operation end. The next one of a connection begins only when the turn in which that happens is over,
  // so that it has to be waited for.
  static void release_one(Thread& thread) {
    ASSERT_TRUE(eventually([&thread] {
      bool released = false;
      on(thread, [&] {
        if (thread.kv.held() == 0) return;
        thread.kv.release(0);
        released = true;
      });
      return released;
    }));
  }
  // Lets operations take effect, the last first, until the condition holds.
  bool run_until(const std::function<bool()>& done) {
    return eventually([&] {
      for (auto& thread : threads_) {
        on(thread, [&thread] {
          while (thread.kv.held() > 0) thread.kv.release(thread.kv.held() - 1);
        });
      }
      return done();
    });
  }
  // All that a client still gets, while operations take effect.
  template <class Client>
  std::string rest_of(Client& client) {
    std::string rest;
    std::atomic<bool> over = false;
    std::thread reader([&] {
      rest = client.rest();
      over = true;
    });
    EXPECT_TRUE(run_until([&] { return over && none_connected(); }));
    reader.join();
    return rest;
  }
  bool none_connected() const { return connections(0) + connections(1) == 0; }
  std::uint64_t calls(std::string_view command) const {
    std::uint64_t sum = 0;
    for (const auto& thread : threads_) {
      sum += thread.worker->counters().commands[number_of(*find_command(command))].calls.get();
    }
    return sum;
  }
  void stop_listening() {
    on(threads_[0], [this] { front_.reset(); });
  }
  ~ServerTest() override {
    if (!threads_[0].thread.joinable()) return;
    stop_listening();
    for (auto& thread : threads_) {
      thread.loop.post([&thread] {
        thread.worker->drain([&thread] { thread.loop.stop(); });
        thread.worker->cut();
        while (thread.kv.held() > 0) thread.kv.release(0);
      });
      thread.thread.join();
    }
  }

  std::uint64_t connections(std::size_t worker) const { return threads_[worker].worker->counters().connections.get(); }

  Settings settings_;
  int unix_mode_ = FrontOptions{}.unix_mode;
  Budget budget_;
  std::function<void(const std::string&)> warn_;
  std::array<Thread, 2> threads_;
  std::unique_ptr<Front> front_;
  std::vector<std::string> addresses_;
};

TEST_F(ServerTest, DealsConnectionsToWorkersInTurn) {
  start();
  std::vector<SocketClient> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(SocketClient::tcp(addresses_[0]));
    EXPECT_EQ(clients.back().call({"PING"}), "+PONG\r\n");
  }
  EXPECT_EQ(connections(0), 5u);
  EXPECT_EQ(connections(1), 5u);
  clients.clear();
  EXPECT_TRUE(eventually([this] { return connections(0) + connections(1) == 0; }));
}

TEST_F(ServerTest, ServesAUnixSocket) {
  std::string directory = std::filesystem::temp_directory_path() / "farpool-server-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  start({"127.0.0.1:0", "unix:" + directory + "/s"});
  SocketClient client = SocketClient::unix_socket(directory + "/s");
  EXPECT_EQ(client.call({"SET", "a", "1"}), "+OK\r\n");
  EXPECT_EQ(client.call({"GET", "a"}), "$1\r\n1\r\n");
  EXPECT_EQ(std::filesystem::status(directory + "/s").permissions(), std::filesystem::perms{0660});
  std::filesystem::remove_all(directory);
}

TEST_F(ServerTest, OpensAUnixSocketToWhomItIsTold) {
  std::string directory = std::filesystem::temp_directory_path() / "farpool-server-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  unix_mode_ = 0666;
  start({"unix:" + directory + "/s"});
  EXPECT_EQ(std::filesystem::status(directory + "/s").permissions(), std::filesystem::perms{0666});
  std::filesystem::remove_all(directory);
}

TEST_F(ServerTest, TurnsAwayConnectionsBeyondTheBound) {
  settings_.max_connections = 2;
  start();
  SocketClient first = SocketClient::tcp(addresses_[0]);
  SocketClient second = SocketClient::tcp(addresses_[0]);
  EXPECT_EQ(first.call({"PING"}), "+PONG\r\n");
  EXPECT_EQ(second.call({"PING"}), "+PONG\r\n");
  EXPECT_EQ(SocketClient::tcp(addresses_[0]).rest(), "-ERR max number of clients reached\r\n");
  EXPECT_EQ(first.call({"PING"}), "+PONG\r\n");
}

TEST_F(ServerTest, AnswersALongPipelineInOrder) {
  settings_.max_pipeline = 16;
  start();
  SocketClient client = SocketClient::tcp(addresses_[0]);
  std::string bytes;
  constexpr int kCommands = 5000;
  for (int i = 0; i < kCommands; ++i) bytes += encode({"ECHO", std::to_string(i)});
  client.send(bytes);
  for (int i = 0; i < kCommands; ++i) {
    const std::string number = std::to_string(i);
    ASSERT_EQ(client.reply(), "$" + std::to_string(number.size()) + "\r\n" + number + "\r\n");
  }
}

// A client that asks and does not listen makes the server hold no more than its bounds, and is served in the end.
TEST_F(ServerTest, HoldsBackForAClientThatDoesNotRead) {
  settings_.max_unread_bytes = 4 << 20;
  settings_.max_pipeline = 8;
  start();
  constexpr int kCommands = 400;
  const std::string value(256 * 1024, 'v');
  SocketClient client = SocketClient::tcp(addresses_[0]);
  ASSERT_EQ(client.call({"SET", "big", value}), "+OK\r\n");
  std::string bytes;
  for (int i = 0; i < kCommands; ++i) bytes += encode({"GET", "big"});
  client.send(bytes);
  EXPECT_TRUE(eventually([this] {
    return threads_[0].worker->counters().stalls.get() + threads_[1].worker->counters().stalls.get() > 0;
  }));
  const std::uint64_t served = threads_[0].worker->counters().commands[number_of(*find_command("get"))].calls.get() +
                               threads_[1].worker->counters().commands[number_of(*find_command("get"))].calls.get();
  EXPECT_LT(served, kCommands / 2u) << "replies pile up";
  const std::string expected = "$262144\r\n" + value + "\r\n";
  for (int i = 0; i < kCommands; ++i) ASSERT_TRUE(client.reply() == expected) << i;
}

TEST_F(ServerTest, SpeaksTls) {
  net::ThrowawayCa ca;
  auto tls = net::Tls::load(ca.issue("farpool://p/client/c"), net::Tls::Kind::server);
  ASSERT_TRUE(tls.ok()) << tls.status().message();
  start({"127.0.0.1:0"}, *tls);
  // Plain bytes are no handshake.
  SocketClient plain = SocketClient::tcp(addresses_[0]);
  plain.send("PING\r\n");
  EXPECT_EQ(plain.rest().find("+PONG"), std::string::npos);
  EXPECT_TRUE(eventually([this] {
    std::uint64_t failed = 0;
    on(threads_[0], [&] { failed = front_->stats().failed_handshakes; });
    return failed == 1;
  }));
  const std::string command =
      "printf 'PING\\r\\nQUIT\\r\\n' | openssl s_client -quiet -connect " + addresses_[0] + " 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  for (std::array<char, 256> line; fgets(line.data(), line.size(), pipe) != nullptr;) output += line.data();
  pclose(pipe);
  EXPECT_EQ(output, "+PONG\r\n+OK\r\n");
}

TEST_F(ServerTest, DrainsWhatItHasReadAndThenCloses) {
  for (auto& thread : threads_) thread.kv.hold = true;
  start();
  SocketClient client = SocketClient::tcp(addresses_[0]);
  client.send(encode({"SET", "a", "1"}) + encode({"SET", "a", "2"}));
  ASSERT_TRUE(eventually([this] { return threads_[0].worker->counters().in_flight.get() == 1; }));
  stop_listening();
  std::promise<void> drained;
  on(threads_[0], [&] { threads_[0].worker->drain([&drained] { drained.set_value(); }); });
  auto future = drained.get_future();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
  release_one(threads_[0]);
  release_one(threads_[0]);
  EXPECT_EQ(client.rest(), "+OK\r\n+OK\r\n");
  ASSERT_EQ(future.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(connections(0), 0u);
}

// Sends on without reading, until the server closes the connection: then send() fails, where it would wait for ever.
TEST_F(ServerTest, ClosesTheConnectionOfAClientThatNeverReads) {
  settings_.max_unread_bytes = 4 << 20;
  settings_.unread_patience = 200 * base::kMillisecond;
  std::promise<std::string> told;
  warn_ = [&told](const std::string& line) { told.set_value(line); };
  start();
  const std::string value(1 << 20, 'v');
  SocketClient client = SocketClient::tcp(addresses_[0]);
  const std::string bytes = times(60, encode({"GETSET", "big", value}));
  EXPECT_LT(client.push(bytes, kPatience), bytes.size());
  const std::string line = told.get_future().get();
  EXPECT_NE(line.find("takes no replies"), std::string::npos) << line;
  EXPECT_NE(line.find("--max-unread-bytes"), std::string::npos) << line;
  EXPECT_TRUE(eventually([this] { return none_connected(); }));
  EXPECT_EQ(threads_[0].worker->counters().cut_for_unread.get() + threads_[1].worker->counters().cut_for_unread.get(),
            1u);
}

// A whole pipeline is written before its first reply is read, as drivers do.
TEST_F(ServerTest, TakesAPipelineWhoseRepliesAreReadAfterwards) {
  start();
  const std::string value(1'000'000, 'v');
  SocketClient client = SocketClient::tcp(addresses_[0]);
  const std::string bytes = times(120, encode({"GETSET", "big", value}));
  ASSERT_EQ(client.push(bytes, kPatience), bytes.size());
  EXPECT_EQ(client.reply(), "$-1\r\n");
  for (int i = 1; i < 120; ++i) ASSERT_EQ(client.reply().size(), value.size() + std::string("$1000000\r\n\r\n").size());
}

// Clients who ask for much and take nothing lose their connections; who needs room meanwhile gets it.
TEST_F(ServerTest, ClosesSlowReadersRatherThanOthers) {
  settings_.max_held_bytes = 24 << 20;
  settings_.pressed_patience = 200 * base::kMillisecond;
  std::atomic<int> told = 0;
  warn_ = [&told](const std::string&) { ++told; };
  start();
  const std::string value(1'000'000, 'v');
  std::vector<SocketClient> slow;
  for (int i = 0; i < 4; ++i) {
    slow.push_back(SocketClient::tcp(addresses_[0]));
    EXPECT_EQ(slow.back().call({"SET", "big", value}), "+OK\r\n");
  }
  for (SocketClient& client : slow) client.send(times(80, encode({"GET", "big"})));
  ASSERT_TRUE(eventually([this] { return budget_.held > 20u << 20; }));
  SocketClient other = SocketClient::tcp(addresses_[0]);
  EXPECT_EQ(other.call({"MSET", "a", value, "b", value, "c", value, "d", value}), "+OK\r\n");
  EXPECT_EQ(other.call({"STRLEN", "d"}), ":1000000\r\n");
  EXPECT_GT(told, 0);
  EXPECT_LE(told, 4);
  slow.clear();
}

// A peer that has ended and never reads does not stay for ever.
TEST_F(ServerTest, GivesUpOnRepliesOfAClientThatHasEndedAndDoesNotRead) {
  settings_.last_patience = 200 * base::kMillisecond;
  start();
  SocketClient client = SocketClient::tcp(addresses_[0]);
  EXPECT_EQ(client.call({"SET", "big", std::string(1 << 20, 'v')}), "+OK\r\n");
  EXPECT_GT(client.push(times(60, encode({"GET", "big"})), kPatience), 0u);
  client.half_close();
  EXPECT_TRUE(eventually([this] { return none_connected(); }));
  EXPECT_EQ(calls("get"), 60u);
}

TEST_F(ServerTest, RefusesOneTooManyOverTlsAndOverAllItsListeners) {
  settings_.max_connections = 2;
  net::ThrowawayCa ca;
  auto tls = net::Tls::load(ca.issue("farpool://p/client/c"), net::Tls::Kind::server);
  ASSERT_TRUE(tls.ok()) << tls.status().message();
  std::string directory = std::filesystem::temp_directory_path() / "farpool-server-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  start({"127.0.0.1:0", "unix:" + directory + "/s"}, *tls);
  TlsClient first(addresses_[0]);
  SocketClient second = SocketClient::unix_socket(directory + "/s");
  EXPECT_EQ(second.call({"PING"}), "+PONG\r\n");
  ASSERT_TRUE(eventually([this] { return connections(0) + connections(1) == 2; }));
  EXPECT_EQ(TlsClient(addresses_[0]).rest(), "-ERR max number of clients reached\r\n");
  SocketClient third = SocketClient::unix_socket(directory + "/s");
  third.send(encode({"PING"}));
  EXPECT_EQ(third.rest(), "-ERR max number of clients reached\r\n");
  EXPECT_EQ(second.call({"PING"}), "+PONG\r\n");
  std::filesystem::remove_all(directory);
}

// As `nc -N` does, and scripts that pipe commands through it: what was sent before the end is run and answered.
TEST_F(ServerTest, AnswersAllThatCameBeforeAHalfClose) {
  for (auto& thread : threads_) thread.kv.hold = true;
  std::string directory = std::filesystem::temp_directory_path() / "farpool-server-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  start({"127.0.0.1:0", "unix:" + directory + "/s"});
  constexpr int kSets = 2000;
  for (const bool unix : {false, true}) {
    SocketClient client = unix ? SocketClient::unix_socket(directory + "/s") : SocketClient::tcp(addresses_[0]);
    client.send(sets(kSets) + "*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$1");
    client.half_close();
    EXPECT_EQ(rest_of(client), times(kSets, "+OK\r\n"));
  }
  EXPECT_EQ(calls("set"), 2u * kSets);
  std::filesystem::remove_all(directory);
}

TEST_F(ServerTest, EndsAnIdleConnectionThatIsHalfClosed) {
  start();
  SocketClient client = SocketClient::tcp(addresses_[0]);
  EXPECT_EQ(client.call({"PING"}), "+PONG\r\n");
  client.half_close();
  EXPECT_EQ(client.rest(), "");
  EXPECT_TRUE(eventually([this] { return none_connected(); }));
}

TEST_F(ServerTest, RunsNothingAfterQuitThoughTheClientHalfCloses) {
  for (auto& thread : threads_) thread.kv.hold = true;
  start();
  SocketClient client = SocketClient::tcp(addresses_[0]);
  client.send(encode({"SET", "a", "1"}) + encode({"QUIT"}) + encode({"SET", "a", "2"}));
  client.half_close();
  EXPECT_EQ(rest_of(client), "+OK\r\n+OK\r\n");
  EXPECT_EQ(calls("set"), 1u);
}

// A pipeline that is larger than what the server takes at once, of a client that does not wait for replies.
TEST_F(ServerTest, RunsAllThatCameBeforeTheClientClosed) {
  settings_.max_pipeline = 16;
  for (auto& thread : threads_) thread.kv.hold = true;
  start();
  constexpr int kSets = 1000;
  SocketClient::tcp(addresses_[0]).send(sets(kSets) + "*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$1\r\n");
  EXPECT_TRUE(run_until([this] { return calls("set") == kSets && none_connected(); })) << calls("set");
}

TEST_F(ServerTest, AnswersAllThatCameOverTlsBeforeItsEnd) {
  for (auto& thread : threads_) thread.kv.hold = true;
  net::ThrowawayCa ca;
  auto tls = net::Tls::load(ca.issue("farpool://p/client/c"), net::Tls::Kind::server);
  ASSERT_TRUE(tls.ok()) << tls.status().message();
  start({"127.0.0.1:0"}, *tls);
  constexpr int kSets = 500;
  // With TLS's own goodbye, with the goodbye of TCP as well, and with that alone: a record is whole and genuine, or it
  // is none, so the commands in it are the client's, no matter who cut the connection after them.
  for (const auto& [goodbye, end] : std::vector<std::pair<bool, bool>>{{true, false}, {true, true}, {false, true}}) {
    TlsClient client(addresses_[0]);
    client.send(sets(kSets) + "SET half");
    if (goodbye) client.say_goodbye();
    if (end) client.half_close();
    EXPECT_EQ(rest_of(client), times(kSets, "+OK\r\n"));
  }
  EXPECT_EQ(calls("set"), 3u * kSets);
}

TEST_F(ServerTest, OutlivesAClientThatGoesInTheMiddle) {
  for (auto& thread : threads_) thread.kv.hold = true;
  start();
  {
    SocketClient client = SocketClient::tcp(addresses_[0]);
    client.send(encode({"SET", "a", "1"}) + encode({"SET", "a", "2"}) + "*3\r\n$3\r\nSET\r\n$1\r\na");
    ASSERT_TRUE(eventually([this] { return threads_[0].worker->counters().in_flight.get() == 1; }));
  }
  EXPECT_TRUE(run_until([this] { return none_connected(); }));
  EXPECT_EQ(calls("set"), 2u) << "the command that had come in part ran, or one that had come whole did not";
}

}  // namespace
}  // namespace farpool::front::resp
