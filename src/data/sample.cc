#include "data/sample.h"

#include <nlohmann/json.hpp>
#include <optional>

namespace bottomless::data {
namespace {

using nlohmann::json;

constexpr const char* kForms =
    R"(write {"text": ...}, {"prompt": ..., "response": ...} or {"messages": [{"role": ..., "content": ...}]})";

constexpr const char* kLines =
    "each line must be one JSON object by itself, as jq -c '.[]' makes them of an array and jq -c "
    ". of "
    "objects over several lines";

char first_letter(std::string_view line) {
  const size_t at = line.find_first_not_of(" \t\r");
  return at == std::string_view::npos ? '\0' : line[at];
}
bool starts_array(std::string_view line) { return first_letter(line) == '['; }
bool starts_object(std::string_view line) { return first_letter(line) == '{'; }

Error wrong(const std::string& where, const std::string& what, const std::string& advice) {
  return {Code::invalid_argument, "read the sample in " + where + ": " + what + "; " + advice};
}

const std::string* string_at(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? &found->get_ref<const std::string&>()
                                                     : nullptr;
}

// Names that other collections of conversations give to the same roles.
std::string role_of(const std::string& name) {
  if (name == "human") return "user";
  if (name == "gpt" || name == "model" || name == "bot") return "assistant";
  return name;
}

Result<Sample> parse_chat(const json& list, const std::string& where, const char* list_name,
                          const char* role, const char* content) {
  if (!list.is_array() || list.empty()) {
    return wrong(where, std::string("'") + list_name + "' is no list of messages", kForms);
  }
  Chat chat;
  bool answers = false;
  for (const json& message : list) {
    const std::string* who = message.is_object() ? string_at(message, role) : nullptr;
    const std::string* what = message.is_object() ? string_at(message, content) : nullptr;
    if (who == nullptr || what == nullptr) {
      return wrong(where,
                   "message " + std::to_string(chat.messages.size() + 1) + " has no '" + role +
                       "' and '" + content + "' that are strings",
                   "give it both");
    }
    chat.messages.push_back({role_of(*who), *what});
    answers = answers || chat.messages.back().role == "assistant";
  }
  if (!answers) {
    return wrong(where, "no message is the assistant's, so there is nothing to learn",
                 "add its answer or take the line out");
  }
  return Sample(std::move(chat));
}

void add(Encoded& encoded, const std::vector<int32_t>& tokens, uint8_t counts) {
  encoded.tokens.insert(encoded.tokens.end(), tokens.begin(), tokens.end());
  encoded.counts.resize(encoded.tokens.size(), counts);
}

void add(Encoded& encoded, std::optional<int32_t> token, uint8_t counts) {
  if (token.has_value()) add(encoded, std::vector<int32_t>{*token}, counts);
}

}  // namespace

Result<Sample> parse_sample(std::string_view line, const std::string& where) {
  if (const size_t valid = valid_utf8_prefix(line); valid != line.size()) {
    return wrong(where, "byte " + std::to_string(valid + 1) + " is not UTF-8",
                 "convert the file, for example with iconv -t UTF-8");
  }
  json object;
  try {
    object = json::parse(line);
  } catch (const json::parse_error& error) {
    if (starts_array(line)) return wrong(where, "a JSON array begins there", kLines);
    if (starts_object(line) && error.byte > line.size())
      return wrong(where, "it is not JSON by itself: the object does not end on the line", kLines);
    return wrong(where, "it is not JSON from byte " + std::to_string(error.byte) + " on",
                 "each line must be one JSON object, such as {\"text\": ...}");
  } catch (const json::exception&) {  // a number that no double holds
    return wrong(where, "a number in it is too large", "write it as a string");
  }
  if (object.is_array()) return wrong(where, "it is a JSON array", kLines);
  if (!object.is_object()) return wrong(where, "it is no JSON object", kForms);
  if (const std::string* text = string_at(object, "text")) return Sample(Text{*text});
  if (const std::string* prompt = string_at(object, "prompt")) {
    const std::string* response = string_at(object, "response");
    if (response == nullptr) response = string_at(object, "completion");
    if (response != nullptr) return Sample(Answer{*prompt, *response});
    return wrong(where, "there is a 'prompt' but no 'response' that is a string", kForms);
  }
  if (const auto list = object.find("messages"); list != object.end()) {
    return parse_chat(*list, where, "messages", "role", "content");
  }
  if (const auto list = object.find("conversations"); list != object.end()) {
    return parse_chat(*list, where, "conversations", "from", "value");
  }
  for (const char* name : {"text", "prompt"}) {
    if (object.contains(name))
      return wrong(where, std::string("its '") + name + "' is no string", kForms);
  }
  return wrong(where, "it has none of the names 'text', 'prompt', 'messages' and 'conversations'",
               kForms);
}

Result<Encoded> encode(const Sample& sample, const Encoder& encoder, const std::string& where) {
  if (const auto* chat = std::get_if<Chat>(&sample)) {
    Result<Encoded> encoded = encoder.encode_chat(chat->messages);
    if (encoded.ok()) return encoded;
    return Error{encoded.error().code,
                 "apply the chat template to " + where + ": " + encoded.error().message};
  }
  Encoded encoded;
  add(encoded, encoder.beginning(), 0);
  const auto add_text = [&](std::string_view text, uint8_t counts) -> Result<void> {
    const Result<std::vector<int32_t>> tokens = encoder.encode(text);
    if (!tokens.ok())
      return Error{tokens.error().code, "tokenize " + where + ": " + tokens.error().message};
    add(encoded, tokens.value(), counts);
    return {};
  };
  Result<void> added;
  if (const auto* text = std::get_if<Text>(&sample)) {
    added = add_text(text->text, 1);
  } else {
    // Apart, so that where the response begins does not depend on how the prompt ends.
    const auto& answer = std::get<Answer>(sample);
    added = add_text(answer.prompt, 0);
    if (added.ok()) added = add_text(answer.response, 1);
  }
  if (!added.ok()) return std::move(added).error();
  add(encoded, encoder.end(), 1);
  return encoded;
}

size_t valid_utf8_prefix(std::string_view text) {
  const auto byte_at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  size_t at = 0;
  while (at < text.size()) {
    const unsigned char lead = byte_at(at);
    if (lead < 0x80) {
      ++at;
      continue;
    }
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || text.size() - at < length) return at;
    // The second byte alone tells forms that are too long, surrogates, and what lies beyond U+10FFFF.
    const unsigned char least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte_at(at + 1) < least || byte_at(at + 1) > most) return at;
    for (size_t i = 2; i < length; ++i) {
      if (byte_at(at + i) < 0x80 || byte_at(at + i) > 0xBF) return at;
    }
    at += length;
  }
  return at;
}

}  // namespace bottomless::data
