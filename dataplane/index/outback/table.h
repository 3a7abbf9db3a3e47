// SPDX-License-Identifier: Apache-2.0
// Outback behind index::Table: each operation is one CALL to the memory node, which executes it. The client knows where
// a key lies from its locator, and compares keys itself. A second CALL, the make-up get, follows where the bucket has got
// another seed since, or where the key is in the overflow list.
//
// A change has a request id. If its answer is lost, the table connects anew and asks again with the id, so that the
// change takes effect once. Its outcome stays unknown only if the memory is gone, or if the memory node has given the
// client's lines away meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "index/outback/connection.h"
#include "index/outback/locator.h"
#include "index/outback/message.h"
#include "index/table.h"

namespace farpool::outback {

// A table's newest locator, which all threads of a process that use the table share: a locator is most of what a client
// holds.
class Shelf {
 public:
  std::shared_ptr<Locator> get() const;
  void put(std::shared_ptr<Locator> locator);

 private:
  void lock() const;
  mutable std::atomic<bool> taken_{false};  // for a few instructions
  std::shared_ptr<Locator> locator_;
};

class Table final : public index::Table {
 public:
  struct Options {
    base::HashSecret secret, pool_secret;  // from the handshake: of this table's keys, and of the pool's
    // Regions of the memory node that clients may read: the locator, and the blocks. The address of a block is its
    // offset in the region, and `blocks_at` more.
    std::uint32_t locator_region = 0;
    std::uint32_t blocks_region = 0;
    std::uint64_t blocks_at = 0;
    // Where in the region of blocks the other place of the locator is. A locator is in one place, and the next one in
    // the other. Nothing: there is one place.
    std::optional<std::uint64_t> second_locator_at;
    std::uint32_t opcode = fabric::kFirstServiceOpcode;
    // How long a change waits for a connection beyond its deadline, before its outcome is unknown.
    base::Nanos patience = 2 * base::kSecond;
    layout::Geometry geometry;
    std::shared_ptr<Shelf> shelf;  // none: the locator is this table's alone
  };
  // What a change came to.
  struct Changed {
    Status status = Status::done;     // one that text_of() explains, and that is no refusal
    bool existed = false;             // the key was there before
    std::int64_t number = 0;          // the sum of add, the length of append and overlay
    std::optional<std::string> text;  // the value before of swap and take, the sum of add_float
  };

  // `connections` outlives the table.
  Table(Connections& connections, Options options);
  Table(std::unique_ptr<Connections> connections, Options options);
  ~Table() override;

  // Connects, reads the locator and gets request lines. Operations do so, too, if they are not there.
  task::Task<base::Status> open(base::Nanos deadline, fabric::Cost& cost);

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
  // Returns what the geometry says until the first operation has read the locator.
  std::uint64_t positions() const override;
  // Gives the request lines back.
  task::Task<void> release(base::Nanos deadline) override;

  index::Movable* movable() override;

  // Carries out a read-modify-write that has a name at the memory node, in one trip.
  task::Task<base::Result<Changed>> change(Op op, std::string_view key, std::string_view value, std::uint64_t argument,
                                           base::Nanos deadline, fabric::Cost& cost);

  const layout::Geometry& geometry() const override;
  const index::Marks& marks() const override;
  // Returns the locator; nullptr before the first operation.
  const Locator* locator() const;

  struct State;

 private:
  const std::unique_ptr<Connections> own_;  // none: the connections are another one's
  std::unique_ptr<State> state_;
  std::unique_ptr<index::Movable> movable_;
};

}  // namespace farpool::outback
