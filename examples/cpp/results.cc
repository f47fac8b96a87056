#include "results.h"

#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

namespace example {
namespace {

class Fnv1a {
 public:
  void add(std::span<const std::byte> bytes) {
    uint64_t hash = hash_;
    for (const std::byte byte : bytes) {
      hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3;
    }
    hash_ = hash;
  }

  void add(const std::string& text) { add(std::as_bytes(std::span(text))); }

  void add(const torch::Tensor& tensor) {
    const torch::Tensor dense = tensor.detach().contiguous();
    add(std::span(static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()));
  }

  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

std::string hex_float(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}

}  // namespace

std::string digest(const GptImpl& model, const torch::optim::AdamW& optimizer) {
  Fnv1a hash;
  for (const auto& item : model.named_parameters()) {
    hash.add(item.key());
    hash.add(item.value());
    const auto found = optimizer.state().find(item.value().unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;  // never stepped
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(*found->second);
    hash.add(state.exp_avg());
    hash.add(state.exp_avg_sq());
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash.value()));
  return text;
}

bottomless::Bytes process_memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1)) << 10;
  }
  throw std::runtime_error("read " + field + " from /proc/self/status: no such field");
}

void write_json(const std::filesystem::path& file, const GptOptions& model, int64_t parameters,
                const Results& results) {
  std::vector<std::string> hex_losses;
  for (const float loss : results.losses) hex_losses.push_back(hex_float(loss));
  nlohmann::ordered_json json = {
      {"model",
       {{"parameters", parameters},
        {"layers", model.layers},
        {"width", model.width},
        {"heads", model.heads},
        {"context", model.context},
        {"symbols", model.symbols}}},
      {"threads", torch::get_num_threads()},
      {"losses", results.losses},
      {"losses_hex", hex_losses},
      {"step_seconds", results.step_seconds},
      {"digest", results.digest},
      {"needed_bytes", results.needed_bytes},
      {"grown_bytes", results.grown_bytes},
  };
  if (results.stats)
    json["stats"] = nlohmann::ordered_json::parse(bottomless::to_json(*results.stats));

  std::ofstream out(file);
  out << json.dump(2) << '\n';
  out.close();
  if (!out) throw std::runtime_error("write results to " + file.string() + ": the write failed");
}

}  // namespace example
