// What a report about the last step needs: when each operation asked and was ready, what moved meanwhile, how fast.
// Thread-safety: none; the engine locks.
#pragma once
#include <bottomless/bytes.h>

#include <utility>
#include <vector>

#include "plan/step_record.h"

namespace bottomless {

class StepRecorder {
 public:
  // Records nothing unless it is `on`; moments take at most so many bytes.
  StepRecorder(bool on, Bytes most_bytes) : on_(on), most_bytes_(most_bytes) {}

  bool on() const { return on_; }
  bool takes_more() const { return on_ && moments_.size() * sizeof(Moment) <= most_bytes_; }
  void add(const Moment& moment) { moments_.push_back(moment); }
  std::vector<Moment> take_moments() { return std::exchange(moments_, {}); }

  // Around the time in which any transfer of the disk is under way.
  void disk_begins(double now) { busy_since_ = now; }
  void disk_ends(double now) { busy_ += now - std::exchange(busy_since_, kIdle); }

  // `record` has the trace and the schedule of the step, `moved` all bytes that the disk has ever moved.
  void end_step(StepRecord record, std::vector<Moment> moments, double now, Bytes moved);
  const StepRecord& last() const { return last_; }

 private:
  static constexpr double kIdle = -1;

  const bool on_;
  const Bytes most_bytes_;
  std::vector<Moment> moments_;  // of the step under way
  StepRecord last_;
  double busy_since_ = kIdle;
  double busy_ = 0;         // seconds, up to then
  double busy_before_ = 0;  // up to the begin of the step
  Bytes moved_before_ = 0;
};

}  // namespace bottomless
