#include "optim/targets.h"

#include <hwy/highway.h>

namespace bottomless::optim {
namespace {

constexpr int64_t kNoSimd = HWY_TARGETS & (HWY_SCALAR | HWY_EMU128);

void choose(int64_t ids) {
  hwy::SetSupportedTargetsForTest(ids);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<Target> targets() {
  std::vector<Target> found;
  const int64_t ids = (hwy::SupportedTargets() | kNoSimd) & HWY_TARGETS;
  // The better, the lower the bit.
  for (int64_t rest = ids; rest != 0; rest &= rest - 1) {
    const int64_t id = rest & -rest;
    found.push_back({id, hwy::TargetName(id)});
  }
  return found;
}

Target chosen_target() { return targets().front(); }

OnlyTarget::OnlyTarget(Target target) { choose(target.id); }
OnlyTarget::~OnlyTarget() { choose(0); }

}  // namespace bottomless::optim
