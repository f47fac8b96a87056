#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>

#include "checkpoint/files.h"
#include "checkpoint/strict_json.h"
#include "train/files/model_directory.h"
#include "train/files/new_directory.h"
#include "train/files/tensor_directory.h"
#include "train/files/tensor_files.h"
#include "train/models/named_tensor.h"

namespace bottomless::train {
namespace {

using nlohmann::json;
using std::filesystem::path;

constexpr std::array kTokenizerFiles{"tokenizer.json",
                                     "tokenizer.model",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "chat_template.jinja",
                                     "chat_template.json"};
constexpr const char* kGenerationName = "generation_config.json";

bool is_models(const std::string& name) {
  return name.ends_with(".safetensors") || name == "model.safetensors.index.json" ||
         name == "config.json" || name == kGenerationName ||
         std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), name) != kTokenizerFiles.end();
}

// Tensors [begin, end) go to one file.
struct Shard {
  size_t begin, end;
  std::string name;
};

std::vector<Shard> shards_of(const NamedTensors& tensors, Bytes element, Bytes most) {
  std::vector<Shard> shards;
  Bytes held = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Bytes bytes = static_cast<Bytes>(tensors[i].tensor.numel()) * element;
    if (shards.empty() || held + bytes > most) {
      shards.push_back({i, i, ""});
      held = 0;
    }
    held += bytes;
    shards.back().end = i + 1;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    shards[i].name = shards.size() == 1 ? "model.safetensors" : name;
  }
  return shards;
}

std::string index_text(const std::vector<Shard>& shards, const NamedTensors& tensors,
                       Bytes element) {
  json map = json::object();
  Bytes elements = 0;
  for (const Shard& shard : shards) {
    for (size_t i = shard.begin; i < shard.end; ++i) {
      map[tensors[i].name] = shard.name;
      elements += static_cast<Bytes>(tensors[i].tensor.numel());
    }
  }
  const json index{
      {"metadata", {{"total_parameters", elements}, {"total_size", elements * element}}},
      {"weight_map", map}};
  return index.dump(2) + "\n";
}

std::string generation_text(const ModelConfig& config) {
  json written{{"_from_model_config", true}};
  if (config.begin_token) written["bos_token_id"] = *config.begin_token;
  if (!config.end_tokens.empty()) written["eos_token_id"] = config.end_tokens;
  return written.dump(2) + "\n";
}

Result<void> copy_texts(Files& files, const path& from, const path& to, const ModelConfig& config) {
  std::vector<std::string> names(kTokenizerFiles.begin(), kTokenizerFiles.end());
  names.emplace_back(kGenerationName);
  for (const std::string& name : names) {
    Result<std::string> text =
        from.empty() ? Error{Code::not_found, ""} : read_text(files, from / name);
    if (!text.ok() && text.error().code == Code::not_found) {
      if (name != kGenerationName) continue;
      text = generation_text(config);
    }
    if (!text.ok()) return text.error();
    const Result<void> written = write_text(files, to / name, text.value());
    if (!written.ok()) return written.error();
  }
  return {};
}

Result<void> write_directory(Files& files, const NamedTensors& tensors, const ModelConfig& config,
                             const path& directory, const SaveOptions& options) {
  const Result<std::string> text = to_json(config, options.dtype);
  if (!text.ok()) return text.error();
  const Bytes element = c10::elementSize(options.dtype);
  const std::vector<Shard> shards = shards_of(tensors, element, options.most_bytes);
  for (const Shard& shard : shards) {
    const std::span part(tensors.data() + shard.begin, shard.end - shard.begin);
    if (Result<void> written =
            write_tensor_file(files, directory / shard.name, part, options.dtype, options.progress);
        !written.ok())
      return written;
  }
  if (shards.size() > 1) {
    const Result<void> written = write_text(files, directory / "model.safetensors.index.json",
                                            index_text(shards, tensors, element));
    if (!written.ok()) return written.error();
  }
  const Result<void> copied = copy_texts(files, options.tokenizer, directory, config);
  if (!copied.ok()) return copied.error();
  return write_text(files, directory / "config.json", text.value());
}

}  // namespace

Result<void> save_model(const Model& model, const path& directory, const SaveOptions& options) {
  NamedTensors tensors;
  for (const auto& parameter : model.named_parameters())
    tensors.push_back({parameter.key(), parameter.value()});
  const std::unique_ptr<Files> files = make_files();
  return replace_directory(
      *files, directory, {.what = "a model", .is_part = is_models, .write = [&](const path& draft) {
                            return write_directory(*files, tensors, model.config(), draft, options);
                          }});
}

}  // namespace bottomless::train
