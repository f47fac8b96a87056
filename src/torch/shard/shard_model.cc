// How a model becomes sharded: who has what, and rank 0's content for all.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "ranks/shard_protocol.h"
#include "torch/errors.h"
#include "torch/intercept/managed.h"
#include "torch/runtime/compute_alone.h"
#include "torch/runtime/process.h"
#include "torch/shard/sharding.h"

namespace bottomless {
namespace {

// Smaller parameters belong to one rank. Whoever has a share of a gradient adds from its own rank on, so that this decides
// about bits: it must not depend on what the limit of this run manages.
constexpr Bytes kLeastShared = 128_KiB;

Bytes piece_bytes_for(Bytes limit) {
  return std::clamp<Bytes>(limit / 128 / 64_KiB * 64_KiB, 64_KiB, 4_MiB);
}

uint64_t mix_in(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15ull + (hash >> 29);
}

}  // namespace

void refuse_to_shard(const std::string& what) {
  throw_error({Code::invalid_argument, "shard a model: " + what});
}

Sharding::Sharding(c10::intrusive_ptr<c10d::Backend> backend, std::vector<std::string> names,
                   std::vector<at::Tensor> parameters, const ShardingOptions& options)
    : session_(Process::get().sessions().use_current()),
      transport_(std::move(backend)),
      options_(options),
      written_(parameters.size(), false) {
  if (!session_) {
    refuse_to_shard(
        "no limit is in force; set one first (bottomless.limit, bottomless run, "
        "bottomless::Runtime)");
  }
  if (options.stage < 1 || options.stage > 3)
    refuse_to_shard("stage " + std::to_string(options.stage) + ": must be 1, 2 or 3");
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& whole = parameters[i];
    if (!whole.device().is_cpu() || whole.layout() != at::kStrided || !whole.has_storage())
      refuse_to_shard("'" + names[i] + "' is not a dense tensor of the CPU");
    const Bytes bytes = whole.nbytes();
    if (bytes > 0 && whole.storage().nbytes() != bytes)
      refuse_to_shard("'" + names[i] +
                      "' is a part of a larger tensor; give it memory of its own (clone it)");
    parameters_.push_back({.name = std::move(names[i]), .whole = whole});
  }
  if (options.ranks_per_node < 0)
    refuse_to_shard(std::to_string(options.ranks_per_node) + " ranks per node: must be 1 or more");
  if (options.node_copies == NodeCopies::shares && options.stage < 3)
    refuse_to_shard(
        "shares within the node are for stage 3; below it, every rank keeps what it has gathered");
  // Where all ranks are one node, nothing would be saved.
  const bool within_node = options.node_copies == NodeCopies::shares &&
                           node_of(rank(), ranks(), options.ranks_per_node).ranks < ranks();
  piece_bytes_ = piece_bytes_for(session_->memory());
  const Bytes own = Exchange::own_memory(ranks(), piece_bytes_) +
                    Reduction::own_memory(piece_bytes_) +
                    (within_node ? NodeShares::own_memory(piece_bytes_) : 0);
  if (Result<void> charged = engine().charge(own, nullptr, "sharding over ranks"); !charged.ok())
    throw_error(charged.error());
  charged_ = own;
  // Other ranks would have updates done that wait, at any time, in the middle of what this one has planned.
  session_->stop_deferring();
  plan(options);
  Result<std::unique_ptr<Exchange>> exchange = Exchange::start(
      transport_,
      {.deadline = options.deadline,
       .piece_bytes = piece_bytes_,
       .ranks_per_node = options.ranks_per_node,
       .on_notice = [this](int from, const Notice& notice) { protocol_->on_notice(from, notice); },
       .serving = compute_alone,
       .phase = [this] { return describe(); }});
  if (!exchange.ok()) throw_error(exchange.error());
  exchange_ = std::move(exchange).value();
  protocol_->start(*exchange_);
  check(reduction_->start(*exchange_));
  if (within_node) {
    node_shares_ = std::make_unique<NodeShares>(*exchange_, engine(), piece_bytes_);
    check(node_shares_->start());
  }
  compare_models();
  distribute();
}

void Sharding::plan(const ShardingOptions& options) {
  std::vector<size_t> as_a_whole;
  std::vector<Bytes> sizes;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& whole = parameters_[i].whole;
    if (options.owning == Owning::shares && whole.nbytes() >= kLeastShared) continue;
    as_a_whole.push_back(i);
    sizes.push_back(whole.nbytes());
  }
  const std::vector<int> owners = owners_of(sizes, ranks());
  for (Parameter& parameter : parameters_) {
    const at::Tensor& whole = parameter.whole;
    parameter.shares = even_shares(static_cast<Bytes>(whole.numel()),
                                   static_cast<Bytes>(whole.element_size()), ranks());
  }
  for (size_t i = 0; i < as_a_whole.size(); ++i)
    parameters_[as_a_whole[i]].shares = whole_share(sizes[i], owners[i], ranks());
  std::vector<ReducedParameter> reduced;
  std::vector<at::ScalarType> types;
  std::vector<Share> own;
  for (const Parameter& parameter : parameters_) {
    types.push_back(parameter.whole.scalar_type());
    own.push_back(parameter.shares[static_cast<size_t>(rank())]);
    reduced.push_back({parameter.name, parameter.shares, element_of(types.back())});
  }
  reduction_ =
      std::make_unique<Reduction>(std::move(reduced),
                                  ReductionOptions{.format = options.gradients,
                                                   .rank = rank(),
                                                   .ranks = ranks(),
                                                   .piece_bytes = piece_bytes_,
                                                   .most_waiting = session_->memory() / 8},
                                  reduction_of_tensors(std::move(types), std::move(own), ranks()));
  protocol_ = std::make_unique<StepProtocol>(rank(), ranks(), parameters_.size(), *reduction_);
}

// Ranks with different models would wait for each other for ever.
void Sharding::compare_models() {
  uint64_t hash =
      static_cast<uint64_t>(options_.stage) << 8 | static_cast<uint64_t>(options_.owning);
  hash = mix_in(hash, static_cast<uint64_t>(options_.ranks_per_node) << 1 |
                          static_cast<uint64_t>(options_.node_copies));
  for (const Parameter& parameter : parameters_) {
    hash = mix_in(hash, std::hash<std::string>()(parameter.name));
    hash = mix_in(hash, static_cast<uint64_t>(parameter.whole.scalar_type()));
    for (const int64_t size : parameter.whole.sizes())
      hash = mix_in(hash, static_cast<uint64_t>(size));
    for (const Share& share : parameter.shares) hash = mix_in(hash, share.end);
  }
  const at::Tensor own = at::empty({1}, at::kLong).fill_(static_cast<int64_t>(hash));
  const Exchange::Key key = offer_values(own, ranks());
  for (int from = 0; from < ranks(); ++from) {
    uint64_t theirs = 0;
    check(exchange_->pull_now({.from = from,
                               .key = key,
                               .version = 1,
                               .into = std::as_writable_bytes(std::span(&theirs, 1)),
                               .what = "compare models"}));
    if (theirs != hash) {
      refuse_to_shard("rank " + std::to_string(from) +
                      " has other parameters, another stage, other nodes or another "
                      "limit for small ones than rank " +
                      std::to_string(rank()) + "; all ranks must shard the same model");
    }
  }
}

void Sharding::distribute() {
  const auto number = [this](const Parameter& parameter) {
    return static_cast<uint64_t>(&parameter - parameters_.data());
  };
  if (rank() == 0) {
    for (const Parameter& parameter : parameters_)
      exchange_->offer(role_key(Role::initial, number(parameter)), 1,
                       offered(parameter.whole, 0, Element::bytes));
  }
  for (Parameter& parameter : parameters_) {
    const Share share = parameter.shares[static_cast<size_t>(rank())];
    const at::ScalarType type = parameter.whole.scalar_type();
    Result<at::Tensor> made = new_managed(share.bytes(), type, Kind::parameter);
    if (!made.ok()) throw_error(made.error());
    parameter.slice = std::move(made).value();
    const std::string what = "distribute '" + parameter.name + "'";
    const Exchange::Key key = role_key(Role::initial, number(parameter));
    pull_into(parameter.slice, 0, key, 1, share.begin, what);
    const bool owns_all = share.bytes() == parameter.whole.nbytes();
    if (owns_all && parameter.whole.numel() > 0)
      parameter.slice =
          parameter.slice.as_strided(parameter.whole.sizes(), parameter.whole.strides());
    const bool small = parameter.whole.nbytes() < session_->least_managed();
    if (small && rank() != 0) pull_into(parameter.whole, 0, key, 1, 0, what);
    if (share.bytes() > 0) offer_share(number(parameter));
  }
  // Rank 0 lets go of what it had when everybody has had their part.
  for (Parameter& parameter : parameters_) {
    const bool small = parameter.whole.nbytes() < session_->least_managed();
    const Bytes others = static_cast<Bytes>(ranks() - 1);
    const Bytes wanted = parameter.whole.nbytes() * (small ? 1 + others : 1);
    const Exchange::Key key = role_key(Role::initial, number(parameter));
    if (rank() == 0) {
      check(exchange_->wait(
          "distribute '" + parameter.name + "'", [&] { return exchange_->given(key) >= wanted; },
          [] { return -1; }));
      exchange_->withdraw(key);
    }
    if (!small) become_sharded(parameter);
  }
}

void Sharding::keep_within_node(Parameter& parameter) {
  const auto number = static_cast<uint64_t>(&parameter - parameters_.data());
  Result<NodeShares::Kept*> kept = node_shares_->add(
      role_key(Role::node_share, number),
      even_shares_within(node_of(rank(), ranks(), options_.ranks_per_node),
                         static_cast<Bytes>(parameter.whole.numel()),
                         static_cast<Bytes>(parameter.whole.element_size()), ranks()));
  if (!kept.ok()) throw_error(kept.error());
  parameter.within_node = kept.value();
}

void Sharding::become_sharded(Parameter& parameter) {
  const at::Tensor& whole = parameter.whole;
  const auto number = static_cast<uint64_t>(&parameter - parameters_.data());
  const Element element = element_of(whole.scalar_type());
  if (node_shares_) keep_within_node(parameter);
  parameter.gather = std::make_shared<Gather>(
      *exchange_, Sharded{.name = parameter.name,
                          .key = role_key(Role::parameter, number),
                          .shares = parameter.shares,
                          .element = element,
                          .format = element == Element::bytes ? Format::plain : options_.weights,
                          .within_node = parameter.within_node});
  parameter.gather->renew(1);
  const Bytes bytes = whole.nbytes();
  Result<void*> address = engine().allocate_from(
      parameter.gather, bytes, Kind::parameter,
      options_.stage == 3 ? Engine::Fetched::dropped : Engine::Fetched::kept, "shard a model");
  if (!address.ok()) throw_error(address.error());
  if (parameter.within_node != nullptr)
    parameter.within_node->renew(1, static_cast<const std::byte*>(address.value()));
  const at::Tensor sharded =
      tensor_on(address.value(), bytes, whole.sizes(), whole.strides(), whole.scalar_type());
  parameter.whole.set_data(sharded);
}

}  // namespace bottomless
