// SPDX-License-Identifier: Apache-2.0
#include "node/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace farpool::node {
namespace {

using base::Code;
using base::Status;

std::string text_of(int error) { return std::generic_category().message(error); }

Status check_size(std::uint64_t bytes) {
  if (bytes == 0 || bytes % 4096 != 0) {
    return {Code::invalid_argument,
            "memory of " + std::to_string(bytes) + " bytes cannot be lent: give a multiple of 4096"};
  }
  return {};
}

// Huge pages make address translation cheap; a child process or a core dump has no business with a pool's data.
void advise(void* data, std::uint64_t bytes) {
  (void)::madvise(data, bytes, MADV_HUGEPAGE);
  (void)::madvise(data, bytes, MADV_DONTFORK);
  (void)::madvise(data, bytes, MADV_DONTDUMP);
}

}  // namespace

Memory::~Memory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

base::Result<Memory> Memory::anonymous(std::uint64_t bytes) {
  if (Status status = check_size(bytes); !status.ok()) return status;
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Status(Code::out_of_memory, "the kernel gave no " + std::to_string(bytes) + " bytes of memory: " +
                                           text_of(errno) + "; lend less, or raise the limits of the process");
  }
  advise(data, bytes);
  return Memory(data, bytes);
}

base::Result<Memory> Memory::on_volume(const std::string& directory, const std::string& name, std::uint64_t bytes) {
  if (Status status = check_size(bytes); !status.ok()) return status;
  const std::string path = directory + "/" + name + ".memory";
  (void)::unlink(path.c_str());
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) {
    return Status(Code::unavailable, path + " cannot be created: " + text_of(errno) +
                                         "; --memory-path must name a writable directory on a memory-backed volume");
  }
  int error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  void* data = MAP_FAILED;
  if (error == 0) {
    data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) error = errno;
  }
  ::close(file);
  if (error != 0) {
    (void)::unlink(path.c_str());
    return Status(Code::out_of_memory, path + " cannot hold " + std::to_string(bytes) + " bytes: " + text_of(error) +
                                           "; enlarge the volume or lend less memory");
  }
  advise(data, bytes);
  return Memory(data, bytes);
}

}  // namespace farpool::node
