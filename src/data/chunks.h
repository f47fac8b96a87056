// Reads data files in chunks that can be tokenised apart, so that memory stays bounded and threads can share the work.
// A JSONL file is cut between lines. A text is cut after the end of a line whose next one does not begin with a blank, about every
// MiB: tokenizers that split words first give the same tokens as for the whole.
// Thread-safety: one thread at a time.
// Lifetime: the Files and the sources must outlive the reader.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checksum.h"
#include "checkpoint/files.h"
#include "data/token_file.h"

namespace bottomless::data {

enum class TextDocuments { per_file, between_blank_lines };
enum class Format { text, jsonl };

struct Source {
  std::filesystem::path path;
  int64_t modified_ns = 0;
  Format format = Format::text;
};

// Looks at each file; .jsonl, .ndjson and .json hold one JSON object a line, anything else is text.
Result<std::vector<Source>> find_sources(std::span<const std::filesystem::path> paths);

struct Chunk {
  std::string bytes;
  size_t source = 0;
  uint64_t first_line = 1;
  bool begins_document = true;  // what stands first in it
  bool ends_document = true;    // what stands last
};

class ChunkReader {
 public:
  static constexpr Bytes kChunkBytes = 1_MiB;
  static constexpr Bytes kLongestLine = 64_MiB;  // of JSONL

  ChunkReader(Files& files, std::span<const Source> sources, TextDocuments documents,
              Bytes chunk_bytes = kChunkBytes);

  // The next one; nothing at the end of the last file.
  Result<std::optional<Chunk>> next();

  Bytes bytes_read() const { return bytes_read_; }
  // Of the files that were read to their ends, in order.
  const std::vector<SourceIdentity>& identities() const { return identities_; }

 private:
  Result<void> open();
  Result<void> fill(Bytes bytes);  // the buffer, unless the file ends before
  Result<size_t> cut();            // how much of the buffer is the next chunk
  Result<size_t> cut_lines();
  size_t cut_text();
  Result<void> close();

  Files& files_;
  const std::span<const Source> sources_;
  const TextDocuments documents_;
  const Bytes chunk_bytes_;
  size_t source_ = 0;
  std::unique_ptr<File> file_;
  Bytes offset_ = 0;  // of what follows the buffer
  bool at_end_ = false;
  bool ends_document_ = true, only_blanks_ = true;
  uint64_t line_ = 1;
  std::string buffer_;
  Checksum checksum_;
  Bytes bytes_read_ = 0;
  std::vector<SourceIdentity> identities_;
};

// Whether a line holds nothing but blanks.
bool is_blank(std::string_view line);

}  // namespace bottomless::data
