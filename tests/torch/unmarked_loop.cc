// A libtorch program as anybody writes it: nothing in it knows of a limit, and nothing marks its steps. Prints a line
// for each loss, in hexadecimal, and for the sum of each weight at the end.
//
//   unmarked_loop STEPS EVALUATE_EVERY
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const int steps = std::atoi(arguments[1]);
  const int every = std::atoi(arguments[2]);
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < 8; ++i) {
    model->push_back(torch::nn::Linear(512, 512));
    model->push_back(torch::nn::Tanh());
  }
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  for (int step = 1; step <= steps; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = model->forward(torch::randn({32, 512})).square().mean();
    loss.backward();
    optimizer.step();
    std::printf("%a\n", loss.item<double>());
    if (every == 0 || step % every != 0) continue;
    const torch::NoGradGuard evaluating;
    double total = 0;
    for (int batch = 0; batch < 3; ++batch)
      total += model->forward(torch::randn({16, 512})).abs().mean().item<double>();
    std::printf("evaluated %a\n", total);
  }
  for (const torch::Tensor& parameter : model->parameters())
    std::printf("%a\n", parameter.detach().to(torch::kFloat64).sum().item<double>());
}
