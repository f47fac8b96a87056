// What ranks say to each other: a header of fixed size, and behind some of them `bytes` of payload. Whatever comes from
// another rank is checked before it is used: it may be of another version, or broken.
#pragma once
#include <cstddef>
#include <cstdint>

namespace bottomless {

// Of payload in one message; what is words is cut off there.
inline constexpr uint64_t kMostData = uint64_t{64} << 20;
inline constexpr uint64_t kMostWords = uint64_t{64} << 10;

enum class MessageKind : uint32_t {
  notice,          // for the owner of the exchange; `key`, `version` and `offset` are its own
  pull,            // send me `bytes` from `offset` of `key`, not older than `version`, as `id`
  raise_priority,  // somebody waits for the pull `id`
  data,  // a piece of the answer to `id`: `offset` counts from the pull's own; payload, which stands for `version` bytes
  failed,      // the pull `id` cannot be answered; payload: why
  ask_status,  // asks for the phase; answer as `id`
  status,      // payload: words
  shutdown,    // nothing more comes from here; answered with the same
};

struct Message {
  MessageKind kind = MessageKind::notice;
  uint32_t format = 0;  // of the data: see Format
  uint64_t id = 0;
  uint64_t key = 0;
  uint64_t version = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t demanded = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(Message) == 56);

}  // namespace bottomless
