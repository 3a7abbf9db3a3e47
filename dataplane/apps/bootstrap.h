// SPDX-License-Identifier: Apache-2.0
// Where a client of a pool begins: addresses of memory nodes from flags, from DNS, and from the file with the last
// known ones.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"

namespace farpool::apps {

// Addresses `host:port`, separated by commas; `dns:name:port` stands for every address of a name.
struct BootstrapSpec {
  std::vector<std::string> fixed;
  struct Name {
    std::string name;
    std::string port;
  };
  std::vector<Name> names;
};
base::Result<BootstrapSpec> parse_bootstrap(const std::string& text);

// Returns every address of the names, and the fixed ones, sorted. May wait for a name server. If a name does not
// resolve, adds the reason to `trouble`.
std::vector<std::string> resolve(const BootstrapSpec& spec, std::string& trouble);

// Reads the file of addresses, one a line. Returns none if the file is missing or has another form.
std::vector<std::string> read_addresses(const std::string& path);
// Replaces the file as a whole.
base::Status write_addresses(const std::string& path, const std::vector<std::string>& addresses);

// Looks the names up on a thread of its own, often until satisfied, rarely afterwards. A hanging name server holds up
// no other thread.
class Resolver {
 public:
  // Calls both functions on the resolver's thread.
  Resolver(BootstrapSpec spec, std::function<void(std::vector<std::string>, const std::string& trouble)> found,
           std::function<bool()> satisfied);
  ~Resolver();
  Resolver(const Resolver&) = delete;

 private:
  void run();

  const BootstrapSpec spec_;
  const std::function<void(std::vector<std::string>, const std::string&)> found_;
  const std::function<bool()> satisfied_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace farpool::apps
