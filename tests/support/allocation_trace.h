// The allocations of a real training step, recorded by bench/frame_waste.py, and what they take when they are rounded
// up to frames.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "memory/frame_pool.h"

namespace bottomless {

struct Allocations {
  Bytes bytes = 0;  // of each
  uint64_t count = 0;
};

// Lines of "bytes count"; those that begin with # are comments.
Result<std::vector<Allocations>> read_trace(const std::filesystem::path& file);

struct Rounded {
  Bytes asked = 0;
  Bytes held = 0;
  uint64_t frames = 0;

  double waste() const;  // as a share of what was asked for
  double frames_per_mib() const;
};

// Each allocation in blocks of `block_bytes`, the last one shorter, as the engine cuts it; each block in frames.
Rounded round_to_frames(std::span<const Allocations> trace, Bytes block_bytes,
                        const FrameSizes& sizes);

}  // namespace bottomless
