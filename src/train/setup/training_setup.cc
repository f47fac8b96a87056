// How a run comes to everything it needs, up to the first step.
#include <bottomless/bytes.h>
#include <malloc.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "os/started_rank.h"
#include "report/estimate_table.h"
#include "tokenizers/bpe/bpe_trainer.h"
#include "torch/runtime/session.h"
#include "train/files/model_directory.h"
#include "train/loop/training_run.h"
#include "train/models/presets.h"
#include "train/setup/machine_speed.h"
#include "train/setup/network_speed.h"
#include "train/setup/token_encoder.h"
#include "train/updates/local_updates.h"
#include "train/updates/sharded_updates.h"

namespace bottomless::train {
namespace {

namespace fs = std::filesystem;

// What a rank is at.
constexpr const char* kTokenizer = "opening or training the tokenizer";
constexpr const char* kData = "opening or tokenising the data";
constexpr const char* kModel = "loading the model";

// Every step makes tensors of the same sizes. Given back to the kernel in between, their pages are cleared anew each time: with
// GPT-2 124M that takes 5 % of a step.
void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
}

bool is_preset(const std::string& name) {
  const std::vector<std::string> names = preset_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool contains_any(const std::string& name, const std::vector<std::string>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return name.find(part) != std::string::npos; });
}

// By --train and --freeze.
bool is_chosen(const std::string& parameter, const TrainOptions& options) {
  return (options.train_only.empty() || contains_any(parameter, options.train_only)) &&
         !contains_any(parameter, options.freeze);
}

bool on_same_device(const fs::path& a, const fs::path& b) {
  struct stat of_a {
  }, of_b{};
  return stat(a.c_str(), &of_a) == 0 && stat(b.c_str(), &of_b) == 0 && of_a.st_dev == of_b.st_dev;
}

// What of a parameter takes no part in a token's products.
uint64_t idle_elements(const ParameterSpec& spec, uint64_t elements, const ModelConfig& config) {
  const auto is_in = [&](const char* part) { return spec.name.find(part) != std::string::npos; };
  if (is_in("wpe.")) return elements;
  if (is_in("wte.") || is_in("embed_tokens.")) return config.tied ? 0 : elements;
  if (!is_in(".experts.")) return 0;
  const auto all = static_cast<uint64_t>(config.experts);
  return elements / all * (all - static_cast<uint64_t>(config.experts_per_token));
}

double state_bytes(const UpdateOptions& options, at::ScalarType dtype) {
  const double each = options.states == optim::States::float32    ? 4
                      : options.states == optim::States::bfloat16 ? 2
                                                                  : 1 + 4.0 / 256;
  const double states = options.optimizer.starts_with("adam") ? 2
                        : options.optimizer == "adafactor"    ? 0
                                                              : 1;
  return states * each + (dtype == at::kFloat ? 0 : 4);
}

}  // namespace

TrainingRun::TrainingRun(TrainOptions options, std::FILE* stream)
    : options_(std::move(options)), directory_{options_.out}, stream_(stream) {}

void TrainingRun::say(const std::string& text) {
  if (progress_) progress_->say(text);
}

void TrainingRun::set_phase(const std::string& what, const std::string& how_far) {
  const uint64_t begun = std::min(step_ + 1, std::max<uint64_t>(steps_, 1));
  const std::string when = (model_ == nullptr ? "before step " : "step ") + std::to_string(begun);
  ranks_.set_phase(when + ", " + what + (how_far.empty() ? "" : " (" + how_far + ")"));
}

Result<void> TrainingRun::prepare() {
  Result<Ranks> ranks = Ranks::join(std::chrono::seconds(options_.deadline_seconds));
  if (!ranks.ok()) return ranks.error();
  ranks_ = std::move(ranks).value();
  if (ranks_.is_first()) progress_.emplace(stream_);
  if (Result<void> done = all_do({"beginning", &TrainingRun::prepare_here}); !done.ok())
    return done;
  for (const Part& part :
       {Part{kTokenizer, &TrainingRun::open_tokenizer}, Part{kData, &TrainingRun::open_data}}) {
    if (Result<void> done = one_then_all(part); !done.ok()) return done;
  }
  if (Result<void> done = all_do({"measuring the machine", &TrainingRun::tell_estimate});
      !done.ok() || options_.dry_run)
    return done;
  for (const Part& part : {Part{kModel, &TrainingRun::open_model},
                           Part{"handing out shares", &TrainingRun::choose_parameters}}) {
    if (Result<void> done = all_do(part); !done.ok()) return done;
  }
  return options_.resume ? resume() : Result<void>();
}

Result<void> TrainingRun::all_do(const Part& part) {
  set_phase(part.what);
  const Result<void> done = (this->*part.work)();
  set_phase(std::string("done with ") + part.what);
  return ranks_.agree(done);
}

Result<void> TrainingRun::one_then_all(const Part& part) {
  set_phase((ranks_.is_first() ? "" : "waiting for rank 0: ") + std::string(part.what));
  if (Result<void> done = ranks_.agree(ranks_.is_first() ? (this->*part.work)() : Result<void>());
      !done.ok())
    return done;
  return ranks_.is_first() ? ranks_.agree({}) : all_do(part);
}

Result<void> TrainingRun::prepare_here() {
  std::error_code failed;
  fs::create_directories(directory_.path, failed);
  if (failed) {
    return Error{Code::io, "make the directory '" + directory_.path.string() +
                               "': " + failed.message() + "; name another one as --out"};
  }
  if (!options_.resume && fs::exists(directory_.checkpoint() / "manifest.json")) {
    return Error{Code::invalid_argument, "train into '" + directory_.path.string() +
                                             "': there is a run already; go on with --resume, or "
                                             "name another directory as --out"};
  }
  if (!is_preset(options_.model) && !fs::is_directory(options_.model, failed)) {
    return Error{Code::not_found,
                 "open the model '" + options_.model +
                     "': it is neither a directory nor a preset; see 'bottomless train --help'"};
  }
  for (fs::path& directory : options_.granted.disk) {
    Result<std::string> of_rank = with_rank(directory.string());
    if (!of_rank.ok()) return of_rank.error();
    directory = std::move(of_rank).value();
  }
  // Shares are kept under a limit, whatever it is.
  if (ranks_.count() > 1 && !options_.granted.memory) options_.granted.memory = automatic_memory();
  resident_.limit_begins();
  if (const auto wanted = runtime_options(options_.granted, directory_.path)) {
    options_.granted.disk = wanted->disk;
    runtime_.emplace(*wanted);
    if (Result<void> charged = ranks_.charge_to_limit(); !charged.ok()) return charged;
  } else {
    keep_freed_memory();
  }
  torch::manual_seed(options_.seed);
  return {};
}

Result<void> TrainingRun::open_tokenizer() {
  tokenizer_directory_ = options_.tokenizer;
  if (!is_preset(options_.model)) tokenizer_directory_ = model_in(options_.model);
  if (tokenizer_directory_.empty()) {
    tokenizer_directory_ = directory_.tokenizer();
    if (!fs::exists(tokenizer_directory_ / "tokenizer.json")) {
      const Result<std::vector<fs::path>> files = data_files(options_.data);
      if (!files.ok()) return files.error();
      fs::create_directories(tokenizer_directory_);
      say("training a tokenizer of " + std::to_string(options_.vocabulary) + " tokens on the data");
      text::BpeTraining training;
      training.vocabulary = options_.vocabulary;
      training.progress = [this](double share) {
        set_phase(kTokenizer, std::to_string(std::lround(100 * share)) + " %");
      };
      if (Result<void> trained =
              text::train_byte_level_bpe(files.value(), training, tokenizer_directory_);
          !trained.ok())
        return trained;
    }
  }
  Result<std::unique_ptr<text::Tokenizer>> tokenizer = text::open_tokenizer(tokenizer_directory_);
  if (!tokenizer.ok()) return tokenizer.error();
  tokenizer_ = std::move(tokenizer).value();
  Result<std::unique_ptr<data::Encoder>> encoder = make_encoder(*tokenizer_, tokenizer_directory_);
  if (!encoder.ok()) return encoder.error();
  encoder_ = std::move(encoder).value();

  Result<ModelConfig> config = is_preset(options_.model)
                                   ? preset(options_.model, tokenizer_->vocabulary_size())
                                   : load_config(model_in(options_.model));
  if (!config.ok()) return config.error();
  config_ = std::move(config).value();
  if (options_.dropout)
    config_.embedding_dropout = config_.attention_dropout = config_.residual_dropout =
        *options_.dropout;
  if (tokenizer_->vocabulary_size() > config_.vocabulary) {
    return Error{Code::invalid_argument,
                 "use the tokenizer in '" + tokenizer_directory_.string() + "': it has " +
                     std::to_string(tokenizer_->vocabulary_size()) +
                     " tokens, and the model knows " + std::to_string(config_.vocabulary) +
                     "; they do not belong together: name the right --model or --tokenizer"};
  }
  if (options_.length == 0) options_.length = std::min<int64_t>(1024, config_.positions);
  if (options_.length > config_.positions) {
    return Error{Code::invalid_argument, "train with --length " + std::to_string(options_.length) +
                                             ": the model takes at most " +
                                             std::to_string(config_.positions)};
  }
  return {};
}

Result<void> TrainingRun::open_data() {
  Result<std::vector<fs::path>> files = data_files(options_.data);
  if (!files.ok()) return files.error();
  std::error_code failed;
  fs::create_directories(directory_.tokens(), failed);
  data::CacheRequest request{.data = std::move(files).value(), .directory = directory_.tokens()};
  request.options.threads = std::max(1u, std::thread::hardware_concurrency());
  request.options.progress = [this](Bytes done) {
    set_phase(kData, format_bytes(done) + " so far");
  };
  Result<data::TokenCache> tokens = data::TokenCache::open(*files_, request, *encoder_);
  if (!tokens.ok()) return tokens.error();
  tokens_ = std::move(tokens).value();

  data::PackingOptions packing{.length = static_cast<uint64_t>(options_.length),
                               .seed = options_.seed};
  if (options_.evaluation_share > 0) {
    const Result<uint64_t> documents =
        data::evaluation_documents(tokens_->tokens().table().documents, options_.evaluation_share);
    if (!documents.ok()) return documents.error();
    packing.evaluation_documents = documents.value();
    evaluation_rows_.emplace(tokens_->tokens(), packing, data::Split::evaluation);
  }
  rows_.emplace(tokens_->tokens(), packing, data::Split::training);
  say("data: " + text_of(rows_->summary(), packing.length));
  Result<data::Loader> loader =
      data::Loader::start(*rows_, {.seed = options_.seed}, ranks_.share());
  if (!loader.ok()) return loader.error();
  loader_ = std::move(loader).value();

  const auto a_step = static_cast<double>(rows_of_step());
  steps_ = options_.steps > 0 ? static_cast<uint64_t>(options_.steps)
                              : static_cast<uint64_t>(std::ceil(
                                    options_.epochs * static_cast<double>(rows_->size()) / a_step));
  return {};
}

Result<void> TrainingRun::tell_estimate() {
  const at::ScalarType dtype = dtype_of(options_.precision).value();
  const double network_rate = measure_network(ranks_);  // first: all ranks come to this
  const Bytes memory = options_.granted.memory.value_or(automatic_memory());
  processor_.emplace(dtype, memory);
  Result<RunMachine> measured = measure_machine(options_.granted.disk, *processor_, memory);
  if (!measured.ok()) return measured.error();
  RunMachine machine = measured.value();
  machine.network_rate = network_rate;
  if (options_.granted.disk_limit)
    machine.disk_free = std::min(machine.disk_free, *options_.granted.disk_limit);

  std::error_code unknown;
  machine.checkpoints_free = fs::space(directory_.path, unknown).available;
  machine.checkpoints_share_disk =
      std::any_of(options_.granted.disk.begin(), options_.granted.disk.end(),
                  [this](const fs::path& disk) { return on_same_device(disk, directory_.path); });

  RunShape shape;
  std::map<int64_t, uint64_t> layers;
  for (const ParameterSpec& spec : parameters_of(config_)) {
    uint64_t elements = 1;
    for (const int64_t size : spec.shape) elements *= static_cast<uint64_t>(size);
    shape.parameters += elements;
    layers[layer_of(spec.name)] += elements;
    const bool is_trained = options_.lora.rank == 0 && is_chosen(spec.name, options_);
    if (is_trained) shape.trained += elements;
    const uint64_t idle = idle_elements(spec, elements, config_);
    shape.idle += idle;
    if (is_trained) shape.idle_trained += idle;
    if (runtime_ && elements * c10::elementSize(dtype) < kLeastManaged) {
      shape.small += elements;
      if (is_trained) shape.small_trained += elements;
    }
  }
  if (options_.lora.rank > 0) {
    const uint64_t adapters = count_adapter_parameters(config_, options_.lora);
    shape.parameters += adapters;
    shape.trained = adapters;
    if (runtime_) {  // each is narrow
      shape.small += adapters;
      shape.small_trained = adapters;
    }
  }
  shape.saved = options_.lora.rank > 0 ? shape.trained : shape.parameters;
  if (runtime_) shape.own_memory = runtime_->stats().overhead_bytes;
  for (const auto& [layer, elements] : layers)
    shape.largest_layer = std::max(shape.largest_layer, elements);
  shape.layers = static_cast<uint64_t>(config_.layers);
  shape.hidden = static_cast<uint64_t>(config_.width);
  shape.vocabulary = static_cast<uint64_t>(config_.vocabulary);
  shape.parameter_bytes = shape.gradient_bytes = shape.activation_bytes =
      static_cast<unsigned>(c10::elementSize(dtype));
  shape.state_bytes = state_bytes(options_.update, dtype);
  shape.gradients = options_.update.max_norm > 0 || ranks_.count() > 1 ? Gradients::kept
                                                                       : Gradients::used_up_at_once;
  shape.rows = static_cast<uint64_t>(options_.batch);
  shape.micro_batches = static_cast<uint64_t>(options_.accumulate);
  shape.length = static_cast<uint64_t>(options_.length);
  shape.state_share = 1.0 / ranks_.count();
  shape.ranks = static_cast<unsigned>(ranks_.count());
  shape.gathered = options_.stage >= 3 ? Gathered::given_up : Gathered::kept;
  if (options_.stage >= 2) shape.gradient_share = shape.state_share;
  if (options_.stage >= 3) shape.parameter_share = shape.state_share;
  trained_parameters_ = shape.trained;
  estimate_ = estimate(shape, machine);
  step_floor_ = StepFloor(estimate_.seconds);
  say(table_of(estimate_, shape, machine));
  if (!estimate_.can_run())
    return Error{Code::no_memory, "train: " + verdict_of(estimate_, shape, machine)};
  return {};
}

Result<void> TrainingRun::open_model() {
  const at::ScalarType dtype = dtype_of(options_.precision).value();
  if (!ranks_.is_first()) {
    model_ = unfilled_model(config_, dtype);
    return {};
  }
  const Progress progress = [this](const std::string& tensor) { set_phase(kModel, tensor); };
  Result<std::shared_ptr<Model>> model =
      is_preset(options_.model)
          ? new_model(config_, {.seed = options_.seed, .dtype = dtype, .progress = progress})
          : load_model(model_in(options_.model),
                       {.dtype = dtype, .dropout = options_.dropout, .progress = progress});
  if (!model.ok()) return model.error();
  model_ = std::move(model).value();
  resident_.model_is_loaded();
  return {};
}

Result<void> TrainingRun::choose_parameters() {
  NamedTensors trained;
  if (options_.lora.rank > 0) {
    Result<std::unique_ptr<Adapters>> adapters =
        Adapters::attach(*model_, options_.lora, options_.seed);
    if (!adapters.ok()) return adapters.error();
    adapters_ = std::move(adapters).value();
    trained = adapters_->parameters();
  } else {
    for (auto& named : model_->named_parameters()) {
      const bool wanted = is_chosen(named.key(), options_);
      named.value().requires_grad_(wanted);
      if (wanted) trained.push_back({named.key(), named.value()});
    }
  }
  if (trained.empty()) {
    return Error{Code::invalid_argument,
                 "train: --train and --freeze leave no parameter; their words must be parts of "
                 "names such as '" +
                     model_->named_parameters()[0].key() + "'"};
  }
  if (ranks_.count() == 1) {
    updates_ = std::make_unique<LocalUpdates>(std::move(trained), options_.update);
  } else {
    updates_ = std::make_unique<ShardedUpdates>(*model_, std::move(trained), options_.update,
                                                ranks_, options_.stage);
  }
  return {};
}

nlohmann::json TrainingRun::fixed_settings() const {
  return {{"model", options_.model},
          {"--length", options_.length},
          {"rows of a step (--batch, --accumulate, ranks)", rows_of_step()},
          {"--seed", options_.seed},
          {"--precision", options_.precision},
          {"--optimizer", options_.update.optimizer},
          {"--states", static_cast<int>(options_.update.states)},
          {"--lora", options_.lora.rank},
          {"--train", options_.train_only},
          {"--freeze", options_.freeze},
          {"tokens of the data", tokens_->tokens().size()}};
}

nlohmann::json TrainingRun::outcome() const {
  nlohmann::json outcome = {{"steps", step_},
                            {"tokens", trained_tokens_},
                            {"targets", trained_targets_},
                            {"parameters", count_parameters(config_)},
                            {"trained", trained_parameters_},
                            {"resident", resident_.to_json()},
                            {"out", directory_.path.string()}};
  outcome["estimate"] = {{"least_memory_bytes", estimate_.least_memory},
                         {"read_bytes", estimate_.all.read},
                         {"written_bytes", estimate_.all.written},
                         {"received_bytes", estimate_.received},
                         {"checkpoint_bytes", estimate_.checkpoint},
                         {"network_seconds", estimate_.network_seconds},
                         {"computing_seconds", estimate_.computing_seconds},
                         {"computing_seconds_most", estimate_.computing_seconds_most}};
  if (last_) outcome["last"] = nlohmann::json::parse(line_of(*last_));
  if (runtime_) outcome["stats"] = nlohmann::json::parse(to_json(runtime_->stats()));
  if (ranks_.count() > 1) {
    for (const std::string& stats : stats_)
      outcome["ranks"].push_back(nlohmann::json::parse(stats));
  }
  return outcome;
}

}  // namespace bottomless::train
