#include "tokenizers/decoder.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "tokenizers/bpe/byte_level.h"
#include "tokenizers/pattern.h"
#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

using nlohmann::json;

class ByteLevel : public Decoder {
 public:
  Result<void> apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) append_bytes(token, bytes);
    tokens = {replace_invalid(bytes)};
    return {};
  }

 private:
  // A token that was not made from bytes, such as an added one, stands for itself.
  static void append_bytes(const std::string& token, std::string& bytes) {
    const size_t before = bytes.size();
    for (std::string_view rest = token; !rest.empty();) {
      const Character character = first_character(rest);
      const auto byte = byte_of_character(character.code);
      if (!byte) {
        bytes.resize(before);
        bytes += token;
        return;
      }
      bytes.push_back(static_cast<char>(*byte));
      rest.remove_prefix(character.bytes);
    }
  }
};

class ByteFallback : public Decoder {
 public:
  Result<void> apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> decoded;
    std::string bytes;
    const auto end_bytes = [&] {
      if (is_utf8(bytes)) {
        if (!bytes.empty()) decoded.push_back(bytes);
      } else {
        for (size_t i = 0; i < bytes.size(); ++i) decoded.push_back("\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      const int byte = byte_of_token(token);
      if (byte >= 0) {
        bytes.push_back(static_cast<char>(byte));
        continue;
      }
      end_bytes();
      decoded.push_back(std::move(token));
    }
    end_bytes();
    tokens = std::move(decoded);
    return {};
  }
};

class Fuse : public Decoder {
 public:
  Result<void> apply(std::vector<std::string>& tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens = {std::move(all)};
    return {};
  }
};

class Replace : public Decoder {
 public:
  Replace(Regex pattern, std::string by) : pattern_(std::move(pattern)), by_(std::move(by)) {}
  Result<void> apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      if (Result<void> replaced = replace_all(pattern_, by_, token); !replaced.ok())
        return replaced;
    }
    return {};
  }

 private:
  Regex pattern_;
  std::string by_;
};

class Strip : public Decoder {
 public:
  Strip(std::string content, size_t from_start, size_t from_end)
      : content_(std::move(content)), from_start_(from_start), from_end_(from_end) {}
  Result<void> apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      for (size_t i = 0; i < from_start_ && token.starts_with(content_); ++i) {
        token.erase(0, content_.size());
      }
      for (size_t i = 0; i < from_end_ && token.ends_with(content_); ++i) {
        token.resize(token.size() - content_.size());
      }
    }
    return {};
  }

 private:
  std::string content_;
  size_t from_start_;
  size_t from_end_;
};

class Metaspace : public Decoder {
 public:
  Metaspace(std::string mark, bool was_prepended)
      : mark_(Regex::literal(mark)), was_prepended_(was_prepended) {}
  Result<void> apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string_view by = i == 0 && was_prepended_ ? "" : " ";
      if (Result<void> replaced = replace_all(mark_, by, tokens[i]); !replaced.ok())
        return replaced;
    }
    return {};
  }

 private:
  Regex mark_;
  bool was_prepended_;
};

class Sequence : public Decoder {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Decoder>> steps) : steps_(std::move(steps)) {}
  Result<void> apply(std::vector<std::string>& tokens) const override {
    for (const auto& step : steps_) {
      if (Result<void> applied = step->apply(tokens); !applied.ok()) return applied;
    }
    return {};
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

using Made = Result<std::unique_ptr<Decoder>>;

Made parse_sequence(const json& from) {
  std::vector<std::unique_ptr<Decoder>> steps;
  for (const json& step : from.at("decoders")) {
    Made made = parse_decoder(step);
    if (!made.ok()) return made;
    if (made.value() != nullptr) steps.push_back(std::move(made).value());
  }
  return Made(std::make_unique<Sequence>(std::move(steps)));
}

bool prepends(const json& from) {
  if (from.contains("prepend_scheme")) return from["prepend_scheme"] != "never";
  return !from.contains("add_prefix_space") || from["add_prefix_space"] != false;
}

}  // namespace

Decoder::~Decoder() = default;

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int value = -1;
  const char* end = token.data() + 5;
  const auto [stop, error] = std::from_chars(token.data() + 3, end, value, 16);
  return error == std::errc() && stop == end ? value : -1;
}

Result<std::unique_ptr<Decoder>> parse_decoder(const json& from) {
  if (from.is_null()) return std::unique_ptr<Decoder>();
  const auto type = from.at("type").get<std::string>();
  if (type == "Sequence") return parse_sequence(from);
  if (type == "ByteLevel") return Made(std::make_unique<ByteLevel>());
  if (type == "ByteFallback") return Made(std::make_unique<ByteFallback>());
  if (type == "Fuse") return Made(std::make_unique<Fuse>());
  if (type == "Strip") {
    return Made(std::make_unique<Strip>(from.at("content").get<std::string>(),
                                        from.at("start").get<size_t>(),
                                        from.at("stop").get<size_t>()));
  }
  if (type == "Metaspace") {
    return Made(
        std::make_unique<Metaspace>(from.at("replacement").get<std::string>(), prepends(from)));
  }
  if (type == "Replace") {
    Result<Regex> pattern = parse_pattern(from.at("pattern"));
    if (!pattern.ok()) return pattern.error();
    return Made(std::make_unique<Replace>(std::move(pattern).value(),
                                          from.at("content").get<std::string>()));
  }
  return Error{Code::unsupported, "its decoder '" + type + "' is not supported"};
}

}  // namespace bottomless::text
