// SPDX-License-Identifier: Apache-2.0
// A stream over rings in shared memory. The Unix socket that carried their descriptor stays open: a byte on it rings
// the peer when it sleeps, and the end of the socket is the end of the stream. Internal to net.
//
// The accepting end first sends sixteen bytes with the descriptor: "fplrings", and the capacity of a ring as a
// little-endian word.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "net/ring.h"
#include "net/sockets.h"

namespace farpool::net::detail {

// Says whether the process at the other end of a connected Unix socket runs as the same user: rings are offered to, and
// taken from, no other.
bool same_user(int socket);
// Send and receive rings on a connected socket, without waiting. receive_rings returns nothing if nothing has come yet.
base::Status send_rings(int socket, const RingMemory& memory);
base::Result<std::optional<RingMemory>> receive_rings(int socket);

class RingChannel final : public Channel, public Poller {
 public:
  RingChannel(Loop& loop, Seat seat, Local::socket socket, RingMemory memory, bool accepted)
      : Channel(loop, {}, "shared memory", std::move(seat)),
        socket_(std::move(socket)),
        memory_(std::move(memory)),
        out_(memory_.producer(accepted)),
        in_(memory_.consumer(accepted)) {
    memory_.close_descriptor();
    loop.add(*this);
    listen();
  }
  bool answers_at_once() const override { return false; }
  bool readable() override { return false; }  // a read is always under way, and poll() tells

 private:
  ~RingChannel() override = default;  // closed before: the loop knows it no more

  // The peer sends at least one byte to wake this side; their number does not matter.
  void listen() {
    socket_.async_wait(Local::socket::wait_read, [self = Ref(this), this](const asio::error_code& error) {
      if (error || !open()) return;
      std::array<std::byte, 256> bells;
      const ssize_t got = ::recv(socket_.native_handle(), bells.data(), bells.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        ended_ = true;  // what it wrote before is still to be read
      } else {
        listen();
      }
    });
  }
  // Rings the peer. If the socket is full, the peer has enough bells: it never waits for room.
  void ring() {
    const std::byte bell{};
    (void)::send(socket_.native_handle(), &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  bool poll() noexcept override {
    const Ref self(this);  // the handler may destroy the stream
    bool any = false;
    if (!into_.empty()) {
      if (const std::size_t got = in_.read(into_); got > 0) {
        if (in_.must_ring()) ring();
        into_ = {};
        any = true;
        read_done(false, {}, got);
      } else if (in_.broken() || ended_) {
        into_ = {};
        any = true;
        read_done(true, in_.broken() ? broken() : base::Status(), 0);
      }
    }
    if (!from_.empty() && open()) {
      std::size_t taken = 0;
      const base::Status status = write_now(from_, taken);
      from_ = from_.subspan(taken);
      any |= taken > 0;
      if (!status.ok() || from_.empty()) {
        from_ = {};
        any = true;
        write_done(!status.ok(), status);
      }
    }
    return any;
  }
  bool may_sleep() noexcept override {
    if (!into_.empty() && (ended_ || !in_.may_sleep())) return false;
    return from_.empty() || (!ended_ && out_.may_sleep());
  }

  void begin_read(base::MutableBytes into) override { into_ = into; }
  void begin_write(base::Bytes from) override { from_ = from; }
  base::Status write_now(base::Bytes from, std::size_t& taken) override {
    taken = out_.write(from);
    if (taken > 0 && out_.must_ring()) ring();
    if (out_.broken()) return broken();
    if (ended_) return {base::Code::unavailable, "writing to " + remote + ": the peer has gone"};
    return {};
  }
  bool begin_goodbye() override {
    asio::error_code ignored;
    socket_.shutdown(Local::socket::shutdown_send, ignored);
    return false;
  }
  void close_socket() override {
    loop.remove(*this);
    asio::error_code ignored;
    socket_.close(ignored);
    into_ = {};
    from_ = {};
  }
  static base::Status broken() {
    return {base::Code::corrupt, "the peer has written positions into shared memory that cannot be"};
  }

  Local::socket socket_;
  RingMemory memory_;
  RingProducer out_;
  RingConsumer in_;
  base::MutableBytes into_;  // a read under way; none: empty
  base::Bytes from_;         // a write under way
  bool ended_ = false;       // the peer will write nothing more
};

}  // namespace farpool::net::detail
