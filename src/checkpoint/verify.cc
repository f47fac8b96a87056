#include "checkpoint/verify.h"

#include <algorithm>
#include <span>
#include <utility>

#include "checkpoint/checksum.h"

namespace bottomless {
namespace {

constexpr Bytes kPieceBytes = 1_MiB;  // a multiple of every element

struct Read {
  uint64_t checksum;
  uint64_t nonfinite;
};

Result<Read> read_through(const TensorFileReader& reader, const PlacedTensor& tensor,
                          Nonfinite nonfinite, std::span<std::byte> buffer) {
  Checksum checksum;
  uint64_t found = 0;
  for (Bytes offset = 0; offset < tensor.bytes; offset += buffer.size()) {
    const auto piece = buffer.first(std::min<Bytes>(buffer.size(), tensor.bytes - offset));
    const Result<void> read = reader.read(tensor, offset, piece);
    if (!read.ok()) return read.error();
    checksum.add(piece);
    if (nonfinite == Nonfinite::count) found += count_nonfinite(tensor.dtype, piece);
  }
  return Read{checksum.value(), found};
}

Error differs(const std::filesystem::path& path, const std::string& what) {
  return {Code::corrupt, "verify '" + path.string() + "': " + what +
                             "; the file is corrupt: download or write it again"};
}

}  // namespace

Result<TensorFileReader> open_shard(Files& files, const std::filesystem::path& directory,
                                    const FileEntry& entry) {
  Result<TensorFileReader> reader = TensorFileReader::open(files, directory / entry.name);
  if (!reader.ok()) return reader;
  const TensorFileReader& opened = reader.value();
  if (opened.file_bytes() != entry.bytes || opened.tensors().size() != entry.tensors.size()) {
    return differs(opened.path(),
                   "it has another size or number of tensors than the manifest says");
  }
  for (const TensorEntry& tensor : entry.tensors) {
    const PlacedTensor* found = opened.find(tensor.name);
    if (found == nullptr || static_cast<const TensorSpec&>(*found) != tensor) {
      return differs(opened.path(), "tensor '" + tensor.name +
                                        "' is missing, or not of the type and shape that the "
                                        "manifest says");
    }
  }
  return reader;
}

Result<Verified> verify(Files& files, const std::filesystem::path& directory,
                        const Manifest& manifest, Nonfinite nonfinite) {
  Verified verified;
  std::vector<std::byte> buffer(kPieceBytes);
  for (const FileEntry& entry : manifest.files) {
    const Result<TensorFileReader> reader = open_shard(files, directory, entry);
    if (!reader.ok()) return reader.error();
    for (const TensorEntry& tensor : entry.tensors) {
      const PlacedTensor& placed = *reader.value().find(tensor.name);
      const Result<Read> read = read_through(reader.value(), placed, nonfinite, buffer);
      if (!read.ok()) return read.error();
      if (read.value().checksum != tensor.checksum) {
        return differs(reader.value().path(), "tensor '" + tensor.name + "', " +
                                                  format_bytes(placed.bytes) + " at offset " +
                                                  std::to_string(placed.offset) +
                                                  ", is not as it was written (checksums differ)");
      }
      ++verified.tensors;
      verified.bytes += placed.bytes;
      if (read.value().nonfinite > 0) {
        verified.nonfinite.push_back({tensor.name, read.value().nonfinite});
      }
    }
  }
  return verified;
}

}  // namespace bottomless
