// SPDX-License-Identifier: Apache-2.0
// RACE behind index::Table, on the tables that a memory node has room for. It has no locks and no operation slots: a
// change takes effect by a CAS on one word. docs/adr/0009-one-directory-and-race-without-locks.md says why that is
// safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "fabric/cost.h"
#include "heap/heap.h"
#include "index/edit.h"
#include "index/table.h"
#include "layout/geometry.h"
#include "session/repair.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::race {

using index::Edit;
using index::Editor;
using index::Marks;

class Table final : public index::Table {
 public:
  // The session outlives the table, and the table outlives its operations and the session's background tasks. It has a
  // heap of its own.
  Table(session::Session& session, const layout::Geometry& geometry, std::uint32_t table_id = 0);
  // Uses a heap that outlives it.
  Table(session::Session& session, heap::Heap& heap, const layout::Geometry& geometry, std::uint32_t table_id = 0);
  ~Table() override;

  task::Task<base::Result<std::optional<std::string>>> lookup(std::string_view key, base::Nanos deadline,
                                                              fabric::Cost& cost, std::string room = {}) override;
  task::Task<base::Result<bool>> insert(std::string_view key, std::string_view value, base::Nanos deadline,
                                        fabric::Cost& cost) override;
  task::Task<base::Result<bool>> update(std::string_view key, std::string_view value, base::Nanos deadline,
                                        fabric::Cost& cost) override;
  task::Task<base::Result<bool>> remove(std::string_view key, base::Nanos deadline, fabric::Cost& cost) override;
  task::Task<base::Result<bool>> put(std::string_view key, std::string_view value, base::Nanos deadline,
                                     fabric::Cost& cost) override;
  task::Task<base::Result<bool>> modify(std::string_view key, Editor& editor, base::Nanos deadline,
                                        fabric::Cost& cost) override;
  task::Task<base::Result<index::Totals>> count(base::Nanos deadline, fabric::Cost& cost) override;
  task::Task<base::Result<index::Page>> scan(std::uint64_t position, std::uint64_t count, base::Nanos deadline,
                                             fabric::Cost& cost) override;
  std::uint64_t positions() const override;

  task::Task<base::Status> split(std::string_view key, base::Nanos deadline, fabric::Cost& cost) override;
  task::Task<base::Result<bool>> split_ahead(std::uint64_t depth, std::uint64_t chance, base::Nanos deadline,
                                             fabric::Cost& cost) override;

  base::Status split_trouble() const override;

  task::Task<base::Status> idle(base::Nanos deadline) override;

  const layout::Geometry& geometry() const override;
  const Marks& marks() const override;
  task::Task<base::Result<index::Swept>> sweep(base::Nanos deadline, fabric::Cost& cost) override;
  task::Task<void> maintain(base::Nanos deadline) override;
  task::Task<void> release(base::Nanos deadline) override;
  void set_make_room(std::function<bool(std::uint64_t bytes)> make_room) override;
  heap::Heap* heap() override;
  session::Repairer* repairer() override;
  index::Movable* movable() override;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace farpool::race
