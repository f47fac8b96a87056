// Turns data files into a file of tokens, with several threads and bounded memory: at most two chunks for each thread exist at once.
// Thread-safety: free functions; the encoder is called from several threads.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "data/chunks.h"
#include "data/encoder.h"
#include "data/token_file.h"

namespace bottomless::data {

struct TokeniseOptions {
  TextDocuments documents = TextDocuments::per_file;
  unsigned threads = 1;  // at least one
  // Called now and then from the calling thread, with the bytes of the data files that are done.
  std::function<void(Bytes done)> progress;
  Bytes chunk_bytes = ChunkReader::kChunkBytes;
};

struct EncodedPiece {
  Encoded encoded;
  DocumentKind kind = DocumentKind::text;
  Piece piece = Piece::ends;
};

// What one chunk holds. Errors name the file and the line.
Result<std::vector<EncodedPiece>> encode_chunk(const Chunk& chunk, const Source& source,
                                               const Encoder& encoder, TextDocuments documents);

// Writes `path`, which must not exist, and brings it to the disk. On an error it is removed again. The error is that of the
// first bad line, whatever the number of threads.
Result<TokenTable> make_token_file(Files& files, const std::filesystem::path& path,
                                   std::span<const Source> sources, const Encoder& encoder,
                                   uint64_t key, const TokeniseOptions& options);

}  // namespace bottomless::data
