#include "tokenizers/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/random.h"
#include "support/temporary_directory.h"
#include "tokenizers/bpe/bpe_trainer.h"

namespace bottomless::text {
namespace {

// Learned from a few words, so that there are merges.
std::unique_ptr<Tokenizer> small_tokenizer(const TemporaryDirectory& directory) {
  const std::vector<std::filesystem::path> files = {directory.path() / "text"};
  std::ofstream(files[0])
      << "the cat and the dog and the other cat, all together in the other house";
  EXPECT_TRUE(train_byte_level_bpe(files, {.vocabulary = 300}, directory.path()).ok());
  auto tokenizer = open_tokenizer(directory.path());
  EXPECT_TRUE(tokenizer.ok());
  return std::move(tokenizer).value();
}

TEST(Tokenizer, GivesBackWhatItWasGiven) {
  TemporaryDirectory directory;
  const auto tokenizer = small_tokenizer(directory);
  Random random(11);
  BOTTOMLESS_TRACE_SEED(random);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (uint64_t i = random.below(40); i > 0; --i) {
      text += static_cast<char>(random.between(1, 127));
      if (random.one_in(5)) text += "the cat \xF0\x9F\x90\x88<|endoftext|>";
    }
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text).value()).value(), text);
  }
}

TEST(Tokenizer, ThreadsThatShareItGetTheSameIds) {
  TemporaryDirectory directory;
  const auto tokenizer = small_tokenizer(directory);
  std::vector<std::string> lines;
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < 200; ++i) {
    lines.push_back("the other cat " + std::to_string(i * 7919) + " and " + std::string(i, 'a'));
    expected.push_back(tokenizer->encode(lines.back()).value());
  }
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < lines.size(); ++i)
        EXPECT_EQ(tokenizer->encode(lines[i]).value(), expected[i]);
    });
  }
}

TEST(Tokenizer, ADirectoryWithoutOneIsAnErrorThatSaysWhatToDo) {
  TemporaryDirectory directory;
  const auto tokenizer = open_tokenizer(directory.path());
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.error().code, Code::not_found);
  EXPECT_NE(tokenizer.error().message.find(directory.path()), std::string::npos);
}

TEST(Tokenizer, ADamagedFileBesideItIsNamed) {
  TemporaryDirectory directory;
  small_tokenizer(directory);
  std::ofstream(directory.path() / "generation_config.json") << "[1, 2]";
  const auto tokenizer = open_tokenizer(directory.path());
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.error().code, Code::corrupt);
  EXPECT_NE(tokenizer.error().message.find("generation_config.json"), std::string::npos);
}

}  // namespace
}  // namespace bottomless::text
