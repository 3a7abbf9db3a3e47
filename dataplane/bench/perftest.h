// SPDX-License-Identifier: Apache-2.0
// Programs that run beside a benchmark, and perftest's in particular, which tell what an RDMA device does without farpool.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "net/listener.h"
#include "net/loop.h"

extern char** environ;

namespace farpool::bench {

// A program that runs beside this one; it is killed if it still runs when this object goes.
class Child {
 public:
  Child(std::vector<std::string> command, const std::string& output) {
    std::vector<char*> argv;
    for (std::string& argument : command) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    if (::posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
    ::posix_spawn_file_actions_destroy(&actions);
  }
  // Returns its exit status; -1 if it was not started, ended otherwise, or had to be killed.
  int wait(std::chrono::seconds patience) {
    const auto limit = std::chrono::steady_clock::now() + patience;
    for (int status = 0; pid_ > 0;) {
      const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
      if (ended == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      if (ended < 0 || std::chrono::steady_clock::now() > limit) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return -1;
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
};

// A directory for what programs print, which goes with this object.
class Directory {
 public:
  Directory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "farpool-verify-XXXXXX").string();
    FARPOOL_CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::string file(const std::string& name) const { return path_ / name; }
  static std::string text(const std::string& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::filesystem::path path_;
};

// Returns an address of this machine that nobody has now.
inline std::string free_address(net::Loop& loop) {
  const auto listener = net::Listener::open(loop, {.address = "127.0.0.1:0"}, [](auto) {});
  FARPOOL_CHECK(listener.ok());
  return (*listener)->address();
}
inline int free_port(net::Loop& loop) {
  const std::string address = free_address(loop);
  return std::atoi(address.substr(address.rfind(':') + 1).c_str());
}

inline constexpr std::chrono::seconds kPerftestPatience{60};

// Runs one of perftest's programs against itself, and returns the only row of its table; empty: it told none.
inline std::vector<double> perftest(const std::string& program, const std::string& device, int gid,
                                    std::uint64_t rounds, const std::vector<std::string>& more, int port,
                                    const Directory& directory) {
  std::vector<std::string> command{
      program, "-d", device, "-x", std::to_string(gid), "-F", "-n", std::to_string(rounds), "-p", std::to_string(port)};
  command.insert(command.end(), more.begin(), more.end());
  Child server(command, directory.file("server.txt"));
  command.push_back("127.0.0.1");
  // Again until the server listens.
  for (const auto limit = std::chrono::steady_clock::now() + kPerftestPatience;
       std::chrono::steady_clock::now() < limit;) {
    Child client(command, directory.file("client.txt"));
    if (client.wait(kPerftestPatience) == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::istringstream lines(Directory::text(directory.file("client.txt")));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::vector<double> figures;
    for (double figure = 0; fields >> figure;) figures.push_back(figure);
    if (figures.size() >= 5 && figures[4] > 0) return figures;
  }
  return {};
}

}  // namespace farpool::bench
