#include "optim/targets.h"

#include <hwy/highway.h>

#include <string>

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

Result<Target> wanted_target(const char* name) {
  std::string names;
  for (const Target target : targets()) {
    if (name == nullptr || name == target.name) return target;
    names += (names.empty() ? "" : ", ") + std::string(target.name);
  }
  return Error{Code::invalid_argument,
               "choose the SIMD target '" + std::string(name) +
                   "' of BOTTOMLESS_SIMD: this processor and this build have " + names};
}

void use_only(Target target) { choose(target.id); }

OnlyTarget::OnlyTarget(Target target) { choose(target.id); }
OnlyTarget::~OnlyTarget() { choose(0); }

}  // namespace bottomless::optim
