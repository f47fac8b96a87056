// A model's tokenizer and chat template, as the data and `generate` use them.
// Thread-safety: free functions; an encoder's const members from any thread.
// Lifetime: the tokenizer outlives what is made from it.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/encoder.h"
#include "tokenizers/tokenizer.h"

namespace bottomless::train {

// `directory` is where the tokenizer came from: what lies there is part of the fingerprint.
Result<std::unique_ptr<data::Encoder>> make_encoder(const text::Tokenizer& tokenizer,
                                                    const std::filesystem::path& directory);

// What a text begins with, and what a user says in a conversation of which the answer is wanted.
Result<std::vector<int64_t>> encode_prompt(const text::Tokenizer& tokenizer,
                                           const std::string& prompt);
Result<std::vector<int64_t>> encode_question(const text::Tokenizer& tokenizer,
                                             const std::string& question);

}  // namespace bottomless::train
