// SPDX-License-Identifier: Apache-2.0
// For tests: redis-server and this front end side by side, which get the same commands over real sockets.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "front/resp/memory_kv.h"
#include "front/resp/server.h"
#include "front/resp/socket_client.h"

namespace farpool::front::resp {

using Words = std::vector<std::string>;

class Directory {
 public:
  Directory() {
    std::string name = std::filesystem::temp_directory_path() / "farpool-resp-XXXXXX";
    FARPOOL_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The reference, from the system's package, with limits like ours.
class RedisServer {
 public:
  RedisServer(const Directory& directory, const std::string& password) : socket_(directory.path() + "/redis") {
    pid_ = fork();
    if (pid_ == 0) {
      execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", socket_.c_str(), "--save", "",
             "--databases", "1", "--proto-max-bulk-len", "1mb", "--dir", directory.path().c_str(), "--logfile",
             "redis.log", "--requirepass", password.c_str(), nullptr);
      _exit(127);
    }
  }
  ~RedisServer() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  const std::string& socket() const { return socket_; }

 private:
  std::string socket_;
  pid_t pid_;
};

class OurServer {
 public:
  OurServer(const Directory& directory, std::string password) : socket_(directory.path() + "/ours") {
    worker_ = std::make_unique<Worker>(loop_, kv_, settings_);
    worker_->set_passwords({.password = std::move(password)});
    auto front = Front::open(loop_, {.listen = {"unix:" + socket_}}, settings_, {worker_.get()});
    FARPOOL_CHECK(front.ok());
    front_ = std::move(*front);
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~OurServer() {
    loop_.post([this] {
      front_.reset();
      worker_->drain([this] { loop_.stop(); });
      worker_->cut();
    });
    thread_.join();
  }
  const std::string& socket() const { return socket_; }

 private:
  std::string socket_;
  net::Loop loop_;
  MemoryKv kv_;
  Settings settings_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Front> front_;
  std::thread thread_;
};

// What is no part of the comparison: numbers of connections, and the name of the limit of a value.
inline std::string comparable(std::string reply) {
  static const std::regex id(R"(\$2\r\nid\r\n:\d+\r\n)");
  static const std::regex limit(R"(maximum allowed size \((of a value: 1 MiB|proto-max-bulk-len)\))");
  return std::regex_replace(std::regex_replace(reply, id, "$$2\r\nid\r\n:N\r\n"), limit, "maximum allowed size");
}

inline std::string text_of(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += word.substr(0, 60) + " ";
  return text;
}

// What INFO counts of keys that are read.
inline std::string hits_and_misses(SocketClient& client) {
  const std::string info = client.call({"INFO", "stats"});
  static const std::regex fields(R"(keyspace_hits:\d+\r\nkeyspace_misses:\d+\r\n)");
  std::smatch found;
  return std::regex_search(info, found, fields) ? found.str() : info;
}

class Differential : public ::testing::Test {
 protected:
  void start(const std::string& password = "") {
    redis_ = std::make_unique<RedisServer>(directory_, password);
    ours_ = std::make_unique<OurServer>(directory_, password);
    reconnect();
  }
  void reconnect() {
    there_ = std::make_unique<SocketClient>(SocketClient::unix_socket(redis_->socket()));
    here_ = std::make_unique<SocketClient>(SocketClient::unix_socket(ours_->socket()));
  }
  // Sends all commands in one piece to both and compares each reply.
  void compare(const std::vector<Words>& commands) {
    std::string bytes;
    for (const Words& words : commands) bytes += encode(words);
    there_->send(bytes);
    here_->send(bytes);
    for (const Words& words : commands) {
      const std::string expected = there_->reply();
      const std::string got = here_->reply();
      EXPECT_EQ(comparable(got), comparable(expected)) << text_of(words);
    }
  }
  void compare_each(const std::vector<Words>& commands) {
    for (const Words& words : commands) compare({words});
  }
  // Sends bytes after which the connection is closed, and compares all that comes.
  void compare_ending(const std::string& bytes) {
    reconnect();
    there_->send(bytes);
    here_->send(bytes);
    const std::string expected = there_->rest();
    ASSERT_EQ(here_->rest(), expected) << bytes.substr(0, 80);
  }

  Directory directory_;
  std::unique_ptr<RedisServer> redis_;
  std::unique_ptr<OurServer> ours_;
  std::unique_ptr<SocketClient> there_, here_;
};

// The elements of a reply that is an array of bulk strings, sorted: their order means nothing.
inline std::vector<std::string> sorted(const std::string& reply) {
  std::vector<std::string> elements;
  std::size_t at = reply.find("\r\n") + 2;
  for (std::size_t left = std::stoul(reply.substr(1)); left > 0; --left) {
    const std::size_t size = std::stoul(reply.substr(at + 1)), begin = reply.find("\r\n", at) + 2;
    elements.push_back(reply.substr(begin, size));
    at = begin + size + 2;
  }
  std::sort(elements.begin(), elements.end());
  return elements;
}

}  // namespace farpool::front::resp
