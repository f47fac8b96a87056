#include <bottomless/torch.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

namespace bottomless {
namespace {

namespace fs = std::filesystem;

class RuntimeTest : public ::testing::Test {
 protected:
  RuntimeTest()
      : directory_(fs::temp_directory_path() / ("bottomless-test-" + std::to_string(getpid()))) {
    fs::create_directories(directory_);
  }
  ~RuntimeTest() override { fs::remove_all(directory_); }

  Options options(Bytes memory) const {
    return {.memory = memory, .disk = {directory_}, .disk_limit = std::nullopt};
  }

  const fs::path directory_;
};

struct Trained {
  std::vector<torch::Tensor> tensors;  // parameters and moments
  std::vector<float> losses;
};

Trained train() {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < 8; ++i) {
    model->push_back(torch::nn::Linear(512, 512));
    model->push_back(torch::nn::Tanh());
  }
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  const torch::Tensor input = torch::randn({64, 512});
  Trained trained;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = model->forward(input).square().mean();
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1);
    optimizer.step();
    trained.losses.push_back(loss.item<float>());
  }
  for (const torch::Tensor& parameter : model->parameters()) {
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(
        *optimizer.state().at(parameter.unsafeGetTensorImpl()));
    for (const torch::Tensor& tensor : {parameter.detach(), state.exp_avg(), state.exp_avg_sq()}) {
      trained.tensors.push_back(tensor);
    }
  }
  return trained;
}

bool same_bits(const Trained& a, const Trained& b) {
  if (a.losses != b.losses || a.tensors.size() != b.tensors.size()) return false;
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (std::memcmp(a.tensors[i].data_ptr(), b.tensors[i].data_ptr(), a.tensors[i].nbytes()) != 0)
      return false;
  }
  return true;
}

TEST_F(RuntimeTest, TrainsWithTheSameBitsInAThirdOfTheMemory) {
  const Trained plain = train();
  const Runtime runtime(options(14_MiB));  // the run needs about 45 MiB
  EXPECT_TRUE(same_bits(plain, train()));
  const Stats stats = runtime.stats();
  EXPECT_GT(stats.evictions, 0u);
  EXPECT_GT(stats.written_bytes, 0u);
  EXPECT_LE(stats.peak_bytes, stats.limit_bytes);
}

TEST_F(RuntimeTest, TrainsWithTheSameBitsWhenEveryBlockLeavesAtOnce) {
  const Trained plain = train();
  setenv("BOTTOMLESS_EVICT_EAGERLY", "1", 1);
  const Runtime runtime(options(32_MiB));
  unsetenv("BOTTOMLESS_EVICT_EAGERLY");
  EXPECT_TRUE(same_bits(plain, train()));
  EXPECT_GT(runtime.stats().evictions, 500u);
}

TEST_F(RuntimeTest, TensorsOutliveIt) {
  std::vector<torch::Tensor> tensors;
  {
    const Runtime runtime(options(16_MiB));
    for (int i = 0; i < 32; ++i) tensors.push_back(torch::full({1 << 18}, i, torch::kFloat));
    EXPECT_GT(runtime.stats().evictions, 0u);
  }
  const Runtime next(options(16_MiB));
  for (int i = 0; i < 32; ++i)
    EXPECT_EQ(tensors[i].sum().item<float>(), static_cast<float>(i) * (1 << 18));
}

TEST_F(RuntimeTest, SecondOneIsRefusedWhileTheFirstLives) {
  const Runtime runtime(options(16_MiB));
  EXPECT_THROW(Runtime(options(16_MiB)), c10::Error);
}

TEST_F(RuntimeTest, TooLargeAnOperatorIsNamedAndNothingIsLost) {
  const Runtime runtime(options(16_MiB));
  const torch::Tensor kept = torch::full({1 << 18}, 7, torch::kFloat);
  const torch::Tensor left = torch::ones({1024, 2048}),
                      right = torch::ones({2048, 1024});  // 8 MiB each
  try {
    torch::mm(left, right);
    FAIL() << "20 MiB were multiplied in 16 MiB";
  } catch (const c10::OutOfMemoryError& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find("aten::mm"), std::string::npos) << message;
    EXPECT_NE(message.find("16 MiB"), std::string::npos) << message;
  }
  EXPECT_EQ(kept.sum().item<float>(), 7.0f * (1 << 18));
  EXPECT_EQ(left.sum().item<float>(), 1024.0f * 2048);
}

TEST_F(RuntimeTest, CountsKindsFromTheOptimizer) {
  Runtime runtime(options(64_MiB));
  const torch::Tensor parameter = torch::zeros({1 << 18}, torch::requires_grad());
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(0.1).momentum(0.9));
  parameter.sum().backward();
  optimizer.step();
  runtime.step(optimizer);
  const Stats stats = runtime.stats();
  EXPECT_EQ(stats.steps, 1u);
  EXPECT_EQ(stats.resident_bytes.at("parameter"), 1_MiB);
  EXPECT_EQ(stats.resident_bytes.at("gradient"), 1_MiB);
  EXPECT_EQ(stats.resident_bytes.at("state"), 1_MiB);
}

TEST_F(RuntimeTest, ThreadsThatTheUserStartsAreManagedToo) {
  const Runtime runtime(options(16_MiB));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const at::NoGradGuard no_grad;
      std::vector<torch::Tensor> tensors;
      for (int i = 0; i < 12; ++i)
        tensors.push_back(torch::full({1 << 18}, t * 100 + i, torch::kFloat));
      for (int round = 0; round < 5; ++round) {
        for (torch::Tensor& tensor : tensors) tensor.add_(1);
      }
      for (int i = 0; i < 12; ++i) {
        if (tensors[i].min().item<float>() != static_cast<float>(t * 100 + i + 5)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(runtime.stats().evictions, 0u);
}

}  // namespace
}  // namespace bottomless
