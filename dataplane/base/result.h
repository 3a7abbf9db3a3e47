// SPDX-License-Identifier: Apache-2.0
// What an operation came to. Operating errors are values and all of them are handled; broken invariants are
// FARPOOL_CHECKs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace farpool::base {

enum class Code : unsigned char {
  ok,
  invalid_argument,  // the caller's input cannot work; nothing was done
  too_large,         // a key or value beyond the limits; nothing was done
  out_of_memory,     // the table or the heap is full; nothing was done
  timed_out,         // the deadline passed before anything took effect; nothing was done
  locked,            // a lock stood past the failure timeout; nothing was done; the message names the holder
  unavailable,       // a memory node cannot be reached or does not serve; nothing was done
  stale,             // the map or session is older than the memory node's; nothing was done; refresh and retry
  moved,             // the key has gone to another memory node, or never was at this one; nothing was done
  forbidden,         // certificate, token or key refused
  fenced,            // the operator has fenced this process for good; nothing was done; only another process can go on
  unknown_outcome,   // it may or may not have taken effect
  corrupt,           // bytes that fail their checksum or cannot be what they should be
  internal,
};

std::string_view name_of(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  static Status Ok() { return {}; }

  bool ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  // For people: what happened, to what, and what to do. Never holds key or value bytes.
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

// A T, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {
    FARPOOL_CHECK(!std::get<1>(state_).ok());
  }

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() {
    FARPOOL_CHECK(ok());
    return std::get<0>(state_);
  }
  const T& value() const {
    FARPOOL_CHECK(ok());
    return std::get<0>(state_);
  }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Status status() const { return ok() ? Status{} : std::get<1>(state_); }
  Code code() const { return ok() ? Code::ok : std::get<1>(state_).code(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace farpool::base
