#include <cstdio>
#include <memory>

#include "train/commands/commands.h"
#include "train/loop/training_run.h"

namespace bottomless::train {

std::function<int()> add_train(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  add_train_options(app, *options);
  return [options] {
    TrainingRun run(*options, stderr);
    Result<void> done = run.prepare();
    if (done.ok() && !options->dry_run) done = run.run();
    if (!done.ok()) return run.speaks() ? tell(done.error()) : kFailed;
    if (options->json && run.speaks()) std::printf("%s\n", run.outcome().dump().c_str());
    return run.stopped_by() != 0 ? kStoppedBy + run.stopped_by() : kDone;
  };
}

}  // namespace bottomless::train
