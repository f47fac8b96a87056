#include <bottomless/optim.h>
#include <bottomless/torch.h>
#include <torch/optim.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "memory/granted.h"
#include "report/explain.h"
#include "report/page.h"
#include "report/trace_file.h"
#include "torch/errors.h"
#include "torch/runtime/process.h"

namespace bottomless {

namespace {

// The C++ optimizers keep their states in unrelated classes; those of others stay unlabelled.
std::vector<at::Tensor> tensors_of(const torch::optim::OptimizerParamState& state) {
  using namespace torch::optim;
  if (const auto* ours = dynamic_cast<const optim::ParamState*>(&state)) {
    std::vector<at::Tensor> tensors;
    for (const auto& [name, tensor] : ours->tensors) tensors.push_back(tensor);
    return tensors;
  }
  if (const auto* adamw = dynamic_cast<const AdamWParamState*>(&state)) {
    return {adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()};
  }
  if (const auto* adam = dynamic_cast<const AdamParamState*>(&state)) {
    return {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()};
  }
  if (const auto* sgd = dynamic_cast<const SGDParamState*>(&state)) return {sgd->momentum_buffer()};
  if (const auto* adagrad = dynamic_cast<const AdagradParamState*>(&state)) return {adagrad->sum()};
  if (const auto* rmsprop = dynamic_cast<const RMSpropParamState*>(&state)) {
    return {rmsprop->square_avg(), rmsprop->momentum_buffer(), rmsprop->grad_avg()};
  }
  return {};
}

}  // namespace

struct Runtime::Impl {
  Session* session;
};

Runtime::Runtime(const Options& options) {
  Result<Session*> session = Process::get().open(options);
  if (!session.ok()) throw_error(session.error());
  impl_ = std::make_unique<Impl>(Impl{session.value()});
}

Runtime::~Runtime() { Process::get().close(impl_->session); }

void Runtime::step() { impl_->session->step(); }

void Runtime::step(const torch::optim::Optimizer& optimizer) {
  const auto mark = [this](const at::Tensor& tensor, Kind kind) {
    if (tensor.defined() && tensor.has_storage())
      impl_->session->engine().set_kind(tensor.storage().data(), kind);
  };
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      mark(parameter, Kind::parameter);
      mark(parameter.grad(), Kind::gradient);
    }
  }
  for (const auto& [parameter, state] : optimizer.state()) {
    for (const at::Tensor& tensor : tensors_of(*state)) mark(tensor, Kind::state);
  }
  step();
}

void Runtime::label(const void* address, const std::string& kind) {
  const auto known = std::find(kKindNames.begin(), kKindNames.end(), kind);
  if (known == kKindNames.end()) {
    throw_error({Code::invalid_argument,
                 "label a tensor as '" + kind +
                     "': the kinds are parameter, gradient, state, activation and other"});
  }
  impl_->session->engine().set_kind(address, static_cast<Kind>(known - kKindNames.begin()));
}

namespace {

StepRecord recorded_step(Session& session) {
  StepRecord record = session.engine().last_step();
  if (record.empty()) {
    throw_error(
        {Code::invalid_argument,
         "report on a step: none has been recorded; record them (Options::recorded), run two steps "
         "or more, and give a limit that leaves room to describe them (a warning tells)"});
  }
  return record;
}

void write_file(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw_error({Code::io, "write '" + file.string() + "': it cannot be written"});
}

}  // namespace

void Runtime::report(const std::filesystem::path& file) const {
  const StepRecord record = recorded_step(*impl_->session);
  write_file(file, page_of(record, explain(record)));
}

void Runtime::trace(const std::filesystem::path& file) const {
  write_file(file, write_trace(recorded_step(*impl_->session)));
}

Stats Runtime::stats() const { return impl_->session->stats(); }

bool is_limited() { return Process::get().active(); }

Bytes automatic_memory() { return automatic_limit(granted_memory()); }

std::string to_json(const Stats& stats) {
  nlohmann::ordered_json json{{"limit_bytes", stats.limit_bytes},
                              {"peak_bytes", stats.peak_bytes},
                              {"steps", stats.steps},
                              {"step_seconds", stats.step_seconds},
                              {"stall_seconds", stats.stall_seconds},
                              {"read_bytes", stats.read_bytes},
                              {"written_bytes", stats.written_bytes},
                              {"disk_bytes", stats.disk_bytes},
                              {"faults", stats.faults},
                              {"evictions", stats.evictions},
                              {"planned_fetches", stats.planned_fetches},
                              {"planned_hits", stats.planned_hits},
                              {"demand_fetches", stats.demand_fetches},
                              {"plan_departures", stats.plan_departures},
                              {"deferred_updates", stats.deferred_updates},
                              {"overhead_bytes", stats.overhead_bytes},
                              {"resident_bytes", nlohmann::ordered_json::object()}};
  for (const auto& [kind, bytes] : stats.resident_bytes) json["resident_bytes"][kind] = bytes;
  return json.dump();
}

}  // namespace bottomless
