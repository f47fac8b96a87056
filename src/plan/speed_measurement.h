// Decides how fast the processor is from passes of the same work that were timed, and whether to time more of them. A
// pass in which the threads got less processor time than they could have had was disturbed by other programs, and
// says little by the wall clock.
// Thread-safety: one thread at a time.
#pragma once
#include <vector>

namespace bottomless {

enum class PassThreads { all, one };

struct PassTime {
  double wall_seconds = 0;
  double processor_seconds = 0;  // of all threads together
  PassThreads threads = PassThreads::all;
};

// Passes of the work, or operations, in a second: the lowest and the highest that are credible.
struct SpeedRange {
  double low = 0, high = 0;
  bool is_quiet = false;  // measured while nothing else needed the processor

  SpeedRange times(double factor) const { return {low * factor, high * factor, is_quiet}; }
  bool operator==(const SpeedRange&) const = default;
};

// It ends after `quiet_seconds` in passes that nothing disturbed; where there are too few of them, after
// `most_seconds`.
struct MeasurementTime {
  double quiet_seconds = 0.5, most_seconds = 3;

  // Where an earlier measurement was disturbed, too: machines that are always busy are not measured at length every
  // time.
  static MeasurementTime short_one() { return {.most_seconds = 0.7}; }
};

class SpeedMeasurement {
 public:
  explicit SpeedMeasurement(unsigned threads, const MeasurementTime& time = {})
      : threads_(threads), time_(time) {}

  void add(const PassTime& pass) { passes_.push_back(pass); }
  bool is_done() const;
  // The last pass of all threads was disturbed: one of a single thread tells more. Threads that wait for one which
  // was interrupted may spin, and that is processor time, too.
  bool wants_one_thread() const;
  // Quiet: from the median of the quiet passes to the best of them. Else from the best pass by the wall clock, which
  // the machine reached for certain, to what the processor time says that all threads would have reached undisturbed.
  // Zero without a pass.
  SpeedRange speed() const;

 private:
  bool is_quiet(const PassTime& pass) const;
  std::vector<PassTime> quiet_passes() const;
  double speed_by_processor_time(PassThreads threads) const;  // the median; 0: none

  const unsigned threads_;
  const MeasurementTime time_;
  std::vector<PassTime> passes_;
};

// What is known after a second measurement. A quiet one replaces all before it, and only another quiet one replaces
// it.
SpeedRange merged(const SpeedRange& before, const SpeedRange& now);

// The shortest time that a step can take, as far as is known: a step that takes less corrects it.
class StepFloor {
 public:
  explicit StepFloor(double seconds = 0) : seconds_(seconds) {}  // 0: nothing is known

  double seconds() const { return seconds_; }
  // The share of the possible speed that a step of so many seconds had, at most 1.
  double share_of(double seconds);

 private:
  double seconds_;
};

}  // namespace bottomless
