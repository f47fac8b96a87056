#include "torch/intercept/operator_info.h"

#include <array>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "base/mutex.h"

namespace bottomless {
namespace {

bool is_write(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Every result is an alias of an argument and nothing is written: the operator makes views.
bool makes_views(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() == nullptr || result.alias_info()->isWrite()) return false;
  }
  for (const c10::Argument& argument : schema.arguments()) {
    if (is_write(argument)) return false;
  }
  return true;
}

bool reads_shapes_only(const std::string& name) {
  static const std::unordered_set<std::string> kNames{
      "aten::empty",        "aten::empty_like",         "aten::empty_strided",
      "aten::new_empty",    "aten::empty_permuted",     "aten::new_empty_strided",
      "aten::sym_size",     "aten::sym_stride",         "aten::sym_numel",
      "aten::is_same_size", "aten::sym_storage_offset", "aten::_has_compatible_shallow_copy_type"};
  return kNames.contains(name);
}

// Their kernels allocate and then call operators that fill the result; these are seen by themselves,
// and those that are element-wise can be cut.
bool leaves_work_to_others(const std::string& name) {
  static const std::unordered_set<std::string> kNames{
      "aten::zeros",    "aten::zeros_like", "aten::ones",     "aten::ones_like",
      "aten::full",     "aten::full_like",  "aten::new_ones", "aten::new_zeros",
      "aten::new_full", "aten::_to_copy"};
  return kNames.contains(name);
}

bool overwrites_itself(const std::string& name) {
  static const std::unordered_set<std::string> kNames{"aten::zero_", "aten::fill_", "aten::copy_",
                                                      "aten::uniform_", "aten::normal_"};
  return kNames.contains(name);
}

// Of the operators with a given result (add.out), those that write all of it.
bool overwrites_its_result(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> kNames{"aten::mm", "aten::bmm", "aten::addmm",
                                                      "aten::baddbmm", "aten::cat"};
  return op.hasTag(at::Tag::pointwise) || kNames.contains(op.schema().name());
}

// In-place operators without the tag that work element by element all the same.
bool is_pointwise(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> kNames{"aten::zero_", "aten::fill_", "aten::copy_"};
  return op.hasTag(at::Tag::pointwise) || kNames.contains(op.schema().name());
}

// Those with a kernel of oneDNN for contiguous tensors and one of torch's own for others.
bool depends_on_layout(const std::string& name) {
  return name == "aten::gelu" || name == "aten::gelu_" || name == "aten::gelu_backward";
}

// Its sums are over whole tensors. A vector's update waits like our others. A matrix's runs at once: what waits must be hidden
// until then, and states of rows and columns are nearly always too small to be managed, and are of other shapes (deferred.cc).
bool needs_whole_tensors(const std::string& name) { return name == "bottomless::adafactor_"; }

// Updates in place of what a program touches once in a step.
bool may_wait(const OperatorInfo& info) {
  return info.tiling == Tiling::list_update || info.name == "aten::mul_" ||
         (info.ours && (info.tiling == Tiling::pointwise || needs_whole_tensors(info.name)));
}

bool starts_with(const std::string& text, std::string_view prefix) {
  return text.starts_with(prefix);
}

// The overload that takes the same arguments and a result to write into: add.Tensor -> add.out,
// add.Scalar -> add.Scalar_out.
std::optional<c10::OperatorHandle> find_out_variant(const c10::FunctionSchema& schema) {
  for (const std::string& overload : {std::string("out"), schema.overload_name() + "_out"}) {
    const auto found = c10::Dispatcher::singleton().findSchema({schema.name(), overload});
    if (!found || found->schema().arguments().size() != schema.arguments().size() + 1) continue;
    bool same = is_write(found->schema().arguments().back());
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& theirs = found->schema().arguments()[i];
      same = same && theirs.name() == schema.arguments()[i].name() &&
             *theirs.type() == *schema.arguments()[i].type();
    }
    if (same) return found;
  }
  return std::nullopt;
}

bool returns_one_new_tensor(const c10::FunctionSchema& schema) {
  return schema.returns().size() == 1 &&
         schema.returns()[0].type()->kind() == c10::TypeKind::TensorType &&
         schema.returns()[0].alias_info() == nullptr;
}

OperatorInfo work_out(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OperatorInfo info;
  info.name = schema.name();
  info.ours = starts_with(info.name, "bottomless::");
  info.by_layout = depends_on_layout(info.name);
  bool writes = false;
  for (const c10::Argument& argument : schema.arguments()) {
    info.writes.push_back(is_write(argument));
    const bool given_result = argument.is_out() && overwrites_its_result(op);
    const bool itself = info.writes.size() == 1 && overwrites_itself(schema.name());
    info.overwrites.push_back(given_result || itself);
    writes = writes || info.writes.back();
    info.per_block.push_back(info.ours && argument.name().ends_with("_scales"));
  }
  const bool in_place = writes && info.name.ends_with('_');
  if (starts_with(info.name, "c10d::")) {
    info.handling = Handling::collective;
  } else if (starts_with(info.name, "_c10d_functional")) {
    info.handling = Handling::passed_by;  // calls those of c10d, and these know when they are done
  } else if (info.name == "bottomless::sum_of_squares") {
    info.handling = Handling::square_sum;
  } else if (starts_with(info.name, "aten::_foreach_")) {
    info.handling = Handling::each;
  } else if (starts_with(info.name, "aten::_fused_adam") ||
             starts_with(info.name, "aten::_fused_sgd") ||
             starts_with(info.name, "aten::_fused_adagrad") ||
             starts_with(info.name, "aten::_amp_foreach_")) {
    info.handling = Handling::list;
    // Every one of these is element-wise but the unscaling one, whose verdict spans the list.
    if (in_place && !starts_with(info.name, "aten::_amp_foreach_"))
      info.tiling = Tiling::list_update;
  } else if (reads_shapes_only(info.name) || leaves_work_to_others(info.name) ||
             info.name == "bottomless::new_codes" || makes_views(schema)) {
    info.handling = Handling::passed_by;
  } else if (in_place && (is_pointwise(op) || info.ours) && !needs_whole_tensors(info.name)) {
    info.tiling = Tiling::pointwise;
  } else if (!writes && op.hasTag(at::Tag::pointwise) && returns_one_new_tensor(schema)) {
    info.out_variant = find_out_variant(schema);
    if (info.out_variant) info.tiling = Tiling::pointwise_new;
  }
  info.deferrable = may_wait(info);
  const auto gradients = schema.argumentIndexWithName("grads");
  const auto scale = schema.argumentIndexWithName("grad_scale");
  if (gradients && scale)
    info.scaled = {static_cast<size_t>(*gradients), static_cast<size_t>(*scale)};
  return info;
}

const OperatorInfo& shared_info(const c10::OperatorHandle& op) {
  static Mutex* const mutex = new Mutex;  // NOLINT
  static auto* const infos =
      new std::unordered_map<const void*, std::unique_ptr<const OperatorInfo>>;  // NOLINT
  MutexLock lock(*mutex);
  auto& info = (*infos)[&op.schema()];
  if (info == nullptr) info = std::make_unique<const OperatorInfo>(work_out(op));
  return *info;
}

}  // namespace

const OperatorInfo& OperatorInfo::of(const c10::OperatorHandle& op) {
  // A small cache for each thread spares the lock: an operator is looked up a million times and
  // worked out once.
  struct Entry {
    const void* key = nullptr;
    const OperatorInfo* info = nullptr;
  };
  thread_local std::array<Entry, 512> cache;
  const void* key = &op.schema();
  Entry& entry = cache[(reinterpret_cast<uintptr_t>(key) >> 6) % cache.size()];
  if (entry.key != key) entry = {key, &shared_info(op)};
  return *entry.info;
}

}  // namespace bottomless
