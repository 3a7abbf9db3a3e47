// SPDX-License-Identifier: Apache-2.0
// For tests: a peer of a session port that keeps to no protocol.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/session_port/greeting.h"
#include "fabric/session_port/test_loop.h"
#include "net/listener.h"
#include "net/stream.h"

namespace farpool::fabric::session_port {

inline constexpr auto kPatience = std::chrono::seconds(30);

template <class F>
bool eventually(F condition) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

// A peer that sends arbitrary bytes.
class RawPeer final : public net::StreamHandler {
 public:
  RawPeer(LoopThread& thread, const std::string& endpoint) : thread_(thread) {
    std::promise<void> connected;
    thread_.loop.post([&] {
      net::connect(thread_.loop, endpoint, nullptr, net::Loop::now() + 30 * base::kSecond, [&](auto stream) {
        if (stream.ok()) {
          stream_ = std::move(*stream);
          stream_->start(*this);
        } else {
          closed_ = true;
        }
        connected.set_value();
      });
    });
    connected.get_future().get();
  }
  ~RawPeer() {
    thread_.on([this] { stream_.reset(); });
  }
  void send(base::Bytes bytes) {
    thread_.on([&] {
      if (stream_) stream_->write(bytes);
    });
  }
  void stop_reading() {
    thread_.on([this] { stream_->pause_reading(); });
  }
  void read_on() {
    thread_.on([this] { stream_->resume_reading(); });
  }
  // Waits until the peer has closed the connection or this many bytes have come; returns them.
  std::vector<std::byte> receive(std::size_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return closed_ || got_.size() >= bytes; });
    return got_;
  }
  // Waits for the answer to a greeting.
  Welcome welcome() {
    const auto envelope = get_envelope(receive(kEnvelopeBytes), kMaxAnswerBytes);
    EXPECT_TRUE(envelope) << "no answer";
    return envelope ? static_cast<Welcome>(envelope->kind) : Welcome::refused;
  }
  bool ends() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return closed_; });
  }

  void on_input() noexcept override {
    const std::lock_guard lock(mutex_);
    const auto input = stream_->input();
    got_.insert(got_.end(), input.begin(), input.end());
    stream_->consume(input.size());
    changed_.notify_all();
  }
  void on_closed(const base::Status&) noexcept override {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  LoopThread& thread_;
  std::unique_ptr<net::Stream> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::byte> got_;
  bool closed_ = false;
};

inline std::vector<std::byte> greeting(Greeting kind, base::Bytes body) {
  std::vector<std::byte> bytes(kEnvelopeBytes);
  put_envelope(bytes, {.kind = static_cast<std::uint32_t>(kind), .length = static_cast<std::uint32_t>(body.size())});
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

// A directory for sockets of rings, removed with the test.
struct RingsDirectory {
  std::string path = (std::filesystem::temp_directory_path() / "farpool-rings-XXXXXX").string();
  RingsDirectory() { EXPECT_NE(::mkdtemp(path.data()), nullptr); }
  ~RingsDirectory() { std::filesystem::remove_all(path); }
};

}  // namespace farpool::fabric::session_port
