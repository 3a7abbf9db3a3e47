// SPDX-License-Identifier: Apache-2.0
#include "net/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <asio/ssl/context.hpp>
#include <fstream>
#include <string>
#include <thread>

#include "net/loop.h"
#include "net/throwaway_ca.h"
#include "net/tls_peer.h"

namespace farpool::net {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kUri[] = "farpool://pool/node/n0";

TEST(Tls, ACertificateHasOneUriAndAnyOtherNames) {
  ThrowawayCa ca;
  const auto named = Tls::load(ca.issue(std::string(kUri) + ",DNS:example.org"), Tls::Kind::mutual);
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ((*named)->self().name, "n0");
  EXPECT_EQ((*named)->self().role, "node");
  const auto two = Tls::load(ca.issue(std::string(kUri) + ",URI:farpool://pool/client/c0"), Tls::Kind::mutual);
  EXPECT_EQ(two.code(), base::Code::invalid_argument);
  EXPECT_THAT(two.status().message(), HasSubstr("it has 2"));
  const auto other = Tls::load(ca.issue("https://example.org"), Tls::Kind::mutual);
  EXPECT_THAT(other.status().message(), HasSubstr("it has 1 of another form"));
  const auto none = Tls::load(ca.issue(""), Tls::Kind::mutual);
  EXPECT_THAT(none.status().message(), HasSubstr("it has 0"));
}

TEST(Tls, ACertificateMaySayHowManySessionsItIsGoodFor) {
  ThrowawayCa ca;
  const auto sessions = [&ca](const std::string& unit) {
    const auto loaded = Tls::load(ca.issue(kUri, unit), Tls::Kind::mutual);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return loaded.ok() ? (*loaded)->self().sessions : ~0u;
  };
  EXPECT_EQ(sessions(""), 0u);
  EXPECT_EQ(sessions("Engineering"), 0u);
  EXPECT_EQ(sessions("farpool-sessions:32"), 32u);
  const auto none = Tls::load(ca.issue(kUri, "farpool-sessions:none"), Tls::Kind::mutual);
  EXPECT_EQ(none.code(), base::Code::invalid_argument);
  EXPECT_THAT(none.status().message(), HasSubstr("farpool-sessions:<number>"));
}

TEST(Tls, APeerWithoutACertificateIsNobody) {
  const auto nobody = identity_of(nullptr);
  EXPECT_EQ(nobody.code(), base::Code::forbidden);
  EXPECT_THAT(nobody.status().message(), HasSubstr("no certificate"));
}

TEST(Tls, SaysWhichFileCannotBeUsedAndWhy) {
  ThrowawayCa ca;
  ERR_raise(ERR_LIB_SSL, SSL_R_LENGTH_MISMATCH);  // what somebody else has left
  const TlsFiles good = ca.issue(kUri), other = ca.issue(kUri);
  const auto said = [](const TlsFiles& files) {
    const auto loaded = Tls::load(files, Tls::Kind::mutual);
    EXPECT_EQ(loaded.code(), base::Code::invalid_argument);
    return loaded.status().message();
  };
  const std::string missing = said({.ca = good.ca, .cert = "/nowhere/tls.crt", .key = good.key});
  EXPECT_THAT(missing, HasSubstr("certificate /nowhere/tls.crt: "));
  EXPECT_THAT(missing, HasSubstr("No such file or directory"));
  EXPECT_THAT(missing, Not(HasSubstr("length mismatch")));
  EXPECT_THAT(said({.ca = good.ca, .cert = good.cert, .key = "/nowhere/tls.key"}), HasSubstr("key /nowhere/tls.key: "));
  EXPECT_THAT(said({.ca = good.ca, .cert = good.cert, .key = other.key}), HasSubstr("key " + other.key + ": "));
  EXPECT_THAT(said({.ca = "/nowhere/ca.crt", .cert = good.cert, .key = good.key}),
              HasSubstr("certificate authority /nowhere/ca.crt: "));
}

TEST(Tls, EachKindAsksForWhatItSays) {
  ThrowawayCa ca;
  TlsFiles files = ca.issue(kUri);
  const auto mutual = Tls::load(files, Tls::Kind::mutual);
  files.ca = "";
  const auto server = Tls::load(files, Tls::Kind::server);
  ASSERT_TRUE(mutual.ok() && server.ok());
  EXPECT_EQ((*mutual)->kind(), Tls::Kind::mutual);
  EXPECT_EQ((*server)->kind(), Tls::Kind::server);
  EXPECT_EQ((*server)->self().name, "");
  const auto of_mutual = (*mutual)->context(), of_server = (*server)->context();
  SSL_CTX* const both = of_mutual->native_handle();
  SSL_CTX* const one = of_server->native_handle();
  EXPECT_EQ(SSL_CTX_get_min_proto_version(both), TLS1_3_VERSION);
  EXPECT_EQ(SSL_CTX_get_min_proto_version(one), TLS1_2_VERSION);
  EXPECT_EQ(SSL_CTX_get_verify_mode(both), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT);
  EXPECT_EQ(SSL_CTX_get_verify_mode(one), SSL_VERIFY_NONE);
  for (SSL_CTX* const each : {both, one}) {
    EXPECT_EQ(SSL_CTX_get_session_cache_mode(each), SSL_SESS_CACHE_OFF) << "a resumed session skips the certificates";
    EXPECT_EQ(SSL_CTX_get_num_tickets(each), 0u);
    constexpr auto kOptions = SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION;
    EXPECT_EQ(SSL_CTX_get_options(each) & kOptions, kOptions);
    EXPECT_NE(SSL_CTX_get_mode(each) & SSL_MODE_RELEASE_BUFFERS, 0);
  }
}

// It looks at the files after a second, whether or not they have changed.
// Each connection asks for the files' content.
TEST(Tls, FilesAreLookedAtOnceASecond) {
  ThrowawayCa ca;
  const TlsFiles files = ca.issue(kUri);
  // Says how often changed files are read when somebody asks right after they were looked at.
  const auto reads = [&](Tls& tls) {
    const std::uint64_t before = tls.generation();
    ca.issue_into(files, kUri);
    (void)tls.context();
    return tls.generation() - before;
  };
  for (const Nanos end = Loop::now() + 20 * base::kSecond;;) {
    ASSERT_LT(Loop::now(), end) << "this machine never does it within a second";
    const Nanos loads = Loop::now();
    const auto tls = Tls::load(files, Tls::Kind::mutual);
    ASSERT_TRUE(tls.ok());
    const std::uint64_t first = reads(**tls);
    if (Loop::now() >= loads + base::kSecond) continue;
    EXPECT_EQ(first, 0u);
    while ((*tls)->generation() == 1 && Loop::now() < end) (void)(*tls)->context();
    ASSERT_EQ((*tls)->generation(), 2u);
    const Nanos looks = Loop::now();
    const std::uint64_t second = reads(**tls);
    if (Loop::now() >= looks + base::kSecond) continue;
    EXPECT_EQ(second, 0u);
    return;
  }
}

TEST(Tls, FilesAreReadAgainOnlyIfTheyHaveChanged) {
  ThrowawayCa ca;
  const TlsFiles files = ca.issue(kUri);
  const auto tls = Tls::load(files, Tls::Kind::mutual);
  ASSERT_TRUE(tls.ok());
  const Nanos looks = Loop::now() + base::kSecond;
  while (Loop::now() <= looks) std::this_thread::yield();
  const auto before = (*tls)->context();
  EXPECT_EQ((*tls)->generation(), 1u);
  ca.issue_into(files, "farpool://pool/node/n1");
  for (const Nanos end = Loop::now() + 20 * base::kSecond; (*tls)->generation() == 1 && Loop::now() < end;) {
    (void)(*tls)->context();
  }
  EXPECT_EQ((*tls)->self().name, "n1");
  EXPECT_NE((*tls)->context(), before);
  EXPECT_TRUE((*tls)->trouble().ok());
}

}  // namespace
}  // namespace farpool::net
