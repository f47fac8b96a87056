#include <bottomless/torch.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "torch/checkpoint/checkpoint_reader.h"
#include "torch/errors.h"
#include "train/commands/commands.h"
#include "train/files/model_directory.h"
#include "train/loop/run_checkpoint.h"
#include "train/models/lora.h"
#include "train/models/parameter_types.h"
#include "train/models/presets.h"
#include "train/setup/granted_options.h"
#include "train/setup/run_directory.h"

namespace bottomless::train {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  fs::path from;
  fs::path out;
  fs::path config;
  std::string dtype = "float32";
  GrantedOptions granted;
};

// A checkpoint as the source of a model's parameters.
class CheckpointSource : public ParameterSource {
 public:
  explicit CheckpointSource(const fs::path& directory) : reader_(directory) {}

  torch::Tensor make(const ParameterSpec& spec) override {
    const std::string name = "model." + spec.name;
    const TensorEntry& entry = reader_.find(name);
    const std::vector<uint64_t> shape(spec.shape.begin(), spec.shape.end());
    const auto dtype = scalar_type(entry.dtype);
    if (entry.shape != shape || !dtype) {
      throw_error(
          {Code::corrupt, "export '" + name +
                              "': the checkpoint has it with another shape or type than the "
                              "configuration; name the right one with --config"});
    }
    const torch::Tensor parameter = torch::empty(spec.shape, *dtype);
    reader_.read_whole(name, parameter);
    return parameter;
  }

 private:
  CheckpointReader reader_;
};

// The checkpoint's directory: the one that was named, or the one in a run's.
fs::path checkpoint_in(const fs::path& directory) {
  const fs::path inside = RunDirectory{directory}.checkpoint();
  return fs::exists(inside / "manifest.json") ? inside : directory;
}

Result<ModelConfig> config_of(const ExportOptions& options, const SavedRun& saved,
                              const fs::path& directory) {
  if (!options.config.empty()) return load_config(options.config);
  if (const auto config = saved.extra.find("config"); config != saved.extra.end())
    return parse_config(config->get<std::string>(), directory.string());
  return Error{Code::not_found, "export '" + directory.string() +
                                    "': it does not say what model it is of; name a directory "
                                    "with its config.json by --config"};
}

Result<void> run(const ExportOptions& options) try {
  const fs::path directory = checkpoint_in(options.from);
  const Result<SavedRun> saved = read_run(directory);
  if (!saved.ok()) return saved.error();
  const Result<ModelConfig> config = config_of(options, saved.value(), directory);
  if (!config.ok()) return config.error();
  SaveOptions save{.dtype = *dtype_of(options.dtype)};
  save.tokenizer = options.config.empty() ? fs::path(saved.value().extra.value("tokenizer", ""))
                                          : options.config;

  std::optional<Runtime> runtime;
  if (const auto wanted = runtime_options(options.granted, fs::temp_directory_path()))
    runtime.emplace(*wanted);
  const torch::NoGradGuard no_grad;
  if (const auto lora = saved.value().extra.find("lora"); lora != saved.value().extra.end()) {
    Result<std::shared_ptr<Model>> model = load_model(lora->at("base").get<std::string>());
    if (!model.ok()) return model.error();
    Result<std::unique_ptr<Adapters>> adapters =
        Adapters::attach(*model.value(),
                         {.rank = lora->at("rank").get<int64_t>(),
                          .alpha = lora->at("alpha").get<double>(),
                          .targets = lora->at("targets").get<std::vector<std::string>>()},
                         0);
    if (!adapters.ok()) return adapters.error();
    NamedTensors tensors = adapters.value()->parameters();
    for (NamedTensor& named : tensors) named.name = "model." + named.name;
    if (Result<void> read = read_run_tensors(directory, tensors); !read.ok()) return read;
    adapters.value()->merge();
    return save_model(*model.value(), options.out, save);
  }
  CheckpointSource source(directory);
  return save_model(*make_model(config.value(), source), options.out, save);
} catch (const nlohmann::json::exception& error) {
  return Error{Code::corrupt, "export '" + options.from.string() +
                                  "': what its checkpoint says of the model cannot be read (" +
                                  error.what() +
                                  "); the file is corrupt: download or write it again"};
}

}  // namespace

std::function<int()> add_export(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  app.add_option("checkpoint", options->from, "Directory of a checkpoint, or of a run")->required();
  app.add_option("--out", options->out, "Directory for the model")->required();
  app.add_option("--config", options->config,
                 "Directory with config.json and tokenizer (default: what the checkpoint says)");
  app.add_option("--dtype", options->dtype, "Of the files")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "float64"}))
      ->capture_default_str();
  add_granted_options(app, options->granted);
  app.footer("Example: bottomless export run --out model --dtype bfloat16");
  return [options] {
    const Result<void> done = run(*options);
    if (!done.ok()) return tell(done.error());
    std::printf("%s\n", options->out.c_str());
    return kDone;
  };
}

}  // namespace bottomless::train
