#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <utility>

#include "checkpoint/files.h"
#include "torch/errors.h"
#include "train/files/model_directory.h"
#include "train/files/tensor_directory.h"
#include "train/files/tensor_pieces.h"
#include "train/models/parameter_types.h"

namespace bottomless::train {
namespace {

using std::filesystem::path;

std::string shape_text(const auto& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() == 1 ? "" : ", ") + std::to_string(size);
  return text + "]";
}

// What some versions of transformers have written and no model needs: masks and tables that follow from config.json.
bool is_derived(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

// A directory and what a model's parameters are called in it. Files of a model without its head leave the first part of
// the names out ("h.0.ln_1.weight"), as those of the first GPT-2 do.
class NamesInFiles {
 public:
  NamesInFiles(const TensorDirectory& directory, const ModelConfig& config)
      : prefix_(config.architecture == Architecture::gpt2 ? "transformer." : "model.") {
    shortened_ = std::none_of(directory.tensors().begin(), directory.tensors().end(),
                              [&](const auto& item) { return item.first.starts_with(prefix_); });
  }
  std::string of(const std::string& parameter) const {
    return shortened_ && parameter.starts_with(prefix_) ? parameter.substr(prefix_.size())
                                                        : parameter;
  }

 private:
  const std::string prefix_;
  bool shortened_ = false;
};

Result<void> check_parameter(const ParameterSpec& spec, const TensorDirectory::Place* place,
                             const std::string& attempted) {
  if (place == nullptr) {
    return Error{Code::not_found,
                 attempted + ": tensor '" + spec.name + "' " + shape_text(spec.shape) +
                     " is in none of its safetensors files; take a complete copy, or the "
                     "config.json that belongs to them"};
  }
  const PlacedTensor& tensor = *place->tensor;
  const std::string in_file =
      "tensor '" + tensor.name + "' of '" + place->file->path().filename().string() + "'";
  if (!std::equal(spec.shape.begin(), spec.shape.end(), tensor.shape.begin(), tensor.shape.end(),
                  [](int64_t a, uint64_t b) { return static_cast<uint64_t>(a) == b; })) {
    return Error{Code::invalid_argument,
                 attempted + ": " + in_file + " has the shape " + shape_text(tensor.shape) +
                     ", and by config.json it has " + shape_text(spec.shape) +
                     "; take the two from the same model"};
  }
  if (!is_floating(tensor.dtype) || !scalar_type(tensor.dtype)) {
    return Error{Code::unsupported, attempted + ": " + in_file + " has elements of type " +
                                        std::string(name_of(tensor.dtype)) +
                                        "; F32, BF16, F16 and F64 are supported"};
  }
  return {};
}

Result<void> check_all(const TensorDirectory& directory, const ModelConfig& config,
                       const NamesInFiles& names, const std::string& attempted) {
  std::set<std::string> known;
  for (const ParameterSpec& spec : parameters_of(config)) {
    const std::string name = names.of(spec.name);
    const Result<void> checked = check_parameter(spec, directory.find(name), attempted);
    if (!checked.ok()) return checked.error();
    known.insert(name);
  }
  if (config.tied) known.insert("lm_head.weight");
  std::string unknown;  // the first by name, so that the message does not depend on chance
  for (const auto& [name, place] : directory.tensors()) {
    if (!known.contains(name) && !is_derived(name) && (unknown.empty() || name < unknown))
      unknown = name;
  }
  if (unknown.empty()) return {};
  return Error{Code::invalid_argument,
               attempted + ": tensor '" + unknown + "' of '" +
                   directory.find(unknown)->file->path().filename().string() +
                   "' has no place in a " + std::string(name_of(config.architecture)) +
                   " model of this config.json; take the two from the same model"};
}

class FromFiles final : public ParameterSource {
 public:
  FromFiles(const TensorDirectory& directory, const NamesInFiles& names, at::ScalarType type,
            Progress progress)
      : directory_(directory), names_(names), type_(type), progress_(std::move(progress)) {}

  torch::Tensor make(const ParameterSpec& spec) override {
    if (progress_) progress_(spec.name);
    at::Tensor made = at::empty(spec.shape, at::TensorOptions(type_));
    const Result<void> filled = fill(*directory_.find(names_.of(spec.name)), made);
    if (!filled.ok()) throw_error(filled.error());
    return made;
  }

 private:
  Result<void> fill(const TensorDirectory::Place& place, const at::Tensor& made) {
    const at::ScalarType stored = *scalar_type(place.tensor->dtype);
    const Bytes element = bytes_of(place.tensor->dtype);
    const auto read = [&](int64_t first, const at::Tensor& into) {
      const std::span bytes(static_cast<std::byte*>(into.data_ptr()), into.nbytes());
      return place.file->read(*place.tensor, static_cast<Bytes>(first) * element, bytes);
    };
    return in_pieces(made, Access::write, "load '" + place.tensor->name + "'",
                     [&](int64_t first, const at::Tensor& piece) -> Result<void> {
                       if (stored == type_) return read(first, piece);
                       const at::Tensor staged = staging_.take(stored, piece.numel());
                       const Result<void> done = read(first, staged);
                       if (done.ok()) piece.copy_(staged);
                       return done;
                     });
  }

  const TensorDirectory& directory_;
  const NamesInFiles& names_;
  const at::ScalarType type_;
  const Progress progress_;
  Staging staging_;
};

}  // namespace

Result<ModelConfig> load_config(const path& directory) {
  const std::unique_ptr<Files> files = make_files();
  const path file = directory / "config.json";
  const Result<std::string> text = read_text(*files, file);
  if (!text.ok() && text.error().code == Code::not_found) {
    return Error{Code::not_found, "load the model in '" + directory.string() +
                                      "': there is no config.json; name a directory with a "
                                      "model of Hugging Face's form"};
  }
  if (!text.ok()) return text.error();
  return parse_config(text.value(), file.string());
}

Result<TensorDirectory> open_tensors(Files& files, const path& directory,
                                     const ModelConfig& config) {
  Result<TensorDirectory> opened = TensorDirectory::open(files, directory);
  if (!opened.ok()) return opened;
  if (Result<void> checked = check_all(opened.value(), config, NamesInFiles(opened.value(), config),
                                       "load the model in '" + directory.string() + "'");
      !checked.ok())
    return checked.error();
  return opened;
}

Result<std::shared_ptr<Model>> load_model(const path& directory, const LoadOptions& options) {
  Result<ModelConfig> config = load_config(directory);
  if (!config.ok()) return config.error();
  ModelConfig& wanted = config.value();
  if (options.dropout)
    wanted.embedding_dropout = wanted.attention_dropout = wanted.residual_dropout =
        *options.dropout;
  const std::unique_ptr<Files> files = make_files();
  const Result<TensorDirectory> opened = open_tensors(*files, directory, wanted);
  if (!opened.ok()) return opened.error();
  const NamesInFiles names(opened.value(), wanted);
  const auto* first = opened.value().find(opened.value().any_name());
  const at::ScalarType type =
      options.dtype.value_or(wanted.dtype.value_or(*scalar_type(first->tensor->dtype)));
  FromFiles source(opened.value(), names, type, options.progress);
  try {
    return make_model(wanted, source);
  } catch (const c10::Error& error) {
    return caught(error);
  }
}

}  // namespace bottomless::train
