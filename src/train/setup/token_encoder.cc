#include "train/setup/token_encoder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "checkpoint/checksum.h"
#include "checkpoint/files.h"
#include "tokenizers/chat_template.h"
#include "train/files/tensor_directory.h"

namespace bottomless::train {
namespace {

// All that a tokenizer may be read from.
constexpr std::array kFingerprinted{"tokenizer.json",
                                    "tokenizer.model",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "generation_config.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "chat_template.jinja",
                                    "chat_template.json"};

text::ChatOptions chat_options(const text::Tokenizer& tokenizer) {
  text::ChatOptions options;
  options.bos_token = tokenizer.bos_token;
  options.eos_token = tokenizer.eos_token;
  return options;
}

Result<text::ChatTemplate> template_of(const text::Tokenizer& tokenizer) {
  if (tokenizer.chat_template.empty()) {
    return Error{Code::unsupported,
                 "write a conversation for the model: its tokenizer has no chat template; take a "
                 "model that was made for conversations, or data of prompts and responses"};
  }
  return text::ChatTemplate::parse(tokenizer.chat_template);
}

std::vector<text::Message> as_text(std::span<const data::Message> messages) {
  std::vector<text::Message> all;
  for (const data::Message& message : messages) all.push_back({message.role, message.content});
  return all;
}

class TokenEncoder final : public data::Encoder {
 public:
  TokenEncoder(const text::Tokenizer& tokenizer, std::optional<text::ChatTemplate> chat_template,
               uint64_t fingerprint)
      : tokenizer_(tokenizer),
        chat_template_(std::move(chat_template)),
        fingerprint_(fingerprint) {}

  Result<std::vector<int32_t>> encode(std::string_view text) const override {
    return tokenizer_.encode(text);
  }

  // As one text, so that its tokens are those that the model will be asked with. A token counts if any part of it is a
  // reply's.
  Result<data::Encoded> encode_chat(std::span<const data::Message> messages) const override {
    if (!chat_template_) return template_of(tokenizer_).error();
    const Result<text::ChatWithReplies> chat = text::render_chat_with_replies(
        *chat_template_, as_text(messages), chat_options(tokenizer_));
    if (!chat.ok()) return chat.error();
    const Result<std::vector<text::PlacedToken>> tokens =
        tokenizer_.encode_placed(chat.value().text);
    if (!tokens.ok()) return tokens.error();
    data::Encoded encoded;
    for (const text::PlacedToken& token : tokens.value()) encoded.tokens.push_back(token.id);
    encoded.counts =
        text::tokens_within(chat.value().replies, tokens.value(), chat.value().text.size());
    return encoded;
  }

  std::optional<int32_t> beginning() const override {
    return tokenizer_.adds_bos ? tokenizer_.bos : std::nullopt;
  }
  std::optional<int32_t> end() const override { return tokenizer_.eos; }
  int64_t vocabulary_size() const override { return tokenizer_.vocabulary_size(); }
  uint64_t fingerprint() const override { return fingerprint_; }

 private:
  const text::Tokenizer& tokenizer_;
  const std::optional<text::ChatTemplate> chat_template_;
  const uint64_t fingerprint_;
};

std::vector<int64_t> widened(const std::vector<int32_t>& tokens) {
  return {tokens.begin(), tokens.end()};
}

}  // namespace

Result<std::unique_ptr<data::Encoder>> make_encoder(const text::Tokenizer& tokenizer,
                                                    const std::filesystem::path& directory) {
  std::optional<text::ChatTemplate> chat_template;
  if (!tokenizer.chat_template.empty()) {
    Result<text::ChatTemplate> parsed = template_of(tokenizer);
    if (!parsed.ok()) return parsed.error();
    chat_template = std::move(parsed).value();
  }
  const std::unique_ptr<Files> files = make_files();
  Checksum fingerprint;
  for (const char* name : kFingerprinted) {
    const Result<std::string> text = read_text(*files, directory / name);
    if (!text.ok()) continue;
    fingerprint.add(std::as_bytes(std::span(name, std::strlen(name))));
    fingerprint.add(std::as_bytes(std::span(text.value())));
  }
  return std::unique_ptr<data::Encoder>(
      std::make_unique<TokenEncoder>(tokenizer, std::move(chat_template), fingerprint.value()));
}

Result<std::vector<int64_t>> encode_prompt(const text::Tokenizer& tokenizer,
                                           const std::string& prompt) {
  const Result<std::vector<int32_t>> encoded = tokenizer.encode(prompt);
  if (!encoded.ok()) return encoded.error();
  std::vector<int64_t> tokens = widened(encoded.value());
  if (tokenizer.bos && (tokenizer.adds_bos || tokens.empty()))
    tokens.insert(tokens.begin(), *tokenizer.bos);
  if (tokens.empty()) {
    return Error{
        Code::invalid_argument,
        "generate: the prompt is empty, and the tokenizer has no token to begin with; give "
        "one by --prompt"};
  }
  return tokens;
}

Result<std::vector<int64_t>> encode_question(const text::Tokenizer& tokenizer,
                                             const std::string& question) {
  const Result<text::ChatTemplate> chat_template = template_of(tokenizer);
  if (!chat_template.ok()) return chat_template.error();
  text::ChatOptions options = chat_options(tokenizer);
  options.ending = text::ChatOptions::Ending::invitation;
  const std::vector<text::Message> messages{{"user", question}};
  const Result<std::string> text = text::render_chat(chat_template.value(), messages, options);
  if (!text.ok()) return text.error();
  const Result<std::vector<int32_t>> encoded = tokenizer.encode(text.value());
  if (!encoded.ok()) return encoded.error();
  return widened(encoded.value());
}

}  // namespace bottomless::train
