// SPDX-License-Identifier: Apache-2.0
// One client's table. The client looks keys up by its replica, and sends its changes to the table's owner over the
// memory node. If there is no owner, or it is silent, the client becomes the owner as soon as the memory node has
// ended the last one. Then it changes the table itself, and carries out what others ask for, until it says goodbye.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "fabric/cost.h"
#include "heap/heap.h"
#include "index/cuckooduo/owner.h"
#include "index/edit.h"
#include "index/table.h"
#include "layout/geometry.h"
#include "layout/kv_call.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::cuckooduo {

class Table final : public index::Table {
 public:
  // The session outlives the table, and the table outlives its operations and the session's background tasks.
  Table(session::Session& session, const layout::Geometry& geometry);
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
  task::Task<base::Result<bool>> modify(std::string_view key, index::Editor& editor, base::Nanos deadline,
                                        fabric::Cost& cost) override;
  task::Task<base::Result<index::Totals>> count(base::Nanos deadline, fabric::Cost& cost) override;
  task::Task<base::Result<index::Page>> scan(std::uint64_t position, std::uint64_t count, base::Nanos deadline,
                                             fabric::Cost& cost) override;
  std::uint64_t positions() const override;

  const layout::Geometry& geometry() const override;
  const index::Marks& marks() const override;
  task::Task<base::Result<index::Swept>> sweep(base::Nanos deadline, fabric::Cost& cost) override;
  task::Task<void> maintain(base::Nanos deadline) override;
  task::Task<void> release(base::Nanos deadline) override;
  heap::Heap* heap() override;
  session::Repairer* repairer() override;

  // Says whether this client owns the table, as far as it knows.
  bool owns() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace farpool::cuckooduo
