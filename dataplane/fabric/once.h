// SPDX-License-Identifier: Apache-2.0
// Remembers which requests of its clients a service has carried out, and with what outcome. A client that learned
// nothing (`maybe`) asks again with the same id, and gets the outcome instead of a second effect.
//
// A client numbers its requests in lines. A line carries one request after another: the client uses it for the next
// request when it knows the outcome of the last one, or no longer needs it. So the table remembers one outcome for each
// line, and a client needs one line for each request that it has under way at once. Clients, lines and the longest
// outcome bound the memory, which is taken when a client is admitted: a request allocates nothing.
//
// Threads: any thread may ask at any time, even for the same request, which then runs on one of them. A table is
// volatile. A service that writes the ids into its own memory, together with the effects, fills a new table from there
// after a restart (restore), and so promises exactly once over restarts. Any other service must say that a restart
// forgets.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/bytes.h"

namespace farpool::fabric {

// Names one request of a client: a word in messages.
//    63                       12 11        0
//   +---------------------------+-----------+
//   | number, 1, 2, 3 ...    52 | line   12 |
//   +---------------------------+-----------+
struct RequestId {
  std::uint32_t line = 0;
  std::uint64_t number = 0;  // 0: no request

  static constexpr std::uint32_t kMostLines = 1u << 12;
  static constexpr RequestId of(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word & (kMostLines - 1)), word >> 12};
  }
  constexpr std::uint64_t word() const { return number << 12 | line; }
};

// One client's lines.
class Once {
 public:
  // Rounds the longest outcome up to words.
  Once(std::uint32_t lines, std::size_t longest_outcome);

  enum class Turn : std::uint8_t {
    first,    // carry it out, and finish() it
    again,    // it has been carried out: this is its outcome
    running,  // it is being carried out, on another thread or by a ticket: ask again later
    old,      // the line has gone on to a later request: this one's outcome is forgotten
    bad,      // no such line, or no number
  };
  // Asks for a turn. If the request was carried out, `outcome` receives the recorded outcome as far as there is room,
  // and `bytes` its length.
  Turn begin(RequestId id, base::MutableBytes outcome, std::size_t& bytes);
  // Records the outcome of a request whose turn was first. Returns false if it is too long; then the request still
  // runs.
  bool finish(RequestId id, base::Bytes outcome);
  // Forgets a request that had no effect: the next client that asks has the first turn.
  void abandon(RequestId id);
  // Takes over what the memory of an earlier process says, before any client asks. A line's latest request counts.
  bool restore(RequestId id, base::Bytes outcome);

 private:
  struct Line;
  enum Phase : std::uint64_t { kDone = 0, kRunning = 1 };
  static std::uint64_t state_of(std::uint64_t number, Phase phase) { return number << 1 | phase; }
  Line* line_of(RequestId id) const;
  std::byte* outcome_of(std::uint32_t line) const;

  const std::uint32_t lines_;
  const std::size_t longest_;  // bytes, a multiple of 8
  std::unique_ptr<Line[]> line_;
  std::unique_ptr<std::uint64_t[]> outcomes_;
};

struct Once::Line {
  std::atomic<std::uint64_t> state{0};   // number of the last request, and its phase
  std::atomic<std::uint64_t> before{0};  // the state that abandon() goes back to
  std::atomic<std::uint64_t> bytes{0};
};

}  // namespace farpool::fabric
