// SPDX-License-Identifier: Apache-2.0
#include "net/throwaway_ca.h"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/check.h"

namespace farpool::net {
namespace {

constexpr long kDay = 24 * 3600;

struct Signed {
  EVP_PKEY* key = nullptr;
  X509* certificate = nullptr;
  ~Signed() {
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
};

void extend(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  FARPOOL_CHECK(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

void make(Signed& made, const Signed* issuer, const std::string& name, const std::string& uri, const std::string& unit,
          long serial) {
  made.key = EVP_EC_gen("P-256");
  FARPOOL_CHECK(made.key != nullptr);
  X509* certificate = made.certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -kDay);
  X509_gmtime_adj(X509_getm_notAfter(certificate), kDay);
  X509_set_pubkey(certificate, made.key);
  X509_NAME* subject = X509_get_subject_name(certificate);
  const auto add = [subject](const char* field, const std::string& value) {
    X509_NAME_add_entry_by_txt(subject, field, MBSTRING_ASC, reinterpret_cast<const unsigned char*>(value.c_str()), -1,
                               -1, 0);
  };
  add("CN", name);
  if (!unit.empty()) add("OU", unit);
  X509* above = issuer != nullptr ? issuer->certificate : certificate;
  X509_set_issuer_name(certificate, X509_get_subject_name(above));
  if (issuer == nullptr) {
    extend(certificate, above, NID_basic_constraints, "critical,CA:TRUE");
    extend(certificate, above, NID_key_usage, "critical,keyCertSign,cRLSign");
  } else {
    extend(certificate, above, NID_ext_key_usage, "serverAuth,clientAuth");
    if (!uri.empty()) extend(certificate, above, NID_subject_alt_name, "URI:" + uri);
  }
  FARPOOL_CHECK(X509_sign(certificate, issuer != nullptr ? issuer->key : made.key, EVP_sha256()) != 0);
}

void write_file(const std::string& path, const auto& put) {
  std::FILE* file = std::fopen((path + ".new").c_str(), "w");
  FARPOOL_CHECK(file != nullptr);
  FARPOOL_CHECK(put(file) == 1);
  FARPOOL_CHECK(std::fclose(file) == 0);
  std::filesystem::rename(path + ".new", path);
}

}  // namespace

struct ThrowawayCa::State {
  Signed ca;
  std::string directory;
  long issued = 1;
};

ThrowawayCa::ThrowawayCa() : state_(std::make_unique<State>()) {
  std::string pattern = (std::filesystem::temp_directory_path() / "farpool-ca-XXXXXX").string();
  FARPOOL_CHECK(::mkdtemp(pattern.data()) != nullptr);
  state_->directory = pattern;
  make(state_->ca, nullptr, "throwaway", "", "", 1);
}

ThrowawayCa::~ThrowawayCa() {
  std::error_code ignored;
  std::filesystem::remove_all(state_->directory, ignored);
}

TlsFiles ThrowawayCa::issue(const std::string& uri, const std::string& unit) {
  const std::string directory = state_->directory + "/" + std::to_string(state_->issued + 1);
  std::filesystem::create_directory(directory);
  TlsFiles files{.ca = directory + "/ca.crt", .cert = directory + "/tls.crt", .key = directory + "/tls.key"};
  issue_into(files, uri, unit);
  return files;
}

void ThrowawayCa::issue_into(const TlsFiles& files, const std::string& uri, const std::string& unit) {
  Signed leaf;
  make(leaf, &state_->ca, "leaf", uri, unit, ++state_->issued);
  write_file(files.ca, [&](std::FILE* file) { return PEM_write_X509(file, state_->ca.certificate); });
  write_file(files.key, [&](std::FILE* file) {
    return PEM_write_PrivateKey(file, leaf.key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  write_file(files.cert, [&](std::FILE* file) { return PEM_write_X509(file, leaf.certificate); });
}

}  // namespace farpool::net
