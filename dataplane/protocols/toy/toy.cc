// SPDX-License-Identifier: Apache-2.0
#include "protocols/toy/toy.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "farpool/v1alpha1/agent.pb.h"
#include "layout/regions.h"

namespace farpool::toy {
namespace {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Op;
using index::Edit;
using task::Task;
using Value = std::optional<std::string>;

// The length and one, then the value; 0: no value.
constexpr std::size_t kMostBytes = 7;
std::uint64_t word_of(std::string_view value) {
  std::uint64_t word = 0;
  std::memcpy(&word, value.data(), value.size());
  return word << 8 | (value.size() + 1);
}
Value value_of(std::uint64_t word) {
  if (word == 0) return std::nullopt;
  const std::uint64_t bytes = word >> 8;
  return std::string(reinterpret_cast<const char*>(&bytes), (word & 0xff) - 1);
}

class Table final : public index::Table {
 public:
  Table(session::Session& session, const layout::Geometry& geometry) : session_(session), geometry_(geometry) {}

  Task<Result<Value>> lookup(std::string_view key, Nanos deadline, Cost& cost, std::string) override {
    const Result<std::uint64_t> word = co_await read(key, deadline, cost);
    if (!word.ok()) co_return word.status();
    co_return value_of(*word);
  }
  Task<Result<bool>> insert(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) override {
    Fixed editor{Edit::put(std::string(value)), Edit::keep()};
    co_return co_await modify(key, editor, deadline, cost);
  }
  Task<Result<bool>> update(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) override {
    Fixed editor{Edit::keep(), Edit::put(std::string(value))};
    co_return co_await modify(key, editor, deadline, cost);
  }
  Task<Result<bool>> remove(std::string_view key, Nanos deadline, Cost& cost) override {
    Fixed editor{Edit::keep(), Edit{Edit::Kind::erase, {}}};
    co_return co_await modify(key, editor, deadline, cost);
  }
  Task<Result<bool>> put(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) override {
    Fixed editor{Edit::put(std::string(value)), Edit::put(std::string(value))};
    co_return co_await modify(key, editor, deadline, cost);
  }
  Task<Result<bool>> modify(std::string_view key, index::Editor& editor, Nanos deadline, Cost& cost) override {
    Result<std::uint64_t> before = co_await read(key, deadline, cost);
    while (before.ok()) {
      const Value value = value_of(*before);
      const Edit edit = editor.edit(value);
      if (edit.kind == Edit::Kind::keep) co_return value.has_value();
      if (edit.value.size() > kMostBytes) co_return Status(Code::too_large, "a toy's value has at most seven bytes");
      const std::uint64_t after = edit.kind == Edit::Kind::put ? word_of(edit.value) : 0;
      std::uint64_t found = 0;
      const std::array chain{Op::cas(place_of(key), found, *before, after)};
      const fabric::Outcome outcome = co_await session_.post(chain, deadline, cost);
      if (outcome.fate != fabric::Fate::done) co_return Status(Code::unknown_outcome, session_.why().message());
      if (found == *before) co_return value.has_value();
      before = found;
    }
    co_return before.status();
  }
  Task<Result<index::Totals>> count(Nanos, Cost&) override { co_return index::Totals{}; }
  Task<Result<index::Page>> scan(std::uint64_t, std::uint64_t, Nanos, Cost&) override { co_return index::Page{}; }
  std::uint64_t positions() const override { return 1; }
  const layout::Geometry& geometry() const override { return geometry_; }
  const index::Marks& marks() const override { return marks_; }

 private:
  // One edit for a key that is absent, and one for a key that is there.
  struct Fixed final : index::Editor {
    Fixed(Edit if_absent, Edit if_present) : if_absent(std::move(if_absent)), if_present(std::move(if_present)) {}
    Edit edit(std::optional<std::string_view> value) override { return value ? if_present : if_absent; }
    const Edit if_absent, if_present;
  };

  fabric::Remote place_of(std::string_view key) const {
    const std::uint64_t hash = base::keyed_hash(session_.grant().table_seed, base::bytes_of(key));
    return {layout::kTable, hash % geometry_.entries() * 8};
  }
  Task<Result<std::uint64_t>> read(std::string_view key, Nanos deadline, Cost& cost) {
    fabric::Buffer word = session_.port().buffer(8);
    const std::array chain{Op::read(place_of(key), word.first(8))};
    const fabric::Outcome outcome = co_await session_.post(chain, deadline, cost);
    if (outcome.fate != fabric::Fate::done) co_return Status(Code::unavailable, session_.why().message());
    co_return base::load<std::uint64_t>(word.data());
  }

  session::Session& session_;
  const layout::Geometry geometry_;
  const index::Marks marks_;
};

class Toy final : public index::Protocol {
 public:
  Toy() : Protocol(kNumber) {}

  index::Needs needs() const override { return toy::needs(); }
  void format(const layout::Geometry&, base::MutableBytes, const base::HashSecret&, std::uint64_t,
              const Progress&) const override {}
  index::Mended mend(const layout::Geometry&, base::MutableBytes, const Progress&) const override { return {}; }
  index::Report verify(const layout::Geometry& geometry, base::Bytes, base::Bytes heap, const base::HashSecret&,
                       const index::Verification&) const override {
    index::Report report(heap.size());
    report.rows = geometry.rows;
    return report;
  }
  // A protocol that stays has messages of its own in api/proto.
  void describe(const layout::Geometry& geometry, v1alpha1::MemoryNodeFacts& facts) const override {
    facts.mutable_race()->set_groups(geometry.rows);
  }
  void describe(const layout::Geometry& geometry, v1alpha1::MemoryNodeEntry& entry) const override {
    entry.mutable_race()->set_groups(geometry.rows);
  }
  std::unique_ptr<index::Table> open(session::Session& session, const layout::Geometry& geometry,
                                     std::uint32_t) const override {
    return std::make_unique<Table>(session, geometry);
  }
};

}  // namespace

const index::Protocol& protocol() {
  static const Toy toy;
  return toy;
}

index::Needs& needs() {
  static index::Needs needs;
  return needs;
}

}  // namespace farpool::toy
