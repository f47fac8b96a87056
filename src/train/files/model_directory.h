// A model as Hugging Face keeps it: a directory with config.json, the parameters in *.safetensors (with
// model.safetensors.index.json where there are several), and the files of its tokenizer.
// Thread-safety: free functions without state; one writer at a time for one directory.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "train/files/tensor_directory.h"
#include "train/files/tensor_progress.h"
#include "train/models/model.h"

namespace bottomless::train {

struct LoadOptions {
  std::optional<at::ScalarType> dtype;  // none: config.json's, or else that of the first tensor
  std::optional<double> dropout;        // none: config.json's
  Progress progress;
};

Result<ModelConfig> load_config(const std::filesystem::path& directory);

// The tensors in its files: names and shapes of all are those that the configuration asks for.
Result<TensorDirectory> open_tensors(Files& files, const std::filesystem::path& directory,
                                     const ModelConfig& config);

// Every tensor goes from its file to the parameter in pieces, one parameter after the other: under a Runtime's limit no more
// is in memory than that allows. Names and shapes of all are checked before the first is read.
Result<std::shared_ptr<Model>> load_model(const std::filesystem::path& directory,
                                          const LoadOptions& options = {});

struct SaveOptions {
  at::ScalarType dtype = at::kFloat;  // of the files
  Bytes most_bytes = 5'000'000'000;   // of the tensors in one file, unless one alone has more
  std::filesystem::path tokenizer;    // a directory whose tokenizer files are copied; empty: none
  Progress progress;
};

// Writes beside the directory, brings it to the disk and then puts it in place: `directory` is the old one or the new one,
// complete, at every moment. It may be a model's directory, which is replaced, or empty, or not there; its parent is.
// A directory with other files is refused.
Result<void> save_model(const Model& model, const std::filesystem::path& directory,
                        const SaveOptions& options = {});

}  // namespace bottomless::train
