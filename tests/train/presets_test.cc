#include "train/models/presets.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "train/models/lora.h"

namespace bottomless::train {
namespace {

ModelConfig config_of(const std::string& name) {
  Result<ModelConfig> config = preset(name);
  EXPECT_TRUE(config.ok());
  return std::move(config).value();
}

// "124m" of "gpt-124m" as 124 million.
double named_size(const std::string& name) {
  size_t read = 0;
  const std::string size = name.substr(name.find('-') + 1);
  return std::stod(size, &read) * (size[read] == 'm' ? 1e6 : 1e9);
}

TEST(Presets, HaveAsManyParametersAsTheirNamesSay) {
  int counted = 0;
  for (const std::string& name : preset_names()) {
    if (!name.starts_with("gpt-")) continue;
    const auto parameters = static_cast<double>(count_parameters(config_of(name)));
    EXPECT_LT(std::abs(parameters / named_size(name) - 1), 0.15) << name << ": " << parameters;
    ++counted;
  }
  EXPECT_GE(counted, 9);
}

TEST(Presets, HaveThePublishedNumbers) {
  const std::map<std::string, int64_t> published = {
      {"gpt-124m", 124'439'808},     {"gpt-774m", 774'030'080},
      {"gpt-1.5b", 1'557'611'200},   {"qwen2-0.5b", 494'032'768},
      {"qwen2-1.5b", 1'543'714'304}, {"llama-1b", 1'235'814'400},
      {"llama-3b", 3'212'749'824},   {"llama-8b", 8'030'261'248},
      {"mistral-7b", 7'241'732'096}, {"mixtral-8x7b", 46'702'792'704},
      {"llama-30b", 32'528'943'616}, {"llama-70b", 70'553'706'496},
  };
  for (const auto& [name, parameters] : published)
    EXPECT_EQ(count_parameters(config_of(name)), parameters) << name;
}

TEST(Presets, ScalePositionsAsPublished) {
  const std::map<std::string, double> factors = {
      {"llama-1b", 32}, {"llama-3b", 32}, {"llama-8b", 8}, {"llama-70b", 8}};
  for (const auto& [name, factor] : factors) {
    const ModelConfig config = config_of(name);
    EXPECT_EQ(config.rope.kind, RopeScaling::Kind::llama3) << name;
    EXPECT_EQ(config.rope.factor, factor) << name;
    EXPECT_EQ(config.rope.low_frequency_factor, 1) << name;
    EXPECT_EQ(config.rope.high_frequency_factor, 4) << name;
    EXPECT_EQ(config.rope.original_positions, 8192) << name;
    EXPECT_EQ(config.rope_base, 5e5) << name;
  }
}

TEST(Adapters, AreCountedAsTheyAreMade) {
  for (const char* name : {"gpt-10m", "mixtral-140m"}) {
    Result<ModelConfig> config = preset(name, 300);
    ASSERT_TRUE(config.ok());
    const Result<std::shared_ptr<Model>> model = new_model(config.value());
    ASSERT_TRUE(model.ok());
    for (const auto& targets :
         {std::vector<std::string>{}, std::vector<std::string>{"o_proj", "c_proj"}}) {
      const LoraOptions options{.rank = 4, .targets = targets};
      const auto adapters = Adapters::attach(*model.value(), options, 0);
      ASSERT_TRUE(adapters.ok());
      uint64_t elements = 0;
      for (const NamedTensor& named : adapters.value()->parameters())
        elements += static_cast<uint64_t>(named.tensor.numel());
      EXPECT_EQ(count_adapter_parameters(config.value(), options), elements) << name;
      EXPECT_GT(elements, 0u);
    }
  }
}

}  // namespace
}  // namespace bottomless::train
