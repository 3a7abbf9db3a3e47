// SPDX-License-Identifier: Apache-2.0
#include "node/numa.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

namespace farpool::node {
namespace {

using base::Code;
using base::Status;

template <class Number>
std::optional<Number> number_of(std::string_view text, int base = 10) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

constexpr char kAdvice[] =
    "; the kubelet keeps a pod on one node with topologyManagerPolicy single-numa-node, cpuManagerPolicy static and "
    "memoryManagerPolicy Static, if the pod asks for whole CPUs and its requests equal its limits";

}  // namespace

BytesOfNumaNode parse_numa_maps(std::istream& file, std::uintptr_t begin, std::uintptr_t end) {
  BytesOfNumaNode bytes;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    const auto at = number_of<std::uintptr_t>(word, 16);
    if (!at || *at < begin || *at >= end) continue;
    BytesOfNumaNode pages;
    std::uint64_t page = 4096;
    while (words >> word) {
      const auto equals = word.find('=');
      if (equals == std::string::npos) continue;
      const auto value = number_of<std::uint64_t>(std::string_view(word).substr(equals + 1));
      if (!value) continue;
      if (word.starts_with("kernelpagesize_kB=")) page = *value << 10;
      const auto node = number_of<int>(std::string_view(word).substr(1, equals - 1));
      if (word.front() == 'N' && node) pages[*node] += *value;
    }
    for (const auto& [node, count] : pages) bytes[node] += count * page;
  }
  return bytes;
}

Status judge_numa(const BytesOfNumaNode& bytes, std::optional<int> wanted) {
  if (bytes.size() == 1 && (!wanted || bytes.begin()->first == *wanted)) return {};
  std::string where;
  for (const auto& [node, count] : bytes) {
    where += (where.empty() ? "" : ", ") + std::to_string(count >> 20) + " MiB on NUMA node " + std::to_string(node);
  }
  return {Code::unavailable, "the memory is to lie on " +
                                 (wanted ? "NUMA node " + std::to_string(*wanted) + ", that of the RDMA device"
                                         : std::string("one NUMA node")) +
                                 ", and lies elsewhere (" + (where.empty() ? "the kernel does not say where" : where) +
                                 ")" + kAdvice};
}

Status check_numa(base::MutableBytes memory, std::optional<int> wanted) {
  std::ifstream file("/proc/self/numa_maps");
  if (!file) return {};  // a kernel without NUMA
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) != 0) {
    return {Code::out_of_memory, "the memory cannot be had all at once: " + std::generic_category().message(errno) +
                                     "; lend less, or raise the limits of the process"};
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  return judge_numa(parse_numa_maps(file, begin, begin + memory.size()), wanted);
}

NumaPreference::NumaPreference(std::optional<int> node) {
  constexpr int kMostNodes = 1024, kWordBits = 64;
  if (!node || *node < 0 || *node >= kMostNodes) return;
  std::array<unsigned long, kMostNodes / kWordBits> mask{};
  mask[static_cast<std::size_t>(*node) / kWordBits] = 1ul << (*node % kWordBits);
  set_ = ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask.data(), kMostNodes) == 0;
}

NumaPreference::~NumaPreference() {
  if (set_) ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
}

}  // namespace farpool::node
