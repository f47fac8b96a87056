#include <nlohmann/json.hpp>

#include "checkpoint/strict_json.h"
#include "train/models/config.h"

namespace bottomless::train {
namespace {

using nlohmann::json;

const char* class_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::gpt2:
      return "GPT2LMHeadModel";
    case Architecture::llama:
      return "LlamaForCausalLM";
    case Architecture::qwen2:
      return "Qwen2ForCausalLM";
    case Architecture::mistral:
      return "MistralForCausalLM";
    case Architecture::mixtral:
      return "MixtralForCausalLM";
  }
  return "";
}

const char* activation_name(Activation activation) {
  switch (activation) {
    case Activation::silu:
      return "silu";
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_new";
    case Activation::relu:
      return "relu";
  }
  return "";
}

json rope_parameters(const ModelConfig& config) {
  const RopeScaling& rope = config.rope;
  json written{{"rope_theta", config.rope_base}, {"rope_type", "default"}};
  if (rope.kind == RopeScaling::Kind::none) return written;
  written["factor"] = rope.factor;
  if (rope.kind == RopeScaling::Kind::linear) written["rope_type"] = "linear";
  if (rope.kind == RopeScaling::Kind::dynamic) written["rope_type"] = "dynamic";
  if (rope.kind == RopeScaling::Kind::llama3) {
    written["rope_type"] = "llama3";
    written["low_freq_factor"] = rope.low_frequency_factor;
    written["high_freq_factor"] = rope.high_frequency_factor;
    written["original_max_position_embeddings"] = rope.original_positions;
  }
  return written;
}

void write_gpt2(const ModelConfig& config, json& written) {
  written["n_embd"] = config.width;
  written["n_layer"] = config.layers;
  written["n_head"] = config.heads;
  written["n_inner"] = config.inner_width;
  written["n_positions"] = config.positions;
  written["activation_function"] = activation_name(config.activation);
  written["layer_norm_epsilon"] = config.norm_epsilon;
  written["embd_pdrop"] = config.embedding_dropout;
  written["attn_pdrop"] = config.attention_dropout;
  written["resid_pdrop"] = config.residual_dropout;
  written["scale_attn_weights"] = config.scaled_by_head_width;
  written["scale_attn_by_inverse_layer_idx"] = config.scaled_by_layer;
}

void write_llama_family(const ModelConfig& config, json& written) {
  written["hidden_size"] = config.width;
  written["intermediate_size"] = config.inner_width;
  written["num_hidden_layers"] = config.layers;
  written["num_attention_heads"] = config.heads;
  written["num_key_value_heads"] = config.key_value_heads;
  written["head_dim"] = config.head_width;
  written["max_position_embeddings"] = config.positions;
  written["hidden_act"] = activation_name(config.activation);
  written["rms_norm_eps"] = config.norm_epsilon;
  written["attention_dropout"] = config.attention_dropout;
  const json rope = rope_parameters(config);
  written["rope_parameters"] = rope;
  written["rope_theta"] = config.rope_base;  // this and rope_scaling: for transformers 4
  if (config.rope.kind != RopeScaling::Kind::none) written["rope_scaling"] = rope;
  if (config.architecture == Architecture::llama) {
    written["attention_bias"] = config.query_key_value_bias;
    written["mlp_bias"] = config.mlp_bias;
    return;
  }
  written["sliding_window"] = config.window ? json(*config.window) : json(nullptr);
  if (config.architecture == Architecture::qwen2) {
    written["use_sliding_window"] = config.window.has_value();
    json types = json::array();
    for (int64_t layer = 0; layer < config.layers; ++layer)
      types.push_back(config.window && config.windowed[static_cast<size_t>(layer)]
                          ? "sliding_attention"
                          : "full_attention");
    written["layer_types"] = types;
  }
  if (config.architecture == Architecture::mixtral) {
    written["num_local_experts"] = config.experts;
    written["num_experts_per_tok"] = config.experts_per_token;
    written["router_aux_loss_coef"] = config.router_loss_coefficient;
    written["router_jitter_noise"] = config.router_jitter;
  }
}

json from_scratch(const ModelConfig& config) {
  json written{{"model_type", name_of(config.architecture)},
               {"vocab_size", config.vocabulary},
               {"initializer_range", config.initializer_range},
               {"tie_word_embeddings", config.tied}};
  written["bos_token_id"] = config.begin_token ? json(*config.begin_token) : json(nullptr);
  written["eos_token_id"] = config.end_tokens.empty()       ? json(nullptr)
                            : config.end_tokens.size() == 1 ? json(config.end_tokens.front())
                                                            : json(config.end_tokens);
  if (config.architecture == Architecture::gpt2) {
    write_gpt2(config, written);
  } else {
    write_llama_family(config, written);
  }
  return written;
}

}  // namespace

Result<std::string> to_json(const ModelConfig& config, at::ScalarType dtype) {
  const std::string attempted = "write config.json";
  const std::optional<std::string_view> name = dtype_name(dtype);
  if (!name) {
    return Error{Code::invalid_argument,
                 attempted + ": " + at::toString(dtype) +
                     " is not supported; float32, bfloat16, float16 and float64 are"};
  }
  json written = from_scratch(config);
  if (!config.source.empty()) {
    Result<json> source = parse_strict_json(config.source, attempted);
    if (!source.ok()) return source.error();
    written = std::move(source).value();
  }
  written["architectures"] = {class_name(config.architecture)};
  written.erase("torch_dtype");
  written["dtype"] = *name;
  Result<std::string> text = write_json(written, 2, attempted);
  if (!text.ok()) return text.error();
  return text.value() + "\n";
}

}  // namespace bottomless::train
