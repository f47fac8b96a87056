#include "tokenizers/tokenizer.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errno_error.h"
#include "tokenizers/added_tokens.h"
#include "tokenizers/json_tokenizer.h"
#include "tokenizers/sentencepiece/sentencepiece.h"

namespace bottomless::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Result<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) return errno_error(errno, "read " + path.string());
  return text;
}

// The object in a file that may be missing; an empty one then.
Result<json> read_object(const fs::path& path) {
  if (!fs::exists(path)) return json::object();
  const Result<std::string> text = read_file(path);
  if (!text.ok()) return text.error();
  json parsed = json::parse(text.value(), nullptr, false);
  if (parsed.is_object()) return parsed;
  return Error{Code::corrupt,
               "read " + path.string() +
                   ": it is no JSON object; the file is corrupt: download or write it again"};
}

// A token is written as its text, or as an object with the text as "content".
std::string token_text(const json& object, const char* name) {
  if (!object.contains(name)) return {};
  const json& token = object[name];
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  return {};
}

// An id, or the first of several.
std::optional<int32_t> token_id(const json& object, const char* name) {
  if (!object.contains(name)) return {};
  const json* id = &object[name];
  if (id->is_array() && !id->empty()) id = &id->front();
  if (!id->is_number_integer()) return {};
  return id->get<int32_t>();
}

bool flag(const json& object, const char* name, bool otherwise) {
  return object.contains(name) && object[name].is_boolean() ? object[name].get<bool>() : otherwise;
}

// One template, or several with names, of which "default" is meant.
std::string chat_template_in(const json& config) {
  if (!config.contains("chat_template")) return {};
  const json& given = config["chat_template"];
  if (given.is_string()) return given.get<std::string>();
  if (!given.is_array()) return {};
  for (const json& named : given) {
    if (named.is_object() && named.value("name", json()) == "default" &&
        named.value("template", json()).is_string()) {
      return named["template"].get<std::string>();
    }
  }
  return {};
}

struct Facts {
  json config;      // tokenizer_config.json
  json special;     // special_tokens_map.json
  json generation;  // generation_config.json
};

void set_special_token(const Facts& facts, const char* name, const Tokenizer& tokenizer,
                       std::optional<int32_t>& id, std::string* written) {
  std::string text = token_text(facts.config, name);
  if (text.empty()) text = token_text(facts.special, name);
  if (!text.empty()) {
    id = tokenizer.id_of(text);
  } else if (!id) {
    id = token_id(facts.generation, (std::string(name) + "_id").c_str());
  }
  if (written != nullptr && !text.empty()) *written = text;
}

Result<void> read_facts(const fs::path& directory, const Facts& facts, Tokenizer& tokenizer) {
  set_special_token(facts, "bos_token", tokenizer, tokenizer.bos, &tokenizer.bos_token);
  set_special_token(facts, "eos_token", tokenizer, tokenizer.eos, &tokenizer.eos_token);
  set_special_token(facts, "pad_token", tokenizer, tokenizer.pad, nullptr);
  tokenizer.adds_bos = flag(facts.config, "add_bos_token", tokenizer.adds_bos) && tokenizer.bos;
  tokenizer.adds_eos = flag(facts.config, "add_eos_token", tokenizer.adds_eos) && tokenizer.eos;
  tokenizer.chat_template = chat_template_in(facts.config);
  const fs::path separate = directory / "chat_template.jinja";
  if (!fs::exists(separate)) return {};
  Result<std::string> text = read_file(separate);
  if (!text.ok()) return text.error();
  tokenizer.chat_template = std::move(text).value();
  return {};
}

// What transformers finds in a text beside the pieces of a tokenizer.model: what was added, and the tokens with a special
// meaning, which older files name alone, without their ids.
std::vector<AddedToken> added_tokens_in(const Facts& facts) {
  const json& config = facts.config;
  std::vector<AddedToken> tokens;
  if (!config.contains("added_tokens_decoder")) {
    for (const char* name : {"unk_token", "bos_token", "eos_token", "pad_token"}) {
      std::string text = token_text(config, name);
      if (text.empty()) text = token_text(facts.special, name);
      if (!text.empty()) tokens.push_back({.content = std::move(text), .id = kIdOfPiece});
    }
    return tokens;
  }
  for (const auto& [id, token] : config["added_tokens_decoder"].items()) {
    tokens.push_back(parse_added_token(token, static_cast<int32_t>(std::atol(id.c_str()))));
    tokens.back().normalized = false;  // there is no normalised text to find it in
  }
  return tokens;
}

Result<std::unique_ptr<Tokenizer>> open_vocabulary(const fs::path& directory, const Facts& facts) {
  const fs::path as_json = directory / "tokenizer.json";
  const fs::path as_model = directory / "tokenizer.model";
  const bool is_json = fs::exists(as_json);
  if (!is_json && !fs::exists(as_model)) {
    return Error{Code::not_found,
                 "open a tokenizer in " + directory.string() +
                     ": there is neither tokenizer.json nor tokenizer.model; give the directory of "
                     "a model as Hugging Face writes it, or copy one of the two files there"};
  }
  const fs::path& path = is_json ? as_json : as_model;
  const std::string attempted = "read " + path.string();
  const Result<std::string> text = read_file(path);
  if (!text.ok()) return text.error();
  if (is_json) return parse_tokenizer_json(text.value(), attempted);
  try {
    const BlankInFront blank =
        flag(facts.config, "legacy", false) ? BlankInFront::of_each_part : BlankInFront::of_text;
    return parse_sentencepiece(text.value(), added_tokens_in(facts), blank, attempted);
  } catch (const json::exception& error) {
    return Error{Code::corrupt, "read " + (directory / "tokenizer_config.json").string() + ": " +
                                    error.what() +
                                    "; the file is corrupt: download or write it again"};
  }
}

}  // namespace

Tokenizer::~Tokenizer() = default;

std::vector<uint8_t> tokens_within(std::span<const Span> spans, std::span<const PlacedToken> tokens,
                                   size_t text_bytes) {
  std::vector<uint8_t> within;
  auto span = spans.begin();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t begin = tokens[i].begin;
    const size_t next = i + 1 < tokens.size() ? tokens[i + 1].begin : text_bytes;
    const size_t end = std::max(next, begin + 1);  // of several that one character has become
    while (span != spans.end() && span->end <= begin) ++span;
    within.push_back(span != spans.end() && span->begin < end ? 1 : 0);
  }
  return within;
}

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const fs::path& model_directory) {
  Facts facts;
  for (const auto& [name, into] :
       {std::pair<const char*, json*>{"tokenizer_config.json", &facts.config},
        {"special_tokens_map.json", &facts.special},
        {"generation_config.json", &facts.generation}}) {
    Result<json> read = read_object(model_directory / name);
    if (!read.ok()) return read.error();
    *into = std::move(read).value();
  }
  auto tokenizer = open_vocabulary(model_directory, facts);
  if (!tokenizer.ok()) return tokenizer;
  if (Result<void> read = read_facts(model_directory, facts, *tokenizer.value()); !read.ok()) {
    return read.error();
  }
  return tokenizer;
}

}  // namespace bottomless::text
