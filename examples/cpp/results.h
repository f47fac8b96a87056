// An exact account of a training run: every loss, every step's time, one number for all weights and
// optimizer states.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/torch.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "gpt.h"

namespace example {

struct Results {
  std::vector<float> losses;
  std::vector<double> step_seconds;
  std::string digest;
  // Without a limit: by how much the process grew. With one: the most memory that the runtime held
  // at once.
  bottomless::Bytes needed_bytes = 0;
  bottomless::Bytes grown_bytes = 0;       // by how much the process grew, as the kernel saw it
  std::optional<bottomless::Stats> stats;  // absent when the run had no limit
};

// 64-bit FNV-1a, in hex, over the name and the bytes of each parameter and of both of its AdamW
// moments. Two runs with the same digest ended in the same state, bit for bit.
std::string digest(const GptImpl& model, const torch::optim::AdamW& optimizer);

// A field of /proc/self/status that is given in kB, such as VmRSS (memory held now) or VmHWM (the
// most so far).
bottomless::Bytes process_memory(const std::string& field);

// Throws std::runtime_error if the file cannot be written.
void write_json(const std::filesystem::path& file, const GptOptions& model, int64_t parameters,
                const Results& results);

}  // namespace example
