#include "train/machine_speed.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>

#include "io/disk_measure.h"

namespace bottomless::train {
namespace {

constexpr Bytes kRoomy = 256_MiB;  // below this limit large matrices would not fit, or hardly
constexpr Bytes kFileBytes = 128_MiB;
constexpr double kSecondsEach = 0.3;
constexpr double kSecondsOfProducts = 0.7;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double measure_flops(at::ScalarType dtype, Bytes memory_limit) {
  const int64_t width = memory_limit < kRoomy ? 512 : 2048, height = width / 2;
  const torch::NoGradGuard no_grad;
  const torch::Tensor rows = torch::ones({height, width}, dtype);
  const torch::Tensor weight = torch::ones({width, width}, dtype);
  torch::Tensor product = torch::empty({height, width}, dtype);
  const auto multiply = [&] { torch::mm_out(product, rows, weight); };
  multiply();  // makes ready
  double best = seconds_of(multiply);
  // The best of many: whoever else uses the processor can only make it slower.
  for (double spent = best; spent < kSecondsOfProducts;) {
    const double seconds = seconds_of(multiply);
    spent += seconds;
    best = std::min(best, seconds);
  }
  return 2.0 * static_cast<double>(height * width * width) / best;
}

Result<RunMachine> measure_machine(const std::vector<std::filesystem::path>& disk,
                                   at::ScalarType dtype, Bytes memory_limit) {
  RunMachine machine;
  machine.memory_limit = memory_limit;
  machine.flops = measure_flops(dtype, memory_limit);
  if (disk.empty()) return machine;
  std::vector<WorkingFile> files;
  for (const std::filesystem::path& directory : disk) {
    Result<WorkingFile> file = WorkingFile::open(directory, kFileBytes);
    if (!file.ok()) return file.error();
    if (Result<void> filled = file.value().fill(/*at_most_seconds=*/1); !filled.ok())
      return filled.error();
    std::error_code unknown;
    machine.disk_free += std::filesystem::space(directory, unknown).available;
    files.push_back(std::move(file).value());
  }
  for (const auto& [pattern, rate] : {std::pair(Pattern::read, &machine.read_rate),
                                      {Pattern::write, &machine.write_rate},
                                      {Pattern::mixed, &machine.both_rate}}) {
    const Result<Rate> measured =
        measure(files, {.pattern = pattern, .size = 4_MiB, .depth = 8, .seconds = kSecondsEach});
    if (!measured.ok()) return measured.error();
    *rate = measured.value().bytes_per_second();
  }
  return machine;
}

}  // namespace bottomless::train
