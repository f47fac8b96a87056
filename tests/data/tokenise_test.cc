// Files become tokens: the same ones however large the chunks and however many the threads.
#include "data/tokenise.h"

#include <gtest/gtest.h>

#include <atomic>

#include "byte_encoder.h"
#include "small_files.h"
#include "support/random.h"
#include "support/simulated_files.h"

namespace bottomless::data {
namespace {

constexpr const char* kTokens = "/tokens";

// Documents as text, marks as |, and what does not count as dots; samples in brackets.
std::vector<std::string> documents_in(Files& files, const std::filesystem::path& path) {
  const auto file = files.open(path);
  const Result<TokenTable> table = read_token_table(*file.value(), path);
  if (!table.ok()) return {table.error().message};
  EXPECT_TRUE(verify_blocks(*file.value(), table.value(), path).ok());
  const std::vector<std::byte> bytes = bytes_of(files, path);
  const Tokens tokens(bytes, table.value());
  std::vector<std::string> documents;
  uint64_t counted = 0;
  tokens.for_each_document([&](const Tokens::Document& document) {
    std::string text;
    for (uint64_t at = document.begin; at < document.end; ++at) {
      const int32_t token = tokens.token(at);
      text += !tokens.counts(at) ? '.' : token < 256 ? static_cast<char>(token) : '|';
      counted += tokens.counts(at);
      EXPECT_EQ(tokens.document_of(at), document.number);
      EXPECT_EQ(tokens.ends_document(at), at + 1 == document.end);
    }
    documents.push_back(document.kind == DocumentKind::sample ? "[" + text + "]" : text);
  });
  EXPECT_EQ(documents.size(), table.value().documents);
  EXPECT_EQ(counted, table.value().counted);
  return documents;
}

class Tokenise : public testing::Test {
 protected:
  Result<TokenTable> make(const std::vector<Source>& sources) {
    return make_token_file(files_, kTokens, sources, encoder_, 77, options_);
  }
  std::vector<std::string> made(const std::vector<Source>& sources) {
    const Result<TokenTable> table = make(sources);
    if (!table.ok()) return {table.error().message};
    return documents_in(files_, kTokens);
  }
  using Texts = std::vector<std::string>;

  SimulatedFiles files_;
  ByteEncoder encoder_;
  TokeniseOptions options_;
};

TEST_F(Tokenise, EachTextFileIsADocument) {
  write(files_, "/a.txt", "abc\n\ndef\n");
  write(files_, "/b.py", "\xEF\xBB\xBFx = 1");
  encoder_.begin = ByteEncoder::kBegin;
  EXPECT_EQ(made({{"/a.txt"}, {"/b.py"}}), (Texts{".abc\n\ndef\n|", ".x = 1|"}));
}

TEST_F(Tokenise, BlankLinesCanSeparateDocuments) {
  write(files_, "/a.txt", "\n\nabc\ndef\n\t\n \nghi\n\nj\r\n\r\nk");
  options_.documents = TextDocuments::between_blank_lines;
  EXPECT_EQ(made({{"/a.txt"}}), (Texts{"abc\ndef|", "ghi|", "j\r|", "k|"}));
}

TEST_F(Tokenise, EachLineOfJsonIsADocument) {
  write(files_, "/a.jsonl",
        "{\"text\": \"abc\"}\r\n\n{\"prompt\": \"de\", \"response\": \"f\"}\n{\"text\": \"g\"}");
  EXPECT_EQ(made({{"/a.jsonl", 0, Format::jsonl}}), (Texts{"abc|", "[..f|]", "g|"}));
}

TEST_F(Tokenise, WithoutMarksKeepsWhereADocumentEnds) {
  encoder_.over.reset();
  write(files_, "/a.txt", "ab");
  write(files_, "/b.txt", "c");
  EXPECT_EQ(made({{"/a.txt"}, {"/b.txt"}}), (Texts{"ab", "c"}));
}

TEST_F(Tokenise, LargeVocabulariesTakeFourBytes) {
  encoder_.vocabulary = 70'000;
  encoder_.over = 65'536;
  write(files_, "/a.txt", "ab");
  EXPECT_EQ(made({{"/a.txt"}}), (Texts{"ab|"}));
  EXPECT_EQ(documents_in(files_, kTokens).size(), 1u);
  const auto file = files_.open(kTokens);
  EXPECT_EQ(read_token_table(*file.value(), kTokens).value().token_bytes, 4u);
}

TEST_F(Tokenise, ABadFileIsAnErrorThatNamesFileAndLineAndLeavesNothing) {
  write(files_, "/good.txt", "abc");
  write(files_, "/empty.txt", "");
  write(files_, "/blank.jsonl", " \n\n");
  write(files_, "/bad.jsonl", "{\"text\": \"abc\"}\n\n{\"text\": \"ab");
  write(files_, "/latin.txt", "abc\ndef\nna\xEFve\n");
  const std::tuple<Source, const char*> kCases[] = {
      {{"/empty.txt"}, "'/empty.txt': it is empty; leave it out or fill it"},
      {{"/blank.jsonl", 0, Format::jsonl}, "'/blank.jsonl': it is empty but for blanks"},
      {{"/bad.jsonl", 0, Format::jsonl}, "'/bad.jsonl', line 3: it is not JSON"},
      {{"/latin.txt"}, "'/latin.txt', line 3: it is not UTF-8; convert the file"},
      {{"/none.txt"}, "open '/none.txt'"},
  };
  for (const auto& [source, expected] : kCases) {
    const Result<TokenTable> table = make({{"/good.txt"}, source});
    ASSERT_FALSE(table.ok());
    EXPECT_NE(table.error().message.find(expected), std::string::npos) << table.error().message;
    EXPECT_FALSE(files_.open(kTokens).ok()) << "half a file is left";
  }
}

TEST_F(Tokenise, TheFirstErrorIsReportedWhateverTheThreads) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += i == 700 || i == 1500 ? "x\n" : "{\"text\": \"abc\"}\n";
  write(files_, "/bad.jsonl", lines);
  write(files_, "/empty.txt", "");
  options_.chunk_bytes = 100;
  for (const unsigned threads : {1u, 3u, 8u}) {
    options_.threads = threads;
    const Result<TokenTable> table = make({{"/bad.jsonl", 0, Format::jsonl}, {"/empty.txt"}});
    ASSERT_FALSE(table.ok());
    EXPECT_NE(table.error().message.find("line 701:"), std::string::npos) << table.error().message;
  }
}

TEST_F(Tokenise, ALineWithoutEndIsRefusedBeforeItFillsTheMemory) {
  options_.chunk_bytes = ChunkReader::kLongestLine + 1;
  write(files_, "/long.jsonl", std::string(ChunkReader::kLongestLine + 2, 'x'));
  const Result<TokenTable> table = make({{"/long.jsonl", 0, Format::jsonl}});
  ASSERT_FALSE(table.ok());
  EXPECT_NE(table.error().message.find("longer than 64 MiB"), std::string::npos)
      << table.error().message;
}

// Counts what it has encoded, in bytes.
class CountingEncoder final : public ByteEncoder {
 public:
  Result<std::vector<int32_t>> encode(std::string_view text) const override {
    encoded += text.size();
    return ByteEncoder::encode(text);
  }
  mutable std::atomic<Bytes> encoded = 0;
};

TEST_F(Tokenise, ReadsOnlyAFewChunksAhead) {
  constexpr Bytes kChunk = 1000;
  constexpr unsigned kThreads = 3;
  const CountingEncoder encoder;
  std::string text;
  for (int line = 0; line < 10'000; ++line) text += "a line\n";
  write(files_, "/a.txt", text);
  TokeniseOptions options{.threads = kThreads, .chunk_bytes = kChunk};
  options.progress = [&](Bytes read) {
    EXPECT_LE(read, encoder.encoded + (2 * kThreads + 1) * (kChunk + 1));
  };
  ASSERT_TRUE(make_token_file(files_, kTokens, {{{"/a.txt"}}}, encoder, 1, options).ok());
  EXPECT_EQ(encoder.encoded, text.size());
}

// A file of words, lines and blank lines, with characters of every length.
std::string random_text(Random& random, size_t bytes) {
  const std::vector<std::string> parts{"a",   "word", " ",      "\n",     "\n\n",
                                       "\n ", "\t",   "\u00e4", "\u20ac", "\U0001F600"};
  std::string text = "x";
  while (text.size() < bytes) text += parts[random.below(parts.size())];
  return text;
}

TEST_F(Tokenise, NeitherChunksNorThreadsChangeAnything) {
  Random random(91);
  BOTTOMLESS_TRACE_SEED(random);
  for (int i = 0; i < 20; ++i) {
    SCOPED_TRACE(i);
    SimulatedFiles files;
    const std::string text = random_text(random, random.between(1, 20'000));
    std::string lines;
    for (uint64_t line = random.between(1, 200); line > 0; --line) {
      lines += "{\"text\": \"" + std::string(random.below(300), 'y') + "\"}\n";
    }
    write(files, "/a.txt", text);
    write(files, "/b.jsonl", lines);
    const std::vector<Source> sources{{"/a.txt"}, {"/b.jsonl", 0, Format::jsonl}, {"/a.txt"}};
    const auto make = [&](const char* path, unsigned threads, Bytes chunk) {
      TokeniseOptions options{.threads = threads, .chunk_bytes = chunk};
      Bytes told = 0;
      options.progress = [&](Bytes done) {
        EXPECT_GE(done, told);
        told = done;
      };
      const auto table = make_token_file(files, path, sources, encoder_, 1, options);
      EXPECT_TRUE(table.ok()) << table.error().message;
      EXPECT_EQ(told, 2 * text.size() + lines.size());
    };
    make("/whole", 1, 1_MiB);
    make("/cut", static_cast<unsigned>(random.between(1, 4)), random.between(8, 5000));
    EXPECT_EQ(documents_in(files, "/whole").front(), text + "|");
    EXPECT_EQ(bytes_of(files, "/whole"), bytes_of(files, "/cut"));
  }
}

TEST_F(Tokenise, ChunksDoNotChangeWhatBlankLinesSeparate) {
  Random random(92);
  BOTTOMLESS_TRACE_SEED(random);
  options_.documents = TextDocuments::between_blank_lines;
  for (int i = 0; i < 30; ++i) {
    SimulatedFiles files;
    // Every line is shorter than half a chunk, so each chunk can end between lines.
    std::string text;
    for (int line = 0; line < 300; ++line) {
      text += random.one_in(4) ? "\n" : std::string(random.between(1, 30), 'z') + "\n";
    }
    write(files, "/a.txt", text + "end");
    options_.chunk_bytes = 1_MiB;
    ASSERT_TRUE(make_token_file(files, "/whole", {{{"/a.txt"}}}, encoder_, 1, options_).ok());
    options_.chunk_bytes = random.between(100, 2000);
    ASSERT_TRUE(make_token_file(files, "/cut", {{{"/a.txt"}}}, encoder_, 1, options_).ok());
    const Texts whole = documents_in(files, "/whole"), cut = documents_in(files, "/cut");
    ASSERT_EQ(whole.size(), cut.size());
    for (size_t d = 0; d < whole.size(); ++d) {
      // Only the end of a document's last line may be kept, where a chunk ended just behind it.
      std::string other = cut[d];
      if (other.size() > whole[d].size()) other.erase(other.size() - 2, 1);
      EXPECT_EQ(whole[d], other);
    }
  }
}

}  // namespace
}  // namespace bottomless::data
