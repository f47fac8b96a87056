#include "io/disk_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "base/thread.h"
#include "io/disk_speed.h"

namespace bottomless {
namespace {

constexpr Bytes kLeastGrowth = 16_MiB;
constexpr Bytes kMostGrowth = 64_MiB;
constexpr Bytes kRingBytes = 64_KiB;
constexpr Bytes kSpeedProbe = 16_MiB;
constexpr Bytes kLeastSpeedProbe = 1_MiB;
constexpr double kMuchSlower = 4;

std::string quoted(const std::filesystem::path& directory) {
  return "'" + directory.string() + "'";
}

std::string format_speed(double bytes_per_second) {
  return format_bytes(static_cast<Bytes>(bytes_per_second)) + "/s";
}

}  // namespace

DiskStore::DiskStore(std::vector<Disk> disks, std::optional<Bytes> limit, const Clock& clock)
    : limit_(limit), clock_(clock), disks_(std::move(disks)) {
  for (const Disk& disk : disks_) own_memory_ += disk.own_memory;
}

Result<DiskStore::Disk> DiskStore::open_disk(const std::filesystem::path& directory, size_t index,
                                             const DiskStoreOptions& options) {
  Result<ScratchFile> file = ScratchFile::open(directory);
  if (!file.ok()) return std::move(file).error();
  if (file.value().caching() == Caching::buffered) {
    options.log(
        LogLevel::warning,
        quoted(directory) +
            " does not support O_DIRECT: going through the page cache, which is slower and takes "
            "memory outside the limit");
  }
  Result<ChosenTransfers> chosen = choose_transfers(options.transfers);
  if (!chosen.ok()) return std::move(chosen).error();
  unsigned threads = 1;
  if (const auto& why = chosen.value().fallback) {
    options.log(LogLevel::warning, *why + ": falling back to " + std::to_string(kTransferThreads) +
                                       " transfers at a time");
    threads += kTransferThreads;
  }
  Result<std::unique_ptr<DiskQueue>> queue = DiskQueue::start(
      "bl-disk" + std::to_string(index), std::move(chosen.value().transfers), *options.clock);
  if (!queue.ok()) return std::move(queue).error();
  return Disk{.file = std::move(file).value(),
              .extents = BestFit(0),
              .queue = std::move(queue).value(),
              .target = "the scratch file in " + quoted(directory),
              .own_memory = threads * Thread::kStackBytes + kRingBytes};
}

// One disk needs no measurement: it takes all.
Result<void> DiskStore::set_speeds(std::vector<Disk>& disks, const DiskStoreOptions& options) {
  const Bytes probe =
      std::min(kSpeedProbe, options.limit.value_or(kSpeedProbe)) / kAlignment * kAlignment;
  if (disks.size() == 1 || probe < kLeastSpeedProbe) return {};
  for (size_t i = 0; i < disks.size(); ++i) {
    Disk& disk = disks[i];
    Result<double> speed =
        options.speeds.empty()
            ? measure_speed(*disk.queue, disk.file.directory(), probe, disk.target)
            : options.speeds.at(i);
    if (!speed.ok()) return std::move(speed).error();
    disk.speed = speed.value();
  }
  const Disk& fastest = *std::max_element(
      disks.begin(), disks.end(), [](const Disk& a, const Disk& b) { return a.speed < b.speed; });
  for (const Disk& disk : disks) {
    if (disk.speed * kMuchSlower > fastest.speed) continue;
    options.log(LogLevel::warning, disk.target + " moves " + format_speed(disk.speed) +
                                       ", that in " + quoted(fastest.file.directory()) + " " +
                                       format_speed(fastest.speed) +
                                       ": the slow one will hold little; consider leaving it out");
  }
  return {};
}

// Before anything depends on it. How much a run needs shows only when it needs it.
Result<void> DiskStore::check_space(const DiskStoreOptions& options) {
  Bytes free_in_all = 0;
  std::error_code failed;
  for (const std::filesystem::path& directory : options.directories) {
    const Bytes free = std::filesystem::space(directory, failed).available;
    if (failed) return {};  // a file system that does not tell
    if (free < kAlignment) {
      return Error{Code::no_space, "open a scratch file in " + quoted(directory) +
                                       ": the disk is full; free some of it or name another "
                                       "directory with --disk"};
    }
    free_in_all += free;
  }
  if (free_in_all < options.wanted) {
    options.log(LogLevel::warning,
                "only " + format_bytes(free_in_all) + " are free in " +
                    quoted(options.directories.front()) +
                    (options.directories.size() > 1 ? " and the other directories" : "") +
                    ", less than " + format_bytes(options.wanted) +
                    ": a run that needs more stops with an error; free some or name more "
                    "directories with --disk");
  }
  return {};
}

Result<std::unique_ptr<DiskStore>> DiskStore::open(const DiskStoreOptions& options) {
  if (options.directories.empty()) {
    return Error{Code::invalid_argument,
                 "open a store: no directory was named; name one with --disk"};
  }
  std::vector<Disk> disks;
  for (const std::filesystem::path& directory : options.directories) {
    Result<Disk> disk = open_disk(directory, disks.size(), options);
    if (!disk.ok()) return std::move(disk).error();
    disks.push_back(std::move(disk).value());
  }
  if (Result<void> space = check_space(options); !space.ok()) return std::move(space).error();
  if (Result<void> speeds = set_speeds(disks, options); !speeds.ok())
    return std::move(speeds).error();
  return std::unique_ptr<DiskStore>(new DiskStore(std::move(disks), options.limit, *options.clock));
}

Bytes DiskStore::file_bytes() const {
  MutexLock lock(mutex_);
  return size_of_files();
}

Bytes DiskStore::size_of_files() const {
  Bytes total = 0;
  for (const Disk& disk : disks_) total += disk.file.bytes();
  return total;
}

Result<uint64_t> DiskStore::allocate_on(Disk& disk, Bytes bytes) {
  if (const auto unit = disk.extents.allocate(bytes / kAlignment)) return *unit * kAlignment;
  // Grow by a little more than needed, but never past the limit, and by no more than needed when the disk or the
  // limit is tight. What is free at the end of the file serves as the beginning of the extent.
  const Bytes size = disk.file.bytes();
  const Bytes needed = bytes - disk.extents.tail() * kAlignment;
  const Bytes room = limit_ ? *limit_ - std::min(*limit_, size_of_files()) : ~Bytes{0};
  if (needed > room) {
    return Error{Code::no_space, "write " + format_bytes(bytes) + " to " + disk.target + ": " +
                                     format_bytes(size_of_files()) + " in use of the " +
                                     format_bytes(*limit_) +
                                     " granted (--disk-limit); raise the limit or free tensors"};
  }
  const Bytes step = std::clamp(size / 32 / kAlignment * kAlignment, kLeastGrowth, kMostGrowth);
  const Bytes generous = std::min(std::max(needed, step), room / kAlignment * kAlignment);
  if (Result<void> grown = disk.file.grow(size + generous); !grown.ok()) {
    if (generous == needed || grown.error().code != Code::no_space) return std::move(grown).error();
    if (Result<void> just_enough = disk.file.grow(size + needed); !just_enough.ok()) {
      return std::move(just_enough).error();
    }
  }
  disk.extents.grow(disk.file.bytes() / kAlignment);
  const auto unit = disk.extents.allocate(bytes / kAlignment);
  return *unit * kAlignment;
}

// The disk first that would be done soonest with all it holds.
std::vector<size_t> DiskStore::by_preference(Bytes bytes) const {
  const auto load = [&](size_t index) BOTTOMLESS_REQUIRES(mutex_) {
    const Disk& disk = disks_[index];
    return static_cast<double>(disk.extents.used() * kAlignment + bytes) / disk.speed;
  };
  std::vector<size_t> order(disks_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) BOTTOMLESS_REQUIRES(mutex_) {
    return load(a) < load(b);
  });
  return order;
}

Result<Extent> DiskStore::allocate(Bytes bytes) {
  const Bytes rounded = round_to_store(bytes);
  MutexLock lock(mutex_);
  std::optional<Error> first_error;
  for (const size_t index : by_preference(rounded)) {
    Result<uint64_t> offset = allocate_on(disks_[index], rounded);
    if (offset.ok()) return Extent{static_cast<uint32_t>(index), offset.value(), rounded};
    if (!first_error) first_error = std::move(offset).error();
  }
  return std::move(*first_error);
}

void DiskStore::free(const Extent& extent) {
  MutexLock lock(mutex_);
  disks_[extent.disk].extents.free(extent.offset / kAlignment, extent.bytes / kAlignment);
}

void DiskStore::submit(Direction direction, const Extent& extent, Pieces pieces, Priority priority,
                       Done done) {
  Disk& disk = disks_[extent.disk];
  disk.queue->submit({direction, disk.file.fd(), extent.offset, std::move(pieces), disk.target,
                      std::move(done), priority});
}

void DiskStore::read(const Extent& extent, Pieces into, Priority priority, Done done) {
  submit(Direction::read, extent, std::move(into), priority, std::move(done));
}

void DiskStore::write(const Extent& extent, Pieces from, Priority priority, Done done) {
  submit(Direction::write, extent, std::move(from), priority, std::move(done));
}

void DiskStore::raise_priority(const Extent& extent) {
  disks_[extent.disk].queue->raise_priority(extent.offset);
}

std::optional<Error> DiskStore::overdue(std::chrono::nanoseconds timeout) {
  const auto now = clock_.now();
  for (const Disk& disk : disks_) {
    const auto since = disk.queue->waiting_since();
    if (!since || now - *since < timeout) continue;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - *since).count();
    return Error{Code::io,
                 "wait for " + disk.target + ": the disk has not answered for " +
                     std::to_string(seconds) + " s; it may be broken or no longer connected",
                 ETIMEDOUT};
  }
  return std::nullopt;
}

bool DiskStore::read_in_child(const Extent& extent, std::span<std::byte> into) noexcept {
  Bytes done = 0;
  while (done < into.size()) {
    const ssize_t got = pread(disks_[extent.disk].file.fd(), into.data() + done, into.size() - done,
                              static_cast<off_t>(extent.offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<Bytes>(got);
  }
  return true;
}

}  // namespace bottomless
