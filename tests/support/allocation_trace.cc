#include "support/allocation_trace.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace bottomless {

Result<std::vector<Allocations>> read_trace(const std::filesystem::path& file) {
  std::ifstream lines(file);
  std::vector<Allocations> trace;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    Allocations allocations;
    if (!(std::istringstream(line) >> allocations.bytes >> allocations.count)) {
      return Error{Code::invalid_argument, "read the trace " + file.string() + ": '" + line +
                                               "' is not a size and a count"};
    }
    trace.push_back(allocations);
  }
  if (trace.empty())
    return Error{Code::invalid_argument,
                 "read the trace " + file.string() + ": nothing is in it, or it is not there"};
  return trace;
}

double Rounded::waste() const {
  return static_cast<double>(held - asked) / static_cast<double>(asked);
}

double Rounded::frames_per_mib() const {
  return static_cast<double>(frames) / (static_cast<double>(asked) / static_cast<double>(1_MiB));
}

Rounded round_to_frames(std::span<const Allocations> trace, Bytes block_bytes,
                        const FrameSizes& sizes) {
  Rounded sum;
  for (const auto& [bytes, count] : trace) {
    sum.asked += bytes * count;
    for (Bytes done = 0; done < bytes; done += block_bytes) {
      const FrameCounts frames = frames_for(std::min(block_bytes, bytes - done), sizes);
      sum.held += frames.bytes(sizes) * count;
      sum.frames += frames.total() * count;
    }
  }
  return sum;
}

}  // namespace bottomless
