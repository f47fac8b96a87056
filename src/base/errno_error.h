// The one place where an errno becomes an Error.
// Thread-safety: free function without state.
#pragma once
#include <bottomless/result.h>

#include <string>
#include <string_view>

namespace bottomless {

// `attempted` says what was tried on which object; `advice`, if any, what to do about it.
Error errno_error(int error_number, std::string attempted, std::string_view advice = {});

}  // namespace bottomless
