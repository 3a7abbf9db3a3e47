// SPDX-License-Identifier: Apache-2.0
// Commands on the bits of a string. The first bit is the highest one of the first byte.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/number.h"
#include "front/resp/access.h"
#include "front/resp/operations.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

using base::Result;
using client::Edit;
using client::Type;
using client::Value;
using task::Task;

constexpr std::uint64_t kBitsOfByte = 8;
constexpr std::string_view kTooLong = "ERR string exceeds maximum allowed size (of a value: 1 MiB)";

bool bit_at(std::string_view bytes, std::uint64_t bit) {
  const std::uint64_t byte = bit / kBitsOfByte;
  if (byte >= bytes.size()) return false;  // there are zeros behind a string
  return (static_cast<unsigned char>(bytes[byte]) >> (7 - bit % kBitsOfByte) & 1) != 0;
}

void set_bit(std::string& bytes, std::uint64_t bit, bool on) {
  const auto mask = static_cast<char>(0x80 >> bit % kBitsOfByte);
  char& byte = bytes[bit / kBitsOfByte];
  byte = static_cast<char>(on ? byte | mask : byte & ~mask);
}

std::uint64_t bits_at(std::string_view bytes, std::uint64_t first, unsigned width) {
  std::uint64_t value = 0;
  for (unsigned i = 0; i < width; ++i) value = value << 1 | (bit_at(bytes, first + i) ? 1 : 0);
  return value;
}

void set_bits(std::string& bytes, std::uint64_t first, unsigned width, std::uint64_t value) {
  for (unsigned i = 0; i < width; ++i) set_bit(bytes, first + i, (value >> (width - 1 - i) & 1) != 0);
}

// Reads the number of a bit. `width`: a number behind '#' counts fields of so many bits. Nothing: the request has been
// answered with an error.
std::optional<std::uint64_t> parse_offset(Conversation& conversation, Request& request, std::string_view text,
                                          unsigned width = 0) {
  const bool counts_fields = width != 0 && text.starts_with('#');
  const std::optional<std::int64_t> number = base::parse_integer(text.substr(counts_fields ? 1 : 0));
  std::int64_t offset = number.value_or(-1);
  if (counts_fields && __builtin_mul_overflow(offset, static_cast<std::int64_t>(width), &offset)) offset = -1;
  const auto most = static_cast<std::int64_t>(conversation.settings().max_value_bytes);
  if (offset >= 0 && offset / static_cast<std::int64_t>(kBitsOfByte) < most) return static_cast<std::uint64_t>(offset);
  request.error("ERR bit offset is not an integer or out of range");
  return std::nullopt;
}

// Edits a string, which the editor may make longer.
class BytesEditor : public client::Editor {
 public:
  explicit BytesEditor(const Conversation& conversation) : most_(conversation.settings().max_value_bytes) {}

  Edit edit(std::optional<std::string_view> value) final {
    too_long_ = bytes_ > most_;
    if (too_long_) return Edit::keep();
    std::string text;
    text.reserve(std::max(value.value_or("").size(), bytes_) + client::Stored::kMostTailBytes);
    text += value.value_or("");
    text.resize(std::max(text.size(), bytes_), '\0');
    change(text);
    return Edit::put(std::move(text));
  }
  bool too_long() const { return too_long_; }

 protected:
  virtual void change(std::string& bytes) = 0;
  // Lets the string be long enough for a bit.
  void reach(std::uint64_t last_bit) {
    bytes_ = std::max<std::size_t>(bytes_, static_cast<std::size_t>(last_bit / kBitsOfByte + 1));
  }

 private:
  const std::size_t most_;
  std::size_t bytes_ = 0;
  bool too_long_ = false;
};

Task<bool> modify_bytes(Conversation& conversation, Request& request, BytesEditor& editor) {
  const bool done = co_await modify(conversation, request, editor);
  if (!done || !editor.too_long()) co_return done;
  request.error(kTooLong);
  co_return false;
}

class SetBit final : public BytesEditor {
 public:
  SetBit(const Conversation& conversation, std::uint64_t bit, bool on) : BytesEditor(conversation), bit_(bit), on_(on) {
    reach(bit);
  }
  bool before() const { return before_; }

 private:
  void change(std::string& bytes) override {
    before_ = bit_at(bytes, bit_);
    set_bit(bytes, bit_, on_);
  }
  const std::uint64_t bit_;
  const bool on_;
  bool before_ = false;
};

// A string as it was read; false: the request has been answered with an error.
Task<bool> read_string(Conversation& conversation, Request& request, std::optional<std::string>& into) {
  Result<std::optional<Value>> value = co_await read(conversation, request);
  if (!value.ok()) co_return false;
  if (!*value) co_return true;
  if ((*value)->type != Type::string) {
    request.error(kWrongType);
    co_return false;
  }
  into = std::move((*value)->text);
  co_return true;
}

// --- BITCOUNT, BITPOS

// Bits from `first` to `end`, without that one.
struct Range {
  std::uint64_t first = 0, end = 0;
};

// The range as a command names it, by numbers of bytes or bits, negative ones from the end.
struct NamedRange {
  std::int64_t first = 0, last = -1;
  bool in_bits = false;

  Range in(std::string_view text) const {
    const auto unit = static_cast<std::int64_t>(in_bits ? 1 : kBitsOfByte);
    const auto length = static_cast<std::int64_t>(text.size() * kBitsOfByte) / unit;
    const std::int64_t from = std::max<std::int64_t>(0, first < 0 ? length + first : first);
    const std::int64_t to = std::min(length - 1, std::max<std::int64_t>(0, last < 0 ? length + last : last));
    if (from > to) return {};
    return {static_cast<std::uint64_t>(from * unit), static_cast<std::uint64_t>((to + 1) * unit)};
  }
};

// Reads the words from `word` on: first, last and unit. BITPOS needs no last one, and looks at the unit before that.
// Nothing: the request has been answered with an error.
enum class RangeOf : std::uint8_t { count, position };
std::optional<NamedRange> parse_range(Request& request, std::size_t word, RangeOf of) {
  const Command& command = request.command;
  NamedRange range;
  if (command.size() == word) return range;
  const bool first_alone = command.size() == word + 1;
  if (command.size() > word + 3 || (first_alone && of == RangeOf::count)) {
    request.error(kSyntaxError);
    return std::nullopt;
  }
  const std::optional<std::int64_t> first = base::parse_integer(command[word]);
  const std::optional<std::int64_t> last = first_alone ? std::int64_t{-1} : base::parse_integer(command[word + 1]);
  const bool has_unit = command.size() == word + 3;
  range.in_bits = has_unit && same_word(command[word + 2], "BIT");
  const bool unit_fits = !has_unit || range.in_bits || same_word(command[word + 2], "BYTE");
  if (first && last && unit_fits) {
    range.first = *first;
    range.last = *last;
    return range;
  }
  const bool unit_first = !unit_fits && (last || of == RangeOf::position);
  request.error(first && unit_first ? kSyntaxError : kNotAnInteger);
  return std::nullopt;
}

std::int64_t count_bits(std::string_view text, Range range) {
  std::int64_t count = 0;
  std::uint64_t bit = range.first;
  for (; bit < range.end && bit % kBitsOfByte != 0; ++bit) count += bit_at(text, bit) ? 1 : 0;
  for (; bit + kBitsOfByte <= range.end; bit += kBitsOfByte) {
    count += std::popcount(static_cast<unsigned char>(text[bit / kBitsOfByte]));
  }
  for (; bit < range.end; ++bit) count += bit_at(text, bit) ? 1 : 0;
  return count;
}

// The first bit of that kind; the end of the range if there is none.
std::uint64_t find_bit(std::string_view text, Range range, bool on) {
  const auto nothing = static_cast<char>(on ? 0x00 : 0xff);  // a byte without such bits
  std::uint64_t bit = range.first;
  while (bit < range.end) {
    if (bit % kBitsOfByte == 0 && bit + kBitsOfByte <= range.end && text[bit / kBitsOfByte] == nothing) {
      bit += kBitsOfByte;
    } else if (bit_at(text, bit) == on) {
      return bit;
    } else {
      ++bit;
    }
  }
  return range.end;
}

// --- BITFIELD

enum class Overflow : std::uint8_t { wrap, saturate, fail };

// One operation on a field of bits.
struct BitStep {
  enum class Kind : std::uint8_t { get, set, add } kind = Kind::get;
  bool is_signed = false;
  unsigned width = 0;
  std::uint64_t first = 0;  // bit
  std::int64_t operand = 0;
  Overflow overflow = Overflow::wrap;
  std::uint64_t last() const { return first + width - 1; }
};

std::int64_t read_field(std::string_view bytes, const BitStep& step) {
  std::uint64_t value = bits_at(bytes, step.first, step.width);
  const bool negative = step.is_signed && step.width < 64 && (value >> (step.width - 1) & 1) != 0;
  if (negative) value |= ~std::uint64_t{0} << step.width;
  return static_cast<std::int64_t>(value);
}

// What a field gets that should have the value `before` + `addend`. Nothing: it overflows, and is to stay as it is.
std::optional<std::int64_t> fit(const BitStep& step, std::int64_t before, std::int64_t addend) {
  const unsigned width = step.width;
  __extension__ using Wide = __int128;
  // An unsigned field takes what it is set to as unsigned, too.
  const bool as_unsigned = !step.is_signed && step.kind == BitStep::Kind::set;
  const Wide sum = as_unsigned ? Wide{static_cast<std::uint64_t>(before)} : Wide{before} + addend;
  const Wide most = (Wide{1} << (step.is_signed ? width - 1 : width)) - 1;
  const Wide least = step.is_signed ? -most - 1 : Wide{0};
  if (sum >= least && sum <= most) return static_cast<std::int64_t>(sum);
  if (step.overflow == Overflow::fail) return std::nullopt;
  if (step.overflow == Overflow::saturate) return static_cast<std::int64_t>(sum > most ? most : least);
  const std::uint64_t mask = width == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
  std::uint64_t value = static_cast<std::uint64_t>(sum) & mask;
  if (step.is_signed && (value >> (width - 1) & 1) != 0) value |= ~mask;
  return static_cast<std::int64_t>(value);
}

// Carries out one step. Returns what it answers with; nothing: null.
std::optional<std::int64_t> carry_out(const BitStep& step, std::string& bytes) {
  const std::int64_t before = read_field(bytes, step);
  if (step.kind == BitStep::Kind::get) return before;
  const bool sets = step.kind == BitStep::Kind::set;
  const std::optional<std::int64_t> after = fit(step, sets ? step.operand : before, sets ? 0 : step.operand);
  if (!after) return std::nullopt;
  set_bits(bytes, step.first, step.width, static_cast<std::uint64_t>(*after));
  return sets ? before : *after;
}

class EditFields final : public BytesEditor {
 public:
  EditFields(const Conversation& conversation, const std::vector<BitStep>& steps)
      : BytesEditor(conversation), steps_(steps) {
    for (const BitStep& step : steps) {
      if (step.kind != BitStep::Kind::get) reach(step.last());
    }
  }
  const std::vector<std::optional<std::int64_t>>& answers() const { return answers_; }

 private:
  void change(std::string& bytes) override {
    answers_.clear();
    for (const BitStep& step : steps_) answers_.push_back(carry_out(step, bytes));
  }
  const std::vector<BitStep>& steps_;
  std::vector<std::optional<std::int64_t>> answers_;
};

// Reads the steps of BITFIELD.
class BitfieldParser {
 public:
  BitfieldParser(Conversation& conversation, Request& request)
      : conversation_(conversation), request_(request), command_(request.command) {}

  // Nothing: the request has been answered with an error.
  std::optional<std::vector<BitStep>> parse() {
    while (at_ < command_.size()) {
      if (has("OVERFLOW", 1) ? !parse_overflow() : !parse_step()) return std::nullopt;
    }
    return std::move(steps_);
  }

 private:
  // Says whether that word comes, and so many behind it.
  bool has(std::string_view word, std::size_t more) const {
    return same_word(command_[at_], word) && at_ + more < command_.size();
  }
  bool refuse(std::string_view error) {
    request_.error(error);
    return false;
  }
  bool parse_overflow() {
    const std::string_view name = command_[at_ + 1];
    if (same_word(name, "WRAP")) {
      overflow_ = Overflow::wrap;
    } else if (same_word(name, "SAT")) {
      overflow_ = Overflow::saturate;
    } else if (same_word(name, "FAIL")) {
      overflow_ = Overflow::fail;
    } else {
      return refuse("ERR Invalid OVERFLOW type specified");
    }
    at_ += 2;
    return true;
  }
  bool parse_type(std::string_view text, BitStep& step) {
    step.is_signed = text.starts_with('i');
    const std::optional<std::int64_t> width =
        step.is_signed || text.starts_with('u') ? base::parse_integer(text.substr(1)) : std::nullopt;
    if (!width || *width < 1 || *width > (step.is_signed ? 64 : 63)) {
      return refuse("ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.");
    }
    step.width = static_cast<unsigned>(*width);
    return true;
  }
  bool parse_step() {
    BitStep step{.overflow = overflow_};
    if (has("SET", 3)) {
      step.kind = BitStep::Kind::set;
    } else if (has("INCRBY", 3)) {
      step.kind = BitStep::Kind::add;
    } else if (!has("GET", 2)) {
      return refuse(kSyntaxError);
    }
    if (!parse_type(command_[at_ + 1], step)) return false;
    const auto first = parse_offset(conversation_, request_, command_[at_ + 2], step.width);
    if (!first) return false;
    step.first = *first;
    if (step.kind != BitStep::Kind::get) {
      const std::optional<std::int64_t> operand = base::parse_integer(command_[at_ + 3]);
      if (!operand) return refuse(kNotAnInteger);
      step.operand = *operand;
    }
    at_ += step.kind == BitStep::Kind::get ? 3 : 4;
    steps_.push_back(step);
    return true;
  }

  Conversation& conversation_;
  Request& request_;
  const Command& command_;
  std::size_t at_ = 2;
  Overflow overflow_ = Overflow::wrap;
  std::vector<BitStep> steps_;
};

bool only_reads(const std::vector<BitStep>& steps) {
  return std::all_of(steps.begin(), steps.end(), [](const BitStep& step) { return step.kind == BitStep::Kind::get; });
}

Task<void> read_fields(Conversation& conversation, Request& request, const std::vector<BitStep>& steps) {
  std::optional<std::string> text;
  const bool done = co_await read_string(conversation, request, text);
  if (!done) co_return;
  Reply reply = request.answer();
  reply.array(steps.size());
  for (const BitStep& step : steps) reply.integer(read_field(text ? *text : std::string_view(), step));
}

}  // namespace

Task<void> op_getbit(Conversation& conversation, Request& request) {
  const auto bit = parse_offset(conversation, request, request.command[2]);
  if (!bit) co_return;
  std::optional<std::string> text;
  const bool done = co_await read_string(conversation, request, text);
  if (done) request.answer().integer(text && bit_at(*text, *bit) ? 1 : 0);
}

Task<void> op_setbit(Conversation& conversation, Request& request) {
  const auto bit = parse_offset(conversation, request, request.command[2]);
  if (!bit) co_return;
  const std::optional<std::int64_t> on = base::parse_integer(request.command[3]);
  if (!on || (*on != 0 && *on != 1)) co_return request.error("ERR bit is not an integer or out of range");
  SetBit editor(conversation, *bit, *on == 1);
  const bool done = co_await modify_bytes(conversation, request, editor);
  if (done) request.answer().integer(editor.before() ? 1 : 0);
}

// As Redis does, it looks at the words behind the key only if the key exists.
Task<void> op_bitcount(Conversation& conversation, Request& request) {
  std::optional<std::string> text;
  const bool done = co_await read_string(conversation, request, text);
  if (!done) co_return;
  if (!text) co_return request.answer().integer(0);
  const std::optional<NamedRange> range = parse_range(request, 2, RangeOf::count);
  if (!range) co_return;
  const bool backwards = range->first < 0 && range->last < 0 && range->first > range->last;
  request.answer().integer(backwards ? 0 : count_bits(*text, range->in(*text)));
}

Task<void> op_bitpos(Conversation& conversation, Request& request) {
  const Command& command = request.command;
  const std::optional<std::int64_t> bit = base::parse_integer(command[2]);
  if (!bit) co_return request.error(kNotAnInteger);
  if (*bit != 0 && *bit != 1) co_return request.error("ERR The bit argument must be 1 or 0.");
  const bool on = *bit == 1;
  std::optional<std::string> text;
  const bool done = co_await read_string(conversation, request, text);
  if (!done) co_return;
  if (!text) co_return request.answer().integer(on ? -1 : 0);
  const std::optional<NamedRange> named = parse_range(request, 3, RangeOf::position);
  if (!named) co_return;
  const Range range = named->in(*text);
  const std::uint64_t found = find_bit(*text, range, on);
  // Without an end of the range, zeros come behind the string.
  const bool endless = !on && command.size() < 5 && range.first < range.end;
  const bool any = found < range.end || endless;
  request.answer().integer(any ? static_cast<std::int64_t>(found) : -1);
}

Task<void> op_bitfield(Conversation& conversation, Request& request) {
  const auto steps = BitfieldParser(conversation, request).parse();
  if (!steps) co_return;
  if (only_reads(*steps)) co_return co_await read_fields(conversation, request, *steps);
  EditFields editor(conversation, *steps);
  const bool done = co_await modify_bytes(conversation, request, editor);
  if (!done) co_return;
  Reply reply = request.answer();
  reply.array(steps->size());
  for (const auto& answer : editor.answers()) answer ? reply.integer(*answer) : reply.null();
}

Task<void> op_bitfield_ro(Conversation& conversation, Request& request) {
  const auto steps = BitfieldParser(conversation, request).parse();
  if (!steps) co_return;
  if (!only_reads(*steps)) co_return request.error("ERR BITFIELD_RO only supports the GET subcommand");
  co_await read_fields(conversation, request, *steps);
}

}  // namespace farpool::front::resp
