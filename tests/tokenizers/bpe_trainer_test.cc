#include "tokenizers/bpe/bpe_trainer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/temporary_directory.h"
#include "tokenizers/bpe/word_counts.h"
#include "tokenizers/tokenizer.h"

namespace bottomless::text {
namespace {

namespace fs = std::filesystem;

fs::path file_with(const TemporaryDirectory& directory, const char* name, const std::string& text) {
  const fs::path path = directory.path() / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(WordCounts, AreTheSameWhereverReadingStops) {
  // Longer than what is read at once, with words, runs of spaces and ends of lines at every place.
  std::string text;
  for (int i = 0; i < 150000; ++i) {
    text += "word" + std::to_string(i % 7) + std::string(i % 5, i % 3 == 0 ? '\n' : ' ');
    if (i % 11 == 0) text += "\xC3\xA4\xE2\x80\x83";  // a letter, and a space of three bytes
  }
  ASSERT_GT(text.size(), size_t{1} << 20);
  TemporaryDirectory directory;
  const std::vector<fs::path> whole = {file_with(directory, "whole", text)};
  std::vector<fs::path> parts;
  // Cut by hand where no word is cut: the same words, each file far shorter than one read.
  for (size_t begin = 0, n = 0; begin < text.size(); ++n) {
    size_t end = std::min(begin + 300000, text.size());
    while (end < text.size() &&
           !(text[end] == ' ' && text[end - 1] >= '0' && text[end - 1] <= '9')) {
      ++end;
    }
    parts.push_back(
        file_with(directory, std::to_string(n).c_str(), text.substr(begin, end - begin)));
    begin = end;
  }
  const auto nothing = [](uint64_t) {};
  EXPECT_EQ(count_words(whole, nothing).value(), count_words(parts, nothing).value());
}

TEST(BpeTrainer, LearnsTheMostFrequentPairsAndReportsProgress) {
  TemporaryDirectory directory;
  const std::vector<fs::path> files = {file_with(directory, "text", "ababab abab xy xy x")};
  double last = -1;
  const auto trained = train_byte_level_bpe(files,
                                            {.vocabulary = 260,
                                             .progress =
                                                 [&](double share) {
                                                   EXPECT_GE(share, last);
                                                   last = share;
                                                 }},
                                            directory.path());
  ASSERT_TRUE(trained.ok()) << trained.error().message;
  EXPECT_EQ(last, 1);
  const auto tokenizer = open_tokenizer(directory.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer.value()->vocabulary_size(), 260);
  EXPECT_EQ(tokenizer.value()->id_of("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer.value()->eos, 0);
  EXPECT_EQ(tokenizer.value()->id_of("ab"), 257);
  EXPECT_EQ(tokenizer.value()->encode("ab<|endoftext|>").value().back(), 0);
}

TEST(BpeTrainer, LeavesNothingWhereItCannotWrite) {
  TemporaryDirectory directory;
  const std::vector<fs::path> files = {file_with(directory, "text", "some text")};
  const auto trained = train_byte_level_bpe(files, {}, directory.path() / "missing");
  ASSERT_FALSE(trained.ok());
  EXPECT_NE(trained.error().message.find("tokenizer.json"), std::string::npos);
  EXPECT_EQ(directory.entries(), 1u);
}

}  // namespace
}  // namespace bottomless::text
