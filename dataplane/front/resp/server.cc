// SPDX-License-Identifier: Apache-2.0
#include "front/resp/server.h"

#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace farpool::front::resp {
namespace {

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
        conversation_(worker.service_, {next_id(), stream_->remote(), std::move(local)},
                      [this] { worker_.loop_.at_turn_end(*this); }) {}
  virtual ~Connection() = default;

  void begin() {
    stream_->start(*this);
    step();
  }

  void drain() {
    conversation_.drain();
    worker_.loop_.at_turn_end(*this);
  }
  void cut() {
    cut_ = true;
    conversation_.cut();
    if (stream_) stream_->close({base::Code::unavailable, "the compute shard shuts down"});
  }

  void on_input() noexcept override { step(); }
  void on_sent() noexcept override { step(); }
  void on_turn_end() noexcept override { step(); }
  // A half that has ended says nothing about the other: what the client sent before is run and answered, as far as it
  // came whole. Over TLS that holds with and without a goodbye: whoever cuts a connection can keep back what follows,
  // and change nothing of what came.
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
      conversation_.output().clear();
      if (conversation_.idle() && (rest_.empty() || conversation_.closing())) worker_.forget(this);
      return;
    }
    conversation_.set_unsent(stream_->unsent());
    const base::MutableBytes input = stream_->input();
    std::string_view left = base::text_of(input);
    conversation_.receive(left);
    stream_->consume(input.size() - left.size());
    if (input_ended_ && left.empty()) conversation_.drain();

    std::string& output = conversation_.output();
    if (conversation_.abandoned()) output.clear();
    if (!output.empty()) {
      worker_.counters_.output_bytes.add(output.size());
      stream_->write(output);
      output.clear();
      if (output.capacity() > kKeepOutput) std::string().swap(output);
      conversation_.set_unsent(stream_->unsent());
    }
    if (conversation_.closing() && conversation_.idle()) {
      // finish() grants the peer little time: wait for it to take the replies first.
      if (stream_->unsent() == 0) stream_->finish();
    }
    conversation_.hungry() ? stream_->resume_reading() : stream_->pause_reading();
  }

  static constexpr std::size_t kKeepOutput = 256 * 1024;
  Worker& worker_;
  std::unique_ptr<net::Stream> stream_;
  Conversation conversation_;
  bool input_ended_ = false;
  bool cut_ = false;
  std::string rest_;  // what had come and was not taken when the connection broke
};

Worker::Worker(net::Loop& loop, client::Kv& kv, const Settings& settings)
    : loop_(loop), service_{.kv = kv, .settings = settings, .counters = counters_} {}

Worker::~Worker() { FARPOOL_CHECK(idle()); }

void Worker::adopt(std::unique_ptr<net::Stream> stream, std::string local) {
  if (draining_) return;
  auto* connection = new Connection(*this, std::move(stream), std::move(local));
  connections_.insert(connection);
  counters_.connections.add();
  counters_.connections_total.add();
  connection->begin();
}

void Worker::forget(Connection* connection) {
  connections_.erase(connection);
  counters_.connections.subtract();
  delete connection;
  if (connections_.empty() && drained_) loop_.post(std::exchange(drained_, nullptr));
}

void Worker::drain(std::function<void()> drained) {
  draining_ = true;
  if (connections_.empty()) return loop_.post(std::move(drained));
  drained_ = std::move(drained);
  for (Connection* connection : connections_) connection->drain();
}

void Worker::cut() {
  for (Connection* connection : connections_) connection->cut();
}

base::Result<std::unique_ptr<Front>> Front::open(net::Loop& loop, FrontOptions options, const Settings& settings,
                                                 std::vector<Worker*> workers) {
  FARPOOL_CHECK(!workers.empty());
  std::unique_ptr<Front> front(new Front);
  front->workers_ = std::move(workers);
  for (const std::string& address : options.listen) {
    net::ListenOptions listen;
    listen.address = address;
    if (!address.starts_with("unix:")) listen.tls = options.tls;
    listen.max_connections = settings.max_connections;
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

Front::~Front() = default;

std::vector<std::string> Front::addresses() const {
  std::vector<std::string> addresses;
  for (const auto& listener : listeners_) addresses.push_back(listener->address());
  return addresses;
}

net::Listener::Stats Front::stats() const {
  net::Listener::Stats sum;
  for (const auto& listener : listeners_) {
    const net::Listener::Stats stats = listener->stats();
    sum.open += stats.open;
    sum.accepted += stats.accepted;
    sum.refused_full += stats.refused_full;
    sum.failed_handshakes += stats.failed_handshakes;
  }
  return sum;
}

}  // namespace farpool::front::resp
