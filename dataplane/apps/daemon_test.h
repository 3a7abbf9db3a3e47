// SPDX-License-Identifier: Apache-2.0
// Shared by tests of the daemons: a child process, a free port, a page over HTTP.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace farpool::apps {

inline constexpr auto kPatience = std::chrono::seconds(60);

inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

// Connects to a port of this machine, or of another; returns -1 if nobody listens.
inline int connect_to(int port, const std::string& host = "127.0.0.1") {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  EXPECT_EQ(::inet_pton(AF_INET, host.c_str(), &address.sin_addr), 1) << host;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

// Returns status line and body, or nothing if nobody listens.
inline std::optional<std::string> get(int port, const std::string& path, const std::string& host = "127.0.0.1") {
  const int fd = connect_to(port, host);
  std::optional<std::string> text;
  if (fd >= 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    text.emplace();
    std::array<char, 4096> piece{};
    if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
      for (ssize_t got; (got = ::read(fd, piece.data(), piece.size())) > 0;) {
        text->append(piece.data(), static_cast<std::size_t>(got));
      }
    }
    ::close(fd);
  }
  return text;
}

// Returns a sample of a daemon's metrics; -1 while it does not exist.
inline double sample_of(const std::string& name, int http_port, const std::string& host = "127.0.0.1") {
  const std::string text = get(http_port, "/metrics", host).value_or("");
  const auto at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

// Every number of a table (base/counts.h) is among a daemon's metrics.
template <class Table>
void expect_gauges(const std::string& prefix, const Table& table, int http_port) {
  for (const auto& count : table) EXPECT_GE(sample_of(prefix + std::string(count.name), http_port), 0) << count.name;
}
template <class Table>
void expect_counters(const std::string& prefix, const Table& table, int http_port) {
  for (const auto& count : table) {
    EXPECT_GE(sample_of(prefix + std::string(count.name) + "_total", http_port), 0) << count.name;
  }
}

inline bool eventually(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

// A child process; its output goes to a file that is read when it has ended.
class Daemon {
 public:
  Daemon(const char* program, std::vector<std::string> arguments) {
    std::string pattern = (std::filesystem::temp_directory_path() / "farpool-daemon-XXXXXX").string();
    const int out = ::mkstemp(pattern.data());
    EXPECT_GE(out, 0);
    output_ = pattern;
    std::vector<char*> argv{const_cast<char*>(program)};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out, STDOUT_FILENO);
      ::dup2(out, STDERR_FILENO);
      ::execv(program, argv.data());
      ::_exit(127);
    }
    ::close(out);
  }
  ~Daemon() {
    if (!status_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    std::filesystem::remove(output_);
  }
  void signal(int number) { ::kill(pid_, number); }
  bool running() {
    int status = 0;
    if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
    return !status_;
  }
  // Returns the exit status, or minus the signal that ended it; -1000 if it did not end.
  int wait() {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (running() && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!status_) return -1000;
    return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : -WTERMSIG(*status_);
  }
  std::string output() const {
    std::ifstream file(output_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  pid_t pid_ = -1;
  std::optional<int> status_;
  std::string output_;
};

// Waits until the daemon says that it is ready.
inline bool comes_up(Daemon& daemon, int http_port, const std::string& host = "127.0.0.1") {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (daemon.running() && std::chrono::steady_clock::now() < limit) {
    const auto answer = get(http_port, "/readyz", host);
    if (answer && answer->find(" 200 ") != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ADD_FAILURE() << "it did not become ready:\n" << daemon.output();
  return false;
}

}  // namespace farpool::apps
