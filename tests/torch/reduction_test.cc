#include "torch/reduction.h"

#include <gtest/gtest.h>

#include <string>

namespace bottomless {
namespace {

TEST(Reduction, AParameterThatThereIsNotFailsItAndNamesTheRankThatSpokeOfIt) {
  for (const uint64_t parameter : {uint64_t{0}, uint64_t{3}, ~uint64_t{0}}) {
    Reduction reduction({}, Format::plain, /*rank=*/0, /*ranks=*/3, 64_KiB, 1_MiB);
    reduction.noticed(2, {Reduction::kReady, parameter, 0});
    const std::optional<Error> failure = reduction.failure();
    ASSERT_TRUE(failure) << parameter;
    EXPECT_NE(failure->message.find("rank 2 spoke of parameter " + std::to_string(parameter)),
              std::string::npos)
        << failure->message;
  }
}

}  // namespace
}  // namespace bottomless
