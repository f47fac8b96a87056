// Text from a model, token by token.
// Thread-safety: free functions; a model is used by one thread at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/tokenizer.h"
#include "train/commands/sampling.h"
#include "train/models/model.h"

namespace bottomless::train {

// Gives out text as soon as no later token can change it: a character may be made of several tokens.
class TextStream {
 public:
  TextStream(const text::Tokenizer& tokenizer, std::function<void(std::string_view)> write)
      : tokenizer_(tokenizer), write_(std::move(write)) {}
  Result<void> add(int32_t token);
  Result<void> finish();  // what is left, whole or not

 private:
  const text::Tokenizer& tokenizer_;
  const std::function<void(std::string_view)> write_;
  std::vector<int32_t> tokens_;  // the last ones: enough to see how the next one joins them
  size_t written_ = 0;           // bytes of their text
};

enum class Ended { by_token, by_length, by_context, by_caller };

// Appends to the prompt, which has at least one token, until a token that ends, `most` tokens, or the longest sequence that
// the model is made for. `next` sees each token, and may end it by returning false.
Ended generate(Model& model, std::vector<int64_t> prompt, int64_t most, Sampler& sampler,
               const std::function<bool(int64_t token)>& next);

}  // namespace bottomless::train
