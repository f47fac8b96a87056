// What is done to a text before it is cut: the "normalizer" of a tokenizer.json.
// Thread-safety: const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace bottomless::text {

class Normalizer {
 public:
  virtual ~Normalizer();
  // Changes `text`, which is UTF-8 and stays it.
  virtual Result<void> apply(std::string& text) const = 0;
  // The same, and `origins`, which has a number for each byte of the text, gets one for each byte of the new one: that of
  // the byte from which it came.
  virtual Result<void> trace(std::string& text, std::vector<size_t>& origins) const;
};

// null gives nullptr: nothing is done. Throws json::exception where a field is missing or of another type.
Result<std::unique_ptr<Normalizer>> parse_normalizer(const nlohmann::json& from);

}  // namespace bottomless::text
