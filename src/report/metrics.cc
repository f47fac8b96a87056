#include "report/metrics.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace bottomless {
namespace {

using nlohmann::json;

// One list of names for writing and for reading.
template <class Metrics, class Visit>
void visit_fields(Metrics& metrics, Visit visit) {
  visit("step", metrics.step);
  visit("time", metrics.time);
  visit("step_seconds", metrics.seconds);
  visit("tokens", metrics.tokens);
  visit("epochs", metrics.epochs);
  visit("loss", metrics.loss);
  visit("evaluation_loss", metrics.evaluation_loss);
  visit("learning_rate", metrics.learning_rate);
  visit("gradient_norm", metrics.gradient_norm);
  visit("tokens_per_second", metrics.tokens_per_second);
  visit("hardware_share", metrics.hardware_share);
  visit("memory_bytes", metrics.memory);
  visit("memory_limit_bytes", metrics.memory_limit);
  visit("disk_bytes", metrics.disk);
  visit("disk_limit_bytes", metrics.disk_limit);
  visit("read_bytes", metrics.read);
  visit("written_bytes", metrics.written);
  visit("received_bytes", metrics.received);
}

struct Write {
  nlohmann::ordered_json& to;

  template <class T>
  void operator()(const char* name, const T& value) {
    to[name] = value;
  }
  void operator()(const char* name, const std::optional<double>& value) {
    if (value.has_value()) to[name] = *value;
  }
};

struct Read {
  const json& from;
  bool& well;

  void operator()(const char* name, uint64_t& value) {
    const auto found = from.find(name);
    if (found != from.end() && found->is_number_unsigned()) {
      value = found->get<uint64_t>();
    } else {
      well = false;
    }
  }
  void operator()(const char* name, double& value) {
    const auto found = from.find(name);
    if (found != from.end() && (found->is_number() || found->is_null())) {
      value = number(*found);
    } else {
      well = false;
    }
  }
  void operator()(const char* name, std::optional<double>& value) {
    const auto found = from.find(name);
    if (found == from.end()) return;
    well = well && (found->is_number() || found->is_null());
    if (well) value = number(*found);
  }
  static double number(const json& value) {
    return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
  }
};

}  // namespace

std::string line_of(const StepMetrics& metrics) {
  nlohmann::ordered_json line;
  visit_fields(metrics, Write{line});
  return line.dump();
}

Result<StepMetrics> parse_metrics(std::string_view text) {
  const json line = json::parse(text, nullptr, false);
  StepMetrics metrics;
  bool well = line.is_object();
  if (well) visit_fields(metrics, Read{line, well});
  if (well) return metrics;
  return Error{Code::corrupt, "read a line of metrics: '" + std::string(text.substr(0, 40)) +
                                  "' is none; the file is corrupt: download or write it again"};
}

std::vector<StepMetrics> parse_metrics_lines(std::string_view text) {
  std::vector<StepMetrics> all;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    Result<StepMetrics> metrics = parse_metrics(text.substr(0, end));
    if (metrics.ok()) all.push_back(std::move(metrics).value());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

std::vector<Scalar> scalars_of(const StepMetrics& metrics) {
  std::vector<Scalar> scalars;
  const auto add = [&](const char* name, double value) {
    scalars.push_back({name, static_cast<float>(value)});
  };
  add("loss/training", metrics.loss);
  if (metrics.evaluation_loss.has_value()) add("loss/evaluation", *metrics.evaluation_loss);
  add("learning_rate", metrics.learning_rate);
  if (metrics.gradient_norm.has_value()) add("gradient_norm", *metrics.gradient_norm);
  add("epochs", metrics.epochs);
  add("speed/tokens_per_second", metrics.tokens_per_second);
  add("speed/step_seconds", metrics.seconds);
  if (metrics.hardware_share.has_value()) add("speed/hardware_share", *metrics.hardware_share);
  add("memory/bytes", static_cast<double>(metrics.memory));
  add("disk/bytes", static_cast<double>(metrics.disk));
  add("disk/read_bytes", static_cast<double>(metrics.read));
  add("disk/written_bytes", static_cast<double>(metrics.written));
  if (metrics.received.has_value()) add("network/received_bytes", *metrics.received);
  return scalars;
}

}  // namespace bottomless
