// SPDX-License-Identifier: Apache-2.0
#include "control/agent.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "farpool/v1alpha1/agent.grpc.pb.h"
#include "net/identity.h"

namespace farpool::control {
namespace {

using std::chrono::milliseconds;

constexpr int kMaxMessageBytes = 4 << 20;
constexpr unsigned kCertificateRefreshSeconds = 10;
constexpr auto kDefaultInterval = milliseconds(1000);
// A watch wakes at least this often to see whether its caller has gone.
constexpr auto kWatchPatience = milliseconds(500);
constexpr auto kShutdownGrace = milliseconds(500);
constexpr int kMaxWatches = 32;
constexpr auto kRepairMargin = milliseconds(200);
constexpr auto kLongestRepair = std::chrono::minutes(1);

std::string without_port(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

struct Agent::State final : v1alpha1::Agent::Service {
  State(Options options, Subject& subject) : options(std::move(options)), subject(subject) {}

  // Says whether the caller may speak to this pool's processes.
  grpc::Status admit(const grpc::ServerContext& context, const std::string& pool_uid) const {
    if (secured()) {
      std::optional<net::Identity> identity;
      for (const grpc::string_ref& uri : context.auth_context()->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
        if (identity.has_value()) return denied("its certificate has more than one URI");
        identity = net::parse_identity(std::string_view(uri.data(), uri.size()));
        if (!identity.has_value()) return denied("its certificate's URI is not farpool://<pool-uid>/<role>/<name>");
      }
      if (!identity.has_value()) return denied("its certificate has no farpool URI");
      if (identity->pool_uid != options.pool_uid) return denied("its certificate is for another pool");
      if (identity->role != net::kRoleOperator) return denied("its role is " + identity->role);
    }
    if (pool_uid != options.pool_uid) {
      return {grpc::StatusCode::INVALID_ARGUMENT,
              "this process belongs to pool " + options.pool_uid + ", the request names pool " + pool_uid};
    }
    return grpc::Status::OK;
  }
  static grpc::Status denied(const std::string& why) {
    return {grpc::StatusCode::PERMISSION_DENIED,
            "only the pool's operator may call the agent; the caller was refused because " + why};
  }
  bool secured() const { return !options.tls.cert.empty(); }

  grpc::Status Describe(grpc::ServerContext* context, const v1alpha1::DescribeRequest* request,
                        v1alpha1::Facts* facts) override {
    if (grpc::Status status = admit(*context, request->pool_uid()); !status.ok()) return status;
    *facts = subject.facts();
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1alpha1::WatchRequest* request,
                     grpc::ServerWriter<v1alpha1::Facts>* writer) override {
    if (grpc::Status status = admit(*context, request->pool_uid()); !status.ok()) return status;
    const auto interval = request->min_interval_ms() == 0 ? kDefaultInterval : milliseconds(request->min_interval_ms());
    std::unique_lock lock(mutex);
    if (watches >= kMaxWatches) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED,
              "there are already " + std::to_string(watches) + " watches; end one"};
    }
    ++watches;
    std::string last;  // what the caller knows, serialized: facts that mean the same are not sent again
    bool first = true;
    while (!stopping && !context->IsCancelled()) {
      const std::uint64_t seen = version;
      lock.unlock();
      v1alpha1::Facts facts = subject.facts();
      std::string bytes = facts.SerializeAsString();
      const bool sent = first || bytes != last;
      const bool alive = !sent || writer->Write(facts);
      lock.lock();
      if (!alive) break;
      first = false;
      last = std::move(bytes);
      if (sent) hold(lock, *context, interval);
      wake.wait_for(lock, kWatchPatience, [&] { return stopping || version != seen; });
    }
    --watches;
    if (stopping) return {grpc::StatusCode::UNAVAILABLE, "the process is shutting down"};
    return grpc::Status::OK;
  }
  // Waits for the interval between two messages.
  void hold(std::unique_lock<std::mutex>& lock, const grpc::ServerContext& context, milliseconds interval) {
    const auto until = std::chrono::steady_clock::now() + interval;
    while (!stopping && !context.IsCancelled()) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= until) return;
      wake.wait_for(lock, std::min<std::chrono::nanoseconds>(until - now, kWatchPatience), [&] { return stopping; });
    }
  }

  grpc::Status PublishMap(grpc::ServerContext* context, const v1alpha1::PublishMapRequest* request,
                          v1alpha1::PublishMapResponse* response) override {
    if (grpc::Status status = admit(*context, request->map().pool_uid()); !status.ok()) return status;
    const Subject::Published published = subject.publish(*request);
    response->set_epoch(published.epoch);
    switch (published.verdict) {
      case Subject::Verdict::adopted:
        return grpc::Status::OK;
      case Subject::Verdict::older_epoch:
        return {grpc::StatusCode::FAILED_PRECONDITION, published.message};
      case Subject::Verdict::conflicting:
        return {grpc::StatusCode::ALREADY_EXISTS, published.message};
      case Subject::Verdict::invalid:
        return {grpc::StatusCode::INVALID_ARGUMENT, published.message};
      case Subject::Verdict::unsupported:
        return {grpc::StatusCode::UNIMPLEMENTED, published.message};
      case Subject::Verdict::unavailable:
        break;
    }
    return {grpc::StatusCode::UNAVAILABLE, published.message};
  }

  static grpc::Status check(const google::protobuf::RepeatedField<std::uint64_t>& processes) {
    if (processes.size() > kMaxProcesses) {
      return {grpc::StatusCode::INVALID_ARGUMENT, std::to_string(processes.size()) + " processes are named, at most " +
                                                      std::to_string(kMaxProcesses) + " may be: ask in batches"};
    }
    for (const std::uint64_t process : processes) {
      if (process == 0) return {grpc::StatusCode::INVALID_ARGUMENT, "0 names no process"};
    }
    return grpc::Status::OK;
  }
  static grpc::Status status_of(const base::Status& status) {
    if (status.ok()) return grpc::Status::OK;
    return {status.code() == base::Code::invalid_argument ? grpc::StatusCode::INVALID_ARGUMENT
                                                          : grpc::StatusCode::UNAVAILABLE,
            status.message()};
  }

  grpc::Status Fence(grpc::ServerContext* context, const v1alpha1::FenceRequest* request,
                     v1alpha1::FenceResponse* response) override {
    if (grpc::Status status = admit(*context, request->pool_uid()); !status.ok()) return status;
    if (grpc::Status status = check(request->processes()); !status.ok()) return status;
    const auto fenced = subject.fence(*request);
    if (fenced.ok()) *response = *fenced;
    return status_of(fenced.status());
  }

  grpc::Status Repair(grpc::ServerContext* context, const v1alpha1::RepairRequest* request,
                      v1alpha1::RepairResponse* response) override {
    if (grpc::Status status = admit(*context, request->pool_uid()); !status.ok()) return status;
    if (grpc::Status status = check(request->processes()); !status.ok()) return status;
    // The response tells what is left when the caller's deadline is near; otherwise that would be lost with the call.
    const auto left = std::clamp<std::chrono::nanoseconds>(
        context->deadline() - std::chrono::system_clock::now() - kRepairMargin, kRepairMargin, kLongestRepair);
    const auto repaired = subject.repair(*request, std::chrono::steady_clock::now() + left);
    if (repaired.ok()) *response = *repaired;
    return status_of(repaired.status());
  }

  std::shared_ptr<grpc::ServerCredentials> credentials() const {
    if (!secured()) return grpc::InsecureServerCredentials();
    auto files = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
        options.tls.key, options.tls.cert, options.tls.ca, kCertificateRefreshSeconds);
    grpc::experimental::TlsServerCredentialsOptions tls(files);
    tls.watch_root_certs();
    tls.watch_identity_key_cert_pairs();
    tls.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    return grpc::experimental::TlsServerCredentials(tls);
  }

  base::Status serve() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second process on the port is an error, not a partner
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 2 * kMaxWatches);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               static_cast<int>(options.shortest_ping_interval.count()));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddListeningPort(options.listen, credentials(), &port);
    builder.RegisterService(this);
    server = builder.BuildAndStart();
    if (server == nullptr || port == 0) {
      return {base::Code::unavailable, "the agent cannot listen on " + options.listen +
                                           ": the address is in use or not of this machine; choose another"};
    }
    address = without_port(options.listen) + ":" + std::to_string(port);
    return {};
  }

  // Ends what serve() began.
  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    server->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    server->Wait();
  }

  const Options options;
  Subject& subject;
  std::unique_ptr<grpc::Server> server;
  std::string address;

  std::mutex mutex;
  std::condition_variable wake;
  std::uint64_t version = 0;
  int watches = 0;
  bool stopping = false;
};

base::Result<std::unique_ptr<Agent>> Agent::start(Options options, Subject& subject) {
  const net::TlsFiles& tls = options.tls;
  if (tls.cert.empty() != tls.key.empty() || tls.cert.empty() != tls.ca.empty()) {
    return base::Status(base::Code::invalid_argument, "the agent needs CA, certificate and key, or none of them");
  }
  if (!tls.cert.empty()) {
    // gRPC does not report files that it cannot use, so they are tried here first.
    if (auto loaded = net::Tls::load(tls, net::Tls::Kind::mutual); !loaded.ok()) return loaded.status();
  }
  auto state = std::make_unique<State>(std::move(options), subject);
  if (base::Status status = state->serve(); !status.ok()) return status;
  return std::unique_ptr<Agent>(new Agent(std::move(state)));
}

Agent::Agent(std::unique_ptr<State> state) : state_(std::move(state)) {}
Agent::~Agent() { state_->stop(); }
const std::string& Agent::address() const { return state_->address; }

void Agent::changed() {
  {
    const std::lock_guard lock(state_->mutex);
    ++state_->version;
  }
  state_->wake.notify_all();
}

}  // namespace farpool::control
