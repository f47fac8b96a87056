// Tensors into a safetensors file, a piece at a time.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <filesystem>
#include <span>

#include "checkpoint/tensor_file_writer.h"
#include "train/files/tensor_progress.h"
#include "train/models/named_tensor.h"

namespace bottomless::train {

// As it stands in a file with elements of this type.
TensorSpec spec_of(const NamedTensor& named, at::ScalarType type);

// A contiguous tensor, in the type that was declared for it.
Result<void> write_tensor(TensorFileWriter& writer, const NamedTensor& named, at::ScalarType type);

// A file of them all, brought to the disk.
Result<void> write_tensor_file(Files& files, const std::filesystem::path& path,
                               std::span<const NamedTensor> tensors, at::ScalarType type,
                               const Progress& progress = {});

}  // namespace bottomless::train
