// SPDX-License-Identifier: Apache-2.0
#include "apps/swordbox_flags.h"

#include <arpa/inet.h>

#include <charconv>
#include <utility>

#include "roce/psn.h"

namespace farpool::apps {
namespace {

using base::Code;
using base::Result;
using base::Status;

Status bad_range(const std::string& text, const std::string& why) {
  return {Code::invalid_argument,
          "\"" + text + "\" is no range: " + why + "; give SERVER@FIRST+BYTES, as in " + "10.0.0.1@0x7f0000001000+4Ki"};
}

// Returns nothing for what is no number: decimal digits, or hexadecimal ones behind 0x.
std::optional<std::uint64_t> parse_number(const std::string& text) {
  const bool hexadecimal = text.rfind("0x", 0) == 0;
  const char* const begin = text.data() + (hexadecimal ? 2 : 0);
  const char* const end = text.data() + text.size();
  std::uint64_t number = 0;
  const auto [rest, error] = std::from_chars(begin, end, number, hexadecimal ? 16 : 10);
  if (error != std::errc() || rest != end || begin == end) return std::nullopt;
  return number;
}

void add_address(CLI::App& app, const std::string& flag, std::optional<roce::Address>& into, const std::string& what) {
  app.add_option_function<std::string>(
         flag,
         [&into, flag](const std::string& text) {
           auto parsed = parse_server(text);
           if (!parsed.ok()) throw CLI::ValidationError(flag, parsed.status().message());
           into = *parsed;
         },
         what)
      ->type_name("ADDRESS");
}

void add_bounds(CLI::App& app, swordbox::Settings& box) {
  app.add_option("--connections", box.connections, "that are followed at a time; requests to ranges of others are lost")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--words", box.words, "so many words of ranges are known at a time")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--operations", box.entries, "on words that are remembered for each connection")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--held", box.held, "packets that may wait in the box for each connection")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--replace-fetch-add", box.replace_fetch_add,
               "FAAs become WRITEs, too: pays where the NIC executes atomics slower than a trip takes");
  add_duration(app, "--again", box.again, "after which the box sends again what no response has covered (500us)");
  add_duration(app, "--silence", box.silence,
               "a server's queue pair that says nothing for so long has its connection cut (5ms)");
  add_duration(app, "--longest-life", box.longest_life,
               "how long a packet may travel between the box and a server, in either direction, with its time in "
               "queues. No packet may come later (1ms)");
  add_duration(app, "--idle", box.idle, "after which a silent connection may be forgotten (10m)");
}

void add_capture(CLI::App& app, SwordboxSettings& settings) {
  app.add_option("--capture", settings.capture,
                 "path to which .before.pcap and .after.pcap are added: the packets of one connection, as they come "
                 "and as they leave; empty: none");
  add_address(app, "--capture-client", settings.capture_client, "the client of the connection");
  add_address(app, "--capture-server", settings.capture_server, "the server of the connection");
  app.add_option("--capture-client-queue-pair", settings.capture_client_queue_pair,
                 "a queue pair of the connection; default: all")
      ->check(CLI::Range(0u, roce::kPsnMask));
  app.add_option("--capture-server-queue-pair", settings.capture_server_queue_pair,
                 "a queue pair of the connection; default: all")
      ->check(CLI::Range(0u, roce::kPsnMask));
  add_size(app, "--capture-bytes", settings.capture_bytes, "the capture ends when a file has this size (64Mi)");
}

bool overlap(const swordbox::Range& a, const swordbox::Range& b) {
  return a.server == b.server && a.first < b.first + b.bytes && b.first < a.first + a.bytes;
}

}  // namespace

Result<roce::Address> parse_server(const std::string& text) {
  roce::Address address;
  if (in_addr four{}; ::inet_pton(AF_INET, text.c_str(), &four) == 1) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&four);
    return roce::ipv4(bytes[0], bytes[1], bytes[2], bytes[3]);
  }
  if (::inet_pton(AF_INET6, text.c_str(), address.bytes.data()) == 1) return address;
  return Status(Code::invalid_argument, "\"" + text + "\" is no IP address");
}

Result<swordbox::Range> parse_range(const std::string& text) {
  const std::size_t at = text.find('@'), plus = text.find('+');
  if (at == std::string::npos || plus == std::string::npos || plus < at) return bad_range(text, "@ or + is missing");
  auto server = parse_server(text.substr(0, at));
  if (!server.ok()) return bad_range(text, server.status().message());
  const std::optional<std::uint64_t> first = parse_number(text.substr(at + 1, plus - at - 1));
  if (!first) return bad_range(text, "its first address is no number");
  auto bytes = parse_size(text.substr(plus + 1));
  if (!bytes.ok()) return bad_range(text, bytes.status().message());
  if (*bytes == 0 || *bytes % 8 != 0 || *first % 8 != 0)
    return bad_range(text, "it does not consist of words of 8 bytes");
  if (*first + *bytes < *first) return bad_range(text, "it ends behind the last address");
  return swordbox::Range{*server, *first, *bytes};
}

void add_swordbox(CLI::App& app, SwordboxSettings& settings) {
  settings.common.name = "swordbox";
  add_process(app, settings.common);
  app.add_option("--clients-interface", settings.clients_interface,
                 "Ethernet interface on the clients' side; neither needs an address");
  app.add_option("--servers-interface", settings.servers_interface, "Ethernet interface on the servers' side");
  app.add_option_function<std::vector<std::string>>(
         "--range",
         [&settings](const std::vector<std::string>& texts) {
           settings.box.ranges.clear();
           for (const std::string& text : texts) {
             auto range = parse_range(text);
             if (!range.ok()) throw CLI::ValidationError("--range", range.status().message());
             settings.box.ranges.push_back(*range);
           }
         },
         "memory of a server, as 10.0.0.1@0x7f0000001000+4Ki, whose words clients change by atomics and WRITEs of one "
         "word alone, all through this box. Several: repeat it. None: everything passes unchanged")
      ->type_name("SERVER@FIRST+BYTES");
  add_bounds(app, settings.box);
  add_capture(app, settings);
  CLI::App* const replay = app.add_subcommand(
      "replay", "Feeds a capture to a box, with the time of the capture, and writes what leaves it.");
  replay->fallthrough();
  replay->add_option("FILE", settings.replay, "pcap file; pcapng has to be converted")->required();
  replay->add_option("--output", settings.output, "pcap file that is written; empty: counts alone are printed");
  app.require_subcommand(0, 1);
}

Status check_swordbox(const SwordboxSettings& settings) {
  const swordbox::Settings& box = settings.box;
  const auto invalid = [](const std::string& message) { return Status(Code::invalid_argument, message); };
  for (std::size_t i = 0; i < box.ranges.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(box.ranges[i], box.ranges[j])) return invalid("two of --range overlap: each word belongs to one");
    }
  }
  for (const auto& [flag, value] : {std::pair("--again", box.again), std::pair("--silence", box.silence),
                                    std::pair("--longest-life", box.longest_life), std::pair("--idle", box.idle)}) {
    if (value <= 0) return invalid(std::string(flag) + " must be longer than 0");
  }
  if (box.again >= box.silence) return invalid("--again must be shorter than --silence, or nothing is ever sent again");
  if (!settings.replay.empty()) return {};
  if (settings.clients_interface.empty() || settings.servers_interface.empty()) {
    return invalid("--clients-interface and --servers-interface are both needed: the box stands between them");
  }
  const bool both = settings.capture_client && settings.capture_server;
  const bool any = settings.capture_client || settings.capture_server;
  if (settings.capture.empty() ? any : !both) {
    return invalid("--capture, --capture-client and --capture-server are all needed for a capture");
  }
  return {};
}

}  // namespace farpool::apps
