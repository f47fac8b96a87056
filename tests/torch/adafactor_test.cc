#include <bottomless/optim.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <sstream>

namespace bottomless::optim {
namespace {

void pull(torch::Tensor& parameter, torch::optim::Optimizer& optimizer, int steps) {
  for (int i = 0; i < steps; ++i) {
    parameter.mutable_grad() = parameter.detach().cos();
    optimizer.step();
  }
}

torch::Tensor parameter_of(torch::IntArrayRef sizes) {
  torch::manual_seed(1);
  return torch::randn(sizes).requires_grad_();
}

// With one gradient for all, an update is 1 everywhere and changes the parameter by lr times its root mean square.
TEST(AdafactorOptimizer, TakesStepsRelativeToItsParameter) {
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{7}, {4, 5}, {2, 3, 4}, {2, 3, 4, 5}}) {
    torch::Tensor parameter = parameter_of(sizes);
    const torch::Tensor before = parameter.detach().clone();
    parameter.mutable_grad() = torch::full(sizes, 3.0f);
    Adafactor({parameter}, AdafactorOptions(0.1)).step();
    const double step = 0.1 * before.square().mean().sqrt().item<double>();
    EXPECT_TRUE(torch::allclose(parameter.detach(), before - step, 1e-5, 1e-6)) << sizes;
  }
}

TEST(AdafactorOptimizer, ContinuesFromWhatItSaved) {
  torch::Tensor a = parameter_of({30, 40}).detach().to(torch::kBFloat16).requires_grad_();
  Adafactor first({a}, AdafactorOptions(0.1).eps1(1e-5).weight_decay(0.1));
  pull(a, first, 3);
  torch::Tensor b = a.detach().clone().requires_grad_();
  Adafactor second({b});
  std::stringstream saved;
  torch::save(first, saved);
  torch::load(second, saved);
  pull(a, first, 3);
  pull(b, second, 3);
  EXPECT_TRUE(torch::equal(a, b));
}

TEST(AdafactorOptimizer, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Adafactor({parameter_of({3})}, AdafactorOptions().d(0.5)), c10::ValueError);
  EXPECT_THROW(Adafactor({parameter_of({3})}, AdafactorOptions().beta2_decay(1)), c10::ValueError);
}

}  // namespace
}  // namespace bottomless::optim
