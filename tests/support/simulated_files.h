// A file system in memory that knows what a power cut would leave of it. Bytes are safe when their file was synced, names
// when their directory was; of the rest a cut keeps any part, in any order, cut at any sector. Every request is counted,
// and the n-th can be made to fail.
// Thread-safety: any thread; the members of FileFaults while no request runs.
// Lifetime: an open File keeps its content, not the SimulatedFiles, which must outlive it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "checkpoint/files.h"
#include "support/random.h"

namespace bottomless {

enum class FileFault {
  none,
  io_error,         // EIO; a sync that fails has lost what it should have kept, for good
  no_space,         // ENOSPC
  short_transfer,   // from this request on, reads and writes move a part only
  nothing_written,  // a write takes 0 bytes
  stop,             // this request and all after it fail and do nothing: the process is gone
};

struct FileFaults {
  FileFault fault = FileFault::none;
  uint64_t at = 0;  // the request, counted from 0

  uint64_t requests = 0;
  uint64_t fired = 0;
};

class SimulatedFiles final : public Files {
 public:
  SimulatedFiles();

  FileFaults faults;

  // What another process finds: all that was done.
  std::unique_ptr<SimulatedFiles> after_kill() const;
  // What is found when the power is back: what was synced, and of the rest what the disk had got to.
  enum class Survives { nothing, everything, something };
  std::unique_ptr<SimulatedFiles> after_power_cut(Survives survives, Random& random) const;

  void flip_bit(const Path& file, Bytes offset);
  void truncate(const Path& file, Bytes bytes);

  Result<std::unique_ptr<File>> open(const Path& path) override;
  Result<std::unique_ptr<File>> create(const Path& path) override;
  Result<void> rename(const Path& from, const Path& to) override;
  Result<void> remove(const Path& path) override;
  Result<void> make_directory(const Path& path) override;
  Result<std::vector<std::string>> list(const Path& directory) override;
  Result<void> sync_directory(const Path& directory) override;

 private:
  struct Write {
    Bytes offset;
    std::string bytes;  // empty: the file was grown to `offset`
  };
  struct Content {
    bool is_directory = false;
    std::string now, synced;
    std::vector<Write> unsynced;
  };
  using Names = std::map<std::string, std::shared_ptr<Content>>;
  struct Change {  // of names: those of null content are removed; all of it survives, or nothing
    std::vector<std::pair<std::string, std::shared_ptr<Content>>> names;
  };
  struct Directory {
    Names now, synced;
    std::vector<Change> unsynced;
  };
  class SimulatedFile;

  enum class Kind { read, write, sync, other };
  // Counts a request; the errno that it fails with, or 0.
  int request(Kind kind) BOTTOMLESS_REQUIRES(mutex_);
  size_t part_of(size_t bytes) BOTTOMLESS_REQUIRES(mutex_);
  // The directory of `path` and the name in it; null if there is no such directory.
  std::pair<Directory*, std::string> find(const Path& path) BOTTOMLESS_REQUIRES(mutex_);
  static void apply(const Change& change, Names& names);
  static void apply(const Write& write, std::string& content);

  mutable Mutex mutex_;
  std::map<std::string, Directory> directories_ BOTTOMLESS_GUARDED_BY(mutex_);
  bool short_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  bool stopped_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
};

}  // namespace bottomless
