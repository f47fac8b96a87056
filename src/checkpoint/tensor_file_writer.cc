#include "checkpoint/tensor_file_writer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace bottomless {
namespace {

constexpr Bytes kReadBackBytes = 1_MiB;

// Adds [begin, end) to ranges that neither touch nor overlap; false if a byte of it is there already.
bool add_range(std::map<Bytes, Bytes>& ranges, Bytes begin, Bytes end) {
  const auto next = ranges.lower_bound(begin);
  if (next != ranges.end() && next->first < end) return false;
  const auto before = next == ranges.begin() ? ranges.end() : std::prev(next);
  if (before != ranges.end() && before->second > begin) return false;
  if (next != ranges.end() && next->first == end) {
    end = next->second;
    ranges.erase(next);
  }
  if (before != ranges.end() && before->second == begin) {
    before->second = end;
  } else {
    ranges.emplace(begin, end);
  }
  return true;
}

// The first byte below `bytes` that is in no range.
Bytes first_missing(const std::map<Bytes, Bytes>& ranges) {
  return ranges.empty() || ranges.begin()->first > 0 ? 0 : ranges.begin()->second;
}

}  // namespace

TensorFileWriter::TensorFileWriter(Files& files, std::unique_ptr<File> file,
                                   std::filesystem::path path, TensorLayout layout)
    : files_(files),
      file_(std::move(file)),
      path_(std::move(path)),
      layout_(std::move(layout)),
      progress_(layout_.tensors.size()) {
  by_name_.reserve(layout_.tensors.size());
  for (size_t i = 0; i < layout_.tensors.size(); ++i) {
    by_name_.emplace(layout_.tensors[i].name, i);
  }
}

TensorFileWriter::~TensorFileWriter() {
  // Half a file is of no use, and the next attempt may need its room. If this fails, a later commit removes it.
  if (!finished_) (void)files_.remove(path_);
}

Result<std::unique_ptr<TensorFileWriter>> TensorFileWriter::create(
    Files& files, const std::filesystem::path& path, std::vector<TensorSpec> tensors,
    Metadata metadata) {
  Result<NewHeader> header = make_header(std::move(tensors), std::move(metadata), path.string());
  if (!header.ok()) return header.error();
  Result<std::unique_ptr<File>> file = files.create(path);
  if (!file.ok()) return file.error();
  std::unique_ptr<TensorFileWriter> writer(
      new TensorFileWriter(files, std::move(file).value(), path, std::move(header.value().layout)));
  const Result<void> started = writer->start(header.value().start);
  if (!started.ok()) return started.error();
  return writer;
}

Result<void> TensorFileWriter::start(std::string_view header) {
  const Result<void> allocated = file_->allocate(layout_.file_bytes);
  if (!allocated.ok()) return allocated.error();
  return write_all(*file_, 0, std::as_bytes(std::span(header)), path_);
}

Error TensorFileWriter::refused(const PlacedTensor& tensor, const std::string& what) const {
  return {Code::invalid_argument,
          "write tensor '" + tensor.name + "' of '" + path_.string() + "': " + what};
}

Result<void> TensorFileWriter::write(std::string_view name, Bytes offset,
                                     std::span<const std::byte> piece) {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) {
    return Error{Code::invalid_argument, "write tensor '" + std::string(name) + "' of '" +
                                             path_.string() +
                                             "': it was not declared when the file was created"};
  }
  const PlacedTensor& tensor = layout_.tensors[found->second];
  const std::string range =
      std::to_string(piece.size()) + " bytes at offset " + std::to_string(offset);
  if (offset > tensor.bytes || piece.size() > tensor.bytes - offset) {
    return refused(tensor, range + ": it has " + std::to_string(tensor.bytes));
  }
  if (piece.empty()) return {};
  {
    Progress& progress = progress_[found->second];
    MutexLock lock(progress.mutex);
    if (!add_range(progress.written, offset, offset + piece.size())) {
      return refused(tensor, range + ": some of them were written before; write each byte once");
    }
    if (offset == progress.summed) {
      progress.checksum.add(piece);
      progress.summed += piece.size();
    }
  }
  Result<void> written = write_all(*file_, tensor.offset + offset, piece, path_);
  // Whoever calls finish() has waited for this call, which orders it: relaxed is enough.
  if (!written.ok()) broken_.store(true, std::memory_order_relaxed);
  return written;
}

Result<uint64_t> TensorFileWriter::finish_tensor(const PlacedTensor& tensor, Progress& progress,
                                                 std::vector<std::byte>& buffer) {
  MutexLock lock(progress.mutex);
  const Bytes missing = first_missing(progress.written);
  if (missing < tensor.bytes) {
    return refused(tensor, "byte " + std::to_string(missing) + " of " +
                               std::to_string(tensor.bytes) + " was never written");
  }
  while (progress.summed < tensor.bytes) {
    buffer.resize(kReadBackBytes);
    const auto piece =
        std::span(buffer).first(std::min<Bytes>(buffer.size(), tensor.bytes - progress.summed));
    const Result<void> read = read_all(*file_, tensor.offset + progress.summed, piece, path_);
    if (!read.ok()) return read.error();
    progress.checksum.add(piece);
    progress.summed += piece.size();
  }
  return progress.checksum.value();
}

Result<FileEntry> TensorFileWriter::finish() {
  BOTTOMLESS_CHECK(!finished_, "a file is finished once");
  if (broken_.load(std::memory_order_relaxed)) {
    return Error{Code::io, "finish '" + path_.string() +
                               "': a piece of it could not be written; save once more"};
  }
  FileEntry entry{path_.filename().string(), layout_.file_bytes, {}};
  std::vector<std::byte> buffer;
  for (size_t i = 0; i < layout_.tensors.size(); ++i) {
    const PlacedTensor& tensor = layout_.tensors[i];
    const Result<uint64_t> checksum = finish_tensor(tensor, progress_[i], buffer);
    if (!checksum.ok()) return checksum.error();
    entry.tensors.push_back({tensor, checksum.value()});
  }
  const Result<void> synced = file_->sync();
  if (!synced.ok()) return synced.error();
  const Result<void> named = files_.sync_directory(directory_of(path_));
  if (!named.ok()) return named.error();
  finished_ = true;
  return entry;
}

}  // namespace bottomless
