// SPDX-License-Identifier: Apache-2.0
// A certificate authority that lives as long as one process, for tests of TLS.
#pragma once

#include <memory>
#include <string>

#include "net/tls.h"

namespace farpool::net {

class ThrowawayCa {
 public:
  ThrowawayCa();
  ~ThrowawayCa();
  ThrowawayCa(const ThrowawayCa&) = delete;

  // Writes ca.crt, tls.crt and tls.key for this URI name into a directory of its own, which is removed with the
  // authority. A unit becomes an organizational unit of the subject.
  TlsFiles issue(const std::string& uri, const std::string& unit = "");
  // Replaces the files of an earlier issue, as a renewal does.
  void issue_into(const TlsFiles& files, const std::string& uri, const std::string& unit = "");

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace farpool::net
