// SPDX-License-Identifier: Apache-2.0
#include "apps/settings.h"

#include <arpa/inet.h>
#include <spdlog/async.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <asio/signal_set.hpp>
#include <charconv>
#include <iostream>
#include <limits>
#include <utility>
#include <vector>

#include "net/address.h"
#include "net/signing_key.h"

#ifndef FARPOOL_VERSION
#error "FARPOOL_VERSION is set by CMake"
#endif

namespace farpool::apps {
namespace {

using base::Code;
using base::Result;
using base::Status;

struct Unit {
  const char* suffix;
  std::uint64_t factor;
};

Result<std::uint64_t> parse_with_units(const std::string& text, const std::vector<Unit>& units, const char* form) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && rest != text.data()) {
    for (const Unit& unit : units) {
      if (std::string(rest, end) != unit.suffix) continue;
      if (number > std::numeric_limits<std::int64_t>::max() / unit.factor) break;
      return number * unit.factor;
    }
  }
  return Status(Code::invalid_argument, "\"" + text + "\" is not " + form);
}

// Writes one JSON object a line; spdlog's %v is not escaped, so a formatter flag does that.
class EscapedMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    static constexpr char kHex[] = "0123456789abcdef";
    for (const char c : message.payload) {
      if (c == '"' || c == '\\') {
        out.push_back('\\');
        out.push_back(c);
      } else if (static_cast<unsigned char>(c) < 0x20) {
        for (const char e : {'\\', 'u', '0', '0', kHex[c >> 4 & 15], kHex[c & 15]}) out.push_back(e);
      } else {
        out.push_back(c);
      }
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<EscapedMessage>(); }
};

}  // namespace

Result<std::uint64_t> parse_size(const std::string& text) {
  return parse_with_units(text, {{"", 1}, {"Ki", 1ull << 10}, {"Mi", 1ull << 20}, {"Gi", 1ull << 30}},
                          "a size: digits, then nothing, Ki, Mi or Gi");
}

Result<base::Nanos> parse_duration(const std::string& text) {
  auto parsed = parse_with_units(text, {{"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}, {"m", 60'000'000'000}},
                                 "a duration: digits, then us, ms, s or m");
  if (!parsed.ok()) return parsed.status();
  return static_cast<base::Nanos>(*parsed);
}

void add_size(CLI::App& app, const std::string& flag, std::uint64_t& into, const std::string& what) {
  app.add_option_function<std::string>(
         flag,
         [&into, flag](const std::string& text) {
           auto parsed = parse_size(text);
           if (!parsed.ok()) throw CLI::ValidationError(flag, parsed.status().message());
           into = *parsed;
         },
         what)
      ->type_name("SIZE");
}

void add_duration(CLI::App& app, const std::string& flag, base::Nanos& into, const std::string& what) {
  app.add_option_function<std::string>(
         flag,
         [&into, flag](const std::string& text) {
           auto parsed = parse_duration(text);
           if (!parsed.ok()) throw CLI::ValidationError(flag, parsed.status().message());
           into = *parsed;
         },
         what)
      ->type_name("DURATION");
}

void add_common(CLI::App& app, CommonSettings& settings) {
  app.add_option("--name", settings.name, "name of this process; unique in the pool")
      ->required()
      ->check([](const std::string& name) {
        return name.empty() || name.size() > 253 ? std::string("must have 1 to 253 characters") : std::string();
      });
  app.add_option("--pool-uid", settings.pool_uid, "uid of the KVPool")->required();
  app.add_option("--tls-ca", settings.tls.ca,
                 "PEM file of the pool's CA; the three files are read again when they change");
  app.add_option("--tls-cert", settings.tls.cert, "PEM file of this process's certificate");
  app.add_option("--tls-key", settings.tls.key, "PEM file of its key");
  app.add_option_function<std::string>(
         "--map-key",
         [&settings](const std::string& text) {
           auto key = net::ed25519_key(text);
           if (!key.ok()) throw CLI::ValidationError("--map-key", key.status().message());
           settings.map_key = std::move(*key);
         },
         "base64 of the operator's public Ed25519 key: shard maps that it has not signed are refused, and names have "
         "to "
         "be those of certificates; without it, neither is checked")
      ->type_name("BASE64");
  app.add_flag("--insecure-plaintext", settings.insecure_plaintext, "no TLS and no authentication: local use only");
  app.add_option("--agent-listen", settings.agent_listen, "host:port of the agent, or none")->capture_default_str();
  add_process(app, settings);
}

void add_process(CLI::App& app, CommonSettings& settings) {
  app.add_option("--metrics-listen", settings.metrics_listen, "host:port of /metrics, /healthz and /readyz, or none")
      ->capture_default_str();
  app.add_option("--log-level", settings.log_level)
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
  app.add_option("--log-format", settings.log_format)->check(CLI::IsMember({"json", "text"}))->capture_default_str();
  app.set_config("--config", "", "TOML file with the flags' names as keys; the command line wins");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.set_version_flag("--version", std::string("farpool " FARPOOL_VERSION));
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return std::nullopt;
}

Result<std::string> advertised(const std::string& flag, const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  in6_addr number{};
  if (colon != std::string::npos && ::inet_pton(AF_INET6, host.c_str(), &number) == 1) host = "[" + host + "]";
  const auto parsed = net::Address::parse(colon == std::string::npos ? address : host + address.substr(colon));
  if (!parsed.ok()) return Status(Code::invalid_argument, flag + ": " + parsed.status().message());
  if (parsed->local() || parsed->port == 0 || parsed->host == "0.0.0.0" || parsed->host == "::") {
    return Status(Code::invalid_argument,
                  "clients cannot reach " + parsed->text() + ": give " + flag + " host:port or [v6]:port");
  }
  return parsed->text();
}

Result<std::shared_ptr<net::Tls>> load_tls(const CommonSettings& settings) {
  const net::TlsFiles& files = settings.tls;
  const bool any = !files.ca.empty() || !files.cert.empty() || !files.key.empty();
  if (settings.insecure_plaintext) {
    if (any) return Status(Code::invalid_argument, "--insecure-plaintext and --tls-* exclude each other: drop one");
    return std::shared_ptr<net::Tls>();
  }
  if (files.ca.empty() || files.cert.empty() || files.key.empty()) {
    return Status(
        Code::invalid_argument,
        "--tls-ca, --tls-cert and --tls-key are all needed; for local use without TLS give --insecure-plaintext");
  }
  return net::Tls::load(files, net::Tls::Kind::mutual);
}

void start_logging(const CommonSettings& settings) {
  spdlog::init_thread_pool(8192, 1);
  // The newest lines matter most and no operation may wait for a log: when the queue is full the oldest go.
  auto logger =
      std::make_shared<spdlog::async_logger>(settings.name, std::make_shared<spdlog::sinks::stderr_sink_mt>(),
                                             spdlog::thread_pool(), spdlog::async_overflow_policy::overrun_oldest);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<EscapedMessage>('*');
  formatter->set_pattern(settings.log_format == "json"
                             ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","name":"%n","message":"%*"})"
                             : "%H:%M:%S.%e %L %n %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(settings.log_level));
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(logger);
  spdlog::flush_every(std::chrono::seconds(1));
}

void stop_logging() { spdlog::shutdown(); }

void on_signal(net::Loop& loop, std::function<void(int)> what) {
  auto signals = std::make_shared<asio::signal_set>(loop.context(), SIGTERM, SIGINT);
  signals->async_wait([signals, what = std::move(what)](const asio::error_code& error, int number) {
    if (error) return;
    signals->async_wait([signals](const asio::error_code& again, int) {
      if (!again) std::_Exit(1);
    });
    what(number);
  });
}

int fail(const std::string& program, const Status& status) {
  std::cerr << program << ": " << status.message() << "\n";
  return status.code() == Code::invalid_argument ? 2 : 1;
}

}  // namespace farpool::apps
