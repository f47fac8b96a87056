// Renders a conversation as the chat template of a model writes it, and says which parts of the text are the replies of
// the assistant: those that a model learns to give. docs/chat-templates.md says what a template may contain. What is not
// UTF-8 is read with U+FFFD in its place.
// Thread-safety: const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unicode/span.h"

namespace bottomless::text {

struct ParsedTemplate;

class ChatTemplate {
 public:
  // Errors name the line and what is wrong there or not supported.
  static Result<ChatTemplate> parse(std::string_view source);
  const ParsedTemplate& parsed() const { return *parsed_; }

 private:
  explicit ChatTemplate(std::shared_ptr<const ParsedTemplate> parsed)
      : parsed_(std::move(parsed)) {}
  std::shared_ptr<const ParsedTemplate> parsed_;
};

struct Message {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct ChatOptions {
  enum class Ending {
    last_message,
    invitation,  // what the assistant's reply would follow: add_generation_prompt
  };
  Ending ending = Ending::last_message;
  std::string bos_token;
  std::string eos_token;
  std::vector<std::pair<std::string, std::string>> variables;  // others that the template may name
  std::optional<std::tm>
      now;  // for strftime_now; without it the template sees that it is not defined
};

Result<std::string> render_chat(const ChatTemplate& chat_template,
                                std::span<const Message> messages, const ChatOptions& options);

struct ChatWithReplies {
  std::string text;
  std::vector<Span> replies;  // with what ends them, from left to right
};

// The replies are what stands in {% generation %} blocks or, if the template has none, what is added to the conversation
// before and its invitation. Errors say so if neither can be told. `options.ending` is not used.
Result<ChatWithReplies> render_chat_with_replies(const ChatTemplate& chat_template,
                                                 std::span<const Message> messages,
                                                 const ChatOptions& options);

}  // namespace bottomless::text
