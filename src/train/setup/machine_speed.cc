#include "train/setup/machine_speed.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <chrono>
#include <ctime>
#include <functional>
#include <optional>
#include <utility>

#include "io/disk_measure.h"

namespace bottomless::train {
namespace {

constexpr Bytes kRoomy = 256_MiB;  // below this limit large matrices would not fit, or hardly
constexpr Bytes kFileBytes = 128_MiB;
constexpr double kSecondsEach = 0.3;

double processor_seconds() {  // of all threads of the process
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

PassTime time_of(const std::function<void()>& work) {
  const double before = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  return {wall.count(), processor_seconds() - before};
}

PassTime time_on_one_thread(const std::function<void()>& work) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  PassTime time = time_of(work);
  at::set_num_threads(threads);
  time.threads = PassThreads::one;
  return time;
}

}  // namespace

ProcessorSpeed::ProcessorSpeed(at::ScalarType dtype, Bytes memory_limit, MachineCache cache)
    : dtype_(dtype),
      width_(memory_limit < kRoomy ? 512 : 2048),
      cache_(std::move(cache)),
      key_(machine_key() + ", torch " + TORCH_VERSION + ", " +
           std::to_string(at::get_num_threads()) + " threads, " + c10::toString(dtype) +
           " products of width " + std::to_string(width_)) {}

SpeedRange ProcessorSpeed::find_or_measure() const {
  const SpeedRange before = known();
  if (before.is_quiet) return before;
  const int64_t height = width_ / 2;
  const torch::NoGradGuard no_grad;
  const torch::Tensor rows = torch::ones({height, width_}, dtype_);
  const torch::Tensor weight = torch::ones({width_, width_}, dtype_);
  torch::Tensor product = torch::empty({height, width_}, dtype_);
  const auto multiply = [&] { torch::mm_out(product, rows, weight); };
  multiply();  // makes ready
  SpeedMeasurement measurement(static_cast<unsigned>(at::get_num_threads()),
                               before.high > 0 ? MeasurementTime::short_one() : MeasurementTime());
  while (!measurement.is_done()) {
    measurement.add(time_of(multiply));
    if (measurement.wants_one_thread()) measurement.add(time_on_one_thread(multiply));
  }
  const double operations = 2.0 * static_cast<double>(height * width_ * width_);
  const SpeedRange found = merged(before, measurement.speed().times(operations));
  keep(found);
  return found;
}

void ProcessorSpeed::reached(double flops) const {
  SpeedRange speed = known();
  if (speed.high == 0 || flops <= speed.high) return;
  speed.high = flops;
  keep(speed);
}

SpeedRange ProcessorSpeed::known() const {
  const std::optional<std::vector<double>> kept = cache_.find(key_);
  if (!kept || kept->size() != 3 || (*kept)[0] <= 0 || (*kept)[1] < (*kept)[0]) return {};
  return {(*kept)[0], (*kept)[1], (*kept)[2] == 1};
}

void ProcessorSpeed::keep(const SpeedRange& speed) const {
  cache_.keep(key_, {speed.low, speed.high, speed.is_quiet ? 1.0 : 0.0});
}

Result<RunMachine> measure_machine(const std::vector<std::filesystem::path>& disk,
                                   const ProcessorSpeed& processor, Bytes memory_limit) {
  RunMachine machine;
  machine.memory_limit = memory_limit;
  const SpeedRange speed = processor.find_or_measure();
  machine.flops = speed.high;
  machine.flops_least = speed.low;
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
