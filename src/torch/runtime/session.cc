#include "torch/runtime/session.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/thread.h"
#include "io/checked_store.h"
#include "io/disk_store.h"
#include "io/throttled_store.h"
#include "memory/granted.h"
#include "memory/heap.h"
#include "os/fault_handler.h"
#include "os/started_rank.h"
#include "plan/eviction_policy.h"
#include "torch/intercept/deferred.h"

namespace bottomless {
namespace {

constexpr Bytes kLeastMemory = 8_MiB;
constexpr size_t kSparePlaces = 6;
constexpr size_t kLeastMappings = 8192;  // torch and its libraries take over a thousand

// Eager eviction is for tests: on by a build option or, over it, by the environment.
Eviction chosen_eviction() {
  if (const char* wish = std::getenv("BOTTOMLESS_EVICT_EAGERLY")) {
    return std::string_view(wish) == "0" ? Eviction::when_needed : Eviction::eagerly;
  }
#ifdef BOTTOMLESS_EVICT_EAGERLY
  return Eviction::eagerly;
#else
  return Eviction::when_needed;
#endif
}

// To be compared with, in benchmarks.
Movement chosen_movement() {
  const char* wish = std::getenv("BOTTOMLESS_MOVEMENT");
  return wish != nullptr && std::string_view(wish) == "when_needed" ? Movement::when_needed
                                                                    : Movement::planned;
}

// Likewise: a disk no faster than this, in bytes a second.
std::optional<Bytes> chosen_bandwidth() {
  const char* wish = std::getenv("BOTTOMLESS_DISK_BANDWIDTH");
  if (wish == nullptr) return std::nullopt;
  const Result<Bytes> bytes = parse_bytes(wish);
  return bytes.ok() && bytes.value() > 0 ? std::optional(bytes.value()) : std::nullopt;
}

void print_warning(LogLevel level, std::string_view text) {
  if (level == LogLevel::warning) {
    std::fprintf(stderr, "bottomless: %.*s\n", static_cast<int>(text.size()), text.data());
  }
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(const Options& options) {
  if (options.memory < kLeastMemory) {
    return Error{Code::invalid_argument, "set a memory limit of " + format_bytes(options.memory) +
                                             ": at least " + format_bytes(kLeastMemory) +
                                             " are needed (--memory)"};
  }
  std::vector<std::filesystem::path> directories;
  for (const std::filesystem::path& directory : options.disk) {
    Result<std::string> of_rank = with_rank(directory.string());
    if (!of_rank.ok()) return std::move(of_rank).error();
    directories.emplace_back(std::move(of_rank).value());
  }
  std::unique_ptr<Session> session(new Session);
  Result<std::unique_ptr<DiskStore>> store =
      DiskStore::open({.directories = std::move(directories),
                       .limit = options.disk_limit,
                       .wanted = options.disk_limit.value_or(options.memory),
                       .log = print_warning});
  if (!store.ok()) return std::move(store).error();
  // Its threads and rings, and the fault service.
  const Bytes fixed = store.value()->own_memory() + Thread::kStackBytes;
  if (fixed > options.memory / 2) {
    return Error{Code::invalid_argument,
                 "set a memory limit of " + format_bytes(options.memory) + ": the threads of " +
                     std::to_string(options.disk.size()) + " disks alone take " +
                     format_bytes(fixed) + "; raise --memory or name fewer directories"};
  }
  session->disk_ = store.value().get();
  session->store_ = std::move(store).value();
  if (const std::optional<Bytes> bandwidth = chosen_bandwidth()) {
    Result<std::unique_ptr<Store>> throttled =
        ThrottledStore::over(std::move(session->store_), *bandwidth);
    if (!throttled.ok()) return std::move(throttled).error();
    session->store_ = std::move(throttled).value();
  }
  if (options.checksums)
    session->store_ = std::make_unique<CheckedStore>(std::move(session->store_));

  const Eviction eviction = chosen_eviction();
  const size_t mappings = granted_mappings();
  if (mappings < kLeastMappings) {
    return Error{
        Code::no_memory,
        "set a memory limit: the kernel allows a process only " + std::to_string(mappings) +
            " mappings; raise it: sysctl -w vm.max_map_count=" + std::to_string(kUsualMappings)};
  }
  const FrameSizes frames = frame_sizes_for(options.memory, mappings);
  Result<std::unique_ptr<Heap>> heap =
      Heap::create({.limit = options.memory - fixed,
                    .frames = frames,
                    .poison = eviction == Eviction::eagerly ? Poison::on : Poison::off,
                    .most_mappings = mappings});
  if (!heap.ok()) return std::move(heap).error();
  static std::atomic<uint64_t> opened{0};
  session->serial_ = 1 + opened.fetch_add(1, std::memory_order_relaxed);
  session->memory_ = options.memory;
  session->defers_ = options.deferred_updates;
  session->least_managed_ = eviction == Eviction::eagerly ? 1 : kLeastManaged;
  session->engine_ = std::make_unique<Engine>(
      EngineOptions{.limit = options.memory,
                    .fixed_overhead = fixed,
                    .eviction = eviction,
                    .movement = chosen_movement(),
                    .recorded = options.recorded,
                    .least_managed = session->least_managed_,
                    .spare_places = kSparePlaces,
                    .log = print_warning,
                    .before_waiting = &FaultHandler::before_waiting},
      std::move(heap).value(), *session->store_, std::make_unique<Farthest>());
  return session;
}

void Session::step() {
  engine_->drop_unseen_deferred();
  engine_->end_step();
  MutexLock lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  step_seconds_ = std::chrono::duration<double>(now - step_began_).count();
  step_began_ = now;
  ++steps_;
}

Stats Session::stats() const {
  const EngineStats engine = engine_->stats();
  Stats stats{.limit_bytes = memory_,
              .peak_bytes = engine.peak_bytes,
              .stall_seconds = engine.stall_seconds,
              .read_bytes = engine.read_bytes,
              .written_bytes = engine.written_bytes,
              .disk_bytes = disk_->file_bytes(),
              .faults = engine.faults,
              .evictions = engine.evictions,
              .planned_fetches = engine.prefetches,
              .planned_hits = engine.planned_hits,
              .demand_fetches = engine.demand_fetches,
              .plan_departures = engine.plan_departures,
              .deferred_updates = engine.deferred,
              .overhead_bytes = engine.overhead_bytes};
  for (size_t kind = 0; kind < kKinds; ++kind) {
    stats.resident_bytes[std::string(kKindNames[kind])] =
        engine.resident.of(static_cast<Kind>(kind));
  }
  stats.resident_bytes["other"] += engine.charged_bytes;
  MutexLock lock(mutex_);
  stats.steps = steps_;
  stats.step_seconds = step_seconds_;
  return stats;
}

}  // namespace bottomless
