#include "ranks/shard_protocol.h"

namespace bottomless {
namespace {

// Notice::what.
constexpr uint64_t kGradientReady = 1, kRoundEnds = 2, kStepBegins = 3, kWritten = 4, kLeaving = 5,
                   kStepFollows = 6, kSumAsked = 7, kLeft = 8;

struct Encode {
  Notice operator()(std::monostate) const { return {}; }
  Notice operator()(const GradientReady& ready) const {
    return {kGradientReady, ready.parameter, uint64_t{ready.round} << 32 | ready.turn};
  }
  Notice operator()(const RoundEnds& ends) const { return {kRoundEnds, ends.round, 0}; }
  Notice operator()(const StepBegins& begins) const {
    return {begins.follows ? kStepFollows : kStepBegins, begins.step, begins.rounds};
  }
  Notice operator()(const ParameterWritten& written) const {
    return {kWritten, written.parameter, written.step};
  }
  Notice operator()(const SumAsked& sum) const { return {kSumAsked, sum.number, 0}; }
  Notice operator()(Leaving) const { return {kLeaving, 0, 0}; }
  Notice operator()(Left) const { return {kLeft, 0, 0}; }
};

}  // namespace

Notice encode(const ShardNotice& notice) { return std::visit(Encode(), notice); }

ShardNotice decode(const Notice& notice) {
  switch (notice.what) {
    case kGradientReady:
      return GradientReady{.parameter = notice.first,
                           .round = static_cast<uint32_t>(notice.second >> 32),
                           .turn = static_cast<uint32_t>(notice.second)};
    case kRoundEnds:
      return RoundEnds{notice.first};
    case kStepBegins:
    case kStepFollows:
      return StepBegins{
          .step = notice.first, .rounds = notice.second, .follows = notice.what == kStepFollows};
    case kWritten:
      return ParameterWritten{.parameter = notice.first, .step = notice.second};
    case kLeaving:
      return Leaving{};
    case kSumAsked:
      return SumAsked{notice.first};
    case kLeft:
      return Left{};
    default:
      return std::monostate();
  }
}

}  // namespace bottomless
