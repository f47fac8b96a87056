// Models to begin with, from 10 million to 70 billion parameters, and how their parameters begin.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/files/tensor_progress.h"
#include "train/models/model.h"

namespace bottomless::train {

std::vector<std::string> preset_names();  // from the smallest to the largest

// `vocabulary`: as many as the tokenizer has; none: that of the model it is named after.
Result<ModelConfig> preset(std::string_view name, std::optional<int64_t> vocabulary = {});

struct InitialOptions {
  uint64_t seed = 0;
  at::ScalarType dtype = at::kFloat;
  Progress progress;
};

// Each parameter is filled piece by piece from a generator of its own, seeded by its name: the result depends on the seed
// alone, not on order, type (but for rounding) or memory.
Result<std::shared_ptr<Model>> new_model(const ModelConfig& config,
                                         const InitialOptions& options = {});

}  // namespace bottomless::train
