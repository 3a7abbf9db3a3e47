// SPDX-License-Identifier: Apache-2.0
// Any bytes are a value of a known kind or refused; a string or an image with any expiry is read back as it was.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "index/stored.h"

namespace {

using farpool::index::kNoExpiry;
using farpool::index::Stored;
using farpool::index::Type;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto stored = Stored::parse(bytes)) {
    FARPOOL_CHECK(stored->text.size() <= bytes.size() && bytes.starts_with(stored->text));
    // What has another form than its own is no worse: it is read alike.
    std::string again(stored->text);
    Stored::seal(again, stored->expires, stored->type);
    const auto same = Stored::parse(again);
    FARPOOL_CHECK(same && same->text == stored->text && same->expires == stored->expires && same->type == stored->type);
    if (stored->expires != kNoExpiry || stored->type != Type::string) FARPOOL_CHECK(again == bytes);
  } else {
    FARPOOL_CHECK(!bytes.empty() && static_cast<unsigned char>(bytes.back()) > Stored::kFirstKind);
  }
  const std::uint64_t expires = size % 2 == 0 ? kNoExpiry : size * 0x9e3779b97f4a7c15ull;
  const auto type = static_cast<Type>(size % 3);
  std::string kept(bytes);
  Stored::seal(kept, expires, type);
  const auto stored = Stored::parse(kept);
  FARPOOL_CHECK(stored && stored->text == bytes && stored->expires == expires && stored->type == type);
  return 0;
}
