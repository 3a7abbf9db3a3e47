// SPDX-License-Identifier: Apache-2.0
// Where a client of a pool begins: addresses of memory nodes from flags, from DNS, and from the file of those last
// known.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"

namespace farpool::apps {

// `host:port`, separated by commas; `dns:name:port` stands for every address of a name.
struct BootstrapSpec {
  std::vector<std::string> fixed;
  struct Name {
    std::string name;
    std::string port;
  };
  std::vector<Name> names;
};
base::Result<BootstrapSpec> parse_bootstrap(const std::string& text);

// Every address of the names, and the fixed ones, sorted. May wait for a name server. A name that does not resolve adds
// its reason to `trouble`.
std::vector<std::string> resolve(const BootstrapSpec& spec, std::string& trouble);

// The file of addresses, one a line. Reading a file that is not there, or not one of these, gives none.
std::vector<std::string> read_addresses(const std::string& path);
// Replaces the file as a whole.
base::Status write_addresses(const std::string& path, const std::vector<std::string>& addresses);

// Looks the names up on a thread of its own, often until satisfied, rarely afterwards. A name server that hangs holds
// up nobody else.
class Resolver {
 public:
  // Both are called on the resolver's thread.
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
