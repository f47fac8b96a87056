// What the interceptor needs to know of an operator, worked out once from its schema.
// Thread-safety: of() from any thread; the returned record is constant and lives for good.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

namespace bottomless {

enum class Handling : uint8_t {
  pinned,     // pin what it reads and writes, run it, unpin
  passed_by,  // looks at shapes only (views, empty_like), or leaves the work to other operators
              // (zeros_like): nothing has to be resident
  each,       // a list operator that calls one operator for each tensor (_foreach_add_): as a whole
              // while it fits, otherwise passed by
  list,       // one kernel for all tensors (_fused_adamw_): run element by element
  square_sum,  // ours: piece by piece, and remembered
  collective,  // c10d: goes on after the call returns; pinned until its work is done
};

enum class Tiling : uint8_t {
  none,
  list_update,    // an in-place element-wise update of the tensors of its lists (_fused_adamw_)
  pointwise,      // an in-place element-wise operator on single tensors (add_, addcdiv_)
  pointwise_new,  // an element-wise operator with a new result (add, mul) that can also write into
                  // a given one
};

struct OperatorInfo {
  std::string name;
  Handling handling = Handling::pinned;
  Tiling tiling = Tiling::none;
  bool by_layout = false;    // other bits for a contiguous tensor: a tile would be one
  bool ours = false;         // an optimizer's (optimizer_operators.cc): checks its arguments itself
  bool deferrable = false;   // an update in place that may wait until somebody looks: deferred.h
  std::vector<bool> writes;  // per argument: the schema says that it is written to
  std::vector<bool> overwrites;  // per argument: all of it is written, and nothing of it read
  std::vector<bool> per_block;   // per argument: one element for every 256 of the others
  std::optional<c10::OperatorHandle>
      out_variant;  // with Tiling::pointwise_new: the same with a given result

  // Gradients that the optimizer's kernels write to only in order to unscale them.
  struct Scaled {
    size_t gradients;
    size_t scale;
  };
  std::optional<Scaled> scaled;

  // Whether this call writes to that argument.
  bool writes_to(size_t argument, c10::ArrayRef<c10::IValue> arguments) const {
    const bool untouched =
        scaled && scaled->gradients == argument && arguments[scaled->scale].isNone();
    return writes[argument] && !untouched;
  }

  static const OperatorInfo& of(const c10::OperatorHandle& op);
};

}  // namespace bottomless
