#include "tokenizers/pre_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "tokenizers/bpe/byte_level.h"
#include "tokenizers/pattern.h"
#include "tokenizers/split.h"
#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

using nlohmann::json;

class Split : public PreTokenizer {
 public:
  Split(Regex pattern, Behaviour behaviour, Delimiter delimiter)
      : pattern_(std::move(pattern)), behaviour_(behaviour), delimiter_(delimiter) {}

  Result<void> apply(Words& words) const override {
    std::vector<Span> spans;
    for (const Span& word : words.spans) {
      const std::string_view text =
          std::string_view(words.text).substr(word.begin, word.end - word.begin);
      if (Result<void> cut = split(text, word.begin, pattern_, behaviour_, delimiter_, spans);
          !cut.ok())
        return cut;
    }
    words.spans = std::move(spans);
    return {};
  }

 private:
  Regex pattern_;
  Behaviour behaviour_;
  Delimiter delimiter_;
};

// A text that is made anew, word by word.
class Rewriting {
 public:
  explicit Rewriting(const Words& words) : words_(words) {
    text.reserve(words.text.size() + words.text.size() / 2);
  }

  // What byte `at` of the word becomes.
  void put(std::string_view bytes, size_t at) {
    text += bytes;
    came_from(at);
  }
  void put_as_characters(std::string_view word) {
    if (words_.origins.empty()) {
      append_as_characters(word, text);
      return;
    }
    for (size_t i = 0; i < word.size(); ++i) {
      append_as_characters(word.substr(i, 1), text);
      came_from(i);
    }
  }

  std::string text;
  std::vector<size_t> origins;
  size_t word_begin = 0;

 private:
  void came_from(size_t at) {
    if (!words_.origins.empty()) origins.resize(text.size(), words_.origins[word_begin + at]);
  }

  const Words& words_;
};

// Calls `rewrite(word, index, rewriting)` for each word, and makes what it puts there the word.
template <class Rewrite>
void rewrite_words(Words& words, Rewrite rewrite) {
  Rewriting rewriting(words);
  for (size_t i = 0; i < words.spans.size(); ++i) {
    Span& word = words.spans[i];
    const size_t begin = rewriting.text.size();
    rewriting.word_begin = word.begin;
    rewrite(std::string_view(words.text).substr(word.begin, word.end - word.begin), i, rewriting);
    word = {begin, rewriting.text.size()};
  }
  words.text = std::move(rewriting.text);
  words.origins = std::move(rewriting.origins);
}

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool adds_space, std::optional<Split> gpt2)
      : adds_space_(adds_space), gpt2_(std::move(gpt2)) {}

  Result<void> apply(Words& words) const override {
    const auto lacks_space = [&](const Span& word) { return words.text[word.begin] != ' '; };
    if (adds_space_ && std::any_of(words.spans.begin(), words.spans.end(), lacks_space)) {
      rewrite_words(words, [](std::string_view word, size_t, Rewriting& to) {
        if (!word.starts_with(' ')) to.put(" ", 0);
        for (size_t i = 0; i < word.size(); ++i) to.put(word.substr(i, 1), i);
      });
    }
    if (gpt2_) {
      if (Result<void> cut = gpt2_->apply(words); !cut.ok()) return cut;
    }
    rewrite_words(words,
                  [](std::string_view word, size_t, Rewriting& to) { to.put_as_characters(word); });
    return {};
  }

 private:
  bool adds_space_;
  std::optional<Split> gpt2_;
};

enum class Prepended { always, first, never };

class Metaspace : public PreTokenizer {
 public:
  Metaspace(std::string mark, Prepended prepended, std::optional<Split> cut)
      : mark_(std::move(mark)), prepended_(prepended), cut_(std::move(cut)) {}

  Result<void> apply(Words& words) const override {
    const bool begin_the_input = words.begin_the_input;
    rewrite_words(words, [&](std::string_view word, size_t index, Rewriting& to) {
      const bool is_first = index == 0 && begin_the_input;
      const bool has_mark = word.starts_with(' ') || word.starts_with(mark_);
      if (!has_mark &&
          (prepended_ == Prepended::always || (prepended_ == Prepended::first && is_first))) {
        to.put(mark_, 0);
      }
      for (size_t i = 0; i < word.size(); ++i)
        to.put(word[i] == ' ' ? std::string_view(mark_) : word.substr(i, 1), i);
    });
    return cut_ ? cut_->apply(words) : Result<void>();
  }

 private:
  std::string mark_;
  Prepended prepended_;
  std::optional<Split> cut_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  Result<void> apply(Words& words) const override {
    for (const auto& step : steps_) {
      if (Result<void> applied = step->apply(words); !applied.ok()) return applied;
    }
    return {};
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

using Made = Result<std::unique_ptr<PreTokenizer>>;

Made parse_sequence(const json& from) {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (const json& step : from.at("pretokenizers")) {
    Made made = parse_pre_tokenizer(step);
    if (!made.ok()) return made;
    if (made.value() != nullptr) steps.push_back(std::move(made).value());
  }
  return Made(std::make_unique<Sequence>(std::move(steps)));
}

Made parse_split(const json& from) {
  Result<Regex> pattern = parse_pattern(from.at("pattern"));
  if (!pattern.ok()) return pattern.error();
  const auto name = from.at("behavior").get<std::string>();
  const std::optional<Behaviour> behaviour = behaviour_named(name);
  if (!behaviour) {
    return Error{Code::unsupported, "its Split has behaviour '" + name + "', which is not known"};
  }
  const bool inverted = from.contains("invert") && from["invert"].get<bool>();
  return Made(std::make_unique<Split>(std::move(pattern).value(), *behaviour,
                                      inverted ? Delimiter::between_matches : Delimiter::matches));
}

Made parse_byte_level(const json& from) {
  std::optional<Split> gpt2;
  if (!from.contains("use_regex") || from["use_regex"].get<bool>()) {
    Result<Regex> pattern = Regex::compile(kGpt2Pattern);
    if (!pattern.ok()) return pattern.error();
    gpt2.emplace(std::move(pattern).value(), Behaviour::isolated, Delimiter::matches);
  }
  return Made(
      std::make_unique<ByteLevel>(from.at("add_prefix_space").get<bool>(), std::move(gpt2)));
}

// A number to Rust's `char::is_numeric`, which knows Unicode 17; to regular expressions the last two ranges are not assigned.
constexpr const char* kNumber = "[\\p{N}\U00011DE0-\U00011DE9\U00016FF4-\U00016FF6]";

Made parse_digits(const json& from) {
  Result<Regex> number = Regex::compile(kNumber);
  if (!number.ok()) return number.error();
  const bool each = from.at("individual_digits").get<bool>();
  return Made(std::make_unique<Split>(std::move(number).value(),
                                      each ? Behaviour::isolated : Behaviour::contiguous,
                                      Delimiter::matches));
}

Made parse_metaspace(const json& from) {
  const auto mark = from.at("replacement").get<std::string>();
  auto prepended = Prepended::always;
  if (from.contains("prepend_scheme")) {
    const auto scheme = from["prepend_scheme"].get<std::string>();
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      return Error{Code::unsupported, "its Metaspace has prepend_scheme '" + scheme + "'"};
    }
    prepended = scheme == "always"  ? Prepended::always
                : scheme == "first" ? Prepended::first
                                    : Prepended::never;
  } else if (from.contains("add_prefix_space") && from["add_prefix_space"] == false) {
    prepended = Prepended::never;
  }
  std::optional<Split> cut;
  if (!from.contains("split") || from["split"].get<bool>()) {
    cut.emplace(Regex::literal(mark), Behaviour::merged_with_next, Delimiter::matches);
  }
  return Made(std::make_unique<Metaspace>(mark, prepended, std::move(cut)));
}

}  // namespace

PreTokenizer::~PreTokenizer() = default;

Result<std::unique_ptr<PreTokenizer>> parse_pre_tokenizer(const json& from) {
  if (from.is_null()) return std::unique_ptr<PreTokenizer>();
  const auto type = from.at("type").get<std::string>();
  if (type == "Sequence") return parse_sequence(from);
  if (type == "Split") return parse_split(from);
  if (type == "ByteLevel") return parse_byte_level(from);
  if (type == "Digits") return parse_digits(from);
  if (type == "Metaspace") return parse_metaspace(from);
  return Error{Code::unsupported, "its pre-tokenizer '" + type + "' is not supported"};
}

}  // namespace bottomless::text
