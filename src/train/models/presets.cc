#include "train/models/presets.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <cmath>

#include "checkpoint/checksum.h"
#include "torch/errors.h"
#include "train/files/tensor_pieces.h"

namespace bottomless::train {
namespace {

struct Shape {
  const char* name;
  Architecture architecture;
  int64_t layers, width, heads, key_value_heads, inner_width, vocabulary, positions;
  bool tied = true;
  int64_t experts = 0;
};

constexpr Architecture kGpt = Architecture::gpt2, kLlama = Architecture::llama,
                       kQwen = Architecture::qwen2, kMistral = Architecture::mistral,
                       kMixtral = Architecture::mixtral;

// Shapes as published, where a model of that name was; in the order of their sizes.
constexpr std::array<Shape, 19> kShapes{{
    {"gpt-10m", kGpt, 8, 160, 5, 5, 640, 50257, 1024},
    {"gpt-30m", kGpt, 6, 384, 6, 6, 1536, 50257, 1024},
    {"gpt-124m", kGpt, 12, 768, 12, 12, 3072, 50257, 1024},
    {"mixtral-140m", kMixtral, 8, 512, 8, 4, 1024, 32000, 4096, false, 8},
    {"gpt-350m", kGpt, 24, 1024, 16, 16, 4096, 50257, 1024},
    {"qwen2-0.5b", kQwen, 24, 896, 14, 2, 4864, 151936, 32768},
    {"gpt-774m", kGpt, 36, 1280, 20, 20, 5120, 50257, 1024},
    {"llama-1b", kLlama, 16, 2048, 32, 8, 8192, 128256, 131072},
    {"gpt-1.5b", kGpt, 48, 1600, 25, 25, 6400, 50257, 1024},
    {"qwen2-1.5b", kQwen, 28, 1536, 12, 2, 8960, 151936, 32768},
    {"gpt-2.7b", kGpt, 32, 2560, 32, 32, 10240, 50257, 2048},
    {"llama-3b", kLlama, 28, 3072, 24, 8, 8192, 128256, 131072},
    {"gpt-6.7b", kGpt, 32, 4096, 32, 32, 16384, 50257, 2048},
    {"mistral-7b", kMistral, 32, 4096, 32, 8, 14336, 32000, 32768, false},
    {"llama-8b", kLlama, 32, 4096, 32, 8, 14336, 128256, 131072, false},
    {"gpt-13b", kGpt, 40, 5120, 40, 40, 20480, 50257, 2048},
    {"llama-30b", kLlama, 60, 6656, 52, 52, 17920, 32000, 2048, false},
    {"mixtral-8x7b", kMixtral, 32, 4096, 32, 8, 14336, 32000, 32768, false, 8},
    {"llama-70b", kLlama, 80, 8192, 64, 8, 28672, 128256, 131072, false},
}};

ModelConfig config_of(const Shape& shape) {
  ModelConfig config;
  config.architecture = shape.architecture;
  config.layers = shape.layers;
  config.width = shape.width;
  config.heads = shape.heads;
  config.key_value_heads = shape.key_value_heads;
  config.head_width = shape.width / shape.heads;
  config.inner_width = shape.inner_width;
  config.vocabulary = shape.vocabulary;
  config.positions = shape.positions;
  config.tied = shape.tied;
  const bool is_gpt = shape.architecture == kGpt;
  config.activation = is_gpt ? Activation::gelu_tanh : Activation::silu;
  config.query_key_value_bias = is_gpt || shape.architecture == kQwen;
  config.attention_output_bias = config.mlp_bias = is_gpt;
  if (shape.architecture == kQwen || shape.architecture == kMixtral) config.rope_base = 1e6;
  if (shape.architecture == kLlama && shape.positions > 8192) {
    config.rope_base = 5e5;
    // Those whose head is their embedding are of Llama 3.2, the others of 3.1.
    config.rope = {RopeScaling::Kind::llama3, /*factor=*/shape.tied ? 32.0 : 8.0, 1, 4, 8192};
  }
  if (shape.experts > 0) {
    config.experts = shape.experts;
    config.experts_per_token = 2;
    config.router_loss_coefficient = 0.02;
  }
  return config;
}

class Seeded final : public ParameterSource {
 public:
  Seeded(const ModelConfig& config, const InitialOptions& options)
      : range_(config.initializer_range), layers_(config.layers), options_(options) {}

  torch::Tensor make(const ParameterSpec& spec) override {
    if (options_.progress) options_.progress(spec.name);
    at::Tensor made = at::empty(spec.shape, at::TensorOptions(options_.dtype));
    const Result<void> filled =
        in_pieces(made, Access::write, "initialise '" + spec.name + "'",
                  [&](int64_t first, const at::Tensor& piece) -> Result<void> {
                    fill(spec, first, piece);
                    return {};
                  });
    if (!filled.ok()) throw_error(filled.error());
    return made;
  }

 private:
  void fill(const ParameterSpec& spec, int64_t first, const at::Tensor& piece) {
    if (spec.role == Role::bias) {
      piece.zero_();
    } else if (spec.role == Role::norm) {
      piece.fill_(1);
    } else {
      // Each layer adds two terms to the residual stream; scaled so, their sum keeps its size at any depth.
      const double deviation = spec.role == Role::residual_weight
                                   ? range_ / std::sqrt(2 * static_cast<double>(layers_))
                                   : range_;
      const uint64_t seed = Checksum::of(std::to_string(options_.seed) + " " + spec.name + " " +
                                         std::to_string(first));
      const at::Generator generator = at::detail::createCPUGenerator(seed);
      if (options_.dtype == at::kFloat) {
        piece.normal_(0, deviation, generator);
      } else {
        piece.copy_(staging_.take(at::kFloat, piece.numel()).normal_(0, deviation, generator));
      }
    }
  }

  const double range_;
  const int64_t layers_;
  const InitialOptions options_;
  Staging staging_;
};

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

Result<ModelConfig> preset(std::string_view name, std::optional<int64_t> vocabulary) {
  std::string known;
  for (const Shape& shape : kShapes) {
    known += (known.empty() ? "" : ", ") + std::string(shape.name);
    if (name != shape.name) continue;
    ModelConfig config = config_of(shape);
    config.vocabulary = vocabulary.value_or(config.vocabulary);
    return config;
  }
  return Error{Code::invalid_argument, "use the preset '" + std::string(name) +
                                           "': there is none of that name; there are " + known};
}

Result<std::shared_ptr<Model>> new_model(const ModelConfig& config, const InitialOptions& options) {
  Seeded source(config, options);
  try {
    return make_model(config, source);
  } catch (const c10::Error& error) {
    return caught(error);
  }
}

}  // namespace bottomless::train
