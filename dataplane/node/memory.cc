// SPDX-License-Identifier: Apache-2.0
#include "node/memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/huge_pages.h"
#include "layout/private_page.h"

namespace farpool::node {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr std::uint64_t kPiece = 64 << 20;

std::string text_of(int error) { return std::generic_category().message(error); }

Status check_size(std::uint64_t bytes) {
  if (bytes == 0 || bytes % layout::kPage != 0) {
    return {Code::invalid_argument,
            "memory of " + std::to_string(bytes) + " bytes cannot be lent: give a multiple of 4096"};
  }
  return {};
}

// A volume has pages of one size, and what was asked for must be what it has: ordinary ones would be slow unseen, and
// part of a huge one cannot be mapped.
Status check_pages(const std::string& directory, std::uint64_t bytes, std::uint64_t huge_page) {
  struct statfs about {};
  if (::statfs(directory.c_str(), &about) != 0) {
    return {Code::unavailable, directory + " cannot be looked at: " + text_of(errno) +
                                   "; --memory-path must name a writable directory on a memory-backed volume"};
  }
  const std::uint64_t page = about.f_type == HUGETLBFS_MAGIC ? static_cast<std::uint64_t>(about.f_bsize) : 0;
  const auto pages = [](std::uint64_t size) {
    return size == 0 ? std::string("ordinary pages") : "huge pages of " + std::to_string(size >> 10) + " KiB";
  };
  if (page != huge_page) {
    return {Code::invalid_argument, directory + " is a volume of " + pages(page) + ", and --huge-pages asks for " +
                                        pages(huge_page) + ": let them agree"};
  }
  if (page != 0 && bytes % page != 0) {
    return {Code::invalid_argument,
            "memory of " + std::to_string(bytes) + " bytes is no whole number of " + pages(page) + ": give a multiple"};
  }
  return {};
}

// Huge pages make address translation cheap; a child process or a core dump has no business with a pool's data.
void advise(void* data, std::uint64_t bytes) {
  (void)::madvise(data, bytes, MADV_HUGEPAGE);
  (void)::madvise(data, bytes, MADV_DONTFORK);
  (void)::madvise(data, bytes, MADV_DONTDUMP);
}

// Closes what it still has.
class File {
 public:
  explicit File(int number) : number_(number) {}
  File(const File&) = delete;
  ~File() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  int take() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// Whether a process has formatted the memory in the file to its end.
bool formatted(int file, std::uint64_t size) {
  std::array<std::byte, layout::kPage> page{};
  if (size < page.size()) return false;
  const auto at = static_cast<off_t>(size - page.size());
  return ::pread(file, page.data(), page.size(), at) == static_cast<ssize_t>(page.size()) &&
         layout::read_private_page(page).written;
}

// Takes a file's memory from the kernel, which fills it with zeros, piece by piece.
int allocate(int file, std::uint64_t bytes, std::uint64_t huge_page, const Progress& progress) {
  const std::uint64_t piece = std::max<std::uint64_t>(kPiece, huge_page);
  int error = 0;
  for (std::uint64_t done = 0; done < bytes && error == 0; done += piece) {
    if (progress) progress("takes its memory from the kernel", done, bytes);
    error = ::posix_fallocate(file, static_cast<off_t>(done), static_cast<off_t>(std::min(piece, bytes - done)));
  }
  return error;
}

}  // namespace

Memory::~Memory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  if (file_ >= 0) ::close(file_);
}

Result<Memory> Memory::anonymous(std::uint64_t bytes, std::uint64_t huge_page) {
  if (Status status = check_size(bytes); !status.ok()) return status;
  if (huge_page != 0) {
    const auto pages = base::map_huge_pages(bytes, huge_page);
    if (!pages.ok()) return pages.status();
    advise(*pages, bytes);
    return Memory(*pages, bytes, -1);
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Status(Code::out_of_memory, "the kernel gave no " + std::to_string(bytes) + " bytes of memory: " +
                                           text_of(errno) + "; lend less, or raise the limits of the process");
  }
  advise(data, bytes);
  return Memory(data, bytes, -1);
}

Result<Memory> Memory::on_volume(const std::string& directory, const std::string& name, std::uint64_t bytes,
                                 Earlier earlier, std::uint64_t huge_page, const Progress& progress) {
  if (Status status = check_size(bytes); !status.ok()) return status;
  if (Status status = check_pages(directory, bytes, huge_page); !status.ok()) return status;
  const std::string path = directory + "/" + name + ".memory";
  File old(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (old.number() >= 0) {
    if (::flock(old.number(), LOCK_EX | LOCK_NB) != 0) {
      return Status(Code::unavailable, path + " is lent by another process, or its lock cannot be taken (" +
                                           text_of(errno) + "): end that process, or give another --name");
    }
    struct stat about {};
    if (::fstat(old.number(), &about) != 0) {
      return Status(Code::unavailable, path + " cannot be looked at: " + text_of(errno));
    }
    const auto size = static_cast<std::uint64_t>(about.st_size);
    if (earlier == Earlier::kept && formatted(old.number(), size)) {
      if (size != bytes) {
        return Status(Code::invalid_argument, "the memory in " + path +
                                                  " was formatted with other flags: --memory was " +
                                                  std::to_string(size) + " and is " + std::to_string(bytes) +
                                                  "; give the earlier one again, or remove the file to begin empty");
      }
      void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, old.number(), 0);
      if (data == MAP_FAILED) return Status(Code::out_of_memory, path + " cannot be mapped: " + text_of(errno));
      advise(data, bytes);
      return Memory(data, bytes, old.take());
    }
  }

  // Under another name until it is whole and locked.
  const std::string making = path + ".new";
  (void)::unlink(making.c_str());
  File file(::open(making.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.number() < 0) {
    return Status(Code::unavailable, path + " cannot be created: " + text_of(errno) +
                                         "; --memory-path must name a writable directory on a memory-backed volume");
  }
  // What is replaced gives its room first.
  if (old.number() >= 0) (void)::unlink(path.c_str());
  { const File closed(old.take()); }
  int error = allocate(file.number(), bytes, huge_page, progress);
  if (error == 0 && ::flock(file.number(), LOCK_EX | LOCK_NB) != 0) error = errno;
  if (error == 0 && ::rename(making.c_str(), path.c_str()) != 0) error = errno;
  void* data = MAP_FAILED;
  if (error == 0) {
    data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
    if (data == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    (void)::unlink(making.c_str());
    return Status(Code::out_of_memory, path + " cannot hold " + std::to_string(bytes) + " bytes: " + text_of(error) +
                                           "; enlarge the volume or lend less memory");
  }
  advise(data, bytes);
  return Memory(data, bytes, file.take());
}

MemoryImage::~MemoryImage() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), bytes_);
  if (file_ >= 0) ::close(file_);
}

Result<MemoryImage> MemoryImage::open(const std::string& path) {
  const auto cannot = [&path](const char* be, int error) {
    return Status(Code::unavailable, path + " cannot be " + be + ": " + text_of(error));
  };
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number() < 0) return cannot("opened", errno);
  // Where a filesystem has no locks, nobody can be told that the file is in use either.
  if (::flock(file.number(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Status(Code::unavailable, path +
                                         " is lent by a memory node: end that process first, or give a copy of what "
                                         "a process that ended left");
  }
  struct stat about {};
  if (::fstat(file.number(), &about) != 0) return cannot("looked at", errno);
  if (!S_ISREG(about.st_mode)) return Status(Code::unavailable, path + " is not a file");
  const auto bytes = static_cast<std::uint64_t>(about.st_size);
  if (bytes == 0) return Status(Code::unavailable, path + " is empty");
  const void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.number(), 0);
  if (data == MAP_FAILED) return cannot("mapped", errno);
  return MemoryImage(data, bytes, file.take());
}

}  // namespace farpool::node
