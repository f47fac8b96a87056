// What rounding up to frames wastes on recorded allocations, and how many frames it takes; see
// frame_waste.py, which calls it with the traces of tests/memory/traces.
//
//   build/release/bench/frame_waste TRACE...
#include <cstdio>
#include <filesystem>

#include "memory/heap.h"
#include "support/allocation_trace.h"

int main(int count, char** arguments) {
  using namespace bottomless;
  std::printf("%-10s %10s %10s %12s %12s %8s %12s\n", "trace", "limit", "block", "asked", "held",
              "waste", "frames/MiB");
  for (int i = 1; i < count; ++i) {
    const std::filesystem::path file = arguments[i];
    const Result<std::vector<Allocations>> trace = read_trace(file);
    if (!trace.ok()) {
      std::fprintf(stderr, "%s\n", trace.error().message.c_str());
      return 1;
    }
    for (const Bytes limit : {8_MiB, 64_MiB, 512_MiB, 4_GiB, 64_GiB, 1_TiB}) {
      const FrameSizes sizes = frame_sizes_for(limit);
      const Bytes block = block_bytes_for(limit, sizes.large);
      const Rounded rounded = round_to_frames(trace.value(), block, sizes);
      std::printf("%-10s %10s %10s %12s %12s %7.2f%% %12.2f\n", file.stem().c_str(),
                  format_bytes(limit).c_str(), format_bytes(block).c_str(),
                  format_bytes(rounded.asked).c_str(), format_bytes(rounded.held).c_str(),
                  100 * rounded.waste(), rounded.frames_per_mib());
    }
  }
  return 0;
}
