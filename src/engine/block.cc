#include "engine/block.h"

#include <algorithm>

#include "base/check.h"

namespace bottomless {

void Block::become(State next) {
  BOTTOMLESS_CHECK(std::any_of(kTransitions.begin(), kTransitions.end(),
                               [&](const Transition& transition) {
                                 return transition.from == state && transition.to == next;
                               }),
                   "a block changed its state in a way that does not exist");
  state = next;
}

}  // namespace bottomless
