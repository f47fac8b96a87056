// Which SIMD instructions the kernels use: the best that were compiled in and that this processor has, or those that the
// environment names (BOTTOMLESS_SIMD=SSE4).
// Thread-safety: all of it from any thread, except that nothing else may run while an OnlyTarget comes or goes.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace bottomless::optim {

struct Target {
  int64_t id;
  std::string_view name;
};

std::vector<Target>
targets();  // all that this processor can run, the best first; the last one needs no SIMD
Target chosen_target();

// The target of that name; null: the best. Fails with all names if there is none.
Result<Target> wanted_target(const char* name);
// From now on, for the whole process. To be called before any kernel.
void use_only(Target target);

// While it lives, the kernels of the whole process use one target. For tests and benchmarks.
class OnlyTarget {
 public:
  explicit OnlyTarget(Target target);
  ~OnlyTarget();
  OnlyTarget(const OnlyTarget&) = delete;
  OnlyTarget& operator=(const OnlyTarget&) = delete;
};

}  // namespace bottomless::optim
