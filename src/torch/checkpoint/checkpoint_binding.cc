// CheckpointReader as Python sees it: torch.classes.bottomless.Checkpoint. python/bottomless/_shard_checkpoint.py uses it.
#include <torch/custom_class.h>

#include "torch/checkpoint/checkpoint_reader.h"

namespace bottomless {
namespace {

class Checkpoint final : public torch::CustomClassHolder {
 public:
  explicit Checkpoint(const std::string& directory) : reader_(directory) {}

  int64_t step() { return static_cast<int64_t>(reader_.manifest().step); }
  std::string extra() { return reader_.manifest().extra; }
  std::vector<std::string> files() {
    std::vector<std::string> names;
    for (const FileEntry& file : reader_.manifest().files) names.push_back(file.name);
    return names;
  }
  std::vector<std::string> tensors() {
    std::vector<std::string> names;
    for (const FileEntry& file : reader_.manifest().files) {
      for (const TensorEntry& tensor : file.tensors) names.push_back(tensor.name);
    }
    return names;
  }
  std::string dtype(const std::string& name) {
    return std::string(name_of(reader_.find(name).dtype));
  }
  std::vector<int64_t> shape(const std::string& name) {
    const std::vector<uint64_t>& shape = reader_.find(name).shape;
    return {shape.begin(), shape.end()};
  }
  // Elements [begin, end) as they lie in memory with these strides.
  void read(const std::string& name, const std::vector<int64_t>& strides, int64_t begin,
            int64_t end, const at::Tensor& into) {
    const auto element = static_cast<Bytes>(into.element_size());
    reader_.read(name, strides,
                 {static_cast<Bytes>(begin) * element, static_cast<Bytes>(end) * element}, into);
  }
  void read_whole(const std::string& name, const at::Tensor& into) {
    reader_.read_whole(name, into);
  }

 private:
  CheckpointReader reader_;
};

TORCH_LIBRARY_FRAGMENT(bottomless, library) {
  library.class_<Checkpoint>("Checkpoint")
      .def(torch::init<std::string>())
      .def("step", &Checkpoint::step)
      .def("extra", &Checkpoint::extra)
      .def("files", &Checkpoint::files)
      .def("tensors", &Checkpoint::tensors)
      .def("dtype", &Checkpoint::dtype)
      .def("shape", &Checkpoint::shape)
      .def("read", &Checkpoint::read)
      .def("read_whole", &Checkpoint::read_whole);
}

}  // namespace
}  // namespace bottomless
