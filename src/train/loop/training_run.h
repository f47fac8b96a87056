// `bottomless train`, start to end: opens what was named, says what it will take, trains, and writes what came of it.
// Started on several ranks, it shards the model over them; the first one writes, and speaks for all.
// Thread-safety: one thread; one run at a time in a process.
#pragma once
#include <bottomless/result.h>
#include <bottomless/torch.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/cache.h"
#include "data/loader.h"
#include "data/rows.h"
#include "journal/run_journal.h"
#include "journal/training_progress.h"
#include "plan/run_estimate.h"
#include "plan/speed_measurement.h"
#include "report/metrics.h"
#include "tokenizers/tokenizer.h"
#include "train/loop/interruption.h"
#include "train/loop/resident_peaks.h"
#include "train/loop/run_checkpoint.h"
#include "train/loop/trainer.h"
#include "train/models/lora.h"
#include "train/setup/machine_speed.h"
#include "train/setup/ranks.h"
#include "train/setup/run_directory.h"
#include "train/setup/train_options.h"

namespace bottomless::train {

class TrainingRun {
 public:
  // People are told on `stream` (standard error).
  TrainingRun(TrainOptions options, std::FILE* stream);

  // One after the other; a failure leaves the directory as it was after the last checkpoint.
  Result<void> prepare();
  Result<void> run();

  // What the run was and came to, for --json.
  nlohmann::json outcome() const;
  bool speaks() const { return ranks_.is_first(); }
  // The signal that has stopped it, here or on another rank, before its last step; 0: none did.
  int stopped_by() const { return stopped_by_; }

 private:
  struct Part {
    const char* what;  // for ranks that wait
    Result<void> (TrainingRun::*work)();
  };
  Result<void> prepare_here();
  // The first rank makes what the others then find.
  Result<void> one_then_all(const Part& part);
  Result<void> all_do(const Part& part);
  // Tells ranks that wait what this one is at. `how_far`: in that.
  void set_phase(const std::string& what, const std::string& how_far = "");
  Result<void> open_tokenizer();
  Result<void> open_data();
  Result<void> open_model();
  Result<void> choose_parameters();
  Result<SavedRun> saved_run() const;  // that may be continued so
  Result<void> resume();
  Error with_way_back(Error error) const;
  Result<void> tell_estimate();

  NamedTensors kept_parameters() const;
  nlohmann::json fixed_settings() const;  // what must not change when a run goes on
  Result<void> save_checkpoint();
  bool is_told_to_stop(const Interruption& interruption);  // all ranks agree
  Result<void> write_model();
  Result<void> begin_journal(std::optional<journal::RunJournal>& journal);

  StepMetrics metrics_of(const StepOutcome& outcome, double rate, double seconds);
  void mark_step();
  void raise_processor_speed() const;  // where a step was faster than it allows
  void say(const std::string& text);
  int64_t rows_of_step() const { return options_.batch * options_.accumulate * ranks_.count(); }

  TrainOptions options_;
  const RunDirectory directory_;
  Ranks ranks_;
  std::FILE* const stream_;
  std::optional<journal::TrainingProgress> progress_;  // of the first rank
  std::optional<Runtime> runtime_;  // the first to begin and the last to end of what has tensors

  const std::unique_ptr<Files> files_ = make_files();
  ModelConfig config_;
  std::filesystem::path tokenizer_directory_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<data::Encoder> encoder_;
  std::optional<data::TokenCache> tokens_;
  std::optional<data::Rows> rows_;
  std::optional<data::Rows> evaluation_rows_;
  std::optional<data::Loader> loader_;

  std::shared_ptr<Model> model_;
  std::unique_ptr<Adapters> adapters_;
  std::unique_ptr<Updates> updates_;

  uint64_t steps_ = 0;  // of the whole run
  uint64_t step_ = 0;   // done
  uint64_t trained_tokens_ = 0;
  uint64_t trained_targets_ = 0;  // of these, that counted; since this process began
  uint64_t trained_parameters_ = 0;
  ResidentPeaks resident_;
  RunEstimate estimate_;
  StepFloor step_floor_;
  std::optional<ProcessorSpeed> processor_;
  int stopped_by_ = 0;
  std::optional<StepMetrics> last_;
  std::vector<std::string> stats_;  // of each rank, as JSON; when the run is over
};

}  // namespace bottomless::train
