#include "tokenizers/chat_template.h"

#include "jinja/interpreter.h"
#include "jinja/syntax.h"
#include "unicode/utf8.h"

namespace bottomless::text {

struct ParsedTemplate {
  Block block;
  bool marks_replies;
};

namespace {

constexpr std::string_view kAssistant = "assistant";

bool has_generation(const Block& block) {
  for (const Statement& statement : block) {
    if (statement.kind == Statement::Kind::generation || has_generation(statement.body) ||
        has_generation(statement.otherwise)) {
      return true;
    }
  }
  return false;
}

Mapping variables_of(std::span<const Message> messages, const ChatOptions& options) {
  List list;
  for (const Message& message : messages) {
    list.push_back(Mapping{{"role", replace_invalid(message.role)},
                           {"content", replace_invalid(message.content)}});
  }
  Mapping variables = {{"messages", std::move(list)},
                       {"add_generation_prompt", options.ending == ChatOptions::Ending::invitation},
                       {"tools", None{}},
                       {"documents", None{}}};
  const auto add = [&](const std::string& name, const std::string& value) {
    variables.emplace_back(name, replace_invalid(value));
  };
  if (!options.bos_token.empty()) add("bos_token", options.bos_token);
  if (!options.eos_token.empty()) add("eos_token", options.eos_token);
  for (const auto& [name, value] : options.variables) add(name, value);
  return variables;
}

Result<Rendered> render(const ChatTemplate& chat_template, std::span<const Message> messages,
                        const ChatOptions& options, ChatOptions::Ending ending) {
  ChatOptions changed = options;
  changed.ending = ending;
  auto rendered =
      render_jinja(chat_template.parsed().block, variables_of(messages, changed), options.now);
  if (rendered.ok()) return rendered;
  return Error{rendered.error().code,
               "render a chat of " + std::to_string(messages.size()) +
                   " messages with the model's chat template: " + rendered.error().message};
}

// The reply is what the whole text has behind the invitation to it, up to where the conversation ends with it.
Result<Span> find_reply(const ChatTemplate& chat_template, std::span<const Message> messages,
                        size_t index, const std::string& whole, const ChatOptions& options) {
  using Ending = ChatOptions::Ending;
  const auto before = render(chat_template, messages.first(index), options, Ending::invitation);
  if (!before.ok()) return before.error();
  const auto with = render(chat_template, messages.first(index + 1), options, Ending::last_message);
  if (!with.ok()) return with.error();
  const std::string& start = before.value().text;
  const std::string& through = with.value().text;
  if (!through.starts_with(start) || !whole.starts_with(through)) {
    return Error{Code::unsupported,
                 "find the reply that is message " + std::to_string(index + 1) +
                     " in a chat: the chat template writes what comes before it in another way "
                     "when it is there; put the reply into {% generation %} in the template"};
  }
  return Span{start.size(), through.size()};
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  Result<Block> block = parse_jinja(replace_invalid(source));
  if (!block.ok()) {
    return Error{block.error().code, "read a chat template: " + block.error().message};
  }
  const bool marks_replies = has_generation(block.value());
  return ChatTemplate(std::make_shared<const ParsedTemplate>(
      ParsedTemplate{std::move(block).value(), marks_replies}));
}

Result<std::string> render_chat(const ChatTemplate& chat_template,
                                std::span<const Message> messages, const ChatOptions& options) {
  auto rendered = render(chat_template, messages, options, options.ending);
  if (!rendered.ok()) return rendered.error();
  return std::move(rendered.value().text);
}

Result<ChatWithReplies> render_chat_with_replies(const ChatTemplate& chat_template,
                                                 std::span<const Message> messages,
                                                 const ChatOptions& options) {
  auto whole = render(chat_template, messages, options, ChatOptions::Ending::last_message);
  if (!whole.ok()) return whole.error();
  ChatWithReplies chat{std::move(whole.value().text), std::move(whole.value().generated)};
  if (chat_template.parsed().marks_replies) return chat;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != kAssistant) continue;
    const Result<Span> reply = find_reply(chat_template, messages, i, chat.text, options);
    if (!reply.ok()) return reply.error();
    chat.replies.push_back(reply.value());
  }
  return chat;
}

}  // namespace bottomless::text
