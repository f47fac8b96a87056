// What one operator costs more under a limit that everything fits in. Plain and limited rounds
// alternate in one process; the medians are compared.
//
//   build/torch/bench/operator_overhead [--json]
#include <bottomless/torch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

namespace {

constexpr int kRounds = 31;
constexpr int kCallsPerRound = 4000;

struct Case {
  const char* name;
  int64_t elements;
  std::function<void(torch::Tensor&, torch::Tensor&)> run;
};

double nanoseconds_per_call(const Case& test) {
  torch::Tensor a = torch::ones({test.elements}), b = torch::ones({test.elements});
  for (int i = 0; i < 200; ++i) test.run(a, b);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCallsPerRound; ++i) test.run(a, b);
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start)
             .count() /
         kCallsPerRound;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int count, char** arguments) {
  using namespace bottomless::literals;
  const bool json = count > 1 && std::strcmp(arguments[1], "--json") == 0;
  torch::NoGradGuard no_grad;
  torch::set_num_threads(1);
  const std::vector<Case> cases{
      {"add_ of 16 floats, in place", 16, [](auto& a, auto& b) { a.add_(b); }},
      {"add of 16 floats, new result", 16, [](auto& a, auto& b) { a.add(b); }},
      {"add_ of 128 KiB, in place, managed", 32768, [](auto& a, auto& b) { a.add_(b); }},
      {"add of 128 KiB, new result, managed", 32768, [](auto& a, auto& b) { a.add(b); }},
      {"view of 128 KiB, managed", 32768,
       [](auto& a, auto&) {
         a.view({2, -1});
       }},
  };
  if (!json)
    std::printf("%-40s %12s %12s %12s\n", "operator", "plain ns", "limited ns", "overhead ns");
  for (const Case& test : cases) {
    std::vector<double> plain, limited, overhead;
    for (int round = 0; round < kRounds; ++round) {
      c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake,
                                               false);  // as if it had never been there
      plain.push_back(nanoseconds_per_call(test));
      const bottomless::Runtime runtime({.memory = 1_GiB, .disk = {"/tmp"}});
      limited.push_back(nanoseconds_per_call(test));
      overhead.push_back(limited.back() - plain.back());
    }
    if (json) {
      std::printf(
          "{\"operator\": \"%s\", \"plain_ns\": %.0f, \"limited_ns\": %.0f, \"overhead_ns\": "
          "%.0f}\n",
          test.name, median(plain), median(limited), median(overhead));
    } else {
      std::printf("%-40s %12.0f %12.0f %12.0f\n", test.name, median(plain), median(limited),
                  median(overhead));
    }
  }
}
