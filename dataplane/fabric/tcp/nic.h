// SPDX-License-Identifier: Apache-2.0
// The software NIC: checks a chain against the rights of its lane, and executes it on the regions in posting order. No
// sockets.
#pragma once

#include <span>

#include "base/bytes.h"
#include "fabric/host.h"
#include "fabric/tcp/frame.h"

namespace farpool::fabric::tcp {

using Rights = std::span<const RegionRight>;

// Says whether every verb has its key, lies within its region, is aligned and not too long, whether a CALL is alone,
// and whether the reply fits a frame. A chain is checked as a whole before any of it executes.
bool permitted(const ChainView& chain, Rights rights);

// Says whether a CALL's request, or its reply, is longer than allowed.
bool too_long(const VerbView& call);

// Executes a permitted chain without CALL and writes its reply, header included; `reply` has exactly
// reply_length(chain) bytes.
void execute(const ChainView& chain, Rights rights, base::MutableBytes reply);

}  // namespace farpool::fabric::tcp
