// Ranks that are done, and take part in what others still do.
#include <algorithm>

#include "torch/errors.h"
#include "torch/intercept/managed.h"
#include "torch/shard/shard_phase.h"
#include "torch/shard/sharding.h"

namespace bottomless {

void Sharding::part(Model model) {
  const Phase phase(*this, "parting from the others");
  for (const Parameter& parameter : parameters_) {
    if (model == Model::forgotten || parameter.gather == nullptr) continue;
    // What somebody has written to is not dropped any more.
    const Bytes all = parameter.whole.nbytes();
    for (Bytes at = 0; at < all; at += piece_bytes_) {
      Result<PinnedRange> piece = pin_range(parameter.whole, at, std::min(piece_bytes_, all - at),
                                            Access::write, "keep the model");
      if (!piece.ok()) throw_error(piece.error());
    }
  }
  check(protocol_->leave());
}

std::optional<int> Sharding::guide() const { return protocol_->guide(steps() + 1); }

Sharding::Others Sharding::await_others() {
  const Phase phase(*this, "done, waiting for the others to leave");
  follows_ = true;
  return checked(protocol_->await_others(steps() + 1, values_asked_));
}

}  // namespace bottomless
