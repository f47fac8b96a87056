// Tokens are made once, again when something has changed or is damaged, and never by halves.
#include "data/cache.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/text_file.h"
#include "byte_encoder.h"
#include "data/rows.h"
#include "small_files.h"
#include "support/simulated_files.h"
#include "support/temporary_directory.h"

namespace bottomless::data {
namespace {

class RealCache : public testing::Test {
 protected:
  RealCache() {
    put("a.txt", "some text");
    put("b.jsonl", "{\"text\": \"more\"}\n");
    request_.data = {directory_.path() / "a.txt", directory_.path() / "b.jsonl"};
    request_.directory = directory_.path() / "cache";
    std::filesystem::create_directory(request_.directory);
  }
  void put(const char* name, std::string_view text) {
    std::ofstream(directory_.path() / name, std::ios::binary) << text;
  }
  // Whether opening it has to tokenise.
  bool makes() {
    const Result<TokenCache> cache = TokenCache::open(*files_, request_, encoder_);
    EXPECT_TRUE(cache.ok()) << cache.error().message;
    path_ = cache.value().path();
    const Tokens& tokens = cache.value().tokens();
    std::vector<int32_t> all;
    for (uint64_t at = 0; at < tokens.size(); ++at) all.push_back(tokens.token(at));
    text_ = data::text_of(all);
    tokens.give_back(0, tokens.size() - 1);
    EXPECT_EQ(tokens.token(0), all.front()) << "pages come back";
    return cache.value().was_made();
  }
  size_t cached() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(request_.directory), {}));
  }

  const TemporaryDirectory directory_;
  const std::unique_ptr<Files> files_ = make_files();
  ByteEncoder encoder_;
  CacheRequest request_;
  std::filesystem::path path_;
  std::string text_;
};

TEST_F(RealCache, IsMadeOnce) {
  EXPECT_TRUE(makes());
  EXPECT_EQ(text_, "some text|more|");
  EXPECT_FALSE(makes());
  EXPECT_EQ(text_, "some text|more|");
  EXPECT_EQ(cached(), 1u);
}

TEST_F(RealCache, IsMadeAgainWhenTheDataHasChanged) {
  EXPECT_TRUE(makes());
  put("a.txt", "some more text");
  EXPECT_TRUE(makes());
  EXPECT_EQ(text_, "some more text|more|");
  put("a.txt", "some less text");  // as long as before
  std::filesystem::last_write_time(request_.data[0], std::filesystem::file_time_type{});
  EXPECT_TRUE(makes());
  EXPECT_EQ(text_, "some less text|more|");
  EXPECT_EQ(cached(), 1u);
}

TEST_F(RealCache, IsKeptWhenOnlyTheTimeOfADataFileHasChanged) {
  EXPECT_TRUE(makes());
  std::filesystem::last_write_time(request_.data[0], std::filesystem::file_time_type{});
  EXPECT_FALSE(makes());
}

TEST_F(RealCache, IsOfOneTokenizerAndOneSetOfOptions) {
  EXPECT_TRUE(makes());
  encoder_.print = 2;
  EXPECT_TRUE(makes());
  encoder_.over.reset();
  EXPECT_TRUE(makes());
  request_.options.documents = TextDocuments::between_blank_lines;
  EXPECT_TRUE(makes());
  EXPECT_EQ(cached(), 4u);
  EXPECT_FALSE(makes());
}

TEST_F(RealCache, IsMadeAgainWhereverItIsDamaged) {
  EXPECT_TRUE(makes());
  const Bytes size = std::filesystem::file_size(path_);
  for (const Bytes at :
       {Bytes{3}, Bytes{70}, kBlocksOffset + 5, kBlocksOffset + 33'000, size - 1}) {
    SCOPED_TRACE(at);
    {
      std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<long>(at));
      const char other = static_cast<char>(file.get() ^ 1);
      file.seekp(static_cast<long>(at));
      file.put(other);
    }
    EXPECT_TRUE(makes());
    EXPECT_EQ(text_, "some text|more|");
  }
  for (const Bytes left : {Bytes{0}, Bytes{100}, size / 2, size - 1, size + 1}) {
    std::filesystem::resize_file(path_, left);
    EXPECT_TRUE(makes()) << left;
  }
  EXPECT_FALSE(makes());
}

TEST_F(RealCache, RemovesWhatAProcessThatIsGoneLeft) {
  EXPECT_TRUE(makes());
  const std::string name = path_.filename().string();
  // No process has this number: it is larger than the kernel gives out.
  std::ofstream(request_.directory / (name + ".draft-2147483647")) << "half";
  std::ofstream(request_.directory / (name + ".draft-1")) << "somebody else's";
  put("a.txt", "other");
  EXPECT_TRUE(makes());
  EXPECT_EQ(cached(), 2u);
}

// Pages of the mapping would count as this process's memory until somebody else needs them.
TEST_F(RealCache, IsNotInMemoryAfterItWasRead) {
  constexpr Bytes kText = 2_MiB;
  std::string lines;
  while (lines.size() < kText) lines += "a line of text like others\n";
  put("a.txt", lines);
  const TokenCache cache = std::move(TokenCache::open(*files_, request_, encoder_)).value();
  const auto in_memory = [] { return byte_field("/proc/self/status", "RssFile").value(); };
  const Bytes before = in_memory();
  const Rows rows(cache.tokens(), {.length = 1000}, Split::training);
  Batch batch;
  for (uint64_t row = 0; row < rows.size(); ++row) {
    batch = {};
    rows.read(row, batch);
  }
  ASSERT_GT(rows.size() * rows.length(), kText);
  EXPECT_LT(in_memory(), before + kText / 2) << "of " << std::filesystem::file_size(cache.path());
}

TEST_F(RealCache, WithoutDataOrDirectoryIsAnError) {
  const auto message = [&] {
    return TokenCache::open(*files_, request_, encoder_).error().message;
  };
  request_.data.push_back(directory_.path());
  EXPECT_NE(message().find("it is no ordinary file; name the files in it"), std::string::npos);
  request_.data.back() = directory_.path() / "none";
  EXPECT_NE(message().find("name files that exist"), std::string::npos);
  request_.data.pop_back();
  request_.directory = directory_.path() / "nowhere";
  EXPECT_NE(message().find("nowhere"), std::string::npos);
}

class CacheFaults : public testing::TestWithParam<FileFault> {};

// At every request to the file system: afterwards there is the old file or the new one, whole, and no draft.
TEST_P(CacheFaults, LeaveTheOldTokensOrTheNew) {
  const ByteEncoder encoder;
  const std::vector<Source> sources{{"/a.txt"}};
  const auto replace = [&](SimulatedFiles& files) {
    return replace_token_file(files, "/tokens", sources, encoder, 5, {.chunk_bytes = 10'000});
  };
  SimulatedFiles before;
  write(before, "/a.txt", "old");
  ASSERT_TRUE(replace(before).ok());
  const std::string old = text_of(before, "/tokens");
  ASSERT_TRUE(before.remove("/a.txt").ok());
  write(before, "/a.txt", std::string(40'000, 'n'));
  const auto after = before.after_kill();
  ASSERT_TRUE(replace(*after).ok());
  const std::string fresh = text_of(*after, "/tokens");
  uint64_t failures = 0;
  for (uint64_t n = 0;; ++n) {
    SCOPED_TRACE("request " + std::to_string(n));
    ASSERT_LT(n, 200u);
    const auto files = before.after_kill();
    files->faults = {GetParam(), n};
    const Result<TokenTable> table = replace(*files);
    const bool fired = files->faults.fired > 0;
    files->faults = {};
    const std::string found = text_of(*files, "/tokens");
    EXPECT_TRUE(found == fresh || (found == old && !table.ok()));
    EXPECT_TRUE(check_token_file(*files, "/tokens", 5, sources).ok() || found == old);
    if (!table.ok()) {
      ++failures;
      if (GetParam() == FileFault::no_space && found == old &&
          table.error().message.find("rename") == std::string::npos) {
        EXPECT_NE(table.error().message.find("the disk was full"), std::string::npos)
            << table.error().message;
      }
    }
    // One failure at a time: removing the draft then works, so none is left.
    EXPECT_EQ(files->list("/").value().size(), 2u);
    if (HasFailure() || !fired) break;
  }
  EXPECT_TRUE(failures > 5 || GetParam() == FileFault::short_transfer);
}

INSTANTIATE_TEST_SUITE_P(Each, CacheFaults,
                         testing::Values(FileFault::io_error, FileFault::no_space,
                                         FileFault::short_transfer, FileFault::nothing_written));

}  // namespace
}  // namespace bottomless::data
