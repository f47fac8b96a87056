// Runs a model on tokens and writes what comes out, for comparison with transformers.
//
//   model_tool model=DIR|preset=NAME [input=FILE] [output=FILE] [save=DIR] [...]
//
//   input       a safetensors file with tokens and perhaps targets or documents, each [batch, time] int64
//   output      receives logits, or with targets the loss and every gradient
//   cache=N     the first N tokens at once, the others one by one
//   memory=, disk=   under that limit; prints the counters
//   dtype=, save=, save_dtype=, most_bytes=, tokenizer=, seed=   as in LoadOptions, SaveOptions and InitialOptions
#include <ATen/ATen.h>
#include <bottomless/torch.h>

#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/text_file.h"
#include "checkpoint/files.h"
#include "checkpoint/tensor_file_reader.h"
#include "checkpoint/tensor_file_writer.h"
#include "train/files/model_directory.h"
#include "train/models/experts.h"
#include "train/models/parameter_types.h"
#include "train/models/presets.h"

namespace {

using namespace bottomless;
using namespace bottomless::train;
using Words = std::map<std::string, std::string>;
using Tensors = std::map<std::string, at::Tensor>;

template <class T>
T checked(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  std::exit(1);
}
void check(const Result<void>& result) {
  if (!result.ok()) checked(Result<int>(result.error()));
}

Tensors read(const std::string& path) {
  const auto files = make_files();
  const TensorFileReader reader = checked(TensorFileReader::open(*files, path));
  Tensors tensors;
  for (const PlacedTensor& placed : reader.tensors()) {
    const std::vector<int64_t> shape(placed.shape.begin(), placed.shape.end());
    const at::Tensor tensor = at::empty(shape, at::kLong);
    check(reader.read(placed, 0, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()}));
    tensors.emplace(placed.name, tensor);
  }
  return tensors;
}

void write(const std::string& path, const Tensors& tensors) {
  const auto files = make_files();
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back({name, Dtype::f32, {tensor.sizes().begin(), tensor.sizes().end()}});
  const auto writer = checked(TensorFileWriter::create(*files, path, specs));
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor dense = tensor.detach().to(at::kFloat).contiguous();
    check(writer->write(name, 0,
                        {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()}));
  }
  checked(writer->finish());
}

std::shared_ptr<Model> make(const Words& words) {
  std::optional<at::ScalarType> dtype;
  if (words.contains("dtype")) dtype = dtype_of(words.at("dtype"));
  if (words.contains("model"))
    return checked(load_model(words.at("model"), {.dtype = dtype, .dropout = {}}));
  const uint64_t seed = words.contains("seed") ? std::stoull(words.at("seed")) : 0;
  return checked(new_model(checked(preset(words.at("preset"))),
                           {.seed = seed, .dtype = dtype.value_or(at::kFloat)}));
}

at::Tensor logits_with_cache(Model& model, const at::Tensor& tokens, int64_t first) {
  const at::NoGradGuard no_grad;
  KeyValueCache cache(model.layers());
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < tokens.size(1);) {
    const int64_t count = begin == 0 ? first : 1;
    parts.push_back(model.forward(tokens.narrow(1, begin, count),
                                  Positions::following(cache.length(), count), &cache));
    begin += count;
  }
  return at::cat(parts, 1);
}

Tensors run(Model& model, const Words& words) {
  Tensors input = read(words.at("input"));
  const at::Tensor& tokens = input.at("tokens");
  model.eval();
  if (words.contains("cache"))
    return {{"logits", logits_with_cache(model, tokens, std::stoll(words.at("cache")))}};
  const Positions positions = input.contains("documents") ? Positions::packed(input.at("documents"))
                                                          : Positions::following(0, tokens.size(1));
  std::vector<at::Tensor> router;
  model.record_router(&router);
  if (!input.contains("targets")) {
    const at::NoGradGuard no_grad;
    return {{"logits", model.forward(tokens, positions)}};
  }
  at::Tensor hidden = model.embed(tokens, positions);
  for (int64_t index = 0; index < model.layers(); ++index)
    hidden = model.layer(index, hidden, positions);
  const at::Tensor& targets = input.at("targets");
  const auto count = static_cast<double>((targets != -100).sum().item<int64_t>());
  at::Tensor loss = model.loss(hidden, targets, 1 / count);
  if (!router.empty())
    loss = loss + load_balancing_loss(router, model.config().experts_per_token) *
                      model.config().router_loss_coefficient;
  loss.backward();
  Tensors output{{"loss", loss}};
  for (const auto& parameter : model.named_parameters())
    if (parameter.value().grad().defined()) output[parameter.key()] = parameter.value().grad();
  return output;
}

void save(const Model& model, const Words& words) {
  SaveOptions options;
  if (words.contains("save_dtype")) options.dtype = *dtype_of(words.at("save_dtype"));
  if (words.contains("most_bytes")) options.most_bytes = std::stoull(words.at("most_bytes"));
  if (words.contains("tokenizer")) options.tokenizer = words.at("tokenizer");
  check(save_model(model, words.at("save"), options));
}

}  // namespace

int main(int count, char** arguments) {
  Words words;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    words[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  }
  std::unique_ptr<Runtime> runtime;
  if (words.contains("memory"))
    runtime = std::make_unique<Runtime>(
        Options{.memory = checked(parse_bytes(words.at("memory"))), .disk = {words.at("disk")}});
  const auto resident = [] { return byte_field("/proc/self/status", "VmHWM").value_or(0); };
  const Bytes before = resident();
  const std::shared_ptr<Model> model = make(words);
  if (runtime)
    std::printf("{\"loading_bytes\": %llu}\n",
                static_cast<unsigned long long>(resident() - before));
  if (words.contains("output")) write(words.at("output"), run(*model, words));
  if (words.contains("save")) save(*model, words);
  if (runtime) std::printf("%s\n", to_json(runtime->stats()).c_str());
  return 0;
}
