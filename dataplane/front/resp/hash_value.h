// SPDX-License-Identifier: Apache-2.0
// A hash as a pool keeps it: one value, which is edited as a whole (docs/adr/0039-hashes.md). Pure.
//
//    offset  size
//    0       1    version of the form, kVersion
//    1       ...  fields, in the order in which they were first set: each is the length of its name, the name, the length
//                 of its value, and the value
//
// A length is a little-endian base-128 number of at most three bytes: seven bits in each byte, the lowest first, and the
// top bit set in all but the last one, which is not zero unless it is the only one. Names and values are any bytes, or
// none. A hash has at least one field: a key without fields is absent. No name comes twice; nothing checks that, and the
// first one counts.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace farpool::front::resp {

struct Field {
  std::string_view name, value;
  friend bool operator==(const Field&, const Field&) = default;
};

// The fields of an image, which must outlive it.
class Hash {
 public:
  static constexpr char kVersion = 1;

  // Returns nothing if the bytes are no hash of this version.
  static std::optional<Hash> parse(std::string_view image);
  // Makes the hash of an absent key.
  Hash() = default;

  // Goes through the fields in order.
  class Iterator {
   public:
    explicit Iterator(std::string_view rest) : rest_(rest) { ++*this; }
    const Field& operator*() const { return field_; }
    Iterator& operator++();
    friend bool operator==(const Iterator& at, std::default_sentinel_t) { return !at.shows_; }

   private:
    std::string_view rest_;
    Field field_;
    bool shows_ = false;
  };
  Iterator begin() const { return Iterator(fields_); }
  std::default_sentinel_t end() const { return {}; }

  // Counts the fields.
  std::size_t size() const { return size_; }
  std::size_t image_bytes() const { return 1 + fields_.size(); }
  bool empty() const { return size_ == 0; }
  // Says whether Redis would keep such a hash as a list, in the order of its fields, unless it was larger before.
  bool is_small() const;
  // Returns the value of a field, in time that grows with the image.
  std::optional<std::string_view> find(std::string_view name) const;
  // Returns the values of several fields, in the order of their names.
  std::vector<std::optional<std::string_view>> find_all(std::span<const std::string_view> names) const;

 private:
  std::string_view fields_;
  std::size_t size_ = 0;
};

// An image with changes.
struct ChangedHash {
  std::string image;
  std::size_t changed = 0;  // fields that are new, or that are gone
  std::size_t size = 0;     // fields that there are now
};
// Sets fields. If a name comes twice, the last value counts. Returns nothing if the image would be longer than `most`.
std::optional<ChangedHash> with_fields(const Hash& before, std::span<const Field> fields, std::size_t most);
// Removes fields. If none is left, there is no image.
ChangedHash without_fields(const Hash& before, std::span<const std::string_view> names);

}  // namespace farpool::front::resp
