// SPDX-License-Identifier: Apache-2.0
// An Ethernet interface's frames, by a raw packet socket. Frames keep what their senders left for a NIC to do (sums,
// segments): the kernel or the NIC of the next interface does it.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/time.h"

namespace farpool::swordbox {

// How many frames one system call moves at most.
inline constexpr std::size_t kBatch = 32;

struct LinkCounts {
  std::uint64_t received = 0;
  std::uint64_t sent = 0;
  std::uint64_t overrun = 0;         // frames that the kernel dropped, because nobody took them in time
  std::uint64_t unreadable = 0;      // frames longer than any segment, or of a kind that the kernel cannot describe
  std::uint64_t dropped_long = 0;    // frames longer than the interface's MTU
  std::uint64_t dropped_full = 0;    // frames that found the interface's queue full
  std::uint64_t dropped_down = 0;    // frames for an interface that was down
  std::uint64_t dropped_failed = 0;  // frames that the kernel refused for other reasons
};

// What a sender left to a NIC: virtio's header, which the kernel puts before each frame and takes before each. Numbers
// are the host's.
struct Offload {
  static constexpr std::uint8_t kNeedsSum = 1;  // flag
  std::uint8_t flags = 0;
  std::uint8_t kind = 0;           // of the segments that a NIC is to make; 0: none
  std::uint16_t header_bytes = 0;  // that each segment begins with
  std::uint16_t segment_bytes = 0;
  std::uint16_t sum_start = 0;   // the checksum covers the frame from here on,
  std::uint16_t sum_offset = 0;  // and stands so far behind
};
static_assert(sizeof(Offload) == 10);

struct Frame {
  base::MutableBytes bytes;  // with its VLAN tag, without a frame check sequence
  Offload offload;           // what the sender left to a NIC
  base::Nanos waited = 0;    // since the kernel got it
};

// Says that the frame stands for several, which a NIC is to make of it.
inline bool is_several(const Offload& offload) { return offload.kind != 0; }
// Writes the checksum that the sender left to a NIC, if it did.
void finish_checksum(Frame& frame);

// Memory for the frames of one call.
class Batch {
 public:
  Batch();
  std::span<Frame> frames() { return std::span(frames_).first(count_); }

 private:
  friend class Link;
  // A segment of 64 KiB, its headers, and room for the tag that the kernel keeps apart.
  static constexpr std::size_t kTag = 4, kLongest = 66 * 1024;
  std::vector<std::byte> memory_;
  std::array<Frame, kBatch> frames_;
  std::array<Offload, kBatch> offloads_;
  std::array<std::array<iovec, 2>, kBatch> parts_;
  std::array<std::array<std::byte, 128>, kBatch> control_;
  std::array<mmsghdr, kBatch> messages_;
  std::size_t count_ = 0;
};

// Frames that are to leave, in order.
class Outbox {
 public:
  Outbox();
  // Takes a frame; a borrowed one has to stay where it is until clear(). There is room for kRoom frames. A bound frame
  // is not to be sent when it is late.
  void borrow(base::Bytes frame, const Offload& offload, bool bound);
  void copy(base::Bytes frame);  // of 256 bytes at most; bound
  bool full() const { return count_ == kRoom; }
  bool empty() const { return count_ == 0; }
  void clear() { count_ = 0; }
  // Leaves out bound frames, and returns how many those were.
  std::size_t drop_bound();

  static constexpr std::size_t kRoom = 2 * kBatch;

 private:
  friend class Link;
  void add(base::Bytes frame, const Offload& offload, bool bound);

  std::array<Offload, kRoom> offloads_;
  std::array<std::array<iovec, 2>, kRoom> parts_;
  std::array<mmsghdr, kRoom> messages_;
  std::array<bool, kRoom> bound_;
  std::array<std::array<std::byte, 256>, kRoom> copies_;
  std::size_t count_ = 0;
};

// Belongs to one thread.
class Link {
 public:
  // Errors: invalid_argument (there is no such interface, or it is no Ethernet), forbidden (no right to raw packets),
  // unavailable.
  static base::Result<std::unique_ptr<Link>> open(const std::string& interface);
  ~Link();
  Link(const Link&) = delete;
  // Opens the interface that has the name now, in place of the one before, and goes on counting. The descriptor is
  // another one afterwards, unless there is an error.
  base::Status reopen();

  const std::string& interface() const { return interface_; }
  int descriptor() const { return socket_; }  // readable when frames are there
  // Receives frames that are there, in order. They are valid until the batch is used again. Returns how many it took
  // from the kernel, of which some may have been unreadable.
  std::size_t receive(Batch& batch);
  // Sends what is in the outbox, in order, and empties it. What cannot be sent at once is dropped and counted.
  void send(Outbox& outbox);

  // Returns why no frames pass, for people; empty: they do. Asks the kernel.
  std::string trouble() const;
  // Says whether the interface that was opened is gone, though one of its name may be there.
  bool gone() const;
  int mtu() const;  // bytes; 0: there is no such interface
  const LinkCounts& counts();

 private:
  Link(std::string interface, int index, int socket)
      : interface_(std::move(interface)), index_(index), socket_(socket) {}
  bool take(Batch& batch, std::size_t i, base::Nanos now, Frame& frame);
  void count_failure(int error);

  std::string interface_;
  int index_;
  int socket_;
  LinkCounts counts_;
};

}  // namespace farpool::swordbox
