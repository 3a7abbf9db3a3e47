// SPDX-License-Identifier: Apache-2.0
// What a client's table holds: its connection, its locator and its request lines; and how it asks the memory node.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "index/outback/layout.h"
#include "index/outback/table.h"
#include "session/wait.h"

namespace farpool::outback {

// A request line, held for one operation.
class Line {
 public:
  Line(Table::State& state, std::uint32_t index) : state_(&state), index_(index) {}
  Line(Line&& other) noexcept : state_(std::exchange(other.state_, nullptr)), index_(other.index_) {}
  Line& operator=(Line&&) = delete;
  ~Line();
  // Returns the id of another request.
  std::uint64_t next();

 private:
  Table::State* state_;
  std::uint32_t index_;
};

struct Table::State {
  State(Connections& all_connections, Options all_options);

  // Say whether ready() and attach() would return at once: operations ask these first, which costs no frame.
  bool is_ready() const { return alive() && locator; }
  bool is_attached() const { return is_ready() && attached_ == connects_; }
  // What follows is rare, and not inlined: otherwise its frames would be parts of the frame of each operation under way,
  // which would then have 8 KiB.
  //
  // Returns when there is a connection that lives, and a locator.
  [[gnu::noinline]] task::Task<base::Status> ready(base::Nanos deadline, fabric::Cost& cost);
  // Returns when, besides, the memory node knows this client's lines as those of this connection.
  [[gnu::noinline]] task::Task<base::Status> attach(base::Nanos deadline, fabric::Cost& cost);
  // Returns when there is another locator than the one of `generation`.
  [[gnu::noinline]] task::Task<base::Status> renew(std::uint64_t generation, base::Nanos deadline, fabric::Cost& cost);
  [[gnu::noinline]] task::Task<void> detach(base::Nanos deadline, fabric::Cost& cost);
  // Returns a line if there is one now. An operation that finds none attaches, or waits for `line_free`.
  std::optional<Line> free_line();

  // Asks, and asks again where the answer was lost. The reply lies in `room`. Learns the bucket's seed from it, if it is
  // another one than `by_seed`, by which the client looked for the key.
  task::Task<base::Result<Reply>> ask(Request request, fabric::Buffer& bytes, fabric::Buffer& room,
                                      base::Nanos deadline, fabric::Cost& cost, std::uint8_t by_seed = 0);

  // Reads a block that had no room in a reply. Nothing: it is not whole, because it has been changed or used again.
  [[gnu::noinline]] task::Task<base::Result<std::optional<BlockView>>> read_elsewhere(const Reply& reply,
                                                                                      fabric::Buffer& block,
                                                                                      base::Nanos deadline,
                                                                                      fabric::Cost& cost);
  // Reads the key of a block that a scan names. Nothing: as above.
  task::Task<base::Result<std::optional<std::string>>> read_key(ScanKey key, base::Nanos deadline, fabric::Cost& cost);

  // What the client knows of moves when an operation looks for a key. Another move that it learns of meanwhile does not
  // count for the operation.
  struct Way {
    std::uint64_t move = 0;
    bool leaves = false;
  };
  Way way_of(std::string_view key) const {
    return {move.number,
            !move.leaving.empty() && move.leaves(base::keyed_hash(options.pool_secret, base::bytes_of(key)))};
  }
  // Returns the error for a key that the reply says is not here, if it may be at another memory node; else ok.
  static base::Status elsewhere(const Way& way, const Reply& reply);

  // Returns the error for a request that the memory node refuses.
  static base::Status refusal(Status status);
  // Waits for a time by chance, the longer the more often an operation has waited.
  [[gnu::noinline]] task::Task<void> pause(base::Nanos deadline, int times = 0);

  Connections& connections;
  fabric::Port& port;
  const Options options;
  index::Marks marks;
  index::Move move;  // the pool's latest, as far as this client knows
  std::shared_ptr<Connection> connection;
  std::shared_ptr<Locator> locator;
  std::vector<std::uint64_t> numbers;  // of the last request, by line
  std::vector<std::uint32_t> free_lines;
  session::WaitQueue line_free;

 private:
  // One coroutine at a time connects, reads the locator or attaches; the others wait for it.
  class Turn;
  task::Task<base::Result<Turn>> take_turn(base::Nanos deadline);
  task::Task<base::Status> connect(base::Nanos deadline);
  // A place that may have the newest locator.
  struct Place {
    std::uint32_t region = 0;
    std::uint64_t offset = 0, room = 0;
    std::array<std::uint64_t, LocatorHeader::kWords> words{};
    LocatorHeader header;
  };
  task::Task<base::Result<Place>> newest_place(base::Nanos deadline, fabric::Cost& cost);
  task::Task<base::Result<bool>> fetch(std::uint64_t generation, base::Nanos deadline, fabric::Cost& cost);
  // Returns the CALL that carries a request, in buffers that are made if they are too short. An error: there can be none.
  base::Result<fabric::Op> call_of(const Request& request, fabric::Buffer& bytes, fabric::Buffer& room);
  // Takes what came of a CALL. An error: there is no reply.
  static base::Status judge(const Connection& on, const fabric::Outcome& outcome, base::Bytes room, Reply& reply);
  // Asks once.
  task::Task<base::Result<Reply>> post(Request request, base::Nanos deadline, fabric::Cost& cost);
  // Returns where a block of that length lies in its region; nothing: not within it.
  std::optional<std::uint64_t> place_of(std::uint64_t address, std::uint64_t bytes) const;
  task::Task<base::Status> read(std::uint32_t region, std::uint64_t offset, base::MutableBytes into,
                                base::Nanos deadline, fabric::Cost& cost);
  // Returns when one trip of an operation is given up: early enough for it to be made again before the deadline.
  static base::Nanos patience(base::Nanos deadline, base::Nanos now) {
    return deadline - std::max<base::Nanos>(deadline - now, 0) / 4 * 3;
  }
  bool alive() const { return connection && connection->alive(); }
  void learn(const Request& request, const Reply& reply, std::uint8_t by_seed);

  bool turn_taken_ = false;
  session::WaitQueue turn_free_;
  std::uint64_t token_ = 0;  // by which the memory node knows this client
  std::uint16_t client_ = 0;
  std::uint64_t connects_ = 0, attached_ = 0;  // connections so far, and the one on which it has attached last
  std::uint64_t life_ = 0;                     // how often the memory node has begun with empty lines
};

// What an operation holds while it may read blocks: the connection outlives its pin.
struct Hold {
  explicit Hold(const Table::State& state) : connection(state.connection), pin(connection->pin()) {}
  const std::shared_ptr<Connection> connection;
  const std::optional<session::EraPin> pin;
};

// Adds a key that comes from another memory node. Returns false if it is there already.
task::Task<base::Result<bool>> add_as_mover(Table::State& state, std::string_view key, std::string_view value,
                                            base::Nanos deadline, fabric::Cost& cost);

}  // namespace farpool::outback
