// How often each word, as GPT-2 cuts them, stands in text files.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace bottomless::text {

// Sorted by word. `progress` is told the bytes that were read, now and then.
Result<std::vector<std::pair<std::string, uint64_t>>> count_words(
    std::span<const std::filesystem::path> files, const std::function<void(uint64_t)>& progress);

}  // namespace bottomless::text
