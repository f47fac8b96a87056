// Shard::save and load over real ranks: the same bits on any number of them, and what Python makes of it.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "support/temporary_directory.h"
#include "torch/started_ranks.h"

namespace bottomless {
namespace {

using nlohmann::json;

constexpr int kMemory = 20 << 20;

struct Outcome {
  int code = -1;
  std::string out;
  std::vector<std::string> losses, printed, others;
  int evictions = 0;
};

Outcome outcome_of(const Ended& ended) {
  Outcome outcome{.code = ended.code, .out = ended.out};
  for (const std::string& line : ended.lines()) {
    if (line.starts_with("loss ")) {
      outcome.losses.push_back(line);
    } else if (line.starts_with("loaded ") || line.starts_with("refused ")) {
      outcome.others.push_back(line);
    } else if (line.starts_with("evictions ")) {
      outcome.evictions = std::stoi(line.substr(10));
    } else if (line.starts_with("tensor ")) {
      outcome.printed.push_back(line);
    }
  }
  return outcome;
}

// All must end well, and print the same.
std::vector<Outcome> run(int ranks, const std::string& optimizer,
                         const std::filesystem::path& directory, const std::string& words) {
  const TemporaryDirectory disk;
  const std::string command = CHECKPOINT_RANKS " " + optimizer + " " + std::to_string(kMemory) +
                              " " + disk.path().string() + " " + directory.string() + " " + words;
  std::vector<Outcome> outcomes;
  for (const Ended& ended : run_ranks(ranks, command)) {
    outcomes.push_back(outcome_of(ended));
    EXPECT_EQ(outcomes.back().code, 0) << ended.out;
    EXPECT_EQ(outcomes.back().printed, outcomes[0].printed);
    EXPECT_EQ(outcomes.back().others, outcomes[0].others);
  }
  return outcomes;
}

Manifest manifest_in(const std::filesystem::path& directory) {
  const std::unique_ptr<Files> files = make_files();
  Result<Manifest> manifest = load_manifest(*files, directory);
  EXPECT_TRUE(manifest.ok()) << manifest.error().message;
  return manifest.ok() ? std::move(manifest).value() : Manifest();
}

// Every tensor with the checksum of its bytes, whichever rank has written it.
std::map<std::string, uint64_t> content_of(const Manifest& manifest) {
  std::map<std::string, uint64_t> content;
  for (const FileEntry& file : manifest.files)
    for (const TensorEntry& tensor : file.tensors) content[tensor.name] = tensor.checksum;
  return content;
}

class SavedByTwo : public testing::TestWithParam<std::string> {};

TEST_P(SavedByTwo, IsTheSameOnAnyNumberOfRanks) {
  const TemporaryDirectory saved, copied;
  const auto before = run(2, GetParam(), saved.path(), "train train save print train train");
  ASSERT_EQ(before[0].losses.size(), 4U) << before[0].out;
  for (const Outcome& rank : before) EXPECT_GT(rank.evictions, 0) << rank.out;
  const Manifest manifest = manifest_in(saved.path());
  EXPECT_EQ(manifest.files.size(), 2U);
  EXPECT_EQ(manifest.step, 2U);

  const auto after = run(2, GetParam(), saved.path(), "load print train train");
  for (size_t rank = 0; rank < after.size(); ++rank) {
    EXPECT_EQ(after[rank].others, std::vector<std::string>{R"(loaded 2 {"seed":[1,2.5]})"});
    EXPECT_EQ(after[rank].printed, before[rank].printed);
    EXPECT_EQ(after[rank].printed.size(), 16U);
    const auto& all = before[rank].losses;
    EXPECT_EQ(after[rank].losses, std::vector<std::string>(all.begin() + 2, all.end()));
    EXPECT_GT(after[rank].evictions, 0);
  }
  for (const int ranks : {1, 3}) {
    std::filesystem::copy(saved.path(), copied.path(),
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
    const auto again = run(ranks, GetParam(), copied.path(), "load print save");
    EXPECT_EQ(again[0].others, after[0].others);
    EXPECT_EQ(again[0].printed, before[0].printed);
    const Manifest second = manifest_in(copied.path());
    EXPECT_EQ(second.files.size(), static_cast<size_t>(ranks));
    EXPECT_EQ(content_of(second), content_of(manifest));
    EXPECT_EQ(second.step, 2U);
    EXPECT_EQ(json::parse(second.extra), json::parse(manifest.extra));
  }
}

INSTANTIATE_TEST_SUITE_P(, SavedByTwo, testing::Values("AdamW", "Bfloat16", "Adafactor"),
                         [](const auto& info) { return info.param; });

class WithPython : public testing::TestWithParam<std::string> {};

TEST_P(WithPython, EachLoadsWhatTheOtherHasSaved) {
  const TemporaryDirectory ours, theirs, disk;
  const std::string python = PYTHON " " CHECKPOINTS_IN_PYTHON " " PYTHON_PACKAGE " ";
  (void)run(2, GetParam(), ours.path(), "train train save");
  const Ended loaded = run_one(python + "load " + ours.path().string() + " " + GetParam());
  EXPECT_EQ(loaded.code, 0) << loaded.out;
  EXPECT_EQ(loaded.lines().back(), "loaded 2");

  for (const Ended& ended : run_ranks(2, python + "save " + theirs.path().string() + " " +
                                             GetParam() + " " + disk.path().string()))
    ASSERT_EQ(ended.code, 0) << ended.out;
  const auto content = content_of(manifest_in(theirs.path()));
  const auto went_on = run(3, GetParam(), theirs.path(), "load save train");
  EXPECT_EQ(went_on[0].others, std::vector<std::string>{R"(loaded 2 {"pair":[1,{"a":null}]})"});
  EXPECT_EQ(went_on[0].losses.size(), 1U);
  // States of 8 bits are decoded when they are saved, and get other scales on other shares.
  if (GetParam() != "EightBits") {
    EXPECT_EQ(content_of(manifest_in(theirs.path())), content);
  }
}

INSTANTIATE_TEST_SUITE_P(, WithPython, testing::Values("AdamW", "SGD", "EightBits", "Adafactor"),
                         [](const auto& info) { return info.param; });

TEST(ShardCheckpoint, WhatCannotBeIsRefusedOnAllRanksAndTrainingGoesOn) {
  const TemporaryDirectory saved;
  (void)run(2, "SGD", saved.path(), "train save");
  const auto other = run(2, "AdamW", saved.path(), "load train");
  ASSERT_EQ(other[0].others.size(), 1U) << other[0].out;
  EXPECT_NE(other[0].others[0].find("this optimizer has no option 'momentum'"), std::string::npos)
      << other[0].others[0];
  const auto nowhere = run(2, "AdamW", saved.path() / "not" / "there", "train save load train");
  ASSERT_EQ(nowhere[0].others.size(), 2U) << nowhere[0].out;
  EXPECT_NE(nowhere[0].others[0].find("rank 0"), std::string::npos) << nowhere[0].others[0];
  for (const Outcome& rank : nowhere) EXPECT_EQ(rank.losses.size(), 2U);
  const auto again = run(2, "SGD", saved.path(), "load");
  EXPECT_TRUE(again[0].others[0].starts_with("loaded 1 ")) << again[0].out;
}

}  // namespace
}  // namespace bottomless
