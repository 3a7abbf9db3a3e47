// SPDX-License-Identifier: Apache-2.0
#include "control/agent.h"

#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "farpool/v1alpha1/agent.grpc.pb.h"

namespace farpool::control {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
constexpr char kPool[] = "pool-1";
constexpr auto kPatience = std::chrono::seconds(20);

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
    looks_.push_back(Clock::now());
    looked_.notify_all();
    v1alpha1::Facts facts;
    facts.set_pool_uid(kPool);
    facts.set_role(v1alpha1::ROLE_MEMORY_NODE);
    facts.set_epoch(epoch_);
    return facts;
  }
  Published publish(const v1alpha1::PublishMapRequest& request) override {
    const std::lock_guard lock(mutex_);
    if (answer_) return *answer_;
    if (request.map().epoch() < epoch_) return {Verdict::older_epoch, epoch_, "holds a newer epoch"};
    epoch_ = request.map().epoch();
    return {Verdict::adopted, epoch_, ""};
  }
  base::Result<v1alpha1::FenceResponse> fence(const v1alpha1::FenceRequest& request) override {
    const std::lock_guard lock(mutex_);
    ++calls_;
    if (!fails_.ok()) return fails_;
    v1alpha1::FenceResponse response;
    response.set_sessions(static_cast<std::uint32_t>(request.processes_size()));
    return response;
  }
  base::Result<v1alpha1::RepairResponse> repair(const v1alpha1::RepairRequest&, Clock::time_point deadline) override {
    const std::lock_guard lock(mutex_);
    ++calls_;
    patience_ = deadline - Clock::now();
    if (!fails_.ok()) return fails_;
    v1alpha1::RepairResponse response;
    response.add_nodes()->set_slots_left(5);
    return response;
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
  std::uint64_t epoch() const {
    const std::lock_guard lock(mutex_);
    return epoch_;
  }
  // Returns when the agent has asked for the facts.
  std::vector<Clock::time_point> looks() const {
    const std::lock_guard lock(mutex_);
    return looks_;
  }
  // Waits until the agent has asked for the facts so many times.
  bool wait_for_looks(std::size_t count) const {
    std::unique_lock lock(mutex_);
    return looked_.wait_for(lock, kPatience, [&] { return looks_.size() >= count; });
  }
  void set_epoch(std::uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    epoch_ = epoch;
  }
  void publish_says(Published answer) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }
  // Fence and repair fail from now on.
  void fail_with(base::Status status) {
    const std::lock_guard lock(mutex_);
    fails_ = std::move(status);
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable looked_;
  mutable std::vector<Clock::time_point> looks_;
  std::uint64_t epoch_ = 3;
  std::uint64_t calls_ = 0;
  std::chrono::nanoseconds patience_{};
  std::optional<Published> answer_;
  base::Status fails_;
};

void give_a_deadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
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
  EXPECT_TRUE(stub->Repair(&context, request, &response).ok());
  ASSERT_EQ(response.nodes_size(), 1);
  EXPECT_EQ(response.nodes(0).slots_left(), 5u);
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

using Stub = std::unique_ptr<v1alpha1::Agent::Stub>;

// A watch of an agent's facts.
class Watching {
 public:
  Watching(const Stub& stub, milliseconds interval) {
    give_a_deadline(context_);
    v1alpha1::WatchRequest request;
    request.set_pool_uid(kPool);
    request.set_min_interval_ms(static_cast<std::uint32_t>(interval.count()));
    reader_ = stub->Watch(&context_, request);
  }
  // Returns the epoch in the next facts; nothing: the watch has ended.
  std::optional<std::uint64_t> next() {
    v1alpha1::Facts facts;
    if (!reader_->Read(&facts)) return std::nullopt;
    return facts.epoch();
  }
  grpc::Status finish() { return reader_->Finish(); }
  void cancel() {
    context_.TryCancel();
    (void)finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1alpha1::Facts>> reader_;
};

Stub plain_stub(const std::string& address) {
  return v1alpha1::Agent::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

// A watch that slept until its patience ends would need half a second for each change, and one that held back what it
// does not send would need the interval. Most changes come while the watch waits, because other calls are answered
// before them.
TEST(Agent, AWatchLooksAtOnceAfterAChangeAndSendsOnlyWhatDiffers) {
  constexpr int kChanges = 40;
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(agent.ok());
  const Stub stub = plain_stub((*agent)->address());
  Watching watch(stub, milliseconds(100));
  EXPECT_EQ(watch.next(), 3u);
  const auto began = Clock::now();
  for (int i = 0; i < kChanges; ++i) {
    const std::size_t before = process.looks().size();
    (*agent)->changed();
    ASSERT_TRUE(process.wait_for_looks(before + 1));
    for (int calls = 0; calls < 5; ++calls) {
      grpc::ClientContext context;
      give_a_deadline(context);
      v1alpha1::FenceRequest request;
      request.set_pool_uid(kPool);
      v1alpha1::FenceResponse response;
      ASSERT_TRUE(stub->Fence(&context, request, &response).ok());
    }
  }
  const auto took = Clock::now() - began;
  EXPECT_LT(took, std::chrono::seconds(3));
  EXPECT_LE(process.looks().size(), 1u + kChanges + static_cast<std::size_t>(took / milliseconds(500)) + 1)
      << "it looked when nothing had changed";
  process.set_epoch(7);
  (*agent)->changed();
  EXPECT_EQ(watch.next(), 7u) << "facts that mean the same were sent";
  watch.cancel();
}

TEST(Agent, AWatchSendsNoMoreOftenThanItsCallerWants) {
  constexpr milliseconds kInterval(200);
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(agent.ok());
  const Stub stub = plain_stub((*agent)->address());
  Watching watch(stub, kInterval);
  EXPECT_EQ(watch.next(), 3u);
  process.set_epoch(4);
  (*agent)->changed();
  EXPECT_EQ(watch.next(), 4u);
  const auto looks = process.looks();
  ASSERT_EQ(looks.size(), 2u);
  EXPECT_GE(looks[1] - looks[0], kInterval);
  watch.cancel();
}

// Each would take half a second, if the watch slept on. One waits for its interval, another for a change.
TEST(Agent, AnAgentThatEndsTellsItsWatchersAtOnce) {
  std::chrono::nanoseconds took{};
  for (int i = 0; i < 8; ++i) {
    Process process;
    auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
    ASSERT_TRUE(agent.ok());
    const Stub stub = plain_stub((*agent)->address());
    Watching watch(stub, i % 2 == 0 ? std::chrono::hours(1) : milliseconds(1));
    EXPECT_EQ(watch.next(), 3u);
    const auto began = Clock::now();
    (*agent).reset();
    took += Clock::now() - began;
    EXPECT_EQ(watch.next(), std::nullopt);
    const grpc::Status status = watch.finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(status.error_message(), "the process is shutting down");
  }
  EXPECT_LT(took, std::chrono::seconds(2));
}

TEST(Agent, WatchesAreBoundedInNumber) {
  constexpr int kMost = 32;
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(agent.ok());
  const Stub stub = plain_stub((*agent)->address());
  std::vector<std::unique_ptr<Watching>> watches;
  for (int i = 0; i < kMost; ++i) {
    watches.push_back(std::make_unique<Watching>(stub, milliseconds(1)));
    ASSERT_EQ(watches.back()->next(), 3u) << i;
  }
  Watching refused(stub, milliseconds(1));
  EXPECT_EQ(refused.next(), std::nullopt);
  const grpc::Status status = refused.finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "there are already 32 watches; end one");
  watches.back()->cancel();
  watches.pop_back();
  bool again = false;
  for (const auto until = Clock::now() + kPatience; !again && Clock::now() < until;) {
    (*agent)->changed();  // the agent sees a caller that has gone when it looks
    Watching another(stub, milliseconds(1));
    again = another.next() == 3u;
    another.cancel();
  }
  EXPECT_TRUE(again) << "a watch that has ended still counts";
  for (const auto& watch : watches) watch->cancel();
}

TEST(Agent, AMapsAnswerIsAStatus) {
  using Verdict = Subject::Verdict;
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(agent.ok());
  const Stub stub = plain_stub((*agent)->address());
  for (const auto& [verdict, code] : {std::pair{Verdict::adopted, grpc::StatusCode::OK},
                                      std::pair{Verdict::older_epoch, grpc::StatusCode::FAILED_PRECONDITION},
                                      std::pair{Verdict::conflicting, grpc::StatusCode::ALREADY_EXISTS},
                                      std::pair{Verdict::invalid, grpc::StatusCode::INVALID_ARGUMENT},
                                      std::pair{Verdict::unsupported, grpc::StatusCode::UNIMPLEMENTED},
                                      std::pair{Verdict::unavailable, grpc::StatusCode::UNAVAILABLE}}) {
    const bool adopted = verdict == Verdict::adopted;
    process.publish_says({verdict, 12, adopted ? "" : "the reason"});
    grpc::ClientContext context;
    give_a_deadline(context);
    v1alpha1::PublishMapRequest request;
    request.mutable_map()->set_pool_uid(kPool);
    v1alpha1::PublishMapResponse response;
    const grpc::Status status = stub->PublishMap(&context, request, &response);
    EXPECT_EQ(status.error_code(), code);
    EXPECT_EQ(status.error_message(), adopted ? "" : "the reason");
    if (adopted) EXPECT_EQ(response.epoch(), 12u);
  }
}

// Speaks HTTP/2 as far as the agent's settings show in it.
class RawHttp2 {
 public:
  struct Frame {
    std::uint8_t type = 0, flags = 0;
    std::string payload;
  };
  static constexpr std::uint8_t kSettings = 4, kPing = 6, kAck = 1;

  explicit RawHttp2(const std::string& address) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    send({.type = kSettings, .flags = 0, .payload = ""});
  }
  RawHttp2(const RawHttp2&) = delete;
  ~RawHttp2() { ::close(socket_); }

  // Sends a frame of the connection itself.
  void send(const Frame& frame) const {
    std::string bytes(9, '\0');
    bytes[2] = static_cast<char>(frame.payload.size());
    bytes[3] = static_cast<char>(frame.type);
    bytes[4] = static_cast<char>(frame.flags);
    say(bytes + frame.payload);
  }
  // Returns the next frame of a type, with the flags; nothing: the agent has closed the connection before.
  std::optional<Frame> next(std::uint8_t type, std::uint8_t flags) const {
    for (;;) {
      const auto header = hear(9);
      if (!header) return std::nullopt;
      const auto byte = [&header](std::size_t i) { return std::size_t{static_cast<std::uint8_t>((*header)[i])}; };
      auto payload = hear(byte(0) << 16 | byte(1) << 8 | byte(2));
      if (!payload) return std::nullopt;
      if (byte(3) == type && byte(4) == flags) return Frame{type, flags, *std::move(payload)};
    }
  }

 private:
  void say(const std::string& bytes) const { (void)::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  std::optional<std::string> hear(std::size_t count) const {
    std::string bytes(count, '\0');
    for (std::size_t got = 0; got < count;) {
      const ssize_t n = ::recv(socket_, bytes.data() + got, count - got, 0);
      if (n <= 0) return std::nullopt;
      got += static_cast<std::size_t>(n);
    }
    return bytes;
  }
  int socket_ = -1;
};

TEST(Agent, AConnectionHasRoomForTwiceAsManyCallsAsWatches) {
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(agent.ok());
  const RawHttp2 connection((*agent)->address());
  const auto settings = connection.next(RawHttp2::kSettings, 0);
  ASSERT_TRUE(settings.has_value());
  const std::string most("\0\3\0\0\0\100", 6);  // SETTINGS_MAX_CONCURRENT_STREAMS, 64
  bool said = false;
  for (std::size_t at = 0; at + 6 <= settings->payload.size(); at += 6) {
    said = said || settings->payload.substr(at, 6) == most;
  }
  EXPECT_TRUE(said);
}

// gRPC cuts a connection off after a few pings that come too early.
TEST(Agent, PingsOfAnIdleConnectionAreAnswered) {
  constexpr milliseconds kShortest(1);
  Process process;
  auto agent = Agent::start(
      {.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}, .shortest_ping_interval = kShortest}, process);
  ASSERT_TRUE(agent.ok());
  const RawHttp2 connection((*agent)->address());
  for (int i = 0; i < 10; ++i) {
    const auto next = Clock::now() + 5 * kShortest;
    connection.send({.type = RawHttp2::kPing, .flags = 0, .payload = "12345678"});
    ASSERT_TRUE(connection.next(RawHttp2::kPing, RawHttp2::kAck).has_value()) << "ping " << i;
    while (Clock::now() < next) std::this_thread::yield();
  }
}

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
  EXPECT_EQ(process.epoch(), 3u) << "its map was published";
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
  EXPECT_EQ(process.epoch(), 3u) << "a map was published";
  EXPECT_EQ(process.calls(), 0u) << "the process was asked to fence, or to repair";

  const Stub operators =
      stub_of((*agent)->address(), credentials_of(certificates.issue("good", "URI:farpool://pool-1/operator/op")));
  for (const auto& [method, status] : call_all(operators, kPool)) {
    EXPECT_TRUE(status.ok()) << method << ": " << status.error_message();
  }
  EXPECT_EQ(process.epoch(), 9u);
  EXPECT_EQ(process.calls(), 2u);
  v1alpha1::Facts facts;
  EXPECT_FALSE(describe((*agent)->address(), grpc::InsecureChannelCredentials(), kPool, facts).ok())
      << "plaintext on a TLS agent";
}

TEST(Agent, WhatAProcessCannotDoIsSaid) {
  Process process;
  auto agent = Agent::start({.listen = "127.0.0.1:0", .pool_uid = kPool, .tls = {}}, process);
  ASSERT_TRUE(agent.ok());
  const Stub stub = plain_stub((*agent)->address());
  for (const auto& [code, want] : {std::pair{base::Code::invalid_argument, grpc::StatusCode::INVALID_ARGUMENT},
                                   std::pair{base::Code::unavailable, grpc::StatusCode::UNAVAILABLE}}) {
    process.fail_with({code, "ask somebody else"});
    auto became = call_all(stub, kPool);
    for (const char* method : {"Fence", "Repair"}) {
      EXPECT_EQ(became[method].error_code(), want) << method;
      EXPECT_EQ(became[method].error_message(), "ask somebody else") << method;
    }
  }
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
