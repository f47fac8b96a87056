// What a user's own project looks like: ordinary libtorch code, two lines of Bottomless.
#include <bottomless/torch.h>
#include <torch/torch.h>

#include <cstdio>
#include <vector>

int main() {
  using namespace bottomless::literals;
  bottomless::Runtime runtime({.memory = 16_MiB, .disk = {"."}});
  std::vector<torch::Tensor> tensors;  // 32 MiB in all: twice the limit
  for (int i = 0; i < 32; ++i) tensors.push_back(torch::full({1 << 18}, i, torch::kFloat));
  double sum = 0;
  for (const auto& tensor : tensors) sum += tensor.sum(torch::kDouble).item<double>();
  runtime.step();
  const bottomless::Stats stats = runtime.stats();
  std::printf("%s\n", bottomless::to_json(stats).c_str());
  const bool right = sum == 31.0 * 32 / 2 * (1 << 18);
  return right && stats.evictions > 0 && stats.peak_bytes <= stats.limit_bytes ? 0 : 1;
}
