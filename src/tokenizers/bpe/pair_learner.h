// The learning of byte-pair encoding: which pairs of neighbours, in which order, become tokens.
// Thread-safety: free functions without state.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace bottomless::text {

struct LearnedPairs {
  std::vector<std::string> tokens;  // by id, as bytes; those that were given come first
  std::vector<std::pair<int32_t, int32_t>> merges;  // in the order in which they are to be applied
};

struct PairLearning {
  // The tokens to begin with: the first of 257 is special and matches nothing, the others are one byte each.
  std::vector<std::string> tokens;
  int64_t most_tokens;
  uint64_t least_frequency;
  std::function<void(size_t)> on_token;  // told how many there are
};

// The most frequent pair is learned first, and of several the one with the smallest ids.
LearnedPairs learn_pairs(std::span<const std::pair<std::string, uint64_t>> counted_words,
                         const PairLearning& learning);

}  // namespace bottomless::text
