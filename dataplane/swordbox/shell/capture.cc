// SPDX-License-Identifier: Apache-2.0
#include "swordbox/shell/capture.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "roce/pcap.h"

namespace farpool::swordbox {

using base::Code;
using base::Result;
using base::Status;

Status PcapFile::failed() const { return {Code::unavailable, "writing " + path_ + ": " + std::strerror(errno)}; }

Result<PcapFile> PcapFile::create(const std::string& path) {
  PcapFile file(path, std::fopen(path.c_str(), "wbe"));
  const auto header = roce::pcap_header();
  if (file.file_ == nullptr || std::fwrite(header.data(), header.size(), 1, file.file_.get()) != 1) {
    return file.failed();
  }
  file.bytes_ = header.size();
  return file;
}

Status PcapFile::add(base::Nanos time, base::Bytes frame) {
  const auto header = roce::pcap_frame_header(time, frame.size());
  if (std::fwrite(header.data(), header.size(), 1, file_.get()) != 1 ||
      std::fwrite(frame.data(), 1, frame.size(), file_.get()) != frame.size()) {
    return failed();
  }
  bytes_ += header.size() + frame.size();
  return {};
}

Status PcapFile::finish() { return std::fflush(file_.get()) == 0 ? Status() : failed(); }

Result<std::unique_ptr<Capture>> Capture::start(Options options) {
  auto before = PcapFile::create(options.path + ".before.pcap");
  if (!before.ok()) return before.status();
  auto after = PcapFile::create(options.path + ".after.pcap");
  if (!after.ok()) return after.status();
  return std::unique_ptr<Capture>(new Capture(std::move(options), std::move(*before), std::move(*after)));
}

Capture::~Capture() {
  for (PcapFile* file : {&before_, &after_}) {
    if (const Status status = file->finish(); !status.ok() && !ended_) options_.log(true, status.message());
  }
}

bool Capture::chosen(const roce::Packet& packet) const {
  const bool request = packet.ip.from == options_.client && packet.ip.to == options_.server;
  if (!request && !(packet.ip.from == options_.server && packet.ip.to == options_.client)) return false;
  const std::optional<std::uint32_t>& wanted = request ? options_.server_queue_pair : options_.client_queue_pair;
  return !wanted || *wanted == packet.bth.queue_pair || packet.bth.queue_pair == roce::kManagerQueuePair;
}

void Capture::add(PcapFile& file, const roce::Packet& packet, base::Bytes frame, base::Nanos now) {
  if (ended_ || !chosen(packet)) return;
  if (file.bytes() + roce::kPcapFrameBytes + frame.size() > options_.most_bytes) {
    return end(false, "the capture is full, and ends");
  }
  if (const Status status = file.add(now + options_.epoch, frame); !status.ok()) {
    end(true, "the capture ends: " + status.message());
  }
}

void Capture::end(bool warning, const std::string& why) {
  ended_ = true;
  for (PcapFile* file : {&before_, &after_}) {
    if (const Status status = file->finish(); !status.ok()) warning = true;
  }
  options_.log(warning, why);
}

}  // namespace farpool::swordbox
