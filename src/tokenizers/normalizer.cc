#include "tokenizers/normalizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizers/pattern.h"
#include "unicode/forms.h"
#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

using nlohmann::json;

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(Form form) : form_(form) {}
  Result<void> apply(std::string& text) const override {
    normalize(form_, text);
    return {};
  }

 private:
  Form form_;
};

class Lowercase : public Normalizer {
 public:
  Result<void> apply(std::string& text) const override {
    make_lowercase(text);
    return {};
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  Result<void> apply(std::string& text) const override {
    text = std::string(stripped(text));
    return {};
  }

  Result<void> trace(std::string& text, std::vector<size_t>& origins) const override {
    const std::string_view rest = stripped(text);
    const auto begin = static_cast<size_t>(rest.data() - text.data());
    origins =
        std::vector<size_t>(origins.begin() + static_cast<std::ptrdiff_t>(begin),
                            origins.begin() + static_cast<std::ptrdiff_t>(begin + rest.size()));
    text = std::string(rest);
    return {};
  }

 private:
  std::string_view stripped(std::string_view rest) const {
    while (left_ && !rest.empty() && is_whitespace(first_character(rest).code)) {
      rest.remove_prefix(first_character(rest).bytes);
    }
    while (right_ && !rest.empty() && is_whitespace(last_character(rest).code)) {
      rest.remove_suffix(last_character(rest).bytes);
    }
    return rest;
  }

  bool left_;
  bool right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string what) : what_(std::move(what)) {}
  Result<void> apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, what_);
    return {};
  }
  Result<void> trace(std::string& text, std::vector<size_t>& origins) const override {
    if (text.empty()) return {};
    origins.insert(origins.begin(), what_.size(), origins.front());
    return apply(text);
  }

 private:
  std::string what_;
};

class Replace : public Normalizer {
 public:
  Replace(Regex pattern, std::string by) : pattern_(std::move(pattern)), by_(std::move(by)) {}
  Result<void> apply(std::string& text) const override { return replace_all(pattern_, by_, text); }
  Result<void> trace(std::string& text, std::vector<size_t>& origins) const override {
    return replace_all(pattern_, by_, text, &origins);
  }

 private:
  Regex pattern_;
  std::string by_;
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  Result<void> apply(std::string& text) const override {
    for (const auto& step : steps_) {
      if (Result<void> applied = step->apply(text); !applied.ok()) return applied;
    }
    return {};
  }
  Result<void> trace(std::string& text, std::vector<size_t>& origins) const override {
    for (const auto& step : steps_) {
      if (Result<void> traced = step->trace(text, origins); !traced.ok()) return traced;
    }
    return {};
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

using Made = Result<std::unique_ptr<Normalizer>>;

Made parse_sequence(const json& from) {
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (const json& step : from.at("normalizers")) {
    Made made = parse_normalizer(step);
    if (!made.ok()) return made;
    if (made.value() != nullptr) steps.push_back(std::move(made).value());
  }
  return Made(std::make_unique<Sequence>(std::move(steps)));
}

Made parse_replace(const json& from) {
  Result<Regex> pattern = parse_pattern(from.at("pattern"));
  if (!pattern.ok()) return pattern.error();
  return Made(
      std::make_unique<Replace>(std::move(pattern).value(), from.at("content").get<std::string>()));
}

}  // namespace

Normalizer::~Normalizer() = default;

// For what changes characters without regard to others, but for marks behind them. No ASCII character is such a mark: in
// front of each the text may be cut. Between two such places each character is taken by itself, or, where marks have moved
// or were composed, byte by byte.
Result<void> Normalizer::trace(std::string& text, std::vector<size_t>& origins) const {
  std::string changed = text;
  if (Result<void> applied = apply(changed); !applied.ok()) return applied;
  if (changed == text) return {};
  changed.clear();
  std::vector<size_t> from;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) ++end;
    std::string part = text.substr(begin, end - begin), one_by_one;
    std::vector<size_t> each;
    for (size_t at = begin; at < end;) {
      std::string character = text.substr(at, bytes_of_character(text[at]));
      const size_t bytes = character.size();
      if (Result<void> applied = apply(character); !applied.ok()) return applied;
      one_by_one += character;
      each.insert(each.end(), character.size(), origins[at]);
      at += bytes;
    }
    if (Result<void> applied = apply(part); !applied.ok()) return applied;
    const bool is_alone = part == one_by_one;
    for (size_t i = 0; i < part.size(); ++i)
      from.push_back(is_alone ? each[i] : origins[std::min(begin + i, end - 1)]);
    changed += part;
    begin = end;
  }
  text = std::move(changed);
  origins = std::move(from);
  return {};
}

Result<std::unique_ptr<Normalizer>> parse_normalizer(const json& from) {
  if (from.is_null()) return std::unique_ptr<Normalizer>();
  const auto type = from.at("type").get<std::string>();
  if (type == "Sequence") return parse_sequence(from);
  if (type == "NFC") return Made(std::make_unique<UnicodeForm>(Form::nfc));
  if (type == "NFD") return Made(std::make_unique<UnicodeForm>(Form::nfd));
  if (type == "NFKC") return Made(std::make_unique<UnicodeForm>(Form::nfkc));
  if (type == "NFKD") return Made(std::make_unique<UnicodeForm>(Form::nfkd));
  if (type == "Lowercase") return Made(std::make_unique<Lowercase>());
  if (type == "Strip") {
    return Made(std::make_unique<Strip>(from.at("strip_left").get<bool>(),
                                        from.at("strip_right").get<bool>()));
  }
  if (type == "Prepend") {
    return Made(std::make_unique<Prepend>(from.at("prepend").get<std::string>()));
  }
  if (type == "Replace") return parse_replace(from);
  return Error{Code::unsupported, "its normalizer '" + type + "' is not supported"};
}

}  // namespace bottomless::text
