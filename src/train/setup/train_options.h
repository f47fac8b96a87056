// What `bottomless train` was asked to do.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/models/lora.h"
#include "train/setup/granted_options.h"
#include "train/updates/updates.h"

namespace bottomless::train {

struct TrainOptions {
  // What, on what, where.
  std::string model;  // a directory, or the name of a preset
  std::filesystem::path tokenizer;
  int64_t vocabulary = 16384;  // of a tokenizer that is trained on the data
  std::vector<std::filesystem::path> data;
  std::filesystem::path out;
  bool resume = false;

  // Inside what.
  GrantedOptions granted;
  int stage = 3;  // where there are several ranks: see ShardOptions
  int64_t deadline_seconds = 600;

  // How long and how much at once.
  int64_t steps = 0;  // 0: by epochs
  double epochs = 1;
  int64_t length = 0;      // tokens of a row; 0: 1024, or what the model takes if that is less
  int64_t batch = 1;       // rows of a micro-batch
  int64_t accumulate = 1;  // micro-batches of a step
  uint64_t seed = 0;
  std::string precision = "float32";
  std::optional<double> dropout;

  // What is changed, and how.
  UpdateOptions update;
  double rate = 1e-4;
  std::string schedule = "cosine";
  std::optional<int64_t> warm_up;  // steps; none: 3 % of them
  double final_share = 0.1;
  std::vector<std::string> train_only;  // parts of names; empty: all
  std::vector<std::string> freeze;
  LoraOptions lora{.rank = 0};  // 0: the model itself is trained
  bool merge = false;           // adapters are added to the model that is written

  // What is written when.
  double evaluation_share = 0;
  int64_t evaluate_every = 0;  // 0: at the end
  int64_t save_every = 0;      // steps; 0: by time alone
  double save_minutes = 30;    // 0: never by time
  bool dry_run = false;
  bool json = false;
};

// Adds the options to the parser, which fills `options` when it parses.
void add_train_options(CLI::App& app, TrainOptions& options);

}  // namespace bottomless::train
