// One rank of a sharded training; without ranks, the same training in one process. Prints the loss and the gradients' norm of
// each step, then "gathered N", "evictions N" and, of the connection to the other ranks, "allocated N freed M".
//
//   shard_ranks STAGE OPTIMIZER MEMORY DISK [fail|nodes]
//
// stage 0: in one process, without a limit; fail: rank 1 does; nodes: every rank is one, with shares of its own
#include <bottomless/optim.h>
#include <bottomless/shard.h>
#include <bottomless/torch.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

namespace {

// The process group's class is torch's, but it is made by code that has seen declarations of ours only: its size must be what
// torch frees.
struct Sizes {
  std::map<void*, size_t>* made = nullptr;
  void* watched = nullptr;
  size_t freed = 0;
};
Sizes
    sizes;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): operator new has no other way
thread_local bool in_here = false;

}  // namespace

void* operator new(size_t bytes) {
  void* made = std::malloc(bytes);
  if (made == nullptr) throw std::bad_alloc();
  if (in_here) {
    in_here = false;
    (*sizes.made)[made] = bytes;
    in_here = true;
  }
  return made;
}
void operator delete(void* freed) noexcept { std::free(freed); }
void operator delete(void* freed, size_t bytes) noexcept {
  if (freed != nullptr && freed == sizes.watched) sizes.freed = bytes;
  std::free(freed);
}

namespace {

constexpr double kMaxNorm = 0.02;  // less than any norm here
constexpr int kSteps = 4, kBatches = 2, kRows = 16, kWide = 512, kLayers = 6;

struct Net : torch::nn::Module {
  explicit Net(int rank) {
    layers = register_module("layers", torch::nn::Sequential());
    for (int i = 0; i < kLayers; ++i) {
      layers->push_back(torch::nn::Linear(kWide, kWide + i));
      layers->push_back(torch::nn::Tanh());
      layers->push_back(torch::nn::Linear(kWide + i, kWide));
    }
    unused = register_parameter("unused", torch::zeros({kWide, kWide}));
    none = register_parameter("none", torch::zeros({0}));
    frozen = register_parameter("frozen", torch::full({kWide}, 1.0 + rank), false);
    buffer = register_buffer("buffer", torch::full({3}, 1.0 + rank));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return layers->forward(input) * frozen * buffer.sum() / 3;
  }

  torch::nn::Sequential layers;
  torch::Tensor unused, none, frozen, buffer;
};

torch::Tensor input_of(int batch) {
  torch::manual_seed(1000 + batch);
  return torch::randn({kRows, kWide});
}

torch::Tensor loss_of(Net& net, const torch::Tensor& input) {
  return (net.forward(input) - input.roll(1, 1)).square().mean() / kBatches;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_for(const Net& net, const std::string& name) {
  if (name == "Adafactor")
    return std::make_unique<bottomless::optim::Adafactor>(
        net.parameters(), bottomless::optim::AdafactorOptions(1e-2));
  return std::make_unique<torch::optim::AdamW>(net.parameters(), torch::optim::AdamWOptions(1e-3));
}

void train_alone(const std::string& name) {
  torch::manual_seed(1);
  Net net(0);
  const std::unique_ptr<torch::optim::Optimizer> optimizer = optimizer_for(net, name);
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    double sum = 0;
    for (int batch = 0; batch < kBatches; ++batch) {
      const torch::Tensor loss = loss_of(net, input_of(batch));
      loss.backward();
      sum += loss.item<double>();
    }
    const double norm = torch::nn::utils::clip_grad_norm_(net.parameters(), kMaxNorm);
    optimizer->step();
    std::printf("%.9g %.9g\n", sum, norm);
  }
}

enum class Mode { plain, failure, nodes };

void train_sharded(int stage, const std::string& name, Mode mode, bottomless::Runtime& runtime,
                   const c10::intrusive_ptr<c10d::Backend>& ranks) {
  torch::manual_seed(1 + ranks->getRank());
  Net net(ranks->getRank());
  const std::unique_ptr<torch::optim::Optimizer> optimizer = optimizer_for(net, name);
  bottomless::Shard shard(net, *optimizer, ranks,
                          {.stage = stage,
                           .deadline = std::chrono::seconds(60),
                           .ranks_per_node = mode == Mode::nodes ? 1 : 0});
  const int rows = kRows / shard.ranks();
  for (int step = 0; step < kSteps; ++step) {
    double sum = 0;
    for (int batch = 0; batch < kBatches; ++batch) {
      std::optional<bottomless::Shard::NoSync> accumulating;
      if (batch + 1 < kBatches) accumulating.emplace(shard);
      const torch::Tensor input = input_of(batch).narrow(0, shard.rank() * rows, rows);
      const torch::Tensor loss = loss_of(net, input);
      loss.backward();
      sum += loss.item<double>();
    }
    if (mode == Mode::failure && shard.rank() == 1) throw std::runtime_error("failed");
    const double norm = shard.clip_grad_norm_(kMaxNorm);
    shard.step();
    runtime.step(*optimizer);
    std::printf("%.9g %.9g\n", sum, norm);
  }
  const bottomless::ShardStats stats = shard.stats();
  if (stats.steps != kSteps || stats.received_gradient_bytes == 0 || stats.sent_bytes == 0)
    std::printf("wrong counters\n");
  const bool crosses = mode == Mode::nodes;  // everything does, or nothing
  if (stats.received_across_bytes != (crosses ? stats.received_bytes : 0) ||
      stats.received_parameter_across_bytes != (crosses ? stats.received_parameter_bytes : 0))
    std::printf("wrong counters of nodes\n");
  std::printf("gathered %llu\n", static_cast<unsigned long long>(stats.received_parameter_bytes));
  if (shard.rank() != 0) return;
  // One more step than the others have: they take part on their way out.
  const double loss = loss_of(net, input_of(0)).item<double>();
  loss_of(net, input_of(0)).backward();
  shard.step();
  if (loss_of(net, input_of(0)).item<double>() == loss) std::printf("wrong: no last step\n");
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5) return 2;
  const int stage = std::atoi(arguments[1]);
  if (stage == 0) {
    train_alone(arguments[2]);
    return 0;
  }
  std::map<void*, size_t> made;
  sizes.made = &made;
  in_here = true;
  c10::intrusive_ptr<c10d::Backend> ranks = bottomless::join_ranks(std::chrono::seconds(60));
  in_here = false;
  const size_t allocated = made[ranks.get()];
  for (int i = 0; i < 3; ++i) bottomless::join_ranks(std::chrono::seconds(60))->barrier()->wait();
  try {
    const auto memory = static_cast<bottomless::Bytes>(std::atoll(arguments[3]));
    bottomless::Runtime runtime({.memory = memory, .disk = {arguments[4]}});
    const std::string word = count > 5 ? arguments[5] : "";
    const Mode mode = word == "fail" ? Mode::failure : word == "nodes" ? Mode::nodes : Mode::plain;
    train_sharded(stage, arguments[2], mode, runtime, ranks);
    std::printf("evictions %llu\n", static_cast<unsigned long long>(runtime.stats().evictions));
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  sizes.watched = ranks.get();
  ranks.reset();
  std::printf("allocated %zu freed %zu\n", allocated, sizes.freed);
}
