// Result<T> carries either a value or an Error; expected failures (disk, memory, bad input) are
// returned, not thrown.
// Thread-safety: a value type; use one object from one thread at a time.
#pragma once
#include <string>
#include <utility>
#include <variant>

namespace bottomless {

enum class Code {
  invalid_argument,  // the caller asked for something that cannot be
  not_found,         // a file or directory that should exist does not
  no_memory,         // the memory limit cannot hold what is needed at once
  no_space,          // the disk, or the part of it that was granted, is full
  io,                // the operating system refused or broke a transfer
  unsupported,       // this machine or kernel lacks a needed feature
  corrupt,           // a file does not hold what it should: damaged, cut short or foreign
};

// What went wrong. The message says, in order: what was attempted, on which object, what was
// wanted, what happened, which limit applies, and what to do about it.
struct Error {
  Code code;
  std::string message;
  int number = 0;  // errno, where the operating system said one
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error)
      : error_(std::move(error)), ok_(false) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return ok_; }
  explicit operator bool() const noexcept { return ok_; }
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  Error error_{};
  bool ok_ = true;
};

}  // namespace bottomless
