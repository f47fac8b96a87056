// A store in scratch files, one in each of one or more directories, each with its own queue of
// work. Extents take turns over the disks. Files grow ahead of the writes, so a full disk shows
// when room is asked for, not when data is in flight.
// Thread-safety: see Store.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "base/first_fit.h"
#include "base/log.h"
#include "base/mutex.h"
#include "io/disk_queue.h"
#include "io/scratch_file.h"
#include "io/store.h"

namespace bottomless {

struct DiskStoreOptions {
  std::vector<std::filesystem::path> directories;  // at least one
  std::optional<Bytes> limit;  // over all directories; none: as much as the disks hold
  LogSink log = [](LogLevel, std::string_view) {};
};

class DiskStore final : public Store {
 public:
  static Result<std::unique_ptr<DiskStore>> open(const DiskStoreOptions& options);

  Result<Extent> allocate(Bytes bytes) override BOTTOMLESS_EXCLUDES(mutex_);
  void free(const Extent& extent) override BOTTOMLESS_EXCLUDES(mutex_);
  void read(const Extent& extent, Pieces into, std::function<void(Result<void>)> done) override;
  void write(const Extent& extent, Pieces from, std::function<void(Result<void>)> done) override;
  bool read_in_child(const Extent& extent, std::span<std::byte> into) noexcept override;

 private:
  struct Disk {
    ScratchFile file;
    FirstFit extents{0};  // in units of kAlignment
    std::unique_ptr<DiskQueue> queue;
    std::string target;
  };

  DiskStore(std::vector<Disk> disks, std::optional<Bytes> limit)
      : limit_(limit), disks_(std::move(disks)) {}
  Result<uint64_t> allocate_on(Disk& disk, Bytes bytes) BOTTOMLESS_REQUIRES(mutex_);
  Bytes size_of_files() const BOTTOMLESS_REQUIRES(mutex_);
  void submit(Direction direction, const Extent& extent, Pieces pieces,
              std::function<void(Result<void>)> done);

  const std::optional<Bytes> limit_;
  Mutex mutex_;  // guards the files' sizes and extents; the queues look after themselves
  std::vector<Disk> disks_;
  size_t turn_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
};

}  // namespace bottomless
