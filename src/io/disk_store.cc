#include "io/disk_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace bottomless {
namespace {

constexpr Bytes kLeastGrowth = 16_MiB;
constexpr Bytes kMostGrowth = 1_GiB;

}  // namespace

Result<std::unique_ptr<DiskStore>> DiskStore::open(const DiskStoreOptions& options) {
  if (options.directories.empty()) {
    return Error{Code::invalid_argument,
                 "open a store: no directory was named; name one with --disk"};
  }
  std::vector<Disk> disks;
  for (const std::filesystem::path& directory : options.directories) {
    Result<ScratchFile> file = ScratchFile::open(directory);
    if (!file.ok()) return std::move(file).error();
    if (file.value().caching() == Caching::buffered) {
      options.log(
          LogLevel::warning,
          "'" + directory.string() +
              "' does not support O_DIRECT: going through the page cache, which is slower and "
              "takes memory outside the limit");
    }
    Result<std::unique_ptr<Transfers>> transfers = make_uring_transfers(DiskQueue::kDepth);
    if (!transfers.ok()) {
      options.log(LogLevel::warning,
                  transfers.error().message + ": falling back to one transfer at a time");
      transfers = make_blocking_transfers();
      if (!transfers.ok()) return std::move(transfers).error();
    }
    Result<std::unique_ptr<DiskQueue>> queue =
        DiskQueue::start("bl-disk" + std::to_string(disks.size()), std::move(transfers).value());
    if (!queue.ok()) return std::move(queue).error();
    std::string target = "the scratch file in '" + directory.string() + "'";
    disks.push_back(
        {std::move(file).value(), FirstFit(0), std::move(queue).value(), std::move(target)});
  }
  return std::unique_ptr<DiskStore>(new DiskStore(std::move(disks), options.limit));
}

Bytes DiskStore::size_of_files() const {
  Bytes total = 0;
  for (const Disk& disk : disks_) total += disk.file.bytes();
  return total;
}

Result<uint64_t> DiskStore::allocate_on(Disk& disk, Bytes bytes) {
  if (const auto unit = disk.extents.allocate(bytes / kAlignment)) return *unit * kAlignment;
  // Grow by an eighth, but never past the limit, and by no more than needed when the disk or the
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
  const Bytes step = std::clamp(size / 8 / kAlignment * kAlignment, kLeastGrowth, kMostGrowth);
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

Result<Extent> DiskStore::allocate(Bytes bytes) {
  const Bytes rounded = round_to_store(bytes);
  MutexLock lock(mutex_);
  std::optional<Error> first_error;
  for (size_t tried = 0; tried < disks_.size(); ++tried) {
    const auto index = turn_;
    turn_ = (turn_ + 1) % disks_.size();
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

void DiskStore::submit(Direction direction, const Extent& extent, Pieces pieces,
                       std::function<void(Result<void>)> done) {
  Disk& disk = disks_[extent.disk];
  disk.queue->submit(
      {direction, disk.file.fd(), extent.offset, std::move(pieces), disk.target, std::move(done)});
}

void DiskStore::read(const Extent& extent, Pieces into, std::function<void(Result<void>)> done) {
  submit(Direction::read, extent, std::move(into), std::move(done));
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

void DiskStore::write(const Extent& extent, Pieces from, std::function<void(Result<void>)> done) {
  submit(Direction::write, extent, std::move(from), std::move(done));
}

}  // namespace bottomless
