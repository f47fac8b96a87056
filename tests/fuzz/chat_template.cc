// A chat template: whatever it says, rendering comes to an end with a text or with a reason.
#include "tokenizers/chat_template.h"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bottomless::text;  // NOLINT: a fuzz target
  static const std::vector<Message> kChat = {
      {"system", "be \xC3\xA4"}, {"user", " ask "}, {"assistant", "answer"}, {"user", ""}};
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto chat_template = ChatTemplate::parse(source);
  if (!chat_template.ok()) {
    BOTTOMLESS_CHECK(chat_template.error().message.find("line ") != std::string::npos, "no line");
    return 0;
  }
  const auto chat = render_chat_with_replies(chat_template.value(), kChat, {.bos_token = "<s>"});
  if (!chat.ok()) return 0;
  for (const Span& reply : chat.value().replies) {
    BOTTOMLESS_CHECK(reply.begin <= reply.end && reply.end <= chat.value().text.size(), "beyond");
  }
  return 0;
}
