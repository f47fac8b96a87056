// Which token follows: from the model's numbers for each, by chance or the likeliest.
// Thread-safety: a Sampler is one thread's.
#pragma once
#include <ATen/core/Generator.h>
#include <bottomless/result.h>
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace bottomless::train {

struct SamplingOptions {
  double temperature = 1;    // 0: always the likeliest
  int64_t top_k = 0;         // only the k likeliest; 0: all
  double top_p = 1;          // only the likeliest that together have this probability
  uint64_t seed = 0;         // the same seed, the same text
  std::vector<int64_t> end;  // tokens that end a text
};

// What a model's generation_config.json says; where there is none, the likeliest token, without an end.
Result<SamplingOptions> read_generation_config(const std::filesystem::path& model_directory);

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  int64_t next(const torch::Tensor& logits);  // [vocabulary]
  bool ends(int64_t token) const;

 private:
  const SamplingOptions options_;
  at::Generator generator_;
};

}  // namespace bottomless::train
