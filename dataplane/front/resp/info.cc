// SPDX-License-Identifier: Apache-2.0
// INFO: what a process tells of itself, in the sections that Redis has, and one on the pool.
#include <malloc.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "front/resp/connection_commands.h"
#include "front/resp/operations.h"
#include "front/resp/text.h"
#include "net/loop.h"

namespace farpool::front::resp {
namespace {

// Bytes of this process that are in memory.
std::uint64_t resident_bytes() {
  std::uint64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::string seconds_of(const timeval& time) {
  const std::string micros = std::to_string(time.tv_usec);
  return std::to_string(time.tv_sec) + "." + std::string(6 - micros.size(), '0') + micros;
}

// Writes a size as Redis does for people: "1.14M".
std::string size_for_people(std::uint64_t bytes) {
  constexpr std::uint64_t kStep = 1024;
  if (bytes < kStep) return std::to_string(bytes) + "B";
  constexpr std::string_view kUnits = "KMGTP";
  double size = static_cast<double>(bytes) / kStep;
  std::size_t unit = 0;
  for (; size >= kStep && unit + 1 < kUnits.size(); ++unit) size /= kStep;
  std::array<char, 32> digits;
  const auto [end, error] =
      std::to_chars(digits.data(), digits.data() + digits.size(), size, std::chars_format::fixed, 2);
  return std::string(digits.data(), end) + kUnits[unit];
}

// The port that a client connected to; 0 of a Unix socket, as Redis has it.
std::string port_of(const std::string& address) {
  return address.starts_with("unix:") ? "0" : address.substr(address.rfind(':') + 1);
}

// The text of one INFO, section by section.
class Info {
 public:
  Info(Conversation& conversation, const Request& request)
      : conversation_(conversation),
        service_(conversation.service()),
        request_(request),
        figures_(service_.figures ? service_.figures() : Figures{{&service_.counters}, 0}) {}

  // Writes all sections that the request asks for, except the keyspace: what is there is a question to the pool.
  void write();
  // Says whether the request asks for a section. A request that names no section asks for all with `by_default`.
  bool wanted(std::string_view section, bool by_default) const;

  void begin(std::string_view title) {
    if (!text_.empty()) text_ += "\r\n";
    text_ += "# " + std::string(title) + "\r\n";
  }
  void field(std::string_view name, std::string_view value) {
    text_ += std::string(name) + ":" + std::string(value) + "\r\n";
  }
  // Writes a size twice: in bytes, and for people.
  void size(const std::string& name, std::uint64_t bytes) {
    field(name, std::to_string(bytes));
    field(name + "_human", size_for_people(bytes));
  }
  const std::string& text() const { return text_; }

 private:
  struct Section {
    std::string_view name;
    bool by_default;
    void (Info::*write)();
  };
  void server();
  void clients();
  void memory();
  void persistence();
  void stats();
  void replication();
  void cpu();
  void cluster();
  void command_stats();
  void command(std::size_t index);
  void pool();

  std::uint64_t sum(const auto& get) const {
    std::uint64_t total = 0;
    for (const Counters* counters : figures_.workers) total += get(*counters);
    return total;
  }
  std::string total(base::Counter Counters::*counter) const {
    return std::to_string(sum([counter](const Counters& counters) { return (counters.*counter).get(); }));
  }

  Conversation& conversation_;
  Service& service_;
  const Request& request_;
  const Figures figures_;
  std::string text_;
};

bool Info::wanted(std::string_view section, bool by_default) const {
  if (request_.command.size() == 1) return by_default;
  for (std::size_t i = 1; i < request_.command.size(); ++i) {
    const std::string_view word = request_.command[i];
    if (same_word(word, section) || same_word(word, "all") || same_word(word, "everything")) return true;
    if (by_default && same_word(word, "default")) return true;
  }
  return false;
}

void Info::write() {
  static constexpr auto kSections = std::to_array<Section>({
      {"server", true, &Info::server},
      {"clients", true, &Info::clients},
      {"memory", true, &Info::memory},
      {"persistence", true, &Info::persistence},
      {"stats", true, &Info::stats},
      {"replication", true, &Info::replication},
      {"cpu", true, &Info::cpu},
      {"cluster", true, &Info::cluster},
      {"commandstats", false, &Info::command_stats},
      {"pool", true, &Info::pool},
  });
  for (const Section& section : kSections) {
    if (wanted(section.name, section.by_default)) (this->*section.write)();
  }
}

void Info::server() {
  utsname system{};
  ::uname(&system);
  const std::uint64_t uptime = static_cast<std::uint64_t>((net::Loop::now() - service_.begun) / base::kSecond);
  begin("Server");
  field("redis_version", kRedisVersion);
  field("redis_mode", "standalone");
  field("farpool_version", conversation_.settings().version);
  field("os", std::string(system.sysname) + " " + system.release + " " + system.machine);
  field("arch_bits", std::to_string(8 * sizeof(void*)));
  field("multiplexing_api", "epoll");
  field("process_id", std::to_string(::getpid()));
  field("tcp_port", port_of(conversation_.endpoints().local));
  field("uptime_in_seconds", std::to_string(uptime));
  field("uptime_in_days", std::to_string(uptime / 86'400));
}

void Info::clients() {
  begin("Clients");
  field("connected_clients", total(&Counters::connections));
  field("maxclients", std::to_string(conversation_.settings().max_connections));
  field("blocked_clients", "0");  // there is no command that blocks
}

void Info::memory() {
  // The memory of this process: what the pool's keys take is in the metrics of its memory nodes.
  const struct mallinfo2 heap = ::mallinfo2();
  begin("Memory");
  size("used_memory", heap.uordblks + heap.hblkhd);
  size("used_memory_rss", resident_bytes());
  field("mem_clients_normal",
        std::to_string(service_.budget == nullptr ? service_.held_bytes : service_.budget->held.load()));
  size("maxmemory", 0);
  field("maxmemory_policy", std::string(service_.kv.eviction_policy()));
}

void Info::persistence() {
  begin("Persistence");
  field("loading", "0");
  field("aof_enabled", "0");
}

void Info::stats() {
  const std::uint64_t calls = sum([](const Counters& counters) {
    std::uint64_t all = 0;
    for (const Counters::PerCommand& command : counters.commands) all += command.calls.get();
    return all;
  });
  const std::uint64_t errors = sum([](const Counters& counters) {
    std::uint64_t all = counters.refused.get();
    for (const Counters::PerCommand& command : counters.commands) all += command.errors.get();
    return all;
  });
  begin("Stats");
  field("total_connections_received", total(&Counters::connections_total));
  field("total_commands_processed", std::to_string(calls));
  field("total_net_input_bytes", total(&Counters::input_bytes));
  field("total_net_output_bytes", total(&Counters::output_bytes));
  field("rejected_connections", std::to_string(figures_.refused_connections));
  field("expired_keys", std::to_string(figures_.expired_keys));
  field("evicted_keys", std::to_string(figures_.evicted_keys));
  field("keyspace_hits", total(&Counters::hits));
  field("keyspace_misses", total(&Counters::misses));
  field("pubsub_channels", "0");
  field("pubsub_patterns", "0");
  field("total_error_replies", std::to_string(errors));
  field("client_output_buffer_limit_disconnections", total(&Counters::cut_for_unread));
  field("evicted_clients", total(&Counters::cut_for_memory));
}

void Info::replication() {
  begin("Replication");
  field("role", "master");
  field("connected_slaves", "0");
}

void Info::cpu() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  begin("CPU");
  field("used_cpu_sys", seconds_of(used.ru_stime));
  field("used_cpu_user", seconds_of(used.ru_utime));
}

void Info::cluster() {
  begin("Cluster");
  field("cluster_enabled", "0");
}

void Info::command_stats() {
  begin("Commandstats");
  for (std::size_t i = 0; i < kMaxCommands; ++i) command(i);
}

void Info::command(std::size_t index) {
  const CommandSpec* spec = command_at(index);
  const std::uint64_t calls = sum([=](const Counters& counters) { return counters.commands[index].calls.get(); });
  if (spec == nullptr || calls == 0) return;
  const std::uint64_t micros =
      sum([=](const Counters& counters) { return counters.commands[index].latencies.sum_nanos(); }) / 1000;
  const std::uint64_t errors = sum([=](const Counters& counters) { return counters.commands[index].errors.get(); });
  const std::uint64_t hundredths = micros * 100 / calls;
  field("cmdstat_" + std::string(spec->name),
        "calls=" + std::to_string(calls) + ",usec=" + std::to_string(micros) +
            ",usec_per_call=" + std::to_string(hundredths / 100) + "." + std::to_string(hundredths % 100 / 10) +
            std::to_string(hundredths % 10) + ",rejected_calls=0,failed_calls=" + std::to_string(errors));
}

void Info::pool() {
  if (!service_.info) return;
  if (!text_.empty()) text_ += "\r\n";
  text_ += service_.info();
}

}  // namespace

task::Task<void> op_info(Conversation& conversation, Request& request) {
  Info info(conversation, request);
  info.write();
  if (info.wanted("keyspace", true)) {
    info.begin("Keyspace");
    // How many keys expire is counted nowhere: a scan of the pool would have to tell.
    const base::Result<std::uint64_t> keys = co_await conversation.kv().count();
    if (keys.ok() && *keys > 0) info.field("db0", "keys=" + std::to_string(*keys) + ",expires=0,avg_ttl=0");
    if (!keys.ok()) info.field("db0_unknown", base::name_of(keys.code()));
  }
  request.answer().verbatim(info.text());
}

}  // namespace farpool::front::resp
