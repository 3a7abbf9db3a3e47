// SPDX-License-Identifier: Apache-2.0
// The commands on the bits of strings, a part of the table of commands.
#pragma once

#include <array>

#include "front/resp/hash_specs.h"
#include "front/resp/operations.h"
#include "front/resp/table.h"

namespace farpool::front::resp {

constexpr CommandSpec on_bits(CommandSpec spec) {
  spec.groups = spec.group = "bitmap";
  return on_one_key(spec);
}

inline constexpr std::array kBitCommands = std::to_array<CommandSpec>({
    on_bits({.name = "bitcount",
             .arity = -2,
             .flags = kReadOnly,
             .key_access = "RO access",
             .since = "2.6.0",
             .summary = "Count the ones in a value, or in a part of it: BYTE, BIT",
             .operation = op_bitcount}),
    on_bits({.name = "bitfield",
             .arity = -2,
             .flags = kWrite | kDenyOom,
             .key_access = "RW access update variable_flags",
             .key_note = "This command allows both access and modification of the key",
             .since = "3.2.0",
             .summary = "Read and write integers of any width in a value: GET, SET, INCRBY, OVERFLOW",
             .operation = op_bitfield}),
    on_bits({.name = "bitfield_ro",
             .arity = -2,
             .flags = kReadOnly | kFast,
             .key_access = "RO access",
             .since = "6.0.0",
             .summary = "Read integers of any width in a value: GET",
             .operation = op_bitfield_ro}),
    on_bits({.name = "bitpos",
             .arity = -3,
             .flags = kReadOnly,
             .key_access = "RO access",
             .since = "2.8.7",
             .summary = "Find the first one or zero in a value, or in a part of it: BYTE, BIT",
             .operation = op_bitpos}),
    on_bits({.name = "getbit",
             .arity = 3,
             .flags = kReadOnly | kFast,
             .key_access = "RO access",
             .since = "2.2.0",
             .summary = "Get a bit of a value",
             .operation = op_getbit}),
    on_bits({.name = "setbit",
             .arity = 4,
             .flags = kWrite | kDenyOom,
             .key_access = "RW access update",
             .since = "2.2.0",
             .summary = "Set a bit of a value, and get the one before",
             .operation = op_setbit}),
});

}  // namespace farpool::front::resp
