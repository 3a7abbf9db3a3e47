// SPDX-License-Identifier: Apache-2.0
// Directories of other bytes. Whatever they are, readers end within bounds; where nothing is found wrong, every key has
// a table, and a split that begins or ends leaves nothing wrong either.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "directory/directory.h"

using farpool::directory::View;
namespace directory = farpool::directory;
namespace layout = farpool::layout;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint64_t kTables = 4, kRows = 64;
  std::vector<std::byte> bytes(layout::directory_bytes(kTables));
  directory::format(bytes, kTables);
  const auto write = [&bytes](const directory::WordChanges& changes) {
    for (const directory::WordChange& change : changes) {
      FARPOOL_CHECK(change.offset % 8 == 0 && change.offset < bytes.size());
      farpool::base::store(bytes.data() + change.offset, change.word);
    }
  };
  const View view(bytes, kTables);
  // Steps of splits, cut short anywhere, and then words of the input.
  for (; size > 0 && *data < 0x80; ++data, --size) {
    const std::uint64_t table = *data % kTables;
    directory::WordChanges changes;
    if (*data % 12 < 4) {
      if (const auto begun = directory::begin(view, table); begun.ok()) changes = *begun;
    } else if (directory::under_way(view, table)) {
      if (!directory::begin(view, table)->empty()) continue;
      changes = *data % 12 < 8 ? directory::begin_clearing(view, table) : directory::end(view, table);
    }
    write(changes);
    FARPOOL_CHECK(directory::verify(view, kRows).empty());
  }
  for (; size >= 10; data += 10, size -= 10) {
    std::uint64_t word = 0;
    std::copy(data + 2, data + 10, reinterpret_cast<std::uint8_t*>(&word));
    const std::size_t at = data[0] + std::size_t{256} * data[1];
    farpool::base::store(bytes.data() + at % (bytes.size() / 8) * 8, word);
  }
  const bool right = directory::verify(view, kRows).empty();
  for (std::uint64_t hash = 0; hash < 64; ++hash) {
    const auto found = directory::route(view, hash);
    if (found) FARPOOL_CHECK(found->table < kTables && found->old.value_or(0) < kTables);
    for (const std::uint64_t table : directory::tables_of_all_times(view, hash)) FARPOOL_CHECK(table < kTables);
  }
  for (std::uint64_t table = 0; table < kTables; ++table) {
    std::vector<std::byte> before = bytes;
    const auto changes = directory::begin(view, table);
    if (changes.ok()) {
      write(*changes);
      if (right) FARPOOL_CHECK(directory::verify(view, kRows).empty());
      if (directory::under_way(view, table)) write(directory::begin_clearing(view, table));
      write(directory::end(view, table));
      if (right) FARPOOL_CHECK(directory::verify(view, kRows).empty());
    }
    bytes = before;
  }
  return 0;
}
