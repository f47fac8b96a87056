#include "io/disk_speed.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "base/mutex.h"
#include "io/scratch_file.h"

namespace bottomless {
namespace {

constexpr uint64_t kRounds = 2;  // the first one may find the disk asleep

struct FreeBuffer {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::byte, FreeBuffer>;

Buffer make_buffer(Bytes bytes) {
  return Buffer(static_cast<std::byte*>(std::aligned_alloc(DiskQueue::kAlignment, bytes)));
}

// Not compressible, and not what another run left there.
void fill(std::span<std::byte> memory, uint64_t seed) {
  uint64_t state = seed * 2 + 1;
  for (Bytes at = 0; at < memory.size(); at += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(memory.data() + at, &state, sizeof state);
  }
}

// The seconds it takes to move all of the buffer.
Result<double> move(DiskQueue& queue, const ScratchFile& file, Direction direction,
                    std::span<std::byte> memory, const std::string& target) {
  Mutex mutex;
  CondVar ended;
  std::optional<Result<void>> outcome;
  const auto start = std::chrono::steady_clock::now();
  queue.submit({.direction = direction,
                .fd = file.fd(),
                .offset = 0,
                .pieces = {memory},
                .target = target,
                .done = [&](Result<void> result) {
                  MutexLock lock(mutex);
                  outcome = std::move(result);
                  ended.notify_one();
                }});
  MutexLock lock(mutex);
  while (!outcome) ended.wait(mutex);
  if (!outcome->ok()) return std::move(*outcome).error();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Result<double> measure_speed(DiskQueue& queue, const std::filesystem::path& directory, Bytes bytes,
                             const std::string& target) {
  Result<ScratchFile> file = ScratchFile::open(directory);
  if (!file.ok()) return std::move(file).error();
  if (Result<void> grown = file.value().grow(bytes); !grown.ok()) return std::move(grown).error();
  const Buffer from = make_buffer(bytes);
  const Buffer into = make_buffer(bytes);
  if (!from || !into) return Error{Code::no_memory, "measure " + target + ": no memory for it"};
  const std::span written(from.get(), bytes);
  const std::span read(into.get(), bytes);
  double best = 0;
  for (uint64_t round = 0; round < kRounds; ++round) {
    fill(written, reinterpret_cast<uintptr_t>(from.get()) + round);
    const Result<double> writing = move(queue, file.value(), Direction::write, written, target);
    if (!writing.ok()) return writing;
    const Result<double> reading = move(queue, file.value(), Direction::read, read, target);
    if (!reading.ok()) return reading;
    if (std::memcmp(written.data(), read.data(), bytes) != 0) {
      return Error{Code::io, "read " + target +
                                 ": it is not what was written there; the disk is broken: name "
                                 "another with --disk"};
    }
    best = std::max(best, 2 * static_cast<double>(bytes) / (writing.value() + reading.value()));
  }
  return best;
}

}  // namespace bottomless
