// Finds the steps of a program that marks none: a stretch of operations that comes twice in a row is a
// step, and whenever it begins again so does another.
// Thread-safety: none; the engine locks.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace bottomless {

class Repetition {
 public:
  static constexpr size_t kRun = 8;         // operations in a row that tell one place from another
  static constexpr size_t kLeast = 24;      // operations in a step
  static constexpr size_t kMost = 1 << 18;  // in a step

  // The next operation; true if a step ended before it.
  bool next(uint64_t signature);

 private:
  void search(uint64_t run);
  void start_over();

  std::array<uint64_t, kRun> recent_{};
  uint64_t run_ = 0;    // hash of the last kRun operations
  uint64_t count_ = 0;  // operations so far
  // While searching:
  std::unordered_map<uint64_t, uint64_t> last_;  // where a run ended last
  uint64_t period_ = 0;
  uint64_t agreed_ = 0;     // operations that came one period ago, too, without a break
  uint64_t candidate_ = 0;  // the run that the agreement began with
  // When found:
  uint64_t first_ = 0;  // the run that a step begins with
  uint64_t began_ = 0;  // where the last step did
};

}  // namespace bottomless
