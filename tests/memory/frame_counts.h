// Frames of the largest and of the smallest size only, for tests that count by hand.
#pragma once
#include "memory/frame_pool.h"

namespace bottomless {

inline FrameCounts frame_counts(const FrameSizes& sizes, uint64_t largest, uint64_t smallest) {
  FrameCounts counts;
  counts.of[0] = static_cast<uint32_t>(largest);
  counts.of[sizes.classes() - 1] += static_cast<uint32_t>(smallest);
  return counts;
}

}  // namespace bottomless
