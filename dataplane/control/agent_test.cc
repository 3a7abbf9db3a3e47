// SPDX-License-Identifier: Apache-2.0
#include "control/agent.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "farpool/v1alpha1/agent.grpc.pb.h"

namespace farpool::control {
namespace {

namespace fs = std::filesystem;
constexpr char kPool[] = "pool-1";

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A throw-away CA with certificates that it signs, made by the openssl command.
class Certificates {
 public:
  Certificates() {
    char pattern[] = "/tmp/farpool-agent-XXXXXX";
    directory_ = mkdtemp(pattern);
    run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=ca -keyout ca.key "
        "-out ca.crt");
  }
  ~Certificates() { fs::remove_all(directory_); }
  // `names`: the subjectAltName, as openssl reads it.
  net::TlsFiles issue(const std::string& name, const std::string& names) {
    std::ofstream(directory_ / (name + ".ext")) << "subjectAltName=" << names << "\n";
    run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + name + " -keyout " + name +
        ".key -out " + name + ".csr");
    run("openssl x509 -req -in " + name + ".csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile " + name +
        ".ext -out " + name + ".crt");
    return {directory_ / "ca.crt", directory_ / (name + ".crt"), directory_ / (name + ".key")};
  }

 private:
  void run(const std::string& command) {
    const std::string quiet = "cd " + directory_.string() + " && " + command + " >/dev/null 2>&1";
    ASSERT_EQ(std::system(quiet.c_str()), 0) << command;
  }
  fs::path directory_;
};

class Process final : public Subject {
 public:
  v1alpha1::Facts facts() const override {
    const std::lock_guard lock(mutex_);
    v1alpha1::Facts facts;
    facts.set_pool_uid(kPool);
    facts.set_role(v1alpha1::ROLE_MEMORY_NODE);
    facts.set_epoch(epoch_);
    return facts;
  }
  Published publish(const v1alpha1::PublishMapRequest& request) override {
    const std::lock_guard lock(mutex_);
    if (request.map().epoch() < epoch_) return {Verdict::older_epoch, epoch_, "holds a newer epoch"};
    epoch_ = request.map().epoch();
    return {Verdict::adopted, epoch_, ""};
  }
  base::Result<v1alpha1::FenceResponse> fence(const v1alpha1::FenceRequest& request) override {
    const std::lock_guard lock(mutex_);
    ++calls_;
    v1alpha1::FenceResponse response;
    response.set_sessions(static_cast<std::uint32_t>(request.processes_size()));
    return response;
  }
  base::Result<v1alpha1::RepairResponse> repair(const v1alpha1::RepairRequest&,
                                                std::chrono::steady_clock::time_point deadline) override {
    const std::lock_guard lock(mutex_);
    ++calls_;
    patience_ = deadline - std::chrono::steady_clock::now();
    return base::Status(base::Code::invalid_argument, "ask somebody else");
  }
  std::chrono::nanoseconds patience() const {
    const std::lock_guard lock(mutex_);
    return patience_;
  }
  // Returns how often fence and repair were called.
  std::uint64_t calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  void set_epoch(std::uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    epoch_ = epoch;
  }

 private:
  mutable std::mutex mutex_;
  std::uint64_t epoch_ = 3;
  std::uint64_t calls_ = 0;
  std::chrono::nanoseconds patience_{};
};

void give_a_deadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
}

grpc::Status describe(const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                      const std::string& pool, v1alpha1::Facts& facts) {
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("agent");
  auto stub = v1alpha1::Agent::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
  grpc::ClientContext context;
  give_a_deadline(context);
  v1alpha1::DescribeRequest request;
  request.set_pool_uid(pool);
  return stub->Describe(&context, request, &facts);
}

TEST(Agent, DescribesAndRefusesOtherPoolsAndOlderEpochs) {
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(agent.ok()) << agent.status().message();
  v1alpha1::Facts facts;
  ASSERT_TRUE(describe((*agent)->address(), grpc::InsecureChannelCredentials(), kPool, facts).ok());
  EXPECT_EQ(facts.epoch(), 3u);
  EXPECT_EQ(describe((*agent)->address(), grpc::InsecureChannelCredentials(), "pool-2", facts).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  auto stub = v1alpha1::Agent::NewStub(grpc::CreateChannel((*agent)->address(), grpc::InsecureChannelCredentials()));
  for (const auto& [epoch, want] :
       {std::pair{2u, grpc::StatusCode::FAILED_PRECONDITION}, std::pair{4u, grpc::StatusCode::OK}}) {
    grpc::ClientContext context;
    give_a_deadline(context);
    v1alpha1::PublishMapRequest request;
    request.mutable_map()->set_pool_uid(kPool);
    request.mutable_map()->set_epoch(epoch);
    v1alpha1::PublishMapResponse response;
    EXPECT_EQ(stub->PublishMap(&context, request, &response).error_code(), want);
  }
}

TEST(Agent, FencesAndRepairsInBatchesWithinTheDeadline) {
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(agent.ok());
  auto stub = v1alpha1::Agent::NewStub(grpc::CreateChannel((*agent)->address(), grpc::InsecureChannelCredentials()));
  const auto fence = [&stub](int processes, std::uint64_t first, const char* pool) {
    grpc::ClientContext context;
    give_a_deadline(context);
    v1alpha1::FenceRequest request;
    request.set_pool_uid(pool);
    for (int i = 0; i < processes; ++i) request.add_processes(first + static_cast<std::uint64_t>(i));
    v1alpha1::FenceResponse response;
    const grpc::Status status = stub->Fence(&context, request, &response);
    if (status.ok()) EXPECT_EQ(response.sessions(), static_cast<std::uint32_t>(processes));
    return status.error_code();
  };
  EXPECT_EQ(fence(256, 1, kPool), grpc::StatusCode::OK);
  EXPECT_EQ(fence(257, 1, kPool), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(fence(1, 0, kPool), grpc::StatusCode::INVALID_ARGUMENT) << "0 names no process";
  EXPECT_EQ(fence(1, 1, "pool-2"), grpc::StatusCode::INVALID_ARGUMENT);

  grpc::ClientContext context;
  give_a_deadline(context);  // in 20 s
  v1alpha1::RepairRequest request;
  request.set_pool_uid(kPool);
  v1alpha1::RepairResponse response;
  EXPECT_EQ(stub->Repair(&context, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_LT(process.patience(), std::chrono::seconds(20));
  EXPECT_GT(process.patience(), std::chrono::seconds(10));
}

TEST(Agent, APortInUseIsAnErrorThatNamesIt) {
  Process process;
  auto first = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(first.ok());
  auto second = Agent::start({.listen = (*first)->address(), .pool_uid = kPool, .tls = {}}, process);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find((*first)->address()), std::string::npos);
}

TEST(Agent, WatchSendsTheFactsNowAndAfterEachChangeOfMeaning) {
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(agent.ok());
  auto stub = v1alpha1::Agent::NewStub(grpc::CreateChannel((*agent)->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  give_a_deadline(context);
  v1alpha1::WatchRequest request;
  request.set_pool_uid(kPool);
  request.set_min_interval_ms(1);
  auto stream = stub->Watch(&context, request);
  v1alpha1::Facts facts;
  ASSERT_TRUE(stream->Read(&facts));
  EXPECT_EQ(facts.epoch(), 3u);
  (*agent)->changed();  // nothing has changed in meaning: nothing is sent
  process.set_epoch(7);
  (*agent)->changed();
  ASSERT_TRUE(stream->Read(&facts));
  EXPECT_EQ(facts.epoch(), 7u);
  (*agent).reset();  // the watcher is told, not left hanging
  EXPECT_FALSE(stream->Read(&facts));
  EXPECT_FALSE(stream->Finish().ok());
}

using Stub = std::unique_ptr<v1alpha1::Agent::Stub>;

// Calls each method of the agent, and returns each result by the method's name.
std::map<std::string, grpc::Status> call_all(const Stub& stub, const std::string& pool) {
  std::map<std::string, grpc::Status> became;
  const auto call = [&became](const char* name, const auto& with) {
    grpc::ClientContext context;
    give_a_deadline(context);
    became[name] = with(context);
  };
  v1alpha1::Facts facts;
  call("Describe", [&](grpc::ClientContext& context) {
    v1alpha1::DescribeRequest request;
    request.set_pool_uid(pool);
    return stub->Describe(&context, request, &facts);
  });
  call("Watch", [&](grpc::ClientContext& context) {
    v1alpha1::WatchRequest request;
    request.set_pool_uid(pool);
    const auto stream = stub->Watch(&context, request);
    if (!stream->Read(&facts)) return stream->Finish();
    context.TryCancel();
    (void)stream->Finish();
    return grpc::Status::OK;
  });
  call("PublishMap", [&](grpc::ClientContext& context) {
    v1alpha1::PublishMapRequest request;
    request.mutable_map()->set_pool_uid(pool);
    request.mutable_map()->set_epoch(9);
    v1alpha1::PublishMapResponse response;
    return stub->PublishMap(&context, request, &response);
  });
  call("Fence", [&](grpc::ClientContext& context) {
    v1alpha1::FenceRequest request;
    request.set_pool_uid(pool);
    request.add_processes(1);
    v1alpha1::FenceResponse response;
    return stub->Fence(&context, request, &response);
  });
  call("Repair", [&](grpc::ClientContext& context) {
    v1alpha1::RepairRequest request;
    request.set_pool_uid(pool);
    request.add_processes(1);
    v1alpha1::RepairResponse response;
    return stub->Repair(&context, request, &response);
  });
  return became;
}

std::shared_ptr<grpc::ChannelCredentials> credentials_of(const net::TlsFiles& files) {
  auto provider = std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
      contents(files.ca),
      std::vector<grpc::experimental::IdentityKeyCertPair>{{contents(files.key), contents(files.cert)}});
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  // An agent is not identified by its host, so the check of the host's name is off; the CA's signature is still
  // checked.
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  return grpc::experimental::TlsCredentials(options);
}

Stub stub_of(const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("agent");
  return v1alpha1::Agent::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
}

TEST(Agent, EveryMethodRefusesARequestForAnotherPool) {
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(agent.ok()) << agent.status().message();
  const Stub stub = stub_of((*agent)->address(), grpc::InsecureChannelCredentials());
  for (const auto& [method, status] : call_all(stub, "pool-2")) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_NE(status.error_message().find("the request names pool pool-2"), std::string::npos)
        << method << ": " << status.error_message();
  }
  EXPECT_EQ(process.facts().epoch(), 3u) << "its map was published";
  EXPECT_EQ(process.calls(), 0u) << "the process was asked to fence, or to repair";
}

TEST(Agent, EveryMethodRefusesCallersThatAreNotThePoolsOperator) {
  Certificates certificates;
  const auto node = certificates.issue("node", "URI:farpool://pool-1/node/m0");
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = node}, process);
  ASSERT_TRUE(agent.ok()) << agent.status().message();
  struct Case {
    std::string name, names, why;
  };
  for (const Case& c :
       {Case{"client", "URI:farpool://pool-1/client/s0", "its role is client"},
        Case{"other", "URI:farpool://pool-2/operator/op", "its certificate is for another pool"},
        Case{"odd", "URI:spiffe://pool-1/operator/op", "its certificate's URI is not farpool://"},
        Case{"two", "URI:farpool://pool-1/client/s0,URI:farpool://pool-1/operator/op", "more than one URI"},
        Case{"two-the-other-way", "URI:farpool://pool-1/operator/op,URI:farpool://pool-1/client/s0",
             "more than one URI"},
        Case{"none", "DNS:farpool.example", "its certificate has no farpool URI"}}) {
    const Stub stub = stub_of((*agent)->address(), credentials_of(certificates.issue(c.name, c.names)));
    for (const auto& [method, status] : call_all(stub, kPool)) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << c.name << ", " << method;
      EXPECT_NE(status.error_message().find(c.why), std::string::npos)
          << c.name << ", " << method << ": " << status.error_message();
    }
  }
  EXPECT_EQ(process.facts().epoch(), 3u) << "a map was published";
  EXPECT_EQ(process.calls(), 0u) << "the process was asked to fence, or to repair";

  const Stub operators =
      stub_of((*agent)->address(), credentials_of(certificates.issue("good", "URI:farpool://pool-1/operator/op")));
  for (const auto& [method, status] : call_all(operators, kPool)) {
    const bool asked = method == "Repair";  // this process cannot
    EXPECT_EQ(status.error_code(), asked ? grpc::StatusCode::INVALID_ARGUMENT : grpc::StatusCode::OK) << method;
  }
  EXPECT_EQ(process.facts().epoch(), 9u);
  EXPECT_EQ(process.calls(), 2u);
  v1alpha1::Facts facts;
  EXPECT_FALSE(describe((*agent)->address(), grpc::InsecureChannelCredentials(), kPool, facts).ok())
      << "plaintext on a TLS agent";
}

TEST(Agent, ARepairNamesProcessesAsAFenceDoes) {
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(agent.ok());
  const Stub stub = stub_of((*agent)->address(), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  give_a_deadline(context);
  v1alpha1::RepairRequest request;
  request.set_pool_uid(kPool);
  request.add_processes(0);
  v1alpha1::RepairResponse response;
  EXPECT_EQ(stub->Repair(&context, request, &response).error_message(), "0 names no process");
  EXPECT_EQ(process.calls(), 0u);
}

TEST(Agent, HalfOfWhatTlsNeedsIsRefused) {
  Process process;
  for (const net::TlsFiles& half : {net::TlsFiles{"ca.crt", "node.crt", ""}, net::TlsFiles{"ca.crt", "", "node.key"},
                                    net::TlsFiles{"", "node.crt", "node.key"}}) {
    auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = half}, process);
    EXPECT_FALSE(agent.ok());
  }
  const net::TlsFiles missing{"/nowhere/ca.crt", "/nowhere/node.crt", "/nowhere/node.key"};
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = missing}, process);
  ASSERT_FALSE(agent.ok());
  EXPECT_NE(agent.status().message().find("/nowhere/"), std::string::npos) << agent.status().message();
}

}  // namespace
}  // namespace farpool::control
