#include "tokenizers/chat_template.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace bottomless::text {
namespace {

const std::vector<Message> kChat = {
    {"user", "ask"}, {"assistant", "answer"}, {"user", "more"}, {"assistant", "again"}};

constexpr const char* kSimple =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

ChatTemplate parsed(std::string_view source) {
  auto made = ChatTemplate::parse(source);
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(made).value();
}

TEST(ChatTemplate, InvitesTheAssistantToReply) {
  ChatOptions options{.ending = ChatOptions::Ending::invitation, .eos_token = "."};
  const auto text = render_chat(parsed(kSimple), std::span(kChat).first(1), options);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text.value(), "<user>ask.<assistant>");
}

TEST(ChatTemplate, FindsRepliesThatAreNotMarked) {
  const auto chat = render_chat_with_replies(parsed(kSimple), kChat, {.eos_token = "."});
  ASSERT_TRUE(chat.ok());
  std::vector<std::string> replies;
  for (const Span& reply : chat.value().replies) {
    replies.push_back(chat.value().text.substr(reply.begin, reply.end - reply.begin));
  }
  EXPECT_EQ(replies, (std::vector<std::string>{"answer.", "again."}));
}

TEST(ChatTemplate, KnowsTheDateOnlyIfItIsGiven) {
  const ChatTemplate dated = parsed(
      "{% if strftime_now is defined %}{{ strftime_now('%Y-%m-%d') }}{% else %}never{% endif %}");
  EXPECT_EQ(render_chat(dated, kChat, {}).value(), "never");
  ChatOptions options;
  options.now = std::tm{};
  options.now->tm_year = 126;
  options.now->tm_mon = 10;
  options.now->tm_mday = 17;
  EXPECT_EQ(render_chat(dated, kChat, options).value(), "2026-11-17");
}

TEST(ChatTemplate, TakesVariablesByName) {
  ChatOptions options;
  options.variables = {{"mood", "glad"}};
  EXPECT_EQ(render_chat(parsed("{{ mood }}"), kChat, options).value(), "glad");
}

TEST(ChatTemplate, DeepNestingIsAnErrorAndNotAnExhaustedStack) {
  for (const char* unit :
       {"(", "[", "not ", "-", "{1:", "a if b else ", "a.b + ", "a.", "a|trim|"}) {
    std::string source = "{{ ";
    for (int i = 0; i < 100000; ++i) source += unit;
    EXPECT_FALSE(ChatTemplate::parse(source).ok()) << unit;
  }
  std::string blocks;
  for (int i = 0; i < 100000; ++i) blocks += "{% if a %}";
  EXPECT_FALSE(ChatTemplate::parse(blocks).ok());
}

TEST(ChatTemplate, WhatGrowsWithoutEndIsAnError) {
  for (const char* source :
       {"{% set n = namespace(x=1) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}",
        "{% set n = namespace() %}{% set n.self = n %}{{ n }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{{ i }}{% endfor %}{% endfor %}",
        "{{ 'aaaaaaaa' * 100000000 }}"}) {
    EXPECT_FALSE(render_chat(parsed(source), kChat, {}).ok()) << source;
  }
}

}  // namespace
}  // namespace bottomless::text
