// Trains a GPT on the sources of the Python standard library: an ordinary libtorch program that
// needs two lines more to run inside a memory limit (see train): one that makes a
// bottomless::Runtime, one that marks the end of each step.
//
//   train_gpt                                           as much memory as it takes, about 2.5 GiB
//   train_gpt --memory 1GiB --disk /tmp                 the same numbers, bit for bit, in 1 GiB
//   train_gpt --parameters 1.5B --memory 4GiB --disk /nvme/scratch --json out.json
#include <bottomless/bytes.h>
#include <bottomless/torch.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpt.h"
#include "progress.h"
#include "results.h"
#include "text.h"

namespace example {
namespace {

struct Settings {
  GptOptions model;
  int64_t batch = 1;
  int64_t steps = 10;
  uint64_t seed = 0;
  double learning_rate = 3e-4;
  std::filesystem::path text;  // empty: the Python standard library
  std::filesystem::path json;  // empty: none
  std::optional<bottomless::Bytes> memory;
  std::vector<std::filesystem::path> disk;
};

struct Size {
  int64_t layers;
  int64_t width;
};

// A layer has 12 * width^2 weights; with a vocabulary of bytes the embeddings hardly count. Hence
// 17 layers where GPT-2 has 12: 12 * 17 * 768^2 = 120M.
const std::map<std::string, Size>& presets() {
  static const std::map<std::string, Size> sizes = {
      {"1M", {5, 128}},     {"10M", {6, 384}},    {"120M", {17, 768}},
      {"350M", {28, 1024}}, {"770M", {39, 1280}}, {"1.5B", {49, 1600}},
  };
  return sizes;
}

int64_t default_heads(int64_t width) { return width % 64 == 0 ? width / 64 : 1; }

// Exits on --help and, with status 2, on a usage error.
Settings parse(int argc, char** argv) {
  Settings settings;
  CLI::App app("Trains a GPT on text that every machine has, if need be inside a memory limit.");
  std::string preset = "120M";
  std::optional<int64_t> layers, width, heads;
  app.add_option("--parameters", preset, "size of the model")
      ->check(CLI::IsMember(presets()))
      ->capture_default_str();
  app.add_option("--layers", layers, "instead of the preset's")->check(CLI::PositiveNumber);
  app.add_option("--width", width, "instead of the preset's")->check(CLI::PositiveNumber);
  app.add_option("--heads", heads, "must divide the width (default: width / 64)")
      ->check(CLI::PositiveNumber);
  app.add_option("--context", settings.model.context, "bytes per example")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", settings.batch, "examples per step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", settings.steps, "optimizer steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", settings.seed, "of the weights and the batches")->capture_default_str();
  app.add_option("--lr", settings.learning_rate, "learning rate, reached after 20 steps")
      ->capture_default_str();
  app.add_option("--text", settings.text, "directory of .py, .txt or .md files to learn from");
  app.add_option("--json", settings.json, "file for losses, times, digest and statistics");

  const auto set_memory = [&](const std::string& text) {
    const auto bytes = bottomless::parse_bytes(text);
    if (!bytes.ok()) throw CLI::ValidationError("--memory", bytes.error().message);
    settings.memory = bytes.value();
  };
  const auto set_disk = [&](const std::vector<std::string>& directories) {
    settings.disk.assign(directories.begin(), directories.end());
  };
  auto* memory = app.add_option_function<std::string>("--memory", set_memory,
                                                      "limit, such as 1GiB (default: none)");
  auto* disk = app.add_option_function<std::vector<std::string>>(
      "--disk", set_disk, "DIR[,DIR...] for what does not fit");
  memory->needs(disk);
  disk->needs(memory)->delimiter(',')->type_name("DIR");

  try {
    app.parse(argc, argv);
    const Size size = presets().at(preset);
    settings.model.layers = layers.value_or(size.layers);
    settings.model.width = width.value_or(size.width);
    settings.model.heads = heads.value_or(default_heads(settings.model.width));
    if (settings.model.width % settings.model.heads != 0) {
      throw CLI::ValidationError("--heads", "must divide --width");
    }
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return settings;
}

Sample sample(float loss, double seconds, const std::optional<bottomless::Runtime>& runtime) {
  Sample now{.loss = loss, .seconds = seconds};
  if (!runtime) {
    now.resident_bytes = process_memory("VmRSS");
    return now;
  }
  const bottomless::Stats stats = runtime->stats();
  for (const auto& [kind, bytes] : stats.resident_bytes) now.resident_bytes += bytes;
  now.limit_bytes = stats.limit_bytes;
  now.read_bytes = stats.read_bytes;
  now.written_bytes = stats.written_bytes;
  return now;
}

// Early steps are small: AdamW trusts its first few gradients far too much.
double warmed_up(double learning_rate, int64_t step) {
  constexpr double kSteps = 20;
  return learning_rate * std::min(1.0, static_cast<double>(step + 1) / kSteps);
}

void train(const Settings& settings) {
  constexpr size_t kTextBytes = size_t{4} << 20;
  torch::manual_seed(settings.seed);
  const auto directory = settings.text.empty() ? standard_library() : settings.text;
  Batches batches(read_text(directory, kTextBytes), settings.batch, settings.model.context);
  const bottomless::Bytes before_bytes = process_memory("VmRSS");

  // First, so that every tensor is made inside the limit and the runtime outlives them all.
  std::optional<bottomless::Runtime> runtime;
  if (settings.memory) {
    bottomless::Options options;
    options.memory = *settings.memory;
    options.disk = settings.disk;
    runtime.emplace(options);
  }

  Gpt model(settings.model);
  torch::optim::AdamW optimizer(model->parameters(), settings.learning_rate);
  std::fprintf(stderr, "%.1fM parameters, %lld layers of width %lld, text from %s\n",
               1e-6 * static_cast<double>(model->parameter_count()),
               static_cast<long long>(settings.model.layers),
               static_cast<long long>(settings.model.width), directory.c_str());

  Results results;
  {
    Progress progress(settings.steps);
    for (int64_t step = 0; step < settings.steps; ++step) {
      const auto start = std::chrono::steady_clock::now();
      const double rate = warmed_up(settings.learning_rate, step);
      for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
      const Batch batch = batches.next();
      const torch::Tensor loss = model->loss(batch.symbols, batch.targets);
      optimizer.zero_grad();
      loss.backward();
      torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
      optimizer.step();
      if (runtime) runtime->step(optimizer);
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;

      results.losses.push_back(loss.item<float>());
      results.step_seconds.push_back(elapsed.count());
      progress.finished_step(sample(results.losses.back(), elapsed.count(), runtime));
    }
  }

  if (runtime) results.stats = runtime->stats();
  results.grown_bytes = process_memory("VmHWM") - before_bytes;
  results.needed_bytes = runtime ? results.stats->peak_bytes : results.grown_bytes;
  results.digest = digest(*model, optimizer);
  std::fprintf(stderr, "needed %s, digest %s\n",
               bottomless::format_bytes(results.needed_bytes).c_str(), results.digest.c_str());
  if (!settings.json.empty()) {
    write_json(settings.json, settings.model, model->parameter_count(), results);
  }
}

}  // namespace
}  // namespace example

int main(int argc, char** argv) {
  const example::Settings settings = example::parse(argc, argv);
  try {
    example::train(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return 1;
  }
  return 0;
}
