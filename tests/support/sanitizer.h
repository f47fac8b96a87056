// Which sanitizer a test is built with. Their shadow memory and their own allocations make some questions to the kernel
// meaningless (how much data has this process?); such a test skips and says so.
#pragma once

namespace bottomless {

#if defined(__has_feature)  // clang says it so
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

inline constexpr bool kSanitizer = kAddressSanitizer || kThreadSanitizer;

}  // namespace bottomless

#define BOTTOMLESS_SKIP_UNDER_SANITIZERS()                                                        \
  if constexpr (::bottomless::kSanitizer)                                                         \
  GTEST_SKIP() << "the sanitizer's own memory counts against the limits that this test asks the " \
                  "kernel to judge"
