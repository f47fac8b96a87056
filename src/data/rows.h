// Documents as rows of one length, for training or for evaluation.
// Texts are one stream that is cut every `length` tokens; a row's last target is the next one's first input, so that every
// token is learned once an epoch. Samples stay whole: several share a row, and the rest of it is padding. One that
// is longer than a row loses its end, and one of which nothing would be learned then is left out.
// Which documents are for evaluation depends on the seed and their number alone.
// Thread-safety: immutable after construction.
// Lifetime: the Tokens must outlive the Rows. Memory: 8 bytes for each row of text, 8 for each sample and row of samples.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/permutation.h"
#include "data/token_file.h"

namespace bottomless::data {

enum class Split { training, evaluation };

struct PackingOptions {
  uint64_t length = 1024;  // of a row
  int64_t padding = 0;     // the token where there is none
  uint64_t evaluation_documents = 0;
  uint64_t seed = 0;  // of the choice of these
};

struct PackingSummary {
  uint64_t texts = 0, samples = 0;  // documents of the split
  uint64_t text_rows = 0, sample_rows = 0;
  uint64_t tokens = 0;  // in all rows, without padding
  uint64_t padding = 0;
  uint64_t cut_samples = 0, cut_tokens = 0;
  uint64_t left_out = 0;  // samples of which nothing would be learned

  bool operator==(const PackingSummary&) const = default;
};

// Rows one behind the other. `documents` counts them within each row from 0; padding is -1.
struct Batch {
  uint64_t rows = 0, length = 0;
  std::vector<int64_t> inputs, targets;
  std::vector<uint8_t> counts;     // whether the target counts in the loss
  std::vector<int32_t> documents;  // of the inputs
  uint64_t counted() const;        // targets that count
};

class Rows {
 public:
  Rows(const Tokens& tokens, const PackingOptions& options, Split split);

  uint64_t size() const { return text_rows_.size() + sample_rows_.size(); }
  uint64_t length() const { return options_.length; }
  const PackingSummary& summary() const { return summary_; }
  // Appends a row.
  void read(uint64_t row, Batch& to) const;

 private:
  struct Open {  // a row of samples that has room
    uint64_t free;
    std::vector<uint64_t> samples;
  };
  class Line;

  bool is_mine(uint64_t document) const;
  void add_text(const Tokens::Document& text);
  void add_sample(const Tokens::Document& sample);
  void close(Open& row);
  bool anything_counts(uint64_t begin, uint64_t end) const;
  uint64_t read_text(uint64_t at, Line& line) const;  // to where
  std::optional<uint64_t> next_text(uint64_t at) const;

  const Tokens& tokens_;
  const PackingOptions options_;
  const Split split_;
  std::optional<Permutation> choice_;  // of documents for evaluation: those that it puts first
  std::vector<uint64_t> text_rows_;    // the first token of each
  std::vector<uint64_t> sample_rows_;  // the end of each in samples_
  std::vector<uint64_t> samples_;      // the first token of each
  std::vector<Open> open_;             // while packing
  uint64_t stream_ = 0;                // tokens of text so far
  PackingSummary summary_;
};

// How many documents are for evaluation, given a share of them or a number: at least one, and not all.
Result<uint64_t> evaluation_documents(uint64_t documents, double share);
Result<uint64_t> evaluation_documents(uint64_t documents, uint64_t number);

// "12,000 rows of 1,024 tokens from 300 texts and 40 samples; 2 samples were longer and lost 310 tokens, ..."
std::string text_of(const PackingSummary& summary, uint64_t length);

}  // namespace bottomless::data
