#include "tokenizers/json_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "tokenizers/added_tokens.h"
#include "tokenizers/bpe/bpe.h"
#include "tokenizers/decoder.h"
#include "tokenizers/normalizer.h"
#include "tokenizers/pre_tokenizer.h"
#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

using nlohmann::json;

class JsonTokenizer : public Tokenizer {
 public:
  JsonTokenizer(Bpe bpe, std::unique_ptr<Normalizer> normalizer,
                std::unique_ptr<PreTokenizer> pre_tokenizer, std::unique_ptr<Decoder> decoder,
                AddedTokens added)
      : bpe_(std::move(bpe)),
        normalizer_(std::move(normalizer)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        decoder_(std::move(decoder)),
        added_(std::move(added)) {}

  Result<std::vector<int32_t>> encode(std::string_view text) const override {
    Tokens tokens;
    if (Result<void> encoded = encode_into(text, tokens); !encoded.ok())
      return std::move(encoded).error();
    return std::move(tokens.ids);
  }

  Result<std::vector<PlacedToken>> encode_placed(std::string_view text) const override {
    Tokens tokens{.are_placed = true};
    if (Result<void> encoded = encode_into(text, tokens); !encoded.ok())
      return std::move(encoded).error();
    std::vector<PlacedToken> placed;
    for (size_t i = 0; i < tokens.ids.size(); ++i)
      placed.push_back({tokens.ids[i], tokens.begins[i]});
    return placed;
  }

  Result<std::string> decode(std::span<const int32_t> ids) const override {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (const int32_t id : ids) {
      const std::string* token = added_.token_of(id);
      if (token == nullptr) token = bpe_.token_of(id);
      if (token != nullptr) tokens.push_back(*token);
    }
    std::string text;
    if (decoder_ != nullptr) {
      if (Result<void> decoded = decoder_->apply(tokens); !decoded.ok())
        return std::move(decoded).error();
      for (const std::string& token : tokens) text += token;
      return text;
    }
    for (size_t i = 0; i < tokens.size(); ++i) text.append(i == 0 ? "" : " ").append(tokens[i]);
    return text;
  }

  int64_t vocabulary_size() const override {
    return int64_t{std::max(bpe_.greatest_id(), added_.greatest_id())} + 1;
  }

  std::optional<int32_t> id_of(std::string_view token) const override {
    const std::optional<int32_t> added = added_.id_of(token);
    return added ? added : bpe_.id_of(token);
  }

 private:
  struct Tokens {
    std::vector<int32_t> ids;
    bool are_placed = false;
    std::vector<size_t> begins;  // if they are

    void add(int32_t id, size_t begin) {
      ids.push_back(id);
      if (are_placed) begins.push_back(begin);
    }
  };

  Result<void> encode_into(std::string_view text, Tokens& tokens) const {
    std::string valid;
    if (!is_utf8(text)) text = valid = replace_invalid(text);
    tokens.ids.reserve(text.size() / 3);
    for (const AddedTokens::Part& part : added_.split(text, AddedTokens::Form::raw)) {
      const auto begin = static_cast<size_t>(part.text.data() - text.data());
      if (part.id) {
        tokens.add(*part.id, begin);
      } else {
        if (Result<void> encoded = encode_normalized(std::string(part.text), begin, tokens);
            !encoded.ok())
          return encoded;
      }
    }
    return {};
  }

  Result<void> encode_normalized(std::string text, size_t begin, Tokens& tokens) const {
    std::vector<size_t> origins;
    if (tokens.are_placed) {
      origins.resize(text.size());
      std::iota(origins.begin(), origins.end(), begin);
    }
    if (normalizer_ != nullptr) {
      Result<void> normalized =
          tokens.are_placed ? normalizer_->trace(text, origins) : normalizer_->apply(text);
      if (!normalized.ok()) return normalized;
    }
    const std::string_view all = text;
    for (const AddedTokens::Part& part : added_.split(all, AddedTokens::Form::normalized)) {
      const auto at = static_cast<size_t>(part.text.data() - all.data());
      if (part.id) {
        tokens.add(*part.id, tokens.are_placed ? origins[at] : 0);
        continue;
      }
      Words words{.text = std::string(part.text),
                  .spans = {{0, part.text.size()}},
                  .begin_the_input = begin == 0 && at == 0};
      if (tokens.are_placed) {
        const auto first = origins.begin() + static_cast<std::ptrdiff_t>(at);
        words.origins.assign(first, first + static_cast<std::ptrdiff_t>(part.text.size()));
      }
      if (pre_tokenizer_ != nullptr) {
        if (Result<void> cut = pre_tokenizer_->apply(words); !cut.ok()) return cut;
      }
      for (const Span& word : words.spans) encode_word(words, word, tokens);
    }
    return {};
  }

  void encode_word(const Words& words, const Span& word, Tokens& tokens) const {
    const std::string_view text =
        std::string_view(words.text).substr(word.begin, word.end - word.begin);
    const size_t before = tokens.ids.size();
    bpe_.encode(text, tokens.ids);
    if (!tokens.are_placed) return;
    const std::span made = std::span(tokens.ids).subspan(before);
    for (const size_t begin : bpe_.begins_of(text, made))
      tokens.begins.push_back(words.origins[word.begin + std::min(begin, text.size() - 1)]);
  }

  Bpe bpe_;
  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<Decoder> decoder_;
  AddedTokens added_;
};

// Whether tokens are put at begin and end: all that a post-processor does to the ids of one text.
Result<void> read_post_processor(const json& from, Tokenizer& tokenizer) {
  if (from.is_null()) return {};
  const auto type = from.at("type").get<std::string>();
  if (type == "ByteLevel") return {};
  if (type == "Sequence") {
    for (const json& step : from.at("processors")) {
      if (Result<void> read = read_post_processor(step, tokenizer); !read.ok()) return read;
    }
    return {};
  }
  if (type != "TemplateProcessing") {
    return Error{Code::unsupported, "its post-processor '" + type + "' is not supported"};
  }
  const json& single = from.at("single");
  if (single.empty()) return {};
  tokenizer.adds_bos = single.front().contains("SpecialToken");
  tokenizer.adds_eos = single.back().contains("SpecialToken") && single.size() > 1;
  return {};
}

// Throws json::exception where a field is missing or of another type.
Result<std::unique_ptr<Tokenizer>> read_tokenizer(const json& from) {
  const json& model = from.at("model");
  // Very old files do not say which model it is; all of these are BPE.
  const std::string type = model.contains("type") ? model["type"].get<std::string>() : "BPE";
  if (type != "BPE") {
    return Error{Code::unsupported, "its model '" + type + "' is not supported, only BPE is"};
  }
  const auto part = [&](const char* name) { return from.contains(name) ? from[name] : json(); };
  Result<Bpe> bpe = Bpe::parse(model);
  if (!bpe.ok()) return bpe.error();
  auto normalizer = parse_normalizer(part("normalizer"));
  if (!normalizer.ok()) return normalizer.error();
  auto pre_tokenizer = parse_pre_tokenizer(part("pre_tokenizer"));
  if (!pre_tokenizer.ok()) return pre_tokenizer.error();
  auto decoder = parse_decoder(part("decoder"));
  if (!decoder.ok()) return decoder.error();
  std::vector<AddedToken> added;
  for (const json& token : part("added_tokens")) {
    added.push_back(parse_added_token(token, token.at("id").get<int32_t>()));
    if (added.back().id < 0) {
      return Error{Code::corrupt, "the added token '" + added.back().content + "' has no id"};
    }
  }
  Result<AddedTokens> all_added = AddedTokens::make(std::move(added), normalizer.value().get());
  if (!all_added.ok()) return all_added.error();
  std::unique_ptr<Tokenizer> tokenizer = std::make_unique<JsonTokenizer>(
      std::move(bpe).value(), std::move(normalizer).value(), std::move(pre_tokenizer).value(),
      std::move(decoder).value(), std::move(all_added).value());
  if (auto read = read_post_processor(part("post_processor"), *tokenizer); !read.ok()) {
    return read.error();
  }
  return tokenizer;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view text,
                                                        const std::string& attempted) {
  constexpr int kMostDepth = 32;  // sequences may hold sequences, and are read so
  bool is_too_deep = false;
  const auto look = [&](int depth, json::parse_event_t, const json&) {
    is_too_deep = is_too_deep || depth > kMostDepth;
    return !is_too_deep;
  };
  try {
    const json parsed = json::parse(text, look);
    if (is_too_deep) return Error{Code::corrupt, attempted + ": it is nested too deeply"};
    auto tokenizer = read_tokenizer(parsed);
    if (tokenizer.ok()) return tokenizer;
    return Error{tokenizer.error().code, attempted + ": " + tokenizer.error().message};
  } catch (const json::exception& error) {
    return Error{Code::corrupt, attempted + ": " + error.what() +
                                    "; the file is corrupt: download or write it again"};
  }
}

}  // namespace bottomless::text
