// The C++ side of sharding. Unlike Python's, nobody finds out about a gradient by looking at it: clip_grad_norm_() and step()
// are the places where gradients are reduced.
#include <bottomless/optim.h>
#include <bottomless/shard.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "ranks/shard_protocol.h"
#include "torch/errors.h"
#include "torch/shard/shard_inside.h"
#include "torch/shard/shard_training.h"
#include "torch/shard/sharding.h"

namespace bottomless {
namespace {

// By the very type: what is derived may do something else.
template <class... Types>
bool is_one_of(const torch::optim::Optimizer& optimizer) {
  return ((typeid(optimizer) == typeid(Types)) || ...);
}

Owning owning_for(const torch::optim::Optimizer& optimizer) {
  const bool by_element =
      is_one_of<torch::optim::Adam, torch::optim::AdamW, torch::optim::SGD, torch::optim::RMSprop,
                torch::optim::Adagrad, optim::Adam, optim::AdamW, optim::SGD, optim::Adagrad,
                optim::Lion>(optimizer);
  return by_element ? Owning::shares : Owning::whole;
}

template <class Options>
void check_looks_at_one_rank(const torch::optim::OptimizerOptions& options) {
  const auto* own = dynamic_cast<const Options*>(&options);
  if (own == nullptr) return;
  if (own->max_norm() > 0)
    refuse_to_shard(
        "the optimizer's max_norm would clip by the norm of one rank's shares; leave it 0 and call "
        "Shard::clip_grad_norm_ before Shard::step");
  if (own->skip_nonfinite())
    refuse_to_shard(
        "the optimizer's skip_nonfinite would leave a step out on some of the ranks; turn it off "
        "and look whether what Shard::clip_grad_norm_ returns is finite");
}

void check_optimizer(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr)
    refuse_to_shard("LBFGS cannot be sharded; AdamW and others can");
  if (!optimizer.state().empty())
    refuse_to_shard("the optimizer has taken steps already; shard the model before the first one");
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    if (!group.has_options()) continue;
    check_looks_at_one_rank<optim::AdamOptions>(group.options());
    check_looks_at_one_rank<optim::SGDOptions>(group.options());
    check_looks_at_one_rank<optim::AdagradOptions>(group.options());
    check_looks_at_one_rank<optim::LionOptions>(group.options());
    check_looks_at_one_rank<optim::AdafactorOptions>(group.options());
  }
}

struct Named {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  size_t of_model = 0;  // the first so many
  std::unordered_map<const at::TensorImpl*, size_t> index;

  void add(std::string name, const at::Tensor& tensor) {
    if (!index.emplace(tensor.unsafeGetTensorImpl(), tensors.size()).second) return;  // tied
    const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
    if (meta != nullptr && meta->post_acc_grad_hooks_ != nullptr)
      refuse_to_shard("'" + name + "' has a hook after the accumulation of its gradient already");
    names.push_back(std::move(name));
    tensors.push_back(tensor);
  }
};

Named parameters_of(const torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  Named named;
  for (const auto& parameter : model.named_parameters())
    named.add(parameter.key(), parameter.value());
  named.of_model = named.names.size();
  size_t number = 0;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      named.add("optimizer." + std::to_string(number++), parameter);
  return named;
}

double square_sum(const at::Tensor& gradient) {
  const at::ScalarType type = gradient.scalar_type();
  if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf)
    return std::pow(gradient.norm().item<double>(), 2);
  // In pieces, whatever the limit.
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("bottomless::sum_of_squares", "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(gradient)
      .item<double>();
}

Format format_of(Traffic traffic) {
  return traffic == Traffic::eight_bits ? Format::eight_bits : Format::plain;
}

}  // namespace

struct Shard::Impl {
  Impl(torch::nn::Module& of_program, torch::optim::Optimizer& of_model, Named named,
       c10::intrusive_ptr<c10d::Backend> ranks, const ShardOptions& given)
      : model(of_program),
        optimizer(of_model),
        options(given),
        names(std::move(named.names)),
        parameters(std::move(named.tensors)),
        names_of_model(named.of_model),
        sharding(
            std::move(ranks), names, parameters,
            {.stage = given.stage,
             .owning = owning_for(of_model),
             .weights = format_of(given.weights),
             .gradients = format_of(given.gradients),
             .deadline = given.deadline,
             .ranks_per_node = given.ranks_per_node,
             .node_copies = given.ranks_per_node > 0 ? NodeCopies::shares : NodeCopies::none}) {
    if (given.buffers == Buffers::of_first_rank) buffers = model.buffers();
    if (owning_for(of_model) == Owning::whole && sharding.rank() == 0)
      TORCH_WARN("bottomless: ", c10::demangle(typeid(of_model).name()),
                 " may look at a parameter as a whole: each rank updates whole parameters");
    for (size_t i = 0; i < parameters.size(); ++i)
      slices.push_back(sharding.slice(i).detach().set_requires_grad(parameters[i].requires_grad()));
    give_slices(named.index);
    copy_buffers();
  }

  void give_slices(const std::unordered_map<const at::TensorImpl*, size_t>& index) {
    for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
      std::vector<at::Tensor> owned;
      std::vector<size_t>& all = groups.emplace_back();
      for (const at::Tensor& parameter : group.params()) {
        all.push_back(index.at(parameter.unsafeGetTensorImpl()));
        const at::Tensor& slice = slices[all.back()];
        if (slice.numel() > 0) owned.push_back(slice);
      }
      group.params() = std::move(owned);
    }
  }

  void copy_buffers() {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& buffer : buffers) sharding.copy_from_first(buffer);
  }

  // A parameter's gradient has been added up.
  void final(size_t parameter) {
    if (syncs && options.stage >= 2) give_away(parameter);
  }

  void give_away(size_t parameter) {
    at::Tensor& gradient = parameters[parameter].mutable_grad();
    if (!gradient.defined()) return;
    sharding.contribute(parameter, std::exchange(gradient, at::Tensor()));
  }

  void give_all_away() {
    for (size_t i = 0; i < parameters.size(); ++i) give_away(i);
  }

  void take(const std::vector<at::Tensor>& means) {
    for (size_t i = 0; i < means.size(); ++i) {
      if (!means[i].defined() || slices[i].numel() == 0) continue;
      at::Tensor& gradient = slices[i].mutable_grad();
      if (gradient.defined()) {
        gradient.add_(means[i].view_as(slices[i]));
      } else {
        gradient = means[i].view_as(slices[i]);
      }
    }
  }

  void step() {
    {
      const at::NoGradGuard no_grad;
      give_all_away();
      take(sharding.begin_step({}));
    }
    optimizer.step();
    for (const at::Tensor& slice : slices) slice.mutable_grad() = at::Tensor();
    sharding.end_step();
    copy_buffers();
  }

  double clip(double max_norm) {
    const at::NoGradGuard no_grad;
    give_all_away();
    take(sharding.reduce());
    most_norm = max_norm;
    return scale_down();
  }

  double scale_down() {
    const at::NoGradGuard no_grad;
    double squares = 0;
    for (const at::Tensor& slice : slices)
      if (slice.grad().defined()) squares += square_sum(slice.grad());
    const at::Tensor sum = sharding.sum_over_ranks(at::scalar_tensor(squares, at::kDouble));
    const double norm = std::sqrt(sum.item<double>());
    const double factor = most_norm / (norm + 1e-6);  // torch's rule
    if (factor < 1 || std::isnan(factor))
      for (const at::Tensor& slice : slices)
        if (slice.grad().defined()) slice.mutable_grad().mul_(factor);
    return norm;
  }

  ShardedTraining training() {
    return {sharding, model, optimizer, names, names_of_model, parameters, slices, groups};
  }

  // Takes part in what others still do, as it was done here before.
  void leave() {
    for (;;) {
      switch (sharding.await_others()) {
        case Sharding::Others::reduce:
          take(sharding.reduce());
          break;
        case Sharding::Others::sum:
          scale_down();
          break;
        case Sharding::Others::step:
          step();
          break;
        case Sharding::Others::are_done:
          sharding.part(at_the_end);
          return;
      }
    }
  }

  // What has thrown once has left the ranks at different places: from then on there is no good order to leave in.
  template <class Work>
  auto attempt(Work work) {
    try {
      return work();
    } catch (...) {
      failed = true;
      throw;
    }
  }

  torch::nn::Module& model;
  torch::optim::Optimizer& optimizer;
  const ShardOptions options;
  const std::vector<std::string> names;
  const std::vector<at::Tensor> parameters;
  const size_t names_of_model;
  std::vector<std::vector<size_t>> groups;  // of the optimizer: all parameters, by index
  std::vector<at::Tensor> slices;
  std::vector<at::Tensor> buffers;
  uint64_t saves = 0;
  uint64_t steps_before = 0;  // of the run that was loaded
  bool syncs = true;
  bool failed = false;
  Sharding::Model at_the_end = Sharding::Model::kept;
  double most_norm =
      std::numeric_limits<double>::infinity();  // that gradients were last clipped to
  const int exceptions = std::uncaught_exceptions();
  Sharding sharding;
};

namespace {

template <class Heard>
class AfterAccumulation final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AfterAccumulation(Heard heard) : heard_(std::move(heard)) {}
  void operator()(const torch::autograd::Variable&) override { heard_(); }

 private:
  Heard heard_;
};

}  // namespace

Shard::Shard(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
             c10::intrusive_ptr<c10d::Backend> ranks, const ShardOptions& options) {
  check_optimizer(optimizer);
  if (ranks == nullptr) refuse_to_shard("no ranks were given; see bottomless::join_ranks");
  impl_ = std::make_unique<Impl>(model, optimizer, parameters_of(model, optimizer),
                                 std::move(ranks), options);
  for (size_t i = 0; i < impl_->parameters.size(); ++i) {
    auto hook = [impl = impl_.get(), i] { impl->attempt([&] { impl->final(i); }); };
    torch::autograd::impl::set_post_acc_grad_hooks(
        impl_->parameters[i], std::make_unique<AfterAccumulation<decltype(hook)>>(hook));
  }
}

Shard::~Shard() {
  for (const at::Tensor& parameter : impl_->parameters)
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  if (impl_->failed || std::uncaught_exceptions() > impl_->exceptions) {
    impl_->sharding.close(Exchange::Shutdown::abort);
    return;
  }
  try {
    impl_->leave();
    impl_->sharding.close();
  } catch (const std::exception& error) {
    impl_->sharding.close(Exchange::Shutdown::abort);
    TORCH_WARN(error.what());
  }
}

Sharding& ShardInside::sharding() const { return shard_.impl_->sharding; }
const std::vector<at::Tensor>& ShardInside::parameters() const { return shard_.impl_->parameters; }
const std::vector<at::Tensor>& ShardInside::slices() const { return shard_.impl_->slices; }
void ShardInside::forget_model() { shard_.impl_->at_the_end = Sharding::Model::forgotten; }

int Shard::rank() const { return impl_->sharding.rank(); }
int Shard::ranks() const { return impl_->sharding.ranks(); }

void Shard::step() {
  impl_->attempt([this] { impl_->step(); });
}

double Shard::clip_grad_norm_(double max_norm) {
  return impl_->attempt([&] { return impl_->clip(max_norm); });
}

void Shard::save(const std::filesystem::path& directory, const SaveOptions& options) {
  const uint64_t step = options.step.value_or(impl_->steps_before + impl_->sharding.steps());
  auto saving = impl_->attempt([&] {
    return begin_save(impl_->training(), directory, step, ++impl_->saves, options.extra);
  });
  // A failure that all ranks know of does not end the exchange: they may go on.
  if (!saving.ok()) throw_error(saving.error());
  saving.value()->wait();
}

Loaded Shard::load(const std::filesystem::path& directory) {
  const Result<LoadedTraining> loaded =
      impl_->attempt([&] { return load_training(impl_->training(), directory); });
  if (!loaded.ok()) throw_error(loaded.error());
  impl_->steps_before = loaded.value().step - impl_->sharding.steps();
  return {.step = loaded.value().step, .extra = loaded.value().extra};
}

Shard::NoSync::NoSync(Shard& shard)
    : shard_(shard), before_(std::exchange(shard.impl_->syncs, false)) {}
Shard::NoSync::~NoSync() { shard_.impl_->syncs = before_; }

ShardStats Shard::stats() const {
  const ExchangeStats stats = impl_->sharding.stats();
  const auto of = [](const std::map<uint8_t, Bytes>& received, Role role) -> uint64_t {
    const auto found = received.find(static_cast<uint8_t>(role));
    return found == received.end() ? 0 : found->second;
  };
  const auto &all = stats.received_by_role, &across = stats.received_across_by_role;
  return {.steps = impl_->sharding.steps(),
          .sent_bytes = stats.sent_bytes,
          .received_bytes = stats.received_bytes,
          .received_parameter_bytes = of(all, Role::parameter) + of(all, Role::node_share),
          .received_gradient_bytes = of(all, Role::gradient),
          .received_across_bytes = stats.received_across_bytes,
          .received_parameter_across_bytes = of(across, Role::parameter)};
}

}  // namespace bottomless
