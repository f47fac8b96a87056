#include "torch/intercept/deferred.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/from_blob.h>
#include <immintrin.h>

#include <algorithm>

#include "torch/errors.h"
#include "torch/intercept/interceptor.h"
#include "torch/runtime/process.h"

namespace bottomless {
namespace {

class DeferredOperator final : public DeferredWork {
 public:
  DeferredOperator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   const OperatorInfo& info, torch::jit::Stack arguments)
      : op_(op), keys_(keys), info_(info), arguments_(std::move(arguments)) {}

  Result<void> run() override {
    try {
      // As at the time of the call, whatever mode this thread is in now.
      const at::AutoDispatchBelowADInplaceOrView past_autograd;
      torch::jit::Stack stack = arguments_;
      run_pinned(op_, keys_, info_, &stack);
      return {};
    } catch (const c10::Error& error) {
      return caught(error);
    } catch (const std::exception& error) {
      return Error{Code::no_memory, "run " + info_.name + ", which was deferred: " + error.what()};
    }
  }

 private:
  const c10::OperatorHandle op_;
  const c10::DispatchKeySet keys_;
  const OperatorInfo& info_;
  const torch::jit::Stack arguments_;
};

// Takes the arguments over: single elements by value, everything else by address. The engine keeps what is there
// until the work is done, even if the program frees it.
class Capture {
 public:
  std::optional<torch::jit::Stack> take(const torch::jit::Stack& arguments,
                                        const OperatorInfo& info) {
    torch::jit::Stack taken;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue& argument = arguments[i];
      const bool written = info.writes_to(i, arguments);
      if (argument.isTensor()) {
        per_block_ = info.per_block[i];
        taken.emplace_back(take(argument.toTensor(), written, info));
      } else if (argument.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : argument.toTensorVector())
          list.push_back(take(tensor, written, info));
        taken.emplace_back(std::move(list));
      } else {
        possible_ = possible_ && !(argument.isScalar() && argument.toScalar().isComplex());
        taken.push_back(argument);
      }
    }
    if (!possible_ || !writes_) return std::nullopt;
    return taken;
  }
  Session* session() const { return session_; }
  const std::vector<Need>& needs() const { return needs_; }

 private:
  at::Tensor take(const at::Tensor& tensor, bool written, const OperatorInfo& info) {
    if (!possible_ || !tensor.defined()) return tensor;
    if (tensor.numel() == 1 && !written) {
      possible_ = !tensor.is_complex() && tensor.dim() == 0;
      return possible_ ? at::clone(tensor) : tensor;
    }
    possible_ = tensor.has_storage() && tensor.layout() == at::kStrided && tensor.numel() > 1 &&
                !tensor.is_neg() && tensor.is_non_overlapping_and_dense() &&
                (info.ours ? has_shape(tensor) : would_be_taken(tensor));
    if (!possible_) return tensor;
    if (!model_.defined()) model_ = tensor;
    void* base = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
    Session* owner = Process::get().owner_of(base);
    possible_ = owner != nullptr && (session_ == nullptr || session_ == owner);
    session_ = owner;
    const auto known = std::ranges::find(needs_, base, &Need::address);
    if (known == needs_.end()) {
      needs_.push_back(
          {.address = base, .bytes = 1, .access = written ? Access::write : Access::read});
    } else {
      possible_ = possible_ && per_block_;  // scales lie behind their codes
    }
    if (!possible_) return tensor;
    writes_ = writes_ || written;
    auto* first = static_cast<std::byte*>(base) +
                  static_cast<Bytes>(tensor.storage_offset()) * tensor.itemsize();
    return at::from_blob(first, tensor.sizes(), tensor.strides(), tensor.options());
  }

  // What the kernel would refuse, it must refuse now.
  bool would_be_taken(const at::Tensor& tensor) const {
    return tensor.is_floating_point() &&
           (!model_.defined() ||
            (model_.sizes() == tensor.sizes() && model_.scalar_type() == tensor.scalar_type()));
  }

  // Ours take any formats; all else they would refuse.
  bool has_shape(const at::Tensor& tensor) const {
    const at::ScalarType type = tensor.scalar_type();
    const bool known = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf ||
                       type == at::kChar || type == at::kByte;
    return known && (per_block_ || !model_.defined() ||
                     (model_.sizes() == tensor.sizes() && model_.strides() == tensor.strides()));
  }

  bool possible_ = true;
  bool per_block_ = false;  // the argument that is being taken
  bool writes_ = false;
  at::Tensor model_;
  Session* session_ = nullptr;
  std::vector<Need> needs_;
};

// Denormals may be flushed on this thread and not on the one that runs the work.
bool rounds_as_usual() {
#ifdef __x86_64__
  constexpr unsigned kFlushes = 0x8040;
  return (_mm_getcsr() & kFlushes) == 0;
#else
  return false;
#endif
}

}  // namespace

bool defer(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const OperatorInfo& info,
           const torch::jit::Stack& arguments) {
  const SessionUse current = Process::get().sessions().use_current();
  if (!info.deferrable || !current || !current->defers() || !rounds_as_usual()) return false;
  Capture capture;
  std::optional<torch::jit::Stack> taken = capture.take(arguments, info);
  if (!taken || capture.session() != current.get()) return false;
  return current->engine().defer(
      capture.needs(), std::make_shared<DeferredOperator>(op, keys, info, *std::move(taken)));
}

}  // namespace bottomless
