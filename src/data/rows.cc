#include "data/rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace bottomless::data {
namespace {

constexpr size_t kOpenRows = 64;  // among which a sample finds the one that it fills best
constexpr uint64_t kChoice = 0xE7A1;

}  // namespace

uint64_t Batch::counted() const {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

// Takes length + 1 tokens one by one, and makes inputs and targets of them.
class Rows::Line {
 public:
  Line(Batch& batch, uint64_t length, int64_t padding)
      : batch_(batch), length_(length), padding_(padding) {}

  bool full() const { return taken_ == length_ + 1; }
  void next_document() { ++document_; }

  void take(int64_t token, bool counts) {
    if (taken_ < length_) {
      batch_.inputs.push_back(token);
      batch_.documents.push_back(document_);
    }
    if (taken_ > 0) {
      batch_.targets.push_back(token);
      batch_.counts.push_back(counts ? 1 : 0);
    }
    ++taken_;
  }

  void pad() {
    document_ = -1;
    while (!full()) take(padding_, false);
    ++batch_.rows;
    batch_.length = length_;
  }

 private:
  Batch& batch_;
  const uint64_t length_;
  const int64_t padding_;
  uint64_t taken_ = 0;
  int32_t document_ = 0;
};

Rows::Rows(const Tokens& tokens, const PackingOptions& options, Split split)
    : tokens_(tokens), options_(options), split_(split) {
  BOTTOMLESS_CHECK(options.length > 0, "rows of nothing");
  const uint64_t documents = tokens.table().documents;
  if (options.evaluation_documents > 0) choice_.emplace(documents, mix(options.seed, kChoice));
  tokens.for_each_document([this](const Tokens::Document& document) {
    if (!is_mine(document.number)) return;
    document.kind == DocumentKind::text ? add_text(document) : add_sample(document);
  });
  // A last row of one token would have no target.
  if (!text_rows_.empty() && (stream_ - 1) % options.length == 0) text_rows_.pop_back();
  for (Open& row : open_) close(row);
  open_ = {};
  summary_.text_rows = text_rows_.size();
  summary_.sample_rows = sample_rows_.size();
  summary_.padding += text_rows_.size() * options.length - (stream_ > 0 ? stream_ - 1 : 0);
}

bool Rows::is_mine(uint64_t document) const {
  const bool evaluates =
      choice_.has_value() && (*choice_)(document) < options_.evaluation_documents;
  return evaluates == (split_ == Split::evaluation);
}

void Rows::add_text(const Tokens::Document& text) {
  const uint64_t length = text.end - text.begin;
  for (uint64_t at = text_rows_.size() * options_.length; at < stream_ + length;
       at += options_.length) {
    text_rows_.push_back(text.begin + at - stream_);
  }
  stream_ += length;
  summary_.tokens += length;
  ++summary_.texts;
}

bool Rows::anything_counts(uint64_t begin, uint64_t end) const {
  for (uint64_t at = begin + 1; at < end; ++at) {  // the first is nobody's target
    if (tokens_.counts(at)) return true;
  }
  return false;
}

void Rows::add_sample(const Tokens::Document& sample) {
  const uint64_t room = options_.length + 1, whole = sample.end - sample.begin;
  const uint64_t length = std::min(whole, room);
  ++summary_.samples;
  if (!anything_counts(sample.begin, sample.begin + length)) {
    ++summary_.left_out;
    return;
  }
  summary_.cut_samples += whole > room;
  summary_.cut_tokens += whole - length;
  summary_.tokens += length;
  // Where it leaves the least room; if nowhere, in a new row, for which the fullest makes place.
  auto best = open_.end();
  for (auto row = open_.begin(); row != open_.end(); ++row) {
    if (row->free >= length && (best == open_.end() || row->free < best->free)) best = row;
  }
  if (best == open_.end()) {
    if (open_.size() == kOpenRows) {
      const auto fullest = std::min_element(open_.begin(), open_.end(),
                                            [](auto& a, auto& b) { return a.free < b.free; });
      close(*fullest);
      open_.erase(fullest);
    }
    best = open_.insert(open_.end(), Open{room, {}});
  }
  best->samples.push_back(sample.begin);
  best->free -= length;
}

void Rows::close(Open& row) {
  samples_.insert(samples_.end(), row.samples.begin(), row.samples.end());
  sample_rows_.push_back(samples_.size());
  summary_.padding += row.free;
}

uint64_t Rows::read_text(uint64_t at, Line& line) const {
  for (;; ++at) {
    line.take(tokens_.token(at), tokens_.counts(at));
    if (line.full()) return at;
    if (!tokens_.ends_document(at)) continue;
    line.next_document();
    const std::optional<uint64_t> next = next_text(at);
    if (!next.has_value()) return at;
    at = *next - 1;
  }
}

// Where the next text of this split begins, behind a document that ends at `at`. Only here is a document looked at to its end:
// once for each, not for each of its rows.
std::optional<uint64_t> Rows::next_text(uint64_t at) const {
  for (uint64_t document = tokens_.document_of(at) + 1; at + 1 < tokens_.size(); ++document) {
    const uint64_t last = tokens_.last_of_document(at + 1);
    if (is_mine(document) && !tokens_.ends_sample(last)) return at + 1;
    at = last;
  }
  return std::nullopt;
}

void Rows::read(uint64_t row, Batch& to) const {
  BOTTOMLESS_CHECK(row < size(), "a row beyond the end");
  Line line(to, options_.length, options_.padding);
  if (row < text_rows_.size()) {
    const uint64_t at = text_rows_[row];
    tokens_.give_back(at, read_text(at, line));
  } else {
    const size_t index = row - text_rows_.size();
    for (uint64_t i = index == 0 ? 0 : sample_rows_[index - 1]; i < sample_rows_[index]; ++i) {
      const uint64_t begin = samples_[i], last = tokens_.last_of_document(begin);
      // What comes first in a sample does not follow from the one before it.
      for (uint64_t at = begin; at <= last && !line.full(); ++at) {
        line.take(tokens_.token(at), at > begin && tokens_.counts(at));
      }
      line.next_document();
      tokens_.give_back(begin, last);
    }
  }
  line.pad();
}

Result<uint64_t> evaluation_documents(uint64_t documents, double share) {
  if (!(share >= 0 && share < 1)) {
    return Error{Code::invalid_argument, "set documents apart for evaluation: a share of " +
                                             std::to_string(share) +
                                             " was asked for; name one from 0 to below 1"};
  }
  if (share == 0) return uint64_t{0};
  const auto number = static_cast<uint64_t>(std::llround(share * static_cast<double>(documents)));
  return evaluation_documents(
      documents, std::clamp<uint64_t>(number, 1, std::max<uint64_t>(documents, 2) - 1));
}

Result<uint64_t> evaluation_documents(uint64_t documents, uint64_t number) {
  if (number == 0 || number < documents) return number;
  return Error{Code::invalid_argument,
               "set " + std::to_string(number) + " documents apart for evaluation: the data has " +
                   std::to_string(documents) +
                   "; give more files, split texts at blank lines, or evaluate on fewer"};
}

std::string text_of(const PackingSummary& summary, uint64_t length) {
  const auto count = [](uint64_t number, const std::string& what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
  };
  std::string text = count(summary.text_rows + summary.sample_rows, "row") + " of " +
                     count(length, "token") + " from " + count(summary.texts, "text") + " and " +
                     count(summary.samples, "sample");
  const uint64_t places = summary.tokens + summary.padding;
  if (summary.padding > 0) {
    text += ", " + std::to_string(100 * summary.padding / places) + " % padding";
  }
  if (summary.cut_samples > 0) {
    text += "; " + count(summary.cut_samples, "sample") + " longer than a row lost " +
            count(summary.cut_tokens, "token") + " at the end";
  }
  if (summary.left_out > 0) {
    text += "; " + count(summary.left_out, "sample") + " with nothing to learn in a row left out";
  }
  return text;
}

}  // namespace bottomless::data
