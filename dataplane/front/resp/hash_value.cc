// SPDX-License-Identifier: Apache-2.0
#include "front/resp/hash_value.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/kv.h"

namespace farpool::front::resp {
namespace {

constexpr std::size_t kMostLengthBytes = 3;

// Takes a length and as many bytes from the front of `rest`. Returns false if they are not there.
bool take(std::string_view& rest, std::string_view& bytes) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < kMostLengthBytes && i < rest.size(); ++i) {
    const auto byte = static_cast<unsigned char>(rest[i]);
    length |= static_cast<std::size_t>(byte & 0x7f) << (7 * i);
    if ((byte & 0x80) != 0) continue;
    if (byte == 0 && i > 0) return false;  // not in its shortest form
    rest.remove_prefix(i + 1);
    if (length > rest.size()) return false;
    bytes = rest.substr(0, length);
    rest.remove_prefix(length);
    return true;
  }
  return false;
}

bool take(std::string_view& rest, Field& field) { return take(rest, field.name) && take(rest, field.value); }

void add(std::string& image, std::string_view bytes) {
  std::size_t length = bytes.size();
  for (; length >= 0x80; length >>= 7) image += static_cast<char>(length | 0x80);
  image += static_cast<char>(length);
  image += bytes;
}

void add(std::string& image, const Field& field) {
  add(image, field.name);
  add(image, field.value);
}

// The fields that a command names, each once, to be found by name.
class Wanted {
 public:
  explicit Wanted(std::span<const Field> fields) {
    fields_.reserve(fields.size());
    for (std::size_t i = 0; i < fields.size(); ++i) fields_.push_back({fields[i], i});
    std::sort(fields_.begin(), fields_.end(), [](const One& a, const One& b) {
      return std::pair(a.field.name, a.place) < std::pair(b.field.name, b.place);
    });
    std::size_t kept = 0;
    for (std::size_t i = 1; i < fields_.size(); ++i) {
      if (fields_[i].field.name == fields_[kept].field.name) {
        fields_[kept].field.value = fields_[i].field.value;
      } else {
        fields_[++kept] = fields_[i];
      }
    }
    if (!fields_.empty()) fields_.resize(kept + 1);
  }
  // Returns the field, the first time that it is asked for.
  const Field* take(std::string_view name) {
    const auto found = std::lower_bound(fields_.begin(), fields_.end(), name,
                                        [](const One& one, std::string_view than) { return one.field.name < than; });
    if (found == fields_.end() || found->field.name != name || found->taken) return nullptr;
    found->taken = true;
    return &found->field;
  }
  // Returns the others, in the order in which the command names them.
  std::vector<Field> rest() {
    std::erase_if(fields_, [](const One& one) { return one.taken; });
    std::sort(fields_.begin(), fields_.end(), [](const One& a, const One& b) { return a.place < b.place; });
    std::vector<Field> rest;
    rest.reserve(fields_.size());
    for (const One& one : fields_) rest.push_back(one.field);
    return rest;
  }

 private:
  struct One {
    Field field;
    std::size_t place = 0;  // in the command
    bool taken = false;
  };
  std::vector<One> fields_;
};

}  // namespace

Hash::Iterator& Hash::Iterator::operator++() {
  shows_ = take(rest_, field_);
  return *this;
}

std::optional<Hash> Hash::parse(std::string_view image) {
  if (image.size() < 2 || image.front() != kVersion) return std::nullopt;
  Hash hash;
  hash.fields_ = image.substr(1);
  Field field;
  for (std::string_view rest = hash.fields_; !rest.empty(); ++hash.size_) {
    if (!take(rest, field)) return std::nullopt;
  }
  return hash;
}

bool Hash::is_small() const {
  constexpr std::size_t kMostFields = 512, kMostBytes = 64;  // hash-max-listpack-entries, hash-max-listpack-value
  if (size_ > kMostFields) return false;
  for (const Field& field : *this) {
    if (field.name.size() > kMostBytes || field.value.size() > kMostBytes) return false;
  }
  return true;
}

std::optional<std::string_view> Hash::find(std::string_view name) const {
  for (const Field& field : *this) {
    if (field.name == name) return field.value;
  }
  return std::nullopt;
}

std::vector<std::optional<std::string_view>> Hash::find_all(std::span<const std::string_view> names) const {
  std::vector<std::pair<std::string_view, std::size_t>> places;  // by name
  places.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) places.emplace_back(names[i], i);
  std::sort(places.begin(), places.end());
  std::vector<std::optional<std::string_view>> values(names.size());
  for (const Field& field : *this) {
    auto place = std::lower_bound(places.begin(), places.end(), std::pair(field.name, std::size_t{0}));
    for (; place != places.end() && place->first == field.name; ++place) {
      if (!values[place->second]) values[place->second] = field.value;
    }
  }
  return values;
}

std::optional<ChangedHash> with_fields(const Hash& before, std::span<const Field> fields, std::size_t most) {
  Wanted wanted(fields);
  ChangedHash after{.image = std::string(1, Hash::kVersion), .size = before.size()};
  after.image.reserve(before.image_bytes() + client::Stored::kMostTailBytes + 64);
  const auto add_field = [&](const Field& field) {
    add(after.image, field);
    return after.image.size() <= most;
  };
  for (const Field& field : before) {
    const Field* const set = wanted.take(field.name);
    if (!add_field(set != nullptr ? *set : field)) return std::nullopt;
  }
  for (const Field& field : wanted.rest()) {
    if (!add_field(field)) return std::nullopt;
    ++after.changed;
    ++after.size;
  }
  return after;
}

ChangedHash without_fields(const Hash& before, std::span<const std::string_view> names) {
  std::vector<Field> fields;
  fields.reserve(names.size());
  for (const std::string_view name : names) fields.push_back({.name = name, .value = {}});
  Wanted wanted(fields);
  ChangedHash after{.image = std::string(1, Hash::kVersion)};
  after.image.reserve(before.image_bytes() + client::Stored::kMostTailBytes);
  for (const Field& field : before) {
    if (wanted.take(field.name) != nullptr) {
      ++after.changed;
    } else {
      add(after.image, field);
      ++after.size;
    }
  }
  if (after.size == 0) after.image.clear();
  return after;
}

}  // namespace farpool::front::resp
