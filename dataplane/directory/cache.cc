// SPDX-License-Identifier: Apache-2.0
#include "directory/cache.h"

#include <array>

#include "layout/regions.h"

namespace farpool::directory {

using base::Code;
using base::Status;
using fabric::Op;

Cache::Cache(session::Session& session, std::uint64_t tables)
    : session_(session), tables_(tables), image_(layout::entry_offset(1)) {
  base::store(image_.data() + layout::entry_offset(0), layout::EntryWord::of(0, 0, false, 0));
}

task::Task<Status> Cache::refresh(base::Nanos deadline, fabric::Cost& cost) {
  for (std::uint64_t depth = view().depth();;) {
    const std::uint64_t bytes = layout::entry_offset(1ull << depth);
    fabric::Buffer buffer = session_.port().buffer(bytes);
    const std::array chain{Op::read({layout::kDirectory, 0}, buffer.first(bytes))};
    const fabric::Outcome outcome = co_await session_.post(chain, deadline, cost);
    if (outcome.fate != fabric::Fate::done) {
      const Status why = session_.why();
      co_return Status(why.ok() ? Code::unavailable : why.code(), "the directory could not be read: " + why.message());
    }
    const auto said = base::load<std::uint64_t>(buffer.data());
    if (said > layout::most_depth(tables_)) {
      co_return Status(Code::corrupt, "the directory says that it is " + std::to_string(said) + " bits deep, and " +
                                          std::to_string(tables_) + " tables need no more than " +
                                          std::to_string(layout::most_depth(tables_)));
    }
    if (said > depth) {
      depth = said;
      continue;
    }
    const base::Bytes read = buffer.span();
    image_.assign(read.begin(), read.begin() + static_cast<std::ptrdiff_t>(bytes));
    refreshed_ = session_.port().now();
    co_return Status();
  }
}

}  // namespace farpool::directory
