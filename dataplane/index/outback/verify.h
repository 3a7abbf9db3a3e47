// SPDX-License-Identifier: Apache-2.0
// Checks over an image of an Outback memory what must hold of its bytes when nobody changes them. Pure; takes any bytes.
#pragma once

#include <cstdint>
#include <functional>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/result.h"
#include "fabric/service.h"
#include "index/image.h"
#include "index/outback/layout.h"

namespace farpool::outback {

// A block that is in use. Its views are into the image, or into what it becomes when changes under way are made.
struct Seen {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t bucket = 0;
  enum class By : std::uint8_t { slot, list, line } by = By::slot;  // what points to it
  BlockView block;
};
struct Look {
  std::function<void(const Seen&)> visit;
  std::function<void(std::uint64_t buckets)> progress;  // called now and then
};

// Checks that every slot is empty or well formed and has a block that is whole, is this bucket's and has the slot's print
// and length; that its key belongs into this bucket and, under its seed, into this slot; that overflow lists end and have
// the keys that cache bits tell of, and no key is there twice; that blocks neither overlap nor lie where no memory node
// puts one; that lines remember outcomes that can be; and that marks are of keys that are there. Changes that are
// decided count as made. The report counts buckets as rows.
index::Report verify(const Cut& cut, base::Bytes memory, const base::HashSecret& secret, const Look& look = {});

// Makes the changes that are decided and not all made. If it is cut short after any word, another call does the rest.
// Returns how many there were. corrupt: a record that no memory node writes; nothing of it was made.
base::Result<std::uint64_t> finish_decided(const Cut& cut, base::MutableBytes memory, fabric::Hand hand);

}  // namespace farpool::outback
