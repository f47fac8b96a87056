// Documents become rows: every token of a text is learned once, samples stay whole, and evaluation sees what training does not.
#include "data/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "data/loader.h"
#include "small_files.h"
#include "support/random.h"
#include "support/simulated_files.h"

namespace bottomless::data {
namespace {

struct Made {  // a document of tokens that are found nowhere else
  DocumentKind kind;
  std::vector<int32_t> tokens;
  uint64_t shown;  // the first so many do not count
};

class Packing : public testing::Test {
 protected:
  void add(DocumentKind kind, uint64_t length, uint64_t shown = 0) {
    Made made{kind, {}, shown};
    for (uint64_t i = 0; i < length; ++i) made.tokens.push_back(next_token_++);
    documents_.push_back(made);
  }
  void add_at_random(Random& random, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      const bool sample = random.one_in(2);
      const uint64_t length = random.between(1, random.one_in(5) ? 80 : 20);
      add(sample ? DocumentKind::sample : DocumentKind::text, length,
          sample ? random.below(length + 1) : 0);
    }
  }
  const Tokens& tokens() {
    TokenFileWriter writer = std::move(TokenFileWriter::create(files_, "/tokens", 1 << 20)).value();
    for (const Made& made : documents_) {
      Encoded encoded{made.tokens, std::vector<uint8_t>(made.tokens.size(), 1)};
      std::fill_n(encoded.counts.begin(), made.shown, 0);
      EXPECT_TRUE(writer.add(encoded, made.kind, Piece::ends).ok());
    }
    EXPECT_TRUE(writer.finish(0, {}).ok());
    bytes_ = bytes_of(files_, "/tokens");
    tokens_.emplace(bytes_, writer.table());
    return *tokens_;
  }
  static Batch all_of(const Rows& rows) {
    Batch batch;
    for (uint64_t row = 0; row < rows.size(); ++row) rows.read(row, batch);
    return batch;
  }

  SimulatedFiles files_;
  std::vector<Made> documents_;
  int32_t next_token_ = 1;
  std::vector<std::byte> bytes_;
  std::optional<Tokens> tokens_;
};

using Values = std::vector<int64_t>;

TEST_F(Packing, CutsTextsEverywhereAndNumbersThem) {
  add(DocumentKind::text, 3);
  add(DocumentKind::text, 4);
  const Rows rows(tokens(), {.length = 4}, Split::training);
  const Batch batch = all_of(rows);
  EXPECT_EQ(batch.rows, 2u);
  EXPECT_EQ(batch.inputs, (Values{1, 2, 3, 4, 5, 6, 7, 0}));
  EXPECT_EQ(batch.targets, (Values{2, 3, 4, 5, 6, 7, 0, 0}));
  EXPECT_EQ(batch.counts, (std::vector<uint8_t>{1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(batch.documents, (std::vector<int32_t>{0, 0, 0, 1, 0, 0, 0, -1}));
  EXPECT_EQ(batch.counted(), 6u);
}

TEST_F(Packing, KeepsSamplesWhole) {
  add(DocumentKind::sample, 4, 2);
  add(DocumentKind::sample, 5, 1);
  add(DocumentKind::sample, 2, 0);
  const Rows rows(tokens(), {.length = 6, .padding = -7}, Split::training);
  const Batch batch = all_of(rows);
  EXPECT_EQ(batch.inputs, (Values{1, 2, 3, 4, -7, -7, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(batch.targets, (Values{2, 3, 4, -7, -7, -7, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(batch.counts, (std::vector<uint8_t>{0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 1}));
  EXPECT_EQ(batch.documents, (std::vector<int32_t>{0, 0, 0, 0, -1, -1, 0, 0, 0, 0, 0, 1}));
}

TEST_F(Packing, CutsWhatIsLongerThanARowAndSaysSo) {
  add(DocumentKind::sample, 10, 2);
  add(DocumentKind::sample, 10, 6);  // nothing of it would be learned
  add(DocumentKind::text, 9);
  const Rows rows(tokens(), {.length = 4}, Split::training);
  EXPECT_EQ(rows.size(), 3u);
  EXPECT_EQ(
      text_of(rows.summary(), 4),
      "3 rows of 4 tokens from 1 text and 2 samples; 1 sample longer than a row lost 5 tokens "
      "at the end; 1 sample with nothing to learn in a row left out");
}

TEST_F(Packing, WastesLittleOnSamples) {
  Random random(94);
  BOTTOMLESS_TRACE_SEED(random);
  for (int i = 0; i < 2000; ++i) add(DocumentKind::sample, random.between(20, 700), 10);
  const Rows rows(tokens(), {.length = 1023}, Split::training);
  const PackingSummary& summary = rows.summary();
  EXPECT_LT(summary.padding, (summary.tokens + summary.padding) / 20);
}

// Every token that counts is a target exactly once: but for the first of all, and for what the summary admits.
TEST_F(Packing, LosesAndRepeatsNothing) {
  Random random(95);
  BOTTOMLESS_TRACE_SEED(random);
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    documents_.clear();
    files_.remove("/tokens").ok();
    next_token_ = 1;
    add_at_random(random, random.between(1, 300));
    PackingOptions options{.length = random.between(1, 50), .seed = random.next()};
    const uint64_t count = documents_.size();
    if (count > 1) options.evaluation_documents = random.below(count);
    const Tokens& all = tokens();
    std::map<int64_t, Split> split_of;  // of each token that is an input
    std::set<int64_t> learned;
    uint64_t documents = 0;
    for (const Split split : {Split::training, Split::evaluation}) {
      const Rows rows(all, options, split);
      const PackingSummary& summary = rows.summary();
      documents += summary.texts + summary.samples;
      if (split == Split::evaluation) {
        EXPECT_EQ(summary.texts + summary.samples, options.evaluation_documents);
      }
      const Batch batch = all_of(rows);
      ASSERT_EQ(batch.inputs.size(), rows.size() * options.length);
      ASSERT_EQ(batch.targets.size(), batch.inputs.size());
      for (size_t i = 0; i < batch.targets.size(); ++i) {
        if (batch.documents[i] >= 0) {
          EXPECT_TRUE(split_of.try_emplace(batch.inputs[i], split).first->second == split);
        }
        if (batch.counts[i] == 0) continue;
        EXPECT_TRUE(learned.insert(batch.targets[i]).second);
      }
    }
    EXPECT_EQ(documents, count);
    // What should be learned, by the other way round.
    size_t expected = 0;
    int without_first = 0;
    for (const Made& made : documents_) {
      if (made.kind == DocumentKind::sample) {
        const uint64_t end = std::min<uint64_t>(made.tokens.size(), options.length + 1);
        for (uint64_t i = std::max<uint64_t>(made.shown, 1); i < end; ++i) {
          EXPECT_TRUE(learned.contains(made.tokens[i]));
          ++expected;
        }
        continue;
      }
      size_t missing = 0;
      for (const int32_t token : made.tokens) missing += !learned.contains(token);
      expected += made.tokens.size() - missing;
      if (missing == 0) continue;
      EXPECT_EQ(missing, 1u);
      EXPECT_FALSE(learned.contains(made.tokens[0])) << "the first of a split's texts";
      ++without_first;
    }
    EXPECT_LE(without_first, 2);
    EXPECT_EQ(learned.size(), expected);
    if (HasFailure()) return;
  }
}

TEST(EvaluationDocuments, AreAtLeastOneAndNotAll) {
  EXPECT_EQ(evaluation_documents(100, 0.05).value(), 5u);
  EXPECT_EQ(evaluation_documents(10, 0.01).value(), 1u);
  EXPECT_EQ(evaluation_documents(2, 0.99).value(), 1u);
  EXPECT_EQ(evaluation_documents(1, 0.0).value(), 0u);
  EXPECT_EQ(evaluation_documents(7, uint64_t{6}).value(), 6u);
  EXPECT_NE(evaluation_documents(1, 0.1).error().message.find(
                "the data has 1; give more files, split texts at blank lines"),
            std::string::npos);
  EXPECT_FALSE(evaluation_documents(7, uint64_t{7}).ok());
  EXPECT_FALSE(evaluation_documents(7, 1.0).ok());
  EXPECT_FALSE(evaluation_documents(7, std::nan("")).ok());
}

class Loading : public Packing {
 protected:
  // The first inputs of rows, which say which rows they are.
  static Values first_inputs(const Batch& batch) {
    Values first;
    for (uint64_t row = 0; row < batch.rows; ++row) {
      first.push_back(batch.inputs[row * batch.length]);
    }
    return first;
  }
};

TEST_F(Loading, ShowsEveryRowOnceAnEpochInAnotherOrder) {
  add(DocumentKind::text, 401);
  const Rows rows(tokens(), {.length = 4}, Split::training);
  Loader loader = Loader::start(rows, {.seed = 3}).value();
  std::vector<Values> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    epochs.push_back(first_inputs(loader.next(100)));
    EXPECT_EQ(std::set<int64_t>(epochs.back().begin(), epochs.back().end()).size(), 100u);
    EXPECT_EQ(loader.position(), (Position{3, epochs.size(), 0}));
    EXPECT_DOUBLE_EQ(loader.epochs(), static_cast<double>(epochs.size()));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_FALSE(std::is_sorted(epochs[0].begin(), epochs[0].end()));
}

// However the rows are shared and batched, and wherever the run is stopped: one order.
TEST_F(Loading, IsOneOrderForAnyRanksAndAfterAnyPause) {
  Random random(96);
  BOTTOMLESS_TRACE_SEED(random);
  add(DocumentKind::text, 200);
  add_at_random(random, 40);
  const Rows rows(tokens(), {.length = 5}, Split::training);
  const uint64_t seed = random.next();
  Loader reference = Loader::start(rows, {.seed = seed}).value();
  const Values order = first_inputs(reference.next(4 * rows.size()));
  for (int round = 0; round < 30; ++round) {
    Position position{.seed = seed};
    size_t seen = 0;
    while (seen < 3 * rows.size()) {
      const uint64_t ranks = random.between(1, 4), batch = random.between(1, 5);
      Position after;
      for (uint64_t rank = 0; rank < ranks; ++rank) {  // a new loader each time: a resumed run
        Loader loader = Loader::start(rows, position, {rank, ranks}).value();
        const Values part = first_inputs(loader.next(batch));
        ASSERT_EQ(part.size(), batch);
        for (uint64_t i = 0; i < batch; ++i) ASSERT_EQ(part[i], order[seen + rank + i * ranks]);
        after = loader.position();
      }
      position = after;
      seen += batch * ranks;
    }
  }
}

TEST_F(Loading, OfNothingOrBeyondTheEndIsAnError) {
  add(DocumentKind::text, 1);
  const Rows none(tokens(), {.length = 4}, Split::training);
  EXPECT_NE(Loader::start(none, {}).error().message.find("the data gives none"), std::string::npos);
  documents_.clear();
  files_.remove("/tokens").ok();
  add(DocumentKind::text, 9);
  const Rows two(tokens(), {.length = 4}, Split::training);
  EXPECT_TRUE(Loader::start(two, {.row = 1}).ok());
  EXPECT_NE(
      Loader::start(two, {.row = 2}).error().message.find("resume with the data and the length"),
      std::string::npos);
}

}  // namespace
}  // namespace bottomless::data
