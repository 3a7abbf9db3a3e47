// SPDX-License-Identifier: Apache-2.0
// The metrics of farpool-memory-node.
#pragma once

#include "apps/samples.h"
#include "fabric/tcp/responder.h"
#include "fabric/verbs/responder.h"
#include "node/memory_node.h"

namespace farpool::apps {

// Adds what a node counts. `fresh`: this incarnation formatted the memory.
void collect(Samples& s, const node::MemoryNode::Stats& node, bool fresh);
// Add what a wire counts.
void collect(Samples& s, const fabric::tcp::ResponderStats& wire);
void collect(Samples& s, const fabric::verbs::VerbsStats& verbs);

}  // namespace farpool::apps
