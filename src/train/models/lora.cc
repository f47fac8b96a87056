#include "train/models/lora.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "checkpoint/files.h"
#include "checkpoint/tensor_file_reader.h"
#include "train/files/new_directory.h"
#include "train/files/tensor_directory.h"
#include "train/files/tensor_files.h"
#include "train/models/parameter_types.h"

namespace bottomless::train {
namespace {

using nlohmann::json;

constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kConfig = "adapter_config.json";
const std::string kPrefix = "base_model.model.";

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

std::vector<std::string> default_targets(Architecture architecture) {
  if (architecture == Architecture::gpt2) return {"c_attn"};
  return {"q_proj", "k_proj", "v_proj", "o_proj"};
}

Result<LoraOptions> read_config(Files& files, const std::filesystem::path& path) try {
  const Result<std::string> text = read_text(files, path);
  if (!text.ok()) return text.error();
  const json config = json::parse(text.value());
  if (config.value("peft_type", "") != "LORA" || config.value("bias", "none") != "none") {
    return Error{Code::unsupported,
                 "read '" + path.string() + "': only LoRA adapters without biases are supported"};
  }
  return LoraOptions{.rank = config.at("r").get<int64_t>(),
                     .alpha = config.at("lora_alpha").get<double>(),
                     .dropout = config.value("lora_dropout", 0.0),
                     .targets = config.at("target_modules").get<std::vector<std::string>>()};
} catch (const json::exception& error) {
  return Error{Code::corrupt, "read '" + path.string() + "': " + error.what() +
                                  "; take a directory that PEFT has written"};
}

bool is_target(std::string_view module, const std::vector<std::string>& targets) {
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
    return last_part(module) == target || module == target;
  });
}

std::string listed(const std::set<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

}  // namespace

// The weight of a linear layer is a matrix whose name ends in that of the layer; no other module has such a name.
uint64_t count_adapter_parameters(const ModelConfig& config, const LoraOptions& options) {
  constexpr std::string_view kWeight = ".weight";
  const std::vector<std::string> targets =
      options.targets.empty() ? default_targets(config.architecture) : options.targets;
  uint64_t elements = 0;
  for (const ParameterSpec& spec : parameters_of(config)) {
    std::string_view module = spec.name;
    if (spec.shape.size() != 2 || !module.ends_with(kWeight)) continue;
    module.remove_suffix(kWeight.size());
    if (is_target(module, targets))
      elements += static_cast<uint64_t>(options.rank * (spec.shape[0] + spec.shape[1]));
  }
  return elements;
}

Result<TensorFileReader> open_adapters(Files& files, const std::filesystem::path& directory) {
  const Result<LoraOptions> options = read_config(files, directory / kConfig);
  if (!options.ok()) return options.error();
  Result<TensorFileReader> file = TensorFileReader::open(files, directory / kWeights);
  if (!file.ok()) return file;
  const auto rank = static_cast<uint64_t>(options.value().rank);
  const auto is_whole = [&](const PlacedTensor& tensor) {
    const size_t at = tensor.name.rfind(".lora_");
    if (at == std::string::npos || tensor.shape.size() != 2) return false;
    const bool is_a = tensor.name.compare(at, 8, ".lora_A.") == 0;
    std::string other = tensor.name;
    other[at + 6] = is_a ? 'B' : 'A';
    return is_floating(tensor.dtype) && tensor.shape[is_a ? 0 : 1] == rank &&
           file.value().find(other) != nullptr;
  };
  for (const PlacedTensor& tensor : file.value().tensors()) {
    if (is_whole(tensor)) continue;
    return Error{Code::corrupt, "read the adapters in '" + directory.string() + "': '" +
                                    tensor.name + "' is not one of a pair of rank " +
                                    std::to_string(rank) +
                                    "; the file is corrupt: download or write it again"};
  }
  if (file.value().tensors().empty())
    return Error{Code::corrupt,
                 "read the adapters in '" + directory.string() + "': there are none in its file"};
  return file;
}

Adapters::~Adapters() {
  for (Place& place : places_) place.linear->low_rank.reset();
}

std::vector<Adapters::Place> Adapters::places_in(Model& model,
                                                 const std::vector<std::string>& targets) {
  std::vector<Place> places;
  for (const auto& module : model.named_modules()) {
    const auto linear = std::dynamic_pointer_cast<Linear>(module.value());
    if (linear == nullptr) continue;
    if (is_target(module.key(), targets)) places.push_back({module.key(), linear});
  }
  return places;
}

at::ScalarType Adapters::dtype() const { return places_.front().linear->weight().scalar_type(); }

void Adapters::make(uint64_t seed) {
  const torch::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (Place& place : places_) {
    const LinearOptions& linear = place.linear->options();
    // PEFT's: as torch begins a linear layer.
    const double bound = 1 / std::sqrt(static_cast<double>(linear.inputs));
    LowRank added;
    added.a =
        torch::empty({options_.rank, linear.inputs}, dtype()).uniform_(-bound, bound, generator);
    added.b = torch::zeros({linear.outputs, options_.rank}, dtype());
    added.scale = options_.alpha / static_cast<double>(options_.rank);
    added.dropout = options_.dropout;
    added.a.requires_grad_();
    added.b.requires_grad_();
    place.linear->low_rank = std::move(added);
  }
}

Result<std::unique_ptr<Adapters>> Adapters::attach(Model& model, LoraOptions options,
                                                   uint64_t seed) {
  if (options.targets.empty()) options.targets = default_targets(model.config().architecture);
  std::vector<Place> places = places_in(model, options.targets);
  if (places.empty()) {
    std::set<std::string> there;
    for (const auto& module : model.named_modules()) {
      if (std::dynamic_pointer_cast<Linear>(module.value()) != nullptr)
        there.emplace(last_part(module.key()));
    }
    return Error{Code::invalid_argument,
                 "attach adapters: no linear layer is called " +
                     listed({options.targets.begin(), options.targets.end()}) +
                     "; this model's are " + listed(there)};
  }
  for (torch::Tensor& parameter : model.parameters()) parameter.requires_grad_(false);
  std::unique_ptr<Adapters> adapters(new Adapters(std::move(places), std::move(options)));
  adapters->make(seed);
  return adapters;
}

NamedTensors Adapters::parameters() const {
  NamedTensors all;
  for (const Place& place : places_) {
    all.push_back({kPrefix + place.module + ".lora_A.weight", place.linear->low_rank->a});
    all.push_back({kPrefix + place.module + ".lora_B.weight", place.linear->low_rank->b});
  }
  return all;
}

void Adapters::merge() {
  const torch::NoGradGuard no_grad;
  for (Place& place : places_) {
    const LowRank added = *std::exchange(place.linear->low_rank, std::nullopt);
    const bool transposed = place.linear->options().order == LinearOptions::Order::inputs_first;
    const torch::Tensor product = torch::mm(added.b, added.a).mul_(added.scale);
    torch::Tensor weight = place.linear->weight();
    weight.add_(transposed ? product.t() : product);
  }
  places_.clear();
}

Result<void> Adapters::write(const std::filesystem::path& directory,
                             const std::string& base) const {
  const std::unique_ptr<Files> files = make_files();
  return replace_directory(
      *files, directory,
      {.what = "adapters",
       .is_part = [](const std::string& name) { return name == kConfig || name == kWeights; },
       .write = [&](const std::filesystem::path& draft) -> Result<void> {
         if (Result<void> written =
                 write_tensor_file(*files, draft / kWeights, parameters(), dtype());
             !written.ok())
           return written;
         return write_text(*files, draft / kConfig, config_text(base));
       }});
}

std::string Adapters::config_text(const std::string& base) const {
  const bool transposed =
      places_.front().linear->options().order == LinearOptions::Order::inputs_first;
  const json config = {{"peft_type", "LORA"},
                       {"task_type", "CAUSAL_LM"},
                       {"base_model_name_or_path", base},
                       {"inference_mode", true},
                       {"r", options_.rank},
                       {"lora_alpha", options_.alpha},
                       {"lora_dropout", options_.dropout},
                       {"target_modules", options_.targets},
                       {"fan_in_fan_out", transposed},
                       {"bias", "none"}};
  return config.dump(2) + "\n";
}

Result<std::unique_ptr<Adapters>> Adapters::read(Model& model,
                                                 const std::filesystem::path& directory) {
  const std::string attempted = "read the adapters in '" + directory.string() + "'";
  const std::unique_ptr<Files> files = make_files();
  const Result<LoraOptions> options = read_config(*files, directory / kConfig);
  if (!options.ok()) return options.error();
  Result<std::unique_ptr<Adapters>> adapters = attach(model, options.value(), /*seed=*/0);
  if (!adapters.ok()) return adapters.error();
  const Result<TensorFileReader> file = TensorFileReader::open(*files, directory / kWeights);
  if (!file.ok()) return file.error();
  for (const NamedTensor& named : adapters.value()->parameters()) {
    const PlacedTensor* placed = file.value().find(named.name);
    const auto sizes = named.tensor.sizes();
    if (placed == nullptr || placed->shape != std::vector<uint64_t>(sizes.begin(), sizes.end()) ||
        !is_floating(placed->dtype) || !scalar_type(placed->dtype)) {
      return Error{Code::invalid_argument,
                   attempted + ": '" + named.name +
                       "' is not there, or has another shape than this model needs; name the model "
                       "that they were made for"};
    }
    torch::Tensor stored = torch::empty(sizes, *scalar_type(placed->dtype));
    const std::span bytes(static_cast<std::byte*>(stored.data_ptr()), stored.nbytes());
    if (Result<void> read = file.value().read(*placed, 0, bytes); !read.ok()) return read.error();
    const torch::NoGradGuard no_grad;
    torch::Tensor into = named.tensor;
    into.copy_(stored);
  }
  return adapters;
}

}  // namespace bottomless::train
