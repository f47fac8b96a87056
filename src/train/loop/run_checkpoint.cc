#include "train/loop/run_checkpoint.h"

#include <memory>
#include <utility>

#include "checkpoint/commit.h"
#include "checkpoint/manifest.h"
#include "torch/checkpoint/checkpoint_reader.h"
#include "torch/errors.h"
#include "train/files/tensor_files.h"

namespace bottomless::train {
namespace {

// As it is in memory.
TensorSpec spec_of(const NamedTensor& named) { return spec_of(named, named.tensor.scalar_type()); }

}  // namespace

Result<void> write_run(const std::filesystem::path& directory, uint64_t step,
                       const NamedTensors& tensors, const nlohmann::json& extra) {
  const std::unique_ptr<Files> files = make_files();
  std::vector<TensorSpec> specs;
  for (const NamedTensor& named : tensors) specs.push_back(spec_of(named));
  auto file = create_shard(*files, directory, step, /*rank=*/0, std::move(specs));
  if (!file.ok()) return file.error();
  for (const NamedTensor& named : tensors) {
    if (Result<void> written = write_tensor(*file.value(), named, named.tensor.scalar_type());
        !written.ok())
      return written;
  }
  Result<FileEntry> entry = file.value()->finish();
  if (!entry.ok()) return entry.error();
  const Result<Removed> committed =
      commit(*files, directory, {step, {std::move(entry).value()}, extra.dump()}, Keep::last_two);
  if (!committed.ok()) return committed.error();
  return {};
}

Result<SavedRun> read_run(const std::filesystem::path& directory) {
  const std::unique_ptr<Files> files = make_files();
  const Result<Manifest> manifest = load_manifest(*files, directory);
  if (!manifest.ok()) return manifest.error();
  SavedRun saved{.step = manifest.value().step,
                 .extra = nlohmann::json::parse(manifest.value().extra)};
  for (const FileEntry& file : manifest.value().files)
    saved.tensors.insert(saved.tensors.end(), file.tensors.begin(), file.tensors.end());
  return saved;
}

Result<void> read_run_tensors(const std::filesystem::path& directory,
                              const NamedTensors& tensors) try {
  CheckpointReader reader(directory);
  for (const NamedTensor& named : tensors) {
    const TensorSpec wanted = spec_of(named);
    if (TensorSpec found = reader.find(named.name); found != wanted) {
      return Error{Code::invalid_argument, "load '" + named.name + "' from " + directory.string() +
                                               ": it has another shape or type there; resume with "
                                               "the options of the run that saved it"};
    }
  }
  for (const NamedTensor& named : tensors) reader.read_whole(named.name, named.tensor);
  return {};
} catch (const c10::Error& error) {
  return caught(error);
}

}  // namespace bottomless::train
