// Where the core's errors become the exceptions that torch programs know.
#pragma once
#include <bottomless/result.h>
#include <c10/util/Exception.h>

namespace bottomless {

// Throws c10::OutOfMemoryError for Code::no_memory (torch.OutOfMemoryError in Python),
// c10::ValueError for Code::invalid_argument and c10::Error otherwise (RuntimeError).
[[noreturn]] void throw_error(const Error& error);
// The way back.
Error caught(const c10::Error& thrown);

}  // namespace bottomless
