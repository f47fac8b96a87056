// Forward and backward passes of a model, one for each line on the standard input, so that bench/train_models.py can take turns
// with transformers. Prints the seconds, and the processor's seconds, of each.
//
//   train_models MODEL_DIRECTORY BATCH LENGTH THREADS [whole]
//
// `whole`: with all logits at once and torch's cross-entropy, in place of head_loss().
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "train/files/model_directory.h"

namespace {

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

int main(int count, char** arguments) {
  using namespace bottomless::train;
  if (count < 5) {
    std::fprintf(stderr, "usage: train_models MODEL_DIRECTORY BATCH LENGTH THREADS [whole]\n");
    return 2;
  }
  at::set_num_threads(std::stoi(arguments[4]));
  const bool whole = count > 5 && std::string(arguments[5]) == "whole";
  auto loaded = load_model(arguments[1], {.dtype = at::kFloat, .dropout = 0.0});
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
    return 1;
  }
  Model& model = *loaded.value();
  const at::Tensor tokens =
      at::randint(model.config().vocabulary, {std::stoll(arguments[2]), std::stoll(arguments[3])},
                  at::TensorOptions(at::kLong));
  for (std::string line; std::getline(std::cin, line);) {
    const auto begin = std::chrono::steady_clock::now();
    const double used = processor_seconds();
    if (whole) {
      at::cross_entropy_loss(model.forward(tokens).flatten(0, 1), tokens.flatten()).backward();
    } else {
      const Positions positions = Positions::following(0, tokens.size(1));
      at::Tensor hidden = model.embed(tokens, positions);
      for (int64_t index = 0; index < model.layers(); ++index)
        hidden = model.layer(index, hidden, positions);
      model.loss(hidden, tokens, 1.0 / static_cast<double>(tokens.numel())).backward();
    }
    for (const at::Tensor& parameter : model.parameters()) parameter.mutable_grad().reset();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf("%.4f %.4f\n", took.count(), processor_seconds() - used);
    std::fflush(stdout);
  }
  return 0;
}
