#include "tokenizers/bpe/pair_learner.h"

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"

namespace bottomless::text {
namespace {

using Pair = std::pair<int32_t, int32_t>;

uint64_t key_of(Pair pair) {
  return (uint64_t{static_cast<uint32_t>(pair.first)} << 32) | static_cast<uint32_t>(pair.second);
}

struct Word {
  size_t begin;    // in the symbols of all words
  uint32_t count;  // of symbols
  int64_t frequency;
};

struct Candidate {
  int64_t frequency;
  Pair pair;
  bool operator<(const Candidate& other) const {
    return frequency < other.frequency || (frequency == other.frequency && pair > other.pair);
  }
};

class Learner {
 public:
  Learner(std::span<const std::pair<std::string, uint64_t>> counted_words,
          const PairLearning& learning)
      : learning_(learning), tokens_(learning.tokens) {
    std::array<int32_t, 256> id_of_byte{};
    for (size_t id = 0; id < tokens_.size(); ++id) {
      ids_[tokens_[id]] = static_cast<int32_t>(id);
      if (tokens_[id].size() == 1) {
        id_of_byte[static_cast<uint8_t>(tokens_[id][0])] = static_cast<int32_t>(id);
      }
    }
    for (const auto& [text, frequency] : counted_words) {
      words_.push_back(
          {symbols_.size(), static_cast<uint32_t>(text.size()), static_cast<int64_t>(frequency)});
      for (const char byte : text) symbols_.push_back(id_of_byte[static_cast<uint8_t>(byte)]);
    }
    for (uint32_t index = 0; index < words_.size(); ++index) {
      const Word& word = words_[index];
      for (size_t i = word.begin; i + 1 < word.begin + word.count; ++i) {
        change({symbols_[i], symbols_[i + 1]}, word.frequency, index);
      }
    }
    offer_changed();
  }

  LearnedPairs learn() {
    while (static_cast<int64_t>(tokens_.size()) < learning_.most_tokens && !queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      Occurrences& found = occurrences_[key_of(top.pair)];
      if (found.frequency != top.frequency) {
        top.frequency = found.frequency;
        queue_.push(top);
        continue;
      }
      if (top.frequency < 1 || static_cast<uint64_t>(top.frequency) < learning_.least_frequency) {
        break;
      }
      if (found.words.empty()) continue;  // was offered twice
      const int32_t merged = token_for(top.pair);
      merges_.push_back(top.pair);
      const std::vector<uint32_t> words = std::move(found.words);
      found.words.clear();
      for (const uint32_t word : words) merge(word, top.pair, merged);
      offer_changed();
      learning_.on_token(tokens_.size());
    }
    return {std::move(tokens_), last_of_each()};
  }

 private:
  struct Occurrences {
    int64_t frequency = 0;
    std::vector<uint32_t> words;  // each at most once in a row
  };

  int32_t token_for(Pair pair) {
    std::string text = tokens_[pair.first] + tokens_[pair.second];
    const auto [known, is_new] = ids_.emplace(text, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(std::move(text));
    return known->second;
  }

  void change(Pair pair, int64_t by, uint32_t word) {
    Occurrences& occurrences = occurrences_[key_of(pair)];
    occurrences.frequency += by;
    if (by < 0) return;
    if (occurrences.words.empty() || occurrences.words.back() != word) {
      if (occurrences.words.empty()) changed_.push_back(pair);
      occurrences.words.push_back(word);
    }
  }

  void offer_changed() {
    for (const Pair& pair : changed_) {
      const int64_t frequency = occurrences_[key_of(pair)].frequency;
      if (frequency > 0) queue_.push({frequency, pair});
    }
    changed_.clear();
  }

  void merge(uint32_t index, Pair pair, int32_t merged) {
    Word& word = words_[index];
    int32_t* symbols = symbols_.data() + word.begin;
    const int64_t frequency = word.frequency;
    uint32_t kept = 0;  // of those in front of i, after merging
    for (uint32_t i = 0; i < word.count;) {
      if (i + 1 == word.count || symbols[i] != pair.first || symbols[i + 1] != pair.second) {
        symbols[kept++] = symbols[i++];
        continue;
      }
      if (kept > 0) {
        change({symbols[kept - 1], pair.first}, -frequency, index);
        change({symbols[kept - 1], merged}, frequency, index);
      }
      i += 2;
      symbols[kept++] = merged;
      if (i < word.count) {
        change({pair.second, symbols[i]}, -frequency, index);
        change({merged, symbols[i]}, frequency, index);
      }
    }
    word.count = kept;
  }

  // A token that two pairs give may bring a pair back that was merged before; the later merge replaces the earlier.
  std::vector<Pair> last_of_each() const {
    std::vector<Pair> merges;
    std::unordered_set<uint64_t> seen;
    for (size_t i = merges_.size(); i-- > 0;) {
      if (seen.insert(key_of(merges_[i])).second) merges.push_back(merges_[i]);
    }
    std::reverse(merges.begin(), merges.end());
    return merges;
  }

  const PairLearning& learning_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Word> words_;
  std::vector<int32_t> symbols_;
  std::unordered_map<uint64_t, Occurrences> occurrences_;
  std::vector<Pair> changed_;  // that have got new words
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> merges_;
};

}  // namespace

LearnedPairs learn_pairs(std::span<const std::pair<std::string, uint64_t>> counted_words,
                         const PairLearning& learning) {
  BOTTOMLESS_CHECK(counted_words.size() < UINT32_MAX, "more words than can be numbered");
  return Learner(counted_words, learning).learn();
}

}  // namespace bottomless::text
