// SPDX-License-Identifier: Apache-2.0
// CALLs for data: a memory node executes them for its sessions on the threads that receive them, beside the control
// CALLs of its Host. A lane may have many of them in flight (Caps::calls_in_flight). contract/ordering.md says how they
// are ordered behind other verbs; among themselves they have no order.
//
// A service answers at once, or holds a CALL and answers later with its Ticket. A service writes into memory that
// outlives its process through a Hand: the simulator kills the memory node after any of those words.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "fabric/fabric.h"
#include "fabric/words.h"

namespace farpool::fabric {

// Where a wire takes the answers of held CALLs.
class Desk {
 public:
  virtual ~Desk() = default;
  // Sends the answer, or ends the lane if there is none. Any thread; once for each CALL that was held.
  virtual void settle(std::uint64_t lane, std::uint64_t call, std::optional<base::Bytes> reply) noexcept = 0;
};

// The duty to answer one CALL. It may outlive the lane, the session and the wire: then the answer goes nowhere. Any
// thread may have it, one at a time. A ticket that is destroyed without an answer ends the lane: its client then knows
// as much as after a lost reply.
class [[nodiscard]] Ticket {
 public:
  Ticket() = default;
  Ticket(std::shared_ptr<Desk> desk, std::uint64_t lane, std::uint64_t call, std::size_t room)
      : desk_(std::move(desk)), lane_(lane), call_(call), room_(room) {}
  Ticket(Ticket&& other) noexcept = default;
  Ticket& operator=(Ticket&& other) noexcept {
    if (this != &other) {
      settle(std::nullopt);
      desk_ = std::move(other.desk_);
      lane_ = other.lane_, call_ = other.call_, room_ = other.room_;
    }
    return *this;
  }
  ~Ticket() { settle(std::nullopt); }

  explicit operator bool() const { return desk_ != nullptr; }
  // Returns the longest reply that the client has room for.
  std::size_t room() const { return room_; }
  void answer(base::Bytes reply) {
    FARPOOL_CHECK(desk_ != nullptr && reply.size() <= room_);
    settle(reply);
  }

 private:
  void settle(std::optional<base::Bytes> reply) {
    if (const auto desk = std::exchange(desk_, nullptr)) desk->settle(lane_, call_, reply);
  }
  std::shared_ptr<Desk> desk_;
  std::uint64_t lane_ = 0, call_ = 0;
  std::size_t room_ = 0;
};

// Writes words that outlive the process of a service. Each is one effect: the process may be gone after any of them.
class Hand {
 public:
  // Decides in a simulation whether the next effect still happens: not once the memory node is dead.
  class Watch {
   public:
    virtual bool may_write() noexcept = 0;

   protected:
    ~Watch() = default;
  };
  Hand() = default;
  explicit Hand(Watch* watch) : watch_(watch) {}

  // Writes a word; `at` is 8-byte aligned. A reader that sees it sees everything that was written before.
  void write(std::byte* at, std::uint64_t word) const {
    if (watch_ == nullptr || watch_->may_write()) word_at(at).store(word, std::memory_order_release);
  }
  // Writes a multiple of 8 bytes, word by word, in ascending order.
  void write(std::byte* at, base::Bytes words) const {
    for (std::size_t i = 0; i < words.size(); i += 8) write(at + i, base::load<std::uint64_t>(words.data() + i));
  }
  // Returns the word before: the exchange took place if that is `expected`.
  std::uint64_t exchange(std::byte* at, std::uint64_t expected, std::uint64_t word) const {
    if (watch_ != nullptr && !watch_->may_write()) return ~expected;
    word_at(at).compare_exchange_strong(expected, word, std::memory_order_acq_rel);
    return expected;
  }
  // Returns the word before.
  std::uint64_t add(std::byte* at, std::uint64_t addend) const {
    if (watch_ != nullptr && !watch_->may_write()) return 0;
    return word_at(at).fetch_add(addend, std::memory_order_acq_rel);
  }

 private:
  Watch* watch_ = nullptr;
};

// One CALL as its service sees it. It lives until serve() returns.
class Call {
 public:
  Call(std::uint64_t session, std::uint32_t code, base::Bytes asked, base::MutableBytes room, Hand memory)
      : session_id(session), opcode(code), request(asked), reply(room), hand(memory) {}
  Call(const Call&) = delete;

  const std::uint64_t session_id;
  const std::uint32_t opcode;  // kFirstServiceOpcode or more
  const base::Bytes request;
  const base::MutableBytes reply;  // as long as the client's room for it
  const Hand hand;

  // Takes the CALL away from the wire; serve() then returns Served::held(). The service must copy the request if it
  // needs it later.
  virtual Ticket hold() = 0;

 protected:
  ~Call() = default;
};

// The result of a CALL.
class Served {
 public:
  enum class Kind : std::uint8_t { done, held, refused };
  static Served done(std::size_t bytes) { return Served(Kind::done, bytes, Refusal::none); }
  static Served held() { return Served(Kind::held, 0, Refusal::none); }
  // Ends the lane, as after any refused verb. A reply is the better place for what concerns one key or table.
  static Served refused(Refusal why) { return Served(Kind::refused, 0, why); }

  Kind kind() const { return kind_; }
  std::size_t bytes() const { return bytes_; }
  Refusal why() const { return why_; }

 private:
  Served(Kind kind, std::size_t bytes, Refusal why) : kind_(kind), bytes_(bytes), why_(why) {}
  Kind kind_;
  std::size_t bytes_;
  Refusal why_;
};

class Service {
 public:
  virtual ~Service() = default;
  // Carries out one CALL on the thread that received it. Several threads call at once. It returns after a bounded
  // number of steps and waits for no other: it holds a CALL that has to wait.
  virtual Served serve(Call& call) noexcept = 0;
  // Called when the session is being fenced: the service must give its tickets back soon, answered or not, and they
  // have no effect on memory afterwards. The fence waits for that. Runs on some thread of the wire, after the session's
  // last CALL has executed.
  virtual void release(std::uint64_t session_id) noexcept { (void)session_id; }
};

}  // namespace farpool::fabric
