// Which SIMD instructions the kernels use: the best that were compiled in and that this processor has.
// Thread-safety: all of it from any thread, except that nothing else may run while an OnlyTarget comes or goes.
#pragma once
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

// While it lives, the kernels of the whole process use one target. For tests and benchmarks.
class OnlyTarget {
 public:
  explicit OnlyTarget(Target target);
  ~OnlyTarget();
  OnlyTarget(const OnlyTarget&) = delete;
  OnlyTarget& operator=(const OnlyTarget&) = delete;
};

}  // namespace bottomless::optim
