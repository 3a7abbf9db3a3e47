// SPDX-License-Identifier: Apache-2.0
// farpool-swordbox: a middlebox between two interfaces, or between two files.
#include <prometheus/collectable.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "apps/daemon.h"
#include "apps/files.h"
#include "apps/samples.h"
#include "apps/settings.h"
#include "apps/swordbox_flags.h"
#include "net/loop.h"
#include "swordbox/shell/capture.h"
#include "swordbox/shell/replay.h"
#include "swordbox/shell/shell.h"

namespace farpool::apps {
namespace {

using base::Result;
using base::Status;

constexpr char kProgram[] = "farpool-swordbox";
constexpr base::Nanos kLongestSilence = 30 * base::kSecond;

void log(bool warning, const std::string& line) {
  spdlog::log(warning ? spdlog::level::warn : spdlog::level::info, "{}", line);
}

// Answers probes and scrapes, on threads of their own.
class Process final : public prometheus::Collectable {
 public:
  explicit Process(const swordbox::Shell& shell) : shell_(shell) {}

  std::string alive() const {
    const base::Nanos silence = net::Loop::now() - shell_.snapshot().turned;
    if (silence < kLongestSilence) return {};
    return "the loop has not turned for " + std::to_string(silence / base::kSecond) + " s";
  }
  std::string ready() const {
    const std::string trouble = shell_.snapshot().trouble;
    return trouble.empty() ? alive() : trouble;
  }
  std::vector<prometheus::MetricFamily> Collect() const override {
    const swordbox::Shell::Snapshot now = shell_.snapshot();
    Samples samples;
    samples.gauge("farpool_swordbox_ready", "1 if both interfaces pass frames.", now.trouble.empty());
    samples.counters("farpool_swordbox_", swordbox::kBoxCounts, now.box);
    samples.counters("farpool_swordbox_", swordbox::kShellCounts, now.shell);
    // Families have to follow each other sample by sample.
    for (const auto& count : swordbox::kLinkCounts) {
      for (const auto& [side, link] : {std::pair("clients", now.links[0]), std::pair("servers", now.links[1])}) {
        samples.counter("farpool_swordbox_frames_" + std::string(count.name) + "_total", std::string(count.help),
                        link.*count.value, {{"side", side}});
      }
    }
    return samples.take();
  }

 private:
  const swordbox::Shell& shell_;
};

Result<std::unique_ptr<swordbox::Capture>> start_capture(const SwordboxSettings& settings) {
  if (settings.capture.empty()) return std::unique_ptr<swordbox::Capture>();
  const auto wall =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch());
  return swordbox::Capture::start({.path = settings.capture,
                                   .client = *settings.capture_client,
                                   .server = *settings.capture_server,
                                   .client_queue_pair = settings.capture_client_queue_pair,
                                   .server_queue_pair = settings.capture_server_queue_pair,
                                   .most_bytes = settings.capture_bytes,
                                   .epoch = wall.count() - net::Loop::now(),
                                   .log = log});
}

int run(const SwordboxSettings& settings) {
  net::Loop loop;
  auto capture = start_capture(settings);
  if (!capture.ok()) return fail(kProgram, capture.status());
  auto shell = swordbox::Shell::start(loop, {.clients = settings.clients_interface,
                                             .servers = settings.servers_interface,
                                             .box = settings.box,
                                             .capture = std::move(*capture),
                                             .log = log});
  if (!shell.ok()) return fail(kProgram, shell.status());
  on_signal(loop, [&](int number) {
    spdlog::info("the box ends on signal {}: nothing passes between {} and {} any more", number,
                 settings.clients_interface, settings.servers_interface);
    loop.stop();
  });
  auto web = start_web(settings.common, std::make_shared<Process>(**shell));
  if (!web.ok()) return fail(kProgram, web.status());
  spdlog::info("stands between {} (clients) and {} (servers), with {} ranges", settings.clients_interface,
               settings.servers_interface, settings.box.ranges.size());
  loop.run();
  web->reset();
  return 0;
}

int replay(const SwordboxSettings& settings) {
  const std::string file = read_file(settings.replay);
  if (file.empty()) return fail(kProgram, {base::Code::unavailable, settings.replay + " cannot be read, or is empty"});
  std::optional<swordbox::PcapFile> output;
  if (!settings.output.empty()) {
    auto created = swordbox::PcapFile::create(settings.output);
    if (!created.ok()) return fail(kProgram, created.status());
    output = std::move(*created);
  }
  const auto result = swordbox::replay(
      base::bytes_of(std::string_view(file)), settings.box,
      [&](base::Nanos time, base::Bytes frame) { return output ? output->add(time, frame) : Status(); });
  if (!result.ok()) return fail(kProgram, {result.status().code(), settings.replay + ": " + result.status().message()});
  if (output) {
    if (Status status = output->finish(); !status.ok()) return fail(kProgram, status);
  }
  std::printf("frames %llu, without their end %llu, sent %llu\n%s\n", static_cast<unsigned long long>(result->frames),
              static_cast<unsigned long long>(result->cut), static_cast<unsigned long long>(result->sent),
              base::describe_counts(swordbox::kBoxCounts, result->counts).c_str());
  return 0;
}

}  // namespace
}  // namespace farpool::apps

int main(int argc, char** argv) {
  using namespace farpool::apps;
  SwordboxSettings settings;
  CLI::App app(
      "Stands between RDMA clients and servers (RoCEv2), follows their connections, and turns atomics on the words of\n"
      "ranges into WRITEs, which cost a server's NIC less. Endpoints notice nothing: all else passes unchanged.",
      kProgram);
  add_swordbox(app, settings);
  if (const auto status = parse(app, argc, argv)) return *status;
  if (const auto status = check_swordbox(settings); !status.ok()) return fail(kProgram, status);
  if (!settings.replay.empty()) return replay(settings);
  start_logging(settings.common);
  const int status = run(settings);
  stop_logging();
  return status;
}
