// What rounding up to frames wastes on the allocations of real training steps.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "memory/heap.h"
#include "support/allocation_trace.h"

namespace bottomless {
namespace {

constexpr double kMostWaste = 0.05;

TEST(AllocationTrace, RoundsTheBlocksOfEachAllocation) {
  const FrameSizes sizes{.large = 64_KiB, .small = 16_KiB};
  const std::vector<Allocations> trace{{.bytes = 150_KiB, .count = 3}};  // 128 KiB and 22 KiB
  const Rounded rounded = round_to_frames(trace, 128_KiB, sizes);
  EXPECT_EQ(rounded.asked, 450_KiB);
  EXPECT_EQ(rounded.held, 3 * (128_KiB + 32_KiB));
  EXPECT_EQ(rounded.frames, 3u * (2 + 1));
  EXPECT_NEAR(rounded.waste(), 30.0 / 450.0, 1e-9);
}

class FrameWaste : public testing::TestWithParam<const char*> {};

TEST_P(FrameWaste, IsAtMostFivePercentAtEveryLimit) {
  const Result<std::vector<Allocations>> trace =
      read_trace(std::filesystem::path(BOTTOMLESS_TRACES) / (std::string(GetParam()) + ".txt"));
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  for (const Bytes limit : {64_MiB, 512_MiB, 4_GiB, 64_GiB}) {
    const FrameSizes sizes = frame_sizes_for(limit);
    const Rounded rounded =
        round_to_frames(trace.value(), block_bytes_for(limit, sizes.large), sizes);
    EXPECT_GT(rounded.asked, 1_GiB) << "a training step of a real model";
    EXPECT_LE(rounded.waste(), kMostWaste) << "at a limit of " << format_bytes(limit);
  }
}

INSTANTIATE_TEST_SUITE_P(Traces, FrameWaste, testing::Values("gpt2", "llama", "resnet50", "lstm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace bottomless
