// SPDX-License-Identifier: Apache-2.0
// Splits a table while other clients work on it. A client that finds a table full begins a split, in the background of
// its session. A client that finds that a split does not go on takes it over. The protocol says how to move a row's
// entries.
//
//  - A split belongs to the holder of the table's lease. A holder that stands still is fenced before the lease is
//    stolen, so at any time one client moves rows, and no word of an earlier one lands later.
//  - Rows are moved one by one and in any order, again if a splitter died over them. A row's part of the new table is
//    closed until all that belongs there has come; the old row stays as it was, with its moved entries marked.
//  - When every row has been moved, the splitter waits for an era: then every reader of an unmarked old row has ended.
//    Only then it clears marked entries. So a reader that saw a row of the old table as its own has seen all of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/result.h"
#include "directory/cache.h"
#include "directory/directory.h"
#include "fabric/cost.h"
#include "layout/geometry.h"
#include "session/leases.h"
#include "session/session.h"
#include "session/wait.h"
#include "task/task.h"

namespace farpool::directory {

class Splitter {
 public:
  // Does what only the protocol knows. Both steps may be done again at any point, by another client.
  class Rows {
   public:
    virtual ~Rows() = default;
    // Copies the row's entries that belong in the new table there, and opens the row there.
    virtual task::Task<base::Status> move(const Split& split, std::uint64_t row, base::Nanos deadline,
                                          fabric::Cost& cost) = 0;
    // Clears the row's moved entries: no client looks at them any more.
    virtual task::Task<base::Status> clear(const Split& split, std::uint64_t row, base::Nanos deadline,
                                           fabric::Cost& cost) = 0;
  };
  // Where splits are counted.
  struct Counts {
    std::uint64_t& begun;
    std::uint64_t& finished;
    std::uint64_t& taken_over;  // found under way, their splitters dead
  };

  // All outlive the session's background tasks.
  Splitter(session::Session& session, Cache& cache, const layout::Geometry& geometry, Rows& rows, const Counts& counts)
      : session_(session), cache_(cache), geometry_(geometry), rows_(rows), counts_(counts), idle_(session.port()) {}

  // Starts a split of a table without room, whose keys share `depth` bits, in the background, unless one is under way
  // or this client splits enough others. The caller waits and looks again. out_of_memory: it cannot be split.
  base::Status grow(std::uint64_t table, std::uint64_t depth);
  // Notes that the caller has met a split of the table, and takes it over if it does not come to an end.
  void watch(std::uint64_t table);

  // Continues, in the background, every split whose lease nobody holds, and waits for that until the deadline. For
  // clients that clean up behind dead ones, whose leases have been given back.
  struct Swept {
    std::uint64_t finished = 0;
    std::uint64_t under_way = 0;  // others work on them, or see `trouble`
    base::Status trouble;
  };
  task::Task<Swept> sweep(base::Nanos deadline);
  // Waits until this client splits nothing, or until the deadline.
  task::Task<base::Status> idle(base::Nanos deadline);

  // Says why this client's latest split is stuck; ok if it has gone on with one since. For people.
  const base::Status& trouble() const { return trouble_; }

 private:
  // One table's.
  struct Run {
    std::uint64_t table = 0;
    std::optional<std::uint64_t> depth;  // it is to be split, if its keys share so many bits; else only gone on with
    std::vector<session::Lease> leases;  // of the table; for a few trips, of the directory besides
    fabric::Buffer image;                // of the whole directory
  };
  struct Sweep {
    Swept swept;
    bool over = false;
  };

  task::Task<void> run(std::uint64_t table, std::optional<std::uint64_t> depth);
  task::Task<base::Status> attend(std::uint64_t table, std::optional<std::uint64_t> depth);
  task::Task<void> take_over_all(std::shared_ptr<Sweep> sweep);
  task::Task<void> take_over_each(Swept& swept);
  task::Task<base::Status> work(Run& run);
  task::Task<base::Status> with_directory(Run& run, bool begins);
  task::Task<base::Status> change_directory(Run& run, bool begins);
  task::Task<base::Status> each_row(Run& run, const Split& split, bool moves, std::uint64_t first);
  task::Task<void> one_row(const Split& split, bool moves, std::uint64_t row, base::Status& status);
  task::Task<base::Status> outlive_readers(Run& run);
  task::Task<base::Status> go_on(Run& run);
  task::Task<base::Status> read(fabric::Buffer& image, fabric::Buffer* leases = nullptr);
  task::Task<base::Status> write(Run& run, WordChanges changes);
  void spawn(std::uint64_t table, std::optional<std::uint64_t> depth);
  void leave(std::uint64_t table);
  base::Nanos soon() const;
  base::Nanos patience() const;

  session::Session& session_;
  Cache& cache_;
  const layout::Geometry& geometry_;
  Rows& rows_;
  const Counts counts_;
  fabric::Cost cost_;                  // that no operation waited for
  std::set<std::uint64_t> under_way_;  // tables that this client splits
  session::WaitQueue idle_;            // one of these is not any more, or a sweep is over
  bool no_tables_left_ = false;
  std::set<std::uint64_t> deepest_;  // tables that cannot be split again
  // Splits that operations have met, by their table. `since`: they were met first, or their lease was looked at.
  struct Watched {
    base::Nanos since = 0;
    base::Nanos last = 0;
  };
  std::map<std::uint64_t, Watched> watched_;
  std::map<std::uint64_t, base::Nanos> others_;  // tables whose lease was held, and when that was seen
  base::Status trouble_;
};

}  // namespace farpool::directory
