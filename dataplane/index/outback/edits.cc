// SPDX-License-Identifier: Apache-2.0
#include "index/outback/edits.h"

#include <algorithm>
#include <string>

#include "base/number.h"

namespace farpool::outback {
namespace {

using Kind = Decision::Kind;

Decision keep(Status status) { return {.status = status}; }
Decision put(base::Bytes value) { return {.kind = Kind::put, .value = value}; }

base::Bytes text_in(const std::string& text, std::vector<std::byte>& scratch) {
  const base::Bytes bytes = base::bytes_of(std::string_view(text));
  scratch.assign(bytes.begin(), bytes.end());
  return scratch;
}

Decision add(const Request& request, const std::optional<BlockView>& entry, std::vector<std::byte>& scratch) {
  const auto number = entry ? base::parse_integer(base::text_of(entry->value)) : 0;
  if (!number) return keep(Status::not_integer);
  std::int64_t sum = 0;
  if (__builtin_add_overflow(*number, static_cast<std::int64_t>(request.argument), &sum)) {
    return keep(Status::beyond_integer);
  }
  Decision decision = put(text_in(std::to_string(sum), scratch));
  decision.number = static_cast<std::uint64_t>(sum);
  return decision;
}

Decision append(const Request& request, const std::optional<BlockView>& entry, std::vector<std::byte>& scratch) {
  const base::Bytes before = entry ? entry->value : base::Bytes{};
  if (before.size() + request.value.size() > layout::kMaxValueBytes) return keep(Status::beyond_value);
  scratch.assign(before.begin(), before.end());
  scratch.insert(scratch.end(), request.value.begin(), request.value.end());
  Decision decision = put(scratch);
  decision.number = scratch.size();
  return decision;
}

Decision overlay(const Request& request, const std::optional<BlockView>& entry, std::vector<std::byte>& scratch) {
  const base::Bytes before = entry ? entry->value : base::Bytes{};
  if (request.value.empty()) return {.number = before.size()};
  if (request.argument > layout::kMaxValueBytes || request.argument + request.value.size() > layout::kMaxValueBytes) {
    return keep(Status::beyond_value);
  }
  scratch.assign(before.begin(), before.end());
  scratch.resize(std::max<std::size_t>(scratch.size(), request.argument + request.value.size()));
  std::copy(request.value.begin(), request.value.end(),
            scratch.begin() + static_cast<std::ptrdiff_t>(request.argument));
  Decision decision = put(scratch);
  decision.number = scratch.size();
  return decision;
}

Decision add_float(const Request& request, const std::optional<BlockView>& entry, std::vector<std::byte>& scratch) {
  const auto number = entry ? base::parse_float(base::text_of(entry->value)) : 0.0L;
  const auto addend = base::parse_float(base::text_of(request.value));
  if (!number || !addend) return keep(Status::not_float);
  const long double sum = *number + *addend;
  if (!(sum - sum == 0)) return keep(Status::not_finite);
  Decision decision = put(text_in(base::format_float(sum), scratch));
  decision.text = Decision::Text::after;
  return decision;
}

}  // namespace

Decision decide(const Request& request, const std::optional<BlockView>& entry, std::vector<std::byte>& scratch) {
  if ((request.flags & Request::kIfVersion) != 0 && (!entry || entry->head.version != request.version)) {
    return keep(entry ? Status::version : Status::absent);
  }
  switch (request.op) {
    case Op::insert:
      return entry ? keep(Status::present) : put(request.value);
    case Op::update:
      return entry ? put(request.value) : keep(Status::absent);
    case Op::put:
      return put(request.value);
    case Op::remove:
      return entry ? Decision{.kind = Kind::erase} : keep(Status::absent);
    case Op::add:
      return add(request, entry, scratch);
    case Op::append:
      return append(request, entry, scratch);
    case Op::overlay:
      return overlay(request, entry, scratch);
    case Op::swap: {
      Decision decision = put(request.value);
      decision.text = entry ? Decision::Text::before : Decision::Text::none;
      return decision;
    }
    case Op::take:
      return entry ? Decision{.kind = Kind::erase, .text = Decision::Text::before} : keep(Status::absent);
    case Op::add_float:
      return add_float(request, entry, scratch);
    default:
      return keep(Status::bad_op);
  }
}

}  // namespace farpool::outback
