// Thread-safety: a free function without state.
#pragma once
#include <string>

namespace bottomless {

// As printf would print it, however long.
std::string print(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace bottomless
