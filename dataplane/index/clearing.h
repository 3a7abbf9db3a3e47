// SPDX-License-Identifier: Apache-2.0
// How marks of rows are cleared (docs/adr/0029). A client whose scan has found a stretch of rows empty clears its mark,
// in the background, in a round for all that its scans have found:
//  1. It reads the marks.
//  2. It has the sessions of the memory node forget which marks they have set. From then on every client sets a mark
//     anew before it puts an entry into the stretch, which changes the word.
//  3. It waits until no operation is under way that goes by what it knew before, and no scan that began beside one.
//  4. It reads the rows. If they are empty, it CASes the mark from what step 1 read to clear, in the next generation.
// A client that dies amid a round leaves nothing behind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "fabric/cost.h"
#include "index/counts.h"
#include "layout/geometry.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::index {

// The part that only the protocol knows.
class Stretches {
 public:
  virtual ~Stretches() = default;
  // Reads all rows of the marks, of every table that there is, and says of each mark whether they are empty. Rows may
  // change meanwhile; an entry that is there all the while is seen.
  virtual task::Task<base::Result<std::vector<bool>>> empty(std::span<const std::uint64_t> marks, base::Nanos deadline,
                                                            fabric::Cost& cost) = 0;
};

// Rows of a mark that lie one behind the other, in the table region.
struct RowsOfMark {
  std::size_t of = 0;  // which of the marks that are asked about
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};
// Stretches::empty() for a protocol that knows where the rows of so many marks lie.
task::Task<base::Result<std::vector<bool>>> are_empty(session::Session& session, std::size_t marks,
                                                      std::vector<RowsOfMark> rows, std::uint64_t row_bytes,
                                                      std::function<bool(base::Bytes row)> is_empty,
                                                      base::Nanos deadline, fabric::Cost& cost);

class Clearing {
 public:
  // A scan's position is a row, and behind it so many bits. All outlive the clearing.
  Clearing(session::Session& session, const layout::Geometry& geometry, std::uint64_t position_bits, Stretches& rows,
           Marks& marks);
  Clearing(const Clearing&) = delete;

  // A scan has read the positions from `first` to `end`, and found them empty or not. A mark is to be cleared when all
  // of its positions have been found empty one after the other. Follows a few scans that take turns.
  void seen(std::uint64_t first, std::uint64_t end, bool empty);
  // Begins a round in the background, if there is something to clear. To be called about once a tick.
  void maintain();
  bool idle() const { return !running_ && suspects_ == 0; }

 private:
  struct Suspect {
    std::uint64_t mark = 0;
    std::uint64_t word = 0;  // as it was at the beginning of the round
  };
  using Suspects = std::vector<Suspect>;

  task::Task<void> round();
  task::Task<base::Status> clear(std::vector<std::uint64_t> marks);
  // Leaves out marks that are clear already.
  task::Task<base::Result<Suspects>> read(std::span<const std::uint64_t> marks);
  task::Task<base::Status> outlast(std::uint64_t era);
  task::Task<base::Status> settle(std::span<const Suspect> suspects);
  base::Status cut_short() const;
  bool goes_on() const { return session_.alive() && !session_.leaving(); }
  base::Nanos soon() const { return session_.port().now() + session_.grant().failure_timeout; }

  session::Session& session_;
  const layout::Geometry& geometry_;
  const std::uint64_t stretch_;  // positions of a mark
  const std::uint64_t end_;      // of all positions
  Stretches& rows_;
  Marks& counts_;
  // Positions that one scan has seen empty, one after the other. It goes on at `end`.
  struct Run {
    std::uint64_t first = 0, end = 0;
  };
  static constexpr std::size_t kScansAtOnce = 8;
  std::array<Run, kScansAtOnce> runs_{};
  std::size_t next_run_ = 0;  // the one that a new scan takes
  std::vector<bool> suspected_;
  std::uint64_t suspects_ = 0;
  bool running_ = false;
  base::Nanos due_ = 0;
  fabric::Cost cost_;
};

}  // namespace farpool::index
