// One rank of a sharded training that saves and loads. Does what the words say, in order:
//
//   checkpoint_ranks OPTIMIZER MEMORY DISK DIRECTORY [train|save|load|print]...
//
// train: one step, prints "loss HEX"; load: prints "loaded STEP EXTRA", or "refused WHY" and goes on; print: "tensor NAME HASH" of every
// parameter and buffer. In the end "evictions N".
#include <bottomless/optim.h>
#include <bottomless/shard.h>
#include <bottomless/torch.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int kWide = 512, kLayers = 6;

// Large ones, small ones, one without dimensions, one of 16 bits, one with two names. checkpoints_in_python.py has the same.
struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < kLayers; ++i) layers->push_back(torch::nn::Linear(kWide, kWide));
    register_module("layers", layers);
    narrow = register_parameter("narrow", torch::full({70001}, 0.5, torch::kBFloat16));
    scale = register_parameter("scale", torch::full({}, 2.0));
    register_parameter("tied", layers[0]->as<torch::nn::Linear>()->weight);
    steps = register_buffer("steps", torch::zeros({3}));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    steps.add_(1);
    return layers->forward(input) * scale * narrow.to(torch::kFloat).square().mean();
  }
  std::vector<torch::Tensor> own_parameters() const {
    std::vector<torch::Tensor> own;
    for (const auto& named : named_parameters())
      if (named.key() != "layers.0.weight") own.push_back(named.value());  // that is "tied"
    return own;
  }

  torch::nn::Sequential layers;
  torch::Tensor narrow, scale, steps;
};

std::unique_ptr<torch::optim::Optimizer> optimizer_for(const Net& net, std::string_view name) {
  using bottomless::optim::States;
  const std::vector<torch::Tensor> own = net.own_parameters();
  if (name == "Adafactor") return std::make_unique<bottomless::optim::Adafactor>(own);
  if (name == "SGD")
    return std::make_unique<torch::optim::SGD>(own, torch::optim::SGDOptions(0.01).momentum(0.9));
  if (name == "Bfloat16" || name == "EightBits") {
    bottomless::optim::AdamWOptions options(0.001);
    options.states(name == "Bfloat16" ? States::bfloat16 : States::eight_bits);
    return std::make_unique<bottomless::optim::AdamW>(own, options);
  }
  return std::make_unique<torch::optim::AdamW>(own, torch::optim::AdamWOptions(0.001));
}

uint64_t hash_of(const torch::Tensor& tensor) {
  const torch::Tensor bytes =
      tensor.detach().clone().reshape(-1).view(torch::kByte).to(torch::kLong);
  const torch::Tensor places = torch::arange(bytes.numel(), torch::kLong) * 2654435761 + 1;
  return static_cast<uint64_t>((bytes * places).sum().item<int64_t>());
}

void train(Net& net, bottomless::Shard& shard, int step) {
  torch::manual_seed(1000 * step + shard.rank());
  const torch::Tensor input = torch::randn({8, kWide});
  const torch::Tensor loss = (net.forward(input) - input.roll(1, 1)).square().mean();
  loss.backward();
  shard.step();
  std::printf("loss %a\n", loss.item<double>());
}

int run(const std::vector<std::string>& words) {
  const auto ranks = bottomless::join_ranks(std::chrono::seconds(60));
  const auto memory = static_cast<bottomless::Bytes>(std::stoll(words[1]));
  bottomless::Runtime runtime({.memory = memory, .disk = {words[2]}});
  const bool loads = words.size() > 4 && words[4] == "load";
  torch::manual_seed(loads ? 2 : 1);  // what is loaded replaces something else
  Net net;
  const std::unique_ptr<torch::optim::Optimizer> optimizer = optimizer_for(net, words[0]);
  bottomless::Shard shard(net, *optimizer, ranks, {.deadline = std::chrono::seconds(60)});
  int step = 0;
  for (size_t i = 4; i < words.size(); ++i) {
    if (words[i] == "train") train(net, shard, step++);
    try {
      if (words[i] == "save") shard.save(words[3], {.extra = R"({"seed": [1, 2.5]})"});
      if (words[i] == "load") {
        const bottomless::Loaded loaded = shard.load(words[3]);
        step = static_cast<int>(loaded.step);
        std::printf("loaded %d %s\n", step, loaded.extra.c_str());
      }
    } catch (const c10::Error& error) {
      std::printf("refused %s\n", error.what_without_backtrace());
    }
    if (words[i] != "print") continue;
    for (const auto& named : net.named_parameters())
      std::printf("tensor %s %016lx\n", named.key().c_str(), hash_of(named.value()));
    for (const auto& named : net.named_buffers())
      std::printf("tensor %s %016lx\n", named.key().c_str(), hash_of(named.value()));
  }
  std::printf("evictions %llu\n", static_cast<unsigned long long>(runtime.stats().evictions));
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5) return 2;
  try {
    return run({arguments + 1, arguments + count});
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
