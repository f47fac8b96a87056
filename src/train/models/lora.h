// Low-rank adapters (LoRA): beside a frozen matrix W two small ones that are trained, y = W x + (alpha / rank) B A x.
// Written and read in the format of PEFT.
// Thread-safety: one thread at a time.
// Lifetime: the model outlives its adapters; they end with the object.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/files.h"
#include "checkpoint/tensor_file_reader.h"
#include "train/models/layers.h"
#include "train/models/model.h"
#include "train/models/named_tensor.h"

namespace bottomless::train {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  // The last parts of modules' names, such as q_proj; empty: the projections of attention.
  std::vector<std::string> targets;
};

// Numbers in the adapters that attach() would make.
uint64_t count_adapter_parameters(const ModelConfig& config, const LoraOptions& options);

// The file of the adapters in a directory, when each is whole: a pair of matrices of the rank that the configuration names.
// Code::not_found: there are no adapters; Code::corrupt names what is not as it should be.
Result<TensorFileReader> open_adapters(Files& files, const std::filesystem::path& directory);

class Adapters {
 public:
  // Freezes the whole model and puts adapters beside all its linear layers of these names. They begin as nothing: B is
  // zero. Code::invalid_argument if no layer has one of the names.
  static Result<std::unique_ptr<Adapters>> attach(Model& model, LoraOptions options, uint64_t seed);
  // Those that PEFT or write() has written.
  static Result<std::unique_ptr<Adapters>> read(Model& model,
                                                const std::filesystem::path& directory);
  ~Adapters();
  Adapters(const Adapters&) = delete;
  Adapters& operator=(const Adapters&) = delete;

  const LoraOptions& options() const { return options_; }  // with the targets that were chosen
  // Their matrices, by PEFT's names.
  NamedTensors parameters() const;
  // A directory that PEFT loads; `base` is the model that they belong to. Written beside and renamed.
  Result<void> write(const std::filesystem::path& directory, const std::string& base) const;
  // Adds them to the model's matrices; from then on there are none.
  void merge();

 private:
  struct Place {
    std::string module;
    std::shared_ptr<Linear> linear;
  };
  Adapters(std::vector<Place> places, LoraOptions options)
      : places_(std::move(places)), options_(std::move(options)) {}
  static std::vector<Place> places_in(Model& model, const std::vector<std::string>& targets);
  at::ScalarType dtype() const;  // that of the matrices beside which they stand
  void make(uint64_t seed);
  std::string config_text(const std::string& base) const;

  std::vector<Place> places_;
  const LoraOptions options_;
};

}  // namespace bottomless::train
