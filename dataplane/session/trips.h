// SPDX-License-Identifier: Apache-2.0
// Single trips over a session, for callers that need their result: any fate except `done` is an error. Each may also
// fail because the session ended; then the verb may have taken effect.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "fabric/cost.h"
#include "layout/calls.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::session {

// Returns an error that says what could not be done, and why the session ended. Its code is that of the end; it is
// `otherwise` while the session has not ended, or if nobody knows what took effect.
base::Status gone(const Session& session, base::Code otherwise, const std::string& what);

// Posts a chain and waits for it.
task::Task<base::Status> post_chain(Session& session, std::vector<fabric::Op> chain, Nanos deadline,
                                    fabric::Cost& cost);
// Fills `into` from a place in a region. The bytes may be torn anywhere.
task::Task<base::Status> read_bytes(Session& session, std::uint32_t region, std::uint64_t offset,
                                    base::MutableBytes into, Nanos deadline, fabric::Cost& cost);
// Replaces the bits of `mask` in a word if they are as in `compare`. Returns the word as it was before.
task::Task<base::Result<std::uint64_t>> cas_word(Session& session, fabric::Remote at, std::uint64_t compare,
                                                 std::uint64_t swap, std::uint64_t mask, Nanos deadline,
                                                 fabric::Cost& cost);
// Reports a client that seems to have stopped to the memory node, or only asks about it.
task::Task<base::Result<layout::FenceReply>> ask_fence(Session& session, layout::FenceRequest request, Nanos deadline,
                                                       fabric::Cost& cost);
// Changes a lease's word: over the wire, or by the memory node where clients may only read it. Returns the word as it
// was before: changed, if that is `says`.
task::Task<base::Result<std::uint64_t>> swap_lease(Session& session, std::uint64_t index, std::uint64_t says,
                                                   std::uint64_t word, Nanos deadline, fabric::Cost& cost);
// Waits a moment, of random length, before another look; at most until the deadline.
task::Task<void> breathe(Session& session, Nanos deadline);

}  // namespace farpool::session
