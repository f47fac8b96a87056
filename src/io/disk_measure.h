// Measures a disk as a run uses it: requests of one size at random places of a scratch file, kept
// in flight by the same queue that moves the tensors of a run, from memory of the same kind.
// Thread-safety: one measurement at a time, from one thread.
// Lifetime: the scratch file has no name, so nothing of it is left when the process ends.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/disk_queue.h"
#include "io/scratch_file.h"
#include "memory/address_space.h"

namespace bottomless {

enum class Pattern { read, write, mixed };  // mixed: half of the requests are reads
const char* name_of(Pattern pattern);

struct Load {
  Pattern pattern = Pattern::read;
  Bytes size = 1_MiB;  // of a request
  unsigned depth = 8;  // requests kept in flight, for each file
  double seconds = 1;
};

struct Rate {
  Bytes bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;  // of all threads, the kernel's work for them included

  double bytes_per_second() const { return static_cast<double>(bytes) / seconds; }
  double cpu_seconds_per_gib() const { return cpu_seconds * 1_GiB / static_cast<double>(bytes); }
};

// Requests begin and end at multiples of this.
inline constexpr Bytes kRequestAlignment = DiskQueue::kAlignment;

class WorkingFile {
 public:
  // `bytes`, a multiple of kRequestAlignment, are taken from the disk at once.
  static Result<WorkingFile> open(const std::filesystem::path& directory, Bytes bytes);

  // Writes it from the beginning, at most so long: only what was written can be measured, since a
  // file system reads nothing where nothing was written.
  Result<void> fill(double at_most_seconds);

  Bytes written() const { return written_; }
  int fd() const { return file_.fd(); }
  Caching caching() const { return file_.caching(); }
  const std::filesystem::path& directory() const { return file_.directory(); }
  // Why io_uring is not used, if it is not.
  const std::optional<std::string>& without_uring() const { return without_uring_; }

 private:
  friend class Flight;

  WorkingFile(ScratchFile file, std::unique_ptr<DiskQueue> queue)
      : file_(std::move(file)), queue_(std::move(queue)) {}
  // Memory for requests, filled with bytes that no disk can compress; kept for the next time.
  Result<std::span<std::byte>> memory(Bytes bytes);

  ScratchFile file_;
  Bytes written_ = 0;
  std::optional<std::string> without_uring_;
  std::optional<AddressSpace> memory_;
  std::unique_ptr<DiskQueue> queue_;  // ends before what it transfers
};

// Keeps the load on all files at once and adds them up. `load.size` must be at most what is written
// of each file.
Result<Rate> measure(std::span<WorkingFile> files, const Load& load);

}  // namespace bottomless
