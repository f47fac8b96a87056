#include "tokenizers/bpe/bpe_trainer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/errno_error.h"
#include "tokenizers/bpe/byte_level.h"
#include "tokenizers/bpe/pair_learner.h"
#include "tokenizers/bpe/word_counts.h"

namespace bottomless::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr int64_t kLeastVocabulary = 257;
constexpr double kShareOfCounting = 0.4;  // of the work, about

// <|endoftext|>, then the bytes in the order of the characters that they are written as.
std::vector<std::string> first_tokens() {
  std::vector<uint8_t> bytes(256);
  for (unsigned byte = 0; byte < 256; ++byte) bytes[byte] = static_cast<uint8_t>(byte);
  std::sort(bytes.begin(), bytes.end(), [](uint8_t left, uint8_t right) {
    return character_of_byte(left) < character_of_byte(right);
  });
  std::vector<std::string> tokens = {kEndOfText};
  for (const uint8_t byte : bytes) tokens.emplace_back(1, static_cast<char>(byte));
  return tokens;
}

std::string written(const std::string& bytes) {
  std::string characters;
  append_as_characters(bytes, characters);
  return characters;
}

ordered_json describe(const LearnedPairs& learned) {
  ordered_json vocabulary = {{kEndOfText, 0}};
  for (size_t id = 1; id < learned.tokens.size(); ++id) {
    vocabulary[written(learned.tokens[id])] = id;
  }
  ordered_json merges = ordered_json::array();
  for (const auto& [left, right] : learned.merges) {
    merges.push_back({written(learned.tokens[left]), written(learned.tokens[right])});
  }
  const ordered_json byte_level = {{"type", "ByteLevel"},
                                   {"add_prefix_space", false},
                                   {"trim_offsets", true},
                                   {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens",
           {{{"id", 0},
             {"content", kEndOfText},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", false},
             {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", byte_level},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", std::move(vocabulary)},
            {"merges", std::move(merges)}}}};
}

ordered_json describe_config() {
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"bos_token", kEndOfText},
          {"eos_token", kEndOfText},
          {"unk_token", kEndOfText},
          {"add_prefix_space", false},
          {"clean_up_tokenization_spaces", false}};
}

// Under another name first: nobody finds half a file.
Result<void> write_file(const fs::path& path, const ordered_json& content) {
  const fs::path beside = path.string() + ".part";
  const std::string attempted = "write " + path.string();
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << content.dump(1) << '\n';
  file.close();
  if (!file) {
    const int why = errno;
    ::unlink(beside.c_str());
    return errno_error(why, attempted);
  }
  std::error_code failed;
  fs::rename(beside, path, failed);
  if (failed) return errno_error(failed.value(), attempted);
  return {};
}

uint64_t bytes_in(std::span<const fs::path> files) {
  uint64_t bytes = 0;
  for (const fs::path& file : files) {
    std::error_code unknown;
    const uintmax_t size = fs::file_size(file, unknown);
    if (!unknown) bytes += size;
  }
  return bytes;
}

}  // namespace

Result<void> train_byte_level_bpe(std::span<const fs::path> files, const BpeTraining& training,
                                  const fs::path& directory) {
  if (training.vocabulary < kLeastVocabulary) {
    return Error{Code::invalid_argument,
                 "learn a tokenizer of " + std::to_string(training.vocabulary) +
                     " tokens: the bytes and " + kEndOfText + " alone are " +
                     std::to_string(kLeastVocabulary) + "; ask for more"};
  }
  const auto report = [&](double share) {
    if (training.progress) training.progress(std::min(share, 1.0));
  };
  const auto all_bytes = static_cast<double>(std::max<uint64_t>(bytes_in(files), 1));
  const auto words = count_words(files, [&](uint64_t read) {
    report(kShareOfCounting * static_cast<double>(read) / all_bytes);
  });
  if (!words.ok()) return words.error();
  if (words.value().empty()) {
    return Error{Code::invalid_argument, "learn a tokenizer: there is no text in the " +
                                             std::to_string(files.size()) +
                                             " files that were given; give some with text"};
  }
  const auto wanted = static_cast<double>(training.vocabulary);
  const LearnedPairs learned = learn_pairs(
      words.value(),
      {.tokens = first_tokens(),
       .most_tokens = training.vocabulary,
       .least_frequency = training.least_frequency,
       .on_token = [&](size_t tokens) {
         report(kShareOfCounting + (1 - kShareOfCounting) * static_cast<double>(tokens) / wanted);
       }});
  if (auto wrote = write_file(directory / "tokenizer.json", describe(learned)); !wrote.ok()) {
    return wrote;
  }
  return write_file(directory / "tokenizer_config.json", describe_config());
}

}  // namespace bottomless::text
