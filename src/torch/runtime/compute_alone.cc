#include "torch/runtime/compute_alone.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace bottomless {

void compute_alone() {
  at::get_num_threads();  // sets it for this thread when it is asked for the first time
  using SetThreads = void (*)(int);
  const auto set_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_threads != nullptr) set_threads(1);
}

}  // namespace bottomless
