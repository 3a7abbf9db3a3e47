// SPDX-License-Identifier: Apache-2.0
// A connection's bytes, the same over TCP, TLS and Unix sockets. The stream owns both buffers. What has come in lies
// contiguous until it is consumed. What is written leaves with one system call: right after on_input if it was written
// there, otherwise when the turn ends. In steady state nothing is allocated.
//
// The owner applies back pressure: it stops reading (pause_reading) while unsent() or its own work is too much, and
// continues when on_sent says that everything has left. All of a stream belongs to the thread of its loop.
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

// The stream calls these on the loop's thread, never from within a call on the stream. Each call may destroy the
// stream.
class StreamHandler {
 public:
  // Called when more bytes have come in (see Stream::need).
  virtual void on_input() noexcept = 0;
  // Called when what has been written since the last time leaves, with one system call if the socket takes it. May
  // write nothing.
  virtual void on_flush() noexcept {}
  // Called when everything written has been handed to the operating system.
  virtual void on_sent() noexcept {}
  // Called when the peer sends nothing more; on_input has shown everything that it sent. Returns true to continue with
  // the other half: then the owner ends the stream with finish() or close(). False, the default: the stream closes at
  // once.
  virtual bool on_input_end() noexcept { return false; }
  // Called when the peer takes nothing more: from now on what is written is lost. Returns true to read what the peer
  // sent before, up to on_input_end. False, the default: the stream closes at once.
  virtual bool on_output_end() noexcept { return false; }
  // Called once, and last: the peer has closed (ok), close() or finish() was called, or the connection broke.
  virtual void on_closed(const base::Status& why) noexcept = 0;

 protected:
  ~StreamHandler() = default;
};

class Stream {
 public:
  // connect() and Listener make streams.
  explicit Stream(detail::Channel* channel);
  Stream(const Stream&) = delete;
  // Closes at once; the handler gets no more calls. Must happen on the loop's thread, before the loop is destroyed.
  ~Stream();

  // Starts to read, or hands the stream to another handler. The handler must outlive the stream or its on_closed.
  void start(StreamHandler& handler);

  Loop& loop() const;
  const Identity& peer() const;       // from its certificate; not authenticated where there was none
  const std::string& remote() const;  // for people: "10.0.0.3:41234", "unix"
  bool open() const;

  // Returns the bytes received and not yet consumed, contiguous. Valid until consume() or the end of the handler's
  // call.
  base::MutableBytes input() const;
  void consume(std::size_t bytes);
  // Calls on_input only when at least this many bytes are there, until changed; the buffer grows to hold them. Default
  // 1. The caller bounds it. Input that the caller leaves unconsumed without needing more of it does not cause another
  // call.
  void need(std::size_t bytes);
  void pause_reading();
  void resume_reading();

  // Appends room for `bytes` to what is to be sent; the caller fills it before control returns to the loop. Valid until
  // the next call of reserve or write.
  base::MutableBytes reserve(std::size_t bytes);
  // Gives back the end of the room that the last reserve() gave, before control returns to the loop.
  void take_back(std::size_t bytes);
  void write(base::Bytes bytes);
  void write(std::string_view text) { write(base::bytes_of(text)); }
  // Returns whether the operating system holds unread bytes from the peer.
  bool readable() const;
  // Returns the number of bytes that were written and not yet taken by the operating system.
  std::size_t unsent() const;

  // Closes when everything written has been sent; reads no more.
  void finish();
  // Closes at once and drops what is unsent. on_closed follows at a later turn, with `why`.
  void close(base::Status why);

 private:
  detail::Channel* channel_;
};

}  // namespace farpool::net
