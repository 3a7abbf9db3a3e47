// SPDX-License-Identifier: Apache-2.0
#include "net/listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/v6_only.hpp>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <unordered_map>
#include <utility>

#include "net/address.h"
#include "net/ring_channel.h"
#include "net/sockets.h"
#include "net/tls_peer.h"

namespace farpool::net {
namespace {

using detail::Local;
using detail::Seat;
using detail::Tcp;
using detail::TlsSocket;

// Returns the number of a peer. An IPv4 peer of a socket for both families has its own number, not the one that IPv6
// wraps it in.
std::string text_of(const Tcp::endpoint& endpoint) {
  asio::ip::address address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  return Address{.host = address.to_string(), .port = endpoint.port(), .path = {}}.text();
}

std::string remote_of(const Tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  return error ? "a peer that has gone" : text_of(endpoint);
}

void tune(Tcp::socket& socket) {
  asio::error_code ignored;
  socket.set_option(Tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  // Asks again after a third of the first silence, and three times, as Redis does.
  constexpr std::array<std::pair<int, int>, 3> kProbing{
      {{TCP_KEEPIDLE, kKeepAliveSeconds}, {TCP_KEEPINTVL, kKeepAliveSeconds / 3}, {TCP_KEEPCNT, 3}}};
  for (const auto& [option, value] : kProbing)
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
}

// A TLS handshake with its deadline, on either side.
class Handshake : public std::enable_shared_from_this<Handshake> {
 public:
  using Done = std::function<void(base::Result<std::unique_ptr<Stream>>)>;

  Handshake(Loop& loop, Tcp::socket socket, std::shared_ptr<Tls> tls, Seat seat, Done done)
      : loop_(loop),
        kind_(tls->kind()),
        remote_(remote_of(socket)),
        socket_(std::make_unique<TlsSocket>(std::move(socket), *tls->context())),
        seat_(std::move(seat)),
        done_(std::move(done)),
        alarm_(loop, [this] { late(); }) {}

  void run(asio::ssl::stream_base::handshake_type side, Nanos deadline) {
    alarm_.set(deadline);
    socket_->async_handshake(side,
                             [self = shared_from_this()](const asio::error_code& error) { self->finished(error); });
  }

 private:
  void late() {
    late_ = true;
    asio::error_code ignored;
    socket_->lowest_layer().close(ignored);
  }
  void finished(const asio::error_code& error) {
    alarm_.cancel();
    if (auto done = std::exchange(done_, nullptr)) done(outcome(error));
  }
  base::Result<std::unique_ptr<Stream>> outcome(const asio::error_code& error) {
    if (late_)
      return base::Status(base::Code::timed_out, "TLS with " + remote_ + " did not finish before its deadline");
    if (error) {
      base::Status status = detail::status_of(error, "TLS with " + remote_);
      if (!status.ok()) return status;
      return base::Status(base::Code::unavailable, "TLS with " + remote_ + ": the peer closed the connection");
    }
    Identity peer;
    if (kind_ == Tls::Kind::mutual) {
      auto identity = peer_identity(socket_->native_handle());
      if (!identity.ok())
        return base::Status(base::Code::forbidden, "TLS with " + remote_ + ": " + identity.status().message());
      peer = *std::move(identity);
    }
    return std::make_unique<Stream>(
        new detail::TlsChannel(loop_, std::move(peer), std::move(remote_), std::move(seat_), std::move(socket_)));
  }

  Loop& loop_;
  const Tls::Kind kind_;
  std::string remote_;
  std::unique_ptr<TlsSocket> socket_;
  Seat seat_;
  Done done_;
  Alarm alarm_;
  bool late_ = false;
};

class Dial : public std::enable_shared_from_this<Dial> {
 public:
  Dial(Loop& loop, std::string address, std::shared_ptr<Tls> tls, Nanos deadline,
       std::function<void(base::Result<std::unique_ptr<Stream>>)> done)
      : loop_(loop),
        name_(std::move(address)),
        tls_(std::move(tls)),
        deadline_(deadline),
        done_(std::move(done)),
        resolver_(loop.context()),
        tcp_(loop.context()),
        local_(loop.context()) {}

  void run() {
    alarm_.emplace(loop_, [self = weak_from_this()] {
      if (auto dial = self.lock()) dial->late();
    });
    alarm_->set(deadline_);
    auto address = Address::parse(name_);
    if (!address.ok()) {
      end(address.status());
    } else if (address->local()) {
      rings_ = address->rings;
      local_.async_connect(Local::endpoint(address->path), [self = shared_from_this()](const asio::error_code& error) {
        if (error) return self->end(self->failed(error));
        if (self->rings_ && !detail::same_user(self->local_.native_handle())) {
          return self->end(base::Status(
              base::Code::forbidden,
              "connecting to " + self->name_ + ": a process of another user listens there; remove its socket"));
        }
        if (self->rings_) return self->take_rings();
        self->end(std::make_unique<Stream>(
            new detail::LocalChannel(self->loop_, {}, "unix", Seat(), std::move(self->local_))));
      });
    } else if (asio::error_code no_number; true) {
      const auto number = asio::ip::make_address(address->host, no_number);
      if (!no_number) {
        connect(Tcp::resolver::results_type::create(Tcp::endpoint(number, address->port), address->host, ""));
        return;
      }
      resolver_.async_resolve(
          address->host, std::to_string(address->port),
          [self = shared_from_this()](const asio::error_code& error, Tcp::resolver::results_type found) {
            if (error) return self->end(self->failed(error));
            self->connect(found);
          });
    }
  }

 private:
  void connect(const Tcp::resolver::results_type& candidates) {
    if (!done_) return;
    asio::async_connect(tcp_, candidates,
                        [self = shared_from_this()](const asio::error_code& error, const Tcp::endpoint&) {
                          if (error) return self->end(self->failed(error));
                          if (!self->done_) return;
                          self->connected();
                        });
  }
  void connected() {
    tune(tcp_);
    if (!tls_) {
      std::string remote = remote_of(tcp_);
      end(std::make_unique<Stream>(new detail::TcpChannel(loop_, {}, std::move(remote), Seat(), std::move(tcp_))));
      return;
    }
    alarm_->cancel();
    std::make_shared<Handshake>(loop_, std::move(tcp_), tls_, Seat(), std::exchange(done_, nullptr))
        ->run(asio::ssl::stream_base::client, deadline_);
  }
  void take_rings() {
    local_.async_wait(Local::socket::wait_read, [self = shared_from_this()](const asio::error_code& error) {
      if (error) return self->end(self->failed(error));
      auto rings = detail::receive_rings(self->local_.native_handle());
      if (!rings.ok()) {
        self->end(base::Status(rings.code(), "connecting to " + self->name_ + ": " + rings.status().message()));
      } else if (!*rings) {
        self->take_rings();
      } else if (self->done_) {
        self->end(std::make_unique<Stream>(new detail::RingChannel(self->loop_, Seat(), std::move(self->local_),
                                                                   std::move(**rings), /*accepted=*/false)));
      }
    });
  }
  base::Status failed(const asio::error_code& error) const {
    return {base::Code::unavailable, "connecting to " + name_ + ": " + error.message()};
  }
  void late() {
    end(base::Status(base::Code::timed_out, "connecting to " + name_ + " took longer than its deadline allows"));
    asio::error_code ignored;
    resolver_.cancel();
    tcp_.close(ignored);
    local_.close(ignored);
  }
  void end(base::Result<std::unique_ptr<Stream>> result) {
    alarm_->cancel();
    if (!done_) return;
    loop_.post([done = std::exchange(done_, nullptr), result = std::make_shared<base::Result<std::unique_ptr<Stream>>>(
                                                          std::move(result))] { done(std::move(*result)); });
  }

  Loop& loop_;
  std::string name_;
  std::shared_ptr<Tls> tls_;
  Nanos deadline_;
  std::function<void(base::Result<std::unique_ptr<Stream>>)> done_;
  Tcp::resolver resolver_;
  Tcp::socket tcp_;
  Local::socket local_;
  bool rings_ = false;
  std::optional<Alarm> alarm_;
};

}  // namespace

void connect(Loop& loop, std::string address, std::shared_ptr<Tls> tls, Nanos deadline,
             std::function<void(base::Result<std::unique_ptr<Stream>>)> done) {
  std::make_shared<Dial>(loop, std::move(address), std::move(tls), deadline, std::move(done))->run();
}

struct Listener::State : std::enable_shared_from_this<Listener::State> {
  State(Loop& loop, ListenOptions options, std::function<void(std::unique_ptr<Stream>)> accepted)
      : loop(loop), options(std::move(options)), accepted(std::move(accepted)) {}
  virtual ~State() = default;
  virtual void close() = 0;

  Loop& loop;
  const ListenOptions options;
  const std::function<void(std::unique_ptr<Stream>)> accepted;
  std::string address;
  const Seat::Taken taken = options.open ? options.open : std::make_shared<std::atomic<std::uint64_t>>(0);
  std::atomic<std::uint64_t> accepted_count = 0;
  std::atomic<std::uint64_t> refused_full = 0;
  std::atomic<std::uint64_t> failed_handshakes = 0;
  std::atomic<bool> closed = false;
};

namespace {

// How long to wait when the process has run out of descriptors and cannot free one to refuse a peer.
constexpr Nanos kAcceptPause = 100 * base::kMillisecond;
// How many peers are refused at once with a text, and how long such a peer may take over TLS.
constexpr std::size_t kFarewells = kRefusalsAtOnce;
constexpr Nanos kFarewellHandshake = 2 * base::kSecond;

// Sends the refusal to a peer for which there is no room, and closes.
class Farewell final : public StreamHandler {
 public:
  Farewell(std::unique_ptr<Stream> stream, const std::string& text, std::function<void()> over)
      : stream_(std::move(stream)), over_(std::move(over)) {
    stream_->start(*this);
    stream_->write(text);
    stream_->finish();
  }
  virtual ~Farewell() = default;
  void on_input() noexcept override { stream_->consume(stream_->input().size()); }
  void on_closed(const base::Status&) noexcept override { std::exchange(over_, nullptr)(); }

 private:
  const std::unique_ptr<Stream> stream_;
  std::function<void()> over_;  // destroys this
};

template <class Protocol, class Base>
class Acceptor final : public Base {
 public:
  using Base::Base;
  using Socket = typename Protocol::socket;

  base::Status bind(const typename Protocol::endpoint& endpoint) {
    asio::error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if constexpr (std::is_same_v<Protocol, Tcp>) {
      if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
      if (!error && endpoint.address().is_v6()) acceptor_.set_option(asio::ip::v6_only(false), error);
    }
    if (!error) acceptor_.non_blocking(true, error);
    protocol_ = endpoint.protocol();
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return {base::Code::unavailable, "listening on " + this->options.address + ": " + error.message() +
                                           "; is another process there, or may this one not use the address?"};
    }
    if constexpr (std::is_same_v<Protocol, Tcp>) {
      this->address = text_of(acceptor_.local_endpoint());
    } else {
      this->address = this->options.address;
    }
    return {};
  }
  void accept() {
    acceptor_.async_accept(
        [self = self()](const asio::error_code& error, Socket socket) { self->came(error, std::move(socket)); });
  }
  void close() override {
    if (this->options.take_waiting) {
      while (const std::optional<int> waiting = accept_now()) take(*waiting);
    }
    this->closed = true;
    farewells_.clear();
    asio::error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    if constexpr (std::is_same_v<Protocol, Local>) ::unlink(Address::parse(this->options.address)->path.c_str());
  }

 private:
  std::shared_ptr<Acceptor> self() { return std::static_pointer_cast<Acceptor>(this->shared_from_this()); }

  void came(const asio::error_code& error, Socket socket) {
    if (this->closed) return;
    if (!error) {
      take(socket.release());
    } else if (error == asio::error::no_descriptors || error == asio::error::no_memory ||
               error == asio::error::no_buffer_space) {
      // Otherwise the peer would wait for ever, and the accept would fail for ever.
      if (!refuse_with_the_spare()) return pause_.set(Loop::now() + kAcceptPause);
    }
    accept();
  }

  // Returns the next waiting connection, if there is one.
  std::optional<int> accept_now() {
    const int descriptor = ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return descriptor < 0 ? std::nullopt : std::optional(descriptor);
  }
  bool refuse_with_the_spare() {
    if (spare_.free()) {
      if (const std::optional<int> waiting = accept_now()) {
        ++this->refused_full;
        refuse_at_once(*waiting);
      }
    }
    return spare_.keep();
  }
  // The peer may not receive it, depending on what it has sent: a socket closed with unread input resets the
  // connection.
  void refuse_at_once(int descriptor) {
    const std::string& text = this->options.when_full;
    if (!this->options.tls && !text.empty()) {
      (void)::send(descriptor, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      std::array<char, 4096> unheard;
      (void)::recv(descriptor, unheard.data(), unheard.size(), MSG_DONTWAIT);
    }
    ::close(descriptor);
  }

  void take(int descriptor) {
    if (this->taken->load(std::memory_order_relaxed) >= this->options.max_connections) {
      ++this->refused_full;
      return refuse(descriptor);
    }
    ++this->accepted_count;
    // It moves to its loop only now, so that no operation of this loop holds a socket of a loop that may end earlier.
    Loop& to = this->options.place ? this->options.place() : this->loop;
    Socket moved(to.context(), protocol_, descriptor);
    asio::post(to.context(), [self = self(), &to, socket = std::move(moved), seat = Seat(this->taken)]() mutable {
      self->greet(to, std::move(socket), std::move(seat));
    });
  }

  void refuse(int descriptor) {
    if (this->options.when_full.empty() || farewells_.size() >= kFarewells) return refuse_at_once(descriptor);
    Socket socket(this->loop.context(), protocol_, descriptor);
    const std::uint64_t number = ++farewell_number_;
    if constexpr (std::is_same_v<Protocol, Local>) {
      say_farewell(number, std::make_unique<Stream>(
                               new detail::LocalChannel(this->loop, {}, "unix", Seat(), std::move(socket))));
    } else if (!this->options.tls) {
      std::string remote = remote_of(socket);
      say_farewell(number, std::make_unique<Stream>(
                               new detail::TcpChannel(this->loop, {}, std::move(remote), Seat(), std::move(socket))));
    } else {
      farewells_[number] = nullptr;  // counts from here on
      std::make_shared<Handshake>(this->loop, std::move(socket), this->options.tls, Seat(),
                                  [self = self(), number](base::Result<std::unique_ptr<Stream>> stream) {
                                    if (self->closed) return;
                                    self->farewells_.erase(number);
                                    if (stream.ok()) self->say_farewell(number, std::move(*stream));
                                  })
          ->run(asio::ssl::stream_base::server, Loop::now() + kFarewellHandshake);
    }
  }
  void say_farewell(std::uint64_t number, std::unique_ptr<Stream> stream) {
    farewells_[number] = std::make_unique<Farewell>(std::move(stream), this->options.when_full,
                                                    [this, number] { farewells_.erase(number); });
  }

  void greet(Loop& to, Socket socket, Seat seat) {
    if constexpr (std::is_same_v<Protocol, Local>) {
      if (Address::parse(this->options.address)->rings) return give_rings(to, std::move(socket), std::move(seat));
      this->accepted(
          std::make_unique<Stream>(new detail::LocalChannel(to, {}, "unix", std::move(seat), std::move(socket))));
    } else {
      tune(socket);
      if (!this->options.tls) {
        std::string remote = remote_of(socket);
        this->accepted(std::make_unique<Stream>(
            new detail::TcpChannel(to, {}, std::move(remote), std::move(seat), std::move(socket))));
        return;
      }
      std::make_shared<Handshake>(to, std::move(socket), this->options.tls, std::move(seat),
                                  [self = self()](base::Result<std::unique_ptr<Stream>> stream) {
                                    if (!stream.ok()) {
                                      ++self->failed_handshakes;
                                    } else if (!self->closed || self->options.take_waiting) {
                                      self->accepted(std::move(*stream));
                                    }
                                  })
          ->run(asio::ssl::stream_base::server, Loop::now() + this->options.handshake_deadline);
    }
  }

  // If there is no memory for rings, the peer finds the connection closed.
  void give_rings(Loop& to, Local::socket socket, Seat seat) {
    if (!detail::same_user(socket.native_handle())) {
      ++this->failed_handshakes;
      return;
    }
    auto memory = detail::RingMemory::create();
    if (!memory.ok() || !detail::send_rings(socket.native_handle(), *memory).ok()) {
      ++this->failed_handshakes;
      return;
    }
    this->accepted(std::make_unique<Stream>(
        new detail::RingChannel(to, std::move(seat), std::move(socket), std::move(*memory), /*accepted=*/true)));
  }

  // A descriptor to give up, to refuse a peer when no other is left.
  class Spare {
   public:
    Spare() { keep(); }
    Spare(const Spare&) = delete;
    ~Spare() { free(); }
    bool keep() {
      if (descriptor_ < 0) descriptor_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      return descriptor_ >= 0;
    }
    bool free() { return descriptor_ >= 0 && ::close(std::exchange(descriptor_, -1)) == 0; }

   private:
    int descriptor_ = -1;
  };

  typename Protocol::acceptor acceptor_{this->loop.context()};
  Protocol protocol_ = typename Protocol::endpoint().protocol();
  Spare spare_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Farewell>> farewells_;  // nullptr: over TLS, and not yet there
  std::uint64_t farewell_number_ = 0;
  Alarm pause_{this->loop, [this] { accept(); }};
};

// Removes a socket file that nobody listens on: a dead process left it.
base::Status clear_stale(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode)) {
    return {base::Code::invalid_argument,
            "listening on " + path + ": a file that is no socket stands there; choose another path"};
  }
  asio::io_context context;
  Local::socket probe(context);
  asio::error_code error;
  probe.connect(Local::endpoint(path), error);
  if (!error) return {base::Code::unavailable, "listening on " + path + ": another process listens there"};
  ::unlink(path.c_str());
  return {};
}

}  // namespace

// Keeps young sockets: their process may be about to listen.
void remove_left_over(const std::string& address) {
  namespace fs = std::filesystem;
  const fs::path own = address.substr(address.find(':') + 1);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(own.parent_path(), error)) {
    const auto age = fs::file_time_type::clock::now() - entry.last_write_time(error);
    if (error || entry.path().extension() != own.extension() || !entry.is_socket(error) ||
        age < std::chrono::minutes(1))
      continue;
    asio::io_context context;
    Local::socket probe(context);
    asio::error_code refused;
    probe.connect(Local::endpoint(entry.path().string()), refused);
    if (refused == asio::error::connection_refused) fs::remove(entry.path(), error);
  }
}

bool kernel_has_ipv6() {
  const int socket = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return errno != EAFNOSUPPORT;
  ::close(socket);
  return true;
}

base::Result<std::unique_ptr<Listener>> Listener::open(Loop& loop, ListenOptions options,
                                                       std::function<void(std::unique_ptr<Stream>)> accepted) {
  auto address = Address::parse(options.address);
  if (!address.ok()) return address.status();
  if (address->local()) {
    if (options.tls)
      return base::Status(base::Code::invalid_argument, "TLS is not spoken on a Unix socket: leave one of them out");
    if (auto status = clear_stale(address->path); !status.ok()) return status;
    const int mode = options.unix_mode;
    auto state = std::make_shared<Acceptor<Local, State>>(loop, std::move(options), std::move(accepted));
    if (auto status = state->bind(Local::endpoint(address->path)); !status.ok()) return status;
    ::chmod(address->path.c_str(), static_cast<mode_t>(mode));
    loop.post([state] { state->accept(); });
    return std::unique_ptr<Listener>(new Listener(std::move(state)));
  }
  asio::error_code error;
  Tcp::resolver resolver(loop.context());
  const auto found = resolver.resolve(address->host, std::to_string(address->port), Tcp::resolver::passive, error);
  if (error || found.empty()) {
    return base::Status(base::Code::invalid_argument, "listening on " + options.address + ": " + error.message());
  }
  Tcp::endpoint endpoint = found.begin()->endpoint();
  if (endpoint.address() == asio::ip::address_v6::any() && !kernel_has_ipv6())
    endpoint.address(asio::ip::address_v4::any());
  auto state = std::make_shared<Acceptor<Tcp, State>>(loop, std::move(options), std::move(accepted));
  if (auto status = state->bind(endpoint); !status.ok()) return status;
  loop.post([state] { state->accept(); });
  return std::unique_ptr<Listener>(new Listener(std::move(state)));
}

Listener::Listener(std::shared_ptr<State> state) : state_(std::move(state)) {}
Listener::~Listener() { state_->close(); }
const std::string& Listener::address() const { return state_->address; }
Listener::Stats Listener::stats() const {
  return {.open = state_->taken->load(std::memory_order_relaxed),
          .accepted = state_->accepted_count.load(),
          .refused_full = state_->refused_full.load(),
          .failed_handshakes = state_->failed_handshakes.load()};
}

}  // namespace farpool::net
