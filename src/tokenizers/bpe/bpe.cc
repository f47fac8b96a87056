#include "tokenizers/bpe/bpe.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

using nlohmann::json;

constexpr int32_t kNoToken = -1;
constexpr int64_t kMostIds = int64_t{1} << 24;  // far above every vocabulary; a larger id is damage

Error corrupt(std::string what) { return {Code::corrupt, std::move(what)}; }

bool is_set(const json& model, const char* name) {
  return model.contains(name) && model[name].is_boolean() && model[name].get<bool>();
}

// The two parts of a merge: ["a", "b"], or "a b" in older files.
Result<std::pair<std::string, std::string>> parts_of(const json& merge) {
  if (merge.is_array() && merge.size() == 2) {
    return std::pair{merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  const auto& text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    return corrupt("the merge '" + text + "' has not two parts");
  }
  return std::pair{text.substr(0, space), text.substr(space + 1)};
}

Result<void> check_options(const json& model) {
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.contains(affix) && model[affix].is_string() && !model[affix].empty() &&
        model[affix] != "") {
      return Error{Code::unsupported,
                   std::string("its BPE has a ") + affix + ", which is not supported"};
    }
  }
  if (model.contains("dropout") && model["dropout"].is_number() && model["dropout"] != 0) {
    return Error{Code::unsupported,
                 "its BPE has dropout, which makes tokens random; set \"dropout\" to null"};
  }
  return {};
}

}  // namespace

Result<Bpe> Bpe::parse(const json& model) {
  if (Result<void> checked = check_options(model); !checked.ok()) return checked.error();
  Bpe bpe;
  if (Result<void> read = bpe.read_vocabulary(model.at("vocab")); !read.ok()) return read.error();
  if (Result<void> read = bpe.read_merges(model.at("merges")); !read.ok()) return read.error();
  bpe.index_characters();
  bpe.falls_back_to_bytes_ = is_set(model, "byte_fallback");
  bpe.fuses_unknown_ = is_set(model, "fuse_unk");
  bpe.ignores_merges_ = is_set(model, "ignore_merges");
  if (model.contains("unk_token") && model["unk_token"].is_string()) {
    const auto token = model["unk_token"].get<std::string>();
    bpe.unknown_ = bpe.id_of(token);
    if (!bpe.unknown_) return corrupt("its unk_token '" + token + "' is not in the vocabulary");
  }
  return bpe;
}

Result<void> Bpe::read_vocabulary(const json& vocabulary) {
  ids_.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= uint64_t{kMostIds}) {
      return corrupt("the id of token '" + token + "' is " + id.dump());
    }
    const auto number = id.get<size_t>();
    const auto entry = ids_.emplace(token, static_cast<int32_t>(number)).first;
    if (tokens_.size() <= number) tokens_.resize(number + 1, nullptr);
    tokens_[number] = &entry->first;
  }
  return {};
}

Result<void> Bpe::read_merges(const json& merges) {
  merges_ = Merges(merges.size());
  for (const json& merge : merges) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto parts = parts_of(merge);
    if (!parts.ok()) return parts.error();
    const auto& [left, right] = parts.value();
    const auto left_id = id_of(left);
    const auto right_id = id_of(right);
    const auto merged_id = id_of(left + right);
    if (!left_id || !right_id || !merged_id) {
      return corrupt("the merge of '" + left + "' and '" + right +
                     "' has a part or a result that is not in the vocabulary");
    }
    merges_.add(*left_id, *right_id, *merged_id);
  }
  return {};
}

void Bpe::index_characters() {
  for (char32_t code = 0; code < short_characters_.size(); ++code) {
    std::string character;
    append(code, character);
    short_characters_[code] = id_of(character).value_or(kNoToken);
  }
  for (unsigned byte = 0; byte < byte_ids_.size(); ++byte) {
    std::array<char, 8> name;
    std::snprintf(name.data(), name.size(), "<0x%02X>", byte);
    byte_ids_[byte] = id_of(name.data()).value_or(kNoToken);
  }
}

std::optional<int32_t> Bpe::id_of(std::string_view token) const {
  const auto entry = ids_.find(token);
  if (entry == ids_.end()) return {};
  return entry->second;
}

const std::string* Bpe::token_of(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < tokens_.size() ? tokens_[id] : nullptr;
}

int32_t Bpe::id_of_character(std::string_view character) const {
  if (character.size() <= 2) {
    const char32_t code = first_character(character).code;
    if (code < short_characters_.size()) return short_characters_[code];
  }
  return id_of(character).value_or(kNoToken);
}

void Bpe::begin_with_characters(std::string_view word, std::vector<int32_t>& symbols) const {
  bool unknown_waits =
      false;  // it may still grow; bytes that follow it come before it, as in the original
  const auto emit_unknown = [&] {
    if (unknown_waits) symbols.push_back(*unknown_);
    unknown_waits = false;
  };
  for (size_t at = 0; at < word.size();) {
    const std::string_view character = word.substr(at, bytes_of_character(word[at]));
    at += character.size();
    const int32_t id = id_of_character(character);
    if (id != kNoToken) {
      emit_unknown();
      symbols.push_back(id);
      continue;
    }
    const auto has_byte = [&](char byte) {
      return byte_ids_[static_cast<uint8_t>(byte)] != kNoToken;
    };
    if (falls_back_to_bytes_ && std::all_of(character.begin(), character.end(), has_byte)) {
      for (const char byte : character) symbols.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
      continue;
    }
    if (!unknown_) continue;
    if (!fuses_unknown_) emit_unknown();
    unknown_waits = true;
  }
  emit_unknown();
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (cache_.find(word, ids)) return;
  std::vector<int32_t> symbols;
  const std::optional<int32_t> whole = ignores_merges_ ? id_of(word) : std::nullopt;
  if (whole) {
    symbols.push_back(*whole);
  } else {
    begin_with_characters(word, symbols);
    merges_.apply(symbols);
  }
  cache_.keep(word, symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

// A token has as many bytes as its text, but for bytes that no character stands for, and for the unknown, which is one
// character or, if unknown ones are fused, all up to the next that is known.
std::vector<size_t> Bpe::begins_of(std::string_view word, std::span<const int32_t> ids) const {
  std::vector<size_t> begins;
  size_t at = 0;
  for (const int32_t id : ids) {
    begins.push_back(std::min(at, word.size()));
    const std::string_view rest = word.substr(begins.back());
    const std::string* const token = token_of(id);
    if (rest.empty()) continue;
    if (token != nullptr && rest.starts_with(*token)) {
      at += token->size();
    } else if (id == byte_ids_[static_cast<uint8_t>(rest[0])]) {
      ++at;
    } else {
      const auto is_known = [&](size_t from) {
        return id_of_character(word.substr(from, bytes_of_character(word[from]))) != kNoToken;
      };
      do {
        at += bytes_of_character(word[at]);
      } while (fuses_unknown_ && at < word.size() && !is_known(at));
    }
  }
  return begins;
}

}  // namespace bottomless::text
