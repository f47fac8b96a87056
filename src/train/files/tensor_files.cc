#include "train/files/tensor_files.h"

#include <memory>
#include <utility>
#include <vector>

#include "train/files/tensor_pieces.h"
#include "train/models/parameter_types.h"

namespace bottomless::train {

TensorSpec spec_of(const NamedTensor& named, at::ScalarType type) {
  const auto sizes = named.tensor.sizes();
  return {named.name, *file_dtype(type), {sizes.begin(), sizes.end()}};
}

Result<void> write_tensor(TensorFileWriter& writer, const NamedTensor& named, at::ScalarType type) {
  const Bytes element = c10::elementSize(type);
  Staging staging;
  return in_pieces(
      named.tensor.detach(), Access::read, "write '" + named.name + "'",
      [&](int64_t first, const at::Tensor& piece) {
        const at::Tensor written =
            piece.scalar_type() == type ? piece : staging.take(type, piece.numel()).copy_(piece);
        const std::span bytes(static_cast<const std::byte*>(written.const_data_ptr()),
                              written.nbytes());
        return writer.write(named.name, static_cast<Bytes>(first) * element, bytes);
      });
}

Result<void> write_tensor_file(Files& files, const std::filesystem::path& path,
                               std::span<const NamedTensor> tensors, at::ScalarType type,
                               const Progress& progress) {
  std::vector<TensorSpec> specs;
  for (const NamedTensor& named : tensors) specs.push_back(spec_of(named, type));
  Result<std::unique_ptr<TensorFileWriter>> writer =
      TensorFileWriter::create(files, path, std::move(specs), {{"format", "pt"}});
  if (!writer.ok()) return writer.error();
  for (const NamedTensor& named : tensors) {
    if (progress) progress(named.name);
    if (Result<void> written = write_tensor(*writer.value(), named, type); !written.ok())
      return written;
  }
  const Result<FileEntry> finished = writer.value()->finish();
  return finished.ok() ? Result<void>() : finished.error();
}

}  // namespace bottomless::train
