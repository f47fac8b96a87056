// BOTTOMLESS_CHECK stops the process on a broken invariant, in every build: to go on would risk
// the user's data.
#pragma once

namespace bottomless {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const char* why) noexcept;
}  // namespace bottomless

#define BOTTOMLESS_CHECK(condition, why) \
  ((condition) ? (void)0 : ::bottomless::check_failed(#condition, __FILE__, __LINE__, (why)))
