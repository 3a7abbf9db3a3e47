// SPDX-License-Identifier: Apache-2.0
// What a test says to the protocol in list.cc, and hears from it.
#pragma once

#include "index/cuckooduo/relay.h"
#include "index/cuckooduo/site.h"

namespace farpool::cuckooduo {

struct Served {
  Site site;               // of the next life of a memory node
  Relay* relay = nullptr;  // of the latest life
};
Served& served();

}  // namespace farpool::cuckooduo
