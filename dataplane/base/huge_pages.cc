// SPDX-License-Identifier: Apache-2.0
#include "base/huge_pages.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <string>
#include <system_error>

namespace farpool::base {

Result<void*> map_huge_pages(std::uint64_t bytes, std::uint64_t page) {
  if (!std::has_single_bit(page) || bytes == 0 || bytes % page != 0) {
    return Status(Code::invalid_argument, std::to_string(bytes) + " bytes are no whole number of pages of " +
                                              std::to_string(page) + " bytes: give a multiple");
  }
  const auto refused = [&](int error) {
    return Status(Code::out_of_memory,
                  "the kernel gave no " + std::to_string(bytes / page) + " huge pages of " +
                      std::to_string(page >> 10) + " KiB: " + std::generic_category().message(error) +
                      "; reserve more of them on the machine (/sys/kernel/mm/hugepages/hugepages-" +
                      std::to_string(page >> 10) + "kB/nr_hugepages), and in a pod ask for them as a resource");
  };
  const int size = std::countr_zero(page) << MAP_HUGE_SHIFT;
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | size, -1, 0);
  if (memory == MAP_FAILED) return refused(errno);
  if (::madvise(memory, bytes, MADV_POPULATE_WRITE) != 0) {
    const int error = errno;
    ::munmap(memory, bytes);
    return refused(error);
  }
  return memory;
}

}  // namespace farpool::base
