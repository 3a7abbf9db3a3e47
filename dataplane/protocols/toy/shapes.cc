// SPDX-License-Identifier: Apache-2.0
// In the place of layout/protocols.cc: the toy is the third, and the others have no tables here.
#include "layout/protocol.h"

namespace farpool::layout {
namespace {

constexpr TableFigures kToy{.entry_bytes = 8, .entries_per_row = 8, .rows_per_lock = 1};

base::Status check_toy(const TableFigures& figures) {
  if (figures.entry_bytes == kToy.entry_bytes && figures.entries_per_row == kToy.entries_per_row) return {};
  return {base::Code::invalid_argument, "a toy's table has rows of 8 words"};
}
base::Status refuse(const TableFigures&) { return {base::Code::invalid_argument, "this program has no such tables"}; }

}  // namespace

constinit const Shape kShapes[] = {
    {.name = "first", .check = refuse},
    {.name = "second", .check = refuse},
    {.name = "toy", .fixed = &kToy, .check = check_toy},
};
constinit const std::size_t kShapeCount = 3;

}  // namespace farpool::layout
