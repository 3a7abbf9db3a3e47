// SPDX-License-Identifier: Apache-2.0
// One queue pair as a lane. A chain becomes linked work requests, of which the last reports; everything queued in a
// turn leaves with one doorbell. An operation allocates nothing.
//
// Masked CAS. A device without it compares whole words, so the lane sends a masked CAS as a CAS against a guess of the
// word: what it last saw of the word, with the compared bits as they have to be. If the guess was wrong although the
// word would have matched, that costs another trip. Verbs behind it need not wait: unfenced WRITEs, atomics and CALLs
// may execute before an atomic anyway. READs may not, so READs behind a wrong guess are sent again behind the next one,
// and fenced verbs wait until nothing is in doubt. If the device has a masked CAS and may use it, the lane sends that.
//
// CALLs for data have a queue pair of their own (call_link.h). Nothing is ordered between two queue pairs, so the lane
// sends such a CALL when everything that it has sent before has been reported.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/fabric.h"
#include "fabric/verbs/call.h"
#include "fabric/verbs/call_link.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/handshake.h"
#include "fabric/verbs/port.h"
#include "fabric/verbs/queue_pair.h"
#include "net/stream.h"
#include "task/task.h"

namespace farpool::fabric::verbs {

inline constexpr int kMostReads = 16;  // READs and atomics that a lane has outstanding, if the device can do so many

// A queue of at most as many elements as it was made for.
template <class T>
class Ring {
 public:
  explicit Ring(std::size_t most) : items_(most) {}
  bool empty() const { return head_ == tail_; }
  std::size_t size() const { return tail_ - head_; }
  void push(const T& item) {
    FARPOOL_CHECK(size() < items_.size());
    items_[tail_++ % items_.size()] = item;
  }
  T& front() { return items_[head_ % items_.size()]; }
  T& operator[](std::size_t i) { return items_[(head_ + i) % items_.size()]; }
  void pop() { ++head_; }

 private:
  std::vector<T> items_;
  std::size_t head_ = 0, tail_ = 0;
};

class VerbsLane final : public Lane, private net::StreamHandler, private Timer {
 public:
  explicit VerbsLane(VerbsPort& port);
  ~VerbsLane() override;

  // Makes this side's queue pair, and returns what the memory node learns of it.
  base::Result<AttachRequest> prepare(const LaneGrant& grant);
  // Opens the lane, which ends when the stream does.
  task::Task<base::Status> begin(const LaneGrant& grant, const AttachRequest& asked, AttachReply reply,
                                 std::unique_ptr<net::Stream> stream, Nanos deadline);
  // Tries the device's masked CAS on a lane that has begun, if it may be used. If it does not work, no lane uses it any
  // more; this lane continues with guesses unless the trial has ended it.
  task::Task<base::Status> try_masked_cas(Nanos deadline);

  void enqueue(Posting& posting) noexcept override;
  void sever() noexcept override { end(false, nullptr); }
  bool open() const noexcept override { return open_; }
  std::size_t pending() const noexcept override { return pending_; }

 private:
  friend class VerbsPort;

  struct Region {
    std::uint32_t id = 0;
    std::uint32_t key = 0;
    std::uint64_t bytes = 0;
    std::uint64_t begin = 0;
    bool read_only = false;
  };
  // Work requests of one posting that report together.
  struct Burst {
    enum class Kind : std::uint8_t { verbs, again, call };
    Posting* posting = nullptr;
    Kind kind = Kind::verbs;
    std::uint8_t first = 0, count = 0;  // of the posting's verbs
    bool guessed = false;               // the last is a masked CAS, sent as a CAS against `guess`
    bool reads = false;
    bool repeat = false;     // its READs are to be sent again
    std::uint32_t wrs = 0;   // work requests
    std::uint32_t slot = 0;  // where the first one's word comes back
    std::uint64_t guess = 0;
  };

  static constexpr std::uint32_t kDepth = 256;  // work requests
  static constexpr std::uint32_t kInlineBytes = 220;
  static constexpr std::uint64_t kSendId = 1, kReceiveId = 2;

  const Region* region(std::uint32_t id) const;
  bool permitted(std::span<const Op> ops) const;

  // Sends everything that is queued and may go now, with one doorbell.
  void ring();
  bool stage_next();
  bool stage_verbs();
  bool stage_call();
  bool stage_service_call();
  void stage_guess(Burst burst);
  void stage_repeats(Burst burst);
  ibv_send_wr& stage();
  void stage_verb(const Op& op);
  void stage_atomic(const Op& op, std::uint64_t compare, std::uint64_t swap);
  void close_burst(Burst burst);
  bool in_doubt() const { return guesses_ > 0 || repeats_ > 0; }
  std::uint64_t& guess_of(const Op& op);

  bool armed() const { return armed_; }
  bool arm();   // false: the lane has ended
  bool poll();  // whether anything came
  void take_burst();
  void take_guess(const Burst& burst, std::uint64_t seen);
  void take_answer(std::uint32_t bytes);
  void take_link(const ibv_wc& done);
  void broke(ibv_wc_status status, bool receive);
  void broke(const std::string& why);
  void settle(Posting& posting);  // one part of it is done
  bool busy() const { return !bursts_.empty() || calling_ != nullptr || (link_ != nullptr && link_->out() > 0); }

  void end(bool refused, Posting* refusal);
  void finish(Posting& posting, Fate fate);
  void unlink(Posting& posting);
  void watch(Nanos when);
  void fire() noexcept override;
  void on_input() noexcept override;
  void on_closed(const base::Status& why) noexcept override;

  std::uint64_t word_at(std::uint32_t slot) const;
  std::byte* call_head() const { return memory_.data() + 8 * kDepth; }
  std::byte* answer_head() const { return call_head() + kCallHeadBytes; }
  bool fits(const LaneGrant& grant, const AttachRequest& asked, const AttachReply& reply) const;
  void say_ended(const std::string& why) const;
  base::Status show(base::Bytes request);  // to the memory node, which fetches it

  VerbsPort& port_;
  const std::uint64_t number_;  // of this port's
  std::string endpoint_;        // for people
  std::vector<Region> regions_;
  Buffer memory_;  // words that atomics bring back, and the heads of a CALL and its answer
  std::uint32_t memory_key_ = 0;
  // A request that the memory node fetches, once there was one. The node may read this and no other memory of the
  // process.
  std::unique_ptr<std::byte[]> shown_;
  Registration shown_memory_;
  std::uint64_t shown_at_ = 0;
  Completions completions_;
  Connection connection_;  // none: connected by what the session port told
  std::unique_ptr<QueuePair> pair_;
  std::unique_ptr<CallLink> link_;  // none: the memory node offers this session no service
  std::unique_ptr<net::Stream> stream_;
  std::unique_ptr<DeviceEvents::Subscription> events_, link_events_;
  Connecting* connecting_ = nullptr;  // while it is

  Posting* oldest_ = nullptr;  // all that are pending, in order
  Posting* newest_ = nullptr;
  Posting* next_ = nullptr;  // the first of them that is not wholly sent
  std::size_t next_op_ = 0;
  Posting* calling_ = nullptr;
  std::uint64_t calls_ = 0;

  Ring<Burst> bursts_{kDepth};         // sent and not reported, in order
  Ring<Burst> wrong_guesses_{kDepth};  // to be sent again before anything else
  Ring<Burst> stale_reads_{kDepth};    // to be sent again behind them
  std::uint32_t in_flight_ = 0;        // work requests
  std::uint32_t slots_ = 0;            // ever used
  std::size_t guesses_ = 0;            // masked CASes whose outcome is not known
  std::size_t repeats_ = 0;            // bursts whose READs are to be sent again, or are under way again
  struct Seen {
    std::uint32_t region = ~0u;
    std::uint64_t offset = 0;
    std::uint64_t word = 0;
  };
  std::array<Seen, 64> seen_{};

  std::array<ibv_send_wr, kDepth> wrs_;
  std::array<std::array<ibv_sge, 2>, kDepth> parts_;
  std::array<std::optional<Masks>, kDepth> masks_;
  std::uint32_t staged_ = 0;

  std::size_t pending_ = 0;
  bool open_ = false;
  bool native_ = false;  // masked CASes are the device's own
  bool refused_ = false;
  bool armed_ = false;
  bool to_ring_ = false;
};

}  // namespace farpool::fabric::verbs
