// Sharding as Python sees it: torch.classes.bottomless.Shards. A thin layer; python/bottomless/_shard.py says what it is for.
#include <torch/custom_class.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "ranks/shard_protocol.h"
#include "torch/checkpoint/shard_checkpoint.h"
#include "torch/shard/sharding.h"

namespace bottomless {
namespace {

class Shards final : public torch::CustomClassHolder {
 public:
  Shards(const std::string& group, std::vector<std::string> names,
         std::vector<at::Tensor> parameters, int64_t stage, bool whole, bool quantised_weights,
         bool quantised_gradients, double deadline_seconds, int64_t ranks_per_node,
         bool node_shares)
      : sharding_(
            c10d::resolve_process_group(group)->getBackend(c10::DeviceType::CPU), std::move(names),
            std::move(parameters),
            {.stage = static_cast<int>(stage),
             .owning = whole ? Owning::whole : Owning::shares,
             .weights = quantised_weights ? Format::eight_bits : Format::plain,
             .gradients = quantised_gradients ? Format::eight_bits : Format::plain,
             .deadline = std::chrono::nanoseconds(static_cast<int64_t>(deadline_seconds * 1e9)),
             .ranks_per_node = static_cast<int>(ranks_per_node),
             .node_copies = node_shares ? NodeCopies::shares : NodeCopies::none}) {}

  at::Tensor slice(int64_t parameter) { return sharding_.slice(index(parameter)); }
  // Begin and end of every rank's share, in elements.
  std::vector<int64_t> bounds(int64_t parameter) {
    std::vector<int64_t> bounds;
    const auto element = static_cast<Bytes>(sharding_.slice(index(parameter)).element_size());
    for (const Share& share : sharding_.shares(index(parameter))) {
      bounds.push_back(static_cast<int64_t>(share.begin / element));
      bounds.push_back(static_cast<int64_t>(share.end / element));
    }
    return bounds;
  }
  void contribute(int64_t parameter, const at::Tensor& gradient) {
    sharding_.contribute(index(parameter), gradient);
  }
  std::vector<std::optional<at::Tensor>> reduce() { return optional(sharding_.reduce()); }
  std::vector<std::optional<at::Tensor>> begin_step(const std::vector<int64_t>& touched) {
    return optional(sharding_.begin_step({touched.begin(), touched.end()}));
  }
  void end_step() { sharding_.end_step(); }
  at::Tensor sum_over_ranks(const at::Tensor& values) { return sharding_.sum_over_ranks(values); }
  void copy_from_first(const at::Tensor& tensor) { sharding_.copy_from_first(tensor); }
  std::vector<std::string> exchange_texts(const std::string& own) {
    return sharding_.exchange_texts(own);
  }
  void publish(int64_t number, const at::Tensor& tensor) { sharding_.publish(number, tensor); }
  void retract(int64_t number) { sharding_.retract(number); }
  void read(int64_t rank, int64_t number, int64_t offset, const at::Tensor& into) {
    sharding_.read(static_cast<int>(rank), number, static_cast<Bytes>(offset), into);
  }
  std::string await_others() {
    switch (sharding_.await_others()) {
      case Sharding::Others::reduce:
        return "reduce";
      case Sharding::Others::sum:
        return "sum";
      case Sharding::Others::step:
        return "step";
      case Sharding::Others::are_done:
        break;
    }
    return "are done";
  }
  void part(bool keep) {
    sharding_.part(keep ? Sharding::Model::kept : Sharding::Model::forgotten);
  }
  int64_t guide() { return sharding_.guide().value_or(-1); }
  void adopt_writes() { sharding_.adopt_writes(); }
  void begin_renewal() { sharding_.begin_renewal(); }
  void end_renewal() { sharding_.end_renewal(); }
  Sharding& sharding() { return sharding_; }
  void close() { sharding_.close(); }
  void abandon() { sharding_.close(Exchange::Shutdown::abort); }
  c10::Dict<std::string, int64_t> stats() {
    const ExchangeStats stats = sharding_.stats();
    c10::Dict<std::string, int64_t> result;
    const auto of = [](const std::map<uint8_t, Bytes>& received, Role role) -> int64_t {
      const auto found = received.find(static_cast<uint8_t>(role));
      return found == received.end() ? 0 : static_cast<int64_t>(found->second);
    };
    const auto& all = stats.received_by_role;
    result.insert("steps", static_cast<int64_t>(sharding_.steps()));
    result.insert("sent_bytes", static_cast<int64_t>(stats.sent_bytes));
    result.insert("received_bytes", static_cast<int64_t>(stats.received_bytes));
    result.insert("received_parameter_bytes", of(all, Role::parameter) + of(all, Role::node_share));
    result.insert("received_gradient_bytes", of(all, Role::gradient));
    result.insert("received_across_bytes", static_cast<int64_t>(stats.received_across_bytes));
    result.insert("received_parameter_across_bytes",
                  of(stats.received_across_by_role, Role::parameter));
    return result;
  }

 private:
  static size_t index(int64_t parameter) { return static_cast<size_t>(parameter); }
  static std::vector<std::optional<at::Tensor>> optional(std::vector<at::Tensor> tensors) {
    std::vector<std::optional<at::Tensor>> result;
    for (at::Tensor& tensor : tensors) {
      if (tensor.defined()) {
        result.emplace_back(std::move(tensor));
      } else {
        result.emplace_back(std::nullopt);
      }
    }
    return result;
  }

  Sharding sharding_;
};

// python/bottomless/_shard_checkpoint.py.
class ShardSave final : public torch::CustomClassHolder {
 public:
  ShardSave(c10::intrusive_ptr<Shards> shards, const std::string& directory, int64_t step,
            int64_t number)
      : shards_(std::move(shards)),
        save_(shards_->sharding(), directory, static_cast<uint64_t>(step),
              static_cast<uint64_t>(number)) {}

  // `bounds`: begin and end of every rank's share, in elements.
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
           std::vector<int64_t> strides, const std::vector<int64_t>& bounds,
           const std::optional<at::Tensor>& own) {
    LogicalTensor tensor{.spec = {.name = name}, .strides = std::move(strides)};
    tensor.spec.dtype = dtype_named(dtype).value();
    tensor.spec.shape.assign(shape.begin(), shape.end());
    const Bytes element = bytes_of(tensor.spec.dtype);
    for (size_t i = 0; i + 1 < bounds.size(); i += 2) {
      tensor.shares.push_back(
          {static_cast<Bytes>(bounds[i]) * element, static_cast<Bytes>(bounds[i + 1]) * element});
    }
    save_.add(std::move(tensor), own.value_or(at::Tensor()));
  }
  void start(const std::string& extra) { save_.start(extra); }
  void wait_until_read() { save_.wait_until_read(); }
  void wait() { save_.wait(); }
  bool ended() { return save_.ended(); }

 private:
  const c10::intrusive_ptr<Shards> shards_;
  ShardedSave save_;
};

TORCH_LIBRARY_FRAGMENT(bottomless, library) {
  library.class_<Shards>("Shards")
      .def(torch::init<std::string, std::vector<std::string>, std::vector<at::Tensor>, int64_t,
                       bool, bool, bool, double, int64_t, bool>())
      .def("slice", &Shards::slice)
      .def("bounds", &Shards::bounds)
      .def("contribute", &Shards::contribute)
      .def("reduce", &Shards::reduce)
      .def("begin_step", &Shards::begin_step)
      .def("end_step", &Shards::end_step)
      .def("sum_over_ranks", &Shards::sum_over_ranks)
      .def("copy_from_first", &Shards::copy_from_first)
      .def("exchange_texts", &Shards::exchange_texts)
      .def("publish", &Shards::publish)
      .def("retract", &Shards::retract)
      .def("read", &Shards::read)
      .def("await_others", &Shards::await_others)
      .def("part", &Shards::part)
      .def("guide", &Shards::guide)
      .def("adopt_writes", &Shards::adopt_writes)
      .def("begin_renewal", &Shards::begin_renewal)
      .def("end_renewal", &Shards::end_renewal)
      .def("close", &Shards::close)
      .def("abandon", &Shards::abandon)
      .def("stats", &Shards::stats);
  library.class_<ShardSave>("ShardSave")
      .def(torch::init<c10::intrusive_ptr<Shards>, std::string, int64_t, int64_t>())
      .def("add", &ShardSave::add)
      .def("start", &ShardSave::start)
      .def("wait_until_read", &ShardSave::wait_until_read)
      .def("wait", &ShardSave::wait)
      .def("ended", &ShardSave::ended);
}

}  // namespace
}  // namespace bottomless
