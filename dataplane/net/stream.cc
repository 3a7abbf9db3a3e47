// SPDX-License-Identifier: Apache-2.0
#include "net/stream.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "net/channel.h"

namespace farpool::net {
namespace detail {
namespace {

constexpr std::size_t kMaxChunk = 256 * 1024;
// How many bytes to read ahead of a handler that leaves input unconsumed, beyond what it said it needs.
constexpr std::size_t kMaxAhead = 256 * 1024;
// How long a peer may take to receive the last bytes written, and then to answer a goodbye.
constexpr Nanos kLastWords = 10 * base::kSecond;
constexpr Nanos kGoodbye = base::kSecond;

}  // namespace

void Channel::start(StreamHandler& handler) {
  handler_ = &handler;
  read_more();
}

void Channel::detach() {
  handler_ = nullptr;
  shut();
  release();
}

void Channel::consume(std::size_t bytes) {
  FARPOOL_CHECK(bytes <= in_.size());
  in_.consume(bytes);
  if (!in_handler_) read_more();
}

void Channel::resume_reading() {
  paused_ = false;
  if (!in_handler_) read_more();
}

void Channel::read_more() {
  if (!open_ || paused_ || reading_ || finishing_ || input_ended_ || handler_ == nullptr) return;
  if (in_.size() >= std::max(need_, kMaxAhead)) return;
  in_.rewind();
  const std::size_t missing = need_ > in_.size() ? need_ - in_.size() : 0;
  base::MutableBytes room = in_.room(std::max(missing, chunk_));
  asked_ = room.size();
  reading_ = true;
  begin_read(room);
}

void Channel::read_done(bool failed, base::Status why, std::size_t bytes) {
  reading_ = false;
  if (!open_) return;
  if (failed) return input_ended(std::move(why));
  if (finishing_) {
    if (discarding_) discard();
    return;
  }
  in_.commit(bytes);
  if (bytes == asked_) chunk_ = std::min(chunk_ * 2, kMaxChunk);
  if (!writing_) {
    while (bytes > 0 && in_.size() < std::max(need_, kMaxAhead)) {
      bytes = read_now(in_.room(chunk_));
      in_.commit(bytes);
    }
  }
  if (in_.size() >= need_ && handler_ != nullptr) {
    in_handler_ = true;
    handler_->on_input();
    in_handler_ = false;
    if (answers_at_once()) send();
  }
  read_more();
}

void Channel::input_ended(base::Status why) {
  input_ended_ = true;
  // A peer that has only ended its own half still gets what has been written.
  if (finishing_ && !discarding_ && why.ok()) return;
  if (finishing_ || !why.ok() || handler_ == nullptr) return close(std::move(why));
  in_handler_ = true;
  const bool goes_on = handler_->on_input_end();
  in_handler_ = false;
  goes_on ? send() : close({});
}

// What the peer sent before it went, or before it broke the connection, may still be read.
void Channel::output_ended(base::Status why) {
  output_ended_ = true;
  out_.clear();
  sending_.clear();
  if (finishing_ || input_ended_ || handler_ == nullptr || !handler_->on_output_end()) return close(std::move(why));
  read_more();
}

base::MutableBytes Channel::reserve(std::size_t bytes) {
  base::MutableBytes room = out_.room(bytes).first(bytes);
  out_.commit(bytes);
  if (!in_handler_ || !answers_at_once()) loop.at_turn_end(*this);
  return room;
}

void Channel::send() {
  if (!open_ || writing_ || out_.empty()) return;
  if (handler_ != nullptr) handler_->on_flush();
  if (output_ended_) {
    out_.clear();
    return sent();
  }
  std::swap(out_, sending_);
  std::size_t taken = 0;
  if (base::Status status = write_now(sending_.bytes(), taken); !status.ok()) return output_ended(std::move(status));
  sending_.consume(taken);
  if (sending_.empty()) return sent();
  writing_ = true;
  begin_write(sending_.bytes());
}

void Channel::write_done(bool failed, base::Status why) {
  writing_ = false;
  if (!open_) return;
  if (failed) return output_ended(std::move(why));
  sent();
}

void Channel::sent() {
  sending_.clear();
  if (!out_.empty()) {
    send();
  } else if (finishing_) {
    say_goodbye();
  } else if (handler_ != nullptr) {
    handler_->on_sent();
  }
}

void Channel::finish() {
  if (!open_ || std::exchange(finishing_, true)) return;
  goodbye_.emplace(loop, [this] { close({}); });
  goodbye_->set(Loop::now() + kLastWords);
  if (unsent() == 0) say_goodbye();
}

// A socket closed with unread input resets the connection, and the peer may lose what was sent last: so this reads
// until the peer closes, too.
void Channel::say_goodbye() {
  if (output_ended_) return close({});
  goodbye_->set(Loop::now() + kGoodbye);
  if (begin_goodbye()) return;
  if (input_ended_) return close({});
  discarding_ = true;
  if (!reading_) discard();
}

void Channel::discard() {
  in_.clear();
  reading_ = true;
  begin_read(in_.room(chunk_));
}

void Channel::shut() {
  if (!std::exchange(open_, false)) return;
  close_socket();
  seat_.reset();
  if (goodbye_) goodbye_->cancel();
}

void Channel::goodbye_done() { close({}); }

void Channel::close(base::Status why) {
  if (!open_) return;
  shut();
  loop.post([self = Ref(this), why = std::move(why)] {
    if (self->handler_ != nullptr) std::exchange(self->handler_, nullptr)->on_closed(why);
  });
}

}  // namespace detail

Stream::Stream(detail::Channel* channel) : channel_(channel) {}
Stream::~Stream() { channel_->detach(); }
void Stream::start(StreamHandler& handler) { channel_->start(handler); }
Loop& Stream::loop() const { return channel_->loop; }
const Identity& Stream::peer() const { return channel_->peer; }
const std::string& Stream::remote() const { return channel_->remote; }
bool Stream::open() const { return channel_->open(); }
base::MutableBytes Stream::input() const { return channel_->input(); }
void Stream::consume(std::size_t bytes) { channel_->consume(bytes); }
void Stream::need(std::size_t bytes) { channel_->need(bytes); }
void Stream::pause_reading() { channel_->pause_reading(); }
void Stream::resume_reading() { channel_->resume_reading(); }
base::MutableBytes Stream::reserve(std::size_t bytes) { return channel_->reserve(bytes); }
void Stream::take_back(std::size_t bytes) { channel_->take_back(bytes); }
void Stream::write(base::Bytes bytes) {
  if (!bytes.empty()) std::memcpy(channel_->reserve(bytes.size()).data(), bytes.data(), bytes.size());
}
std::size_t Stream::unsent() const { return channel_->unsent(); }
bool Stream::readable() const { return channel_->open() && channel_->readable(); }
void Stream::finish() { channel_->finish(); }
void Stream::close(base::Status why) { channel_->close(std::move(why)); }

}  // namespace farpool::net
