#include "torch/intercept/list_operators.h"

#include <ATen/core/List.h>

#include "torch/intercept/deferred.h"
#include "torch/intercept/interceptor.h"
#include "torch/intercept/tiles.h"

namespace bottomless {
namespace {

size_t list_length(const c10::IValue& value) {
  return value.isList() ? value.toListRef().size() : 0;
}

// The i-th element of a list as a list of one; everything else as it is.
c10::IValue element(const c10::IValue& value, size_t index, size_t length) {
  if (!value.isList() || list_length(value) != length) return value;
  const c10::List<c10::IValue> whole = value.toList();
  c10::impl::GenericList one(whole.elementType());
  one.push_back(whole.get(index));
  return one;
}

}  // namespace

bool run_list_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       const OperatorInfo& info, torch::jit::Stack* stack) {
  const size_t count = info.writes.size();
  const c10::IValue& first = torch::jit::peek(*stack, 0, count);
  if (!first.isTensorList() || !op.schema().returns().empty()) return false;
  const size_t length = list_length(first);
  if (length == 0 || fits_as_a_whole(info, *stack)) return false;

  const std::vector<c10::IValue> arguments = torch::jit::pop(*stack, count);
  for (size_t i = 0; i < length; ++i) {
    torch::jit::Stack single;
    for (const c10::IValue& argument : arguments) single.push_back(element(argument, i, length));
    if (run_in_tiles(op, keys, info, &single) || defer(op, keys, info, single)) continue;
    run_pinned(op, keys, info, &single);
  }
  return true;
}

}  // namespace bottomless
