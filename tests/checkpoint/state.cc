#include "state.h"

#include <algorithm>
#include <utility>

#include "checkpoint/verify.h"

namespace bottomless {

TensorSpec spec_of(std::string name, Dtype dtype, std::vector<uint64_t> shape) {
  return {std::move(name), dtype, std::move(shape)};
}

State random_state(uint64_t step, size_t tensors, uint64_t most_elements, Random& random) {
  State state{step, {}};
  for (size_t i = 0; i < tensors; ++i) {
    const auto dtype = static_cast<Dtype>(random.below(kDtypes));
    std::vector<uint64_t> shape;
    if (!random.one_in(8)) shape.push_back(random.below(most_elements + 1));
    if (random.one_in(2)) shape.push_back(random.between(1, 3));
    StateTensor tensor{spec_of("tensor " + std::to_string(i), dtype, std::move(shape)), {}};
    tensor.bytes.resize(*bytes_of(dtype, tensor.spec.shape));
    for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random.next());
    state.tensors.emplace(tensor.spec.name, std::move(tensor));
  }
  return state;
}

Result<FileEntry> save_rank(Files& files, const std::filesystem::path& directory,
                            const State& state, uint32_t rank, uint32_t ranks, size_t piece) {
  std::vector<const StateTensor*> own;
  std::vector<TensorSpec> specs;
  uint32_t next = 0;
  for (const auto& [name, tensor] : state.tensors) {
    if (next++ % ranks != rank) continue;
    own.push_back(&tensor);
    specs.push_back(tensor.spec);
  }
  auto writer = create_shard(files, directory, state.step, rank, specs);
  if (!writer.ok()) return writer.error();
  for (const StateTensor* tensor : own) {
    for (size_t at = 0; at < tensor->bytes.size(); at += piece) {
      const auto part =
          std::span(tensor->bytes).subspan(at, std::min(piece, tensor->bytes.size() - at));
      const Result<void> written = writer.value()->write(tensor->spec.name, at, part);
      if (!written.ok()) return written.error();
    }
  }
  const Result<FileEntry> entry = writer.value()->finish();
  if (!entry.ok()) return entry;
  const Result<std::string> sent = to_json(entry.value());
  if (!sent.ok()) return sent.error();
  return parse_file_entry(sent.value());
}

Result<Removed> save(Files& files, const std::filesystem::path& directory, const State& state,
                     uint32_t ranks, Keep keep) {
  Manifest manifest{state.step, {}, R"({"lr":0.001})"};
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    Result<FileEntry> entry = save_rank(files, directory, state, rank, ranks);
    if (!entry.ok()) return entry.error();
    manifest.files.push_back(std::move(entry).value());
  }
  return commit(files, directory, manifest, keep);
}

Result<State> load(Files& files, const std::filesystem::path& directory, std::string_view name) {
  const Result<Manifest> manifest = load_manifest(files, directory, name);
  if (!manifest.ok()) return manifest.error();
  const Result<Verified> verified = verify(files, directory, manifest.value());
  if (!verified.ok()) return verified.error();
  State state{manifest.value().step, {}};
  for (const FileEntry& file : manifest.value().files) {
    const Result<TensorFileReader> reader = open_shard(files, directory, file);
    if (!reader.ok()) return reader.error();
    for (const PlacedTensor& placed : reader.value().tensors()) {
      StateTensor tensor{placed, std::vector<std::byte>(placed.bytes)};
      const Result<void> read = reader.value().read(placed, 0, tensor.bytes);
      if (!read.ok()) return read.error();
      state.tensors.emplace(placed.name, std::move(tensor));
    }
  }
  return state;
}

}  // namespace bottomless
