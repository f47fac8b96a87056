#include "train/commands/sampling.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/files.h"
#include "train/files/tensor_directory.h"

namespace bottomless::train {
namespace {

constexpr auto kNever = -std::numeric_limits<float>::infinity();

torch::Tensor keep_top_k(const torch::Tensor& logits, int64_t k) {
  const torch::Tensor least = std::get<0>(logits.topk(std::min(k, logits.size(0)))).min();
  return logits.masked_fill(logits < least, kNever);
}

// The likeliest tokens until their probabilities reach p; the one that reaches it is kept, too.
torch::Tensor keep_top_p(const torch::Tensor& logits, double p) {
  const auto [sorted, order] = logits.sort(/*dim=*/0, /*descending=*/true);
  const torch::Tensor probabilities = sorted.softmax(0);
  const torch::Tensor before = probabilities.cumsum(0) - probabilities;
  return torch::full_like(logits, kNever)
      .scatter(0, order, sorted.masked_fill(before >= p, kNever));
}

}  // namespace

Result<SamplingOptions> read_generation_config(const std::filesystem::path& model_directory) try {
  SamplingOptions options;
  options.temperature = 0;
  const std::filesystem::path file = model_directory / "generation_config.json";
  if (!std::filesystem::exists(file)) return options;
  const Result<std::string> text = read_text(*make_files(), file);
  if (!text.ok()) return text.error();
  const auto config = nlohmann::json::parse(text.value());
  if (config.value("do_sample", false)) {
    options.temperature = config.value("temperature", 1.0);
    options.top_k = config.value("top_k", int64_t{0});
    options.top_p = config.value("top_p", 1.0);
  }
  if (const auto end = config.find("eos_token_id"); end != config.end() && !end->is_null()) {
    if (end->is_array())
      options.end = end->get<std::vector<int64_t>>();
    else
      options.end = {end->get<int64_t>()};
  }
  return options;
} catch (const nlohmann::json::exception& error) {
  return Error{Code::corrupt, "read " + (model_directory / "generation_config.json").string() +
                                  ": " + error.what() + "; mend the file or remove it"};
}

Sampler::Sampler(const SamplingOptions& options)
    : options_(options), generator_(at::detail::createCPUGenerator(options.seed)) {}

int64_t Sampler::next(const torch::Tensor& logits) {
  torch::Tensor chances = logits.to(torch::kFloat32);
  if (options_.temperature == 0) return chances.argmax().item<int64_t>();
  chances = chances / options_.temperature;
  if (options_.top_k > 0) chances = keep_top_k(chances, options_.top_k);
  if (options_.top_p < 1) chances = keep_top_p(chances, options_.top_p);
  return torch::multinomial(chances.softmax(0), 1, /*replacement=*/false, generator_)
      .item<int64_t>();
}

bool Sampler::ends(int64_t token) const {
  return std::find(options_.end.begin(), options_.end.end(), token) != options_.end.end();
}

}  // namespace bottomless::train
