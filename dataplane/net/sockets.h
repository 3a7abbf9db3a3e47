// SPDX-License-Identifier: Apache-2.0
// The channels over real sockets. Internal to net.
#pragma once

#include <asio/buffer.hpp>
#include <asio/error.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/ssl/error.hpp>
#include <asio/ssl/stream.hpp>
#include <asio/write.hpp>
#include <memory>
#include <string>
#include <utility>

#include "net/channel.h"

namespace farpool::net::detail {

using Tcp = asio::ip::tcp;
using Local = asio::local::stream_protocol;
using TlsSocket = asio::ssl::stream<Tcp::socket>;

inline base::Status status_of(const asio::error_code& error, const std::string& doing) {
  if (!error || error == asio::error::eof || error == asio::ssl::error::stream_truncated) return {};
  const bool tls = error.category() == asio::error::get_ssl_category();
  return {tls ? base::Code::forbidden : base::Code::unavailable, doing + ": " + error.message()};
}

template <class Socket>
class SocketChannel final : public Channel {
 public:
  SocketChannel(Loop& loop, Identity peer, std::string remote, Seat seat, Socket socket)
      : Channel(loop, std::move(peer), std::move(remote), std::move(seat)), socket_(std::move(socket)) {
    asio::error_code ignored;
    wire().lowest_layer().non_blocking(true, ignored);
  }

  bool readable() override {
    asio::error_code ignored;
    return wire().lowest_layer().available(ignored) > 0;
  }

 private:
  static constexpr bool kTls = requires(Socket socket) { *socket; };

  struct ReadDone {
    Ref channel;
    void operator()(const asio::error_code& error, std::size_t bytes) {
      channel->read_done(static_cast<bool>(error),
                         error ? status_of(error, "reading from " + channel->remote) : base::Status(), bytes);
    }
  };
  struct WriteDone {
    Ref channel;
    void operator()(const asio::error_code& error, std::size_t) {
      channel->write_done(static_cast<bool>(error),
                          error ? status_of(error, "writing to " + channel->remote) : base::Status());
    }
  };

  auto& wire() {
    if constexpr (kTls) {
      return *socket_;
    } else {
      return socket_;
    }
  }

  void begin_read(base::MutableBytes into) override {
    wire().async_read_some(asio::buffer(into.data(), into.size()), ReadDone{Ref(this)});
  }
  void begin_write(base::Bytes from) override {
    asio::async_write(wire(), asio::buffer(from.data(), from.size()), WriteDone{Ref(this)});
  }
  // A read yields one TLS record, and a peer that answers each record by one of its own would keep both sides at records
  // with one answer each. So the handler sees all records that have come in.
  std::size_t read_now([[maybe_unused]] base::MutableBytes into) override {
    if constexpr (kTls) {
      SSL* const tls = wire().native_handle();
      if (SSL_pending(tls) == 0 && BIO_ctrl_pending(SSL_get_rbio(tls)) == 0) return 0;
      asio::error_code error;
      const std::size_t bytes = wire().read_some(asio::buffer(into.data(), into.size()), error);
      return error ? 0 : bytes;
    }
    return 0;
  }
  base::Status write_now([[maybe_unused]] base::Bytes from, [[maybe_unused]] std::size_t& taken) override {
    if constexpr (!kTls) {  // a TLS record that has been cut off half way cannot be taken up again
      asio::error_code error;
      taken = socket_.write_some(asio::buffer(from.data(), from.size()), error);
      if (error && error != asio::error::would_block && error != asio::error::interrupted) {
        return status_of(error, "writing to " + remote);
      }
    }
    return {};
  }
  bool begin_goodbye() override {
    if constexpr (kTls) {
      wire().async_shutdown([channel = Ref(this)](const asio::error_code&) { channel->goodbye_done(); });
      return true;
    } else {
      asio::error_code ignored;
      socket_.shutdown(Socket::shutdown_send, ignored);
      return false;
    }
  }
  void close_socket() override {
    asio::error_code ignored;
    wire().lowest_layer().close(ignored);
  }

  Socket socket_;
};

using TcpChannel = SocketChannel<Tcp::socket>;
using LocalChannel = SocketChannel<Local::socket>;
using TlsChannel = SocketChannel<std::unique_ptr<TlsSocket>>;

}  // namespace farpool::net::detail
