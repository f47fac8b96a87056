// How a model comes to its parameters: it names each one while it is built, one after the other, and a source makes it.
// So no more than one parameter is ever on its way, whether it is read from a file or filled with random numbers.
// Thread-safety: one thread at a time.
// Lifetime: the source must outlive the building of the model, not the model.
#pragma once
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace bottomless::train {

// What a parameter is for: how it begins when a model is made from scratch.
enum class Role {
  weight,
  residual_weight,  // its product is added to the residual stream
  norm,
  bias,
};

struct ParameterSpec {
  std::string name;  // as in Hugging Face's files: "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  Role role = Role::weight;
};

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // A contiguous tensor of that shape. Errors are thrown as torch's.
  virtual torch::Tensor make(const ParameterSpec& spec) = 0;
};

// The source together with the place in the tree of modules that is being built.
class Scope {
 public:
  explicit Scope(ParameterSource& source) : source_(source) {}

  Scope operator/(const std::string& name) const { return {source_, prefix_ + name + "."}; }
  torch::Tensor make(const std::string& name, std::vector<int64_t> shape, Role role) const {
    return source_.make({prefix_ + name, std::move(shape), role});
  }

 private:
  Scope(ParameterSource& source, std::string prefix)
      : source_(source), prefix_(std::move(prefix)) {}

  ParameterSource& source_;
  std::string prefix_;
};

// Builds a module below `parent`, under the same name in the tree and in the names of its parameters.
template <class Child, class... Arguments>
std::shared_ptr<Child> add(torch::nn::Module& parent, const Scope& scope, const std::string& name,
                           const Arguments&... arguments) {
  return parent.register_module(name, std::make_shared<Child>(scope / name, arguments...));
}

// Has no parameters of its own, only a place in their names.
class Group : public torch::nn::Module {
 public:
  explicit Group(const Scope&) {}
};

}  // namespace bottomless::train
