// SPDX-License-Identifier: Apache-2.0
// A connection's bytes, the same over TCP, TLS and Unix sockets. The stream owns both buffers: what has come in lies
// contiguous until it is consumed; what is written leaves with one system call: right after on_input, if it was
// written there, and otherwise when the turn ends. In steady state nothing is allocated.
//
// The owner applies back pressure: it stops reading (pause_reading) while unsent() or its own work is too much, and
// goes on when on_sent says that all has left. All of a stream belongs to the thread of its loop.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "net/identity.h"
#include "net/loop.h"

namespace farpool::net {

// How long a TCP connection may be silent before the operating system asks whether its peer is still there.
inline constexpr int kKeepAliveSeconds = 300;

namespace detail {
class Channel;
}

// Called on the loop's thread, never from within a call on the stream. Each call may destroy the stream.
class StreamHandler {
 public:
  // More bytes have come in (see Stream::need).
  virtual void on_input() noexcept = 0;
  // What has been written since the last time leaves now, with one system call where the socket takes it. May write
  // nothing.
  virtual void on_flush() noexcept {}
  // Everything written has been handed to the operating system.
  virtual void on_sent() noexcept {}
  // The peer sends nothing more; on_input has shown all that it sent. Returns true to go on with the other half: then
  // the owner ends the stream with finish() or close(). False, the default: the stream closes at once.
  virtual bool on_input_end() noexcept { return false; }
  // The peer takes nothing more: what is written goes nowhere from now on. Returns true to read what it sent before, up
  // to on_input_end. False, the default: the stream closes at once.
  virtual bool on_output_end() noexcept { return false; }
  // Once, and the last call: the peer has closed (ok), close() or finish() was called, or the connection broke.
  virtual void on_closed(const base::Status& why) noexcept = 0;

 protected:
  ~StreamHandler() = default;
};

class Stream {
 public:
  // Made by connect() and Listener.
  explicit Stream(detail::Channel* channel);
  Stream(const Stream&) = delete;
  // Closes at once; the handler hears nothing more. Must happen on the loop's thread, before the loop is destroyed.
  ~Stream();

  // Begins to read, or hands the stream to another handler. The handler must outlive the stream or its on_closed.
  void start(StreamHandler& handler);

  Loop& loop() const;
  const Identity& peer() const;       // from its certificate; not authenticated where there was none
  const std::string& remote() const;  // for people: "10.0.0.3:41234", "unix"
  bool open() const;

  // Bytes received and not yet consumed, contiguous. Valid until consume() or the end of the handler's call.
  base::MutableBytes input() const;
  void consume(std::size_t bytes);
  // on_input is called only when at least this many bytes are there, until changed; the buffer grows to hold them.
  // Default 1. The caller bounds it. A caller that leaves input unconsumed while it needs no more of it is not called
  // again for it.
  void need(std::size_t bytes);
  void pause_reading();
  void resume_reading();

  // Appends room for `bytes` to what is to be sent, to be filled before control returns to the loop. Valid until the
  // next call of reserve or write.
  base::MutableBytes reserve(std::size_t bytes);
  // Gives back the end of the room that the last reserve() gave, before control returns to the loop.
  void take_back(std::size_t bytes);
  void write(base::Bytes bytes);
  void write(std::string_view text) { write(base::bytes_of(text)); }
  // True if the operating system holds bytes from the peer that have not been read.
  bool readable() const;
  // Written and not yet taken by the operating system.
  std::size_t unsent() const;

  // Closes when all that is written has been sent; reads no more.
  void finish();
  // Closes at once and drops what is unsent. on_closed follows at a later turn with `why`.
  void close(base::Status why);

 private:
  detail::Channel* channel_;
};

}  // namespace farpool::net
