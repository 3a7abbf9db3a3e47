// SPDX-License-Identifier: Apache-2.0
#include "control/web.h"

#include <civetweb.h>
#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <iterator>
#include <mutex>
#include <string_view>
#include <utility>

namespace farpool::control {
namespace {

void initialise_once() {
  static std::once_flag once;
  std::call_once(once, [] { mg_init_library(0); });
}

int answer(mg_connection* connection, int status, const std::string& type, const std::string& body) {
  mg_response_header_start(connection, status);
  mg_response_header_add(connection, "Content-Type", type.c_str(), -1);
  mg_response_header_add(connection, "Content-Length", std::to_string(body.size()).c_str(), -1);
  mg_response_header_add(connection, "Connection", "close", -1);
  mg_response_header_send(connection);
  mg_write(connection, body.data(), body.size());
  return status;
}

}  // namespace

struct Web::State {
  explicit State(Options options) : options(std::move(options)) {}
  ~State() {
    if (context != nullptr) mg_stop(context);
  }

  int metrics(mg_connection* connection) const {
    std::vector<prometheus::MetricFamily> families;
    for (const auto& source : options.metrics) {
      std::vector<prometheus::MetricFamily> more = source->Collect();
      families.insert(families.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    }
    return answer(connection, 200, "text/plain; version=0.0.4; charset=utf-8",
                  prometheus::TextSerializer().Serialize(families));
  }
  static int probe(mg_connection* connection, const Probe& probe) {
    const std::string trouble = probe ? probe() : std::string();
    return trouble.empty() ? answer(connection, 200, "text/plain", "ok\n")
                           : answer(connection, 503, "text/plain", trouble + "\n");
  }
  static int route(mg_connection* connection, void* self) {
    const State& state = *static_cast<State*>(self);
    const mg_request_info& request = *mg_get_request_info(connection);
    const std::string_view path = request.local_uri, method = request.request_method;
    if (method != "GET" && method != "HEAD") return answer(connection, 405, "text/plain", "only GET is served here\n");
    if (path == "/metrics") return state.metrics(connection);
    if (path == "/healthz") return probe(connection, state.options.alive);
    if (path == "/readyz") return probe(connection, state.options.ready);
    return answer(connection, 404, "text/plain", "there is /metrics, /healthz and /readyz\n");
  }

  base::Status serve() {
    initialise_once();
    // Civetweb wants no host for "all addresses".
    std::string port = options.listen;
    if (port.starts_with("0.0.0.0:")) port = port.substr(port.rfind(':') + 1);
    const std::array<const char*, 11> settings{
        "listening_ports", port.c_str(), "num_threads", "3", "request_timeout_ms", "5000", "linger_timeout_ms", "0",
        "tcp_nodelay",     "1",          nullptr};
    mg_callbacks callbacks{};
    callbacks.log_message = [](const mg_connection*, const char*) { return 1; };
    context = mg_start(&callbacks, this, const_cast<const char**>(settings.data()));
    mg_server_port bound{};
    if (context == nullptr || mg_get_server_ports(context, 1, &bound) != 1) {
      return {base::Code::unavailable,
              "the metrics port cannot listen on " + options.listen +
                  ": the address is in use, not of this machine, or no host:port; choose another"};
    }
    address = options.listen.substr(0, options.listen.rfind(':')) + ":" + std::to_string(bound.port);
    mg_set_request_handler(context, "/", &State::route, this);
    return {};
  }

  Options options;
  std::string address;
  mg_context* context = nullptr;
};

base::Result<std::unique_ptr<Web>> Web::start(Options options) {
  auto state = std::make_unique<State>(std::move(options));
  if (base::Status status = state->serve(); !status.ok()) return status;
  return std::unique_ptr<Web>(new Web(std::move(state)));
}

Web::Web(std::unique_ptr<State> state) : state_(std::move(state)) {}
Web::~Web() = default;
const std::string& Web::address() const { return state_->address; }

}  // namespace farpool::control
