// SPDX-License-Identifier: Apache-2.0
// In the place of layout/protocols.cc: tables of one protocol, whose rows are buckets of slots of the vault.
#include "layout/protocol.h"

namespace farpool::layout {
namespace {

base::Status any(const TableFigures&) { return {}; }

}  // namespace

constinit const Shape kShapes[] = {{.name = "cuckooduo", .check = any}};
constinit const std::size_t kShapeCount = 1;

}  // namespace farpool::layout
