#include "torch/checkpoint/checkpoint_reader.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <utility>

#include "checkpoint/checksum.h"
#include "checkpoint/verify.h"
#include "torch/errors.h"
#include "torch/intercept/managed.h"

namespace bottomless {
namespace {

constexpr Bytes kPieceBytes = 1_MiB;  // pinned at once

bool is_row_major(const std::vector<uint64_t>& shape, at::IntArrayRef strides) {
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] > 1 && strides[d] != stride) return false;
    stride *= static_cast<int64_t>(shape[d]);
  }
  return true;
}

}  // namespace

CheckpointReader::CheckpointReader(std::filesystem::path directory)
    : directory_(std::move(directory)),
      files_(make_files()),
      manifest_(checked(load_manifest(*files_, directory_))),
      readers_(manifest_.files.size()) {
  for (size_t file = 0; file < manifest_.files.size(); ++file) {
    for (size_t i = 0; i < manifest_.files[file].tensors.size(); ++i)
      places_.emplace(manifest_.files[file].tensors[i].name, Place{file, i});
  }
}

const CheckpointReader::Place& CheckpointReader::place_of(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) {
    throw_error({Code::not_found, "load '" + name + "' from " + directory_.string() +
                                      ": the checkpoint has no such tensor"});
  }
  return found->second;
}

const TensorEntry& CheckpointReader::find(const std::string& name) const {
  const Place& place = place_of(name);
  return manifest_.files[place.file].tensors[place.tensor];
}

const TensorFileReader& CheckpointReader::reader_of(const Place& place) {
  std::optional<TensorFileReader>& reader = readers_[place.file];
  if (!reader)
    reader.emplace(checked(open_shard(*files_, directory_, manifest_.files[place.file])));
  return *reader;
}

// Returns the checksum of what was read.
uint64_t CheckpointReader::read_range(const std::string& name, Bytes offset,
                                      const at::Tensor& into) {
  const TensorFileReader& reader = reader_of(place_of(name));
  const PlacedTensor& placed = *reader.find(name);
  if (offset + into.nbytes() > placed.bytes) {
    throw_error({Code::invalid_argument, "load '" + name + "': bytes up to " +
                                             std::to_string(offset + into.nbytes()) + " of " +
                                             std::to_string(placed.bytes)});
  }
  Checksum checksum;
  for (Bytes done = 0; done < into.nbytes(); done += kPieceBytes) {
    const Bytes bytes = std::min<Bytes>(kPieceBytes, into.nbytes() - done);
    const PinnedRange range =
        checked(pin_range(into, done, bytes, Access::write, "load '" + name + "'"));
    if (Result<void> got = reader.read(placed, offset + done, {range.at, bytes}); !got.ok())
      throw_error(got.error());
    checksum.add({range.at, bytes});
  }
  return checksum.value();
}

void CheckpointReader::read(const std::string& name, at::IntArrayRef strides, Share share,
                            const at::Tensor& into) {
  const TensorEntry& entry = find(name);
  if (is_row_major(entry.shape, strides)) {
    (void)read_range(name, share.begin, into);
    return;
  }
  // The file has another order than the memory: that takes the whole, twice.
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> shape(entry.shape.begin(), entry.shape.end());
  const at::Tensor rows = at::empty(shape, into.options());
  (void)read_range(name, 0, rows);
  const at::Tensor whole = at::empty_strided(shape, strides, into.options()).copy_(rows);
  const auto element = static_cast<int64_t>(into.element_size());
  const int64_t begin = static_cast<int64_t>(share.begin) / element;
  at::Tensor target = into.as_strided({into.numel()}, {1});
  target.copy_(whole.as_strided({into.numel()}, {1}, begin));
}

void CheckpointReader::read_whole(const std::string& name, const at::Tensor& into) {
  if (read_range(name, 0, into) != find(name).checksum) {
    throw_error({Code::corrupt, "load '" + name + "' from " + directory_.string() +
                                    ": its bytes are not those that were saved"});
  }
}

}  // namespace bottomless
