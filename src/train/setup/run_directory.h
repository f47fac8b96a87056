// What a run keeps in its --out directory.
//   model/          the trained model, for transformers, `generate`, or another run
//   adapter/        instead, or beside it: adapters for PEFT
//   checkpoint/     all that is needed to go on (docs/checkpoints.md)
//   tokenizer/      one that was trained on the data
//   tokens/         the data as tokens
//   metrics.jsonl, events.out.tfevents..., report.html
// Thread-safety: values and free functions.
#pragma once
#include <bottomless/result.h>

#include <filesystem>
#include <vector>

namespace bottomless::train {

struct RunDirectory {
  std::filesystem::path path;

  std::filesystem::path model() const { return path / "model"; }
  std::filesystem::path adapter() const { return path / "adapter"; }
  std::filesystem::path checkpoint() const { return path / "checkpoint"; }
  std::filesystem::path tokenizer() const { return path / "tokenizer"; }
  std::filesystem::path tokens() const { return path / "tokens"; }
  std::filesystem::path report() const { return path / "report.html"; }
};

// A directory that a model can be read from: the one that was named, or the model in a run's.
std::filesystem::path model_in(const std::filesystem::path& directory);

// Text and .jsonl files, in order: a directory stands for those in it and below. Errors name what is missing or empty.
Result<std::vector<std::filesystem::path>> data_files(
    const std::vector<std::filesystem::path>& named);

}  // namespace bottomless::train
