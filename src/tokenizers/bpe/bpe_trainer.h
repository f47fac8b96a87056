// Learns a byte-level byte-pair encoding from text files, for a model that is trained from scratch and has no tokenizer.
// Text is cut into words as GPT-2 does it; the most frequent pair of neighbours becomes a token, again and again. The same
// files give the same tokenizer, that of the BpeTrainer of the PyPI package `tokenizers`.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

namespace bottomless::text {

struct BpeTraining {
  int64_t vocabulary = 8192;     // tokens at most, 257 at least: <|endoftext|> and all bytes
  uint64_t least_frequency = 2;  // a pair that is rarer is not learned
  // Called now and then with the share that is done, from 0 to 1.
  std::function<void(double)> progress;
};

// Writes tokenizer.json and tokenizer_config.json into `directory`, which exists. Bytes that are not UTF-8 are read as
// U+FFFD. Files are read in pieces; what stays in memory grows with the number of different words.
Result<void> train_byte_level_bpe(std::span<const std::filesystem::path> files,
                                  const BpeTraining& training,
                                  const std::filesystem::path& directory);

}  // namespace bottomless::text
