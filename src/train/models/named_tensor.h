#pragma once
#include <torch/types.h>

#include <string>
#include <vector>

namespace bottomless::train {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};
using NamedTensors = std::vector<NamedTensor>;

}  // namespace bottomless::train
