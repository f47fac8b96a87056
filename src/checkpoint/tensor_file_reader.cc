#include "checkpoint/tensor_file_reader.h"

#include <algorithm>
#include <array>
#include <utility>

namespace bottomless {

TensorFileReader::TensorFileReader(std::unique_ptr<File> file, std::filesystem::path path,
                                   TensorLayout layout)
    : file_(std::move(file)), path_(std::move(path)), layout_(std::move(layout)) {
  by_name_.reserve(tensors().size());
  for (size_t i = 0; i < tensors().size(); ++i) by_name_.emplace(tensors()[i].name, i);
}

Result<TensorFileReader> TensorFileReader::open(Files& files, const std::filesystem::path& path) {
  Result<std::unique_ptr<File>> file = files.open(path);
  if (!file.ok()) return file.error();
  const Result<Bytes> size = file.value()->size();
  if (!size.ok()) return size.error();
  std::array<std::byte, kLengthBytes> start{};
  const Result<void> started = read_all(
      *file.value(), 0, std::span(start).first(std::min<Bytes>(start.size(), size.value())), path);
  if (!started.ok()) return started.error();
  const Result<Bytes> length = header_length(start, size.value(), path.string());
  if (!length.ok()) return length.error();
  std::string header(length.value(), ' ');
  const Result<void> read =
      read_all(*file.value(), kLengthBytes, std::as_writable_bytes(std::span(header)), path);
  if (!read.ok()) return read.error();
  Result<TensorLayout> layout = parse_header(header, size.value(), path.string());
  if (!layout.ok()) return layout.error();
  return TensorFileReader(std::move(file).value(), path, std::move(layout).value());
}

const PlacedTensor* TensorFileReader::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &tensors()[found->second];
}

Result<void> TensorFileReader::read(const PlacedTensor& tensor, Bytes offset,
                                    std::span<std::byte> into) const {
  if (offset > tensor.bytes || into.size() > tensor.bytes - offset) {
    return Error{Code::invalid_argument,
                 "read " + std::to_string(into.size()) + " bytes at offset " +
                     std::to_string(offset) + " of tensor '" + tensor.name + "' in '" +
                     path_.string() + "': it has " + std::to_string(tensor.bytes)};
  }
  return read_all(*file_, tensor.offset + offset, into, path_);
}

}  // namespace bottomless
