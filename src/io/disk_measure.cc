#include "io/disk_measure.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <random>

#include "base/check.h"
#include "base/errno_error.h"
#include "base/mutex.h"
#include "io/disk_store.h"
#include "memory/frame_pool.h"

namespace bottomless {
namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::chrono::steady_clock::time_point after(double seconds) {
  const auto wait = std::chrono::duration<double>(std::min(seconds, 1e6));
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(wait);
}

// As a run has it: what leaves lies in one piece, what comes back is read into frames that lie
// wherever they are free, here each below the one before.
Pieces pieces_of(std::span<std::byte> memory, Direction direction) {
  if (direction == Direction::write) return {memory};
  Pieces frames;
  for (size_t rest = memory.size(); rest > 0;) {
    const size_t bytes = std::min<size_t>(rest, FrameSizes{}.large);
    rest -= bytes;
    frames.push_back(memory.subspan(rest, bytes));
  }
  return frames;
}

}  // namespace

// The requests of one measurement on one file. Each has a slot of its own; when it is done, the
// slot's next one is submitted by the queue's thread, so that nobody is woken in between.
class Flight {
 public:
  enum class Order { random, once_from_the_beginning };

  static Result<std::unique_ptr<Flight>> prepare(WorkingFile& file, const Load& load, Order order) {
    const Result<std::span<std::byte>> memory = file.memory(load.depth * load.size);
    if (!memory.ok()) return memory.error();
    return std::unique_ptr<Flight>(new Flight(file, load, order, memory.value()));
  }

  void take_off(std::chrono::steady_clock::time_point deadline) {
    deadline_ = deadline;
    for (Slot& slot : slots_) submit_next(slot);
  }

  Result<Bytes> land() {
    MutexLock lock(mutex_);
    while (flying_ > 0) landed_.wait(mutex_);
    if (!outcome_.ok()) return outcome_.error();
    return bytes_;
  }

 private:
  struct Slot {
    std::span<std::byte> memory;
    std::minstd_rand random;
    Bytes under_way = 0;
    Bytes moved = 0;
  };

  Flight(WorkingFile& file, const Load& load, Order order, std::span<std::byte> memory)
      : file_(file), load_(load), order_(order), flying_(load.depth) {
    std::random_device seed;
    for (unsigned i = 0; i < load.depth; ++i)
      slots_.push_back({memory.subspan(i * load.size, load.size), std::minstd_rand(seed())});
  }

  void submit_next(Slot& slot) {
    Bytes offset = 0;
    slot.under_way = load_.size;
    if (order_ == Order::once_from_the_beginning) {
      const Bytes end = file_.file_.bytes();
      offset = next_offset_.fetch_add(load_.size);
      if (offset >= end) return stop(slot, {});
      slot.under_way = std::min(load_.size, end - offset);
    } else {
      offset = slot.random() % (file_.written_ / load_.size) * load_.size;
    }
    const bool reads = load_.pattern == Pattern::read ||
                       (load_.pattern == Pattern::mixed && slot.random() % 2 == 0);
    const Direction direction = reads ? Direction::read : Direction::write;
    file_.queue_->submit(
        {.direction = direction,
         .fd = file_.fd(),
         .offset = offset,
         .pieces = pieces_of(slot.memory.first(slot.under_way), direction),
         .target = "the scratch file in '" + file_.directory().string() + "'",
         .done = [this, &slot](Result<void> outcome) { done(slot, std::move(outcome)); }});
  }

  void done(Slot& slot, Result<void> outcome) {
    if (!outcome.ok()) return stop(slot, std::move(outcome));
    slot.moved += slot.under_way;
    if (std::chrono::steady_clock::now() >= deadline_) return stop(slot, {});
    submit_next(slot);
  }

  void stop(const Slot& slot, Result<void> outcome) {
    MutexLock lock(mutex_);
    if (outcome_.ok()) outcome_ = std::move(outcome);
    bytes_ += slot.moved;
    if (--flying_ == 0) landed_.notify_all();
  }

  WorkingFile& file_;
  const Load load_;
  const Order order_;
  std::vector<Slot> slots_;
  std::chrono::steady_clock::time_point deadline_;
  std::atomic<Bytes> next_offset_{0};  // both threads take slots off at the beginning

  Mutex mutex_;
  CondVar landed_;
  unsigned flying_ BOTTOMLESS_GUARDED_BY(mutex_);  // slots with a request under way
  Bytes bytes_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  Result<void> outcome_ BOTTOMLESS_GUARDED_BY(mutex_);
};

const char* name_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::read:
      return "read";
    case Pattern::write:
      return "write";
    case Pattern::mixed:
      return "mixed";
  }
  return "";
}

Result<WorkingFile> WorkingFile::open(const std::filesystem::path& directory, Bytes bytes) {
  const std::string attempt =
      "measure '" + directory.string() + "' with a file of " + format_bytes(bytes);
  struct statvfs space {};
  if (statvfs(directory.c_str(), &space) != 0)
    return errno_error(errno, attempt, "name an existing directory that you can write to");
  if (const Bytes free = space.f_bavail * space.f_frsize; free < bytes) {
    return Error{Code::no_space, attempt + ": only " + format_bytes(free) +
                                     " are free there; free some or ask for a smaller file"};
  }
  Result<ScratchFile> file = ScratchFile::open(directory);
  if (!file.ok()) return std::move(file).error();
  if (Result<void> grown = file.value().grow(bytes); !grown.ok()) return std::move(grown).error();

  Result<ChosenTransfers> chosen = choose_transfers(DiskStoreOptions{}.transfers);  // a run's own
  if (!chosen.ok()) return std::move(chosen).error();
  Result<std::unique_ptr<DiskQueue>> queue =
      DiskQueue::start("bl-measure", std::move(chosen.value().transfers));
  if (!queue.ok()) return std::move(queue).error();
  WorkingFile working(std::move(file).value(), std::move(queue).value());
  working.without_uring_ = std::move(chosen.value().fallback);
  return working;
}

Result<std::span<std::byte>> WorkingFile::memory(Bytes bytes) {
  if (!memory_ || memory_->bytes() < bytes) {
    memory_.reset();
    const Bytes whole = (bytes + 2_MiB - 1) / 2_MiB * 2_MiB;
    Result<AddressSpace> space = AddressSpace::reserve(whole, 2_MiB);
    if (!space.ok()) return std::move(space).error();
    if (Result<void> made = space.value().create(space.value().base(), whole, true); !made.ok())
      return std::move(made).error();
    // A child would share the pages, and the first transfer afterwards would have to part them.
    madvise(space.value().base(), whole, MADV_DONTFORK);
    auto* words = reinterpret_cast<uint64_t*>(space.value().base());
    std::generate(words, words + whole / sizeof *words, std::mt19937_64(std::random_device{}()));
    memory_ = std::move(space).value();
  }
  return std::span(memory_->base(), bytes);
}

Result<void> WorkingFile::fill(double at_most_seconds) {
  const Load load{.pattern = Pattern::write, .size = 4_MiB, .depth = 8};
  Result<std::unique_ptr<Flight>> flight =
      Flight::prepare(*this, load, Flight::Order::once_from_the_beginning);
  if (!flight.ok()) return std::move(flight).error();
  flight.value()->take_off(after(at_most_seconds));
  Result<Bytes> written = flight.value()->land();
  if (!written.ok()) return std::move(written).error();
  written_ = written.value();
  return {};
}

Result<Rate> measure(std::span<WorkingFile> files, const Load& load) {
  std::vector<std::unique_ptr<Flight>> flights;
  for (WorkingFile& file : files) {
    BOTTOMLESS_CHECK(load.size <= file.written(), "a request is larger than what was written");
    auto flight = Flight::prepare(file, load, Flight::Order::random);
    if (!flight.ok()) return std::move(flight).error();
    flights.push_back(std::move(flight).value());
  }
  const double cpu_before = cpu_seconds();
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  for (const auto& flight : flights) flight->take_off(after(load.seconds));
  Rate rate;
  std::optional<Error> failed;  // reported once every flight has landed
  for (const auto& flight : flights) {
    const Result<Bytes> moved = flight->land();
    if (moved.ok()) {
      rate.bytes += moved.value();
    } else {
      failed = moved.error();
    }
  }
  if (failed) return *failed;
  rate.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  rate.cpu_seconds = cpu_seconds() - cpu_before;
  return rate;
}

}  // namespace bottomless
