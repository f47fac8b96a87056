#include "train/loop/training_run.h"

#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <utility>

#include "checkpoint/manifest.h"
#include "data/learning_rate.h"
#include "journal/run_journal.h"
#include "train/files/model_directory.h"
#include "train/loop/run_checkpoint.h"

namespace bottomless::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

struct SavedPlace {
  uint64_t tokens = 0;
  data::Position data;
};

uint64_t count_in(const json& from, const char* name) {
  const json& count = from.at(name);
  if (count.is_number_unsigned()) return count.get<uint64_t>();
  throw json::other_error::create(501, std::string("'") + name + "' is no count: " + count.dump(),
                                  &from);
}

// Throws json::exception where a field is missing or of another type.
SavedPlace place_in(const json& extra) {
  const json& data = extra.at("data");
  return {count_in(extra, "tokens"),
          {count_in(data, "seed"), count_in(data, "epoch"), count_in(data, "row")}};
}

}  // namespace

NamedTensors TrainingRun::kept_parameters() const {
  NamedTensors tensors;
  if (adapters_ != nullptr) {
    for (NamedTensor& named : adapters_->parameters())
      tensors.push_back({"model." + named.name, named.tensor});
  } else {
    for (const auto& named : model_->named_parameters())
      tensors.push_back({"model." + named.key(), named.value()});
  }
  return tensors;
}

Result<void> TrainingRun::save_checkpoint() {
  set_phase("writing the checkpoint");
  const data::Position& at = loader_->position();
  const Result<std::string> config = to_json(config_, dtype_of(options_.precision).value());
  if (!config.ok()) return config.error();
  json extra = {{"settings", fixed_settings()},
                {"data", {{"seed", at.seed}, {"epoch", at.epoch}, {"row", at.row}}},
                {"steps", steps_},
                {"tokens", trained_tokens_},
                {"config", config.value()},
                {"tokenizer", std::filesystem::absolute(tokenizer_directory_).string()}};
  if (adapters_ != nullptr) {
    extra["lora"] = {{"base", std::filesystem::absolute(model_in(options_.model)).string()},
                     {"rank", adapters_->options().rank},
                     {"alpha", adapters_->options().alpha},
                     {"targets", adapters_->options().targets}};
  }
  return updates_->save(directory_.checkpoint(), step_, kept_parameters(), extra);
}

// Every field that resume() will want is looked at here, so that all ranks agree on what is wrong with it.
Result<SavedRun> TrainingRun::saved_run() const try {
  Result<SavedRun> saved = read_run(directory_.checkpoint());
  if (!saved.ok()) {
    if (saved.error().code != Code::not_found) return saved.error();
    return Error{Code::not_found, "resume the run in '" + directory_.path.string() +
                                      "': it has no checkpoint; begin it without --resume"};
  }
  const json settings = fixed_settings();
  for (const auto& [name, value] : settings.items()) {
    const json before = saved.value().extra.at("settings").value(name, json());
    if (before != value) {
      return Error{Code::invalid_argument, "resume the run in '" + directory_.path.string() +
                                               "': it was begun with " + name + " = " +
                                               before.dump() + ", and now it is " + value.dump() +
                                               "; give the same options as then"};
    }
  }
  (void)place_in(saved.value().extra);
  return saved;
} catch (const json::exception& error) {
  return Error{Code::corrupt, "resume the run in '" + directory_.path.string() +
                                  "': what its checkpoint says of the run cannot be read (" +
                                  error.what() + "); the file is corrupt: begin anew"};
}

// A checkpoint that is damaged is not the last one.
Error TrainingRun::with_way_back(Error error) const {
  if (error.code == Code::invalid_argument || error.code == Code::not_found) return error;
  const fs::path directory = directory_.checkpoint();
  const Result<Manifest> before = load_manifest(*files_, directory, kPreviousManifestName);
  if (!before.ok()) return error;
  error.message += "; the checkpoint before it, of step " + std::to_string(before.value().step) +
                   ", is there: mv '" + (directory / kPreviousManifestName).string() + "' '" +
                   (directory / kManifestName).string() + "', then --resume goes on from it";
  return error;
}

Result<void> TrainingRun::resume() {
  const Result<SavedRun> saved = saved_run();
  if (Result<void> agreed =
          ranks_.agree(saved.ok() ? Result<void>() : with_way_back(saved.error()));
      !agreed.ok())
    return agreed;
  if (Result<void> read =
          updates_->load(directory_.checkpoint(), saved.value().tensors, kept_parameters());
      !read.ok())
    return with_way_back(read.error());
  const SavedPlace place = place_in(saved.value().extra);
  step_ = saved.value().step;
  trained_tokens_ = place.tokens;
  Result<data::Loader> loader = data::Loader::start(*rows_, place.data, ranks_.share());
  if (!loader.ok()) return loader.error();
  loader_ = std::move(loader).value();
  say("resuming after step " + std::to_string(step_));
  return {};
}

StepMetrics TrainingRun::metrics_of(const StepOutcome& outcome, double rate, double seconds) {
  StepMetrics metrics;
  metrics.step = step_;
  metrics.time = now();
  metrics.seconds = seconds;
  metrics.tokens = trained_tokens_;
  metrics.epochs = loader_->epochs();
  metrics.loss = outcome.loss;
  metrics.learning_rate = rate;
  metrics.gradient_norm = outcome.gradient_norm;
  metrics.tokens_per_second = static_cast<double>(outcome.tokens) / seconds;
  if (estimate_.seconds > 0) metrics.hardware_share = step_floor_.share_of(seconds);
  if (const std::optional<Bytes> received = updates_->received())
    metrics.received = static_cast<double>(*received);
  if (runtime_) {
    const Stats stats = runtime_->stats();
    for (const auto& [kind, bytes] : stats.resident_bytes) metrics.memory += bytes;
    metrics.memory_limit = stats.limit_bytes;
    metrics.read = stats.read_bytes;
    metrics.written = stats.written_bytes;
    metrics.disk = stats.disk_bytes;
    metrics.disk_limit = options_.granted.disk_limit.value_or(0);
  }
  return metrics;
}

void TrainingRun::mark_step() {
  if (!runtime_) return;
  updates_->label(*runtime_);
  runtime_->step();
}

// Without attention, of which a kernel may leave out what is masked: this much it has computed for certain.
void TrainingRun::raise_processor_speed() const {
  if (step_floor_.seconds() < estimate_.computing_seconds)
    processor_->reached(estimate_.products / step_floor_.seconds());
}

bool TrainingRun::is_told_to_stop(const Interruption& interruption) {
  const int here = interruption.requested();
  const std::vector<double> told =
      ranks_.sum({here == SIGINT ? 1.0 : 0.0, here == SIGTERM ? 1.0 : 0.0});
  if (told[0] > 0) stopped_by_ = SIGINT;
  if (told[1] > 0) stopped_by_ = SIGTERM;
  return stopped_by_ != 0;
}

Result<void> TrainingRun::run() {
  Trainer trainer(*model_, *updates_, ranks_,
                  {.rows = options_.batch,
                   .micro_batches = options_.accumulate,
                   .documents_are_apart = rows_->summary().samples > 0},
                  options_.seed);
  const data::LearningRate schedule{
      .peak = options_.rate,
      .warm_up_steps = static_cast<uint64_t>(
          options_.warm_up.value_or(std::llround(std::ceil(0.03 * static_cast<double>(steps_))))),
      .steps = steps_,
      .decay = data::parse_decay(options_.schedule).value(),
      .final_ratio = options_.final_share};
  // Who sees the journal begin may send a signal to any rank.
  Interruption interruption(ranks_.is_first() ? fileno(stream_) : -1);
  if (step_ > 0) interruption.saved(step_);
  if (Result<void> ready = ranks_.agree({}); !ready.ok()) return ready;
  std::optional<journal::RunJournal> journal;  // of the first rank
  if (Result<void> begun = ranks_.agree(begin_journal(journal)); !begun.ok()) return begun;
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t first = step_;
  uint64_t saved = step_;
  auto saved_at = begin;
  while (step_ < steps_ && !is_told_to_stop(interruption)) {
    set_phase("training");
    const double rate = data::rate_at(schedule, step_);
    const auto start = std::chrono::steady_clock::now();
    const StepOutcome outcome = trainer.step(step_, rate, *loader_);
    mark_step();
    ++step_;
    trained_tokens_ += static_cast<uint64_t>(outcome.tokens);
    trained_targets_ += static_cast<uint64_t>(outcome.targets);
    last_ = metrics_of(outcome, rate, seconds_since(start));
    const auto is_time = [this](int64_t every) {
      return every > 0 && step_ % static_cast<uint64_t>(every) == 0;
    };
    if (evaluation_rows_ && (step_ == steps_ || is_time(options_.evaluate_every))) {
      set_phase("evaluating");
      last_->evaluation_loss = trainer.evaluate(*evaluation_rows_);
    }
    if (Result<void> recorded = ranks_.agree(journal ? journal->record(*last_) : Result<void>());
        !recorded.ok())
      return recorded;
    if (progress_) progress_->update({*last_, steps_, step_ - first, seconds_since(begin)});
    if (!std::isfinite(outcome.loss)) {
      return Error{
          Code::invalid_argument,
          "train: the loss of step " + std::to_string(step_) +
              " is not a number; the checkpoint before it is whole: try a lower --lr, and --clip"};
    }
    const bool is_due = ranks_.is_first() && options_.save_minutes > 0 &&
                        seconds_since(saved_at) >= 60 * options_.save_minutes;
    if (is_time(options_.save_every) || ranks_.any(is_due)) {
      if (Result<void> done = ranks_.agree(save_checkpoint()); !done.ok()) return done;
      saved = step_;
      saved_at = std::chrono::steady_clock::now();
      interruption.saved(step_);
    }
  }
  raise_processor_speed();
  if (saved != step_) {
    if (Result<void> done = ranks_.agree(save_checkpoint()); !done.ok()) return done;
  }
  const bool writes = ranks_.is_first();
  if (Result<void> done = ranks_.agree(writes ? journal->write_page() : Result<void>()); !done.ok())
    return done;
  if (runtime_) stats_ = ranks_.all_gather(to_json(runtime_->stats()));
  if (step_ < steps_) {
    say(step_ == 0 ? "stopped before the first step: there is nothing to resume, start it again"
                   : "stopped after step " + std::to_string(step_) + " of " +
                         std::to_string(steps_) + "; --resume goes on");
    return {};
  }
  return ranks_.agree(writes ? write_model() : Result<void>());
}

Result<void> TrainingRun::begin_journal(std::optional<journal::RunJournal>& journal) {
  if (!ranks_.is_first()) return {};
  Result<journal::RunJournal> begun = journal::RunJournal::begin(
      *files_, {directory_.path, options_.model, /*resumed_step=*/step_, now()});
  if (!begun.ok()) return begun.error();
  journal.emplace(std::move(begun).value());
  return {};
}

Result<void> TrainingRun::write_model() {
  constexpr const char* kWriting = "writing the model";
  set_phase(kWriting);
  const SaveOptions options{
      .dtype = dtype_of(options_.precision).value(),
      .tokenizer = tokenizer_directory_,
      .progress = [this](const std::string& tensor) { set_phase(kWriting, tensor); }};
  if (adapters_ != nullptr) {
    if (Result<void> done = adapters_->write(directory_.adapter(), options_.model); !done.ok())
      return done;
    say("adapters: " + directory_.adapter().string());
    if (!options_.merge) return {};
    adapters_->merge();
  }
  if (Result<void> done = save_model(*model_, directory_.model(), options); !done.ok()) return done;
  say("model: " + directory_.model().string());
  say("report: " + directory_.report().string());
  return {};
}

}  // namespace bottomless::train
