// SPDX-License-Identifier: Apache-2.0
#include "index/outback/edits.h"

#include <algorithm>
#include <string>

#include "base/number.h"
#include "index/stored.h"

namespace farpool::outback {
namespace {

using Kind = Decision::Kind;

Decision keep(Status status) { return {.status = status}; }
Decision put(base::Bytes value) { return {.kind = Kind::put, .value = value}; }

// What the key has, without what is kept behind it.
struct Before {
  std::optional<base::Bytes> text;  // nothing: no key, or one that has expired
  index::Millis expires = index::kNoExpiry;
};

// Puts what is in `scratch`, to expire when the value before would have.
Decision put_edited(const Before& before, std::vector<std::byte>& scratch) {
  const index::Stored::Tail tail(base::text_of(scratch), before.expires);
  const base::Bytes bytes = base::bytes_of(tail.bytes());
  scratch.insert(scratch.end(), bytes.begin(), bytes.end());
  if (scratch.size() > layout::kMaxValueBytes) return keep(Status::beyond_value);
  return put(scratch);
}

Decision put_edited(const Before& before, const std::string& text, std::vector<std::byte>& scratch) {
  const base::Bytes bytes = base::bytes_of(std::string_view(text));
  scratch.assign(bytes.begin(), bytes.end());
  return put_edited(before, scratch);
}

Decision add(const Request& request, const Before& before, std::vector<std::byte>& scratch) {
  const auto number = before.text ? base::parse_integer(base::text_of(*before.text)) : 0;
  if (!number) return keep(Status::not_integer);
  std::int64_t sum = 0;
  if (__builtin_add_overflow(*number, static_cast<std::int64_t>(request.argument), &sum)) {
    return keep(Status::beyond_integer);
  }
  Decision decision = put_edited(before, std::to_string(sum), scratch);
  decision.number = static_cast<std::uint64_t>(sum);
  return decision;
}

Decision append(const Request& request, const Before& before, std::vector<std::byte>& scratch) {
  const base::Bytes text = before.text.value_or(base::Bytes{});
  const std::size_t length = text.size() + request.value.size();
  if (length > layout::kMaxValueBytes) return keep(Status::beyond_value);
  scratch.assign(text.begin(), text.end());
  scratch.insert(scratch.end(), request.value.begin(), request.value.end());
  Decision decision = put_edited(before, scratch);
  if (decision.kind == Kind::put) decision.number = length;
  return decision;
}

Decision overlay(const Request& request, const Before& before, std::vector<std::byte>& scratch) {
  const base::Bytes text = before.text.value_or(base::Bytes{});
  if (request.value.empty()) return {.number = text.size()};
  if (request.argument > layout::kMaxValueBytes || request.argument + request.value.size() > layout::kMaxValueBytes) {
    return keep(Status::beyond_value);
  }
  scratch.assign(text.begin(), text.end());
  scratch.resize(std::max<std::size_t>(scratch.size(), request.argument + request.value.size()));
  std::copy(request.value.begin(), request.value.end(),
            scratch.begin() + static_cast<std::ptrdiff_t>(request.argument));
  const std::size_t length = scratch.size();
  Decision decision = put_edited(before, scratch);
  if (decision.kind == Kind::put) decision.number = length;
  return decision;
}

Decision add_float(const Request& request, const Before& before, std::vector<std::byte>& scratch) {
  const auto number = before.text ? base::parse_float(base::text_of(*before.text)) : 0.0L;
  const auto addend = base::parse_float(base::text_of(request.value));
  if (!number || !addend) return keep(Status::not_float);
  const long double sum = *number + *addend;
  if (!(sum - sum == 0)) return keep(Status::not_finite);
  Decision decision = put_edited(before, base::format_float(sum), scratch);
  decision.text = Decision::Text::after;
  return decision;
}

Decision swap(const Request& request, bool there) {
  Decision decision = put(request.value);
  decision.text = there ? Decision::Text::before : Decision::Text::none;
  return decision;
}

Decision decide(const Request& request, const Before& before, bool there, std::vector<std::byte>& scratch) {
  switch (request.op) {
    case Op::insert:
      return before.text ? keep(Status::present) : put(request.value);
    case Op::update:
      return before.text ? put(request.value) : keep(Status::absent);
    case Op::put:
      return put(request.value);
    case Op::remove:
      return there ? Decision{.kind = Kind::erase} : keep(Status::absent);
    case Op::add:
      return add(request, before, scratch);
    case Op::append:
      return append(request, before, scratch);
    case Op::overlay:
      return overlay(request, before, scratch);
    case Op::swap:
      return swap(request, there);
    case Op::take:
      return there ? Decision{.kind = Kind::erase, .text = Decision::Text::before} : keep(Status::absent);
    case Op::add_float:
      return add_float(request, before, scratch);
    default:
      return keep(Status::bad_op);
  }
}

bool reads_the_value(Op op) { return op >= Op::add && op <= Op::add_float; }

}  // namespace

Decision decide(const Request& request, const std::optional<BlockView>& entry, std::vector<std::byte>& scratch) {
  if ((request.flags & Request::kIfVersion) != 0 && (!entry || entry->head.version != request.version)) {
    return keep(entry ? Status::version : Status::absent);
  }
  Before before;
  if (entry) {
    const auto stored = index::Stored::parse(base::text_of(entry->value));
    if (!stored && reads_the_value(request.op)) return keep(Status::other_kind);
    const index::Millis now = (request.flags & Request::kNow) != 0 ? request.version : 0;
    if (!stored) {
      before.text = base::Bytes{};  // it exists, whatever it is
    } else if (!stored->expired(now)) {
      if (stored->type != index::Type::string && reads_the_value(request.op)) return keep(Status::other_kind);
      before = {.text = base::bytes_of(stored->text), .expires = stored->expires};
    }
  }
  Decision decision = decide(request, before, entry.has_value(), scratch);
  decision.existed = before.text.has_value();
  return decision;
}

}  // namespace farpool::outback
