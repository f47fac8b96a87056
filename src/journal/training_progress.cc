#include "journal/training_progress.h"

namespace bottomless::journal {

void TrainingProgress::update(const TrainingStatus& status) {
  const bool evaluated = status.last.evaluation_loss.has_value();
  if (line_.style() == StatusLine::Style::drawn_over) {
    if (evaluated) line_.say(line_of(status));  // rare, and worth keeping
    line_.show(bar_of(status, line_.columns()));
    return;
  }
  const bool due = status.elapsed_seconds >= next_line_ || status.steps_here <= 1;
  if (!due && !evaluated && status.last.step < status.steps) return;
  line_.show(line_of(status));
  next_line_ = status.elapsed_seconds + kSecondsBetweenLines;
}

}  // namespace bottomless::journal
