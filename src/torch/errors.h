// Where the core's errors become the exceptions that torch programs know.
#pragma once
#include <bottomless/result.h>
#include <c10/util/Exception.h>

#include <string>
#include <utility>

namespace bottomless {

// Throws c10::OutOfMemoryError for Code::no_memory (torch.OutOfMemoryError in Python),
// c10::ValueError for Code::invalid_argument and c10::Error otherwise (RuntimeError).
[[noreturn]] void throw_error(const Error& error);
// What fails an operator of the program: the same, but for a disk's errors, which go to whoever was set (disk_error.h).
[[noreturn]] void throw_operator_error(const Error& error);
// Throws what has failed, if anything has.
inline void check(const Result<void>& outcome) {
  if (!outcome.ok()) throw_error(outcome.error());
}
template <class T>
T checked(Result<T> result) {
  if (!result.ok()) throw_error(result.error());
  return std::move(result).value();
}
[[noreturn]] inline void refuse(const std::string& what) {
  throw_error({Code::invalid_argument, what});
}
// The way back.
Error caught(const c10::Error& thrown);

}  // namespace bottomless
