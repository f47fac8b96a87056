// Text to learn from, without a download: the sources of the Python standard library, or a
// directory of your own.
// Thread-safety: free functions without state; use one Batches from one thread at a time.
#pragma once
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace example {

// Asks python3 where its standard library is. Throws std::runtime_error if there is no python3.
std::filesystem::path standard_library();

// Reads the .py, .txt and .md files directly in `directory`, in the order of their names, and stops
// at `limit_bytes`. Throws std::runtime_error if that finds no text.
std::string read_text(const std::filesystem::path& directory, size_t limit_bytes);

struct Batch {
  torch::Tensor symbols;  // [batch, context], int64
  torch::Tensor targets;  // the same windows of the text, one byte later
};

// Draws random windows of a text with torch's global generator.
class Batches {
 public:
  Batches(std::string text, int64_t batch, int64_t context);  // throws if the text is too short
  Batch next();

 private:
  std::string text_;
  int64_t batch_;
  int64_t context_;
};

}  // namespace example
