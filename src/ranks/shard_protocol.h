// What ranks of a sharded model offer and tell each other, besides the messages of the Exchange that carry it.
// Thread-safety: values and pure functions.
#pragma once
#include <cstdint>
#include <variant>

#include "ranks/exchange.h"

namespace bottomless {

// What is offered, by the top byte of its key.
enum class Role : uint8_t { parameter = 1, gradient, values, published, initial, node_share };

constexpr Exchange::Key role_key(Role role, uint64_t number) {
  return static_cast<uint64_t>(role) << 56 | number;
}

// A gradient of this parameter can be pulled, the sender's n-th in the round.
struct GradientReady {
  uint64_t parameter = 0;
  uint32_t round = 0;
  uint32_t turn = 0;
};
struct RoundEnds {  // the sender has no more gradients for it
  uint64_t round = 0;
};
struct StepBegins {
  uint64_t step = 0;
  uint64_t rounds = 0;   // that the sender has ended by then
  bool follows = false;  // only because others do
};
struct ParameterWritten {  // outside of the optimizer, before this step
  uint64_t parameter = 0;
  uint64_t step = 0;
};
struct SumAsked {  // the n-th sum over ranks has begun
  uint64_t number = 0;
};
struct Leaving {};  // has nothing more to do by itself
struct Left {};     // has the whole model, and needs nobody any more

// monostate: none of these.
using ShardNotice = std::variant<std::monostate, GradientReady, RoundEnds, StepBegins,
                                 ParameterWritten, SumAsked, Leaving, Left>;
Notice encode(const ShardNotice& notice);
ShardNotice decode(const Notice& notice);

}  // namespace bottomless
