#include "data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "checkpoint/checksum.h"

namespace bottomless::data {
namespace {

static_assert(std::endian::native == std::endian::little, "files are written as memory is");

constexpr char kMagic[8] = {'B', 'L', 'T', 'O', 'K', 'E', 'N', 'S'};
constexpr uint32_t kVersion = 1;
constexpr size_t kWords = kBlockTokens / 64;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t tokens, documents, counted, key;
  uint64_t sources, blocks;
  uint64_t table_offset;
  uint64_t checksum;  // of the header with 0 here, and of the table
};
static_assert(sizeof(Header) == 80 && sizeof(TokenTable::Block) == 16 &&
              sizeof(SourceIdentity) == 24);

uint64_t checksum_of(Header header, std::span<const std::byte> table) {
  header.checksum = 0;
  Checksum sum;
  sum.add(std::as_bytes(std::span(&header, 1)));
  sum.add(table);
  return sum.value();
}

uint64_t checksum_of(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.add(bytes);
  return sum.value();
}

template <class T>
void append(std::vector<std::byte>& to, const std::vector<T>& from) {
  const auto bytes = std::as_bytes(std::span(from));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

Error corrupt(const std::filesystem::path& path, const std::string& what) {
  return {Code::corrupt, "read the tokens in '" + path.string() + "': " + what +
                             "; remove the file, it is made again from the data"};
}

}  // namespace

TokenFileWriter::TokenFileWriter(std::unique_ptr<File> file, std::filesystem::path path,
                                 uint32_t token_bytes)
    : file_(std::move(file)), path_(std::move(path)) {
  table_.token_bytes = token_bytes;
  block_.resize(table_.block_bytes());
}

Result<TokenFileWriter> TokenFileWriter::create(Files& files, const std::filesystem::path& path,
                                                int64_t vocabulary_size) {
  Result<std::unique_ptr<File>> file = files.create(path);
  if (!file.ok()) return std::move(file).error();
  const bool fits = vocabulary_size <= int64_t{1} << 16;
  return TokenFileWriter(std::move(file).value(), path, fits ? 2 : 4);
}

Result<void> TokenFileWriter::write_block() {
  const Bytes offset = kBlocksOffset + table_.blocks.size() * table_.block_bytes();
  const Result<void> written = write_all(*file_, offset, block_, path_);
  if (!written.ok()) return written;
  table_.blocks.push_back({documents_before_, checksum_of(block_)});
  std::fill(block_.begin(), block_.end(), std::byte{0});
  documents_before_ = table_.documents;
  return {};
}

void TokenFileWriter::set(uint64_t at, unsigned plane) {
  const uint64_t in_block = at % kBlockTokens;
  std::byte* bits = block_.data() + kBlockTokens * table_.token_bytes + plane * kBlockTokens / 8;
  bits[in_block / 8] |= std::byte{1} << in_block % 8;
}

Result<void> TokenFileWriter::add(const Encoded& encoded, DocumentKind kind, Piece piece) {
  BOTTOMLESS_CHECK(encoded.tokens.size() == encoded.counts.size(), "a token without a mask");
  const uint32_t width = table_.token_bytes;
  for (size_t i = 0; i < encoded.tokens.size(); ++i) {
    // Not before another token needs the room: a document may still turn out to have ended with the last one.
    if (table_.tokens == (table_.blocks.size() + 1) * kBlockTokens) {
      const Result<void> written = write_block();
      if (!written.ok()) return written;
    }
    const auto token = static_cast<uint32_t>(encoded.tokens[i]);
    BOTTOMLESS_CHECK(width == 4 || token <= std::numeric_limits<uint16_t>::max(),
                     "a token beyond the vocabulary");
    std::memcpy(block_.data() + table_.tokens % kBlockTokens * width, &token, width);
    if (encoded.counts[i] != 0) {
      set(table_.tokens, 0);
      ++table_.counted;
    }
    ++table_.tokens;
    document_is_open_ = true;
  }
  if (piece == Piece::ends && document_is_open_) {
    set(table_.tokens - 1, 1);
    if (kind == DocumentKind::sample) set(table_.tokens - 1, 2);
    ++table_.documents;
    document_is_open_ = false;
  }
  return {};
}

Result<void> TokenFileWriter::finish(uint64_t key, std::vector<SourceIdentity> sources) {
  if (table_.tokens > table_.blocks.size() * kBlockTokens) {
    const Result<void> written = write_block();
    if (!written.ok()) return written;
  }
  table_.key = key;
  table_.sources = std::move(sources);
  std::vector<std::byte> table;
  append(table, table_.sources);
  append(table, table_.blocks);
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.token_bytes = table_.token_bytes;
  header.tokens = table_.tokens;
  header.documents = table_.documents;
  header.counted = table_.counted;
  header.key = key;
  header.sources = table_.sources.size();
  header.blocks = table_.blocks.size();
  header.table_offset = kBlocksOffset + table_.blocks.size() * table_.block_bytes();
  header.checksum = checksum_of(header, table);
  Result<void> done = write_all(*file_, header.table_offset, table, path_);
  if (done.ok()) done = write_all(*file_, 0, std::as_bytes(std::span(&header, 1)), path_);
  return done.ok() ? file_->sync() : done;
}

Result<TokenTable> read_token_table(File& file, const std::filesystem::path& path) {
  const Result<Bytes> size = file.size();
  if (!size.ok()) return size.error();
  if (size.value() < kBlocksOffset) return corrupt(path, "it is too short");
  Header header{};
  Result<void> got = read_all(file, 0, std::as_writable_bytes(std::span(&header, 1)), path);
  if (!got.ok()) return got.error();
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.version != kVersion ||
      (header.token_bytes != 2 && header.token_bytes != 4)) {
    return corrupt(path, "it is no file of tokens of version " + std::to_string(kVersion));
  }
  TokenTable table{.token_bytes = header.token_bytes,
                   .tokens = header.tokens,
                   .documents = header.documents,
                   .counted = header.counted,
                   .key = header.key};
  // Bounded by the size of the file first, so that no product below overflows.
  const bool fits = header.blocks <= size.value() / table.block_bytes() &&
                    header.sources <= size.value() / sizeof(SourceIdentity);
  const Bytes offset = kBlocksOffset + (fits ? header.blocks * table.block_bytes() : 0);
  const Bytes bytes =
      fits ? header.sources * sizeof(SourceIdentity) + header.blocks * sizeof(TokenTable::Block)
           : 0;
  if (!fits || header.table_offset != offset || size.value() != offset + bytes ||
      header.blocks != header.tokens / kBlockTokens + (header.tokens % kBlockTokens != 0 ? 1 : 0)) {
    return corrupt(path, "its size does not fit what it holds");
  }
  std::vector<std::byte> raw(bytes);
  got = read_all(file, offset, raw, path);
  if (!got.ok()) return got.error();
  if (checksum_of(header, raw) != header.checksum) return corrupt(path, "its table is damaged");
  table.sources.resize(header.sources);
  table.blocks.resize(header.blocks);
  const size_t of_sources = header.sources * sizeof(SourceIdentity);
  if (of_sources > 0) std::memcpy(table.sources.data(), raw.data(), of_sources);
  if (bytes > of_sources) {
    std::memcpy(table.blocks.data(), raw.data() + of_sources, bytes - of_sources);
  }
  return table;
}

Result<void> verify_blocks(File& file, const TokenTable& table, const std::filesystem::path& path) {
  std::vector<std::byte> block(table.block_bytes());
  for (size_t i = 0; i < table.blocks.size(); ++i) {
    const Result<void> got = read_all(file, kBlocksOffset + i * table.block_bytes(), block, path);
    if (!got.ok()) return got;
    if (checksum_of(block) != table.blocks[i].checksum) {
      return corrupt(path, "block " + std::to_string(i) + " is damaged");
    }
  }
  return {};
}

Tokens::Tokens(std::span<const std::byte> file, TokenTable table, GiveBack give_back)
    : file_(file), table_(std::move(table)), give_back_(std::move(give_back)) {}

const uint64_t* Tokens::plane(uint64_t block_index, unsigned plane) const {
  // Blocks and planes begin at multiples of 8 bytes, and so does a mapped file.
  return reinterpret_cast<const uint64_t*>(block(block_index) + kBlockTokens * table_.token_bytes +
                                           plane * kBlockTokens / 8);
}

bool Tokens::bit(uint64_t at, unsigned which) const {
  return plane(at / kBlockTokens, which)[at % kBlockTokens / 64] >> at % 64 & 1;
}

int32_t Tokens::token(uint64_t at) const {
  uint32_t token = 0;
  std::memcpy(&token, block(at / kBlockTokens) + at % kBlockTokens * table_.token_bytes,
              table_.token_bytes);
  return static_cast<int32_t>(token);
}

uint64_t Tokens::document_of(uint64_t at) const {
  const uint64_t* ends = plane(at / kBlockTokens, 1);
  const uint64_t in_block = at % kBlockTokens;
  uint64_t number = table_.blocks[at / kBlockTokens].documents_before;
  for (uint64_t word = 0; word < in_block / 64; ++word) number += std::popcount(ends[word]);
  const uint64_t before = (uint64_t{1} << in_block % 64) - 1;
  return number + std::popcount(ends[in_block / 64] & before);
}

uint64_t Tokens::last_of_document(uint64_t at) const {
  uint64_t mask = ~uint64_t{0} << at % 64;
  for (uint64_t word = at / 64; word * 64 < size(); ++word, mask = ~uint64_t{0}) {
    if (word % kWords == 0 && word * 64 > at) give_back(word * 64 - 1, word * 64 - 1);
    const uint64_t ends = plane(word / kWords, 1)[word % kWords] & mask;
    if (ends != 0) return word * 64 + std::countr_zero(ends);
  }
  return size() - 1;
}

void Tokens::for_each_document(const std::function<void(const Document&)>& visit) const {
  uint64_t number = 0;
  for (uint64_t begin = 0; begin < size(); ++number) {
    const uint64_t last = last_of_document(begin);
    visit({number, begin, last + 1, ends_sample(last) ? DocumentKind::sample : DocumentKind::text});
    if ((last + 1) % kBlockTokens == 0) give_back(last, last);
    begin = last + 1;
  }
}

void Tokens::give_back(uint64_t first, uint64_t last) const {
  if (!give_back_) return;
  const std::byte* begin = block(first / kBlockTokens);
  give_back_({begin, block(last / kBlockTokens + 1)});
}

}  // namespace bottomless::data
