// SPDX-License-Identifier: Apache-2.0
// A cursor of a scan: one number that says where the scan continues. Pure.
#pragma once

#include <cstdint>

#include "index/page.h"
#include "layout/word.h"

namespace farpool::client {

enum Pass : std::uint64_t { kDeparted, kOthers };

// A cursor of a scan. Clients may hold it as a double, which is exact below 2^53: a cursor never has more bits. A scan
// reads the tables that keys are leaving before the others, and reads everything again after another move has begun: so
// it meets a key that moves meanwhile at its old or at its new place.
struct Cursor {
  using Position = layout::Field<0, index::kPositionBits>;  // in the table: no protocol has more
  // Id of the table in the map. The operator gives the lowest free id to each of at most 256 memory nodes; a scan
  // refuses a hand-written map that has higher ones.
  using Table = layout::Field<35, 10>;
  using Pass = layout::Field<45, 1>;
  // The number of the pool's last move, modulo 127: no scan pauses for 127 moves. 0 stands for no move, so only the
  // cursor of the beginning is 0.
  using Move = layout::Field<46, 7>;
  static constexpr std::uint64_t mark(std::uint64_t move) { return 1 + move % Move::kMax; }
};
static_assert(index::kPositionBits == 35, "the next field begins behind the position");
constexpr std::uint64_t cursor_of(std::uint64_t move, Pass pass, std::uint64_t table, std::uint64_t position) {
  return Cursor::Move::put(Cursor::mark(move)) | Cursor::Pass::put(pass) | Cursor::Table::put(table) |
         Cursor::Position::put(position);
}
static_assert(cursor_of(Cursor::Move::kMax - 1, kOthers, Cursor::Table::kMax, Cursor::Position::kMax) ==
                  (1ull << 53) - 1,
              "every cursor is a double");

// Where a scan is.
struct ScanPlace {
  Pass pass = kDeparted;
  std::uint64_t table = 0;  // its id in the map
  std::uint64_t position = 0;

  // The beginning is encoded as a number that no cursor of this move can have.
  static constexpr ScanPlace of(std::uint64_t cursor, std::uint64_t move) {
    if (cursor > cursor_of(move, kOthers, Cursor::Table::kMax, Cursor::Position::kMax) ||
        Cursor::Move::get(cursor) != Cursor::mark(move)) {
      return {};
    }
    return {.pass = Cursor::Pass::get(cursor) == kOthers ? kOthers : kDeparted,
            .table = Cursor::Table::get(cursor),
            .position = Cursor::Position::get(cursor)};
  }
  constexpr std::uint64_t cursor(std::uint64_t move) const { return cursor_of(move, pass, table, position); }
  friend bool operator==(const ScanPlace&, const ScanPlace&) = default;
};

}  // namespace farpool::client
