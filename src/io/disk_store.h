// A store in scratch files, one in each of one or more directories, each with its own queue of
// work. Each disk takes its share of the extents: in proportion to its speed, so that all are done
// at the same time. Files grow ahead of the writes, so a full disk shows when room is asked for,
// not when data is in flight.
// Thread-safety: see Store.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "base/best_fit.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "io/disk_queue.h"
#include "io/scratch_file.h"
#include "io/store.h"

namespace bottomless {

struct DiskStoreOptions {
  std::vector<std::filesystem::path> directories;  // at least one
  std::optional<Bytes> limit;  // over all directories; none: as much as the disks hold
  Bytes wanted = 0;            // warn when less is free in all of them
  std::vector<double> speeds;  // of the directories, relative to each other; none: measured
  LogSink log = [](LogLevel, std::string_view) {};
  const Clock* clock = &Clock::steady();  // says what is overdue
  // How a disk is spoken to; where that is refused, by threads.
  MakeTransfers transfers = [] { return make_uring_transfers(DiskQueue::kDepth); };
};

class DiskStore final : public Store {
 public:
  static Result<std::unique_ptr<DiskStore>> open(const DiskStoreOptions& options);

  Result<Extent> allocate(Bytes bytes) override BOTTOMLESS_EXCLUDES(mutex_);
  void free(const Extent& extent) override BOTTOMLESS_EXCLUDES(mutex_);
  void read(const Extent& extent, Pieces into, Priority priority, Done done) override;
  void write(const Extent& extent, Pieces from, Priority priority, Done done) override;
  void raise_priority(const Extent& extent) override;
  std::optional<Error> overdue(std::chrono::nanoseconds timeout) override;
  bool read_in_child(const Extent& extent, std::span<std::byte> into) noexcept override;

  Bytes own_memory() const { return own_memory_; }       // of its threads and rings
  Bytes file_bytes() const BOTTOMLESS_EXCLUDES(mutex_);  // size of its files

 private:
  struct Disk {
    ScratchFile file;
    BestFit extents{0};  // in units of kAlignment
    std::unique_ptr<DiskQueue> queue;
    std::string target;
    double speed = 1;
    Bytes own_memory = 0;
  };

  DiskStore(std::vector<Disk> disks, std::optional<Bytes> limit, const Clock& clock);
  static Result<Disk> open_disk(const std::filesystem::path& directory, size_t index,
                                const DiskStoreOptions& options);
  static Result<void> set_speeds(std::vector<Disk>& disks, const DiskStoreOptions& options);
  static Result<void> check_space(const DiskStoreOptions& options);
  std::vector<size_t> by_preference(Bytes bytes) const BOTTOMLESS_REQUIRES(mutex_);
  Result<uint64_t> allocate_on(Disk& disk, Bytes bytes) BOTTOMLESS_REQUIRES(mutex_);
  Bytes size_of_files() const BOTTOMLESS_REQUIRES(mutex_);
  void submit(Direction direction, const Extent& extent, Pieces pieces, Priority priority,
              Done done);

  const std::optional<Bytes> limit_;
  const Clock& clock_;
  Bytes own_memory_ = 0;
  mutable Mutex mutex_;  // guards the files' sizes and extents; the queues look after themselves
  std::vector<Disk> disks_;
};

}  // namespace bottomless
