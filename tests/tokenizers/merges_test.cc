#include "tokenizers/bpe/merges.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "support/random.h"

namespace bottomless::text {
namespace {

using Pair = std::pair<int32_t, int32_t>;

struct Learned {
  std::map<Pair, std::pair<size_t, int32_t>> ranks;
  Merges merges;
};

Learned random_merges(Random& random, int32_t letters, size_t count) {
  Learned learned{{}, Merges(count)};
  int32_t next = letters;
  while (learned.ranks.size() < count) {
    const Pair pair{static_cast<int32_t>(random.below(next)),
                    static_cast<int32_t>(random.below(next))};
    if (!learned.ranks.emplace(pair, std::pair{learned.ranks.size(), next}).second) continue;
    learned.merges.add(pair.first, pair.second, next);
    ++next;
  }
  return learned;
}

// The definition: always the pair that was learned first, the leftmost of several.
std::vector<int32_t> by_definition(const Learned& learned, std::vector<int32_t> symbols) {
  while (true) {
    std::optional<std::pair<size_t, size_t>> best;  // rank, place
    int32_t merged = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = learned.ranks.find({symbols[i], symbols[i + 1]});
      if (found == learned.ranks.end()) continue;
      if (best && best->first <= found->second.first) continue;
      best = {found->second.first, i};
      merged = found->second.second;
    }
    if (!best) return symbols;
    symbols[best->second] = merged;
    symbols.erase(symbols.begin() + static_cast<int64_t>(best->second) + 1);
  }
}

TEST(Merges, ShortAndLongWordsAreMergedByTheDefinition) {
  Random random(7);
  BOTTOMLESS_TRACE_SEED(random);
  for (int round = 0; round < 300; ++round) {
    const auto letters = static_cast<int32_t>(random.between(1, 5));
    const Learned learned = random_merges(random, letters, random.between(1, 12));
    std::vector<int32_t> symbols(random.below(round % 10 == 0 ? 400 : 90));
    for (int32_t& symbol : symbols) symbol = static_cast<int32_t>(random.below(letters));
    const std::vector<int32_t> expected = by_definition(learned, symbols);
    learned.merges.apply(symbols);
    ASSERT_EQ(symbols, expected);
  }
}

}  // namespace
}  // namespace bottomless::text
