#include <algorithm>
#include <array>
#include <utility>

#include "checkpoint/strict_json.h"
#include "train/models/config.h"
#include "train/models/json_keys.h"

namespace bottomless::train {
namespace {

using nlohmann::json;

constexpr std::array kArchitectures{Architecture::gpt2, Architecture::llama, Architecture::qwen2,
                                    Architecture::mistral, Architecture::mixtral};

constexpr std::array<std::pair<std::string_view, Activation>, 7> kActivations{{
    {"silu", Activation::silu},
    {"swish", Activation::silu},
    {"gelu", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"relu", Activation::relu},
}};

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 4> kDtypeNames{{
    {"float32", at::kFloat},
    {"bfloat16", at::kBFloat16},
    {"float16", at::kHalf},
    {"float64", at::kDouble},
}};

// "a, b and c" of the names in a table.
template <class Table, class Name>
std::string listed(const Table& table, Name name) {
  std::string text;
  for (size_t i = 0; i < table.size(); ++i)
    text += (i == 0 ? "" : i + 1 == table.size() ? " and " : ", ") + std::string(name(table[i]));
  return text;
}

constexpr auto first_of = [](const auto& row) { return row.first; };

Activation activation(JsonKeys& keys, const std::string& key, const std::string& otherwise) {
  const std::string name = keys.text(key, otherwise);
  for (const auto& [known, activation] : kActivations)
    if (name == known) return activation;
  keys.refuse(key, "is '" + name + "'; " + listed(kActivations, first_of) + " are supported");
  return Activation::silu;
}

void read_gpt2(JsonKeys& keys, ModelConfig& config) {
  config.width = keys.count("n_embd");
  config.layers = keys.count("n_layer");
  config.heads = config.key_value_heads = keys.count("n_head");
  config.inner_width = keys.count("n_inner", 4 * config.width);
  config.positions = keys.count("n_positions", 1024);
  config.activation = activation(keys, "activation_function", "gelu_new");
  config.norm_epsilon = keys.number("layer_norm_epsilon", 1e-5, 0, 1);
  config.embedding_dropout = keys.number("embd_pdrop", 0.1, 0, 1);
  config.attention_dropout = keys.number("attn_pdrop", 0.1, 0, 1);
  config.residual_dropout = keys.number("resid_pdrop", 0.1, 0, 1);
  config.tied = keys.flag("tie_word_embeddings", true);
  config.scaled_by_head_width = keys.flag("scale_attn_weights", true);
  config.scaled_by_layer = keys.flag("scale_attn_by_inverse_layer_idx", false);
  config.query_key_value_bias = config.attention_output_bias = config.mlp_bias = true;
  if (config.width % config.heads != 0) {
    keys.refuse("n_embd", "is no multiple of 'n_head'; a multiple is supported");
  }
  config.head_width = config.width / config.heads;
  if (keys.flag("add_cross_attention", false))
    keys.refuse("add_cross_attention", "is true; a decoder by itself is supported");
}

// What transformers takes where a file of the Llama family leaves a key out.
struct Defaults {
  int64_t positions;
  std::optional<int64_t> key_value_heads;  // none: as many as heads
  std::optional<int64_t> window;
};

Defaults defaults_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::qwen2:
      return {32768, 32, 4096};
    case Architecture::mistral:
      return {131072, 8, 4096};
    case Architecture::mixtral:
      return {131072, 8, {}};
    default:
      return {2048, {}, {}};
  }
}

// transformers 4 writes rope_theta and rope_scaling, 5 writes rope_parameters with both.
void read_rope(JsonKeys& keys, ModelConfig& config, const std::string& where) {
  const bool is_mixtral = config.architecture == Architecture::mixtral;
  config.rope_base = keys.number("rope_theta", is_mixtral ? 1e6 : 1e4, 1, 1e15);
  const std::string name = keys.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!keys.has(name)) return;
  if (!keys.at(name).is_object()) {
    keys.refuse(name, "is " + keys.at(name).dump() + "; an object is supported");
    return;
  }
  JsonKeys rope(keys.at(name), where + ", '" + name + "'");
  config.rope_base = rope.number("rope_theta", config.rope_base, 1, 1e15);
  const std::string kind = rope.text("rope_type", rope.text("type", "default"));
  RopeScaling& scaling = config.rope;
  if (kind == "linear" || kind == "dynamic" || kind == "llama3") {
    scaling.kind = kind == "linear"    ? RopeScaling::Kind::linear
                   : kind == "dynamic" ? RopeScaling::Kind::dynamic
                                       : RopeScaling::Kind::llama3;
    scaling.factor = rope.number("factor", {}, 1e-6, 1e6);
  } else if (kind != "default") {
    rope.refuse("rope_type",
                "is '" + kind + "'; default, linear, dynamic and llama3 are supported");
  }
  if (kind == "llama3") {
    scaling.low_frequency_factor = rope.number("low_freq_factor", {}, 1e-6, 1e6);
    scaling.high_frequency_factor = rope.number("high_freq_factor", {}, 1e-6, 1e6);
    scaling.original_positions = rope.count("original_max_position_embeddings");
    if (scaling.high_frequency_factor <= scaling.low_frequency_factor)
      rope.refuse("high_freq_factor", "is not above 'low_freq_factor'; it has to be");
  }
  if (rope.number("partial_rotary_factor", 1, 0, 1) != 1)
    rope.refuse("partial_rotary_factor", "is not 1; only that is supported");
  if (rope.wrong()) keys.refuse(name, "cannot be used: " + rope.wrong()->message);
}

void read_window(JsonKeys& keys, ModelConfig& config) {
  const bool is_qwen2 = config.architecture == Architecture::qwen2;
  if (config.architecture == Architecture::llama) return;
  if (is_qwen2 && !keys.flag("use_sliding_window", false)) return;
  config.window =
      keys.is_null("sliding_window") ? std::nullopt : defaults_of(config.architecture).window;
  if (keys.has("sliding_window")) config.window = keys.count("sliding_window");
  if (!config.window) return;
  config.windowed.assign(static_cast<size_t>(config.layers), true);
  if (!is_qwen2) return;
  const auto first = static_cast<size_t>(keys.count("max_window_layers", 28, 0));
  const json* types = keys.has("layer_types") ? &keys.at("layer_types") : nullptr;
  if (types != nullptr && (!types->is_array() || types->size() != config.windowed.size())) {
    keys.refuse("layer_types", "has not one entry for each of 'num_hidden_layers'");
    return;
  }
  for (size_t layer = 0; layer < config.windowed.size(); ++layer)
    config.windowed[layer] =
        types != nullptr ? (*types)[layer] == "sliding_attention" : layer >= first;
}

void read_llama_family(JsonKeys& keys, ModelConfig& config, const std::string& where) {
  const Architecture kind = config.architecture;
  const bool is_mixtral = kind == Architecture::mixtral;
  config.width = keys.count("hidden_size");
  config.inner_width = keys.count("intermediate_size");
  config.layers = keys.count("num_hidden_layers");
  config.heads = keys.count("num_attention_heads");
  const Defaults defaults = defaults_of(kind);
  config.key_value_heads =
      keys.count("num_key_value_heads", keys.is_null("num_key_value_heads")
                                            ? config.heads
                                            : defaults.key_value_heads.value_or(config.heads));
  config.positions = keys.count("max_position_embeddings", defaults.positions);
  config.activation = activation(keys, "hidden_act", "silu");
  config.norm_epsilon = keys.number("rms_norm_eps", is_mixtral ? 1e-5 : 1e-6, 0, 1);
  config.attention_dropout = keys.number("attention_dropout", 0, 0, 1);
  config.tied = keys.flag("tie_word_embeddings", false);
  config.head_width = keys.count("head_dim", std::max<int64_t>(config.width / config.heads, 1));
  if (config.heads % config.key_value_heads != 0) {
    keys.refuse("num_attention_heads",
                "is no multiple of 'num_key_value_heads'; a multiple is supported");
  }
  if (!keys.has("head_dim") && config.width % config.heads != 0)
    keys.refuse("hidden_size", "is no multiple of 'num_attention_heads'; a multiple is supported");
  if (config.head_width % 2 != 0)
    keys.refuse("head_dim", "is odd; rotary positions need an even one");
  if (kind == Architecture::llama) {
    config.query_key_value_bias = config.attention_output_bias = keys.flag("attention_bias", false);
    config.mlp_bias = keys.flag("mlp_bias", false);
  }
  config.query_key_value_bias |= kind == Architecture::qwen2;
  if (is_mixtral) {
    config.experts = keys.count("num_local_experts", 8);
    config.experts_per_token = keys.count("num_experts_per_tok", 2);
    config.router_loss_coefficient = keys.number("router_aux_loss_coef", 0.001, 0, 1e6);
    config.router_jitter = keys.number("router_jitter_noise", 0, 0, 1);
    if (config.experts_per_token > config.experts)
      keys.refuse("num_experts_per_tok", "is greater than 'num_local_experts'");
  }
  read_rope(keys, config, where);
  read_window(keys, config);
}

}  // namespace

std::string_view name_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::gpt2:
      return "gpt2";
    case Architecture::llama:
      return "llama";
    case Architecture::qwen2:
      return "qwen2";
    case Architecture::mistral:
      return "mistral";
    case Architecture::mixtral:
      return "mixtral";
  }
  return "";
}

std::optional<std::string_view> dtype_name(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypeNames)
    if (known == dtype) return name;
  return std::nullopt;
}

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  for (const auto& [known, dtype] : kDtypeNames)
    if (known == name) return dtype;
  return std::nullopt;
}

Result<ModelConfig> parse_config(std::string_view text, const std::string& file) {
  const std::string where = "read '" + file + "'";
  Result<json> parsed = parse_strict_json(text, where);
  if (!parsed.ok()) return parsed.error();
  if (!parsed.value().is_object())
    return Error{Code::corrupt,
                 where + ": it is no JSON object; the file is corrupt: download or write it again"};
  JsonKeys keys(parsed.value(), where);
  ModelConfig config;
  config.source = text;
  const std::string type = keys.text("model_type");
  const auto* const known = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                                         [&](auto kind) { return name_of(kind) == type; });
  if (keys.wrong()) return *keys.wrong();
  if (known == kArchitectures.end()) {
    keys.refuse("model_type", "is '" + type + "', an unknown architecture; " +
                                  listed(kArchitectures, name_of) + " are supported");
    return *keys.wrong();
  }
  config.architecture = *known;
  config.vocabulary = keys.count("vocab_size");
  config.initializer_range = keys.number("initializer_range", 0.02, 0, 1);
  if (config.architecture == Architecture::gpt2) {
    read_gpt2(keys, config);
  } else {
    read_llama_family(keys, config, where);
  }
  const std::vector<int64_t> begin = keys.numbers("bos_token_id");
  if (!begin.empty()) config.begin_token = begin.front();
  config.end_tokens = keys.numbers("eos_token_id");
  const std::string key = keys.has("dtype") ? "dtype" : "torch_dtype";
  if (const std::string name = keys.text(key, ""); !name.empty()) {
    config.dtype = dtype_of(name);
    if (!config.dtype)
      keys.refuse(key, "is '" + name + "'; " + listed(kDtypeNames, first_of) + " are supported");
  }
  if (keys.has("quantization_config"))
    keys.refuse("quantization_config",
                "is there; only weights that are not quantised are supported");
  if (keys.wrong()) return *keys.wrong();
  return config;
}

}  // namespace bottomless::train
