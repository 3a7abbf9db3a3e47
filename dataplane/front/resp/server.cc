// SPDX-License-Identifier: Apache-2.0
#include "front/resp/server.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace farpool::front::resp {
namespace {

// How often clients are looked at that have not taken their replies.
constexpr base::Nanos kLook = 100 * base::kMillisecond;
// Closing a connection for less would free nothing.
constexpr std::size_t kWorthCutting = 1024 * 1024;

// Unique in the process, as CLIENT ID promises.
std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

class Worker::Connection final : public net::StreamHandler, public net::TurnHook {
 public:
  Connection(Worker& worker, std::unique_ptr<net::Stream> stream, std::string local)
      : worker_(worker),
        stream_(std::move(stream)),
        remote_(stream_->remote()),
        conversation_(worker.service_, {next_id(), remote_, std::move(local)},
                      [this] { worker_.loop_.at_turn_end(*this); }) {}
  virtual ~Connection() = default;

  void begin() {
    stream_->start(*this);
    step();
  }

  void drain() {
    draining_ = true;
    worker_.loop_.at_turn_end(*this);
  }
  void hush() {
    conversation_.drain();
    worker_.loop_.at_turn_end(*this);
  }
  void cut(const std::string& why) {
    cut_ = true;
    conversation_.cut();
    if (stream_) stream_->close({base::Code::unavailable, why});
  }
  // As cut(), and tells people.
  void give_up(const std::string& why) {
    if (worker_.service_.warn) {
      const std::string name = conversation_.name.empty() ? "" : " (" + conversation_.name + ")";
      worker_.service_.warn("the connection of client " + remote_ + name + " is closed: " + why);
    }
    cut(why);
  }
  void look() { worker_.loop_.at_turn_end(*this); }

  Conversation& conversation() { return conversation_; }
  const Conversation& conversation() const { return conversation_; }
  bool open() const { return stream_ != nullptr && !cut_; }
  bool ending() const { return input_ended_ || conversation_.closing(); }
  // How long the client has taken less than it must of what waits for it.
  base::Nanos slow_for(base::Nanos now) const { return conversation_.waiting() == 0 ? 0 : now - taken_since_; }
  base::Nanos without_room_for(base::Nanos now) {
    if (!conversation_.waits_for_room()) {
      no_room_since_.reset();
    } else if (!no_room_since_) {
      no_room_since_ = now;
    }
    return no_room_since_ ? now - *no_room_since_ : 0;
  }
  // Something that only time or others can change: replies that wait for the client, or a command that waits for room.
  bool waits() const { return conversation_.waiting() > 0 || no_room_since_ || conversation_.waits_for_room(); }

  void on_input() noexcept override { step(); }
  void on_sent() noexcept override { step(); }
  void on_turn_end() noexcept override { step(); }
  // A half that has ended says nothing about the other: what the client sent before is run and answered, as far as it
  // came whole. Over TLS that holds with and without a goodbye: an attacker who cuts a connection can keep back what
  // follows, and change nothing of what came.
  bool on_input_end() noexcept override {
    input_ended_ = true;
    step();
    return true;
  }
  bool on_output_end() noexcept override {
    conversation_.abandon();
    worker_.loop_.at_turn_end(*this);
    return true;
  }
  void on_closed(const base::Status&) noexcept override {
    if (!cut_) rest_ = base::text_of(stream_->input());
    stream_.reset();
    conversation_.abandon();
    worker_.loop_.at_turn_end(*this);
  }

 private:
  // Takes what has come in, sends what is ready, and goes when there is no more to do. All ways lead here.
  void step() {
    if (!stream_) {
      std::string_view left = rest_;
      conversation_.receive(left);
      rest_.erase(0, rest_.size() - left.size());
      if (conversation_.idle() && (rest_.empty() || conversation_.closing())) return worker_.forget(this);
      if (conversation_.waits_for_room()) worker_.watch();
      return;
    }
    conversation_.set_unsent(stream_->unsent());
    const base::MutableBytes input = stream_->input();
    std::string_view left = base::text_of(input);
    conversation_.receive(left);
    stream_->consume(input.size() - left.size());
    if (input_ended_ && left.empty()) conversation_.drain();

    Backlog& backlog = conversation_.backlog();
    while (!backlog.empty() && stream_->unsent() < kAhead) {
      const std::string_view piece = backlog.first().substr(0, kAhead);
      worker_.counters_.output_bytes.add(piece.size());
      written_ += piece.size();
      stream_->write(piece);
      backlog.consume(piece.size());
    }
    conversation_.set_unsent(stream_->unsent());
    note_taken();
    if (draining_ && left.empty() && conversation_.at_rest() && stream_->unsent() == 0 && !stream_->readable()) {
      conversation_.drain();
    }
    if (conversation_.closing() && conversation_.idle() && backlog.empty()) {
      // finish() grants the peer little time: wait for it to take the replies first.
      if (stream_->unsent() == 0) stream_->finish();
    }
    conversation_.hungry() ? stream_->resume_reading() : stream_->pause_reading();
    if (conversation_.waiting() > 0 || conversation_.waits_for_room()) worker_.watch();
  }

  void note_taken() {
    const bool waits = conversation_.waiting() > 0;
    const std::uint64_t taken = written_ - stream_->unsent();
    if (waits && (!waited_ || taken - taken_then_ >= kLeastTaken)) {
      taken_since_ = net::Loop::now();
      taken_then_ = taken;
    }
    waited_ = waits;
  }

  // Handed to the stream at a time: the rest of the replies stays where it takes no more memory than it must.
  static constexpr std::size_t kAhead = 256 * 1024;
  Worker& worker_;
  std::unique_ptr<net::Stream> stream_;
  const std::string remote_;
  Conversation conversation_;
  bool draining_ = false;
  bool input_ended_ = false;
  bool cut_ = false;
  std::string rest_;  // what had come and was not taken when the connection broke
  std::uint64_t written_ = 0;
  bool waited_ = false;           // replies wait since taken_since_, or
  base::Nanos taken_since_ = 0;   // the client had taken kLeastTaken more then,
  std::uint64_t taken_then_ = 0;  // which made so many bytes
  std::optional<base::Nanos> no_room_since_;
};

Worker::Worker(net::Loop& loop, client::Kv& kv, const Settings& settings)
    : loop_(loop),
      service_{.kv = kv, .settings = settings, .counters = counters_, .begun = net::Loop::now(), .loop = &loop},
      watch_(loop, [this] { look(); }) {}

Worker::~Worker() { FARPOOL_CHECK(idle()); }

void Worker::adopt(std::unique_ptr<net::Stream> stream, std::string local) {
  if (gone_) return;
  auto* connection = new Connection(*this, std::move(stream), std::move(local));
  connections_.insert(connection);
  counters_.connections.add();
  counters_.connections_total.add();
  if (draining_) connection->drain();
  if (hushed_) connection->hush();
  connection->begin();
}

void Worker::forget(Connection* connection) {
  connections_.erase(connection);
  counters_.connections.subtract();
  delete connection;
  if (!connections_.empty() || !drained_) return;
  gone_ = true;
  loop_.post(std::exchange(drained_, nullptr));
}

void Worker::drain(std::function<void()> drained) {
  draining_ = true;
  gone_ = connections_.empty();
  if (gone_) return loop_.post(std::move(drained));
  drained_ = std::move(drained);
  for (Connection* connection : connections_) connection->drain();
}

void Worker::hush() {
  hushed_ = true;
  for (Connection* connection : connections_) connection->hush();
}

void Worker::cut() {
  for (Connection* connection : connections_) connection->cut("the compute shard shuts down");
}

void Worker::watch() {
  if (std::exchange(watching_, true)) return;
  watch_.set(net::Loop::now() + kLook);
}

void Worker::look() {
  watching_ = false;
  const base::Nanos now = net::Loop::now();
  const Settings& settings = service_.settings;
  const auto bytes = [](const Connection& connection) {
    return std::to_string(connection.conversation().waiting()) + " bytes of replies wait for it";
  };
  const auto seconds = [](base::Nanos time) { return std::to_string(time / base::kSecond) + " s"; };
  std::vector<Connection*> waiting;  // go on where there is room again
  std::vector<Connection*> slow;
  Connection* without_room = nullptr;
  for (Connection* connection : connections_) {
    if (connection->waits()) waiting.push_back(connection);
    if (!connection->open()) continue;
    Conversation& conversation = connection->conversation();
    const base::Nanos slow_for = connection->slow_for(now);
    if (connection->ending() && slow_for >= settings.last_patience) {
      counters_.cut_after_end.add();
      connection->give_up("it has ended, and " + bytes(*connection) +
                          " wait for it, and it has taken hardly any of them for " + seconds(slow_for));
    } else if (!service_.pressed() && conversation.stalled_by_replies() && slow_for >= settings.unread_patience) {
      counters_.cut_for_unread.add();
      connection->give_up("it sends commands and takes no replies: " + bytes(*connection) + " (the limit is " +
                          std::to_string(settings.max_unread_bytes) + ", --max-unread-bytes), for " +
                          seconds(slow_for) + "; it should read while it writes, or send fewer commands at once");
    } else if (slow_for >= settings.pressed_patience && conversation.waiting() >= kWorthCutting) {
      slow.push_back(connection);
    }
    if (connection->without_room_for(now) >= settings.pressed_patience &&
        (without_room == nullptr || conversation.held() > without_room->conversation().held())) {
      without_room = connection;
    }
  }
  std::sort(slow.begin(), slow.end(),
            [](Connection* a, Connection* b) { return a->conversation().waiting() > b->conversation().waiting(); });
  for (Connection* connection : slow) {
    if (!service_.pressed()) break;
    counters_.cut_for_memory.add();
    connection->give_up("all clients together hold more than " + std::to_string(settings.max_held_bytes) +
                        " bytes (--max-held-bytes), and " + bytes(*connection) +
                        " wait for it, and it has taken hardly any of them for " + seconds(connection->slow_for(now)));
  }
  if (slow.empty() && without_room != nullptr && service_.pressed()) without_room->conversation().refuse_room();
  for (Connection* connection : waiting) connection->look();
}

base::Result<std::unique_ptr<Front>> Front::open(net::Loop& loop, FrontOptions options, const Settings& settings,
                                                 std::vector<Worker*> workers) {
  FARPOOL_CHECK(!workers.empty());
  std::unique_ptr<Front> front(new Front);
  front->workers_ = std::move(workers);
  const auto open = std::make_shared<std::atomic<std::uint64_t>>(0);
  for (const std::string& address : options.listen) {
    net::ListenOptions listen;
    listen.address = address;
    if (!address.starts_with("unix:")) listen.tls = options.tls;
    listen.unix_mode = options.unix_mode;
    listen.max_connections = settings.max_connections;
    listen.open = open;
    listen.take_waiting = true;
    listen.when_full = "-ERR max number of clients reached\r\n";
    listen.place = [front = front.get()]() -> net::Loop& {
      return front->workers_[front->turn_++ % front->workers_.size()]->loop();
    };
    auto listener = net::Listener::open(loop, std::move(listen),
                                        [workers = front->workers_, address](std::unique_ptr<net::Stream> stream) {
                                          // Runs on the loop that `place` chose, which is one worker's.
                                          for (Worker* worker : workers) {
                                            if (&worker->loop() == &stream->loop())
                                              return worker->adopt(std::move(stream), address);
                                          }
                                        });
    if (!listener.ok()) return listener.status();
    front->listeners_.push_back(std::move(*listener));
  }
  return front;
}

// Takes what waits to be accepted, for which it needs the rest.
Front::~Front() { listeners_.clear(); }

std::vector<std::string> Front::addresses() const {
  std::vector<std::string> addresses;
  for (const auto& listener : listeners_) addresses.push_back(listener->address());
  return addresses;
}

net::Listener::Stats Front::stats() const {
  net::Listener::Stats sum;
  for (const auto& listener : listeners_) {
    const net::Listener::Stats stats = listener->stats();
    sum.open = stats.open;  // counted together
    sum.accepted += stats.accepted;
    sum.refused_full += stats.refused_full;
    sum.failed_handshakes += stats.failed_handshakes;
  }
  return sum;
}

}  // namespace farpool::front::resp
