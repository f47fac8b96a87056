#include "train/loop/resident_peaks.h"

#include <nlohmann/json.hpp>

#include "base/text_file.h"

namespace bottomless::train {
namespace {

Bytes peak() { return byte_field("/proc/self/status", "VmHWM").value_or(0); }

}  // namespace

void ResidentPeaks::limit_begins() { fixed_ = peak(); }

void ResidentPeaks::model_is_loaded() { loaded_ = peak(); }

nlohmann::json ResidentPeaks::to_json() const {
  return {{"fixed_bytes", fixed_}, {"loaded_bytes", loaded_}, {"peak_bytes", peak()}};
}

}  // namespace bottomless::train
