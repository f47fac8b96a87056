// What a model's config.json says, in one form for all architectures.
// Thread-safety: values and free functions without state.
#pragma once
#include <bottomless/result.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bottomless::train {

enum class Architecture { gpt2, llama, qwen2, mistral, mixtral };
enum class Activation { silu, gelu, gelu_tanh, relu };

// How rotary frequencies are stretched to reach further than the model was first trained for.
struct RopeScaling {
  enum class Kind { none, linear, dynamic, llama3 };
  Kind kind = Kind::none;
  double factor = 1;
  double low_frequency_factor = 1;  // this and the next two: llama3 only
  double high_frequency_factor = 4;
  int64_t original_positions = 0;
};

struct ModelConfig {
  Architecture architecture = Architecture::gpt2;
  int64_t vocabulary = 0;
  int64_t width = 0;        // of the hidden state
  int64_t inner_width = 0;  // of the feed-forward part, of one expert
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t key_value_heads = 0;
  int64_t head_width = 0;
  int64_t positions = 0;  // the longest sequence the model is made for
  Activation activation = Activation::silu;
  double norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool tied = false;  // the head's weight is that of the embedding
  bool query_key_value_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  double embedding_dropout = 0;
  double attention_dropout = 0;
  double residual_dropout = 0;
  bool scaled_by_head_width = true;  // attention is; GPT-2 may choose
  bool scaled_by_layer = false;      // and is divided by the layer's number, too

  double rope_base = 10000;
  RopeScaling rope;
  std::optional<int64_t> window;  // a token sees itself and those up to window - 1 before it
  std::vector<bool> windowed;     // the layers in which that holds; one for each, or empty: none

  int64_t experts = 0;  // 0: every token goes through the same feed-forward part
  int64_t experts_per_token = 0;
  double router_loss_coefficient = 0;
  double router_jitter = 0;

  std::optional<int64_t> begin_token;
  std::vector<int64_t> end_tokens;
  std::optional<at::ScalarType> dtype;  // of the files, if it says so
  std::string source;                   // the text it was read from; empty for a preset
};

std::string_view name_of(Architecture architecture);  // config.json's model_type

// `where` names the file in an error. Understands what transformers 4 and 5 write.
Result<ModelConfig> parse_config(std::string_view json, const std::string& where);

// For transformers 5, and readable by 4. What a source said and nobody here knows is kept.
Result<std::string> to_json(const ModelConfig& config, at::ScalarType dtype);

// "float32", "bfloat16", "float16" and "float64"; others have no name here.
std::optional<std::string_view> dtype_name(at::ScalarType dtype);
std::optional<at::ScalarType> dtype_of(std::string_view name);

}  // namespace bottomless::train
