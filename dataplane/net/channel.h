// SPDX-License-Identifier: Apache-2.0
// What is behind a Stream: its buffers, and the socket's operations under way, which may outlive the Stream. Internal
// to net.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "net/byte_queue.h"
#include "net/stream.h"

namespace farpool::net::detail {

// One of a listener's places for open connections; free again when destroyed.
class Seat {
 public:
  using Taken = std::shared_ptr<std::atomic<std::uint64_t>>;
  Seat() = default;
  explicit Seat(Taken taken) : taken_(std::move(taken)) { taken_->fetch_add(1, std::memory_order_relaxed); }
  Seat(Seat&& other) noexcept : taken_(std::move(other.taken_)) {}
  Seat& operator=(Seat&&) = delete;
  ~Seat() {
    if (taken_) taken_->fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  Taken taken_;
};

// Counted by references of one thread: the Stream's, and one for each operation under way.
class Channel : public TurnHook {
 public:
  Channel(Loop& loop, Identity peer, std::string remote, Seat seat)
      : loop(loop), peer(std::move(peer)), remote(std::move(remote)), seat_(std::move(seat)) {}

  // Runs the connection; see Stream.
  void start(StreamHandler& handler);
  void detach();  // the Stream is gone
  base::MutableBytes input() const { return in_.bytes(); }
  void consume(std::size_t bytes);
  void need(std::size_t bytes) { need_ = bytes; }
  void pause_reading() { paused_ = true; }
  void resume_reading();
  base::MutableBytes reserve(std::size_t bytes);
  void take_back(std::size_t bytes) { out_.take_back(bytes); }
  std::size_t unsent() const { return out_.size() + sending_.size(); }
  void finish();
  void close(base::Status why);
  bool open() const { return open_; }
  virtual bool readable() = 0;

  Loop& loop;
  const Identity peer;
  const std::string remote;

  // A reference, held by operations under way.
  class Ref {
   public:
    explicit Ref(Channel* channel) : channel_(channel) { ++channel->references_; }
    Ref(Ref&& other) noexcept : channel_(std::exchange(other.channel_, nullptr)) {}
    Ref(const Ref& other) : Ref(other.channel_) {}
    Ref& operator=(Ref) = delete;
    ~Ref() {
      if (channel_ != nullptr) channel_->release();
    }
    Channel* operator->() const { return channel_; }

   private:
    Channel* channel_;
  };

  // Completions.
  void read_done(bool failed, base::Status why, std::size_t bytes);
  void write_done(bool failed, base::Status why);
  void goodbye_done();

 protected:
  virtual ~Channel() = default;
  // One read and one write run at a time.
  virtual void begin_read(base::MutableBytes into) = 0;
  virtual void begin_write(base::Bytes from) = 0;
  // Reads what has come in already, without waiting; 0 if that is nothing, or an error that the next read will tell.
  // Called while neither a read nor a write is under way.
  virtual std::size_t read_now(base::MutableBytes) { return 0; }
  // Returns whether answers to input leave right after the handler has written them, so that the peer can begin with
  // them. If not, they leave at the end of the turn with all else: that costs the peer fewer wake-ups.
  virtual bool answers_at_once() const { return true; }
  // Writes what the socket takes at once, possibly nothing; the rest is for begin_write.
  virtual base::Status write_now(base::Bytes from, std::size_t& taken) = 0;
  // Tells the peer that nothing more will come. Returns true if goodbye_done follows; false if only the end of the
  // peer's stream shows that the peer has received it.
  virtual bool begin_goodbye() = 0;
  virtual void close_socket() = 0;

 private:
  void shut();
  void input_ended(base::Status why);
  void output_ended(base::Status why);
  void on_turn_end() noexcept override {
    const Ref self(this);  // the handler may destroy the stream
    send();
  }
  void read_more();
  void discard();
  void send();
  void sent();
  void say_goodbye();
  void release() {
    if (--references_ == 0) delete this;
  }

  StreamHandler* handler_ = nullptr;
  std::optional<Seat> seat_;  // until the socket is closed
  ByteQueue in_;
  ByteQueue out_;      // written since the last send
  ByteQueue sending_;  // with the operating system
  std::size_t need_ = 1;
  std::size_t chunk_ = 4096;  // read at once; grows while reads fill it
  std::size_t asked_ = 0;
  std::uint32_t references_ = 1;  // the Stream's
  bool open_ = true;
  bool paused_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool finishing_ = false;
  bool discarding_ = false;
  bool input_ended_ = false;   // nothing more comes from the peer
  bool output_ended_ = false;  // nothing more reaches the peer
  bool in_handler_ = false;
  std::optional<Alarm> goodbye_;
};

}  // namespace farpool::net::detail
