#include "train/commands/generation.h"

#include <torch/torch.h>

#include <utility>

namespace bottomless::train {
namespace {

constexpr std::string_view kReplacement =
    "\xEF\xBF\xBD";  // U+FFFD: what a part of a character is decoded to
constexpr size_t kRemembered = 32;

}  // namespace

Result<void> TextStream::add(int32_t token) {
  tokens_.push_back(token);
  const Result<std::string> decoded = tokenizer_.decode(tokens_);
  if (!decoded.ok()) return decoded.error();
  const std::string& text = decoded.value();
  if (text.size() <= written_ || text.ends_with(kReplacement)) return {};
  write_(std::string_view(text).substr(written_));
  written_ = text.size();
  if (tokens_.size() < kRemembered) return {};
  // The last one stays: some tokens begin with a space only where something stands before them.
  tokens_.erase(tokens_.begin(), tokens_.end() - 1);
  const Result<std::string> rest = tokenizer_.decode(tokens_);
  if (!rest.ok()) return rest.error();
  written_ = rest.value().size();
  return {};
}

Result<void> TextStream::finish() {
  const Result<std::string> decoded = tokenizer_.decode(tokens_);
  if (!decoded.ok()) return decoded.error();
  const std::string& text = decoded.value();
  if (text.size() > written_) write_(std::string_view(text).substr(written_));
  written_ = text.size();
  return {};
}

Ended generate(Model& model, std::vector<int64_t> prompt, int64_t most, Sampler& sampler,
               const std::function<bool(int64_t token)>& next) {
  const torch::NoGradGuard no_grad;
  model.eval();
  KeyValueCache cache(model.layers());
  auto past = static_cast<int64_t>(prompt.size());
  torch::Tensor tokens = torch::tensor(prompt, torch::kInt64).view({1, past});
  Positions positions = Positions::following(0, past);
  for (int64_t made = 0; made < most; ++made) {
    if (past > model.config().positions) return Ended::by_context;
    torch::Tensor hidden = model.embed(tokens, positions);
    for (int64_t layer = 0; layer < model.layers(); ++layer)
      hidden = model.layer(layer, hidden, positions, &cache);
    const torch::Tensor last = hidden.select(1, hidden.size(1) - 1);
    const int64_t token = sampler.next(model.head(last).flatten());
    if (sampler.ends(token)) return Ended::by_token;
    if (!next(token)) return Ended::by_caller;
    tokens = torch::full({1, 1}, token, torch::kInt64);
    positions = Positions::following(past, 1);
    ++past;
  }
  return Ended::by_length;
}

}  // namespace bottomless::train
