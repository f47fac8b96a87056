// Asks a tokenizer from outside C++: tests/python/test_tokenizers.py compares it with the packages of PyPI.
//   tokenizer_probe ids DIRECTORY       lines of text -> ids, separated by spaces
//   tokenizer_probe places DIRECTORY    the same with the byte where each begins: id:byte
//   tokenizer_probe replies DIRECTORY   lines of JSON messages -> {ids, counts} by the directory's chat template, or {error}
//   tokenizer_probe text DIRECTORY      lines of ids -> text, in which \ and the end of a line are escaped as \\ and \n
//   tokenizer_probe facts DIRECTORY     what the directory says, one fact a line
//   tokenizer_probe words JSON          lines of text -> the words that this pre-tokenizer makes, separated by U+001F
//   tokenizer_probe chat -              lines of JSON {template, messages, invitation, ...} -> {text, replies} or {error}
//   tokenizer_probe train DIRECTORY N   names of files -> a tokenizer of N tokens, learned from them
//   tokenizer_probe time DIRECTORY N    lines of text -> seconds to encode them N times
// Lines of text are escaped in the same way. Exit code 1 and a message for whatever fails.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/bpe/bpe_trainer.h"
#include "tokenizers/chat_template.h"
#include "tokenizers/pre_tokenizer.h"
#include "tokenizers/tokenizer.h"

namespace {

using bottomless::text::Tokenizer;

std::string unescape(std::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      text += line[i];
    } else {
      text += line[++i] == 'n' ? '\n' : line[i];
    }
  }
  return text;
}

std::string escape(std::string_view text) {
  std::string line;
  for (const char byte : text) {
    if (byte == '\\' || byte == '\n') line += '\\';
    line += byte == '\n' ? 'n' : byte;
  }
  return line;
}

std::string numbers(const std::vector<int32_t>& ids) {
  std::string line;
  for (const int32_t id : ids) line.append(line.empty() ? "" : " ").append(std::to_string(id));
  return line;
}

std::vector<int32_t> parse_numbers(std::string_view line) {
  std::vector<int32_t> ids;
  const char* at = line.data();
  const char* end = at + line.size();
  for (int32_t id = 0; at < end; ++at) {
    const auto [stop, error] = std::from_chars(at, end, id);
    if (error != std::errc()) break;
    ids.push_back(id);
    at = stop;
  }
  return ids;
}

template <class Answer>
int answer_lines(Answer answer) {
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) std::cout << answer(line) << '\n';
  std::cout.flush();
  return 0;
}

int fail(const bottomless::Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return 1;
}

int print_words(const char* description) {
  auto made = bottomless::text::parse_pre_tokenizer(nlohmann::json::parse(description));
  if (!made.ok()) return fail(made.error());
  return answer_lines([&](const std::string& line) {
    bottomless::text::Words words{.text = unescape(line), .spans = {}, .begin_the_input = true};
    if (!words.text.empty()) words.spans.push_back({0, words.text.size()});
    if (made.value() != nullptr) (void)made.value()->apply(words);
    std::string answer;
    for (const auto& [begin, end] : words.spans) {
      if (begin != words.spans.front().begin) answer += '\x1F';
      answer += escape(std::string_view(words.text).substr(begin, end - begin));
    }
    return answer;
  });
}

int print_facts(const Tokenizer& tokenizer) {
  const auto id = [](const std::optional<int32_t>& value) {
    return value ? std::to_string(*value) : std::string("none");
  };
  std::cout << "vocabulary " << tokenizer.vocabulary_size() << "\nbos " << id(tokenizer.bos)
            << "\neos " << id(tokenizer.eos) << "\npad " << id(tokenizer.pad) << "\nadds_bos "
            << tokenizer.adds_bos << "\nadds_eos " << tokenizer.adds_eos << "\nchat_template "
            << escape(tokenizer.chat_template) << '\n';
  return 0;
}

int print_seconds(const Tokenizer& tokenizer, long repetitions) {
  std::vector<std::string> lines;
  size_t tokens = 0;
  for (std::string line; std::getline(std::cin, line);) lines.push_back(unescape(line));
  const auto start = std::chrono::steady_clock::now();
  for (long i = 0; i < repetitions; ++i) {
    for (const std::string& line : lines) tokens += tokenizer.encode(line).value().size();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%.6f %zu\n", took.count(), tokens);
  return 0;
}

nlohmann::json render(const nlohmann::json& asked) {
  using namespace bottomless::text;  // NOLINT: a probe
  const auto chat_template = ChatTemplate::parse(asked.at("template").get<std::string>());
  if (!chat_template.ok()) return {{"error", chat_template.error().message}};
  std::vector<Message> messages;
  for (const auto& message : asked.at("messages")) {
    messages.push_back({message.at("role"), message.at("content")});
  }
  ChatOptions options{.bos_token = asked.value("bos_token", ""),
                      .eos_token = asked.value("eos_token", "")};
  if (asked.value("with_replies", false)) {
    const auto chat = render_chat_with_replies(chat_template.value(), messages, options);
    if (!chat.ok()) return {{"error", chat.error().message}};
    nlohmann::json replies = nlohmann::json::array();
    for (const Span& reply : chat.value().replies) replies.push_back({reply.begin, reply.end});
    return {{"text", chat.value().text}, {"replies", replies}};
  }
  if (asked.value("invitation", false)) options.ending = ChatOptions::Ending::invitation;
  const auto text = render_chat(chat_template.value(), messages, options);
  if (!text.ok()) return {{"error", text.error().message}};
  return {{"text", text.value()}};
}

nlohmann::json encode_conversation(const Tokenizer& tokenizer, const nlohmann::json& asked) {
  using namespace bottomless::text;  // NOLINT: a probe
  const auto chat_template = ChatTemplate::parse(tokenizer.chat_template);
  if (!chat_template.ok()) return {{"error", chat_template.error().message}};
  std::vector<Message> messages;
  for (const auto& message : asked) messages.push_back({message.at("role"), message.at("content")});
  const auto chat = render_chat_with_replies(
      chat_template.value(), messages,
      {.bos_token = tokenizer.bos_token, .eos_token = tokenizer.eos_token});
  if (!chat.ok()) return {{"error", chat.error().message}};
  const std::vector<PlacedToken> tokens = tokenizer.encode_placed(chat.value().text).value();
  std::vector<int32_t> ids;
  for (const PlacedToken& token : tokens) ids.push_back(token.id);
  return {{"ids", ids},
          {"counts", tokens_within(chat.value().replies, tokens, chat.value().text.size())}};
}

std::string places(const std::vector<bottomless::text::PlacedToken>& tokens) {
  std::string line;
  for (const auto& [id, begin] : tokens) {
    line.append(line.empty() ? "" : " ");
    line.append(std::to_string(id)).append(":").append(std::to_string(begin));
  }
  return line;
}

int train(const char* directory, long vocabulary) {
  std::vector<std::filesystem::path> files;
  for (std::string line; std::getline(std::cin, line);) files.emplace_back(unescape(line));
  const auto trained =
      bottomless::text::train_byte_level_bpe(files, {.vocabulary = vocabulary}, directory);
  return trained.ok() ? 0 : fail(trained.error());
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: %s ids|text|facts|words|chat|train|time ...\n", arguments[0]);
    return 2;
  }
  const std::string_view verb = arguments[1];
  const long number = count > 3 ? std::atol(arguments[3]) : 1;
  if (verb == "words") return print_words(arguments[2]);
  if (verb == "chat") {
    return answer_lines(
        [](const std::string& line) { return render(nlohmann::json::parse(line)).dump(); });
  }
  if (verb == "train") return train(arguments[2], number);
  const auto tokenizer = bottomless::text::open_tokenizer(arguments[2]);
  if (!tokenizer.ok()) return fail(tokenizer.error());
  if (verb == "facts") return print_facts(*tokenizer.value());
  if (verb == "time") return print_seconds(*tokenizer.value(), number);
  if (verb == "places") {
    return answer_lines([&](const std::string& line) {
      return places(tokenizer.value()->encode_placed(unescape(line)).value());
    });
  }
  if (verb == "replies") {
    return answer_lines([&](const std::string& line) {
      return encode_conversation(*tokenizer.value(), nlohmann::json::parse(line)).dump();
    });
  }
  if (verb == "text") {
    return answer_lines([&](const std::string& line) {
      return escape(tokenizer.value()->decode(parse_numbers(line)).value());
    });
  }
  return answer_lines([&](const std::string& line) {
    return numbers(tokenizer.value()->encode(unescape(line)).value());
  });
}
