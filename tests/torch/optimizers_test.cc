// bottomless::optim in C++ beside torch::optim: the same numbers, the same bits with and without a limit, and what is saved.
#include <bottomless/optim.h>
#include <bottomless/torch.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace bottomless {
namespace {

namespace fs = std::filesystem;
using optim::States;
using Parameters = std::vector<torch::Tensor>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(Parameters)>;

template <class Optimizer, class Options>
Make making(const Options& options) {
  return [options](Parameters parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

torch::nn::Sequential network(int64_t width, int layers) {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i) {
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::Tanh());
  }
  return model;
}

void train(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer, int steps) {
  const int64_t width = model->parameters().front().size(0);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    (model->forward(torch::randn({8, width})) - 0.5).square().mean().backward();
    optimizer.step();
  }
}

Parameters detached(const torch::nn::Sequential& model) {
  Parameters copies;
  for (const torch::Tensor& parameter : model->parameters())
    copies.push_back(parameter.detach().clone());
  return copies;
}

double distance(const Parameters& a, const Parameters& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    most = std::max(most, ((a[i] - b[i]).norm() / b[i].norm()).item<double>());
  return most;
}

bool same_bits(const Parameters& a, const Parameters& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

struct PairOfRules {
  std::string name;
  Make ours, theirs;
};
void PrintTo(const PairOfRules& pair, std::ostream* out) { *out << pair.name; }

class BesideTorch : public ::testing::TestWithParam<PairOfRules> {};

TEST_P(BesideTorch, HundredsOfStepsEndInTheSamePlace) {
  const auto run = [](const Make& make) {
    torch::nn::Sequential model = network(33, 2);
    train(model, *make(model->parameters()), 200);
    return detached(model);
  };
  EXPECT_LT(distance(run(GetParam().ours), run(GetParam().theirs)), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Rules, BesideTorch,
    ::testing::Values(
        PairOfRules{"Adam", making<optim::Adam>(optim::AdamOptions(1e-3).eps(1e-6)),
                    making<torch::optim::Adam>(torch::optim::AdamOptions(1e-3).eps(1e-6))},
        PairOfRules{"AdamW", making<optim::AdamW>(optim::AdamWOptions(1e-3)),
                    making<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3))},
        PairOfRules{"SGD",
                    making<optim::SGD>(optim::SGDOptions(1e-2).momentum(0.9).weight_decay(0.01)),
                    making<torch::optim::SGD>(
                        torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(0.01))},
        PairOfRules{
            "Nesterov", making<optim::SGD>(optim::SGDOptions(1e-2).momentum(0.9).nesterov(true)),
            making<torch::optim::SGD>(torch::optim::SGDOptions(1e-2).momentum(0.9).nesterov(true))},
        PairOfRules{
            "Adagrad", making<optim::Adagrad>(optim::AdagradOptions(1e-2).lr_decay(0.1)),
            making<torch::optim::Adagrad>(torch::optim::AdagradOptions(1e-2).lr_decay(0.1))}),
    [](const auto& info) { return info.param.name; });

struct Rule {
  std::string name;
  Make make;
};
void PrintTo(const Rule& rule, std::ostream* out) { *out << rule.name; }

std::vector<Rule> rules() {
  std::vector<Rule> all;
  const std::vector<std::pair<std::string, States>> formats{
      {"float32", States::float32}, {"bfloat16", States::bfloat16}, {"8bit", States::eight_bits}};
  for (const auto& [name, states] : formats) {
    all.push_back(
        {"AdamW_" + name, making<optim::AdamW>(optim::AdamWOptions(1e-3).states(states))});
    all.push_back(
        {"SGD_" + name, making<optim::SGD>(optim::SGDOptions(1e-2).momentum(0.9).states(states))});
    all.push_back({"Adagrad_" + name,
                   making<optim::Adagrad>(
                       optim::AdagradOptions(1e-2).initial_accumulator_value(0.1).states(states))});
    all.push_back({"Lion_" + name, making<optim::Lion>(optim::LionOptions(1e-4).states(states))});
    all.push_back({"Clipped_" + name,
                   making<optim::AdamW>(optim::AdamWOptions(1e-3).max_norm(0.01).states(states))});
  }
  return all;
}

class EveryRule : public ::testing::TestWithParam<Rule> {
 protected:
  EveryRule()
      : directory_(fs::temp_directory_path() / ("bottomless-test-" + std::to_string(getpid()))) {
    fs::create_directories(directory_);
  }
  ~EveryRule() override { fs::remove_all(directory_); }

  const fs::path directory_;
};

TEST_P(EveryRule, HasTheSameBitsUnderALimit) {
  const auto run = [] {
    torch::nn::Sequential model = network(512, 8);
    const auto optimizer = GetParam().make(model->parameters());
    train(model, *optimizer, 4);
    return detached(model);
  };
  const Parameters plain = run();
  const Runtime runtime({.memory = 8_MiB, .disk = {directory_}, .disk_limit = std::nullopt});
  EXPECT_TRUE(same_bits(run(), plain));
  EXPECT_GT(runtime.stats().evictions, 0u);
  EXPECT_GT(runtime.stats().deferred_updates, 0u);
}

TEST_P(EveryRule, GoesOnWithTheSameBitsFromWhatWasSaved) {
  torch::nn::Sequential model = network(33, 2);
  const auto optimizer = GetParam().make(model->parameters());
  train(model, *optimizer, 5);
  std::stringstream saved_model, saved_optimizer;
  torch::save(model, saved_model);
  torch::save(*optimizer, saved_optimizer);
  torch::nn::Sequential other = network(33, 2);
  torch::load(other, saved_model);
  const auto loaded = GetParam().make(other->parameters());
  torch::load(*loaded, saved_optimizer);
  torch::manual_seed(9);
  train(model, *optimizer, 5);
  torch::manual_seed(9);
  train(other, *loaded, 5);
  EXPECT_TRUE(same_bits(detached(model), detached(other)));
}

TEST_P(EveryRule, KeepsMasterWeightsForNarrowParameters) {
  torch::nn::Sequential model = network(33, 2);
  model->to(torch::kBFloat16);
  const Parameters before = detached(model);
  const auto optimizer = GetParam().make(model->parameters());
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    model->forward(torch::ones({8, 33}, torch::kBFloat16)).square().mean().backward();
    optimizer->step();
  }
  for (const torch::Tensor& parameter : model->parameters()) {
    const auto& state = static_cast<const optim::ParamState&>(
        *optimizer->state().at(parameter.unsafeGetTensorImpl()));
    EXPECT_TRUE(torch::equal(state.tensors.at("master").to(torch::kBFloat16), parameter));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryRule, ::testing::ValuesIn(rules()),
                         [](const auto& info) { return info.param.name; });

TEST(Lion, TakesTheSignOfAnAverage) {
  torch::Tensor parameter = torch::zeros({3}, torch::requires_grad());
  optim::Lion optimizer({parameter}, optim::LionOptions(0.5).betas({0.9, 0.5}).weight_decay(0.1));
  const std::vector<std::vector<float>> gradients{{4, -4, 0}, {-0.1f, 0.1f, 1}, {-30, 30, 0}};
  // m is (2, -2, 0) after the first step, (0.95, -0.95, 0.5) after the second; the parameter loses a twentieth each time.
  const std::vector<std::vector<float>> expected{
      {-0.5f, 0.5f, 0}, {-0.975f, 0.975f, -0.5f}, {-0.42625f, 0.42625f, -0.975f}};
  for (size_t step = 0; step < gradients.size(); ++step) {
    parameter.mutable_grad() = torch::tensor(gradients[step]);
    optimizer.step();
    EXPECT_TRUE(torch::allclose(parameter, torch::tensor(expected[step]))) << parameter;
  }
}

TEST(Clipping, IsThatOfTorch) {
  torch::nn::Sequential a = network(33, 2), b = network(33, 2);
  optim::AdamW ours(a->parameters(), optim::AdamWOptions(1e-3).max_norm(0.01));
  torch::optim::AdamW theirs(b->parameters(), torch::optim::AdamWOptions(1e-3));
  for (int step = 0; step < 50; ++step) {
    const torch::Tensor input = torch::randn({8, 33});
    for (torch::optim::Optimizer* each : std::vector<torch::optim::Optimizer*>{&ours, &theirs})
      each->zero_grad();
    a->forward(input).square().mean().backward();
    b->forward(input).square().mean().backward();
    torch::nn::utils::clip_grad_norm_(b->parameters(), 0.01);
    ours.step();
    theirs.step();
  }
  EXPECT_LT(distance(detached(a), detached(b)), 1e-5);
}

TEST(NonFiniteGradients, LeaveTheStepOut) {
  torch::nn::Sequential model = network(9, 1);
  optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.1).skip_nonfinite(true));
  train(model, optimizer, 2);
  const Parameters before = detached(model);
  model->parameters()[1].mutable_grad()[3] = std::numeric_limits<float>::quiet_NaN();
  testing::internal::CaptureStderr();
  optimizer.step();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("parameter 1 of group 0, of shape [9]"), std::string::npos) << said;
  EXPECT_TRUE(same_bits(detached(model), before));
}

TEST(Options, ThatMakeNoSenseAreRefused) {
  const Parameters parameters{torch::ones({3}, torch::requires_grad())};
  EXPECT_THROW(optim::AdamW(parameters, optim::AdamWOptions(-1)), c10::ValueError);
  EXPECT_THROW(optim::AdamW(parameters, optim::AdamWOptions().betas({1.0, 0.9})), c10::ValueError);
  EXPECT_THROW(optim::SGD(parameters, optim::SGDOptions(0.1).nesterov(true)), c10::ValueError);
}

}  // namespace
}  // namespace bottomless
