// The most memory that this process has held, as the kernel counts it (VmHWM), at the moments that tell what a limit is worth: before it
// began, that is the fixed cost of the program and its libraries; when the model was loaded; and at the end.
// Thread-safety: one thread at a time.
#pragma once
#include <bottomless/bytes.h>

#include <nlohmann/json_fwd.hpp>

namespace bottomless::train {

class ResidentPeaks {
 public:
  void limit_begins();
  void model_is_loaded();
  nlohmann::json to_json() const;  // fixed_bytes, loaded_bytes, peak_bytes

 private:
  Bytes fixed_ = 0;
  Bytes loaded_ = 0;
};

}  // namespace bottomless::train
