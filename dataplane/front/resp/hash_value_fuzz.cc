// SPDX-License-Identifier: Apache-2.0
// Any bytes are a hash or refused. What is a hash is written back byte for byte, and every change to it gives what the
// same change to a list of fields gives.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "front/resp/hash_value.h"

namespace {

using namespace farpool::front::resp;

using Model = std::vector<std::pair<std::string, std::string>>;

Model model_of(const Hash& hash) {
  Model model;
  for (const Field& field : hash) model.emplace_back(field.name, field.value);
  FARPOOL_CHECK(model.size() == hash.size());
  return model;
}

bool has_doubles(const Model& model) {
  std::vector<std::string> names;
  for (const auto& [name, value] : model) names.push_back(name);
  std::sort(names.begin(), names.end());
  return std::adjacent_find(names.begin(), names.end()) != names.end();
}

Model::iterator find(Model& model, std::string_view name) {
  return std::find_if(model.begin(), model.end(), [name](const auto& one) { return one.first == name; });
}

// Sets and removes fields that the input names, some of them known ones.
void change(std::string image, std::string_view input) {
  Model model = image.empty() ? Model() : model_of(*Hash::parse(image));
  while (!input.empty()) {
    const auto what = static_cast<unsigned char>(input.front());
    input.remove_prefix(1);
    std::vector<std::string> texts;
    for (unsigned i = 0; i < 2u * (1 + what / 2 % 3); ++i) {
      const bool known = what >= 128 && i % 2 == 0 && !model.empty();
      const std::size_t size = std::min<std::size_t>(input.size(), what / 8 % 16);
      texts.push_back(known ? model[(what + i) % model.size()].first : std::string(input.substr(0, size)));
      input.remove_prefix(size);
    }
    const Hash before = image.empty() ? Hash() : *Hash::parse(image);
    std::size_t changed = 0;
    ChangedHash after;
    if (what % 2 == 0) {
      std::vector<Field> fields;
      for (std::size_t i = 0; i < texts.size(); i += 2) fields.push_back({texts[i], texts[i + 1]});
      after = *with_fields(before, fields, 1 << 20);
      for (const Field& field : fields) {
        const auto found = find(model, field.name);
        changed += found == model.end() ? 1 : 0;
        found == model.end() ? void(model.emplace_back(field.name, field.value)) : void(found->second = field.value);
      }
    } else {
      const std::vector<std::string_view> names(texts.begin(), texts.end());
      after = without_fields(before, names);
      for (const std::string_view name : names) {
        const auto found = find(model, name);
        if (found == model.end()) continue;
        model.erase(found);
        ++changed;
      }
    }
    FARPOOL_CHECK(after.changed == changed && after.size == model.size() && after.image.empty() == model.empty());
    if (!after.image.empty()) FARPOOL_CHECK(model_of(*Hash::parse(after.image)) == model);
    image = std::move(after.image);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const std::string_view bytes = input.substr(1, data[0]), rest = input.substr(1 + bytes.size());
  const std::optional<Hash> hash = Hash::parse(bytes);
  if (!hash) {
    change({}, rest);
    return 0;
  }
  Model model = model_of(*hash);
  std::vector<std::string_view> names{"nothing of this name"};
  for (const auto& [name, value] : model) names.push_back(name);
  const auto values = hash->find_all(names);
  for (std::size_t i = 0; i < names.size(); ++i) {
    FARPOOL_CHECK(values[i] == hash->find(names[i]));
    const auto found = find(model, names[i]);
    FARPOOL_CHECK(values[i] == (found == model.end() ? std::nullopt : std::optional<std::string_view>(found->second)));
  }
  const auto same = with_fields(*hash, {}, bytes.size());
  FARPOOL_CHECK(same && same->image == bytes && same->changed == 0);
  if (!has_doubles(model)) change(std::string(bytes), rest);
  return 0;
}
