// SPDX-License-Identifier: Apache-2.0
#include "net/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <array>
#include <asio/ssl/context.hpp>
#include <mutex>
#include <utility>

#include "net/loop.h"
#include "net/tls_peer.h"

namespace farpool::net {
namespace {

// What identifies a version of a file. Follows links, so that a projected volume's swap shows.
struct Stamp {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  std::int64_t modified = 0;
  bool operator==(const Stamp&) const = default;
};

Stamp stamp_of(const std::string& path) {
  struct stat status {};
  if (path.empty() || ::stat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec * base::kSecond + status.st_mtim.tv_nsec};
}

std::string openssl_error() {
  std::string text;
  while (const unsigned long code = ERR_get_error()) {
    std::array<char, 256> line{};
    ERR_error_string_n(code, line.data(), line.size());
    text += (text.empty() ? "" : "; ") + std::string(line.data());
  }
  return text.empty() ? "no reason given" : text;
}

base::Status refuse(const std::string& what, const std::string& path, const std::string& todo) {
  return {base::Code::invalid_argument, what + " " + path + ": " + openssl_error() + "; " + todo};
}

// Returns how many sessions the subject allows; 0: it names no bound.
base::Result<std::uint32_t> sessions_of(const X509* certificate) {
  const X509_NAME* subject = X509_get_subject_name(certificate);
  std::uint32_t sessions = 0;
  for (int at = -1; (at = X509_NAME_get_index_by_NID(subject, NID_organizationalUnitName, at)) >= 0;) {
    const ASN1_STRING* data = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
    const std::string_view unit(reinterpret_cast<const char*>(ASN1_STRING_get0_data(data)),
                                static_cast<std::size_t>(ASN1_STRING_length(data)));
    if (!unit.starts_with(kSessionsPrefix)) continue;
    const std::optional<std::uint32_t> parsed = parse_sessions(unit);
    if (!parsed || sessions != 0) {
      return base::Status(
          base::Code::forbidden,
          "the certificate's subject must have at most one organizational unit farpool-sessions:<number>, "
          "with a number from 1 to " +
              std::to_string(kMostSessions));
    }
    sessions = *parsed;
  }
  return sessions;
}

}  // namespace

base::Result<Identity> identity_of(X509* certificate) {
  if (certificate == nullptr) return base::Status(base::Code::forbidden, "the peer presented no certificate");
  auto* names = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  std::optional<Identity> found;
  int uris = 0;
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) continue;
    ++uris;
    const auto* data = reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.uniformResourceIdentifier));
    found = parse_identity({data, static_cast<std::size_t>(ASN1_STRING_length(name->d.uniformResourceIdentifier))});
  }
  GENERAL_NAMES_free(names);
  if (uris != 1 || !found) {
    return base::Status(base::Code::forbidden,
                        "the certificate must carry exactly one URI name, farpool://<pool-uid>/<role>/<name>; it has " +
                            std::to_string(uris) + (uris == 1 ? " of another form" : ""));
  }
  const base::Result<std::uint32_t> sessions = sessions_of(certificate);
  if (!sessions.ok()) return sessions.status();
  found->sessions = *sessions;
  return *std::move(found);
}

base::Result<Identity> peer_identity(SSL* ssl) {
  X509* certificate = SSL_get1_peer_certificate(ssl);
  auto identity = identity_of(certificate);
  X509_free(certificate);
  return identity;
}

struct Tls::State {
  TlsFiles files;
  Kind kind;
  mutable std::mutex mutex;
  std::shared_ptr<asio::ssl::context> context;
  Identity self;
  std::array<Stamp, 3> stamps;
  Nanos looked = 0;
  base::Status trouble;
  std::uint64_t generation = 0;

  std::array<Stamp, 3> stamps_now() const { return {stamp_of(files.ca), stamp_of(files.cert), stamp_of(files.key)}; }

  base::Status read() {
    stamps = stamps_now();
    ERR_clear_error();
    auto fresh = std::make_shared<asio::ssl::context>(asio::ssl::context::tls);
    SSL_CTX* raw = fresh->native_handle();
    SSL_CTX_set_min_proto_version(raw, kind == Kind::mutual ? TLS1_3_VERSION : TLS1_2_VERSION);
    // A resumed session would skip the certificates.
    SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(raw, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_num_tickets(raw, 0);
    SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
    if (SSL_CTX_use_certificate_chain_file(raw, files.cert.c_str()) != 1) {
      return refuse("certificate", files.cert, "give a PEM file with the chain, own certificate first");
    }
    if (SSL_CTX_use_PrivateKey_file(raw, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(raw) != 1) {
      return refuse("key", files.key, "give the PEM key that belongs to " + files.cert);
    }
    if (kind == Kind::mutual) {
      if (SSL_CTX_load_verify_file(raw, files.ca.c_str()) != 1) {
        return refuse("certificate authority", files.ca, "give a PEM file with the pool's CA");
      }
      SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
      auto identity = identity_of(SSL_CTX_get0_certificate(raw));
      if (!identity.ok()) return {base::Code::invalid_argument, files.cert + ": " + identity.status().message()};
      self = *std::move(identity);
    }
    context = std::move(fresh);
    ++generation;
    return {};
  }
};

Tls::Tls(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tls::~Tls() = default;

base::Result<std::shared_ptr<Tls>> Tls::load(TlsFiles files, Kind kind) {
  auto state = std::make_unique<State>();
  state->files = std::move(files);
  state->kind = kind;
  state->looked = Loop::now();
  if (base::Status status = state->read(); !status.ok()) return status;
  return std::shared_ptr<Tls>(new Tls(std::move(state)));
}

Tls::Kind Tls::kind() const { return state_->kind; }

Identity Tls::self() const {
  const std::lock_guard lock(state_->mutex);
  return state_->self;
}

std::shared_ptr<asio::ssl::context> Tls::context() {
  const std::lock_guard lock(state_->mutex);
  if (const Nanos now = Loop::now(); now - state_->looked >= base::kSecond) {
    state_->looked = now;
    if (state_->stamps_now() != state_->stamps) state_->trouble = state_->read();
  }
  return state_->context;
}

base::Status Tls::trouble() const {
  const std::lock_guard lock(state_->mutex);
  return state_->trouble;
}

std::uint64_t Tls::generation() const {
  const std::lock_guard lock(state_->mutex);
  return state_->generation;
}

}  // namespace farpool::net
