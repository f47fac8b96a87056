// Writes a safetensors file whose tensors are declared at the start and come in pieces, in any order and from any thread.
// A piece goes from the caller's memory to the file; nothing is kept. Checksums are taken from the caller's memory as far
// as a tensor's pieces come in the order of their offsets; from the first one that does not, the rest of that tensor is
// read back by finish(), so order saves a read.
// Thread-safety: write() from any thread, finish() when all of them have returned.
// Lifetime: the Files must outlive it.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "checkpoint/checksum.h"
#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace bottomless {

class TensorFileWriter {
 public:
  // A new file with room for all of it, so that a full disk shows here; fails where there is a file of that name.
  static Result<std::unique_ptr<TensorFileWriter>> create(Files& files,
                                                          const std::filesystem::path& path,
                                                          std::vector<TensorSpec> tensors,
                                                          Metadata metadata = {});
  ~TensorFileWriter();  // removes a file that was not finished
  TensorFileWriter(const TensorFileWriter&) = delete;
  TensorFileWriter& operator=(const TensorFileWriter&) = delete;

  // Bytes [offset, offset + piece.size()) of a tensor, each once. After a failed transfer the file cannot be finished.
  Result<void> write(std::string_view tensor, Bytes offset, std::span<const std::byte> piece);

  // Checks that every byte was written, and returns when the file and its name survive a power cut. Once.
  Result<FileEntry> finish();

  const std::filesystem::path& path() const { return path_; }
  const TensorLayout& layout() const { return layout_; }

 private:
  struct Progress {
    Mutex mutex;
    std::map<Bytes, Bytes> written BOTTOMLESS_GUARDED_BY(mutex);  // begin -> end, merged
    Checksum checksum BOTTOMLESS_GUARDED_BY(mutex);
    Bytes summed BOTTOMLESS_GUARDED_BY(mutex) = 0;  // from the beginning
  };
  TensorFileWriter(Files& files, std::unique_ptr<File> file, std::filesystem::path path,
                   TensorLayout layout);
  Result<void> start(std::string_view header);
  Result<uint64_t> finish_tensor(const PlacedTensor& tensor, Progress& progress,
                                 std::vector<std::byte>& buffer);
  Error refused(const PlacedTensor& tensor, const std::string& what) const;

  Files& files_;
  const std::unique_ptr<File> file_;
  const std::filesystem::path path_;
  const TensorLayout layout_;
  std::unordered_map<std::string, size_t> by_name_;  // not changed after construction
  std::deque<Progress> progress_;                    // of each tensor of layout_
  std::atomic<bool> broken_{false};
  bool finished_ = false;
};

}  // namespace bottomless
