#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace bottomless {

void check_failed(const char* condition, const char* file, int line, const char* why) noexcept {
  std::fprintf(stderr, "bottomless: bug: %s (%s, %s:%d); please report it\n", why, condition, file,
               line);
  std::abort();
}

}  // namespace bottomless
