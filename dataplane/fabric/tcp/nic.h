// SPDX-License-Identifier: Apache-2.0
// The software NIC: judges a chain against the rights of its lane and executes it on the regions, in posting order. No
// sockets.
#pragma once

#include <span>

#include "base/bytes.h"
#include "fabric/host.h"
#include "fabric/tcp/frame.h"

namespace farpool::fabric::tcp {

using Rights = std::span<const RegionRight>;

// Says whether every verb has its key, lies within its region, is aligned and not too long, a CALL stands alone, and
// the reply fits a frame. A chain is judged whole before any of it executes.
bool permitted(const ChainView& chain, Rights rights);

// Says whether a CALL asks for more than any may, there or back.
bool too_long(const VerbView& call);

// Executes a permitted chain without CALL and writes its reply, header included; `reply` has exactly
// reply_length(chain) bytes.
void execute(const ChainView& chain, Rights rights, base::MutableBytes reply);

}  // namespace farpool::fabric::tcp
