// Runs an ordinary libtorch program inside a memory limit. While a Runtime lives, CPU tensors
// made by any thread are managed: they move to disk when memory is short and come back before an
// operator touches them, at the same address and with the same bits.
//
//   using namespace bottomless::literals;
//   bottomless::Runtime runtime({.memory = 4_GiB, .disk = {"/nvme/scratch"}});
//   // ordinary libtorch code; runtime.step() after each optimizer step
//
// Thread-safety: every member from any thread.
// Lifetime: tensors may outlive the Runtime; they stay managed, within its limit, until they are
// freed.
#pragma once
#include <bottomless/bytes.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace bottomless {

// What the program is granted.
struct Options {
  Bytes memory = 0;  // for all CPU tensors and Bottomless's own records together
  std::vector<std::filesystem::path> disk;  // for what does not fit; {rank}: see docs/ranks.md
  std::optional<Bytes> disk_limit;          // over all directories; none: as much as they hold
  // An optimizer's update of a parameter may wait until the parameter is next touched, by whatever means:
  // the same bits, and the disk has longer.
  bool deferred_updates = true;
  bool recorded = false;   // keep what report() and trace() tell about the last step
  bool checksums = false;  // notice when a disk gives back something else than was written
};

// Counters since the Runtime began. The same names stand in Python's stats() and in every --json.
struct Stats {
  Bytes limit_bytes = 0;     // Options::memory
  Bytes peak_bytes = 0;      // the most that was held at once; never above limit_bytes
  std::uint64_t steps = 0;   // optimizer steps marked so far
  double step_seconds = 0;   // duration of the last step
  double stall_seconds = 0;  // time operators waited for memory or disk
  Bytes read_bytes = 0;      // from disk
  Bytes written_bytes = 0;   // to disk
  Bytes disk_bytes = 0;      // size of the files there; never above Options::disk_limit
  std::uint64_t faults = 0;  // accesses outside operators that needed a block brought in or marked
  std::uint64_t evictions = 0;         // blocks that left memory
  std::uint64_t planned_fetches = 0;   // fetches that began before anybody asked
  std::uint64_t planned_hits = 0;      // of these, blocks that were back before they were needed
  std::uint64_t demand_fetches = 0;    // blocks that were fetched only when they were needed
  std::uint64_t plan_departures = 0;   // steps that did not follow the plan
  std::uint64_t deferred_updates = 0;  // updates that waited until somebody looked
  Bytes overhead_bytes = 0;  // Bottomless's own records, threads and rings; part of peak_bytes
  std::map<std::string, Bytes>
      resident_bytes;  // by kind: parameter, gradient, state, activation, other
};

// For Options::memory: most of what the machine, its control groups and resource limits leave this
// process.
Bytes automatic_memory();

// Whether a limit is in force in this process.
bool is_limited();

// Writes the stats as one JSON object on one line.
std::string to_json(const Stats& stats);

// One Runtime at a time. The constructor throws c10::Error, saying what to do, when the limit or a
// directory cannot work.
class Runtime {
 public:
  explicit Runtime(const Options& options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Marks the end of an optimizer step. With the optimizer, its tensors are counted by kind in the
  // stats.
  void step();
  void step(const torch::optim::Optimizer& optimizer);

  // Says what the storage that holds `address` is for: a name from Stats::resident_bytes. Addresses
  // of others are ignored.
  void label(const void* address, const std::string& kind);

  Stats stats() const;

  // With Options::recorded: the last step as a self-contained HTML page, as a file for Perfetto and `bottomless
  // plan`, and in words. They throw when no whole step has been recorded yet or the file cannot be written.
  void report(const std::filesystem::path& file) const;
  void trace(const std::filesystem::path& file) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bottomless
