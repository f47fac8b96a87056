// Options of a parameter group: each of them, of every optimizer, changes what it should, as with torch's own classes.
#include <bottomless/optim.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace bottomless {
namespace {

using optim::States;
using torch::optim::OptimizerParamGroup;
using Weights = std::vector<torch::Tensor>;
using MakeGrouped = std::function<std::unique_ptr<torch::optim::Optimizer>(Weights, Weights)>;

// The first parameters have these options, the others the defaults.
template <class Optimizer, class Options>
MakeGrouped grouped(const Options& of_first, const Options& defaults) {
  return [=](Weights first, Weights others) {
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(std::move(first), std::make_unique<Options>(of_first));
    groups.emplace_back(std::move(others));
    return std::make_unique<Optimizer>(groups, defaults);
  };
}

// Two parameters of which the first is in the first group, after some steps with gradients of their own.
Weights after_steps(const MakeGrouped& make, torch::Dtype dtype = torch::kFloat32) {
  torch::manual_seed(5);
  const Weights both{torch::randn({24, 16}).to(dtype).requires_grad_(),
                     torch::randn({24, 16}).to(dtype).requires_grad_()};
  const auto optimizer = make({both[0]}, {both[1]});
  for (int step = 0; step < 40; ++step) {
    for (const torch::Tensor& each : both)
      each.mutable_grad() = (torch::randn({24, 16}) + 0.5).to(dtype);
    optimizer->step();
  }
  return {both[0].detach(), both[1].detach()};
}

double distance_of(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

struct OptionPair {
  std::string name;
  MakeGrouped ours, without, theirs;
};
void PrintTo(const OptionPair& pair, std::ostream* out) { *out << pair.name; }

// `set` gets the options of either library.
template <class Ours, class OurOptions, class Theirs, class TheirOptions, class Set>
OptionPair option_pair(const std::string& name, OurOptions ours, TheirOptions theirs,
                       const Set& set) {
  OurOptions our_group;
  TheirOptions their_group(theirs.lr());  // one of them has no default
  set(our_group);
  set(their_group);
  return {name, grouped<Ours, OurOptions>(our_group, ours),
          grouped<Ours, OurOptions>(OurOptions(), ours),
          grouped<Theirs, TheirOptions>(their_group, theirs)};
}

std::vector<OptionPair> option_pairs() {
  using std::tuple;
  std::vector<OptionPair> all;
  const auto adam = [&](const std::string& option, const auto& set) {
    all.push_back(
        option_pair<optim::Adam, optim::AdamOptions, torch::optim::Adam, torch::optim::AdamOptions>(
            "Adam_" + option, optim::AdamOptions(2e-3).eps(1e-6),
            torch::optim::AdamOptions(2e-3).eps(1e-6), set));
  };
  adam("lr", [](auto& options) { options.lr(0.02); });
  adam("betas", [](auto& options) { options.betas(tuple(0.5, 0.7)); });
  adam("eps", [](auto& options) { options.eps(0.1); });
  adam("weight_decay", [](auto& options) { options.weight_decay(0.3); });
  const auto adamw = [&](const std::string& option, const auto& set) {
    all.push_back(option_pair<optim::AdamW, optim::AdamWOptions, torch::optim::AdamW,
                              torch::optim::AdamWOptions>(
        "AdamW_" + option,
        static_cast<const optim::AdamWOptions&>(optim::AdamWOptions(2e-3).weight_decay(0.2)),
        torch::optim::AdamWOptions(2e-3).weight_decay(0.2), set));
  };
  adamw("lr", [](auto& options) { options.lr(0.02); });
  adamw("betas", [](auto& options) { options.betas(tuple(0.5, 0.7)); });
  adamw("eps", [](auto& options) { options.eps(0.1); });
  adamw("weight_decay", [](auto& options) { options.weight_decay(0.9); });
  adamw("no_weight_decay", [](auto& options) { options.weight_decay(0); });
  const auto sgd = [&](const std::string& option, const auto& set) {
    all.push_back(
        option_pair<optim::SGD, optim::SGDOptions, torch::optim::SGD, torch::optim::SGDOptions>(
            "SGD_" + option, optim::SGDOptions(2e-2).momentum(0.5),
            torch::optim::SGDOptions(2e-2).momentum(0.5), set));
  };
  sgd("lr", [](auto& options) { options.lr(0.2); });
  sgd("momentum", [](auto& options) { options.momentum(0.9); });
  sgd("dampening", [](auto& options) { options.dampening(0.5); });
  sgd("weight_decay", [](auto& options) { options.weight_decay(0.3); });
  sgd("nesterov", [](auto& options) { options.nesterov(true); });
  const auto adagrad = [&](const std::string& option, const auto& set) {
    all.push_back(option_pair<optim::Adagrad, optim::AdagradOptions, torch::optim::Adagrad,
                              torch::optim::AdagradOptions>(
        "Adagrad_" + option, optim::AdagradOptions(3e-2), torch::optim::AdagradOptions(3e-2), set));
  };
  adagrad("lr", [](auto& options) { options.lr(0.2); });
  adagrad("lr_decay", [](auto& options) { options.lr_decay(0.4); });
  adagrad("weight_decay", [](auto& options) { options.weight_decay(0.3); });
  adagrad("eps", [](auto& options) { options.eps(0.1); });
  return all;
}

class OptionInAGroup : public ::testing::TestWithParam<OptionPair> {};

TEST_P(OptionInAGroup, DoesWhatItDoesInTorch) {
  const Weights ours = after_steps(GetParam().ours), theirs = after_steps(GetParam().theirs);
  EXPECT_LT(distance_of(ours[0], theirs[0]), 1e-5);
  EXPECT_LT(distance_of(ours[1], theirs[1]), 1e-5);
  const Weights without = after_steps(GetParam().without);
  EXPECT_GT(distance_of(ours[0], without[0]), 1e-4);
  EXPECT_TRUE(torch::equal(ours[1], without[1])) << "the other group has changed, too";
}

INSTANTIATE_TEST_SUITE_P(Options, OptionInAGroup, ::testing::ValuesIn(option_pairs()),
                         [](const auto& info) { return info.param.name; });

// What torch::optim does not have: in a group it is what it is as the optimizer's own.
struct OwnOption {
  std::string name;
  MakeGrouped in_group, as_default, without;
  torch::Dtype dtype;
};
void PrintTo(const OwnOption& option, std::ostream* out) { *out << option.name; }

template <class Optimizer, class Options, class Set>
OwnOption own_option(const std::string& name, const Options& defaults, const Set& set,
                     torch::Dtype dtype = torch::kFloat32) {
  Options in_group, as_default = defaults;
  set(in_group);
  set(as_default);
  return {name, grouped<Optimizer, Options>(in_group, defaults),
          grouped<Optimizer, Options>(Options(), as_default),
          grouped<Optimizer, Options>(Options(), defaults), dtype};
}

template <class Optimizer, class Options>
void add_common(std::vector<OwnOption>& all, const std::string& rule, const Options& defaults) {
  const auto add = [&](const char* option, const auto& set, torch::Dtype dtype = torch::kFloat32) {
    all.push_back(own_option<Optimizer>(rule + "_" + option, defaults, set, dtype));
  };
  add("lr", [](auto& options) { options.lr(0.2); });
  add("set_lr", [](auto& options) { options.set_lr(0.2); });
  add("weight_decay", [](auto& options) { options.weight_decay(0.3); });
  add("maximize", [](auto& options) { options.maximize(true); });
  add(
      "master_weights", [](auto& options) { options.master_weights(false); }, torch::kBFloat16);
  if constexpr (requires { Options().states(); }) {
    add("states_bfloat16", [](auto& options) { options.states(States::bfloat16); });
    add("states_8bit", [](auto& options) { options.states(States::eight_bits); });
  }
}

std::vector<OwnOption> own_options() {
  std::vector<OwnOption> all;
  add_common<optim::Adam>(all, "Adam", optim::AdamOptions(2e-3));
  all.push_back(own_option<optim::Adam>("Adam_decoupled",
                                        optim::AdamOptions(2e-2).weight_decay(0.3),
                                        [](auto& options) { options.decoupled(true); }));
  add_common<optim::SGD>(all, "SGD", optim::SGDOptions(2e-3).momentum(0.5));
  add_common<optim::Adagrad>(all, "Adagrad", optim::AdagradOptions(2e-3));
  // torch's Adagrad takes the optimizer's for all groups.
  all.push_back(
      own_option<optim::Adagrad>("Adagrad_initial_accumulator_value", optim::AdagradOptions(2e-3),
                                 [](auto& options) { options.initial_accumulator_value(0.7); }));
  add_common<optim::Lion>(all, "Lion", optim::LionOptions(2e-3));
  all.push_back(own_option<optim::Lion>("Lion_betas", optim::LionOptions(2e-3), [](auto& options) {
    options.betas(std::tuple(0.1, 0.2));
  }));
  const optim::AdafactorOptions adafactor(2e-3);
  add_common<optim::Adafactor>(all, "Adafactor", adafactor);
  const auto add = [&](const char* option, const auto& set) {
    all.push_back(own_option<optim::Adafactor>(std::string("Adafactor_") + option, adafactor, set));
  };
  add("beta2_decay", [](auto& options) { options.beta2_decay(-0.3); });
  add("eps1", [](auto& options) { options.eps1(3); });
  add("eps2", [](auto& options) { options.eps2(10); });
  add("d", [](auto& options) { options.d(1.01).lr(0.2).eps2(10); });
  return all;
}

class OwnOptionInAGroup : public ::testing::TestWithParam<OwnOption> {};

TEST_P(OwnOptionInAGroup, IsWhatItIsAsTheOptimizersOwn) {
  const OwnOption& option = GetParam();
  const Weights in_group = after_steps(option.in_group, option.dtype);
  const Weights without = after_steps(option.without, option.dtype);
  EXPECT_TRUE(torch::equal(in_group[0], after_steps(option.as_default, option.dtype)[0]));
  EXPECT_FALSE(torch::equal(in_group[0], without[0])) << "it changes nothing";
  EXPECT_TRUE(torch::equal(in_group[1], without[1])) << "the other group has changed, too";
}

INSTANTIATE_TEST_SUITE_P(Options, OwnOptionInAGroup, ::testing::ValuesIn(own_options()),
                         [](const auto& info) { return info.param.name; });

TEST(GroupOptions, OfAGroupThatIsAddedLaterCountToo) {
  const auto later = [](Weights first, Weights others) {
    auto optimizer = std::make_unique<optim::AdamW>(std::move(others));
    optimizer->add_param_group(
        {std::move(first),
         std::make_unique<optim::AdamWOptions>(
             static_cast<const optim::AdamWOptions&>(optim::AdamWOptions().weight_decay(0.7)))});
    return std::unique_ptr<torch::optim::Optimizer>(std::move(optimizer));
  };
  const auto at_once = grouped<optim::AdamW, optim::AdamWOptions>(
      static_cast<const optim::AdamWOptions&>(optim::AdamWOptions().weight_decay(0.7)),
      optim::AdamWOptions());
  EXPECT_TRUE(torch::equal(after_steps(later)[0], after_steps(at_once)[0]));
  EXPECT_FALSE(
      torch::equal(after_steps(later)[0], after_steps(grouped<optim::AdamW, optim::AdamWOptions>(
                                              optim::AdamWOptions(), optim::AdamWOptions()))[0]));
}

TEST(GroupOptions, ThatCannotBeOfOneGroupAreRefused) {
  const auto make = [](std::unique_ptr<torch::optim::OptimizerOptions> options) {
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(Weights{torch::ones({3}, torch::requires_grad())}, std::move(options));
    return optim::Adam(groups, optim::AdamOptions());
  };
  EXPECT_THROW(make(std::make_unique<optim::AdamOptions>(optim::AdamOptions().max_norm(1))),
               c10::ValueError);
  EXPECT_THROW(
      make(std::make_unique<optim::AdamOptions>(optim::AdamOptions().skip_nonfinite(true))),
      c10::ValueError);
  EXPECT_THROW(make(std::make_unique<optim::AdamOptions>(optim::AdamOptions().weight_decay(-1))),
               c10::ValueError);
  EXPECT_THROW(make(std::make_unique<torch::optim::AdamOptions>()), c10::TypeError);
}

}  // namespace
}  // namespace bottomless
