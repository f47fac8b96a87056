#include "checkpoint/commit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "state.h"
#include "support/process.h"
#include "support/simulated_files.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

using Names = std::set<std::string>;

Names names_in(Files& files, const std::filesystem::path& directory) {
  const auto names = files.list(directory).value();
  return {names.begin(), names.end()};
}

Names names_of(const Manifest& manifest) {
  Names names{std::string(kManifestName)};
  for (const FileEntry& file : manifest.files) names.insert(file.name);
  return names;
}

void touch(Files& files, const std::filesystem::path& path) {
  ASSERT_TRUE(files.create(path).ok()) << path;
}

TEST(ShardNames, AreNewEachTimeAndTellTheirStep) {
  const std::string name = new_shard_name(12, 3);
  EXPECT_TRUE(name.starts_with("shard-0000000012-00003-")) << name;
  EXPECT_NE(name, new_shard_name(12, 3));
  EXPECT_EQ(step_of_shard(name), 12u);
  EXPECT_EQ(step_of_shard(new_shard_name(~0ull, ~0u)), ~0ull);
}

TEST(ShardNames, OfOthersAreNotOurs) {
  for (const char* other :
       {"", "shard-", ".safetensors", "shard-.safetensors", "model-00001-of-00002.safetensors",
        "shard-0000000001-00000-0123456789abcdef.safetensors.bak",
        "shard-0000000001-00000-0123456789abcdeg.safetensors",
        "shard-0000000001-00000-0123456789abcde.safetensors",
        "shard-0000000001-0123456789abcdef.safetensors",
        "shard--0000000001-00000-0123456789abcdef.safetensors",
        "shard-99999999999999999999-00000-0123456789abcdef.safetensors", "shard-1.safetensors"}) {
    EXPECT_EQ(step_of_shard(other), std::nullopt) << other;
  }
}

class CommitTest : public testing::Test {
 protected:
  State state(uint64_t step) { return random_state(step, 8, 60, random_); }
  SimulatedFiles files_;
  Random random_{21};
  const std::filesystem::path directory_ = "/run";
};

TEST_F(CommitTest, EachReplacesTheOneBeforeAndItsFiles) {
  for (uint64_t step = 1; step <= 3; ++step) {
    const State saved = state(step);
    const Result<Removed> committed = save(files_, directory_, saved);
    ASSERT_TRUE(committed.ok()) << committed.error().message;
    EXPECT_FALSE(committed.value().failed);
    EXPECT_EQ(committed.value().files.size(), step == 1 ? 0u : 3u);
    EXPECT_EQ(load(files_, directory_).value(), saved);
    EXPECT_EQ(load_manifest(files_, directory_).value().extra, R"({"lr":0.001})");
    EXPECT_EQ(names_in(files_, directory_), names_of(load_manifest(files_, directory_).value()));
  }
}

TEST_F(CommitTest, KeepsTheOneBeforeWhereTwoAreKept) {
  State before;
  for (uint64_t step = 1; step <= 4; ++step) {
    const State saved = state(step);
    ASSERT_TRUE(save(files_, directory_, saved, 3, Keep::last_two).ok());
    EXPECT_EQ(load(files_, directory_).value(), saved);
    Names expected = names_of(load_manifest(files_, directory_).value());
    if (step > 1) {
      EXPECT_EQ(load(files_, directory_, kPreviousManifestName).value(), before);
      expected.merge(names_of(load_manifest(files_, directory_, kPreviousManifestName).value()));
      expected.insert(std::string(kPreviousManifestName));
    }
    EXPECT_EQ(names_in(files_, directory_), expected);
    ASSERT_TRUE(remove_leftovers(files_, directory_).ok());
    EXPECT_EQ(names_in(files_, directory_), expected);
    before = saved;
  }
  // By hand, when the last one is damaged.
  ASSERT_TRUE(files_.rename(directory_ / kPreviousManifestName, directory_ / kManifestName).ok());
  const State after = state(4);
  ASSERT_TRUE(save(files_, directory_, after, 3, Keep::last_two).ok());
  EXPECT_EQ(load(files_, directory_).value(), after);
  EXPECT_EQ(load(files_, directory_, kPreviousManifestName).value().step, 3u);
  ASSERT_TRUE(save(files_, directory_, state(5)).ok());
  EXPECT_EQ(names_in(files_, directory_), names_of(load_manifest(files_, directory_).value()));
}

TEST_F(CommitTest, RemovesItsOwnLeftoversAndNothingElse) {
  ASSERT_TRUE(save(files_, directory_, state(5)).ok());
  const Names others{"model.safetensors", "notes.txt", "manifest.json.bak",
                     "manifest-x.json.draft"};
  for (const std::string& name : others) touch(files_, directory_ / name);
  touch(files_, directory_ / new_shard_name(4, 0));
  touch(files_, directory_ / "manifest-0123456789abcdef.json.draft");
  const std::string next = new_shard_name(7, 0);  // that a rank has begun already
  touch(files_, directory_ / next);
  ASSERT_TRUE(save(files_, directory_, state(6)).ok());
  Names expected = names_of(load_manifest(files_, directory_).value());
  expected.insert(others.begin(), others.end());
  expected.insert(next);
  EXPECT_EQ(names_in(files_, directory_), expected);

  ASSERT_TRUE(remove_leftovers(files_, directory_).ok());
  expected.erase(next);
  EXPECT_EQ(names_in(files_, directory_), expected);
}

TEST_F(CommitTest, OfAnEarlierStepRemovesWhatItReplaces) {
  ASSERT_TRUE(save(files_, directory_, state(9)).ok());
  const State back = state(4);
  ASSERT_TRUE(save(files_, directory_, back).ok());
  EXPECT_EQ(load(files_, directory_).value(), back);
  EXPECT_EQ(names_in(files_, directory_), names_of(load_manifest(files_, directory_).value()));
}

TEST_F(CommitTest, AFileThatStaysTheSameMayStay) {
  ASSERT_TRUE(save(files_, directory_, state(1), 2).ok());
  Manifest manifest = load_manifest(files_, directory_).value();
  const std::string frozen = manifest.files[0].name;
  manifest.files.pop_back();
  manifest.step = 2;
  ASSERT_TRUE(commit(files_, directory_, manifest).ok());
  EXPECT_EQ(names_in(files_, directory_), (Names{frozen, std::string(kManifestName)}));
  EXPECT_TRUE(load(files_, directory_).ok());
}

TEST_F(CommitTest, WithoutAllFilesDoesNotHappen) {
  const State old = state(1);
  ASSERT_TRUE(save(files_, directory_, old).ok());
  Manifest manifest{2, {save_rank(files_, directory_, state(2), 0, 1).value()}, "{}"};
  ASSERT_TRUE(files_.remove(directory_ / manifest.files[0].name).ok());
  const Result<Removed> committed = commit(files_, directory_, manifest);
  ASSERT_FALSE(committed.ok());
  EXPECT_NE(committed.error().message.find(manifest.files[0].name), std::string::npos);
  EXPECT_EQ(load(files_, directory_).value(), old);
}

TEST_F(CommitTest, FilesThatCannotBeRemovedAreReportedAndTheCheckpointHolds) {
  ASSERT_TRUE(save(files_, directory_, state(1)).ok());
  const State saved = state(2);
  Manifest manifest{2, {save_rank(files_, directory_, saved, 0, 1).value()}, "{}"};
  const auto before = files_.after_kill();
  ASSERT_TRUE(commit(*before, directory_, manifest).ok());
  files_.faults = {FileFault::io_error, before->faults.requests - 1};
  files_.faults.requests = 0;
  const Result<Removed> committed = commit(files_, directory_, manifest);
  ASSERT_TRUE(committed.ok()) << committed.error().message;
  EXPECT_EQ(files_.faults.fired, 1u);
  EXPECT_TRUE(committed.value().failed);
  EXPECT_EQ(committed.value().files.size(), 2u);
  EXPECT_EQ(load(files_, directory_).value(), saved);
}

TEST_F(CommitTest, LeftoversStayWhereTheManifestCannotBeRead) {
  ASSERT_TRUE(save(files_, directory_, state(1)).ok());
  files_.truncate(directory_ / kManifestName, 10);
  const Names before = names_in(files_, directory_);
  EXPECT_EQ(remove_leftovers(files_, directory_).error().code, Code::corrupt);
  EXPECT_EQ(names_in(files_, directory_), before);
  EXPECT_TRUE(save(files_, directory_, state(2)).ok()) << "a new one replaces it";
  EXPECT_EQ(names_in(files_, directory_), names_of(load_manifest(files_, directory_).value()));
}

// Each rank is a process of its own; their entries come over pipes.
TEST(Commit, OfFilesThatOtherProcessesWrote) {
  Random random(22);
  BOTTOMLESS_TRACE_SEED(random);
  const TemporaryDirectory parent;
  const auto directory = parent.path() / "run";
  const auto files = make_files();
  const State state = random_state(3, 20, 500, random);
  Manifest manifest{3, {}, "{}"};
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const Result<FileEntry> entry = parse_file_entry(in_child([&] {
      const Result<FileEntry> saved = save_rank(*files, directory, state, rank, 3);
      return saved.ok() ? to_json(saved.value()).value() : saved.error().message;
    }));
    ASSERT_TRUE(entry.ok()) << entry.error().message;
    manifest.files.push_back(entry.value());
  }
  EXPECT_EQ(load_manifest(*files, directory).error().code, Code::not_found);
  ASSERT_TRUE(commit(*files, directory, manifest).ok());
  const Result<State> loaded = load(*files, directory);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded.value(), state);
}

}  // namespace
}  // namespace bottomless
