// Records of TensorBoard's event files: a TFRecord (length, masked CRC-32C of it, payload, masked CRC-32C of that) whose
// payload is the protocol buffer Event. Only what scalars need is written, so no library is needed either.
// Thread-safety: free functions without state.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "report/metrics.h"

namespace bottomless {

// The first record of a file.
std::string version_record(double time);
// A run begins or goes on: what other files say of this step and later ones is not valid any more.
std::string start_record(double time, uint64_t step);
std::string scalar_record(double time, uint64_t step, std::span<const Scalar> scalars);

// The checksum of Castagnoli's polynomial.
uint32_t crc32c(std::string_view bytes);

}  // namespace bottomless
