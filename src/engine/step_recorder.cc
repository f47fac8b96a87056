#include "engine/step_recorder.h"

namespace bottomless {

void StepRecorder::end_step(StepRecord record, std::vector<Moment> moments, double now,
                            Bytes moved) {
  if (!on_) return;
  const double busy = busy_ + (busy_since_ == kIdle ? 0 : now - busy_since_);
  if (!moments.empty() && record.trace.events.size() == moments.size()) {
    record.moments = std::move(moments);
    record.ended = now;
    if (busy > busy_before_)
      record.rates.both = static_cast<double>(moved - moved_before_) / (busy - busy_before_);
    last_ = std::move(record);
  }
  busy_before_ = busy;
  moved_before_ = moved;
}

}  // namespace bottomless
