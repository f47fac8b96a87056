// Puts off updates in place that nobody waits for: an optimizer's step of one parameter, the scaling of a
// gradient. Such a call is queued with its small inputs by value and runs when one of its tensors is next touched,
// so that the bytes it moves spread over the next forward pass instead of standing in line after backward.
// Thread-safety: any thread.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "engine/engine.h"
#include "torch/intercept/operator_info.h"

namespace bottomless {

// True if the call was deferred; it is to be treated as done.
bool defer(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const OperatorInfo& info,
           const torch::jit::Stack& arguments);

// Calls attempt(), and once more if it fails: what the program has dropped may still be held by what was put off.
template <class Attempt>
auto with_room(Engine& engine, Attempt attempt) {
  auto outcome = attempt();
  if (outcome.ok()) return outcome;
  engine.drop_unseen_deferred();
  return attempt();
}

}  // namespace bottomless
