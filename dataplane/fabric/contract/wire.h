// SPDX-License-Identifier: Apache-2.0
// What a wire brings to the contract suite (suite.h): a responder that serves a TestHost, and client ports that reach
// it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "base/hash.h"
#include "fabric/fabric.h"
#include "fabric/host.h"
#include "fabric/service.h"
#include "fabric/words.h"

namespace farpool::fabric::contract {

// The service of the suite. Its memory is the host's small region.
class TestService final : public Service {
 public:
  enum Opcode : std::uint32_t {
    kEcho = kFirstServiceOpcode,  // replies with the request
    kPeek,                        // request: an offset; replies with the word there
    kBump,                        // as kPeek, and adds one to the word
    kHold,                        // as kEcho, when the test says so
    kDrop,                        // is held, and never answered
    kUnknown,                     // any opcode that it does not know
  };
  explicit TestService(std::byte* memory, std::uint64_t bytes) : memory_(memory), bytes_(bytes) {}

  Served serve(Call& call) noexcept override {
    served_.fetch_add(1);
    switch (call.opcode) {
      case kEcho:
        if (call.request.size() > call.reply.size()) return Served::refused(Refusal::malformed);
        std::copy(call.request.begin(), call.request.end(), call.reply.begin());
        return Served::done(call.request.size());
      case kPeek:
      case kBump: {
        if (call.request.size() != 8 || call.reply.size() < 8) return Served::refused(Refusal::malformed);
        const auto offset = base::load<std::uint64_t>(call.request.data());
        if (offset % 8 != 0 || offset >= bytes_) return Served::refused(Refusal::malformed);
        std::byte* at = memory_ + offset;
        base::store(call.reply.data(),
                    call.opcode == kBump ? call.hand.add(at, 1) : word_at(at).load(std::memory_order_acquire));
        return Served::done(8);
      }
      case kHold: {
        std::lock_guard lock(mutex_);
        if (call.request.size() > call.reply.size()) return Served::refused(Refusal::malformed);
        held_.push_back({call.session_id, std::string(base::text_of(call.request)), call.hold()});
        return Served::held();
      }
      case kDrop: {
        const Ticket ticket = call.hold();
        return Served::held();
      }
      default:
        served_.fetch_sub(1);
        return Served::refused(Refusal::unknown_opcode);
    }
  }
  void release(std::uint64_t session_id) noexcept override {
    std::lock_guard lock(mutex_);
    released_.fetch_add(1);
    if (!slow_) std::erase_if(held_, [session_id](const Held& each) { return each.session_id == session_id; });
  }

  // From here on tickets are given back by answer_held() alone, even to a fence.
  void be_slow() {
    std::lock_guard lock(mutex_);
    slow_ = true;
  }
  // Answers what is held, the latest first.
  void answer_held() {
    std::lock_guard lock(mutex_);
    for (; !held_.empty(); held_.pop_back()) held_.back().ticket.answer(base::bytes_of(held_.back().text));
  }
  std::size_t held() {
    std::lock_guard lock(mutex_);
    return held_.size();
  }
  std::uint64_t served() const { return served_.load(); }
  int released() const { return released_.load(); }

 private:
  struct Held {
    std::uint64_t session_id;
    std::string text;
    Ticket ticket;
  };
  std::byte* memory_;
  std::uint64_t bytes_;
  std::mutex mutex_;
  std::vector<Held> held_;
  bool slow_ = false;
  std::atomic<std::uint64_t> served_{0};
  std::atomic<int> released_{0};
};

// The memory node of the suite: two regions with guards around them and one that is read-only, tokens, and a few CALLs.
// Its memory is touched only by words, so that a test may look at it while executors of other threads write.
class TestHost final : public Host {
 public:
  static constexpr std::uint32_t kSmall = 7, kLarge = 9, kFixed = 11;  // region ids; the last is read-only
  static constexpr std::uint64_t kSmallBytes = 64 * 1024, kLargeBytes = 4 * 1024 * 1024, kFixedBytes = 4096;
  static constexpr std::uint64_t kNoService = 700;  // a session that is offered no service
  static constexpr std::uint64_t kGuardWords = 64, kGuard = 0xfeedfacecafebeef;

  enum Opcode : std::uint32_t {
    kEcho = 1,     // replies with the request
    kPeek = 2,     // request: an offset in the small region; replies with the word there
    kFill = 3,     // fills the whole reply
    kNothing = 4,  // a reply of no bytes
    kGated = 5,    // as kEcho, once the gate is open
    kBump = 6,     // as kPeek, and adds one to the word
    kRefuse = 99,  // any opcode the host does not know
  };

  explicit TestHost(std::uint64_t large_bytes = kLargeBytes)
      : large_bytes_(large_bytes),
        small_(kSmallBytes / 8 + 2 * kGuardWords, kGuard),
        large_(large_bytes / 8 + 2 * kGuardWords, kGuard),
        fixed_(kFixedBytes / 8 + 2 * kGuardWords, kGuard) {
    std::fill(small_.begin() + kGuardWords, small_.end() - kGuardWords, 0);
    std::fill(large_.begin() + kGuardWords, large_.end() - kGuardWords, 0);
  }

  // A fresh token and the keys of a session, for one lane. Any thread.
  LaneGrant grant(std::uint64_t session_id, std::string endpoint) {
    std::lock_guard lock(mutex_);
    LaneGrant grant{.endpoint = std::move(endpoint), .session_id = session_id, .node_incarnation = 1, .calls = true};
    const std::uint64_t number = ++tokens_made_;
    base::store(grant.token.data(), scramble(number));
    base::store(grant.token.data() + 8, scramble(~number));
    tokens_[grant.token] = session_id;
    grant.regions = {{kSmall, kSmallBytes, key(session_id, kSmall)},
                     {kLarge, large_bytes_, key(session_id, kLarge)},
                     {kFixed, kFixedBytes, key(session_id, kFixed)}};
    return grant;
  }

  std::uint64_t word(std::uint32_t region, std::uint64_t offset) {
    return word_at(base_of(region) + offset).load(std::memory_order_acquire);
  }
  void set_word(std::uint32_t region, std::uint64_t offset, std::uint64_t value) {
    word_at(base_of(region) + offset).store(value, std::memory_order_release);
  }
  const std::byte* memory_of(std::uint32_t region) { return base_of(region); }
  std::vector<std::uint64_t> snapshot() {
    std::vector<std::uint64_t> words(kSmallBytes / 8);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = word(kSmall, 8 * i);
    return words;
  }
  bool guards_whole() {
    for (auto* memory : {&small_, &large_, &fixed_}) {
      for (std::size_t i = 0; i < kGuardWords; ++i) {
        if ((*memory)[i] != kGuard || (*memory)[memory->size() - 1 - i] != kGuard) return false;
      }
    }
    return true;
  }

  // CALLs of kGated wait for the gate on the control thread (bounded), on wires that have one. Others hold their
  // answers back.
  void close_gate() {
    std::lock_guard lock(mutex_);
    gate_open_ = false;
  }
  void open_gate() {
    std::lock_guard lock(mutex_);
    gate_open_ = true;
    gate_.notify_all();
  }
  std::uint64_t calls() const { return calls_.load(); }
  TestService& service() { return service_; }

  void on_exchange(const Peer&, std::string request, std::function<void(std::string)> reply) override {
    reply("echo:" + request);
  }
  std::optional<LaneRights> on_open_lane(const std::array<std::byte, 16>& token) override {
    std::lock_guard lock(mutex_);
    const auto found = tokens_.find(token);
    if (found == tokens_.end()) return std::nullopt;
    const std::uint64_t session_id = found->second;
    tokens_.erase(found);
    return LaneRights{session_id,
                      {{kSmall, key(session_id, kSmall), base_of(kSmall), kSmallBytes},
                       {kLarge, key(session_id, kLarge), base_of(kLarge), large_bytes_},
                       {kFixed, key(session_id, kFixed), base_of(kFixed), kFixedBytes, true}},
                      session_id == kNoService ? nullptr : &service_};
  }
  std::vector<std::array<std::byte, 16>> unspent_tokens() const override {
    std::lock_guard lock(mutex_);
    std::vector<std::array<std::byte, 16>> tokens;
    for (const auto& [token, session] : tokens_) tokens.push_back(token);
    return tokens;
  }
  std::optional<std::size_t> on_call(std::uint64_t, std::uint32_t opcode, base::Bytes request,
                                     base::MutableBytes reply) override {
    calls_.fetch_add(1);
    switch (opcode) {
      case kGated: {
        std::unique_lock lock(mutex_);
        gate_.wait_for(lock, std::chrono::seconds(10), [this] { return gate_open_; });
      }
        [[fallthrough]];
      case kEcho:
        if (request.size() > reply.size()) return std::nullopt;
        std::copy(request.begin(), request.end(), reply.begin());
        return request.size();
      case kPeek:
      case kBump: {
        if (request.size() != 8 || reply.size() < 8) return std::nullopt;
        const auto offset = base::load<std::uint64_t>(request.data());
        const std::uint64_t before = word(kSmall, offset);
        base::store(reply.data(), before);
        if (opcode == kBump) set_word(kSmall, offset, before + 1);
        return 8;
      }
      case kFill:
        std::fill(reply.begin(), reply.end(), std::byte{0x5a});
        return reply.size();
      case kNothing:
        return 0;
      default:
        return std::nullopt;
    }
  }

 private:
  static std::uint64_t scramble(std::uint64_t number) { return base::mix(number + 0x9e3779b97f4a7c15ull); }
  static std::uint64_t key(std::uint64_t session_id, std::uint32_t region) {
    return scramble(session_id * 1000 + region);
  }
  std::byte* base_of(std::uint32_t region) {
    auto& memory = region == kSmall ? small_ : region == kLarge ? large_ : fixed_;
    return reinterpret_cast<std::byte*>(memory.data() + kGuardWords);
  }

  std::uint64_t large_bytes_;
  std::vector<std::uint64_t> small_, large_, fixed_;
  mutable std::mutex mutex_;
  std::condition_variable gate_;
  bool gate_open_ = true;
  std::uint64_t tokens_made_ = 0;
  std::map<std::array<std::byte, 16>, std::uint64_t> tokens_;
  std::atomic<std::uint64_t> calls_{0};
  TestService service_{base_of(kSmall), kSmallBytes};
};

// One responder and some client ports. It ends whatever threads it has when it is destroyed.
class Wire {
 public:
  virtual ~Wire() = default;

  virtual std::string endpoint() const = 0;       // where the ports reach the responder
  virtual std::string dead_endpoint() const = 0;  // where nobody listens
  virtual std::size_t clients() const = 0;
  virtual Port& port(std::size_t client) = 0;
  virtual Responder& responder() = 0;

  // Runs task i on the thread of port i until all have ended. False if that took longer than a minute of real time.
  virtual bool run(std::vector<task::Task<void>> tasks) = 0;
  // Runs `what` on the control thread, and returns when it has run. May be called from any thread but the control
  // thread.
  virtual void on_control(std::function<void()> what) = 0;

  // Says whether the answer that refuses a verb may get lost, as any packet. The lane ends all the same, and nobody
  // knows why.
  virtual bool loses_refusals() const { return false; }

  // Says whether a masked CAS is one verb. Otherwise lanes make it of others, and tell how many trips that took.
  virtual bool has_masked_cas() const { return true; }

  // Between these, CALLs of TestHost::kGated get no answer. The default is right where no port shares the control
  // thread.
  virtual void hold_calls(TestHost& host) { host.close_gate(); }
  virtual void release_calls(TestHost& host) { host.open_gate(); }
};

// How a room instantiates the suite for its wire.
struct WireFactory {
  std::string name;
  std::function<std::unique_ptr<Wire>(TestHost& host, std::size_t clients)> make;
};
inline void PrintTo(const WireFactory& factory, std::ostream* to) { *to << factory.name; }

}  // namespace farpool::fabric::contract
