// SPDX-License-Identifier: Apache-2.0
#include "control/web.h"

#include <microhttpd.h>
#include <netdb.h>
#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <list>
#include <string_view>
#include <utility>

#include "net/address.h"
#include "net/listener.h"

namespace farpool::control {
namespace {

using Clock = std::chrono::steady_clock;

// The process keeps few descriptors for this port. When one connection more comes, the oldest is closed.
constexpr unsigned kMostConnections = 16;
// Connections that are being closed have descriptors, too.
constexpr unsigned kMostDescriptors = 24;
// An older connection is closed when the next comes: its client sends or reads too slowly.
constexpr std::chrono::seconds kDeadline(10);
// A connection that moves no byte for so long is closed.
constexpr unsigned kIdleSeconds = 5;
// Each connection has so much memory for its request and for the headers of its answer.
constexpr std::size_t kBuffer = std::size_t{16} << 10;

struct Answer {
  unsigned status = 200;
  const char* type = "text/plain";
  std::string body;
};

struct AddressInfo {
  AddressInfo() = default;
  AddressInfo(const AddressInfo&) = delete;
  AddressInfo& operator=(const AddressInfo&) = delete;
  ~AddressInfo() {
    if (found != nullptr) freeaddrinfo(found);
  }
  addrinfo* found = nullptr;
};

}  // namespace

// libmicrohttpd serves all connections on one thread, which waits for none of them. A server with a thread for each
// connection would keep the kubelet out as soon as there are as many idle clients as threads.
struct Web::State {
  explicit State(Options options) : options(std::move(options)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (daemon != nullptr) MHD_stop_daemon(daemon);
  }

  base::Status listen() {
    auto parsed = net::Address::parse(options.listen);
    if (!parsed.ok()) return trouble(parsed.status().message());
    if (parsed->local()) return trouble("it takes a host and a port");
    if (parsed->host == "::" && !net::kernel_has_ipv6()) parsed->host = "0.0.0.0";
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    AddressInfo addresses;
    const int failed =
        getaddrinfo(parsed->host.c_str(), std::to_string(parsed->port).c_str(), &hints, &addresses.found);
    if (failed != 0) return trouble(gai_strerror(failed));

    const bool v6 = addresses.found->ai_family == AF_INET6;
    const unsigned flags = static_cast<unsigned>(MHD_USE_EPOLL_INTERNAL_THREAD) | MHD_USE_INTERNAL_POLLING_THREAD |
                           MHD_USE_ITC | (v6 ? static_cast<unsigned>(MHD_USE_DUAL_STACK) : 0);
    errno = 0;
    daemon = MHD_start_daemon(flags, parsed->port, nullptr, nullptr, &State::request, this,  //
                              MHD_OPTION_SOCK_ADDR, addresses.found->ai_addr,                //
                              MHD_OPTION_NOTIFY_CONNECTION, &State::connection, this,        //
                              MHD_OPTION_CONNECTION_LIMIT, kMostDescriptors, MHD_OPTION_CONNECTION_TIMEOUT,
                              kIdleSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, kBuffer, MHD_OPTION_END);
    if (daemon == nullptr) return trouble(errno != 0 ? std::strerror(errno) : "the web server does not start");
    parsed->port = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    address = parsed->text();
    return {};
  }

  base::Status trouble(const std::string& why) const {
    return {base::Code::unavailable,
            "the metrics port cannot listen on " + options.listen + ": " + why + "; choose another host:port"};
  }

  // The functions below run on the server's thread.
  Answer answer(std::string_view method, std::string_view path) const {
    if (method != "GET" && method != "HEAD") return {.status = 405, .body = "only GET is served here\n"};
    if (path == "/metrics") return metrics();
    if (path == "/healthz") return probe(options.alive);
    if (path == "/readyz") return probe(options.ready);
    return {.status = 404, .body = "there is /metrics, /healthz and /readyz\n"};
  }
  Answer metrics() const {
    std::vector<prometheus::MetricFamily> families;
    for (const auto& source : options.metrics) {
      std::vector<prometheus::MetricFamily> more = source->Collect();
      families.insert(families.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    }
    return {.type = "text/plain; version=0.0.4; charset=utf-8",
            .body = prometheus::TextSerializer().Serialize(families)};
  }
  static Answer probe(const Probe& probe) {
    const std::string trouble = probe ? probe() : std::string();
    return trouble.empty() ? Answer{.body = "ok\n"} : Answer{.status = 503, .body = trouble + "\n"};
  }

  // Answers a request when its headers are there. It waits for no body: nothing here reads one.
  static MHD_Result request(void* self, MHD_Connection* connection, const char* path, const char* method, const char*,
                            const char*, std::size_t*, void**) {
    Answer answer = static_cast<const State*>(self)->answer(method, path);
    MHD_Response* response =
        MHD_create_response_from_buffer(answer.body.size(), answer.body.data(), MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    const MHD_Result queued = MHD_queue_response(connection, answer.status, response);
    MHD_destroy_response(response);
    return queued;
  }

  struct Open {
    int socket = -1;
    Clock::time_point since;
  };
  // Notes that a connection has begun, or is about to be closed.
  static void connection(void* self, MHD_Connection* connection, void** context, MHD_ConnectionNotificationCode code) {
    auto& open = static_cast<State*>(self)->open;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
      open.remove_if([context](const Open& one) { return &one == *context; });
      return;
    }
    const auto now = Clock::now();
    open.push_back({MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd, now});
    *context = &open.back();
    // They end when the thread next looks at them.
    std::size_t younger = 0;
    for (auto one = open.rbegin(); one != open.rend(); ++one, ++younger) {
      if (younger >= kMostConnections || now - one->since > kDeadline) ::shutdown(one->socket, SHUT_RDWR);
    }
  }

  Options options;
  std::string address;
  MHD_Daemon* daemon = nullptr;
  std::list<Open> open;  // oldest first
};

base::Result<std::unique_ptr<Web>> Web::start(Options options) {
  auto state = std::make_unique<State>(std::move(options));
  if (base::Status status = state->listen(); !status.ok()) return status;
  return std::unique_ptr<Web>(new Web(std::move(state)));
}

Web::Web(std::unique_ptr<State> state) : state_(std::move(state)) {}
Web::~Web() = default;
const std::string& Web::address() const { return state_->address; }

}  // namespace farpool::control
