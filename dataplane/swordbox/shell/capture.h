// SPDX-License-Identifier: Apache-2.0
// Writes the packets of one connection to two files: as they came to the box, and as they left it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "roce/packet.h"

namespace farpool::swordbox {

// A pcap file that grows. Belongs to one thread.
class PcapFile {
 public:
  // Replaces what was there. Errors: unavailable.
  static base::Result<PcapFile> create(const std::string& path);
  // `time` is since 1970. Errors: unavailable; the file is whole up to the frame before.
  base::Status add(base::Nanos time, base::Bytes frame);
  // Writes what is not on the file system yet. Errors: unavailable.
  base::Status finish();
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  PcapFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  base::Status failed() const;

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::uint64_t bytes_ = 0;
};

class Capture {
 public:
  struct Options {
    std::string path;  // of both files, to which .before.pcap and .after.pcap are added
    roce::Address client, server;
    // None: all between these addresses. The connection manager's packets are captured in any case.
    std::optional<std::uint32_t> client_queue_pair, server_queue_pair;
    std::uint64_t most_bytes = 0;  // of each file; the capture ends before it has more
    base::Nanos epoch = 0;         // what to add to times for the time since 1970
    std::function<void(bool warning, const std::string& line)> log;  // is told when the capture ends by itself
  };
  // Errors: unavailable (a file cannot be written).
  static base::Result<std::unique_ptr<Capture>> start(Options options);
  ~Capture();

  void before(const roce::Packet& packet, base::Bytes frame, base::Nanos now) { add(before_, packet, frame, now); }
  void after(const roce::Packet& packet, base::Bytes frame, base::Nanos now) { add(after_, packet, frame, now); }

 private:
  Capture(Options options, PcapFile before, PcapFile after)
      : options_(std::move(options)), before_(std::move(before)), after_(std::move(after)) {}
  bool chosen(const roce::Packet& packet) const;
  void add(PcapFile& file, const roce::Packet& packet, base::Bytes frame, base::Nanos now);
  void end(bool warning, const std::string& why);

  const Options options_;
  PcapFile before_, after_;
  bool ended_ = false;
};

}  // namespace farpool::swordbox
