// A libtorch program in the manner of its tutorials: two networks against each other, a data loader with threads, a
// learning rate that falls, everything saved, and loaded into networks that began otherwise. Prints losses and sums.
//
//   adversarial_loop DIRECTORY
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <utility>

namespace {

constexpr int64_t kNoise = 32;
constexpr int64_t kWidth = 48;

struct GeneratorImpl : torch::nn::Module {
  GeneratorImpl()
      : first(torch::nn::ConvTranspose2dOptions(kNoise, 2 * kWidth, 4).bias(false)),
        norm(2 * kWidth),
        second(torch::nn::ConvTranspose2dOptions(2 * kWidth, kWidth, 4)
                   .stride(2)
                   .padding(1)
                   .bias(false)),
        last(torch::nn::ConvTranspose2dOptions(kWidth, 1, 4).stride(2).padding(1)) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    register_module("last", last);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(norm(first(x)));
    return torch::tanh(last(torch::relu(second(x))));
  }
  torch::nn::ConvTranspose2d first;
  torch::nn::BatchNorm2d norm;
  torch::nn::ConvTranspose2d second, last;
};
TORCH_MODULE(Generator);

torch::nn::Sequential discriminator() {
  using Convolution = torch::nn::Conv2dOptions;
  return torch::nn::Sequential(
      torch::nn::Conv2d(Convolution(1, kWidth, 4).stride(2).padding(1)),
      torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)),
      torch::nn::Conv2d(Convolution(kWidth, 4 * kWidth, 4).stride(2)),
      torch::nn::BatchNorm2d(4 * kWidth), torch::nn::Flatten(),
      torch::nn::Linear(4 * kWidth * 3 * 3, 1), torch::nn::Sigmoid());
}

// Images that are made when they are asked for: what a thread of the loader allocates is managed, too.
class Images : public torch::data::Dataset<Images> {
 public:
  torch::data::Example<> get(size_t index) override {
    const auto at = static_cast<int64_t>(index);
    return {torch::sin(torch::arange(at, at + 16 * 16).to(torch::kFloat32) * 0.1).view({1, 16, 16}),
            torch::full({1}, at, torch::kInt64)};
  }
  torch::optional<size_t> size() const override { return 48; }
};

void say(const char* name, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters())
    std::printf("%s %s %a\n", name, item.key().c_str(),
                item.value().detach().to(torch::kFloat64).sum().item<double>());
  for (const auto& item : module.named_buffers())
    std::printf("%s %s %a\n", name, item.key().c_str(),
                item.value().to(torch::kFloat64).sum().item<double>());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const std::string directory = arguments[1];
  torch::manual_seed(3);
  torch::set_num_threads(1);
  Generator generator;
  torch::nn::Sequential critic = discriminator();
  using Options = torch::optim::AdamOptions;
  torch::optim::Adam makes(generator->parameters(), Options(2e-4).betas({0.5, 0.999}));
  torch::optim::Adam judges(critic->parameters(), Options(5e-4).betas({0.5, 0.999}));
  torch::optim::StepLR rate(makes, 1, 0.5);
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Images().map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions().batch_size(16).workers(2).enforce_ordering(true));
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (torch::data::Example<>& batch : *loader) {
      critic->zero_grad();
      const torch::Tensor real = critic->forward(batch.data);
      torch::Tensor loss =
          torch::binary_cross_entropy(real, torch::empty_like(real).uniform_(0.8, 1.0));
      loss.backward();
      const torch::Tensor made = generator->forward(torch::randn({16, kNoise, 1, 1}));
      const torch::Tensor fake = critic->forward(made.detach());
      torch::Tensor other = torch::binary_cross_entropy(fake, torch::zeros_like(fake));
      other.backward();
      judges.step();
      generator->zero_grad();
      const torch::Tensor seen = critic->forward(made);
      torch::Tensor fooled = torch::binary_cross_entropy(seen, torch::ones_like(seen));
      fooled.backward();
      torch::nn::utils::clip_grad_norm_(generator->parameters(), 1.0);
      makes.step();
      std::printf("%a %a %ld\n", (loss + other).item<double>(), fooled.item<double>(),
                  batch.target.sum().item<int64_t>());
    }
    rate.step();
  }
  torch::save(generator, directory + "/generator.pt");
  torch::save(makes, directory + "/optimizer.pt");
  Generator again;
  torch::optim::Adam its(again->parameters(), Options(1));
  torch::load(again, directory + "/generator.pt");
  torch::load(its, directory + "/optimizer.pt");
  again->zero_grad();
  again->forward(torch::randn({4, kNoise, 1, 1})).square().mean().backward();
  its.step();
  say("made", *generator);
  say("critic", *critic);
  say("again", *again);
}
