// The file that holds tokenised documents (docs/data.md draws it): blocks of 16,384 tokens, each with a bit for every
// token that counts in the loss, that is a document's last, and that ends a sample which should stay whole; behind them a table
// of the blocks and of what the file was made from. All checksums are XXH3 of 64 bits.
// Thread-safety: a Tokens may be read by any thread; a TokenFileWriter is used by one at a time.
// Lifetime: a Tokens borrows the bytes of the file.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/files.h"
#include "data/encoder.h"

namespace bottomless::data {

inline constexpr uint64_t kBlockTokens = 1 << 14;
inline constexpr Bytes kBlocksOffset = 4096;  // of the first block

enum class DocumentKind { text, sample };  // a text may be cut anywhere; a sample should stay whole
enum class Piece { goes_on, ends };        // of a document

struct SourceIdentity {
  Bytes bytes = 0;
  int64_t modified_ns = 0;
  uint64_t content = 0;  // checksum

  bool operator==(const SourceIdentity&) const = default;
};

struct TokenTable {
  struct Block {
    uint64_t documents_before = 0;
    uint64_t checksum = 0;
  };

  uint32_t token_bytes = 2;  // or 4
  uint64_t tokens = 0;
  uint64_t documents = 0;
  uint64_t counted = 0;  // tokens that count in the loss
  uint64_t key = 0;      // of the tokenizer, the options and the names of the files
  std::vector<SourceIdentity> sources;
  std::vector<Block> blocks;

  Bytes block_bytes() const { return kBlockTokens * token_bytes + 3 * kBlockTokens / 8; }
};

class TokenFileWriter {
 public:
  static Result<TokenFileWriter> create(Files& files, const std::filesystem::path& path,
                                        int64_t vocabulary_size);

  Result<void> add(const Encoded& encoded, DocumentKind kind, Piece piece);
  // The table and the header, and everything to the disk. Nothing can be added after it.
  Result<void> finish(uint64_t key, std::vector<SourceIdentity> sources);

  const TokenTable& table() const { return table_; }

 private:
  TokenFileWriter(std::unique_ptr<File> file, std::filesystem::path path, uint32_t token_bytes);
  Result<void> write_block();
  void set(uint64_t at, unsigned plane);

  std::unique_ptr<File> file_;
  std::filesystem::path path_;
  TokenTable table_;
  std::vector<std::byte> block_;  // the one that is being filled
  uint64_t documents_before_ = 0;
  bool document_is_open_ = false;
};

// Reads the table of a file, and all of its blocks once. Code::corrupt if anything is not as it was written.
Result<TokenTable> read_token_table(File& file, const std::filesystem::path& path);
Result<void> verify_blocks(File& file, const TokenTable& table, const std::filesystem::path& path);

class Tokens {
 public:
  struct Document {
    uint64_t number, begin, end;  // tokens
    DocumentKind kind;
  };

  // `give_back`, if any, is told which bytes are not needed for now.
  using GiveBack = std::function<void(std::span<const std::byte>)>;
  Tokens(std::span<const std::byte> file, TokenTable table, GiveBack give_back = {});

  const TokenTable& table() const { return table_; }
  uint64_t size() const { return table_.tokens; }
  int32_t token(uint64_t at) const;
  bool counts(uint64_t at) const { return bit(at, 0); }
  bool ends_document(uint64_t at) const { return bit(at, 1); }
  bool ends_sample(uint64_t at) const { return bit(at, 2); }
  uint64_t document_of(uint64_t at) const;
  // The last token of the document that `at` is in.
  uint64_t last_of_document(uint64_t at) const;
  void for_each_document(const std::function<void(const Document&)>& visit) const;
  // The tokens of [first, last] have been read.
  void give_back(uint64_t first, uint64_t last) const;

 private:
  const std::byte* block(uint64_t index) const {
    return file_.data() + kBlocksOffset + index * table_.block_bytes();
  }
  const uint64_t* plane(uint64_t block_index, unsigned plane) const;
  bool bit(uint64_t at, unsigned plane) const;

  std::span<const std::byte> file_;
  TokenTable table_;
  GiveBack give_back_;
};

}  // namespace bottomless::data
