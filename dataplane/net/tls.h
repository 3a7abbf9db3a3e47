// SPDX-License-Identifier: Apache-2.0
// Certificates from PEM files, re-read when they change on disk. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/identity.h"

namespace asio::ssl {
class context;
}

namespace farpool::net {

struct TlsFiles {
  std::string ca;    // of the pool; not needed for Kind::server
  std::string cert;  // chain, own certificate first
  std::string key;
};

class Tls {
 public:
  enum class Kind {
    mutual,  // TLS 1.3; both sides present a certificate of the pool's CA with one farpool URI
    server,  // TLS 1.2 or 1.3; only this side presents a certificate (RESP)
  };
  static base::Result<std::shared_ptr<Tls>> load(TlsFiles files, Kind kind);
  ~Tls();

  Kind kind() const;
  // Returns its own identity, from the certificate; Kind::mutual only.
  Identity self() const;
  // Returns the context for a new connection. Looks at the files at most once a second; if a pair cannot be read or
  // does not fit together, the old one stays in use and trouble() says why.
  std::shared_ptr<asio::ssl::context> context();
  base::Status trouble() const;
  std::uint64_t generation() const;  // raised by every successful re-read

 private:
  struct State;
  explicit Tls(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace farpool::net
